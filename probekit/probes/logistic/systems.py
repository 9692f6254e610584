"""What a two-class descent knows of its rows: products with the unknowns, and the factor of one Hessian.

`Primal` has the weights as unknowns u, and at least as many rows as features. `Kernel` has multipliers of the rows,
w = Z'u, and fewer rows than features: the optimum is a combination of the rows (the representer theorem; Schoelkopf,
Herbrich and Smola 2001), and a step needs K = Z Z' alone. There the gradient Z'g has the dual v = K g and the squared
length g'v. Factors only precondition, in float32 where that succeeds.

Axes: N rows, D features, P problems, M rows that count in a Hessian.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from probekit.machine.threads import Shares

NARROW = torch.float32
NEGLIGIBLE = 0.05  # rows whose curvatures sum to this much are left out: the Hessian is at least 1 everywhere
# Relative additions to the diagonal, tried in turn where rounding leaves no factor: still a good preconditioner
LIFTS = {torch.float32: (0.0, 1e-5, 1e-4), torch.float64: (0.0, 1e-12, 1e-8)}
FEW_ROWS = 0.75  # share of D; with fewer rows that count, the factor is of the rows instead (Woodbury)
ROWS_TO_SUM = 2048  # in float32, before the sums go on in float64
LEAST_PATIENCE, MOST_PATIENCE = 2.0, 60.0


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


class Primal:
    """The rows Z [N, D], float64, and the factor of one Hessian.

    A gradient g comes with its dual v: g'd is v @ d. As many steps as `patience` cost as much as a factor. If `rough`,
    products that are not `exact` are in float32.
    """

    def __init__(self, Z: Tensor, rough: bool, by_thread: Shares):
        n, d = Z.shape
        self._by_thread, self.rough = by_thread, rough
        self._narrow, self._exact = Z.to(NARROW), Z
        self._size = torch.cat(list(by_thread(lambda rows: Z[rows].square().sum(dim=1).double(), n)))
        self._flat: Tensor | None = None  # the Hessian's second part at w = 0, of curvatures that sum to 1
        self._A: tuple[Tensor, float] | None = None  # the last Hessian's second part, and its C
        self._low: Tensor | None = None  # the rows that count, where the factor is of these
        # measured on one core: 80 GFLOP/s in products, 30 in factors, 10 GB/s in products with a vector
        factor = n * d * d / 8e10 + d**3 / 3 / 3e10 + 1e-3
        step = 2 * n * d * NARROW.itemsize / 1e10 + n * 1e-7 + 5e-4
        self.patience = min(MOST_PATIENCE, max(LEAST_PATIENCE, factor / step))

    def zero(self) -> Tensor:
        """The weights 0 [D]."""
        return self._size.new_zeros(self._narrow.shape[1])

    def weights(self, u: Tensor) -> Tensor:
        """The weights of unknowns [P, D]: the same."""
        return u

    def scores(self, u: Tensor, exact: bool) -> Tensor:
        """Z u [N]."""
        Z = self._exact if exact else self._narrow
        w = u.to(Z.dtype)
        return torch.cat(list(self._by_thread(lambda rows: (Z[rows] @ w).double(), len(Z))))

    def _sum(self, weights: Tensor, exact: bool = False) -> Tensor:
        """Z' weights [D]."""
        Z = self._exact if exact else self._narrow
        weights = weights.to(Z.dtype)

        def share(rows: slice) -> Tensor:
            starts = range(rows.start, rows.stop, ROWS_TO_SUM)
            parts = (slice(i, min(i + ROWS_TO_SUM, rows.stop)) for i in starts)
            return sum(((weights[some] @ Z[some]).double() for some in parts), self.zero())

        return sum(self._by_thread(share, len(Z)), self.zero())

    def inner(self, u: Tensor, d: Tensor, scores: Tensor) -> float:
        """Return u'd."""
        return float(u @ d)

    def gradient(self, u: Tensor, pull: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
        """Return u + Z' pull twice: it is its own dual."""
        g = u + self._sum(pull, exact)
        return g, g

    def begin(self, h: Tensor, C: float) -> None:
        """Factor the Hessian at w = 0, where h is a multiple of the rows' weights: one product for all labels."""
        total = float(h.sum())
        if self._flat is None:
            W = h / total
            self._flat = self._gram(torch.arange(len(h)), self._sum(W), W, NARROW)
        self._low, self._A = None, (self._flat * (C * total), C)
        if not self.refactor(C):
            self.factor(h, C, precise=True)

    def factor(self, h: Tensor, C: float, precise: bool) -> None:
        """Factor the Hessian at curvatures h."""
        W, self._A, self._low = C * h, None, None
        mean = self._sum(W / W.sum().clamp_min(1e-300))
        size = (self._size - 2 * self.scores(mean, exact=False) + mean @ mean).clamp_min(0)
        rows = rows_that_count(W, size)
        dtype = torch.float64 if precise else NARROW
        if len(rows) < FEW_ROWS * len(mean):
            self._low = self._centred(rows, mean, W, dtype)
            found = factored(gram(self._low.T))
        else:
            self._A = self._gram(rows, mean, W, dtype), C
            found = factored(self._A[0])
        if found is None:
            self.factor(h, C, precise=True)
        else:
            self._L = found

    def refactor(self, C: float) -> bool:
        """Factor the last Hessian at another C; returns whether there is one that has a factor."""
        found = None if self._A is None else factored(self._A[0], C / self._A[1])
        if found is not None:
            self._L = found
        return found is not None

    def _gram(self, rows: Tensor, mean: Tensor, W: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum of W z z' over some rows z minus their mean."""
        parts = self._by_thread(lambda some: gram(self._centred(rows[some], mean, W, dtype)), len(rows))
        return sum(parts, torch.zeros(len(mean), len(mean), dtype=dtype))

    def _centred(self, rows: Tensor, mean: Tensor, W: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows minus their mean, times the root of their weights [M, D]."""
        Z = self._narrow if dtype == NARROW else self._exact
        Z, W = (Z, W) if len(rows) == len(Z) else (Z[rows], W[rows])
        return (Z.to(dtype) - mean.to(dtype)).mul_(W.sqrt().to(dtype)[:, None])

    def solve(self, g: Tensor, v: Tensor) -> Tensor:
        """The inverse Hessian times g."""
        if self._low is None:
            return solved(self._L, g).double()
        return g - (self._low.T @ solved(self._L, self._low @ g.to(self._low.dtype))).double()


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
