"""Multipliers of the rows as the unknowns: fewer rows than features.

The weights are w = Z'u, and a solve needs K = Z Z' alone. A gradient Z'g has the dual v = K g.

Axes: N rows, D features, P problems.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from probekit.probes.logistic.factor import NARROW, factored, gram, rows_that_count, solved


class Kernel:
    """K [N, N] in float64, and the factor of one Hessian. `columns` yields Z in float64, some columns at a time."""

    rough = False

    def __init__(self, n: int, columns: Callable[[], Iterator[Tensor]]):
        self._columns = columns
        # measured on one core
        factor, step = 5e-4 + 1e-8 * n**2 + 1e-11 * n**3, 1e-3 + 1e-9 * n**2
        self.patience = max(2.0, factor / step)
        # float64: K in float32 left a gap of 1.1e-6 (measured)
        self._K = sum((gram(Z.T) for Z in columns()), torch.zeros(n, n, dtype=torch.float64))

    def zero(self) -> Tensor:
        """The multipliers 0 [N]."""
        return self._K.new_zeros(len(self._K))

    def weights(self, u: Tensor) -> Tensor:
        """The weights [P, D] of multipliers [P, N]."""
        return torch.cat([u @ Z for Z in self._columns()], dim=1)

    def scores(self, u: Tensor, exact: bool) -> Tensor:
        """K u [N]."""
        return self._K @ u

    def inner(self, u: Tensor, d: Tensor, scores: Tensor) -> float:
        """Return u'K d."""
        return float(u @ scores)

    def gradient(self, u: Tensor, pull: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
        """The multipliers of w + Z' pull, and their dual."""
        g = u + pull
        return g, self._K @ g

    def begin(self, h: Tensor, C: float) -> None:
        """Factor the Hessian at w = 0."""
        self.factor(h, C, precise=False)

    def refactor(self, C: float) -> bool:
        """Another C is no cheaper than another Hessian."""
        return False

    def factor(self, h: Tensor, C: float, precise: bool) -> None:
        """Factor I + root K_c root over the rows that count, with K_c centred at the mean under h (Woodbury)."""
        W = C * h
        self._mean = W / W.sum().clamp_min(1e-300)
        Km = self._K @ self._mean
        a = Km - 0.5 * (self._mean @ Km)
        self._rows = rows = rows_that_count(W, (self._K.diagonal() - 2 * a).clamp_min(0))
        self._root, a = W[rows].sqrt(), a[rows]
        B = self._K.clone() if len(rows) == len(W) else _part(self._K, rows)
        B.sub_(a).sub_(a[:, None]).mul_(self._root).mul_(self._root[:, None])
        L = None if precise else factored(B.to(NARROW))
        L = factored(B) if L is None else L
        assert L is not None  # float64 always has one
        self._L = L

    def solve(self, g: Tensor, v: Tensor) -> Tensor:
        """The multipliers of the inverse Hessian times Z'g."""
        y = self._root * solved(self._L, self._root * (v[self._rows] - self._mean @ v)).double()
        u = g + self._mean * y.sum()
        u[self._rows] -= y
        return u


def _part(K: Tensor, rows: Tensor) -> Tensor:
    """K of some rows, both ways. Numpy takes a third of the time of torch's indexing (measured at 300)."""
    which = rows.numpy()
    return torch.from_numpy(K.numpy().take(which, 0).take(which, 1))
