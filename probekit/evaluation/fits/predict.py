"""Predictions of fitted probes for rows of one layer, and the predictions of several rounds as one.

Axes: N examples, D width, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from probekit.evaluation.scores.metrics import Predictions
from probekit.probes.base import Probe, as_numpy, predicted_labels, probabilities
from probekit.probes.sequence.base import text_scores
from probekit.probes.sequence.ragged import Ragged, take_texts
from probekit.probes.stream import SparseRows, Stream, some_of, take_some, with_numbers


@dataclass(frozen=True, eq=False)
class ByMask:
    """Features [N, D] that depend on the rows that are fitted, such as the residuals of a regression on them.

    Attributes:
        of: number of a mask of the protocol -> the features for its fits; only those of the last mask are kept.
        final: those for the saved probe.
    """

    of: Callable[[int], Tensor]
    final: Tensor

    @property
    def shape(self) -> torch.Size:
        """(N, D)."""
        return self.final.shape

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.final.device

    @property
    def nbytes(self) -> int:
        """Of what is in memory: the rows as read, those of the final mask and those of another one."""
        return 3 * self.final.nbytes


Features = Tensor | Stream | Ragged
NUMBERS_AT_ONCE = 1 << 21  # bounds the float64 copy of the features
ROWS_OF_A_STREAM = 2048  # the same where memory is short


class Decision(NamedTuple):
    """The scores and predictions of a probe for rows, before they are compared with labels.

    Attributes:
        scores: [N] for two classes, [N, C] for more; the values [N] of a regression.
        predicted: int64 [N]; None where the highest score is the prediction.
    """

    scores: np.ndarray
    predicted: np.ndarray | None = None


def decisions(probes: Sequence[Any], X: Features, rows: np.ndarray) -> list[Decision]:
    """The decision of each probe for these rows of X [N, D], or texts; all linear probes are one matrix product.

    A stream is read once, for linear probes.
    """
    if not probes:
        return []
    if isinstance(X, Ragged):
        return [Decision(scores) for scores in text_scores(probes, take_texts(X, rows))]
    if all(probe.linear for probe in probes):
        return [Decision(scores) for scores in _linear(probes, X, rows)]
    features = take_rows(X, rows)
    return [_decide(probe, features) for probe in probes]


def _decide(probe: Any, features: Tensor) -> Decision:
    if probe.predicts == "numbers":
        return Decision(probe.predict(features))
    return Decision(probe.decision_function(features), None if probe.by_score else probe.predict(features))


def at_mask(X: Features | ByMask, mask: int) -> Any:
    """The features for the fits of one mask of the protocol."""
    return X.of(mask) if isinstance(X, ByMask) else X


def take_rows(X: Features, rows: np.ndarray) -> Any:
    """X [N, D] at these rows, or the tokens of these texts; rows are not copied where they follow one another.

    Rows of a stream are a stream, or are held if they fit in its room.
    """
    if isinstance(X, Ragged):
        return take_texts(X, rows)
    if isinstance(X, Stream):
        return take_some(X, rows)
    if len(rows) and (np.diff(rows) == 1).all():
        return X[int(rows[0]) : int(rows[-1]) + 1]
    return X[torch.from_numpy(rows).to(X.device)]


def _linear(probes: Sequence[Any], X: Tensor | Stream, rows: np.ndarray) -> list[np.ndarray]:
    coefs = [np.atleast_2d(probe.coef_) for probe in probes]
    device = torch.device("cpu") if isinstance(X, Stream) else X.device
    W = torch.from_numpy(np.concatenate(coefs)).to(device)
    b = torch.from_numpy(np.concatenate([np.atleast_1d(probe.intercept_) for probe in probes])).to(device)
    if isinstance(X, SparseRows):
        scores = X.matrix[rows] @ W.numpy().T + b.numpy()
    elif isinstance(X, Stream):
        scores = np.empty((len(rows), len(W)))
        for numbers, block in with_numbers(some_of(X, rows)):
            for start in range(0, len(block), ROWS_OF_A_STREAM):
                some = slice(start, start + ROWS_OF_A_STREAM)
                scores[numbers[some]] = as_numpy(block[some].double() @ W.T + b)
            del block  # before the next is read
    else:
        size = max(1, NUMBERS_AT_ONCE // max(1, X.shape[1]))
        parts = [rows[start : start + size] for start in range(0, max(1, len(rows)), size)]
        scores = np.concatenate([as_numpy(take_rows(X, part).double() @ W.T + b) for part in parts])
    ends = np.cumsum([len(coef) for coef in coefs])[:-1]
    return [part[:, 0] if part.shape[1] == 1 else part for part in np.split(scores, ends, axis=1)]


def predictions_of(truth: np.ndarray, decision: Decision, n_classes: int, probe: Probe | None = None) -> Predictions:
    """The decision as predictions of the true labels; with probabilities where `probe` makes its scores from them."""
    scores = decision.scores
    if n_classes == 0:
        return Predictions(truth, scores, scores, 0)
    likely = probabilities(scores) if probe is not None and probe.log_odds else None
    predicted = predicted_labels(scores) if decision.predicted is None else decision.predicted
    return Predictions(truth, predicted, scores, n_classes, likely)


def predict(probe: Probe, X: Features, rows: np.ndarray, labels: np.ndarray, n_classes: int) -> Predictions:
    """The predictions of one probe for rows of X [N, D], whose labels are `labels[rows]`."""
    (decision,) = decisions([probe], X, rows)
    return predictions_of(labels[rows], decision, n_classes, probe)


def log_probabilities(scores: np.ndarray) -> np.ndarray:
    """Natural logarithms of the probabilities [N, C], from log odds [N] of two classes or logits [N, C] of more."""
    if scores.ndim == 1:
        return -np.logaddexp(0, np.stack([scores, -scores], axis=1))
    return scores - logsumexp(scores, axis=1, keepdims=True)


def pooled(parts: Sequence[Predictions]) -> Predictions:
    """Predictions of several rounds as one, each round predicted by its own probe.

    Scores of different probes are not comparable: their zero and unit depend on the training rows, in which classes are
    rare where they are common among the round's test rows. So the scores of each round are standardised. Predicted
    labels and probabilities stay as they are.
    """
    if len(parts) > 1:
        parts = [replace(part, scores=_standardised(part.scores, part.n_classes == 0)) for part in parts]

    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if any(value is None for value in values) else np.concatenate(values)

    names = ("truth", "predicted", "scores")
    return Predictions(*map(joined, names), n_classes=parts[0].n_classes, probabilities=joined("probabilities"))


def _standardised(scores: np.ndarray, are_targets: bool) -> np.ndarray:
    """Scores [N] or [N, C] with mean 0 (per class) and one spread, or of targets [N, K] each its own.

    0 where they do not vary.
    """
    centred = scores - scores.mean(axis=0)
    each = 0 if are_targets else None
    spread, size = np.sqrt((centred**2).mean(axis=each)), np.abs(scores).max(axis=each, initial=0)
    varies = spread > 1e-9 * size
    return np.where(varies, centred / np.where(varies, spread, 1), 0)


def part_of(predictions: Predictions, rows: slice | np.ndarray) -> Predictions:
    """The predictions for some of the examples."""
    likely = predictions.probabilities
    return replace(
        predictions,
        truth=predictions.truth[rows],
        predicted=predictions.predicted[rows],
        scores=predictions.scores[rows],
        probabilities=None if likely is None else likely[rows],
    )
