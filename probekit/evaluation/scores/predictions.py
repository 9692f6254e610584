"""Predictions with the true labels, and what their metrics share.

Axes: N examples, C classes, S sets of weights.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse


@dataclass(frozen=True)
class Predictions:
    """Predictions for N examples, with the true labels.

    Attributes:
        truth: int64 [N], the true class; float64 [N] or [N, K] for a regression.
        predicted: int64 [N]; as the truth for a regression.
        scores: float [N] for two classes (higher means class 1), [N, C] for more; unused for a regression.
        n_classes: C; 0 for a regression.
        probabilities: float [N, C] or None; the Brier score and the calibration error need them.
    """

    truth: np.ndarray
    predicted: np.ndarray
    scores: np.ndarray
    n_classes: int
    probabilities: np.ndarray | None = None


def adder(sets: np.ndarray, n_sets: int, values: np.ndarray | None = None) -> Any:
    """The sparse matrix [n_sets, N] whose product with weights [N, S] adds up those of each set.

    Args:
        sets: int [N], the set of each example.
        n_sets: how many there are.
        values: [N], factors of the weights; None for 1.
    """
    order = np.argsort(sets, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(sets, minlength=n_sets))])
    factors = np.ones(len(sets)) if values is None else values[order].astype(np.float64)
    return sparse.csr_array((factors, order, ends), shape=(n_sets, len(sets)))


def distinct(values: np.ndarray) -> tuple[np.ndarray, int]:
    """The place of each value among the distinct ones in ascending order, int64 [N], and how many there are."""
    order = np.argsort(values, kind="stable")
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.cumsum(np.diff(values[order], prepend=values[order[:1]]) > 0)
    return place, int(place[order[-1]]) + 1 if len(values) else 0


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Above / below, nan where `below` is 0."""
    return np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below > 0)


def mean_known(each: np.ndarray) -> np.ndarray:
    """The mean over the first axis, skipping nan."""
    known = np.isfinite(each)
    return ratio(np.where(known, each, 0).sum(axis=0), known.sum(axis=0))
