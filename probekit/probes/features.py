"""Features as a solver reads them: in blocks of rows, each centred as it passes, so that no copy of them is ever made.

Centring matters in float32: a column at 3,000 times the others would otherwise cost every sum its last four digits.

Axes: N rows, D features, B rows of a block, M weightings of the rows, R directions of a basis.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError

BLOCK = {"cpu": 2048}  # rows at once: a block of them stays in the processor's cache
BLOCK_ELSEWHERE = 65536
# of the sample from which the basis is computed: enough for its eigenvalues to be right within some 25%
SAMPLE_PER_FEATURE = 16
WIDE = 1024  # features; beyond, a basis of as many directions as half of `WIDE_SAMPLE` rows span is far cheaper
WIDE_SAMPLE = 4096
CONSTANT = 1e-12  # of a column's mean square about the middle of all rows: less variance than that is none


@dataclass(frozen=True, eq=False)
class Stream:
    """Features that do not fit the memory.

    Attributes:
        n: N.
        d: D.
        read: gives the rows anew each time it is called, some thousands at once, always in the same order: [B, D].
        order: int64 [N], which row of the labels each row belongs to; None where they come in the labels' order.
    """

    n: int
    d: int
    read: Callable[[], Iterator[Tensor]]
    order: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return self.n, self.d


class Features:
    """Features [N, D] minus a point near their mean, in blocks.

    Attributes:
        shift: [D], the point, in `dtype` and so subtracted exactly.
        dtype: what sums over rows are computed in: float64 for float64 features, float32 for all else.
        device: where the rows are.
    """

    def __init__(self, rows: Tensor | Stream):
        self._rows = rows
        self.n, self.d = rows.shape
        first = next(self._read())
        self.device = first.device
        self.dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self.shift = first[: BLOCK["cpu"]].double().mean(dim=0).to(self.dtype)

    def _read(self) -> Iterator[Tensor]:
        return iter([self._rows]) if isinstance(self._rows, Tensor) else self._rows.read()

    def blocks(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """Every block: its rows, and their features minus `shift`, [B, D] in `dtype`, valid until the next block."""
        size = BLOCK.get(self.device.type, BLOCK_ELSEWHERE)
        shift = self.shift.to(dtype)
        room = torch.empty(min(size, self.n), self.d, dtype=dtype, device=self.device)
        start = 0
        for part in self._read():
            for rows in part.split(size):
                here = room[: len(rows)]
                if rows.dtype == dtype:
                    torch.sub(rows, shift, out=here)
                else:  # converted first: the difference of two float32 is exact in float64 alone
                    here.copy_(rows).sub_(shift)
                yield slice(start, start + len(rows)), here
                start += len(rows)


@dataclass(frozen=True, eq=False)
class Moments:
    """Of each of M weightings: the sum of the weights [M], and mean and scale of the features [M, D], about the shift.

    A column that never varies has the inverse scale 0.
    """

    total: Tensor
    mean: Tensor
    inverse_scale: Tensor


def moments(features: Features, weights: Tensor, standardise: bool) -> tuple[Moments, Tensor]:
    """The moments under weights [N, M], float64, and a sample of the rows [S, D] (minus the shift).

    Raises:
        DataError: NaN or infinity in the features.
    """
    M, D = weights.shape[1], features.d
    first, second = (torch.zeros(M, D, dtype=torch.float64, device=features.device) for _ in range(2))
    step, sample = max(1, features.n // _sample_size(D)), []
    for rows, X in features.blocks(features.dtype):
        W = weights[rows].to(X.dtype)
        first += W.T @ X
        second += W.T @ X.square()
        sample.append(X[-rows.start % step :: step].clone())
    if not torch.isfinite(second).all():
        raise DataError("NaN or infinity in the features; check the activations, or extract again in float32")
    total = weights.sum(dim=0)
    mean, square = first / total[:, None], second / total[:, None]
    variance = square - mean.square()
    varies = variance > CONSTANT * square
    scale = variance.clamp_min(0).sqrt() if standardise else torch.ones_like(variance)
    inverse = torch.where(varies, 1 / scale.where(varies, 1), 0)
    return Moments(total, mean, inverse), torch.cat(sample)


def _sample_size(d: int) -> int:
    return SAMPLE_PER_FEATURE * d if d <= WIDE else WIDE_SAMPLE


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions in which the features' covariance is nearly diagonal.

    Attributes:
        vectors: [D, R], orthonormal, float64.
        values: [R], the variance along each.
        rest: the mean variance of what is orthogonal to all of them.
    """

    vectors: Tensor
    values: Tensor
    rest: float


def basis(sample: Tensor, inverse_scale: Tensor, whole: bool) -> Basis:
    """The eigenvectors of the covariance of rows [S, D], each column times its inverse scale [D].

    A sample that spans less than all directions flatters those that it spans, so half of it only measures the
    variances; unless it is `whole`: then there is no variance elsewhere.
    """
    S, D = sample.shape
    Z = (sample - sample.mean(dim=0)) * inverse_scale.to(sample.dtype)
    if S >= SAMPLE_PER_FEATURE * D or (whole and S >= D):
        values, vectors = _eigh(_gram(Z) / S)
        return Basis(vectors, values.clamp_min(0), 0.0)
    if whole:
        return Basis(*_span(Z), 0.0)
    vectors, _ = _span(Z[::2])
    measured = Z[1::2].double()
    values, total = (measured @ vectors).square().mean(dim=0), measured.square().mean(dim=0).sum()
    return Basis(vectors, values, float((total - values.sum()).clamp_min(0)) / max(1, D - len(values)))


def _span(Z: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal directions [D, R] that span rows [S, D] with S < D, and the variance along each [R]."""
    values, U = _eigh(_gram(Z.T) / len(Z))
    kept = values > 1e-6 * values[-1].clamp_min(torch.finfo(values.dtype).tiny)
    return Z.T.double() @ (U[:, kept] / (values[kept] * len(Z)).sqrt()), values[kept]


def _gram(X: Tensor) -> Tensor:
    """X'X in float64, from blocks in X's own type."""
    total = torch.zeros(X.shape[1], X.shape[1], dtype=torch.float64, device=X.device)
    for rows in X.split(8192):
        # numpy's product of an array with itself computes one triangle, torch's both
        total += torch.from_numpy(rows.T.numpy() @ rows.numpy()) if X.device.type == "cpu" else rows.T @ rows
    return total


def _eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    exact = len(A) <= WIDE
    values, vectors = torch.linalg.eigh(A if exact else A.float())
    return values.double(), vectors.double()


def on_device(x: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    """An array or a tensor as a tensor of this type, there."""
    return torch.as_tensor(x, dtype=dtype, device=device)
