"""Rows of a multinomial logistic regression, turned so that their features are uncorrelated, and products with them.

In these coordinates the Hessian is nearly diagonal. With fewer rows than features there are no more coordinates than
rows. Numbers are float32: gradients for the first steps, and the Hessian's products for all. The last coordinate is 1,
for the intercept.

Two approximate inverses of the Hessian precondition conjugate gradients. `Diagonal` costs nothing and serves weak and
medium regularisation's noise; where classes are nearly separable it leaves hundreds of iterations. `Dense` factors the
complete Hessian, where that is small enough, and serves several steps.

Axes: N rows, D features, R coordinates with the last, K classes, B rows of a block.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from probekit.machine.threads import Shares
from probekit.probes.logistic.objective import Objective

TURNED = 1024  # features, or rows if there are fewer, up to which the exact axes are cheap enough
NO_VARIANCE = 1e-13  # share of the largest variance; an axis with less is left out if rows are fewer than features
BLOCK = 1 << 19  # numbers of a block's features and scores: they fit a processor's cache
MOST_UNKNOWNS = 2600  # of a dense factor: 27 MB
LIFTS = (1e-6, 1e-5, 1e-4, 1e-3)  # additions to the scaled diagonal, tried in turn where rounding leaves no factor
ONE_SHARE = 1 << 23  # multiplications of a product up to which a thread costs more than it saves

Array = TypeVar("Array", Tensor, np.ndarray)


@dataclass(frozen=True, eq=False)
class Turned:
    """The rows in their coordinates.

    Attributes:
        Z: float32 [N, R].
        axes: float64 [D, R - 1]: features = coordinates @ axes.T; None if coordinates are the features themselves.
        basis: float32 [D, some], directions in which the covariance is nearly diagonal; None if all coordinates are.
        spread: float32 [R, 1], the mean square of each coordinate, or along each direction of `basis`.
        rest: the mean square along directions orthogonal to `basis`.
        weights: float32 [N, 1]; None if all are 1.
        by_thread: who computes.
    """

    Z: Tensor
    axes: Tensor | None
    basis: Tensor | None
    spread: Tensor
    rest: float
    weights: Tensor | None
    by_thread: Shares


def turned(objective: Objective, by_thread: Shares) -> Turned:
    """The rows of an objective with one weighting."""
    features, weights = objective.features, objective.weights
    n, d = features.n, features.d
    own = None if weights is None else weights.float()
    if min(n, d) > TURNED:
        Z = _standardised(objective, None)
        spread = torch.cat([objective.basis.values, torch.ones(1)]).float()[:, None]
        return Turned(Z, None, objective.basis.vectors.float(), spread, objective.basis.rest, own, by_thread)
    if n > d:
        rows = _standardised(objective, None)[:, :-1]
        rows.div_(rows.abs().max().clamp_min(torch.finfo(rows.dtype).tiny))  # squares of the features need not fit
        _, axes = torch.linalg.eigh(product(rows.T, rows).double())
    else:  # the axes must span the rows as they are, or a gradient across them would remain
        exact = _standardised(objective, None, torch.float64)[:, :-1]
        squares, left = torch.linalg.eigh(exact @ exact.T)
        kept = squares > NO_VARIANCE * squares[-1]
        axes = exact.T @ (left[:, kept] / squares[kept].sqrt())
    Z = _standardised(objective, axes)
    square = Z.square() if own is None else Z.square() * own
    spread = square.mean(dim=0) * (n / float(square[:, -1].sum()))
    return Turned(Z, axes, None, spread[:, None], 0.0, own, by_thread)


def _standardised(objective: Objective, axes: Tensor | None, dtype: torch.dtype = torch.float32) -> Tensor:
    """The rows centred and scaled, along `axes` if there are any, and a 1."""
    features, scaling = objective.features, objective.scaling
    Z = torch.ones(features.n, (features.d if axes is None else axes.shape[1]) + 1, dtype=dtype)

    def block(rows: slice, X: Tensor) -> list[Tensor]:
        X.sub_(scaling.mean[0]).mul_(scaling.inverse_scale[0])
        Z[rows, :-1] = X if axes is None else X @ axes
        return []

    features.sum(block, torch.float64)
    return Z


def summed(turned: Turned, K: int, work: Callable[[slice], list[Array]]) -> list[Array]:
    """Sum over blocks of rows what `work` returns for a block. Blocks are sized for R coordinates and K scores."""
    n, R = turned.Z.shape
    size = max(64, BLOCK // (R + 2 * K))

    def share(rows: slice) -> list[Array]:
        firsts = range(rows.start, rows.stop, size)
        return _added(work(slice(first, min(first + size, rows.stop))) for first in firsts)

    if n * R * K <= ONE_SHARE:
        return share(slice(0, n))
    return _added(turned.by_thread(share, n))


def _added(parts: Iterable[list[Array]]) -> list[Array]:
    each = iter(parts)
    first = next(each)
    for part in each:
        for total, more in zip(first, part, strict=True):
            total += more
    return first


def product(A: Tensor, B: Tensor) -> Tensor:
    """A B. Numpy's product with few columns takes a half to a quarter of torch's time (measured)."""
    with np.errstate(all="ignore"):  # what overflows has no certificate
        return torch.from_numpy(np.matmul(A.numpy(), B.numpy()))


def losses(turned: Turned, u: Tensor, y: Tensor) -> tuple[float, Tensor, Tensor]:
    """The summed loss at u [R, K], its gradient, and the probabilities [N, K] of all rows; y is int64 [N, 1].

    The own class of a row that fits well has a probability of nearly 1, which would lose the digits of its distance
    from 1; the other classes' probabilities have them.
    """
    p = torch.empty(len(turned.Z), u.shape[1])

    def block(rows: slice) -> list[Tensor]:
        Z, here = turned.Z[rows], y[rows]
        log_p = torch.log_softmax(product(Z, u), dim=1)
        first = torch.exp(log_p, out=p[rows]).scatter(1, here, 0.0)
        wrong = first.sum(dim=1, keepdim=True)
        loss = torch.where(wrong < 0.5, -torch.log1p(-wrong), -log_p.gather(1, here))
        first.scatter_(1, here, -wrong)
        if turned.weights is not None:
            first *= turned.weights[rows]
            loss *= turned.weights[rows]
        return [loss.sum(dtype=torch.float64)[None], product(Z.T, first)]

    loss, g = summed(turned, u.shape[1], block)
    return float(loss), g, p


def curved(turned: Turned, p: np.ndarray, top: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The product of the summed loss's Hessian with u [R, K], at probabilities p [N, K]; all float32.

    Scores move relative to that of the most likely class, `top` [N]: a difference of nearly equal numbers would lose
    the digits of a row that fits well. In numpy: torch takes 1.5 to 3 times as long (measured).
    """
    Z, weights = turned.Z.numpy(), turned.weights

    def block(rows: slice) -> list[np.ndarray]:
        X, here = Z[rows], p[rows]
        move = X @ u
        move -= move[np.arange(len(X)), top[rows], None]
        move -= np.einsum("nk,nk->n", here, move)[:, None]
        move *= here
        if weights is not None:
            move *= weights[rows].numpy()
        return [X.T @ move]

    return summed(turned, u.shape[1], block)[0]


