"""Weights as the unknowns: at least as many rows as features.

Axes: N rows, D features, M rows that count in a Hessian.
"""

import torch
from torch import Tensor

from probekit.machine.threads import Shares
from probekit.probes.logistic.factor import NARROW, factored, gram, rows_that_count, solved

FEW_ROWS = 0.75  # share of D; with fewer rows that count, the factor is of the rows instead (Woodbury)
ROWS_TO_SUM = 2048  # in float32, before the sums go on in float64
LEAST_PATIENCE, MOST_PATIENCE = 2.0, 60.0


class Primal:
    """The rows Z [N, D], float64, and the factor of one Hessian. If `rough`, descents begin in float32."""

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
