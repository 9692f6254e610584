"""The moments of rows with labels: all that ridge, LDA without a chosen shrinkage, and mean differences need.

Axes: N examples, D features, C classes.
"""

from dataclasses import dataclass, replace

import numpy as np

from probekit.errors import DataError
from probekit.probes.base import check_size
from probekit.text import listed


@dataclass(frozen=True, eq=False)
class RowMoments:
    """Float64: count N, mean [D], covariance [D, D] divided by N, class counts [C], class means [C, D]."""

    count: int
    mean: np.ndarray
    covariance: np.ndarray
    class_counts: np.ndarray
    class_means: np.ndarray

    def of_classes_with_rows(self) -> tuple[np.ndarray, "RowMoments"]:
        """The numbers of the classes that have rows, and the moments without the other classes.

        Raises:
            DataError: moments that no probe can be fitted to.
        """
        self._check_shapes()
        there = np.flatnonzero(self.class_counts)
        if len(there) < 2:
            raise DataError(f"a probe needs rows of two classes or more, got {len(there)}; add rows of another class")
        kept = replace(self, class_counts=self.class_counts[there], class_means=self.class_means[there])
        if not all(np.isfinite(x).all() for x in (kept.mean, kept.covariance, kept.class_means)):
            raise DataError("NaN or infinity in the moments; check the activations they were summed from")
        check_size(float(np.sqrt(np.abs(kept.covariance).max() + (kept.mean**2).max())))
        return there, kept

    def _check_shapes(self) -> None:
        D, C = self.mean.size, self.class_counts.size
        shapes = [x.shape for x in (self.mean, self.covariance, self.class_counts, self.class_means)]
        of_classes = self.class_counts.sum() == self.count and (self.class_counts >= 0).all()
        if shapes != [(D,), (D, D), (C,), (C, D)] or not of_classes:
            raise DataError(
                f"moments that do not agree: {self.count:,} rows, {self.class_counts.sum():g} with a class; mean, "
                f"covariance, class counts, class means of {listed([list(shape) for shape in shapes])}; sum them again"
            )
