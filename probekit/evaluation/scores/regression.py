"""Metrics of predicted numbers, under many sets of weights at once.

Axes: N examples, K outputs, S sets of weights.
"""

from collections.abc import Collection

import numpy as np

from probekit.evaluation.scores.classification import Weighted
from probekit.evaluation.scores.predictions import Predictions, adder, distinct, mean_known, ratio


def r2(predictions: Predictions, names: Collection[str]) -> Weighted:
    """The share of variance explained; nan where the truth does not vary.

    Of several outputs: the mean of their R2, as scikit-learn's uniform_average.
    """
    return lambda V: {"r2": _mean_of_outputs(r2_of_outputs(predictions, V))}


def r2_of_outputs(predictions: Predictions, V: np.ndarray) -> np.ndarray:
    """R2 under weights [N, S], or of several outputs each one's: [S] or [S, K]."""
    errors = V.T @ (predictions.truth - predictions.predicted) ** 2
    return 1 - ratio(errors, _spread(predictions.truth, V))


def r2_ceiling(predictions: Predictions, V: np.ndarray) -> np.ndarray:
    """The highest R2 that predictions of this variance can have: [S]; nan where the truth does not vary.

    With k the ratio of standard deviations, r the correlation and b the bias in standard deviations of the truth,
    R2 = 2rk - k^2 - b^2, which is at most 1 - (1 - k)^2 for k below 1: for a constant, 0.
    """
    k = np.sqrt(ratio(_spread(predictions.predicted, V), _spread(predictions.truth, V)))
    return _mean_of_outputs(1 - (1 - np.minimum(k, 1)) ** 2)


def mae(predictions: Predictions, names: Collection[str]) -> Weighted:
    """The mean absolute error, in units of the target; of several outputs the mean over all."""
    errors = np.abs(predictions.truth - predictions.predicted)
    each = errors if errors.ndim == 1 else errors.mean(axis=1)
    return lambda V: {"mae": each @ V / V.sum(axis=0)}


def spearman(predictions: Predictions, names: Collection[str]) -> Weighted:
    """Spearman's rank correlation; ties share their mean rank.

    0 where the predictions do not vary; nan where the truth does not. Of several outputs: the mean of theirs.
    """
    if predictions.truth.ndim == 1:
        return _rank_correlation(predictions.truth, predictions.predicted)
    each = [_rank_correlation(*one) for one in zip(predictions.truth.T, predictions.predicted.T, strict=True)]
    return lambda V: {"spearman": mean_known(np.stack([one(V)["spearman"] for one in each]))}


def _rank_correlation(truth: np.ndarray, predicted: np.ndarray) -> Weighted:
    (place, n_places), (other_place, n_other) = distinct(truth), distinct(predicted)
    of_value, of_other = adder(place, n_places), adder(other_place, n_other)

    def metrics(V: np.ndarray) -> dict[str, np.ndarray]:
        one, other = of_value @ V, of_other @ V  # the weight of each distinct value
        ranks, other_ranks = _centred_ranks(one), _centred_ranks(other)
        covariance = np.einsum("vs,vs->s", ranks, of_value @ (V * other_ranks[other_place]))
        spread, other_spread = np.einsum("vs,vs,vs->s", one, ranks, ranks), _sum_of_squares(other, other_ranks)
        correlation = ratio(covariance, np.sqrt(spread * other_spread))
        return {"spearman": np.where((spread > 0) & (other_spread <= 0), 0, correlation)}

    return metrics


def _sum_of_squares(weight: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    return np.einsum("vs,vs,vs->s", weight, ranks, ranks)


def _centred_ranks(weight: np.ndarray) -> np.ndarray:
    """The mean rank of each distinct value among weighted copies, given its weight [V, S], minus the mean over all."""
    return np.cumsum(weight, axis=0) - (weight + weight.sum(axis=0)) / 2


def _mean_of_outputs(values: np.ndarray) -> np.ndarray:
    """The mean [S] over the outputs of [S, K] that are defined; [S] is returned as it is."""
    return values if values.ndim == 1 else mean_known(values.T)


def _spread(values: np.ndarray, V: np.ndarray) -> np.ndarray:
    """The weighted sum of squares around the mean, set to 0 if it is rounding: [S], or of each output [S, K]."""
    y = values - values.mean(axis=0)
    squares = V.T @ y**2
    total = V.sum(axis=0)
    spread = squares - (V.T @ y) ** 2 / (total if y.ndim == 1 else total[:, None])
    return np.where(spread > 1e-12 * squares, spread, 0)
