"""Approximate inverses of the Hessian of a multinomial logistic regression, for conjugate gradients.

`Diagonal` costs nothing and serves weak and medium regularisation's noise; where classes are nearly separable it leaves
hundreds of iterations. `Dense` factors the complete Hessian, where that is small enough, and serves several steps.

Axes: N rows, R coordinates with the constant, K classes.
"""

import numpy as np
import torch
from torch import Tensor

from probekit.probes.logistic.softmax import Turned, summed

MOST_UNKNOWNS = 2600  # of a dense factor: 27 MB
LIFTS = (1e-6, 1e-5, 1e-4, 1e-3)  # additions to the scaled diagonal, tried in turn where rounding leaves no factor


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
