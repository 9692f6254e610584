"""Rows of a multinomial logistic regression, turned so that their features are uncorrelated, and products with them.

In these coordinates the Hessian is nearly diagonal. With fewer rows than features there are no more coordinates than
rows. Numbers are float32: gradients for the first steps, and the Hessian's products for all. The last coordinate is 1,
for the intercept.

Axes: N rows, D features, R coordinates with the last, K classes, B rows of a block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.probes.logistic.objective import Objective
from probekit.threads import Shares

TURNED = 1024  # features, or rows if there are fewer, up to which the exact axes are cheap enough
NO_VARIANCE = 1e-13  # share of the largest variance; an axis with less is left out if rows are fewer than features
BLOCK = 1 << 19  # numbers of a block's features and scores: they fit a processor's cache
PIECES = 4  # of the rows, for threads; always as many, so that sums are the same with any number of threads
ONE_PIECE = 1 << 23  # multiplications of a product up to which a thread costs more than it saves


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
    rows = _standardised(objective, None)[:, :-1]
    if n > d:
        _, axes = torch.linalg.eigh(_gram(rows.T).double())
    else:
        exact = rows.double()
        squares, left = torch.linalg.eigh(exact @ exact.T)
        kept = squares > NO_VARIANCE * squares[-1]
        axes = exact.T @ (left[:, kept] / squares[kept].sqrt())
    Z = _standardised(objective, axes)
    square = Z.square() if own is None else Z.square() * own
    spread = square.mean(dim=0) * (n / float(square[:, -1].sum()))
    return Turned(Z, axes, None, spread[:, None], 0.0, own, by_thread)


def _gram(A: Tensor) -> Tensor:
    return torch.from_numpy(np.matmul(A.numpy(), A.numpy().T))


def _standardised(objective: Objective, axes: Tensor | None) -> Tensor:
    """The rows centred and scaled, along `axes` if there are any, and a 1: float32."""
    features, scaling = objective.features, objective.scaling
    Z = torch.ones(features.n, (features.d if axes is None else axes.shape[1]) + 1)

    def block(rows: slice, X: Tensor) -> list[Tensor]:
        X.sub_(scaling.mean[0]).mul_(scaling.inverse_scale[0])
        Z[rows, :-1] = (X if axes is None else X @ axes).float()
        return []

    features.sum(block, torch.float64)
    return Z


def pieces(turned: Turned, K: int) -> list[list[slice]]:
    """Blocks of rows, in as many pieces as threads may share."""
    n, R = turned.Z.shape
    size = max(64, BLOCK // (R + 2 * K))
    blocks = [slice(first, min(first + size, n)) for first in range(0, n, size)]
    if n * R * K <= ONE_PIECE:
        return [blocks]
    return [blocks[len(blocks) * i // PIECES : len(blocks) * (i + 1) // PIECES] for i in range(PIECES)]


def summed(turned: Turned, K: int, work: Callable[[slice], list[Tensor]]) -> list[Tensor]:
    """The sums over blocks of rows of what `work` returns, always added in the same order."""
    every = pieces(turned, K)
    if len(every) == 1:
        return _added(map(work, every[0]))
    parts = turned.by_thread(lambda some: [_added(map(work, each)) for each in every[some] if each], len(every))
    return _added(iter([piece for part in parts for piece in part]))


def _added(parts: Iterator[list[Tensor]]) -> list[Tensor]:
    total = next(parts)
    for part in parts:
        for here, more in zip(total, part, strict=True):
            here += more
    return total


def product(A: Tensor, B: Tensor) -> Tensor:
    """A B. Numpy's product with few columns takes a half to a quarter of torch's time (measured)."""
    return torch.from_numpy(np.matmul(A.numpy(), B.numpy()))


def losses(turned: Turned, u: Tensor, y: Tensor) -> tuple[float, Tensor, Tensor]:
    """The summed loss at u [R, K], its gradient, and the probabilities [N, K] of all rows; y is int64 [N, 1]."""
    p = torch.empty(len(turned.Z), u.shape[1])

    def block(rows: slice) -> list[Tensor]:
        Z, here = turned.Z[rows], y[rows]
        log_p = torch.log_softmax(product(Z, u), dim=1)
        own = log_p.gather(1, here)
        torch.exp(log_p, out=p[rows])
        first = p[rows].scatter(1, here, torch.expm1(own))  # the own class: its probability minus 1
        if turned.weights is not None:
            first *= turned.weights[rows]
            own = own * turned.weights[rows]
        return [-own.sum(dtype=torch.float64)[None], product(Z.T, first)]

    loss, g = summed(turned, u.shape[1], block)
    return float(loss), g, p


def curved(turned: Turned, p: Tensor, u: Tensor) -> Tensor:
    """The product of the summed loss's Hessian, at probabilities p [N, K], with u [R, K]."""

    def block(rows: slice) -> list[Tensor]:
        Z, here = turned.Z[rows], p[rows]
        move = product(Z, u).mul_(here)
        move.addcmul_(here, move.sum(dim=1, keepdim=True), value=-1)
        if turned.weights is not None:
            move *= turned.weights[rows]
        return [product(Z.T, move)]

    return summed(turned, u.shape[1], block)[0]


def bend(turned: Turned, p: Tensor) -> Tensor:
    """The sum over rows of each class's curvature p (1 - p): [K]."""
    each = p - p.square()
    return (each if turned.weights is None else each * turned.weights).sum(dim=0)
