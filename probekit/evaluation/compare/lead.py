"""How far one probe is ahead of another on the same rows: of the best baseline, of another run, of selecting on test.

Resamples are shared, so that rows which both get right or wrong cancel. The difference of two accuracies has the
adjusted interval of Bonett and Price (2012); with groups, its n is the number of independent pairs that would have the
same variance (Korn and Graubard 1998), and the quantile is Student's t. Without groups its p-value is McNemar's exact
test (1947). Any other metric has Student's t times the standard error of the shared bootstrap, with degrees of freedom
from the fourth moment of the units' influences (Satterthwaite 1946). Estimates without common rows are combined as
independent ones (Newcombe 1998, Zou and Donner 2008).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import bdtr, ndtr, ndtri, stdtr, stdtrit

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

    The difference is paired, so that examples that both get right or wrong cancel (`tested_difference`).

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
    """`tested_difference` as results keep it: how far one is ahead, and the interval as a list."""
    if bootstrap is None:
        return value_of(one, metric) - value_of(other, metric), None
    ahead, ends, _ = tested_difference(one, other, metric, bootstrap)
    return ahead, None if ends is None else list(ends)


def tested_difference(
    one: Predictions, other: Predictions, metric: str, bootstrap: Bootstrap
) -> tuple[float, Ends | None, float | None]:
    """How far one is ahead of the other on the same rows, its 95% interval and its p-value; None where there is none.

    Where one of them is perfect, or fails, and the difference is the same in every resample, the rows say no more than
    the intervals of the two.
    """
    values = value_of(one, metric), value_of(other, metric)
    ahead = values[0] - values[1]
    if not bootstrap.has_intervals:
        return ahead, None, None
    if metric == "accuracy":
        return accuracy_difference(one, other, bootstrap)
    both = for_metric(one, metric), for_metric(other, metric)
    error, freedom = bootstrap.error_of(metric, *both)
    if not math.isfinite(error):
        return ahead, None, None
    if error <= ROUNDING and _are_same(one, other, metric):
        return ahead, (ahead, ahead), 1.0
    if error <= ROUNDING and metric in SHARES and not {0, 1}.isdisjoint(values):
        own = [bootstrap.intervals(each, names=[metric]).get(metric) for each in both]
        return ahead, *independent_difference((values[0], own[0]), (values[1], own[1]))
    half = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    p = float(2 * stdtr(freedom, -abs(ahead) / error)) if error > ROUNDING else float(abs(ahead) <= ROUNDING)
    return ahead, within_range(metric, ahead - half, ahead + half), p


def accuracy_difference(one: Predictions, other: Predictions, bootstrap: Bootstrap) -> tuple[float, Ends, float]:
    """The difference of two accuracies on the same rows, its 95% interval and its p-value."""
    right, wrong = one.predicted == one.truth, other.predicted == other.truth
    won, lost = int((right & ~wrong).sum()), int((~right & wrong).sum())
    n = len(right)
    difference = (won - lost) / n
    if bootstrap.groups is None:
        p = min(1.0, 2 * float(bdtr(min(won, lost), won + lost, 0.5))) if won + lost else 1.0
        low, high, _ = _adjusted(won, lost, n, float(ndtri((1 + LEVEL) / 2)))
        return difference, (low, high), p
    error, freedom = bootstrap.error_of("accuracy", one, other)
    # of pairs that all have the same difference, as many as there are groups
    pairs = float(bootstrap.n_units)
    if math.isfinite(error) and error > ROUNDING:
        pairs = max(1.0, ((won + lost) / n - difference**2) / error**2)
    freedom = freedom if math.isfinite(freedom) else 1.0
    low, high, z = _adjusted(won / n * pairs, lost / n * pairs, pairs, float(stdtrit(freedom, (1 + LEVEL) / 2)))
    return difference, (low, high), float(2 * stdtr(freedom, -abs(z)))


def _adjusted(won: float, lost: float, n: float, quantile: float) -> tuple[float, float, float]:
    """Bonett and Price's interval (one pair added to each of the two discordant cells), and difference over error."""
    above, below = (won + 1) / (n + 2), (lost + 1) / (n + 2)
    difference = above - below
    error = math.sqrt(max(0.0, above + below - difference**2) / (n + 2))
    half = quantile * error
    return max(-1.0, difference - half), min(1.0, difference + half), difference / error if error else 0.0


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
