"""The quoted score against the best baseline, and against the layer that selecting on test would have picked."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from probekit.evaluation.results.data import LayerResult
from probekit.evaluation.scores.bootstrap import LEVEL, Bootstrap
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.score import for_metric, value_of


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

    The difference is taken within each resample; the interval is Student's t times its standard error.
    """
    ahead = value_of(one, metric) - value_of(other, metric)
    if bootstrap is None or not bootstrap.has_intervals:
        return ahead, None
    first, second = (bootstrap.resampled(for_metric(each, metric), metric) for each in (one, other))
    difference = (first - second)[np.isfinite(first - second)]
    n = bootstrap.n_units
    if n < 2 or not len(difference):
        return ahead, None
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2) * difference.std() * np.sqrt(n / (n - 1)))
    return ahead, [ahead - half, ahead + half]


def optimism(results: Sequence[LayerResult], best: LayerResult, metric: str, quoted: float) -> dict[str, Any]:
    """The layer that selecting on test would have picked, its value, and how far that is over the quoted value.

    Ties go to the chosen layer, or else to the first.
    """
    top = max(results, key=lambda layer: (layer.metrics["test"][metric], layer is best))
    value = top.metrics["test"][metric]
    return {"layer": top.place, "value": value, "over": value - quoted}
