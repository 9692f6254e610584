"""Metrics of predictions, computed for many example weightings at once.

Every metric takes W, one row of example weights per resample, and returns one value per row. A plain score has a single
row of ones; a weight of 2 counts an example twice. A bootstrap over 1,000 resamples is then a few passes over W. Values
equal scikit-learn's (scipy's for Spearman's correlation) wherever those define one.

Axes: N examples, C classes, S sets of weights.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from probekit.errors import UsageError, nearest
from probekit.tasks.trainable import IMBALANCED
from probekit.text import listed

Metric = Callable[["Predictions", np.ndarray], np.ndarray]
ECE_BINS = 15  # as Guo et al. 2017


@dataclass(frozen=True)
class Predictions:
    """Predictions for N examples, with the true labels.

    Attributes:
        truth: int64 [N], the true class; float64 [N] or [N, K] for a regression.
        predicted: int64 [N]; as the truth for a regression.
        scores: float [N] for two classes (higher means class 1), [N, C] for more; unused for a regression.
        n_classes: C; 0 for a regression.
        probabilities: float [N, C] or None; the Brier score and the calibration error need them.
    """

    truth: np.ndarray
    predicted: np.ndarray
    scores: np.ndarray
    n_classes: int
    probabilities: np.ndarray | None = None


def headline(counts: Iterable[int]) -> str:
    """The default metric that selects layers and is drawn.

    "accuracy"; "auroc" if the largest class has more than 80% (`IMBALANCED`) of the examples, since guessing it would
    look good; "r2" for a regression, which has no counts. A rare class alone does not matter: with many classes one is
    nearly always rare, and the chance level of accuracy is low.

    Args:
        counts: examples per class; empty for a regression.
    """
    counts = np.array(list(counts))
    if not len(counts):
        return "r2"
    return "auroc" if counts.max() > IMBALANCED * counts.sum() else "accuracy"


def check_metric(name: str, n_classes: int) -> str:
    """Return `name` if it is a metric that can select probes for C classes, or for a regression (0).

    Raises:
        UsageError: an unknown metric, one for the other kind of labels, or one where lower is better.
    """
    known = [one for one in (_CLASSIFICATION if n_classes else _REGRESSION) if one not in LOWER_IS_BETTER]
    if name in known:
        return name
    if name in METRICS and name in LOWER_IS_BETTER:
        raise UsageError(
            f"lower {name} is better, but the probe of the highest score is selected; take {listed(known)}"
        )
    if name in METRICS:
        kind = "classes" if n_classes else "numbers"
        raise UsageError(f"the metric {name} is not for labels that are {kind}; take {listed(known)}")
    raise UsageError(f"unknown metric {name!a}; {nearest(str(name), known)}")


def measure(predictions: Predictions, names: Iterable[str] | None = None) -> dict[str, float]:
    """Each metric, or each of `names`, that is defined for these predictions: name -> value."""
    once = np.ones((1, len(predictions.truth)))
    values = {name: float(values[0]) for name, values in weighted_metrics(predictions, once, names).items()}
    return {name: value for name, value in values.items() if np.isfinite(value)}


def weighted_metrics(
    predictions: Predictions, W: np.ndarray, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Each metric under each row of the weights [S, N]: name -> [S].

    Means over classes skip a class that has no weight in a row; if nothing is left to compare, the value is nan.

    Args:
        predictions: of N examples.
        W: non-negative, [S, N].
        names: which metrics; None for all that apply.
    """
    W = W.astype(np.float64, copy=False)
    return {name: METRICS[name](predictions, W) for name in names or metric_names(predictions)}


def metric_names(predictions: Predictions) -> list[str]:
    """The names in `METRICS` that apply to these predictions."""
    if predictions.n_classes == 0:
        return list(_REGRESSION)
    return [
        name for name in _CLASSIFICATION if predictions.probabilities is not None or name not in _NEED_PROBABILITIES
    ]


