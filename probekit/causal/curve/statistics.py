"""Intervals and p-values of effects, which are ratios of means over rows.

Axes: N rows, S resamples, K placebos.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, stdtrit

from probekit.evaluation.scores.bootstrap import LEVEL, Bootstrap

ROUNDING = 16 * float(np.finfo(np.float32).eps)  # of logit differences, as a share of the largest


@dataclass(frozen=True)
class Gap:
    """The mean of what effects are shares of, and whether it differs from 0.

    Attributes:
        mean: over the rows.
        interval: of the mean, 95%; None where there is none.
        is_clear: whether it is larger than rounding, and its interval excludes 0. Shares of anything else say nothing.
    """

    mean: float
    interval: tuple[float, float] | None
    is_clear: bool


def cramers_v(a_N: np.ndarray, b_N: np.ndarray) -> float:
    """How far two label sets are associated, 0 to 1 (Cramér 1946); of two classes each, the size of their correlation.

    Rows without a label (negative) are left out; 0 where a label set has one class.
    """
    known = (a_N >= 0) & (b_N >= 0)
    (a_names, a), (b_names, b) = (np.unique(each[known], return_inverse=True) for each in (a_N, b_N))
    fewer = min(len(a_names), len(b_names)) - 1
    if fewer < 1:
        return 0.0
    counts = np.bincount(a.ravel() * len(b_names) + b.ravel(), minlength=len(a_names) * len(b_names))
    share = counts.reshape(len(a_names), -1) / known.sum()
    expected = np.outer(share.sum(axis=1), share.sum(axis=0))
    return float(min(1.0, np.sqrt(((share - expected) ** 2 / expected).sum() / fewer)))


def find_gap(whole_N: np.ndarray, size: float, bootstrap: Bootstrap) -> Gap:
    """The gap of some rows; `size` is the largest of the logit differences that it is made of."""
    mean = float(whole_N.mean())
    ends = ratio_interval(whole_N, np.ones_like(whole_N), bootstrap)
    excludes_0 = ends is None or ends[0] > 0 or ends[1] < 0
    return Gap(mean, ends, abs(mean) > ROUNDING * size and excludes_0)


def ratio_interval(part_N: np.ndarray, whole_N: np.ndarray, bootstrap: Bootstrap) -> tuple[float, float] | None:
    """The 95% interval of a ratio of means, both resampled together, by row or by group.

    Percentiles of the bootstrap are too narrow where units are few. So their levels are moved outwards until they are
    those of Student's t for a mean of as many units (Hesterberg 2015, "What teachers should know about the bootstrap").

    Returns:
        (low, high); None with a single unit or too few groups, or where the whole is 0 in a resample.
    """
    units = bootstrap.n_units
    if units < 2 or not bootstrap.has_intervals:
        return None
    sums = [np.stack([W @ part_N, W @ whole_N]) for W in bootstrap.weights()]
    parts_S, wholes_S = np.concatenate(sums, axis=1)
    if not wholes_S.all():
        return None
    quantile = stdtrit(units - 1, (1 + LEVEL) / 2) * np.sqrt(units / (units - 1))
    tail = float(ndtr(-quantile))
    low, high = np.quantile(parts_S / wholes_S, [tail, 1 - tail])
    return float(low), float(high)


def p_value(effect: float, placebos: Sequence[float]) -> float | None:
    """(1 + how many placebos are at least as large in size) / (1 + K); None without placebos."""
    if not len(placebos) or not np.isfinite(effect):
        return None
    return float(1 + (np.abs(placebos) >= abs(effect)).sum()) / (1 + len(placebos))


def adjusted_p_values(effects_P: Sequence[float], placebos_PK: np.ndarray) -> np.ndarray:
    """The p-value of each of P effects (places and scales), corrected for their number: [P].

    Each effect is divided by the root mean square, at its place and scale, of itself and the placebos: edits of late
    layers move the answer more, whatever their direction. Then it is compared with the largest such number of each
    placebo over all places and scales. If the direction is no different from the placebos, the probability that any of
    the p-values is at most p is at most p (Westfall and Young 1993, max-T).

    Args:
        effects_P: of one direction.
        placebos_PK: of the placebos, in the same places and scales.
    """
    every = np.abs(np.concatenate([np.asarray(effects_P)[:, None], placebos_PK], axis=1))
    unit = np.sqrt((every**2).mean(axis=1, keepdims=True))
    every = every / np.where(unit > 0, unit, 1)
    largest_K = every[:, 1:].max(axis=0)
    return (1 + (largest_K >= every[:, :1]).sum(axis=1)) / (1 + len(largest_K))
