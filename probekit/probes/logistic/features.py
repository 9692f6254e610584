"""Features in blocks of rows, each centred when it is read, so that the features are never copied.

Centring matters in float32: with a column 3,000 times the others, every sum would lose its last four digits.

Axes: N rows, D features, B rows of a block, M weightings of the rows, R directions of a basis.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.machine.threads import Shares
from probekit.probes.problem import LARGEST
from probekit.probes.stream import Stream

BLOCK_BYTES = 3 << 20  # a block of rows that fits a processor's cache
BLOCK_OF_SCORES = 8192  # rows, for sums that do not read the features
BLOCK_ELSEWHERE = 1 << 16  # rows, on a GPU
NUMBERS_FOR_SHIFT, ROWS_FOR_SHIFT = 1 << 21, 2048  # at most, whose mean is the shift
SAMPLE_PER_FEATURE = 16  # rows that the basis is computed from: its eigenvalues are then right to about 25%
SHARE = 1 / 3  # of many rows, up to MOST_PER_FEATURE: it saves two of 14 passes at 67,000 x 768 (measured)
MOST_PER_FEATURE = 32
WIDE = 1024  # features; for more, the basis spans only half of WIDE_SAMPLE rows, which is far cheaper
WIDE_SAMPLE = 4096
FLOAT32 = 1e15  # sizes and inverse scales of columns that float32 can sum and multiply with room to spare
CONSTANT = 1e-12  # share of a column's mean square about the shift; a smaller variance counts as 0

Array = TypeVar("Array", Tensor, np.ndarray)


class Features:
    """Features [N, D] minus a point near their mean, in blocks.

    Attributes:
        shift: [D], the point, in `dtype`.
        dtype: the type of sums over rows: float64 for float64 features, float32 for others.
        device: of the rows.
        streamed: whether each pass reads the rows again.
    """

    def __init__(self, rows: Tensor | Stream, shares: Shares):
        self._rows, self._shares = rows, shares
        self.n, self.d = rows.shape
        self.streamed = isinstance(rows, Stream)
        first = next(self._parts())
        self.device = first.device
        self.dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        some = min(ROWS_FOR_SHIFT, max(1, NUMBERS_FOR_SHIFT // max(1, self.d)))
        self.shift = first[:some].double().mean(dim=0).to(self.dtype)

    def widen(self) -> None:
        """Sum in float64 from now on."""
        self.dtype, self.shift = torch.float64, self.shift.double()

    def _parts(self) -> Iterator[Tensor]:
        if isinstance(self._rows, Tensor):
            return iter([self._rows])
        return (part for part in self._rows.read() if len(part))

    def sum(self, work: Callable[[slice, Tensor], list[Tensor]], dtype: torch.dtype) -> list[Tensor]:
        """One pass: the float64 sums over all blocks of the tensors that `work` returns for a block.

        Args:
            work: called with the rows of a block and their features minus `shift`, [B, D] in `dtype`, which are valid
                until it returns; called from several threads at once.
            dtype: of the features of a block.
        """

        def of_shares() -> Iterator[list[Tensor]]:
            start = 0
            for part in self._parts():
                yield from self._shares(partial(self._share, work, dtype, part, start), len(part))
                start += len(part)
                del part  # before the next part of a stream is read
            if start != self.n:
                raise DataError(f"expected {self.n} rows of features, got {start}; correct the stream's n")

        return added(of_shares(), Tensor.double)

    def sum_rows(self, work: Callable[[slice], list[Tensor]], n: int | None = None) -> list[Tensor]:
        """The sums over n rows (default: all) of the tensors that `work` returns for some rows; no features."""

        def share(rows: slice) -> list[Tensor]:
            return added(in_blocks(work, rows, BLOCK_OF_SCORES), Tensor.double)

        return added(self._shares(share, self.n if n is None else n), Tensor.double)

    def _share(self, work: Callable, dtype: torch.dtype, part: Tensor, start: int, rows: slice) -> list[Tensor]:
        """The sums for some rows of a part, whose first row has the number `start`."""
        size = BLOCK_ELSEWHERE if part.is_cuda else max(64, BLOCK_BYTES // (self.d * dtype.itemsize))
        room, shift = part.new_empty(min(size, rows.stop - rows.start), self.d, dtype=dtype), self.shift.to(dtype)

        def centred(here: slice) -> list[Tensor]:
            X = room[: here.stop - here.start]
            if part.dtype == dtype:
                torch.sub(part[here], shift, out=X)
            else:  # convert first: the difference of two float32 numbers is exact only in float64
                X.copy_(part[here]).sub_(shift)
            return work(slice(start + here.start, start + here.stop), X)

        return added(in_blocks(centred, rows, size), Tensor.double)


def in_blocks(work: Callable[[slice], list[Array]], rows: slice, size: int) -> Iterator[list[Array]]:
    """What `work` returns for `rows`, `size` rows at a time."""
    return (work(slice(first, min(first + size, rows.stop))) for first in range(rows.start, rows.stop, size))


def added(parts: Iterable[list[Array]], first: Callable[[Array], Array] = lambda x: x) -> list[Array]:
    """The sums of lists of arrays, added up in place in `first` of those of the first list."""
    total: list[Array] = []
    for part in parts:
        if total:
            for sums, more in zip(total, part, strict=True):
                sums += more
        else:
            total = [first(x) for x in part]
    return total


@dataclass(frozen=True, eq=False)
class Scaling:
    """For each of M weightings: the sum of the weights [M], and mean and inverse scale of each column [M, D].

    Means are relative to the shift. A constant column has the inverse scale 0.
    """

    total: Tensor
    mean: Tensor
    inverse_scale: Tensor


def scaling_of(features: Features, weights: Tensor, standardise: bool, sampled: bool = True) -> tuple[Scaling, Tensor]:
    """The scaling under weights [N, M], float64, and a sample of the rows [S, D] (minus the shift); or no rows.

    Features whose sums or scales would not fit float32 are widened to float64.

    Raises:
        DataError: NaN or infinity in the features.
    """
    size = WIDE_SAMPLE
    if features.d <= WIDE:
        size = min(max(SAMPLE_PER_FEATURE * features.d, int(features.n * SHARE)), MOST_PER_FEATURE * features.d)
    step, picked = max(1, features.n // size), {}

    def block(rows: slice, X: Tensor) -> list[Tensor]:
        W = weights[rows]
        picked[rows.start] = X[-rows.start % step if sampled else len(X) :: step].to(features.dtype, copy=True)
        return [W.T @ X, W.T @ X.square_()]

    first, second = features.sum(block, torch.float64)  # float64: a weighting's mean may be far from the shift
    if not (second <= features.n * LARGEST**2).all():  # False for NaN
        raise DataError(
            f"NaN or infinity in the features, or numbers above {LARGEST:g} in size; check the activations, extract "
            "again in float32, or divide all features by one constant"
        )
    total = weights.sum(dim=0)
    mean, square = first / total[:, None], second / total[:, None]
    variance = square - mean.square()
    varies = variance > CONSTANT * square
    scale = variance.clamp_min(0).sqrt() if standardise else torch.ones_like(variance)
    inverse = torch.where(varies, 1 / scale.where(varies, 1), 0)
    fits = (inverse <= FLOAT32) & (square.sqrt() <= FLOAT32) | ~varies
    if features.dtype == torch.float32 and not fits.all():
        features.widen()
        return scaling_of(features, weights, standardise, sampled)
    return Scaling(total, mean, inverse), torch.cat([rows for _, rows in sorted(picked.items())])


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions in which the covariance of the features is nearly diagonal.

    Attributes:
        vectors: [D, R], orthonormal, float64.
        values: [R], the variance along each.
        rest: the mean variance in directions orthogonal to all of them.
    """

    vectors: Tensor
    values: Tensor
    rest: float


