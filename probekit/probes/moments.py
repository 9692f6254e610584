"""Moments of rows with labels: all that ridge, LDA and mean differences need, whoever summed them.

`RowMoments` may come from extraction, which sums as it runs (`fit_statistics`), or from a stream of rows that memory
cannot hold. There means come first, and everything else is summed around them in a second pass, as for rows in memory:
products of rows that are far from 0 would lose their last digits. Everything is float64.

Axes: N rows, D features, C classes, T targets, B rows of a block.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.machine.threads import shares
from probekit.probes.base import LinearProbe, as_numpy, check_size, scale_of
from probekit.probes.logistic.features import Features
from probekit.probes.problem import Labels
from probekit.probes.stream import SparseRows, Stream, with_numbers
from probekit.text import listed

SHARE_OF_GRAMS = 40  # of the room: the matrices of as many classes as this allows are summed in one pass
GRAMS = 1 << 28  # bytes of them where the room is unknown


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
        D, C = self.mean.size, self.class_counts.size
        shapes = [x.shape for x in (self.mean, self.covariance, self.class_counts, self.class_means)]
        of_classes = self.class_counts.sum() == self.count and (self.class_counts >= 0).all()
        if shapes != [(D,), (D, D), (C,), (C, D)] or not of_classes:
            raise DataError(
                f"moments that do not agree: {self.count:,} rows, {self.class_counts.sum():g} with a class; mean, "
                f"covariance, class counts, class means of {listed([list(shape) for shape in shapes])}; sum them again"
            )
        there = np.flatnonzero(self.class_counts)
        if len(there) < 2:
            raise DataError(f"a probe needs rows of two classes or more, got {len(there)}; add rows of another class")
        kept = replace(self, class_counts=self.class_counts[there], class_means=self.class_means[there])
        if not all(np.isfinite(x).all() for x in (kept.mean, kept.covariance, kept.class_means)):
            raise DataError("NaN or infinity in the moments; check the activations they were summed from")
        check_size(float(np.sqrt(np.abs(kept.covariance).max() + (kept.mean**2).max())))
        return there, kept

    def within_classes(self, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The class means [C, D] and the covariance within classes [D, D] of features divided by a scale [D]."""
        means = (self.class_means - self.mean) / scale
        between = (self.class_counts * means.T) @ means / self.count
        return means, self.covariance / scale / scale[:, None] - between