def bend(turned: Turned, p: Tensor) -> Tensor:
    """The sum over rows of each class's curvature p (1 - p): [K]."""
    each = p * (1 - p)
    return (each if turned.weights is None else each * turned.weights).sum(dim=0)


class Diagonal:
    """The Hessian's diagonal: 1 + C * (curvature of the class) * (variance along the coordinate)."""

    def __init__(self, rows: Turned, bend: Tensor):
        """From C times each class's curvature [K]."""
        curvature = bend.clamp_min(1e-30)
        inverse = 1 / (rows.spread * curvature + 1)
        inverse[-1] = 1 / curvature.clamp_min(float(1e-6 * curvature.max()))
        self.basis = None if rows.basis is None else rows.basis.numpy()
        self.inverse, self.other = inverse.numpy(), (1 / (rows.rest * curvature + 1)).numpy()

    def __call__(self, g: np.ndarray) -> np.ndarray:
        """The approximate inverse times g [R, K]."""
        if self.basis is None:
            return g * self.inverse
        inside = (self.basis.T @ g[:-1]) * (self.inverse[:-1] - self.other)
        return np.concatenate([self.basis @ inside + g[:-1] * self.other, g[-1:] * self.inverse[-1:]])


class Dense:
    """The Cholesky factor of the complete Hessian, in float32, its diagonal scaled to 1."""

    def __init__(self, rows: Turned, p: Tensor, C: float):
        self.loss = _hessian(rows, p)
        self.K = p.shape[1]
        self.factor(C)

    def factor(self, C: float) -> None:
        """Factor the Hessian at another C, with the curvatures as they were; sets `found`."""
        K, R = self.K, len(self.loss) // self.K
        H = C * self.loss
        penalty = torch.ones(K, R)
        penalty[:, -1] = 0
        H.diagonal().add_(penalty.flatten())
        last = torch.arange(K) * R + R - 1
        H[last[:, None], last] += H[last, last].mean()  # the same added to all intercepts changes nothing
        self.scale = H.diagonal().clamp_min(1e-30).rsqrt()
        H.mul_(self.scale).mul_(self.scale[:, None])
        for lift in LIFTS:
            H.diagonal().fill_(1 + lift)
            self.L, failed = torch.linalg.cholesky_ex(H)
            self.found = not failed
            if self.found:
                return

    def __call__(self, g: np.ndarray) -> np.ndarray:
        """The approximate inverse times g [R, K]."""
        x = (torch.from_numpy(g).T.reshape(-1) * self.scale)[:, None]
        x = torch.linalg.solve_triangular(self.L, x, upper=False)
        x = torch.linalg.solve_triangular(self.L.mT, x, upper=True)[:, 0]
        return (x * self.scale).view(self.K, -1).T.contiguous().numpy()


