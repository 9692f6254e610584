"""The quoted score against the best baseline, and against the layer that selecting on test would have picked."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from probekit.evaluation.results.data import LayerResult
from probekit.evaluation.scores.bootstrap import LEVEL, SHARES, Bootstrap
from probekit.evaluation.scores.joint import ROUNDING
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.score import for_metric, value_of

Ends = tuple[float, float]


def lead(
    best: Predictions, baselines: Sequence[tuple[str, Predictions]], metric: str, bootstrap: Bootstrap | None
) -> dict[str, Any] | None:
    """How far the quoted predictions are ahead of the best baseline's on test, with a 95% interval.

    The difference is paired, so that examples that both get right or wrong cancel (`paired_difference`).

    Args:
        best: the predictions that are quoted.
        baselines: name and test predictions of each; random weights count as one.
        metric: the headline.
        bootstrap: resamples of the test rows; None for no interval.
    """
    values = [(value_of(predictions, metric), name, predictions) for name, predictions in baselines]
    values = [each for each in values if np.isfinite(each[0])]
    if not values:
        return None
    _, name, predictions = max(values, key=lambda each: each[0])
    ahead, interval = paired_difference(best, predictions, metric, bootstrap)
    return {"baseline": name, "over": ahead, "interval": interval}


def paired_difference(
    one: Predictions, other: Predictions, metric: str, bootstrap: Bootstrap | None
) -> tuple[float, list[float] | None]:
    """How far one is ahead of the other on the same rows, and its 95% interval; None where there is none.

    The difference is taken within each resample; the interval is Student's t times its standard error
    (`Bootstrap.error_of`). Where both are perfect, or fail, in every resample, the rows say no more than the intervals
    of the two.
    """
    ahead = value_of(one, metric) - value_of(other, metric)
    if bootstrap is None or not bootstrap.has_intervals:
        return ahead, None
    both = for_metric(one, metric), for_metric(other, metric)
    error, freedom = bootstrap.error_of(metric, *both)
    if np.isnan(error):
        return ahead, None
    is_extreme = error <= ROUNDING and metric in SHARES and value_of(one, metric) in (0, 1)
    if is_extreme and not _are_same(one, other, metric):
        value = value_of(one, metric)
        own = [(value, bootstrap.intervals(each, names=[metric]).get(metric)) for each in both]
        ends = independent_difference(*own)[0]
        return ahead, None if ends is None else list(ends)
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    return ahead, list(within_range(metric, ahead - half, ahead + half))


def _are_same(one: Predictions, other: Predictions, metric: str) -> bool:
    """Whether these are one probe's; for a ranking whatever calibration its scores have."""
    if metric in ("auroc", "average_precision") and one.scores.ndim == 1:
        first, second = (np.unique(each.scores, return_inverse=True)[1] for each in (one, other))
        return np.array_equal(first, second)
    return np.array_equal(one.predicted, other.predicted) and np.array_equal(one.scores, other.scores)


def within_range(metric: str, low: float, high: float) -> Ends:
    """The ends of an interval of a difference; two shares differ by at most 1."""
    return (max(-1.0, low), min(1.0, high)) if metric in SHARES else (low, high)


def independent_difference(
    one: tuple[float, Ends | None], other: tuple[float, Ends | None]
) -> tuple[Ends | None, float | None]:
    """The interval of the difference of two independent estimates, from their own intervals, and its p-value."""
    (a, ends), (b, others) = one, other
    if ends is None or others is None:
        return None, None
    low = (a - b) - math.hypot(a - ends[0], others[1] - b)
    high = (a - b) + math.hypot(ends[1] - a, b - others[0])
    # the half towards 0 decides whether 0 is inside, so the p-value agrees with the interval
    half = (a - b) - low if a >= b else high - (a - b)
    quantile = float(ndtri((1 + LEVEL) / 2))
    return (low, high), 1.0 if half <= ROUNDING else float(2 * ndtr(-quantile * abs(a - b) / half))


def optimism(results: Sequence[LayerResult], best: LayerResult, metric: str, quoted: float) -> dict[str, Any]:
    """The layer that selecting on test would have picked, its value, and how far that is over the quoted value.

    Ties go to the chosen layer, or else to the first.
    """
    top = max(results, key=lambda layer: (layer.metrics["test"][metric], layer is best))
    value = top.metrics["test"][metric]
    return {"layer": top.place, "value": value, "over": value - quoted}
