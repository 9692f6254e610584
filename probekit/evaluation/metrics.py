"""How good predictions are: accuracy, balanced accuracy and the area under the ROC curve, weighted many ways at once.

Every metric takes W, a row of example weights per resample, and gives one value per row; a plain score is the case of
one row of ones. A bootstrap over 1,000 resamples is then a few matrix products.

Axes: N examples, C classes, S sets of weights.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

METRICS = ("accuracy", "balanced_accuracy", "auroc")


@dataclass(frozen=True)
class Predictions:
    """What a classifier says of N examples beside what is true.

    Attributes:
        truth: int64 [N], the true class.
        predicted: int64 [N].
        scores: float [N] for two classes (higher means class 1), [N, C] for more.
        n_classes: C.
    """

    truth: np.ndarray
    predicted: np.ndarray
    scores: np.ndarray
    n_classes: int


def measure(predictions: Predictions) -> dict[str, float]:
    """The value of each of `METRICS`."""
    once = np.ones((1, len(predictions.truth)))
    return {name: float(values[0]) for name, values in weighted_metrics(predictions, once).items()}


def weighted_metrics(predictions: Predictions, W: np.ndarray) -> dict[str, np.ndarray]:
    """Each of `METRICS` under each row of the weights [S, N]: name -> [S].

    Where a row gives a class no weight, the means over classes are of those that it holds; an AUROC for which there is
    nothing to compare is nan.
    """
    W = W.astype(np.float64, copy=False)
    return {
        "accuracy": accuracy(predictions, W),
        "balanced_accuracy": balanced_accuracy(predictions, W),
        "auroc": auroc(predictions, W),
    }


def accuracy(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The weight of the right answers as a share of all: [S]."""
    right = (predictions.predicted == predictions.truth).astype(np.float64)
    return W @ right / W.sum(axis=1)


def balanced_accuracy(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The mean over classes of the share of the class that is recognised: [S]."""
    is_class = (predictions.truth[:, None] == np.arange(predictions.n_classes)).astype(np.float64)
    right = (predictions.predicted == predictions.truth).astype(np.float64)[:, None]
    total = W @ is_class
    recall = np.divide(W @ (is_class * right), total, out=np.zeros_like(total), where=total > 0)
    return recall.sum(axis=1) / (total > 0).sum(axis=1)


def auroc(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The chance that an example of a class scores above one of the rest, ties counting half: [S].

    Two classes: of class 1. Several: the mean over classes, each against the rest by its log odds under the softmax of
    the scores. So it ranks as scikit-learn's roc_auc_score(truth, probabilities, multi_class="ovr") does: a class's own
    score alone would say nothing, since only differences between scores decide.
    """
    if predictions.scores.ndim == 1:
        return _binary_auroc(predictions.truth == 1, predictions.scores, W)
    classes = range(predictions.n_classes)
    each = np.stack([_binary_auroc(predictions.truth == c, _log_odds(predictions.scores, c), W) for c in classes])
    known = np.isfinite(each)
    total = np.where(known, each, 0).sum(axis=0)
    return np.divide(total, known.sum(axis=0), out=np.full(len(W), np.nan), where=known.any(axis=0))


def _log_odds(scores: np.ndarray, c: int) -> np.ndarray:
    return scores[:, c] - logsumexp(np.delete(scores, c, axis=1), axis=1)


def _binary_auroc(positive: np.ndarray, scores: np.ndarray, W: np.ndarray) -> np.ndarray:
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))  # where each group of equal scores begins
    weights = W[:, order]
    up = np.add.reduceat(weights * positive[order], starts, axis=1)
    down = np.add.reduceat(weights * ~positive[order], starts, axis=1)
    below = np.cumsum(down, axis=1) - down / 2
    pairs = up.sum(axis=1) * down.sum(axis=1)
    return np.divide((up * below).sum(axis=1), pairs, out=np.full(len(W), np.nan), where=pairs > 0)
