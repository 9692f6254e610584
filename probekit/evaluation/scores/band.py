"""A simultaneous confidence band around a curve, and which layers are statistically tied with the best.

The band holds the true values of all layers at once.

Axes: L layers, S resamples, G resampled units.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from probekit.evaluation.scores.bootstrap import LEVEL, Bootstrap, satterthwaite
from probekit.evaluation.scores.joint import ROUNDING, known_layers, largest_deviation
from probekit.evaluation.scores.metrics import Predictions, metrics_of

# Resampled units from which the standard error under equality is used. Its extra term is (difference ** 2) / G: with
# fewer units the term is so large that hardly any two layers could differ.
MANY = 50


def best_set(
    values: np.ndarray, resampled: np.ndarray, level: float = LEVEL, jackknifed: np.ndarray | None = None
) -> np.ndarray:
    """The layers statistically tied with the best: bool [L]; it holds the truly best one with probability `level`.

    Multiple comparisons with the best (Hsu 1981): each layer in turn is compared with all others, as Dunnett (1955)
    compares treatments with a control. A layer is out if another exceeds it by more than the standard error of their
    difference times a critical value. Differences are taken within resamples, so errors that two layers share cancel.
    The critical value is Student's t with the degrees of freedom of each difference (Satterthwaite 1946), at the level
    that the largest of all differences needs. With `MANY` units or more the standard error is the one under equality
    (as Wilson's is for one accuracy): the squared difference over G is added to the variance. With fewer than two units
    nothing can be compared, and every layer is in.

    Args:
        values: [L]; higher is better.
        resampled: [L, S] over shared resamples; those in which a layer is nan are left out.
        level: confidence level of the set.
        jackknifed: [L, G], `Bootstrap.jackknifed` of each layer; None treats G as infinite.
    """
    known, values, resampled = known_layers(values, resampled)
    chosen = known.copy()
    if jackknifed is not None and np.shape(jackknifed)[1] < 2:
        return chosen
    left = None if jackknifed is None else np.asarray(jackknifed, dtype=np.float64)[known]
    chosen[known] = [_may_be_best(values, resampled, layer, level, left) for layer in range(len(values))]
    return chosen


def _may_be_best(
    values: np.ndarray, resampled: np.ndarray, layer: int, level: float, jackknifed: np.ndarray | None
) -> bool:
    ahead = values - values[layer]
    deviation = resampled - resampled[layer] - ahead[:, None]
    errors = deviation.std(axis=1)
    varies = errors > ROUNDING
    if (ahead[~varies] > ROUNDING).any():
        return False
    if not varies.any():
        return True
    studentised, errors = deviation[varies] / errors[varies, None], errors[varies]
    if jackknifed is None:
        critical = np.quantile(studentised.max(axis=0), level)
    else:
        n_units = jackknifed.shape[1]
        unequal = ahead[varies] if n_units >= MANY else 0.0
        errors = np.sqrt(errors**2 * n_units / (n_units - 1) + unequal**2 / n_units)
        critical = _critical(studentised, (jackknifed - jackknifed[layer])[varies], level)
    return bool((ahead[varies] <= critical * errors + ROUNDING).all())


def _critical(studentised: np.ndarray, jackknifed: np.ndarray, level: float) -> np.ndarray:
    """The critical value of each studentised difference [L, S], whose error is an estimate from G units: [L]."""
    most = jackknifed.shape[1] - 1
    largest = largest_deviation(studentised, most + 1, level)
    freedom = [satterthwaite(each, most + 1) if np.isfinite(each).all() else most for each in jackknifed]
    tail = stdtr(most, -largest)
    return np.where(tail > 0, -stdtrit(freedom, tail), np.inf)  # of a tail of 0, `stdtrit` gives inf of the other sign


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
    pointwise = max(level, float(2 * ndtr(quantile) - 1))
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
    bonferroni = float(ndtri(1 - (1 - level) / (2 * max(1, int((~varies).sum())))))
    if not varies.any() or n_units < 2:
        return bonferroni
    studentised = np.abs(deviations)[varies] / errors[varies, None]
    largest = largest_deviation(studentised, n_units, level)
    return max(bonferroni, -float(ndtri(stdtr(n_units - 1, -largest))))
