"""Features as a solver reads them: in blocks of rows, each centred as it passes, so that no copy of them is ever made.

Centring matters in float32: a column at 3,000 times the others would otherwise cost every sum its last four digits.

Axes: N rows, D features, B rows of a block, M weightings of the rows, R directions of a basis.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.probes.threads import Shares

BLOCK_BYTES = 3 << 20  # a block of rows that stays in a processor's cache
BLOCK_OF_SCORES = 8192  # rows, where the features themselves are not read
BLOCK_ELSEWHERE = 1 << 16  # rows, on a device that wants much at once
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
        streamed: whether each pass reads the rows anew.
    """

    def __init__(self, rows: Tensor | Stream, shares: Shares):
        self._rows, self._shares = rows, shares
        self.n, self.d = rows.shape
        self.streamed = isinstance(rows, Stream)
        first = next(part for part in self._parts() if len(part))
        self.device = first.device
        self.dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self.shift = first[:2048].double().mean(dim=0).to(self.dtype)

    def _parts(self) -> Iterator[Tensor]:
        return iter([self._rows]) if isinstance(self._rows, Tensor) else self._rows.read()

    def sum(self, work: Callable[[slice, Tensor], list[Tensor]], dtype: torch.dtype) -> list[Tensor]:
        """One pass: the sums over all blocks of what `work` gives of each, in float64.

        Args:
            work: is told the rows of a block and their features minus `shift`, [B, D] in `dtype`, which are valid until
                it returns; several threads call it at once.
            dtype: of the features of a block.
        """
        total, start = _Sum(), 0
        for part in self._parts():
            for sums in self._shares(partial(self._share, work, dtype, part, start), len(part)):
                total.add(sums)
            start += len(part)
        if start != self.n:
            raise DataError(f"expected {self.n} rows of features, got {start}; say as many as the stream gives")
        return total.values

    def sum_rows(self, work: Callable[[slice], list[Tensor]], n: int | None = None) -> list[Tensor]:
        """The sums over n rows, by default all, of what `work` gives of some of them; without the features."""
        total = _Sum()
        for sums in self._shares(partial(_summed, work, size=BLOCK_OF_SCORES), self.n if n is None else n):
            total.add(sums)
        return total.values

    def _share(self, work: Callable, dtype: torch.dtype, part: Tensor, start: int, rows: slice) -> list[Tensor]:
        """What `sum` gives of some rows of a part that begins at row `start`."""
        size = BLOCK_ELSEWHERE if part.is_cuda else max(64, BLOCK_BYTES // (self.d * dtype.itemsize))
        room, shift = part.new_empty(min(size, rows.stop - rows.start), self.d, dtype=dtype), self.shift.to(dtype)

        def centred(here: slice) -> list[Tensor]:
            X = room[: here.stop - here.start]
            if part.dtype == dtype:
                torch.sub(part[here], shift, out=X)
            else:  # converted first: the difference of two float32 is exact in float64 alone
                X.copy_(part[here]).sub_(shift)
            return work(slice(start + here.start, start + here.stop), X)

        return _summed(centred, rows, size)


class _Sum:
    """Running sums in float64 of lists of tensors."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def add(self, values: list[Tensor]) -> None:
        if self.values:
            for total, value in zip(self.values, values, strict=True):
                total += value
        else:
            self.values = [value.double() for value in values]


def _summed(work: Callable[[slice], list[Tensor]], rows: slice, size: int) -> list[Tensor]:
    """The sums of what `work` gives of `rows`, some at a time."""
    total = _Sum()
    for first in range(rows.start, rows.stop, size):
        total.add(work(slice(first, min(first + size, rows.stop))))
    return total.values


@dataclass(frozen=True, eq=False)
class Scaling:
    """Of each of M weightings: the sum of the weights [M], and mean and scale of the features [M, D], about the shift.

    A column that never varies has the inverse scale 0.
    """

    total: Tensor
    mean: Tensor
    inverse_scale: Tensor


def scaling_of(features: Features, weights: Tensor, standardise: bool) -> tuple[Scaling, Tensor]:
    """The moments under weights [N, M], float64, and a sample of the rows [S, D] (minus the shift).

    Raises:
        DataError: NaN or infinity in the features.
    """
    step, picked = max(1, features.n // _sample_size(features.d)), {}

    def block(rows: slice, X: Tensor) -> list[Tensor]:
        W = weights[rows]
        picked[rows.start] = X[-rows.start % step :: step].to(features.dtype, copy=True)
        return [W.T @ X, W.T @ X.square()]

    first, second = features.sum(block, torch.float64)  # a mean may lie far from the shift: it is of other rows
    if not torch.isfinite(second).all():
        raise DataError("NaN or infinity in the features; check the activations, or extract again in float32")
    total = weights.sum(dim=0)
    mean, square = first / total[:, None], second / total[:, None]
    variance = square - mean.square()
    varies = variance > CONSTANT * square
    scale = variance.clamp_min(0).sqrt() if standardise else torch.ones_like(variance)
    inverse = torch.where(varies, 1 / scale.where(varies, 1), 0)
    return Scaling(total, mean, inverse), torch.cat([rows for _, rows in sorted(picked.items())])


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


def basis(features: Features, sample: Tensor, inverse_scale: Tensor) -> Basis:
    """The eigenvectors of the covariance of a sample of rows [S, D], each column times its inverse scale [D].

    A sample that spans less than all directions flatters those that it spans, so half of it only measures the
    variances; unless it is all there is: then there is no variance elsewhere.
    """
    S, D = sample.shape
    whole = features.n == S
    Z = (sample - sample.mean(dim=0)) * inverse_scale.to(sample.dtype)
    if S >= SAMPLE_PER_FEATURE * D or (whole and S >= D):
        values, vectors = _eigh(_gram(features, Z) / S)
        return Basis(vectors, values.clamp_min(0), 0.0)
    if whole:
        return Basis(*_span(features, Z.double()), 0.0)  # no rest: a direction that leaks there would take over
    vectors, _ = _span(features, Z[::2])
    measured = Z[1::2].double()
    values, total = (measured @ vectors).square().mean(dim=0), measured.square().mean(dim=0).sum()
    return Basis(vectors, values, float((total - values.sum()).clamp_min(0)) / max(1, D - len(values)))


def _span(features: Features, Z: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal directions [D, R] that span rows [S, D] with S < D, and the variance along each [R]."""
    values, U = _eigh(_gram(features, Z.T) / len(Z))
    kept = values > 1e-6 * values[-1].clamp_min(torch.finfo(values.dtype).tiny)
    return Z.T.double() @ (U[:, kept] / (values[kept] * len(Z)).sqrt()), values[kept]


def _gram(features: Features, X: Tensor) -> Tensor:
    """X'X in float64, from blocks in X's own type."""
    (total,) = features.sum_rows(lambda rows: [X[rows].T @ X[rows]], len(X))
    return total


def _eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    exact = len(A) <= WIDE
    values, vectors = torch.linalg.eigh(A if exact else A.float())
    return values.double(), vectors.double()
