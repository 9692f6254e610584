"""A simultaneous confidence band around a curve: it holds the true values of all layers at once.

Axes: L layers, S resamples.
"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm, t

from probekit.evaluation.scores.bootstrap import LEVEL, Bootstrap
from probekit.evaluation.scores.joint import ROUNDING, known_layers, largest_deviation
from probekit.evaluation.scores.metrics import Predictions, metrics_of


def curve_band(
    bootstrap: Bootstrap,
    predictions: Sequence[Predictions],
    metric: str,
    resampled: np.ndarray,
    level: float = LEVEL,
) -> np.ndarray:
    """A band that holds the true values of all layers at once with probability `level`: [L, 2].

    Each layer gets its own interval at a higher level: the one whose normal quantile is that of the largest studentised
    deviation over all layers (sup-t: Montiel Olea and Plagborg-Moller 2019; for R2 on the log scale of its intervals),
    or Bonferroni's over the layers that vary in no resample, whichever is higher. The band is therefore at least as
    wide as every interval, exact for perfect layers, and valid for few groups, because the intervals are. The accuracy
    of a layer with few errors uses the exact interval, as Wilson's is too narrow at such levels
    (`Bootstrap.intervals`). A layer whose metric is undefined has nan.

    Args:
        bootstrap: resamples of the test examples.
        predictions: one per layer.
        metric: a name of `METRICS`.
        resampled: [L, S], `bootstrap.resampled` of each layer.
        level: confidence level of the band.
    """
    values = np.array([metrics_of(p, [metric]).get(metric, np.nan) for p in predictions])
    _, values, resampled = known_layers(values, resampled)
    deviations = _deviations_of_r2 if metric == "r2" else _deviations
    quantile = _quantile(deviations(values, resampled), resampled, level, bootstrap.n_units)
    pointwise = max(level, float(2 * norm.cdf(quantile) - 1))
    ends = [bootstrap.intervals(p, pointwise, [metric], exact=True).get(metric, (np.nan, np.nan)) for p in predictions]
    return np.array(ends)


def _deviations(values: np.ndarray, resampled: np.ndarray) -> np.ndarray:
    return resampled - values[:, None]


def _deviations_of_r2(values: np.ndarray, resampled: np.ndarray) -> np.ndarray:
    """Deviations on the scale log(1 - R2), which removes the heavy lower tail, rescaled to units of R2: [L, S]."""
    left = 1 - values[:, None]
    return np.where(left > 0, -left * np.log(np.maximum(1 - resampled, 1e-300) / np.where(left > 0, left, 1)), 0)


def _quantile(deviations: np.ndarray, resampled: np.ndarray, level: float, n_units: int) -> float:
    """The normal quantile whose level each layer's own Student's t interval must have.

    From the `level` quantile of the largest studentised deviation, and at least Bonferroni's over layers that do not
    vary.
    """
    errors = resampled.std(axis=1)
    varies = errors > ROUNDING
    bonferroni = float(norm.ppf(1 - (1 - level) / (2 * max(1, int((~varies).sum())))))
    if not varies.any() or n_units < 2:
        return bonferroni
    studentised = np.abs(deviations)[varies] / errors[varies, None]
    largest = largest_deviation(studentised, n_units, level)
    return max(bonferroni, -float(norm.ppf(t.sf(largest, n_units - 1))))
