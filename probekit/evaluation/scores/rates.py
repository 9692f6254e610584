"""A threshold on the scores of two classes for a wanted false-positive rate, and the rates that it gives on other rows.

A row is flagged if its score is at or above the threshold. Class 1 is the positive one.

Axes: N rows.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, stdtrit

from probekit.evaluation.scores.bootstrap import satterthwaite

DEFAULT_FPR = 0.01
LEVEL = 0.95
EACH_OF_TWO = 1 - (1 - LEVEL) / 2  # of two rates, so that both intervals hold together with LEVEL
INTERVAL = "Clopper-Pearson"


@dataclass(frozen=True)
class RateThreshold:
    """A threshold for a wanted false-positive rate.

    Attributes:
        fpr: the wanted rate.
        value: the threshold; None where there are too few negatives.
        negatives: rows of class 0 that it was chosen on.
        flagged: how many of these are at or above it.
        least: the least rate that so many negatives can give, 1 / negatives; 1 without any.
    """

    fpr: float
    value: float | None
    negatives: int
    flagged: int
    least: float


@dataclass(frozen=True)
class Rate:
    """A share of rows, with its 95% interval.

    Attributes:
        value: hits / rows.
        low: lower end of the interval.
        high: upper end.
        hits: rows that were flagged.
        rows: of the class.
        groups: how many groups these rows are in; as many as rows where each is its own.
    """

    value: float
    low: float
    high: float
    hits: int
    rows: int
    groups: int


@dataclass(frozen=True)
class Precision:
    """The share of flagged rows that are of class 1, where a stated share of all rows is.

    Attributes:
        base_rate: that share of all rows.
        value: the precision; None where nothing is flagged.
        low: lower end of the interval, which holds with 95% or more.
        high: upper end.
    """

    base_rate: float
    value: float | None
    low: float
    high: float


def threshold_for(scores: np.ndarray, labels: np.ndarray, fpr: float = DEFAULT_FPR) -> RateThreshold:
    """The threshold for a false-positive rate, chosen on scores [N] and labels [N].

    It is the k-th highest score of the n negatives, k = floor(fpr * n): at most this share of them is flagged, ties
    included, and of new rows an expected k / (n + 1), where scores have no ties. A tie that would flag more than k
    moves it up to the next higher score of a negative, or to the number after the highest.
    """
    negatives = np.sort(np.asarray(scores, dtype=np.float64)[np.asarray(labels) == 0])[::-1]
    n = len(negatives)
    k = int(np.floor(fpr * n * (1 + 1e-12)))  # 0.29 * 100 is 28.999999999999996
    if k < 1:
        return RateThreshold(fpr, None, n, 0, 1 / max(1, n))
    value = negatives[k - 1]
    if k < n and negatives[k] == value:
        above = negatives[negatives > value]
        value = above[-1] if len(above) else np.nextafter(value, np.inf)
    return RateThreshold(fpr, float(value), n, int((negatives >= value).sum()), 1 / n)


def rates_at(
    threshold: float, scores: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None, level: float = LEVEL
) -> tuple[Rate | None, Rate | None]:
    """The true-positive and the false-positive rate of scores [N] with labels [N]; None for a class without rows.

    Rows with equal numbers in `groups` [N], such as tokens of one text, depend on one another; None if no rows do.
    """
    flagged, labels = np.asarray(scores) >= threshold, np.asarray(labels)
    groups = np.arange(len(labels)) if groups is None else np.asarray(groups)
    positive, negative = (
        rate_of(flagged[labels == k], groups[labels == k], level) if (labels == k).any() else None for k in (1, 0)
    )
    return positive, negative


def precision_at(base_rate: float, tpr: Rate, fpr: Rate) -> Precision:
    """The precision at a base rate, of rates whose intervals hold at `EACH_OF_TWO` each.

    It rises with the true-positive rate and falls with the false-positive rate, so that opposite ends bound it.
    """

    def of(found: float, wrongly: float) -> float:
        return base_rate * found / (base_rate * found + (1 - base_rate) * wrongly)

    value = of(tpr.value, fpr.value) if tpr.value or fpr.value else None
    return Precision(base_rate, value, of(tpr.low, fpr.high), of(tpr.high, fpr.low))


def rate_of(flagged: np.ndarray, groups: np.ndarray, level: float = LEVEL) -> Rate:
    """The share of flagged rows, bool [N] in groups [N], with the interval of Clopper and Pearson (1934).

    Rows of a group count together: the interval is that of as many independent rows as would vary as much (Korn and
    Graubard 1998), with degrees of freedom from the fourth moment of what the groups add (Satterthwaite 1946). Where
    all rows agree, each group counts as one row.
    """
    hits, n = int(flagged.sum()), len(flagged)
    unit = np.unique(groups, return_inverse=True)[1].ravel()
    G, share = int(unit.max()) + 1, hits / n
    low, high = _exact_ends(share, n if n == G else _independent_rows(flagged, unit, G, level), level)
    return Rate(share, low, high, hits, n, G)


def _independent_rows(flagged: np.ndarray, unit: np.ndarray, G: int, level: float) -> float:
    """How many independent rows would give the share of flagged rows [N] the variance that it has over G units."""
    n, share = len(flagged), float(flagged.mean())
    if G == 1 or share in (0, 1):
        return G
    off = np.bincount(unit, weights=flagged - share) / n
    variance = G / (G - 1) * float((off**2).sum())
    if variance == 0:
        return n
    # the variance itself is an estimate, and a few large groups may make most of it
    wider = stdtrit(satterthwaite(off, G), (1 + level) / 2) / stdtrit(n - 1, (1 + level) / 2)
    return min(n, float(share * (1 - share) / variance / wider**2))


def _exact_ends(share: float, n: float, level: float) -> tuple[float, float]:
    """The interval of Clopper and Pearson of share * n hits in n rows; n need not be whole."""
    tail = (1 - level) / 2
    low = float(betaincinv(share * n, n - share * n + 1, tail)) if share > 0 else 0.0
    high = float(betaincinv(share * n + 1, n - share * n, 1 - tail)) if share < 1 else 1.0
    return low, high
