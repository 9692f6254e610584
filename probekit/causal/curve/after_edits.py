"""What an edit leaves: what probes read after it, here and at later layers, and the loss on neutral texts.

Completeness, selectivity and reliability of counterfactual interventions (interchange, steering) follow Canby et al.
2024 (arXiv 2408.15510): the probes are those of the unedited activations, trained on other rows. Probes trained after
the edit would not do: if two classes are exchanged, they learn the exchanged names.

Axes: N rows, D width of the place, P places.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from probekit.activations.activations import ActivationSet
from probekit.causal.behaviour.measure import loss_per_token
from probekit.causal.curve.edits import chosen_edit
from probekit.causal.curve.prepared import AnsweredRows, BeforeEdits, PreparedQuestion
from probekit.causal.curve.problem import PlaceProblem, PlaceRows, activations_at
from probekit.causal.curve.question import CausalQuestion
from probekit.causal.data import Effect, Method
from probekit.causal.erasure.completeness import (
    FreshReading,
    FreshScores,
    fresh_probes,
    harmonic_mean,
    mean_of_known,
)
from probekit.causal.erasure.recovery import extract_edited
from probekit.errors import UsageError
from probekit.interventions import Edit
from probekit.points import Place
from probekit.tasks.base import Task
from probekit.tasks.token_labels import no_label
from probekit.text import listed


@dataclass(frozen=True)
class ExchangeReading:
    """What the probes of the unedited activations read with an edit.

    Attributes:
        label: the edited label set.
        places: the edited one first, [P].
        completeness: how well the wanted classes are read with the edit, above chance, as a share of how well the own
            ones are read without it, [P]: 1 if every row reads as its wanted class, below 0 if it still reads as its
            own; nan where nothing was read.
        selectivity: how well the other label sets are still read, as a share of before: [P], their mean; nan without
            any.
    """

    label: str
    places: list[Place]
    completeness: list[float]
    selectivity: list[float]

    @property
    def reliability(self) -> list[float]:
        """The harmonic mean of completeness and selectivity, each limited to 0..1: [P]."""
        return [harmonic_mean(*both) for both in zip(self.completeness, self.selectivity, strict=True)]


def read_exchange(
    reading: FreshReading,
    before: Mapping[Place, torch.Tensor],
    after: Mapping[Place, torch.Tensor],
    labels: Mapping[str, np.ndarray],
    wanted_N: np.ndarray,
    label: str,
) -> ExchangeReading:
    """Read rows with and without an edit, by the probes of `read_afresh`.

    Args:
        reading: of the unedited activations; its probes were trained on rows of validation, so give rows of test.
        before: place -> activations of the rows without the edit, [N, D].
        after: with it, at the edited place first, then at later ones.
        labels: label set -> the rows' own classes or numbers, [N].
        wanted_N: the class that the edit is to give each row, [N].
        label: the edited label set, of classes.

    Raises:
        UsageError: a label set without probes, or a place without activations or probes.
    """
    if label not in reading.scores:
        raise UsageError(reading.left_out.get(label, f"no fresh probes of {label!a}; read them first: read_afresh"))
    places = [Place(*place) for place in after]
    if missing := [str(place) for place in places if place not in before or place not in reading.scores[label].probes]:
        raise UsageError(
            f"no unedited activations or probes of {listed(missing)}; read the same places without the edit"
        )
    rows = {name: np.asarray(labels[name]) for name in reading.scores}

    def share(name: str, place: Place, wanted: np.ndarray) -> float:
        scores, labelled = reading.scores[name], ~no_label(rows[name])  # labels that came later may be of some rows
        if scores.intervals[place][0] <= scores.chance or not labelled.any():
            return math.nan
        own = _score(scores, place, before[place][labelled], rows[name][labelled]) - scores.chance
        found = _score(scores, place, after[place][labelled], wanted[labelled]) - scores.chance
        return found / own if own > 0 else math.nan

    others = [name for name in rows if name != label]
    complete = [share(label, place, np.asarray(wanted_N)) for place in places]
    selective = [mean_of_known(share(name, place, rows[name]) for name in others) for place in places]
    return ExchangeReading(label, places, complete, selective)


def _score(scores: FreshScores, place: Place, x_ND: torch.Tensor, wanted_N: np.ndarray) -> float:
    """Balanced accuracy, or R2 of numbers, of the place's probe."""
    predicted_N = scores.probes[place].predict(x_ND)
    if scores.metric == "r2":
        return 1 - float(np.square(wanted_N - predicted_N).sum() / np.square(wanted_N - wanted_N.mean()).sum())
    return float(np.mean([(predicted_N[wanted_N == c] == c).mean() for c in np.unique(wanted_N)]))


