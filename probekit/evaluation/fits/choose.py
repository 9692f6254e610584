"""From the fitted probes of one layer to its result: C is chosen where the protocol says, then test is looked at once.

Axes: N examples, D width, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from probekit.errors import DataError
from probekit.evaluation.fits.fit_grid import Columns
from probekit.evaluation.fits.protocol import Round
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import METRICS, Predictions, measure
from probekit.probes.base import as_numpy, predicted_labels, probabilities

ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, eq=False)
class Verdict:
    """What one label set's probes say at one place.

    Attributes:
        C: the strength that is chosen over all rounds; of equals the smallest.
        tried: (C, headline on validation) of each candidate.
        converged: whether every fit that the predictions rest on did.
        gap: their worst certificate; None where there is none, or one of them bounds nothing.
        probe: the probe that is kept; None of a control task.
        chosen: (converged, headline on validation) of each round's own choice.
        test: the predictions of the test rows, round after round.
    """

    C: float | None
    tried: list[tuple[float | None, float]]
    converged: bool
    gap: float | None
    probe: Any
    chosen: list[tuple[bool, float]]
    test: Predictions


class Bench:
    """The fitted probes of one layer with its features, and what they say.

    Args:
        columns: whose problems were fitted.
        probes: one for each problem.
        X: [N, D].
        headline: the metric that chooses.
    """

    def __init__(self, columns: Columns, probes: Sequence[Any], X: Tensor, headline: str):
        self.columns, self.probes, self.X, self.headline = columns, probes, X, headline
        self.scores = self._scores()

    def verdict(self, number: int) -> Verdict:
        """Choose for one label set, and predict its test rows."""
        columns, rounds = self.columns, self.columns.protocol.rounds
        values = np.array([[self._score(number, each, i) for i in range(len(columns.grid))] for each in rounds])
        sound = np.array([[self._sound(number, each, i) for i in range(len(columns.grid))] for each in rounds])
        means = values.mean(axis=0)
        overall = _best(np.logical_and.reduce(sound), means)
        picks = [_best(sound[r], values[r]) for r in range(len(rounds))]
        chosen = [(bool(sound[r, i]), float(values[r, i])) for r, i in enumerate(picks)]
        probe = self._probe(number, columns.protocol.final, overall) if number == 0 else None
        behind = [self._fits(number, each, i) for each, i in zip(rounds, picks, strict=True)]
        behind = [fit for fits in behind for fit in fits] + ([] if probe is None else [probe])
        gaps = [gap for fit in behind if (gap := certificate(fit)) is not None]
        tried = [(C, float(value)) for C, value in zip(columns.grid, means, strict=True)]
        return Verdict(
            C=columns.grid[overall],
            tried=tried,
            converged=all(bool(fit.converged_) for fit in behind),
            gap=max(gaps) if len(gaps) == len(behind) else None,
            probe=probe,
            chosen=chosen,
            test=self._pooled(number, picks),
        )

    def predictions(self, probe: Any, rows: np.ndarray, number: int = 0) -> Predictions:
        """What a probe says of rows, beside one label set's truth."""
        (scores,) = decide([probe], self.X, rows)
        return predictions_of(self.columns.label_sets[number][rows], scores, self.columns.n_classes, probe)

    def _pooled(self, number: int, picks: list[int]) -> Predictions:
        rounds = self.columns.protocol.rounds
        return pooled(
            [
                self.predictions(self._probe(number, each.mask, i), each.test, number)
                for each, i in zip(rounds, picks, strict=True)
            ]
        )

    def _probe(self, number: int, mask: int, i: int) -> Any:
        return self.probes[self.columns.where[number, mask, i]]

    def _fits(self, number: int, each: Round, i: int) -> list[Any]:
        return [self._probe(number, mask, i) for mask in [each.mask, *(mask for mask, _ in each.choosers)]]

    def _sound(self, number: int, each: Round, i: int) -> bool:
        return all(bool(fit.converged_) for fit in self._fits(number, each, i))

    def _score(self, number: int, each: Round, i: int) -> float:
        """The mean over the round's choosers; a part on which the headline is not defined has no say."""
        values = [self.scores[self.columns.where[number, mask, i], id(rows)] for mask, rows in each.choosers]
        known = [value for value in values if np.isfinite(value)]
        if not known:
            raise DataError(
                f"{self.headline} is not defined on what chooses: one class, or one value, stands there alone; "
                "take fewer folds or add examples"
            )
        return float(np.mean(known))

    def _scores(self) -> dict[tuple[int, int], float]:
        """The headline of each probe on each set of rows that it chooses by: (column, id of the rows) -> value."""
        columns, scores = self.columns, {}
        choosers = columns.protocol.choosers
        for rows in {id(rows): rows for _, rows in choosers}.values():
            masks = {mask for mask, its in choosers if its is rows}
            asked = [(number, at) for (number, mask, _), at in columns.where.items() if mask in masks]
            decisions = decide([self.probes[at] for _, at in asked], self.X, rows)
            once = np.ones((1, len(rows)))
            for (number, at), decision in zip(asked, decisions, strict=True):
                said = predictions_of(columns.label_sets[number][rows], decision, columns.n_classes)
                scores[at, id(rows)] = float(METRICS[self.headline](said, once)[0])
        return scores