def _hessian(rows: Turned, p: Tensor) -> Tensor:
    """The lower triangle of the Hessian of the summed loss: [K * R, K * R].

    One product of all pairs of coordinates with all pairs of classes. Probabilities sum to 1, so that the sums over the
    other class of a pair give the diagonal blocks.
    """
    Z, each = rows.Z.numpy(), p.numpy()
    R, K = Z.shape[1], each.shape[1]

    def block(some: slice) -> list[np.ndarray]:
        own = each[some] if rows.weights is None else each[some] * rows.weights[some].numpy()
        return [_pairs(own, each[some], -1).T @ _pairs(Z[some], Z[some], 0)]

    (pairs,) = summed(rows, (R * R + K * K) // 16, block)
    a, b = np.tril_indices(R)
    where = np.empty((R, R), dtype=np.int64)
    where[a, b] = where[b, a] = np.arange(len(a))
    H, same, first = np.zeros((K, R, K, R), dtype=np.float32), np.zeros((K, R, R), dtype=np.float32), 0
    for k in range(K):
        others = pairs[first : first + k][:, where]
        H[k, :, :k] = -others.transpose(1, 0, 2)
        same[:k] += others
        same[k] += others.sum(axis=0)
        first += k
    for k in range(K):
        H[k, :, k] = same[k]
    return torch.from_numpy(H).view(K * R, K * R)


def _pairs(A: np.ndarray, B: np.ndarray, offset: int) -> np.ndarray:
    """The products of each column of A with those of B up to its own number (with an offset of -1, before it)."""
    n, size = A.shape
    out, first = np.empty((n, size * (size + 1 + 2 * offset) // 2), dtype=np.float32), 0
    for i in range(size):
        end = first + i + 1 + offset
        np.multiply(A[:, i, None], B[:, : i + 1 + offset], out=out[:, first:end])
        first = end
    return out
