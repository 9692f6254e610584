"""Which layers are statistically tied with the best.

Axes: L layers, S resamples, G resampled units.
"""

import numpy as np
from scipy.stats import t

from probekit.evaluation.scores.bootstrap import LEVEL, satterthwaite
from probekit.evaluation.scores.joint import ROUNDING, known_layers, largest_deviation

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
    return t.isf(t.sf(largest, most), freedom)
