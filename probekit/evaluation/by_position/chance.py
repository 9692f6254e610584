"""Which cells of a layer x position grid are above chance: permuted test labels, corrected for all cells.

Every cell has its own predictions, and every position its own test texts. The labels of a position's test texts are
permuted against the fixed predictions, with the same permutations for all layers. A cell's value is compared with the
permutations of its own: z = (value - mean) / standard deviation. For the correction, each permutation counts with its
largest z over all cells (Westfall and Young 1993), so the chance that any cell without information is called above
chance is 5% at most. Positions with the same test texts share their permutations, so what they have in common makes
the correction milder.

Axes: P positions, L layers, S permutations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probekit.evaluation.scores.joint import ROUNDING
from probekit.evaluation.scores.permutation import PERMUTATIONS, permuter
from probekit.evaluation.scores.permuted import under_permutation
from probekit.evaluation.scores.predictions import Predictions
from probekit.evaluation.scores.score import value_of

ABOVE_CHANCE = 0.05  # a corrected p-value up to this is above chance
_CHUNK = 250_000  # labels drawn at once: 2 MB


@dataclass(frozen=True)
class GridTest:
    """The p-values of a grid.

    Attributes:
        p_values: float64 [P, L], of each cell on its own.
        corrected: float64 [P, L], for all cells together.
        permutations: how many.
    """

    p_values: np.ndarray
    corrected: np.ndarray
    permutations: int


def compare_with_chance(
    predictions: Sequence[Sequence[Predictions]],
    metric: str,
    seed: int,
    units: Sequence[np.ndarray | None],
    permutations: int = PERMUTATIONS,
) -> GridTest:
    """Compare every cell with chance.

    Args:
        predictions: [P][L], for the test texts of each position.
        metric: the headline.
        seed: of the permutations.
        units: for each position, the groups of its test texts, whose labels are permuted as `permutation_test` does.
        permutations: how many, S.
    """
    p_values, scores, largest = [], [], np.full(permutations, -np.inf)
    for layers, groups in zip(predictions, units, strict=True):
        values = np.array([value_of(each, metric) for each in layers])
        null = _null(layers, metric, seed, groups, permutations)
        as_good = (null >= values[:, None] - ROUNDING).sum(axis=1)
        p_values.append((1 + as_good) / (1 + permutations))
        scores.append(_standardised(values[:, None], null)[:, 0])
        largest = np.maximum(largest, _standardised(null, null).max(axis=0))
    above = np.sort(largest)
    counts = permutations - np.searchsorted(above, np.array(scores) - ROUNDING, side="left")
    return GridTest(np.array(p_values), np.maximum((1 + counts) / (1 + permutations), p_values), permutations)


def _null(
    layers: Sequence[Predictions], metric: str, seed: int, groups: np.ndarray | None, permutations: int
) -> np.ndarray:
    """The metric of each layer under each permutation, [L, S]; what is undefined counts as the layer's mean."""
    rng, truth = np.random.default_rng(seed), layers[0].truth
    draw, values = permuter(truth, groups), under_permutation(layers, metric)
    step = max(1, _CHUNK // max(1, truth.size))
    sizes = [min(step, permutations - start) for start in range(0, permutations, step)]
    null = np.concatenate([values(draw(rng, size)) for size in sizes], axis=1)
    means = np.nan_to_num(np.ma.masked_invalid(null).mean(axis=1).filled(0.0))
    return np.where(np.isfinite(null), null, means[:, None])


def _standardised(values: np.ndarray, null: np.ndarray) -> np.ndarray:
    """Values [L, n] in standard deviations of their null [L, S]; 0 where the null does not vary, or for no value."""
    middle, spread = null.mean(axis=1, keepdims=True), null.std(axis=1, keepdims=True)
    varies = spread > ROUNDING
    return np.nan_to_num(np.where(varies, (values - middle) / np.where(varies, spread, 1), 0.0))
