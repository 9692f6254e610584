"""Probes that need only the moments of the rows, which extraction can sum as it runs.

Axes: N examples, D features, C classes.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from torch import Tensor

from probekit.probes.base import LinearProbe, as_numpy
from probekit.probes.problem import ProblemSet
from probekit.probes.row_moments import RowMoments
from probekit.probes.stream import Stream, take_some
from probekit.probes.stream_sums import class_moments


class MomentsProbe(LinearProbe):
    """A probe that can be fitted to moments instead of rows.

    Attributes:
        of_means: whether the classes' counts and means are all it needs.
    """

    streams = True
    of_means: bool = False

    def fit_many(self, X: Tensor | Stream, problems: ProblemSet) -> Sequence[Self]:
        """A probe for each problem; see `Probe.fit_many`. Of a stream, from its moments."""
        if not isinstance(X, Stream):
            return super().fit_many(X, problems)
        probes = self._copies(problems)
        for problem, probe in zip(problems.problems, probes, strict=True):
            labels = problems.labels[problem.label]
            rows = self._rows(labels, problems.weightings[problem.weighting])
            features = X if rows is None else take_some(X, rows)
            y = labels.values if rows is None else labels.values[rows]
            if isinstance(features, Stream):
                probe.classes_, probe.n_features_in_ = np.arange(labels.n_classes), X.d
                probe.coef_, probe.intercept_ = probe._solve_stream(features, y)
            else:
                probe.fit(features, y)
        return probes

    def _solve_stream(self, X: Stream, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights [1 or C, D] and intercepts [1 or C], as `_solve` would give on the rows; labels are 0..C-1."""
        moments = class_moments(X, labels, len(self.classes_), not self.of_means)
        return self._solve_moments(moments)

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

    def _solve_moments(self, moments: RowMoments) -> tuple[np.ndarray, np.ndarray]:
        """Weights [1 or C, D] and intercepts [1 or C], as `_solve` would give on the rows."""
        raise NotImplementedError
