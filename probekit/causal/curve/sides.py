"""The rows of one split as the unedited model answers them.

Axes: N rows of the split, L position, D width of a place.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.causal.behaviour.answers import answer_tokens
from probekit.causal.behaviour.measure import logit_differences
from probekit.causal.branches.run import Trunk, run_trunk
from probekit.causal.curve.question import CausalQuestion
from probekit.causal.interchange.counterparts import choose_counterparts
from probekit.evaluation.scores.bootstrap import Bootstrap


@dataclass(frozen=True, eq=False)
class Side:
    """One split.

    Attributes:
        split: "validation" or "test".
        index: the rows' numbers in the task, int64 [N].
        labels: class of each, int64 [N].
        counterpart: of each, among these rows, int64 [N].
        other: the counterpart's class, int64 [N].
        same: another text of each row's class, among these rows, int64 [N]; the row itself where there is none.
        own_N: token of the own class's answer.
        other_N: token of the other class's answer.
        trunk: the unedited runs.
        at_NL: the tokens that are edited, bool.
        difference: logit difference of each row, float64 [N].
        of_counterpart: the counterpart's, for the row's own and other answer, float64 [N].
        bootstrap: resamples of the rows, by group.
        x_ND: activations at the place in question; empty where none is.
    """

    split: str
    index: np.ndarray
    labels: np.ndarray
    counterpart: np.ndarray
    other: np.ndarray
    same: np.ndarray
    own_N: Tensor
    other_N: Tensor
    trunk: Trunk
    at_NL: Tensor
    difference: np.ndarray
    of_counterpart: np.ndarray
    bootstrap: Bootstrap
    x_ND: Tensor


def find_side(question: CausalQuestion, split: str) -> Side:
    """Choose counterparts, and run the model on the rows of a split."""
    rows, model, options = question.rows, question.model, question.options
    some = rows.of(split)
    texts = [rows.texts[i] for i in some]
    labels, groups = rows.labels[some], None if rows.groups is None else rows.groups[some]
    counterpart = choose_counterparts(labels, [len(text) for text in texts], groups, options.seed, texts)
    own_N, other_N = own_and_other(question, rows.answers[some], counterpart)
    trunk = run_trunk(model, texts, answer_tokens(model, texts, [question.acts.task.ids[i] for i in rows.index[some]]))
    hidden = trunk.hidden_ND
    with torch.no_grad():
        own = logit_differences(model, hidden, own_N, other_N)
        crossed = logit_differences(model, hidden[torch.from_numpy(counterpart)], own_N, other_N)
    return Side(
        split=split,
        index=rows.index[some],
        labels=labels,
        counterpart=counterpart,
        other=labels[counterpart],
        same=_of_the_same_class(labels, options.seed),
        own_N=own_N,
        other_N=other_N,
        trunk=trunk,
        at_NL=_edited(texts, rows.read[some], rows.n_bos, options.at),
        difference=own.double().cpu().numpy(),
        of_counterpart=crossed.double().cpu().numpy(),
        bootstrap=Bootstrap(len(some), options.seed, groups),
        x_ND=torch.empty(0),
    )


def own_and_other(question: CausalQuestion, classes: np.ndarray, counterpart: np.ndarray) -> tuple[Tensor, Tensor]:
    """The tokens of each row's own and other answer.

    The other one is that of the counterpart, or, where it has the same answer, of the next class that occurs.

    Args:
        question: with the token of each class.
        classes: of the answers, int64 [N].
        counterpart: number of each row's counterpart, int64 [N].
    """
    present = np.unique(classes)
    following = np.roll(present, -1)[np.searchsorted(present, classes)]
    others = np.where(classes[counterpart] != classes, classes[counterpart], following)
    tokens = torch.from_numpy(question.answer_C)
    return tokens[torch.from_numpy(classes)], tokens[torch.from_numpy(others)]


def _of_the_same_class(labels: np.ndarray, seed: int) -> np.ndarray:
    """Another row of each row's class, in random order: int64 [N]."""
    rng, same = np.random.default_rng([seed, 4]), np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        same[rows] = np.roll(rows, 1)
    return same


def _edited(texts: list[list[int]], read: np.ndarray, n_bos: int, at: str) -> Tensor:
    """The tokens that are edited: the one that is read, or all of the text's own."""
    position = torch.arange(max(map(len, texts)))
    if at == "read":
        return position == torch.from_numpy(np.asarray(read))[:, None]
    lengths = torch.tensor([len(text) for text in texts])[:, None]
    return (position >= n_bos) & (position < lengths)
