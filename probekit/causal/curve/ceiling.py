"""The best that one direction can do at a place: distributed alignment search on train rows.

Axes: N texts (train rows, then validation rows), D width of the place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.causal.behaviour.measure import Behaviour
from probekit.causal.branches.run import Trunk, run_trunk
from probekit.causal.curve.candidates import Candidate
from probekit.causal.curve.question import CausalQuestion, answers_at, tokens_of
from probekit.causal.curve.sides import own_and_other
from probekit.causal.interchange.counterparts import choose_counterparts, with_counterparts
from probekit.causal.interchange.das import LearnedDirection, Search, find_das
from probekit.causal.interchange.interchange import Interchange
from probekit.errors import DataError
from probekit.evaluation.rows import resampling_units
from probekit.points import Place

MOST_FITTED, MOST_CHOOSING = 256, 64  # texts that the search is fitted to, and those that choose the restart
# At every place of `agreement` 150 steps recover at most 0.004 more than 100; 50 steps lose up to 0.06 and find nothing
# at the first place. A step costs the same at any number.
STEPS, RESTARTS = 100, 2


@dataclass(frozen=True, eq=False)
class SearchTexts:
    """Texts of the search, the same for every place.

    Attributes:
        index: their numbers in the task, int64 [N].
        is_train: which are train rows, [N].
        counterpart_N: of each, among these texts.
        token_N: the token that is edited.
        behaviour: what they are asked.
        trunk: the unedited runs.
    """

    index: np.ndarray
    is_train: np.ndarray
    counterpart_N: Tensor
    token_N: Tensor
    behaviour: Behaviour
    trunk: Trunk


def search_texts(question: CausalQuestion) -> SearchTexts:
    """Draw train rows for the search, and take validation rows of the run to choose the restart.

    Raises:
        DataError: no text of a split has a counterpart.
    """
    rng = np.random.default_rng([question.options.seed, 2])
    choosing = question.rows.index[question.rows.of("validation")]
    index = np.concatenate(
        [
            np.sort(rng.permutation(question.train)[:MOST_FITTED]),
            np.sort(rng.permutation(choosing)[:MOST_CHOOSING]),
        ]
    )
    task = question.acts.task
    answers = np.asarray(task.labels[question.answers_label])
    index = index[answers[index] >= 0]
    units = resampling_units(task)
    ids, positions, _ = tokens_of(question.model, question.acts, index)
    found = choose_counterparts(
        np.asarray(task.labels[question.label])[index],
        [len(text) for text in ids],
        None if units is None else np.asarray(units)[index],
        question.options.seed,
        ids,
        task.splits[index],
        answers[index],
    )
    kept, counterpart = with_counterparts(found)
    index, texts, read = index[kept], [ids[i] for i in kept], np.asarray(positions)[kept]
    trunk = run_trunk(question.model, texts, answers_at(question, index, texts))
    behaviour = Behaviour(*own_and_other(question, answers[index], counterpart), trunk.answer_N)
    tokens, is_train = torch.from_numpy(read), task.splits[index] == "train"
    return SearchTexts(index, is_train, torch.from_numpy(counterpart), tokens, behaviour, trunk)


def learn_direction(
    question: CausalQuestion, texts: SearchTexts, place: Place, x_ND: Tensor, steps: int | None = None
) -> tuple[Candidate, Mapping[str, Any]] | None:
    """The learned direction at a place, and how the search went; None where no swap changes the behaviour.

    Args:
        question: whose model is edited.
        texts: of the search.
        place: point and layer.
        x_ND: their activations there.
        steps: of the search; None is `STEPS`.
    """
    swap = Interchange(place, texts.trunk, texts.behaviour, x_ND, texts.token_N, texts.counterpart_N)
    train, choosing = np.flatnonzero(texts.is_train), np.flatnonzero(~texts.is_train)
    search = Search(steps=STEPS if steps is None else steps, restarts=RESTARTS, seed=question.options.seed)
    try:
        found = find_das(question.model, swap, train, choosing, search)
    except DataError:
        return None
    vectors = torch.stack([torch.zeros_like(found.vector_D), found.vector_D])
    return Candidate("das", vectors, found.vector_D[:, None]), _record(found)


def _record(found: LearnedDirection) -> dict[str, Any]:
    names = ("loss", "train_loss", "recovery", "control_recovery", "cosines")
    return {name: getattr(found, name) for name in names}
