"""Multipliers of the rows as the unknowns: fewer rows than features.

The optimum is a combination of the rows, w = Z'u (the representer theorem; Schoelkopf, Herbrich and Smola 2001). A
step needs K = Z Z' alone: the gradient Z'g has the dual v = K g and the squared length g'v.

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
        self._K = torch.zeros(n, n, dtype=torch.float64)
        for Z in columns():
            self._K += gram(Z.T)

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
        """Factor B = I + root K_c root over the rows that count, with K_c centred at their mean under h."""
        W, n = C * h, len(h)
        mean = W / W.sum().clamp_min(1e-300)
        Km = self._K @ mean
        self._rows = rows = rows_that_count(W, (self._K.diagonal() - 2 * Km + mean @ Km).clamp_min(0))
        counts = torch.zeros(n, dtype=torch.bool).index_fill_(0, rows, True)
        self._left = torch.nonzero(~counts)[:, 0]
        K = self._K if len(rows) == n else self._K[rows]
        self._K_left = K[:, self._left]
        K = K.clone() if len(rows) == n else K[:, rows]
        W = W[rows]
        self._root, self._mean = W.sqrt(), W / W.sum().clamp_min(1e-300)
        self._Km = K @ self._mean
        a = self._Km - 0.5 * (self._mean @ self._Km)
        B = K.sub_(a).sub_(a[:, None]).mul_(self._root).mul_(self._root[:, None])
        L = None if precise else factored(B.to(NARROW))
        L = factored(B) if L is None else L
        assert L is not None  # float64 always has one
        self._L = L

    def solve(self, g: Tensor, v: Tensor) -> Tensor:
        """The multipliers u of the inverse Hessian times Z'g, where g sums to 0: (I + W K_c) u = g, W = root^2.

        With W = 0 where a row does not count, u is g there, and root B^-1 (g / root - root K_c g_left) elsewhere.
        Woodbury's g - root B^-1 root K_c g would be a difference of nearly equal numbers where W K is large.
        """
        u, own, left = g.clone(), g[self._rows], g[self._left]
        q = self._K_left @ left
        q -= self._mean @ q + (self._Km - self._mean @ self._Km) * left.sum()
        each = self._root * solved(self._L, own / self._root - self._root * q).double()
        u[self._rows] = each - self._mean * (u[self._left].sum() + each.sum())
        return u
