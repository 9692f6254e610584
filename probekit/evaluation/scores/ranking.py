"""How well scores rank the examples of a class above the others, under many sets of weights at once.

Only the examples of the class count one by one; between two of them, what matters of the others is the weight of all
together. One product of a sparse matrix with the weights adds these up for all classes.

Axes: N examples, C classes, S sets of weights, T thresholds: of each class, the distinct scores of its own examples,
highest first.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from probekit.evaluation.scores.classification import Weighted
from probekit.evaluation.scores.predictions import Predictions, adder, mean_known, ratio

# Equal activations get scores that differ by the order of sums, some 1e-15 of their size; these are ties.
ROUNDING = 1e-12
_AT_ONCE = 8_000_000  # scores that are sorted at once, of as many classes as that gives: about 500 MB


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
    ordered = np.sort(scores.astype(np.float64), axis=1)  # so that the order of the classes rounds no tie apart
    best = ordered[:, -1:]
    odds = np.exp(scores - best)
    is_best = odds == 1
    rest = np.exp(ordered - best).sum(axis=1, keepdims=True) - odds  # 1 or more, but for the highest score
    of_best = best - np.asarray(logsumexp(ordered[:, :-1], axis=1, keepdims=True))
    return np.where(is_best, of_best, scores - best - np.log(np.where(is_best, 1, rest)))


@dataclass(frozen=True, eq=False)
class _Thresholds:
    """The examples of some classes among the others, by score.

    Attributes:
        sums: sparse [2 T, N]; times weights, for each threshold the weight of the others at it, or between it and the
            threshold above; then for each threshold the weight of the class's own examples at it.
        ties: sparse [T', N]; times weights, the weight of the others at each threshold that has any.
        tied: int [T'], the numbers of these thresholds.
        of_class: sparse [C, T], adds up the thresholds of each class.
        classes: int [T], the class of each threshold, rising.
    """

    sums: Any
    ties: Any
    tied: np.ndarray
    of_class: Any
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
    is_new = _is_new(ranked)
    value = np.cumsum(is_new.ravel()) - 1  # numbers the distinct scores of all classes
    is_threshold = np.bincount(value, weights=own.ravel()) > 0
    before = np.concatenate([[0], np.cumsum(is_threshold)])  # thresholds above a distinct score
    total = int(before[-1])
    ends = before[value[np.arange(1, len(own) + 1) * own.shape[1] - 1] + 1]  # of each class
    threshold = before[value]
    is_below_all = threshold >= np.repeat(ends, own.shape[1])  # below the class's last threshold
    own = own.ravel()
    kept, column = ~is_below_all, order.ravel()
    n, (n_classes, _) = order.shape[1], order.shape
    sums = _adder_of((threshold + total * own)[kept], column[kept], (2 * total, n))
    is_tied = is_threshold[value] & ~own
    tied, number = np.unique(threshold[is_tied], return_inverse=True)
    ties = _adder_of(number.ravel(), column[is_tied], (len(tied), n))
    classes = np.repeat(np.arange(n_classes), np.diff(ends, prepend=0))
    return _Thresholds(sums, ties, tied, adder(classes, n_classes), classes)


def _is_new(ranked: np.ndarray) -> np.ndarray:
    """Where a score of a class begins that is lower than the one before it, and no tie: of falling scores [C, N]."""
    sizes = np.where(np.isfinite(ranked), np.abs(ranked), 0.0)
    # of the two scores, but at least the middle one: rounding is as large as the terms of a sum that cancels
    scale = np.maximum(np.maximum(sizes[:, 1:], sizes[:, :-1]), np.median(sizes, axis=1, keepdims=True))
    with np.errstate(invalid="ignore"):  # infinity minus itself
        is_lower = (ranked[:, 1:] != ranked[:, :-1]) & ~(ranked[:, :-1] - ranked[:, 1:] <= ROUNDING * scale)
    return np.concatenate([np.ones_like(is_lower, shape=(len(ranked), 1)), is_lower], axis=1)


def with_ties(scores: np.ndarray) -> np.ndarray:
    """Scores [N, C], in which those of a class that differ by rounding alone are equal."""
    order = np.argsort(-scores, axis=0, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=0)
    first = np.maximum.accumulate(np.where(_is_new(ranked.T).T, np.arange(len(scores))[:, None], 0), axis=0)
    found = np.empty_like(ranked)
    np.put_along_axis(found, order, np.take_along_axis(ranked, first, axis=0), axis=0)
    return found


def _adder_of(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Any:
    """A sparse matrix with a one at each of these places."""
    by_row = np.argsort(rows, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    return sparse.csr_array((np.ones(len(rows)), columns[by_row], ends), shape=shape)


def _of_classes(part: _Thresholds, V: np.ndarray, names: Collection[str]) -> dict[str, np.ndarray]:
    """The metrics [C, S] of each class under weights [N, S]; nan where the class or the rest has no weight."""
    others, own = (part.sums @ V).reshape(2, -1, V.shape[1])
    members, at_or_above = part.of_class @ own, _cumulated(part, others)
    found = {}
    if "auroc" in names:
        pairs, lost = members * (V.sum(axis=0) - members), own * at_or_above
        lost[part.tied] -= own[part.tied] * (part.ties @ V) / 2
        found["auroc"] = ratio(pairs - part.of_class @ lost, pairs)
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
