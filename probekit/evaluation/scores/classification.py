"""Metrics of predicted classes and of their probabilities, under many sets of weights at once.

Axes: N examples, C classes, S sets of weights.
"""

from collections.abc import Callable, Collection

import numpy as np

from probekit.evaluation.scores.predictions import Predictions, adder, mean_known, ratio

ECE_BINS = 15  # as Guo et al. 2017
Weighted = Callable[[np.ndarray], dict[str, np.ndarray]]
"""Weights [N, S] -> each metric [S], by name."""


def class_metrics(predictions: Predictions, names: Collection[str]) -> Weighted:
    """Accuracy: the weighted share of correct predictions. Balanced accuracy: the mean recall over classes.

    F1: the harmonic mean of precision and recall, of class 1 for two classes, else the mean over the classes that occur
    or are predicted.
    """
    right = (predictions.predicted == predictions.truth).astype(np.float64)
    if set(names) == {"accuracy"}:
        return lambda V: {"accuracy": right @ V / V.sum(axis=0)}
    n_classes = predictions.n_classes
    occurs, is_right = (adder(predictions.truth, n_classes, values) for values in (None, right))
    is_predicted = adder(predictions.predicted, n_classes)

    def metrics(V: np.ndarray) -> dict[str, np.ndarray]:
        members, hits = occurs @ V, is_right @ V
        found = {"accuracy": right @ V / V.sum(axis=0), "balanced_accuracy": mean_known(ratio(hits, members))}
        if "f1" in names:
            each = ratio(2 * hits, members + is_predicted @ V)
            found["f1"] = each[1] if n_classes == 2 else mean_known(each)
        return found

    return metrics


def brier(predictions: Predictions, names: Collection[str]) -> Weighted:
    """The mean squared distance of the probabilities from the truth (Brier 1950), halved for two classes."""
    assert predictions.probabilities is not None
    one_hot = predictions.truth[:, None] == np.arange(predictions.n_classes)
    squares = ((predictions.probabilities - one_hot) ** 2).sum(axis=1) / (2 if predictions.n_classes == 2 else 1)
    return lambda V: {"brier": squares @ V / V.sum(axis=0)}


def calibration(predictions: Predictions, names: Collection[str]) -> Weighted:
    """Expected calibration error of the top label (Guo et al. 2017), in `ECE_BINS` bins of equal numbers.

    The bin edges are the quantiles of the unweighted sample; equal confidences share a bin.
    """
    assert predictions.probabilities is not None
    confidence = predictions.probabilities.max(axis=1)
    over = confidence - (predictions.probabilities.argmax(axis=1) == predictions.truth)
    edges = np.quantile(confidence, np.arange(1, ECE_BINS) / ECE_BINS)
    of_bin = adder(np.searchsorted(edges, confidence), ECE_BINS, over)
    return lambda V: {"ece": np.abs(of_bin @ V).sum(axis=0) / V.sum(axis=0)}
