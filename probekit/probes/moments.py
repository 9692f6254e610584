"""Probes that need only the moments of the rows, which extraction can sum as it runs.

Axes: N examples, D features, C classes.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from probekit.errors import DataError
from probekit.probes.base import LinearProbe, as_numpy, check_size
from probekit.text import listed


class MomentsProbe(LinearProbe):
    """A probe that can be fitted to moments instead of rows."""

    def fit_statistics(self, count: int, mean: Any, covariance: Any, class_counts: Any, class_means: Any) -> Self:
        """Fit to the moments of N rows with labels 0..C-1; the same probe as `fit` on the rows.

        Args:
            count: N.
            mean: [D].
            covariance: [D, D], divided by N.
            class_counts: rows of each class, [C]; a class without rows is left out of `classes_`, as by `fit`.
            class_means: [C, D].

        Raises:
            DataError: fewer than two classes with rows, shapes that do not agree, NaN or infinity.
        """
        given = (as_numpy(x) for x in (mean, covariance, class_counts, class_means))
        every = RowMoments(int(count), *(np.asarray(x, dtype=np.float64) for x in given))
        self.classes_, moments = every.of_classes_with_rows()
        self.n_features_in_ = len(moments.mean)
        self.coef_, self.intercept_ = self._solve_moments(moments)
        return self

    def _solve_moments(self, moments: "RowMoments") -> tuple[np.ndarray, np.ndarray]:
        """Weights [1 or C, D] and intercepts [1 or C], as `_solve` would give on the rows."""
        raise NotImplementedError


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
