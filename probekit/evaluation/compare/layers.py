"""Compare the layers of a curve with one another and with chance, on the same test rows and resamples.

Axes: L layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.evaluation.scores.band import best_set, curve_band
from probekit.evaluation.scores.bootstrap import LEVEL, Bootstrap
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.permutation import PERMUTATIONS, permutation_test
from probekit.evaluation.scores.score import for_metric, value_of

NOT_REQUESTED = "no intervals and p-values were requested"
NO_CHANCE = {"p_max": None, "null_high": None, "permutations": None}
NO_P_VALUES = "with folds, the pooled predictions depend on the labels that a permutation would shuffle"


@dataclass(frozen=True)
class LayerComparison:
    """How the layers of a curve compare.

    Attributes:
        bands: (low, high) for each layer; together they hold the curve with 95%. None where undefined.
        in_best_set: for each layer, whether it is statistically tied with the best; None without resamples, and
            with too few groups for intervals.
        p_values: of each layer against permuted labels; None with folds, or without resamples.
        chance: {"p_max", "null_high", "permutations"} of the best of all layers, or None; and "no_p_values", why there
            are none, which is None where there are.
    """

    bands: Sequence[tuple[float, float] | None]
    in_best_set: Sequence[bool | None]
    p_values: Sequence[float | None]
    chance: dict[str, Any]


def compare_layers(
    predictions: Sequence[Predictions], metric: str, bootstrap: Bootstrap | None, seed: int | None
) -> LayerComparison:
    """Bands, best set and p-values of a curve.

    Args:
        predictions: for the test rows, one per layer.
        metric: the headline.
        bootstrap: resamples of the test rows; None leaves everything out.
        seed: of the permutations; None, with folds, leaves them out. They would be wrong there: each fold's predictions
            come from fits on the labels of the others, so they would change if labels were permuted.
    """
    if bootstrap is None:
        none = [None] * len(predictions)
        return LayerComparison(none, none, none, {**NO_CHANCE, "no_p_values": NOT_REQUESTED})
    predictions = [for_metric(each, metric) for each in predictions]
    values = np.array([value_of(each, metric) for each in predictions])
    resampled = np.stack([bootstrap.resampled(each, metric) for each in predictions])
    bands = curve_band(bootstrap, predictions, metric, resampled, LEVEL)
    jackknifed = np.stack([bootstrap.jackknifed(each, metric) for each in predictions])
    tied = best_set(values, resampled, LEVEL, jackknifed).tolist() if bootstrap.has_intervals else [None] * len(values)
    p_values, chance = _chance(predictions, metric, bootstrap, seed)
    return LayerComparison([_ends(band) for band in bands], tied, p_values, chance)


def _chance(
    predictions: Sequence[Predictions], metric: str, bootstrap: Bootstrap, seed: int | None
) -> tuple[list[float | None], dict[str, Any]]:
    if seed is None:
        return [None] * len(predictions), {**NO_CHANCE, "no_p_values": NO_P_VALUES}
    null = permutation_test(predictions, metric, seed, bootstrap.groups)
    null_high = float(null.null_high) if np.isfinite(null.null_high) else None
    chance = {"p_max": float(null.p_max), "null_high": null_high, "permutations": PERMUTATIONS, "no_p_values": None}
    return null.p_values.tolist(), chance


def _ends(band: np.ndarray) -> tuple[float, float] | None:
    return (float(band[0]), float(band[1])) if np.isfinite(band).all() else None
