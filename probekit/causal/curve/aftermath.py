"""What an erasure leaves: what fresh probes still read, here and at later layers, and the loss on other text.

Axes: N rows, D width of the place.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from probekit.activations.activations import ActivationSet
from probekit.causal.behaviour.measure import loss_per_token
from probekit.causal.behaviour.neutral import load_neutral
from probekit.causal.curve.question import CausalQuestion, tokens_of
from probekit.causal.erasure.completeness import FreshReading, fresh_probes, read_afresh
from probekit.causal.erasure.erase import Eraser
from probekit.causal.erasure.recovery import extract_edited
from probekit.errors import DataError
from probekit.points import Place
from probekit.tasks.base import Task

MOST_FRESH = 1000  # rows of validation, and of test, that fresh probes are trained and scored on
NEUTRAL = 64  # texts of the loss


@dataclass(frozen=True, eq=False)
class Aftermath:
    """What is known before any edit, the same for every place.

    Attributes:
        task: rows of validation and test.
        reading: what fresh probes read there; None if fresh probes were not asked for, or cannot be trained.
        neutral: texts of the loss.
        loss: on them, in nats a token; None where no text has a second token to predict.
    """

    task: Task
    reading: FreshReading | None
    neutral: list[list[int]]
    loss: float | None


def prepare_aftermath(question: CausalQuestion) -> Aftermath:
    """Read the unedited activations afresh, and measure the loss of the unedited model.

    Raises:
        DataError: a file of neutral texts that cannot be read.
    """
    rng, splits = np.random.default_rng([question.options.seed, 3]), question.acts.task.splits
    rows = np.concatenate(
        [np.sort(rng.permutation(np.flatnonzero(splits == split))[:MOST_FRESH]) for split in ("validation", "test")]
    )
    task, reading = question.acts.task.subset(rows), None
    if question.options.completeness:
        index = torch.from_numpy(rows)
        places = [(layer.point, layer.layer) for layer in question.layers]
        own = ActivationSet({place: question.acts[place][index] for place in places}, task)
        try:
            reading = read_afresh(own, seed=question.options.seed)
        except DataError:  # too few rows of a class: the rest of the run needs no fresh probes
            reading = None
    neutral = _neutral(question, rng)
    loss = loss_per_token(question.model, neutral) if any(len(text) > 1 for text in neutral) else None
    return Aftermath(task, reading, neutral, loss)


def after_erasure(question: CausalQuestion, known: Aftermath, place: Place, eraser: Eraser) -> dict[str, Any]:
    """Collateral, and where it can be measured completeness, selectivity and reliability; JSON-able.

    Completeness is a list: at the place, then at later ones, up to the first where nothing was read before.
    """
    edits = {place: eraser.edit}
    found: dict[str, Any] = {}
    if known.loss is not None:
        found["collateral"] = loss_per_token(question.model, known.neutral, edits) - known.loss
    if known.reading is None:
        return found
    fresh = fresh_probes(known.reading, _edited(question, known.task, place, edits), question.label)
    complete = fresh.completeness
    shown = next((i for i, share in enumerate(complete) if math.isnan(share)), len(complete))
    if shown:
        found["completeness"] = complete[:shown]
    for name, share in (("selectivity", fresh.selectivity[0]), ("reliability", fresh.reliability[0])):
        if not math.isnan(share):
            found[name] = share
    return found


def _edited(question: CausalQuestion, task: Task, place: Place, edits: dict[Place, Any]) -> ActivationSet:
    """Activations of the rows with the edit, at its place and at later ones of the curve."""
    every = [(layer.point, layer.layer) for layer in question.layers]
    return extract_edited(question.model, question.acts, task, every[every.index(place) :], edits, question.options.at)


def _neutral(question: CausalQuestion, rng: np.random.Generator) -> list[list[int]]:
    """Texts of a file, or texts of the task that no effect is measured on."""
    if question.options.neutral is None:
        rows = np.sort(rng.permutation(question.train)[:NEUTRAL])
        return [ids for ids in tokens_of(question.model, question.acts, rows)[0] if len(ids) > 1]
    return load_neutral(question.options.neutral, question.model, question.acts.meta.get("bos"))
