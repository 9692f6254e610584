"""Shared by band and best set: layers are compared on the same test examples, so on the same resamples.

Axes: L layers, S resamples, G resampled units.
"""

import numpy as np

from probekit.errors import UsageError

ROUNDING = 1e-12  # a difference or a standard error below this is rounding: sums in another order differ by as much


def known_layers(values: np.ndarray, resampled: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which layers have a value (bool [L]), their values, and their resamples without those where one of them is nan.

    Raises:
        UsageError: shapes that do not match.
    """
    values, resampled = np.asarray(values, dtype=np.float64), np.asarray(resampled, dtype=np.float64)
    if resampled.ndim != 2 or values.shape != resampled.shape[:1]:
        raise UsageError(f"expected values [L] and resampled [L, S]; got {values.shape} and {resampled.shape}")
    known = np.isfinite(values)
    values, resampled = values[known], resampled[known]
    resampled = resampled[:, np.isfinite(resampled).all(axis=0)]
    return known, values, resampled if resampled.shape[1] else values[:, None]


def largest_deviation(studentised: np.ndarray, n_units: int, level: float) -> float:
    """The `level` quantile of the largest of L deviations [L, S] whose standard errors are estimates from G units.

    Each error is multiplied by the root of an own chi-squared draw over G - 1 degrees of freedom. Real errors of layers
    are correlated, so treating them as independent makes the quantile too large rather than too small.
    """
    drawn = np.random.default_rng(0).chisquare(n_units - 1, size=studentised.shape) / (n_units - 1)
    return float(np.quantile((studentised / np.sqrt(drawn)).max(axis=0), level))