class MomentsProbe(LinearProbe):
    """A probe that can be fitted to moments instead of rows.

    Attributes:
        of_means: whether the classes' counts and means are all it needs.
    """

    streams = True
    of_means: bool = False

    @property
    def reads_sparse(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the classes' means are enough, which a sparse matrix gives as it is."""
        return self.of_means

    def _fit_rows(self, X: Tensor | Stream, labels: Labels, weights: np.ndarray | None) -> None:
        """Of a stream, from its moments."""
        if isinstance(X, Stream):
            self.classes_, self.n_features_in_ = np.arange(labels.n_classes), X.d
            self.coef_, self.intercept_ = self._solve_stream(X, labels.values)
        else:
            super()._fit_rows(X, labels, weights)

    def _solve_stream(self, X: Stream, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights [1 or C, D] and intercepts [1 or C], as `_solve` would give on the rows; labels are 0..C-1."""
        return self._solve_moments(class_moments(X, labels, len(self.classes_), not self.of_means))

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


@dataclass(frozen=True, eq=False)
class StandardisedSums:
    """With Z the standardised rows and Y the targets: Z'Z [D, D], Z'Y [D, T], and mean and scale of the rows [D]."""

    gram: Tensor
    loadings: Tensor
    mean: np.ndarray
    scale: np.ndarray


def standardised_sums(X: Stream, targets: Tensor, standardise: bool) -> StandardisedSums:
    """The sums for float64 targets [N, T].

    Raises:
        DataError: NaN or infinity in the features.
    """
    Y = targets if X.order is None else targets[torch.from_numpy(X.order)]
    (sums,), shift = _summed(X, lambda rows, Z: [Z.sum(dim=0)])
    mean = shift + sums / X.n
    check_finite(mean)
    gram, loadings = _centred(X, lambda rows, Z: [Z.T @ Z, Z.T @ Y[rows]], mean)
    scale = scale_of((gram.diagonal() / X.n).numpy(), mean.numpy(), X.n, standardise)
    by = torch.from_numpy(scale)
    return StandardisedSums(gram / by / by[:, None], loadings / by[:, None], mean.numpy(), scale)


def triangle_of(X: Stream, targets: Tensor, mean: np.ndarray, scale: np.ndarray) -> Tensor:
    """The triangle R of the QR decomposition of [Z, Y]: R'R = [Z, Y]'[Z, Y], with at most D + T rows."""
    R = torch.empty(0, X.d + targets.shape[1], dtype=torch.float64)
    for rows, block in with_numbers(X):
        Z = (block.double() - torch.from_numpy(mean)) / torch.from_numpy(scale)
        both = torch.cat([Z, targets[torch.from_numpy(rows)]], dim=1)
        R = torch.linalg.qr(torch.cat([R, both]), mode="r")[1]
    return R


def class_moments(X: Stream, labels: np.ndarray, n_classes: int, covariance: bool = True) -> RowMoments:
    """The moments of rows with labels 0..C-1 [N]; without `covariance` that is empty.

    Raises:
        DataError: NaN or infinity in the features.
    """
    counts, means = class_means(X, labels, n_classes)
    mean = counts @ means / X.n
    if not covariance:
        return RowMoments(X.n, mean, np.empty((0, 0)), counts, means)
    (S,) = _centred(X, lambda rows, Z: [Z.T @ Z], torch.from_numpy(mean))
    return RowMoments(X.n, mean, S.numpy() / X.n, counts, means)


def class_means(X: Stream, labels: np.ndarray, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each class [C], and their means [C, D]."""
    y, counts = _in_order(X, labels), np.bincount(labels, minlength=n_classes).astype(np.float64)
    if isinstance(X, SparseRows):
        sums = np.stack([X.matrix[labels == k].sum(axis=0, dtype=np.float64) for k in range(n_classes)])
        means = torch.from_numpy(sums / counts[:, None])
        check_finite(means)
        return counts, means.numpy()

    def block(rows: slice, Z: Tensor) -> list[Tensor]:
        return [Z.new_zeros(n_classes, X.d).index_add_(0, y[rows], Z)]

    (sums,), shift = _summed(X, block)
    means = shift + sums / torch.from_numpy(counts)[:, None]
    check_finite(means)
    return counts, means.numpy()


def squares_around(X: Stream, mean: np.ndarray) -> np.ndarray:
    """The sum over the rows of each feature's squared distance from a mean [D]: [D]."""
    if isinstance(X, SparseRows):
        there = np.bincount(X.matrix.indices, minlength=X.d)
        distances = np.square(X.matrix.data - mean[X.matrix.indices])
        return np.bincount(X.matrix.indices, distances, minlength=X.d) + (X.n - there) * np.square(mean)
    (squares,) = _centred(X, lambda rows, Z: [Z.square().sum(dim=0)], torch.from_numpy(mean))
    return squares.numpy()


@dataclass(frozen=True, eq=False)
class WithinClasses:
    """The shrunk covariance within classes of standardised rows, as LDA has it, and what standardises them."""

    covariance: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    class_means: np.ndarray
    class_counts: np.ndarray


def within_classes(X: Stream, labels: np.ndarray, n_classes: int, standardise: bool) -> WithinClasses:
    """The mean of the classes' covariances, weighted by their rows, each shrunk by Ledoit and Wolf's amount.

    As `sklearn.discriminant_analysis`: a class is standardised by itself, shrunk towards a multiple of the identity,
    and scaled back.
    """
    y, (counts, means) = _in_order(X, labels), class_means(X, labels, n_classes)
    mean = counts @ means / X.n
    scale = scale_of(squares_around(X, mean) / X.n, mean, X.n, standardise)
    own, room = torch.from_numpy(means), GRAMS if X.room is None else X.room // SHARE_OF_GRAMS
    within, at_once = np.zeros((X.d, X.d)), max(1, room // (8 * X.d**2))
    for first in range(0, n_classes, at_once):
        some = range(first, min(first + at_once, n_classes))

        def grams(rows: slice, Z: Tensor, some: range = some) -> list[Tensor]:
            parts = (Z[y[rows] == k] - own[k] for k in some)
            return [part.T @ part for part in parts]

        found = {
            k: G.numpy() / counts[k] / scale / scale[:, None] for k, G in zip(some, _centred(X, grams), strict=True)
        }
        spreads = {k: scale_of(S.diagonal(), (means[k] - mean) / scale, int(counts[k])) for k, S in found.items()}
        # 1 where a feature is constant within the class, as `StandardScaler` has it
        spreads = {k: np.where(np.isfinite(spread), spread, 1.0) for k, spread in spreads.items()}
        fourth = _fourth_moments(X, y, own, {k: spread * scale for k, spread in spreads.items()})
        for k, S in found.items():
            back = np.outer(spreads[k], spreads[k])
            own_S = S / back
            shrunk = towards_identity(own_S, ledoit_wolf(own_S, fourth[k], counts[k]))
            within += counts[k] / X.n * back * shrunk
    return WithinClasses(within, mean, scale, means, counts)


def _fourth_moments(X: Stream, y: Tensor, means: Tensor, scales: dict[int, np.ndarray]) -> np.ndarray:
    """For each class, the mean over its rows of the fourth power of their length, once scaled: [C]."""
    inverse = torch.zeros_like(means)
    for k, scale in scales.items():
        inverse[k] = torch.from_numpy(1 / scale)

    def block(rows: slice, Z: Tensor) -> list[Tensor]:
        lengths = ((Z - means[y[rows]]) * inverse[y[rows]]).square().sum(dim=1)
        return [Z.new_zeros(len(means)).index_add_(0, y[rows], lengths.square())]

    (sums,) = _centred(X, block)
    return sums.numpy() / np.bincount(y.numpy(), minlength=len(means))


def ledoit_wolf(S: np.ndarray, fourth: float, n: float) -> float:
    """Ledoit and Wolf's (2004) amount of shrinkage of a covariance [D, D] of n rows.

    Args:
        S: the covariance.
        fourth: the mean over the rows of the fourth power of their length.
        n: how many independent rows there are.
    """
    D, size, trace = len(S), float(np.square(S).sum()), float(np.trace(S))
    distance = (size - trace**2 / D) / D
    noise = min((fourth - size) / (D * n), distance)
    return float(np.clip(noise / distance, 0, 1)) if distance > 0 else 1.0


def towards_identity(covariance: np.ndarray, shrinkage: float) -> np.ndarray:
    """(1 - shrinkage) S + shrinkage (tr S / D) I. Linear in S, so the classes' mean can be shrunk at once."""
    D = len(covariance)
    return (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / D * np.eye(D)


def _in_order(X: Stream, labels: np.ndarray) -> Tensor:
    """The labels of the rows as they are read, int64 [N]."""
    return torch.from_numpy(np.asarray(labels if X.order is None else labels[X.order], dtype=np.int64))


def check_finite(mean: Tensor) -> None:
    """Raise a DataError unless the mean of the features is finite."""
    if not torch.isfinite(mean).all():
        raise DataError("NaN or infinity in the features; check the activations, or extract again in float32")


def _centred(X: Stream, work: Callable[[slice, Tensor], list[Tensor]], mean: Tensor | None = None) -> list[Tensor]:
    """One pass: the sums of what `work` returns for the rows of a block minus a mean [D], or as they are."""
    with shares(parallel=True) as by_thread:
        features = Features(X, by_thread)
        offset = features.shift.double() - (0 if mean is None else mean)
        return features.sum(lambda rows, Z: work(rows, Z.add_(offset)), torch.float64)


def _summed(X: Stream, work: Callable[[slice, Tensor], list[Tensor]]) -> tuple[list[Tensor], Tensor]:
    """One pass: the sums of what `work` returns for the rows of a block minus a shift, and the shift [D]."""
    with shares(parallel=True) as by_thread:
        features = Features(X, by_thread)
        return features.sum(work, torch.float64), features.shift.double()
