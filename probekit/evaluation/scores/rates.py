"""A threshold on the scores of two classes for a wanted false-positive rate, and the rates that it gives on other rows.

A row is flagged if its score is at or above the threshold. Class 1 is the positive one.

Axes: N rows.
"""

from dataclasses import dataclass

import numpy as np

DEFAULT_FPR = 0.01
LEVEL = 0.95
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
    """A share of rows, with its interval of 95% (Clopper and Pearson 1934), which takes rows as independent.

    Attributes:
        value: hits / rows.
        low: lower end of the interval.
        high: upper end.
        hits: rows that were flagged.
        rows: of the class.
    """

    value: float
    low: float
    high: float
    hits: int
    rows: int


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


def rates_at(threshold: float, scores: np.ndarray, labels: np.ndarray) -> tuple[Rate | None, Rate | None]:
    """The true-positive and the false-positive rate of scores [N] with labels [N]; None for a class without rows."""
    flagged, labels = np.asarray(scores) >= threshold, np.asarray(labels)
    own = [flagged[labels == k] for k in (1, 0)]
    positive, negative = (rate_of(int(each.sum()), len(each)) if len(each) else None for each in own)
    return positive, negative


def rate_of(hits: int, rows: int) -> Rate:
    """The share hits / rows with its exact interval."""
    from scipy.stats import beta

    tail = (1 - LEVEL) / 2
    low = float(beta.ppf(tail, hits, rows - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, rows - hits)) if hits < rows else 1.0
    return Rate(hits / rows, low, high, hits, rows)
