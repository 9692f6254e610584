"""Scores of fitted probes at every token, and those of a placebo.

Axes: R rows (tokens), D width, C classes, O outputs, P places.
"""

from typing import Any

import numpy as np
from scipy.special import logsumexp
from torch import Tensor

from probekit.probes.base import as_numpy
from probekit.probes.sequence.base import text_scores
from probekit.probes.sequence.ragged import in_memory


def token_decisions(probe: Any, rows: Tensor) -> np.ndarray:
    """The decision at each row by itself: [R] for two classes or one number, [R, C] for more.

    A probe over a sequence scores each token as a text of this token alone.
    """
    if probe.of_sequences:
        return text_scores([probe], in_memory(rows, np.ones(len(rows), dtype=np.int64)))[0]
    return probe.predict(rows) if probe.predicts == "numbers" else probe.decision_function(rows)


def text_decisions(probe: Any, rows: Tensor, counts: np.ndarray) -> np.ndarray:
    """The decision for each text from its tokens: of all of them at once, or of their mean."""
    if probe.of_sequences:
        return text_scores([probe], in_memory(rows, counts))[0]
    x = as_numpy(rows).astype(np.float64)
    ends = np.cumsum(counts)
    means = np.add.reduceat(x, ends - counts) / counts[:, None]
    return token_decisions(probe, means)  # pyright: ignore[reportArgumentType]


def by_output(decision: np.ndarray, kind: str) -> np.ndarray:
    """Scores [O, R]: of the second of two classes, of each class against all others together, or of each number.

    Class k of several has its log odds, s_k minus the log of the summed exponentials of the others; where `kind` is
    "score" and not "log odds", s_k minus the largest of the others.
    """
    if decision.ndim == 1:
        return decision[None]
    if kind == "value":
        return decision.T
    against: Any = logsumexp if kind == "log odds" else np.max
    others = [against(np.delete(decision, k, axis=1), axis=1) for k in range(decision.shape[1])]
    return decision.T - np.stack(others)


def random_weights(rows: int, seed: int) -> np.ndarray:
    """Standard normal numbers [rows], of which `placebo_scores` makes the same placebo at every place."""
    return np.random.default_rng(seed).standard_normal(rows)


def placebo_scores(x: Tensor, own: np.ndarray, trained: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Scores of a random direction that varies as the probe's own scores do, [O, R].

    The direction is a sum of the centred activations of the trained tokens with random weights: a draw from the normal
    distribution with their covariance. Its scores are shifted and scaled so that over the trained tokens they have the
    mean and the standard deviation of the probe's own.

    Args:
        x: activations [R, D].
        own: the probe's scores [O, R].
        trained: which rows are trained tokens; where fewer than three are, all rows count.
        weights: one for each row.
    """
    which = trained if trained.sum() > 2 else np.ones_like(trained)
    rows = as_numpy(x).astype(np.float64)
    centred = rows - rows[which].mean(axis=0)
    score = centred @ (weights[which] @ centred[which])
    spread = score[which].std()
    score = score / spread if spread > 0 else np.zeros_like(score)
    mean, sd = own[:, which].mean(axis=1, keepdims=True), own[:, which].std(axis=1, keepdims=True)
    return mean + sd * (score - score[which].mean())
