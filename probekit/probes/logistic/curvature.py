"""Approximate inverses of the Hessian of a multinomial logistic regression, for conjugate gradients.

`Diagonal` costs nothing and serves weak and medium regularisation's noise; where classes are nearly separable it leaves
hundreds of iterations. `Dense` factors the complete Hessian, where that is small enough, and serves several steps.

Axes: N rows, R coordinates with the constant, K classes.
"""

import torch
from torch import Tensor

from probekit.probes.logistic.softmax import Turned, product, summed

MOST_UNKNOWNS = 2600  # of a dense factor: 27 MB
LIFTS = (1e-6, 1e-5, 1e-4, 1e-3)  # additions to the scaled diagonal, tried in turn where rounding leaves no factor


class Diagonal:
    """The Hessian's diagonal: 1 + C * (curvature of the class) * (variance along the coordinate)."""

    def __init__(self, rows: Turned, bend: Tensor):
        """From C times each class's curvature [K]."""
        self.basis, curvature = rows.basis, bend.clamp_min(1e-30)
        self.inverse = 1 / (rows.spread * curvature + 1)
        self.inverse[-1] = 1 / curvature.clamp_min(float(1e-6 * curvature.max()))
        self.other = 1 / (rows.rest * curvature + 1)

    def __call__(self, g: Tensor) -> Tensor:
        """The approximate inverse times g [R, K]."""
        if self.basis is None:
            return g * self.inverse
        inside = product(self.basis.T, g[:-1])
        out = product(self.basis, inside * (self.inverse[:-1] - self.other)) + g[:-1] * self.other
        return torch.cat([out, g[-1:] * self.inverse[-1:]])


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

    def __call__(self, g: Tensor) -> Tensor:
        """The approximate inverse times g [R, K]."""
        x = (g.T.reshape(-1) * self.scale)[:, None]
        x = torch.linalg.solve_triangular(self.L, x, upper=False)
        x = torch.linalg.solve_triangular(self.L.mT, x, upper=True)[:, 0]
        return (x * self.scale).view(self.K, -1).T.contiguous()


def _hessian(rows: Turned, p: Tensor) -> Tensor:
    """The Hessian of the summed loss: [K * R, K * R].

    One product of all pairs of coordinates with all pairs of classes. Probabilities sum to 1, so that the sums over the
    other class of a pair give the diagonal blocks.
    """
    R, K = rows.Z.shape[1], p.shape[1]
    (a, b), (k, j) = torch.tril_indices(R, R), torch.tril_indices(K, K)

    def block(some: slice) -> list[Tensor]:
        Z, here = rows.Z[some], p[some]
        own = here if rows.weights is None else here * rows.weights[some]
        return [product((Z[:, a] * Z[:, b]).T, own[:, k] * here[:, j])]

    (pairs,) = summed(rows, (len(a) + len(k)) // 2, block)
    H = torch.empty(K, R, K, R)
    where = torch.empty(R, R, dtype=torch.int64)
    where[a, b] = where[b, a] = torch.arange(len(a))
    for one in range(K):
        columns = torch.where(torch.arange(K) <= one, one * (one + 1) // 2 + torch.arange(K), 0)
        later = torch.arange(one + 1, K)
        columns[one + 1 :] = later * (later + 1) // 2 + one
        row = -pairs[:, columns]
        row[:, one] = 0
        row[:, one] = -row.sum(dim=1)
        H[one] = row[where].permute(0, 2, 1)
    return H.view(K * R, K * R)
