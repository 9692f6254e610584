"""Percentile bootstrap intervals (Efron 1979), by example or by group, of every metric at once.

Where every answer is right, or every one wrong, no resample differs from the next; the accuracy's interval is then the
exact one (Clopper and Pearson 1934).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from probekit.evaluation.metrics import METRICS, Predictions, weighted_metrics

RESAMPLES = 1000
LEVEL = 0.95
_CHUNK = 250_000  # weights held at once


@dataclass(frozen=True)
class Bootstrap:
    """Resamples of N examples: the same ones each time it is used, so that layers are compared on equal terms.

    Attributes:
        n: how many examples there are.
        seed: of the resamples.
        groups: [N] or None; when given, whole groups are drawn, since their members are not independent.
        resamples: how many.
    """

    n: int
    seed: int = 0
    groups: np.ndarray | None = None
    resamples: int = RESAMPLES

    def intervals(self, predictions: Predictions, level: float = LEVEL) -> dict[str, tuple[float, float]]:
        """The central `level` of each metric over the resamples: name -> (low, high).

        Resamples that leave a metric undefined are left out; a metric that none defines has no interval.
        """
        right = predictions.predicted == predictions.truth
        chunks = [weighted_metrics(predictions, W) for W in self.weights()]
        tail = (1 - level) / 2
        intervals = {}
        for name in METRICS:
            values = np.concatenate([chunk[name] for chunk in chunks])
            values = values[np.isfinite(values)]
            if len(values):
                low, high = np.quantile(values, [tail, 1 - tail])
                intervals[name] = (float(low), float(high))
        if right.all():
            intervals["accuracy"] = (tail ** (1 / self.n_units), 1.0)
        elif not right.any():
            intervals["accuracy"] = (0.0, 1 - tail ** (1 / self.n_units))
        return intervals

    @property
    def n_units(self) -> int:
        """How many examples, or groups, are drawn."""
        return self.n if self.groups is None else len(np.unique(self.groups))

    def weights(self) -> Iterator[np.ndarray]:
        """How often each example stands in each resample, a few resamples at a time: float [S, N]."""
        rng = np.random.default_rng(self.seed)
        members = np.arange(self.n) if self.groups is None else np.unique(self.groups, return_inverse=True)[1].ravel()
        n_units = self.n_units
        step = max(1, _CHUNK // self.n)
        for start in range(0, self.resamples, step):
            size = min(step, self.resamples - start)
            drawn = rng.integers(n_units, size=(size, n_units)) + n_units * np.arange(size)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=size * n_units).reshape(size, n_units)
            yield counts[:, members].astype(np.float64)
