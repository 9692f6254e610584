"""Sums over a stream of rows, in float64: what ridge, LDA and mean differences need of rows that memory cannot hold.

Means come first, and everything else is summed around them in a second pass, as for rows in memory: products of rows
that are far from 0 would lose their last digits.

Axes: N rows, D features, C classes, T targets, B rows of a block.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.machine.threads import shares
from probekit.probes.base import scale_of
from probekit.probes.logistic.features import Features
from probekit.probes.row_moments import RowMoments
from probekit.probes.stream import Stream, with_numbers

SHARE_OF_GRAMS = 40  # of the room: the matrices of as many classes as this allows are summed in one pass
GRAMS = 1 << 28  # bytes of them where the room is unknown


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
    mean = _mean(X)
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
    """The moments of rows with labels 0..C-1 [N]; without `covariance` that is left 0.

    Raises:
        DataError: NaN or infinity in the features.
    """
    counts, means = class_means(X, labels, n_classes)
    mean = counts @ means / X.n
    S = torch.zeros(X.d, X.d, dtype=torch.float64)
    if covariance:
        (S,) = _centred(X, lambda rows, Z: [Z.T @ Z], torch.from_numpy(mean))
    return RowMoments(X.n, mean, S.numpy() / X.n, counts, means)


def class_means(X: Stream, labels: np.ndarray, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each class [C], and their means [C, D]."""
    y, counts = _in_order(X, labels), np.bincount(labels, minlength=n_classes).astype(np.float64)

    def block(rows: slice, Z: Tensor) -> list[Tensor]:
        return [Z.new_zeros(n_classes, X.d).index_add_(0, y[rows], Z)]

    (sums,), shift = _summed(X, block)
    means = shift + sums / torch.from_numpy(counts)[:, None]
    _check_finite(means)
    return counts, means.numpy()


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
    (squares,) = _centred(X, lambda rows, Z: [Z.square().sum(dim=0)], torch.from_numpy(mean))
    scale = scale_of(squares.numpy() / X.n, mean, X.n, standardise)
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
        spreads = {k: _spread(S.diagonal(), (means[k] - mean) / scale, counts[k]) for k, S in found.items()}
        fourth = _fourth_moments(X, y, own, {k: spread * scale for k, spread in spreads.items()})
        for k, S in found.items():
            back = np.outer(spreads[k], spreads[k])
            within += counts[k] / X.n * back * _shrunk(S / back, fourth[k], counts[k])
    return WithinClasses(within, mean, scale, means, counts)


def _spread(variance: np.ndarray, mean: np.ndarray, n: float) -> np.ndarray:
    """The standard deviations within a class, 1 where it is constant (as `StandardScaler`)."""
    spread = scale_of(variance, mean, int(n))
    return np.where(np.isfinite(spread), spread, 1.0)


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


def _shrunk(S: np.ndarray, fourth: float, n: float) -> np.ndarray:
    """A covariance [D, D] of n rows, shrunk (Ledoit and Wolf 2004); `fourth` is of the rows' lengths."""
    D = len(S)
    if D == 1:
        return S
    size, average = float(np.square(S).sum()), float(np.trace(S)) / D
    distance = (size - D * average**2) / D
    noise = min((fourth - size) / (D * n), distance)
    weight = 0.0 if noise == 0 else noise / distance
    return (1 - weight) * S + weight * average * np.eye(D)


def _in_order(X: Stream, labels: np.ndarray) -> Tensor:
    """The labels of the rows as they are read, int64 [N]."""
    return torch.from_numpy(np.asarray(labels if X.order is None else labels[X.order], dtype=np.int64))


def _mean(X: Stream) -> Tensor:
    (sums,), shift = _summed(X, lambda rows, Z: [Z.sum(dim=0)])
    mean = shift + sums / X.n
    _check_finite(mean)
    return mean


def _check_finite(mean: Tensor) -> None:
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
