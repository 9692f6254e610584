"""How well scores rank the examples of a class above the others, under many sets of weights at once.

Only the examples of the class count one by one; between two of them, what matters of the others is the weight of all
together. One product of a sparse matrix with the weights adds these up for all classes.

Axes: N examples, C classes, S sets of weights, T thresholds: of each class, the distinct scores of its own examples,
highest first.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from probekit.evaluation.scores.classification import Weighted
from probekit.evaluation.scores.predictions import Predictions, adder, mean_known, ratio

_AT_ONCE = 8_000_000  # scores that are sorted at once, of as many classes as that gives: about 500 MB
_BETWEEN, _TIED, _OWN = range(3)


def ranking_metrics(predictions: Predictions, names: Collection[str]) -> Weighted:
    """AUROC: the chance that an example of a class scores above one of the rest, ties counting half.

    Average precision: the mean precision over the examples of a class, each at its own score. For two classes: of class
    1. For more: the mean over classes, each against the rest by its log odds under the softmax of the scores, which
    ranks as scikit-learn's roc_auc_score(truth, probabilities, multi_class="ovr") does. A class's own score would not
    do, because only differences between scores decide.
    """
    two = predictions.scores.ndim == 1
    scores = predictions.scores[None] if two else np.ascontiguousarray(log_odds(predictions.scores).T)
    wanted = np.array([1]) if two else np.arange(predictions.n_classes)
    parts = list(_thresholds(predictions.truth, scores, wanted))

    def metrics(V: np.ndarray) -> dict[str, np.ndarray]:
        each = [_of_classes(part, V, names) for part in parts]
        return {name: mean_known(np.concatenate([one[name] for one in each])) for name in each[0]}

    return metrics


def log_odds(scores: np.ndarray) -> np.ndarray:
    """Log odds of each class against the rest under the softmax of scores [N, C]: [N, C]."""
    rows, top = np.arange(len(scores)), scores.argmax(axis=1)
    best = scores[rows, top]
    odds = np.exp(scores - best[:, None])
    rest = odds.sum(axis=1, keepdims=True) - odds  # 1 or more, but for the class of the highest score
    rest[rows, top] = 1
    odds = scores - best[:, None] - np.log(rest)
    others = scores.astype(np.float64)
    others[rows, top] = -np.inf
    odds[rows, top] = best - logsumexp(others, axis=1)
    return odds


@dataclass(frozen=True, eq=False)
class _Thresholds:
    """The examples of some classes among the others, by score.

    Attributes:
        sums: sparse [3 T, N]; times weights, for each threshold the weight of the others between it and the threshold
            above, of the others at it, and of the class's own at it.
        of_class: sparse [C, T], adds up the thresholds of each class.
        classes: int [T], the class of each threshold, rising.
    """

    sums: sparse.csr_array
    of_class: sparse.csr_array
    classes: np.ndarray


def _thresholds(truth: np.ndarray, scores: np.ndarray, classes: np.ndarray) -> Iterator[_Thresholds]:
    """The thresholds of these classes, some classes at a time; `scores` [C, N] are theirs."""
    step = max(1, _AT_ONCE // max(1, len(truth)))
    for start in range(0, len(classes), step):
        some = slice(start, start + step)
        yield _of_scores(truth == classes[some, None], scores[some])


def _of_scores(own: np.ndarray, scores: np.ndarray) -> _Thresholds:
    """The thresholds of scores [C, N], of which `own` marks those of the class's examples, bool [C, N]."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked, own = np.take_along_axis(scores, order, axis=1), np.take_along_axis(own, order, axis=1)
    is_new = np.diff(ranked, axis=1, prepend=np.nan) != 0  # the first of each class too
    value = np.cumsum(is_new.ravel()) - 1  # numbers the distinct scores of all classes
    is_threshold = np.bincount(value, weights=own.ravel()) > 0
    before = np.concatenate([[0], np.cumsum(is_threshold)])  # thresholds above a distinct score
    total = int(before[-1])
    ends = before[value[np.arange(1, len(own) + 1) * own.shape[1] - 1] + 1]  # of each class
    kind = np.where(own.ravel(), _OWN, np.where(is_threshold[value], _TIED, _BETWEEN))
    threshold = before[value]
    is_below_all = threshold >= np.repeat(ends, own.shape[1])  # below the class's last threshold
    rows = (3 * threshold + kind)[~is_below_all]
    by_row = np.argsort(rows, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=3 * total))])
    columns = order.ravel()[~is_below_all][by_row]
    sums = sparse.csr_array((np.ones(len(rows)), columns, starts), shape=(3 * total, own.shape[1]))
    of = np.repeat(np.arange(len(own)), np.diff(ends, prepend=0))
    return _Thresholds(sums, adder(of, len(own)), of)


def _of_classes(part: _Thresholds, V: np.ndarray, names: Collection[str]) -> dict[str, np.ndarray]:
    """The metrics [C, S] of each class under weights [N, S]; nan where the class or the rest has no weight."""
    between, tied, own = (part.sums @ V).reshape(-1, 3, V.shape[1]).swapaxes(0, 1)
    members, at_or_above = part.of_class @ own, _cumulated(part, between + tied)
    found = {}
    if "auroc" in names:
        pairs = members * (V.sum(axis=0) - members)
        lost = part.of_class @ (own * (at_or_above - tied / 2))
        found["auroc"] = ratio(pairs - lost, pairs)
    if "average_precision" in names:
        won = _cumulated(part, own)
        precision = np.divide(won, won + at_or_above, out=np.zeros_like(won), where=own > 0)
        found["average_precision"] = ratio(part.of_class @ (own * precision), members)
    return found


def _cumulated(part: _Thresholds, values: np.ndarray) -> np.ndarray:
    """The sums of values [T, S] from the first threshold of a class to each: [T, S]."""
    sums = np.cumsum(values, axis=0)
    firsts = np.flatnonzero(np.diff(part.classes) > 0) + 1
    if len(firsts):
        before = np.concatenate([np.zeros_like(sums[:1]), sums[firsts - 1]])
        sums -= np.repeat(before, np.diff(firsts, prepend=0, append=len(sums)), axis=0)
    return sums