def basis(features: Features, sample: Tensor, inverse_scale: Tensor) -> Basis:
    """The eigenvectors of the covariance of a sample of rows [S, D], with each column times its inverse scale [D].

    The sample is overwritten: it may have many megabytes.

    A sample that does not span all directions overestimates the variance in those it spans. So half of it gives the
    directions and the other half their variances, unless the sample is all rows: then no other direction has variance.
    """
    S, D = sample.shape
    is_all = features.n == S
    Z = sample.sub_(sample.mean(dim=0)).mul_(inverse_scale.to(sample.dtype))
    if S >= SAMPLE_PER_FEATURE * D or (is_all and S >= D):
        values, vectors = _eigh(_gram(features, Z) / S)
        return Basis(vectors, values.clamp_min(0), 0.0)
    if is_all:
        # float64: without variance elsewhere nothing damps rounding errors there, and they would dominate
        return Basis(*_span(features, Z.double()), 0.0)
    vectors, _ = _span(features, Z[::2])
    measured = Z[1::2].double()
    values, total = (measured @ vectors).square().mean(dim=0), measured.square().mean(dim=0).sum()
    return Basis(vectors, values, float((total - values.sum()).clamp_min(0)) / max(1, D - len(values)))


def no_basis(sample: Tensor) -> Basis:
    """A basis of no directions."""
    return Basis(sample.new_zeros(sample.shape[1], 0, dtype=torch.float64), sample.new_zeros(0).double(), 1.0)


def _span(features: Features, Z: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal directions [D, R] that span the rows [S, D], S < D, and the variance along each [R]."""
    values, U = _eigh(_gram(features, Z.T) / len(Z))
    kept = values > 1e-6 * values[-1].clamp_min(torch.finfo(values.dtype).tiny)
    return Z.T.double() @ (U[:, kept] / (values[kept] * len(Z)).sqrt()), values[kept]


def gram(A: Tensor) -> Tensor:
    """A'A. Numpy's product of a matrix with itself takes 0.6 of torch's time (measured)."""
    each = A.numpy()
    with np.errstate(all="ignore"):  # what overflows has no factor, and is then computed in float64
        return torch.from_numpy(np.matmul(each.T, each))


def _gram(features: Features, X: Tensor) -> Tensor:
    """X'X in float64, summed over blocks in the type of X."""

    def block(rows: slice) -> list[Tensor]:
        here = X[rows]
        return [gram(here) if here.device.type == "cpu" else here.T @ here]

    (total,) = features.sum_rows(block, len(X))
    return total


def _eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    if len(A) <= WIDE:
        return torch.linalg.eigh(A)
    largest = A.abs().max().clamp_min(torch.finfo(A.dtype).tiny)  # squares of the features need not fit float32
    values, vectors = torch.linalg.eigh((A / largest).float())
    return values.double() * largest, vectors.double()