def accuracy(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The weighted share of correct predictions: [S]."""
    return W @ _right(predictions) / W.sum(axis=1)


def balanced_accuracy(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The mean recall over classes: [S]."""
    is_class = _one_hot(predictions.truth, predictions.n_classes)
    total = W @ is_class
    return mean_known(ratio(W @ (is_class * _right(predictions)[:, None]), total).T)


def f1(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The harmonic mean of precision and recall: of class 1 for two classes, else the mean over classes: [S].

    The mean skips a class that neither occurs nor is predicted.
    """
    is_class = _one_hot(predictions.truth, predictions.n_classes)
    is_predicted = _one_hot(predictions.predicted, predictions.n_classes)
    each = ratio(2 * W @ (is_class * is_predicted), W @ is_class + W @ is_predicted).T
    return each[1] if predictions.n_classes == 2 else mean_known(each)


def auroc(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The chance that an example of a class scores above one of the rest, ties counting half: [S].

    For two classes: of class 1. For more: the mean over classes, each against the rest by its log odds under the
    softmax of the scores, which ranks as scikit-learn's roc_auc_score(truth, probabilities, multi_class="ovr") does. A
    class's own score would not do, because only differences between scores decide.
    """
    return _one_against_rest(_binary_auroc, predictions, W)


def average_precision(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The mean precision over the examples of a class, each at its own score: [S].

    For two classes: of class 1. For more: the mean over classes, each against the rest by its log odds as in `auroc`.
    """
    return _one_against_rest(_binary_average_precision, predictions, W)


def brier(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The mean squared distance of the probabilities from the truth (Brier 1950), halved for two classes: [S]."""
    assert predictions.probabilities is not None
    squares = (predictions.probabilities - _one_hot(predictions.truth, predictions.n_classes)) ** 2
    return W @ squares.sum(axis=1) / W.sum(axis=1) / (2 if predictions.n_classes == 2 else 1)


def ece(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """Expected calibration error of the top label (Guo et al. 2017), in `ECE_BINS` bins of equal numbers: [S].

    The bin edges are the quantiles of the unweighted sample; equal confidences share a bin.
    """
    assert predictions.probabilities is not None
    confidence = predictions.probabilities.max(axis=1)
    over = confidence - (predictions.probabilities.argmax(axis=1) == predictions.truth)
    edges = np.quantile(confidence, np.arange(1, ECE_BINS) / ECE_BINS)
    in_bin = _one_hot(np.searchsorted(edges, confidence), ECE_BINS)
    return np.abs(W @ (in_bin * over[:, None])).sum(axis=1) / W.sum(axis=1)


def r2(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The share of variance explained: [S]; nan where the truth does not vary.

    Of several outputs: the mean of their R2, as scikit-learn's uniform_average.
    """
    return _mean_of_outputs(r2_of_outputs(predictions, W))


def r2_of_outputs(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """R2, or of several outputs each one's: [S] or [S, K]."""
    errors = W @ (predictions.truth - predictions.predicted) ** 2
    return 1 - ratio(errors, _spread(predictions.truth, W))


def _mean_of_outputs(values: np.ndarray) -> np.ndarray:
    """The mean [S] over the outputs of [S, K] that are defined; [S] is returned as it is."""
    return values if values.ndim == 1 else mean_known(values.T)


def r2_ceiling(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The highest R2 that predictions of this variance can have: [S]; nan where the truth does not vary.

    With k the ratio of standard deviations, r the correlation and b the bias in standard deviations of the truth,
    R2 = 2rk - k^2 - b^2, which is at most 1 - (1 - k)^2 for k below 1: for a constant, 0.
    """
    k = np.sqrt(ratio(_spread(predictions.predicted, W), _spread(predictions.truth, W)))
    return _mean_of_outputs(1 - (1 - np.minimum(k, 1)) ** 2)


def _spread(values: np.ndarray, W: np.ndarray) -> np.ndarray:
    """The weighted sum of squares around the mean, set to 0 if it is rounding: [S], or of each output [S, K]."""
    y = values - values.mean(axis=0)
    squares = W @ y**2
    total = W.sum(axis=1)
    spread = squares - (W @ y) ** 2 / (total if y.ndim == 1 else total[:, None])
    return np.where(spread > 1e-12 * squares, spread, 0)


def spearman(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation; ties share their mean rank: [S].

    0 where the predictions do not vary; nan where the truth does not. Of several outputs: the mean of theirs.
    """
    if predictions.truth.ndim == 2:
        return _mean_of_outputs(np.stack([spearman(one, W) for one in outputs_of(predictions)], axis=1))
    a, b = _centred_ranks(predictions.truth, W), _centred_ranks(predictions.predicted, W)
    covariance, spreads = np.einsum("sn,sn,sn->s", W, a, b), [np.einsum("sn,sn,sn->s", W, x, x) for x in (a, b)]
    return np.where((spreads[0] > 0) & (spreads[1] <= 0), 0, ratio(covariance, np.sqrt(spreads[0] * spreads[1])))


def mae(predictions: Predictions, W: np.ndarray) -> np.ndarray:
    """The mean absolute error, in units of the target: [S]; of several outputs the mean over all."""
    errors = np.abs(predictions.truth - predictions.predicted)
    return W @ (errors if errors.ndim == 1 else errors.mean(axis=1)) / W.sum(axis=1)


def outputs_of(predictions: Predictions) -> list[Predictions]:
    """The predictions of each output of a regression of several numbers."""
    parts = (predictions.truth.T, predictions.predicted.T, predictions.scores.T)
    return [Predictions(*one, n_classes=0) for one in zip(*parts, strict=True)]


def _right(predictions: Predictions) -> np.ndarray:
    return (predictions.predicted == predictions.truth).astype(np.float64)


def _one_hot(classes: np.ndarray, n_classes: int) -> np.ndarray:
    return (classes[:, None] == np.arange(n_classes)).astype(np.float64)


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Above / below, nan where `below` is 0."""
    return np.divide(above, below, out=np.full(np.shape(below), np.nan), where=below > 0)


def mean_known(each: np.ndarray) -> np.ndarray:
    """The mean over the first axis, skipping nan."""
    known = np.isfinite(each)
    return ratio(np.where(known, each, 0).sum(axis=0), known.sum(axis=0))


def _one_against_rest(binary: Callable, predictions: Predictions, W: np.ndarray) -> np.ndarray:
    truth, scores = predictions.truth, predictions.scores
    if scores.ndim == 1:
        return binary(truth == 1, scores, W)
    return mean_known(np.stack([binary(truth == c, log_odds(scores, c), W) for c in range(predictions.n_classes)]))


def log_odds(scores: np.ndarray, c: int) -> np.ndarray:
    """Log odds of class c against the rest under the softmax of scores [N, C]: [N]."""
    return scores[:, c] - logsumexp(np.delete(scores, c, axis=1), axis=1)


def _by_value(values: np.ndarray, W: np.ndarray, *masks: np.ndarray) -> list[np.ndarray]:
    """The weight [S, distinct values] of each mask's examples, in ascending order of their values."""
    order, starts = _distinct(values)
    weights = W[:, order]
    return [_summed(weights * mask[order], starts) for mask in masks]


def _distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The examples in ascending order of their values [N], and where in it each distinct value starts."""
    order = np.argsort(values, kind="stable")
    return order, np.flatnonzero(np.diff(values[order], prepend=-np.inf) > 0)


def _summed(weights: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The sums [S, distinct values] of weights [S, N] in order; `reduceat` is slow, and without ties does nothing."""
    return weights if len(starts) == weights.shape[1] else np.add.reduceat(weights, starts, axis=1)


def _binary_auroc(positive: np.ndarray, scores: np.ndarray, W: np.ndarray) -> np.ndarray:
    up, down = _by_value(scores, W, positive, ~positive)
    below = np.cumsum(down, axis=1)
    won = np.einsum("sv,sv->s", up, below) - np.einsum("sv,sv->s", up, down) / 2
    return ratio(won, up.sum(axis=1) * below[:, -1])


def _binary_average_precision(positive: np.ndarray, scores: np.ndarray, W: np.ndarray) -> np.ndarray:
    up, every = _by_value(-scores, W, positive, np.ones(len(scores)))
    positives = np.cumsum(up, axis=1)
    precision = np.divide(positives, np.cumsum(every, axis=1), out=np.zeros_like(positives), where=positives > 0)
    return ratio(np.einsum("sv,sv->s", up, precision), positives[:, -1])


def _centred_ranks(values: np.ndarray, W: np.ndarray) -> np.ndarray:
    """The mean rank of each example among weighted copies, minus the mean over all: [S, N]."""
    order, starts = _distinct(values)
    weight = _summed(W[:, order], starts)
    ranks = np.cumsum(weight, axis=1) - (weight + W.sum(axis=1, keepdims=True)) / 2
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    return ranks[:, place]


_CLASSIFICATION: dict[str, Metric] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "auroc": auroc,
    "average_precision": average_precision,
    "f1": f1,
    "brier": brier,
    "ece": ece,
}
_REGRESSION: dict[str, Metric] = {"r2": r2, "spearman": spearman, "mae": mae}
_NEED_PROBABILITIES = ("brier", "ece")
METRICS: dict[str, Metric] = _CLASSIFICATION | _REGRESSION
LOWER_IS_BETTER = ("brier", "ece", "mae")
HEADLINES = tuple(name for name in METRICS if name not in LOWER_IS_BETTER)
