"""Scores to log odds by penalised maximum likelihood: one slope (an inverse temperature), and a bias for each class.

The penalty has a fixed size, so it vanishes as rows grow. It counts as `PRIOR_ROWS` rows whose labels follow the
probe's own probabilities or, where its scores are no log odds, the frequencies of the classes (without biases, even
ones), which keeps the slope finite where the scores separate the classes; and as half of each squared bias, which keeps
a class of few rows near the others'.

A bias is what the log odds of a row with the mean scores differ by from the log frequencies of the classes. If it were
that from even ones, or at a score of 0, the log odds of a rare class, which are far from 0, would need a bias as large,
which the penalty forbids. So the log odds of a class of 5% stayed 50 times too flat where a strong penalty on the
probe's weights had made them so, and a mean difference's scores for a class of 1% of 1,000 rows got half of their
slope, and probabilities that were 1.7 times too high on average.

Guo et al. (2017) for the temperature, Platt (1999) for slope and bias of two classes.

Axes: N rows, K scores of a row (1 for two classes, else C), C classes.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax, softmax

# In simulations of 2 and 17 classes with 24 to 1,000 rows, calibrations with 10 lost less on fresh rows where the
# probe's own probabilities were right than with 5, and gained nearly as much where the probe was three times too sure.
PRIOR_ROWS = 10.0
LEAST_FREQUENCY = 1e-12  # of a class without rows, to which the probe's own probabilities give next to nothing
NEWTON_STEPS = 100
TOLERANCE = 1e-12  # squared Newton decrement for each row, in nats


class Scale(NamedTuple):
    """What turns scores into log odds: slope * score + shift.

    Attributes:
        slope: 0 or more.
        shift: float64 [K].
        loss: the penalised sum of log losses, in nats.
    """

    slope: float
    shift: np.ndarray
    loss: float


def fit_scale(scores: np.ndarray, labels: np.ndarray, log_odds: bool, biased: bool) -> Scale:
    """The penalised maximum-likelihood slope of scores [N, K], and with `biased` a bias for each class.

    The slope is 0 where a negative one, which would reverse the probe, is more likely.

    Args:
        scores: [N, K].
        labels: int64 [N], 0..C-1.
        log_odds: whether the scores are the probe's log odds, to which the penalty then draws.
        biased: whether each class has a bias.
    """
    one_each = scores.shape[1] == 1
    logits = np.concatenate([np.zeros_like(scores), scores], axis=1) if one_each else scores.astype(np.float64)
    middle = logits.mean(axis=0) if biased else np.zeros(logits.shape[1])
    found = _Objective(logits - middle, labels, softmax(logits, axis=1) if log_odds else None, biased)
    v = found.minimum()
    bias = v[1:] + found.level - v[0] * middle
    return Scale(float(v[0]), bias[1:] - bias[:1] if one_each else bias, found.loss(v))


class _Objective:
    """The penalised log loss of a slope and C biases, `v` [1 + C], for logits [N, C].

    `level` [C] is what the biases are added to: the log frequencies of the classes, those of the prior's rows included.
    """

    def __init__(self, logits: np.ndarray, labels: np.ndarray, prior: np.ndarray | None, biased: bool):
        N, C = logits.shape
        centred = logits - logits.mean(axis=1, keepdims=True)
        self._unit = float(np.sqrt(np.mean(centred**2))) or 1.0  # steps in slopes of about 1
        self._logits, self._biased = centred / self._unit, biased
        self._weight = 1 + PRIOR_ROWS / N
        own = labels[:, None] == np.arange(C)
        if prior is None:
            prior = (own.sum(axis=0) + 1) / (N + C) if biased else np.full(C, 1 / C)
        self._targets = own + PRIOR_ROWS / N * prior
        self.level = np.zeros(C)
        if biased:
            level = np.log(np.maximum(self._targets.mean(axis=0), LEAST_FREQUENCY))
            self.level = level - level.mean()

    def minimum(self) -> np.ndarray:
        """The `v` of the lowest loss, with a slope of 0 or more."""
        v = self._descend(with_slope=True)
        v = v if v[0] >= 0 else self._descend(with_slope=False)
        return np.concatenate([v[:1] / self._unit, v[1:]])

    def loss(self, v: np.ndarray) -> float:
        """The penalised loss."""
        return self._loss(np.concatenate([v[:1] * self._unit, v[1:]]))

    def _loss(self, v: np.ndarray) -> float:
        logs = log_softmax(v[0] * self._logits + self.level + v[1:], axis=1)
        return float(-(self._targets * logs).sum() + v[1:] @ v[1:] / 2)

    def _descend(self, with_slope: bool) -> np.ndarray:
        """Newton's method with a line search from slope 0, where no probability is saturated."""
        N, C = self._logits.shape
        v = np.zeros(1 + C)
        free = np.array([with_slope, *[self._biased] * C])
        for _ in range(NEWTON_STEPS if free.any() else 0):
            g, H = self._derivatives(v)
            step = np.zeros(1 + C)
            step[free] = np.linalg.solve(H[np.ix_(free, free)] + 1e-12 * N * np.eye(free.sum()), -g[free])
            slope, now, t = float(g @ step), self._loss(v), 1.0
            while self._loss(v + t * step) > now + 1e-4 * t * slope and t > 1e-8:
                t /= 2
            v = v + t * step if t > 1e-8 else v
            if -slope <= TOLERANCE * N or t <= 1e-8:
                break
        return v

    def _derivatives(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, w = self._logits, self._weight
        p = softmax(v[0] * x + self.level + v[1:], axis=1)
        off, centred = w * p - self._targets, p * (x - (p * x).sum(axis=1, keepdims=True))
        g = np.concatenate([[(off * x).sum()], off.sum(axis=0) + v[1:]])
        H = np.empty((len(v), len(v)))
        H[0, 0], H[0, 1:], H[1:, 0] = w * (centred * x).sum(), w * centred.sum(axis=0), w * centred.sum(axis=0)
        H[1:, 1:] = w * (np.diag(p.sum(axis=0)) - p.T @ p) + np.eye(len(v) - 1)
        return g, H
