"""Cholesky factors that only precondition: in float32 where that succeeds.

Axes: N rows, D features, M rows that count.
"""

import numpy as np
import torch
from torch import Tensor

NARROW = torch.float32
NEGLIGIBLE = 0.05  # rows whose curvatures sum to this much are left out: the Hessian is at least 1 everywhere
# Relative additions to the diagonal, tried in turn where rounding leaves no factor: still a good preconditioner
LIFTS = {torch.float32: (0.0, 1e-5, 1e-4), torch.float64: (0.0, 1e-12, 1e-8)}


def gram(A: Tensor) -> Tensor:
    """A'A. Numpy's product of a matrix with itself takes 0.6 of torch's time (measured)."""
    each = A.numpy()
    with np.errstate(all="ignore"):  # what overflows has no factor, and is then computed in float64
        return torch.from_numpy(np.matmul(each.T, each))


def rows_that_count(W: Tensor, size: Tensor) -> Tensor:
    """The numbers of the rows that count in sum W z z', in order, by weights W and squared sizes of z."""
    share = W * size
    order = share.argsort()
    kept = order[share[order].cumsum(0) > NEGLIGIBLE]
    return kept.sort().values


def factored(A: Tensor, scale: float = 1.0) -> Tensor | None:
    """The Cholesky factor of I + scale A; None where float32 has none. In float64 at worst that of the diagonal."""
    H = A * scale
    H.diagonal().add_(1)
    for lift in LIFTS[A.dtype]:
        H.diagonal().mul_(1 + lift)
        L, failed = torch.linalg.cholesky_ex(H)
        if not failed:
            return L
    return H.diagonal().nan_to_num(1.0).clamp_min(1.0).sqrt().diag() if A.dtype == torch.float64 else None


def solved(L: Tensor, x: Tensor) -> Tensor:
    """(L L')^-1 x [M]. Six times as fast as torch.cholesky_solve, which copies L (measured at 768)."""
    y = torch.linalg.solve_triangular(L, x[:, None].to(L.dtype), upper=False)
    return torch.linalg.solve_triangular(L.mT, y, upper=True)[:, 0]
