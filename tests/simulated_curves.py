"""Curves of simulated layers whose true accuracies are known."""

import numpy as np
from scipy.stats import binom, norm

from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions, metrics_of

WORLDS = 150


def curve(seed: int, n: int, accuracies, size=1) -> tuple[list[Predictions], np.ndarray | None]:
    """Layers of these accuracies with noise correlated 0.8 from one to the next; groups of `size` share a class."""
    rng = np.random.default_rng([seed, n])
    group = np.arange(n) // size
    truth, error, layers = rng.integers(2, size=n)[group], rng.normal(size=n), []
    for accuracy in accuracies:
        scores = 2 * norm.ppf(accuracy) * (truth - 0.5) + error
        layers.append(Predictions(truth, (scores > 0).astype(int), scores, 2))
        error = 0.8 * error + 0.6 * rng.normal(size=n)
    return layers, None if size == 1 else group


def values_of(layers: list[Predictions], bootstrap: Bootstrap, metric="accuracy") -> tuple[np.ndarray, np.ndarray]:
    values = np.array([metrics_of(p, [metric])[metric] for p in layers])
    return values, np.stack([bootstrap.resampled(p, metric) for p in layers])


def covers(inside: int, share=0.95) -> bool:
    """Whether this many of `WORLDS` can come of `share`; wrongly not once in 10,000 times."""
    low, high = binom.ppf([5e-5, 1 - 5e-5], WORLDS, share)
    return low <= inside <= high


def apart(seed: int, n_groups: int, n_layers: int) -> tuple[list[Predictions], np.ndarray]:
    """100 examples; half of the variance of each layer's noise is its group's."""
    rng = np.random.default_rng([seed, n_groups])
    groups, truth = np.arange(100) * n_groups // 100, np.arange(100) % 2
    noise = rng.normal(size=(n_layers, 100)) + rng.normal(size=(n_layers, n_groups))[:, groups]
    scores = np.where(truth == 1, 1, -1) * (np.sqrt(2) * norm.ppf(0.8) + noise)
    return [Predictions(truth, (each > 0).astype(int), each, 2) for each in scores], groups