def certificate(fit: Any) -> float | None:
    """How far from its optimum a fit can be, as a share of that; None where it gives no finite bound."""
    gap = getattr(fit, "gap_", None)
    return float(gap) if gap is not None and np.isfinite(gap) else None


def decide(probes: Sequence[Any], X: Tensor, rows: np.ndarray) -> list[np.ndarray]:
    """What each probe says of the rows of X [N, D]: scores [N] or [N, C], or the values [N] of a regression.

    Those of linear probes are one product.
    """
    index = torch.from_numpy(rows).to(X.device)
    if all(hasattr(probe, "coef_") for probe in probes):
        return _linear(probes, X, index)
    features = X[index]
    return [_own(probe, features) for probe in probes]


def _own(probe: Any, features: Tensor) -> np.ndarray:
    return probe.decision_function(features) if hasattr(probe, "decision_function") else probe.predict(features)


def _linear(probes: Sequence[Any], X: Tensor, index: Tensor) -> list[np.ndarray]:
    coefs = [np.atleast_2d(probe.coef_) for probe in probes]
    W = torch.from_numpy(np.concatenate(coefs)).to(X.device)
    b = torch.from_numpy(np.concatenate([np.atleast_1d(probe.intercept_) for probe in probes])).to(X.device)
    parts = [as_numpy(X[part].double() @ W.T + b) for part in index.split(ROWS_AT_ONCE)]
    said = np.concatenate(parts)
    ends = np.cumsum([len(coef) for coef in coefs])[:-1]
    return [part[:, 0] if part.shape[1] == 1 else part for part in np.split(said, ends, axis=1)]


def predictions_of(truth: np.ndarray, scores: np.ndarray, n_classes: int, probe: Any = None) -> Predictions:
    """Scores beside the truth; with probabilities where the probe gives them."""
    if n_classes == 0:
        return Predictions(truth, scores, scores, 0)
    likely = probabilities(scores) if hasattr(probe, "predict_proba") else None
    return Predictions(truth, predicted_labels(scores), scores, n_classes, likely)


def log_probabilities(scores: np.ndarray) -> np.ndarray:
    """Natural logarithms of the probabilities [N, C], from log odds [N] of two classes or the logits [N, C] of more."""
    if scores.ndim == 1:
        return -np.logaddexp(0, np.stack([scores, -scores], axis=1))
    return scores - logsumexp(scores, axis=1, keepdims=True)


def pooled(parts: Sequence[Predictions]) -> Predictions:
    """Predictions of several sets of rows as those of one, for each round's own probe.

    Scores of different probes cannot be compared as they are: their zero and their unit depend on the training rows,
    whose classes are rare where those of the round's test rows are common. So those of each round are standardised.
    What is predicted, and with which probability, stays.
    """
    if len(parts) > 1:
        parts = [replace(part, scores=_standardised(part.scores)) for part in parts]

    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if any(value is None for value in values) else np.concatenate(values)

    names = ("truth", "predicted", "scores")
    return Predictions(*map(joined, names), n_classes=parts[0].n_classes, probabilities=joined("probabilities"))


def _standardised(scores: np.ndarray) -> np.ndarray:
    """Scores [N] or [N, C] with mean 0 (of each class) and one spread; without a spread they are 0."""
    centred = scores - scores.mean(axis=0)
    spread = np.sqrt((centred**2).mean())
    return centred / spread if spread > 1e-9 * np.abs(scores).max(initial=0) else np.zeros_like(centred)


def measured(predictions: Predictions) -> dict[str, float]:
    """Every metric that is defined; of a regression Spearman's correlation is that of the scores (see `pooled`)."""
    ranked = measure(by_score(predictions), ["spearman"]) if predictions.n_classes == 0 else {}
    return {name: ranked.get(name, value) for name, value in measure(predictions).items()}


def intervals_of(bootstrap: Bootstrap, predictions: Predictions) -> dict[str, tuple[float, float]]:
    """The 95% interval of each of `measured`."""
    intervals = bootstrap.intervals(predictions)
    if predictions.n_classes == 0:
        intervals |= bootstrap.intervals(by_score(predictions), names=["spearman"])
    return intervals


def by_score(predictions: Predictions) -> Predictions:
    """A regression's predictions with its scores for values: ranks of them can be compared between rounds."""
    return replace(predictions, predicted=predictions.scores)


def read_by(predictions: Predictions, metric: str) -> Predictions:
    """The predictions as this metric reads them: a regression's ranks are those of its scores."""
    return by_score(predictions) if metric == "spearman" else predictions


def value_of(predictions: Predictions, metric: str) -> float:
    """One metric; nan where it is not defined."""
    return measure(read_by(predictions, metric), [metric]).get(metric, float("nan"))


def _best(sound: np.ndarray, values: np.ndarray) -> int:
    """The highest value of those that converged, or of all where none did; of equals the first."""
    return int(np.argmax(np.where(sound, values, -np.inf) if sound.any() else values))