def after_edits(
    prepared: PreparedQuestion, problem: PlaceProblem, chosen: Mapping[Method, Effect]
) -> dict[str, dict[str, Any]]:
    """What the chosen edit of each method leaves at a place, and at later ones: method -> measures, JSON-able.

    Args:
        prepared: with what is there before any edit; without it, nothing is measured.
        problem: the place.
        chosen: method -> the effect, whose direction and scale are taken.

    Returns:
        "collateral"; and, where fresh probes could read the label, "completeness" (a list: at the place, then at later
        ones, up to the first where nothing was read before), "completeness_interval", "selectivity", "reliability".
    """
    question, before, found = prepared.question, prepared.before, {}
    if before is None:
        return found
    neutral = _neutral_rows(question, before, problem)
    for method, effect in chosen.items():
        found[method] = measures = {}
        if before.loss is not None:
            edits = {problem.place: chosen_edit(problem, neutral, effect)}
            measures["collateral"] = loss_per_token(question.model, before.neutral, edits) - before.loss
        if before.reading is None or question.label not in before.reading.scores:
            continue
        edit = chosen_edit(problem, problem.rows["test"], effect)
        if method == "erase":
            measures |= _after_erasure(question, before.task, before.reading, problem.place, edit)
        else:
            measures |= _after_exchange(question, before.reading, problem.place, prepared.rows["test"], edit)
    return found


def _neutral_rows(question: CausalQuestion, before: BeforeEdits, problem: PlaceProblem) -> PlaceRows:
    """The neutral texts as rows: coordinates come from train rows, and the classes take turns."""
    n, classes = len(before.neutral), np.unique(problem.rows["test"].labels)
    drawn = np.random.default_rng([question.options.seed, 4]).choice(question.train, n)
    turn, each = np.arange(n) % len(classes), np.arange(n)
    x_ND = activations_at(question, problem.place, drawn)
    return PlaceRows(x_ND, classes[turn], classes[(turn + 1) % len(classes)], each, each)


def _after_erasure(
    question: CausalQuestion, task: Task, reading: FreshReading, place: Place, edit: Edit
) -> dict[str, Any]:
    """What fresh probes read, trained and scored with the edit on rows of `task`."""
    found: dict[str, Any] = {}
    after = _edited(question, task, place, edit)
    fresh = fresh_probes(reading, ActivationSet({place: after[place]}, task), question.label)
    completeness, ends = fresh.completeness, list(fresh.completeness_intervals[0])
    if later := {each: x for each, x in after.items() if each != place}:  # the other labels are read here alone
        own = ActivationSet(later, _with_one_label(task, question.label))
        completeness += fresh_probes(reading, own, question.label).completeness
    if np.isfinite(ends).all():
        found["completeness_interval"] = ends
    return found | _shares(completeness, fresh.selectivity[0])


def _with_one_label(task: Task, label: str) -> Task:
    names = {label: task.label_names[label]}
    return replace(task, labels={label: task.labels[label]}, label_names=names, target=label)


def _after_exchange(
    question: CausalQuestion, reading: FreshReading, place: Place, test: AnsweredRows, edit: Edit
) -> dict[str, Any]:
    """What probes of the unedited activations read on the test rows with the edit."""
    task = question.acts.task.subset(test.index)
    after = _edited(question, task, place, edit)
    before = {each: question.acts[each][torch.from_numpy(test.index)] for each in after}
    read = read_exchange(reading, before, after, task.labels, test.other, question.label)
    return _shares(read.completeness, read.selectivity[0])


def _shares(completeness: list[float], selectivity: float) -> dict[str, Any]:
    """The measures that are numbers."""
    shown = next((i for i, share in enumerate(completeness) if math.isnan(share)), len(completeness))
    found: dict[str, Any] = {"completeness": completeness[:shown]} if shown else {}
    for name, share in (("selectivity", selectivity), ("reliability", harmonic_mean(completeness[0], selectivity))):
        if not math.isnan(share):
            found[name] = share
    return found


def _edited(question: CausalQuestion, task: Task, place: Place, edit: Edit) -> ActivationSet:
    """Activations of the rows with the edit, at its place and at later ones of the curve."""
    every = [Place(layer.point, layer.layer) for layer in question.layers]
    later, at = every[every.index(place) :], question.options.at
    return extract_edited(question.model, question.acts, task, later, {place: edit}, at)
