"""True-positive rates at few false positives: points of the ROC curve, under many sets of weights at once.

The point for a false-positive rate is the highest true-positive rate whose threshold flags at most that share of the
negatives, ties included, as in scikit-learn's `roc_curve`. Between two negatives only the weight of all positives
matters, and only the highest negatives do, so a few rows of sums are enough.

Intervals come from the bootstrap. In 150 draws each of normal scores they held the truth 71-77% of the time where one
negative is at the rate (1,000 negatives, 0.1%), 87-91% with two (200, 1%), and 93-97% with ten or more: the highest
negatives decide, and resamples cannot know of higher ones.

Axes: N examples, S sets of weights, T distinct scores of negatives, highest first.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from scipy import sparse

from probekit.evaluation.scores.classification import Weighted
from probekit.evaluation.scores.predictions import Predictions, ratio
from probekit.evaluation.scores.ranking import with_ties

ROC_RATES = {"roc_tpr_0.001": 0.001, "roc_tpr_0.01": 0.01, "roc_tpr_0.05": 0.05}
"""Metric -> its false-positive rate."""
_ROUNDING = 1 + 1e-12  # 0.29 * 100 is 28.999999999999996


def least_negatives(metric: str) -> int:
    """How many negatives a false-positive rate needs: with fewer, one of them alone is more than the rate."""
    return int(np.ceil(1 / (ROC_RATES[metric] * _ROUNDING)))


def roc_metrics(predictions: Predictions, names: Collection[str]) -> Weighted:
    """The share of positives at each of these false-positive rates; nan with fewer than `least_negatives`."""
    scores, negative = with_ties(predictions.scores[:, None])[:, 0], predictions.truth == 0
    levels, level = np.unique(-scores[negative], return_inverse=True)
    n, rates = int(negative.sum()), [ROC_RATES[name] for name in names]
    if all(n < least_negatives(name) for name in names):
        return lambda V: {name: np.full(V.shape[1], np.nan) for name in names}
    above = np.searchsorted(levels, -scores[~negative], side="right")  # the first level below each positive
    own = {True: (level.ravel(), np.flatnonzero(negative)), False: (above, np.flatnonzero(~negative))}
    counts = np.cumsum(np.bincount(level.ravel(), minlength=len(levels)))
    # resamples seldom have more than half as many again among the highest negatives; those that do take all levels
    first = int(np.searchsorted(counts, 1.5 * max(rates) * n + 10)) + 1

    def sums_of(of: bool, T: int) -> Any:
        rows, columns = (each[own[of][0] < T] for each in own[of])
        return sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(T, len(scores)))

    def metrics(V: np.ndarray) -> dict[str, np.ndarray]:
        total, members = negative.astype(np.float64) @ V, (~negative).astype(np.float64) @ V
        for T in (min(first, len(levels)), len(levels)):
            flagged = np.cumsum(sums_of(True, T) @ V, axis=0)
            if len(levels) == T or (flagged[-1] > max(rates) * total * _ROUNDING).all():
                break
        found = np.cumsum(sums_of(False, T) @ V, axis=0)
        values = {}
        for name, rate in zip(names, rates, strict=True):
            within = np.minimum((flagged <= rate * total * _ROUNDING).sum(axis=0), T - 1)
            share = np.where(total > 0, ratio(found[within, np.arange(V.shape[1])], members), np.nan)
            values[name] = share if n >= least_negatives(name) else np.full(V.shape[1], np.nan)
        return values

    return metrics
