"""What two-class problems on the same rows share: products with the rows, and the factor of one Hessian.

With the intercept minimised out, the Hessian of the weights is I + C Z_c' diag(h) Z_c, with Z_c the rows Z minus their
mean under the curvatures h. `Primal` has the weights as unknowns u, and at least as many rows as features. `Kernel` has
multipliers of the rows, w = Z'u, and fewer rows than features: the optimum is a combination of the rows (the
representer theorem; Schoelkopf, Herbrich and Smola 2001), and a step needs K = Z Z' alone. There the gradient Z'g has
the dual v = K g and the squared length g'v. Factors only precondition, in float32 where that succeeds.

Axes: N rows, D features, P problems, M rows that count in a Hessian.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from probekit.machine.lapack import cholesky, symmetric_times
from probekit.machine.threads import Shares
from probekit.probes.logistic.features import gram

ROWS_OF_K = 64  # at once, that a processor's cache holds
OFF = 1e-8  # share of its diagonal that K in float32 is off by (measured at 3,200 x 4,096)
MARGIN = 20.0  # the gaps that this left were 2 to 20 times the estimate (measured)
ALIKE = 4.0  # times the curvatures of other labels at the weights 0, up to which these share their factor
NARROW = torch.float32
NEGLIGIBLE = 0.05  # rows whose curvatures sum to this much are left out: the Hessian is at least 1 everywhere
# Relative additions to the diagonal, tried in turn where rounding leaves no factor: still a good preconditioner
LIFTS = {torch.float32: (0.0, 1e-5, 1e-4), torch.float64: (0.0, 1e-12, 1e-8)}
FEW_ROWS = 0.75  # share of D; with fewer rows that count, the factor is of the rows instead (Woodbury)
ROWS_TO_SUM = 2048  # in float32, before the sums go on in float64
LEAST_PATIENCE, MOST_PATIENCE = 2.0, 60.0


@dataclass(frozen=True, eq=False)
class BinaryProblem:
    """The sign of a wrong score (-1 for class 1, 1 for class 0) and the weight (None: 1) of each row [N], and C."""

    wrong: Tensor
    weights: Tensor | None
    C: float


@dataclass(frozen=True, eq=False)
class Iterate:
    """Unknowns u, their scores s [N] without the intercept b, the objective f, residuals r and curvatures h [N]."""

    u: Tensor
    s: Tensor
    b: float
    f: float
    r: Tensor
    h: Tensor
    square: float  # |w|^2


def rows_that_count(W: Tensor, size: Tensor) -> Tensor:
    """The numbers of the rows that count in sum W z z', in order, by weights W and squared sizes of z."""
    share = W * size
    order = share.argsort()
    kept = order[share[order].cumsum(0) > NEGLIGIBLE]
    return kept.sort().values


def factored(A: Tensor) -> Tensor | None:
    """The Cholesky factor L of I + A; A is destroyed, and L is as from `cholesky`.

    None where float32 has none. Float64 falls back to the factor of the diagonal.
    """
    diagonal = A.diagonal() + 1
    for attempt, lift in enumerate(LIFTS[A.dtype]):
        if attempt:  # one half is still A's
            A.copy_(A.tril(-1) + A.tril(-1).mT)
        diagonal *= 1 + lift
        A.diagonal().copy_(diagonal)
        L = cholesky(A)
        if L is not None:
            return L
    return diagonal.nan_to_num(1.0).clamp_min(1.0).sqrt().diag() if A.dtype == torch.float64 else None


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

    def exact_scores(self, u: Tensor) -> Tensor:
        """Z u [N]."""
        return self.scores(u, exact=True)

    def is_due(self, task: "BinaryProblem", at: "Iterate", gap: float, tol: float) -> bool:
        """Whether to compute the scores anew, which are summed up step by step: at the end."""
        return gap <= tol

    def forget(self) -> None:
        """Begin with scores that may be off."""

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

    def begin(self, h: Tensor, C: float) -> bool:
        """Factor the Hessian at w = 0, where h is a multiple of the rows' weights: one product for all labels.

        Returns True: the factor is new.
        """
        total = float(h.sum())
        if self._flat is None:
            W = h / total
            self._flat = self._gram(torch.arange(len(h)), self._sum(W), W, NARROW)
        self._low, self._A = None, (self._flat * (C * total), C)
        if not self.refactor(C):
            self.factor(h, C, precise=True)
        return True

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
            found = factored(self._A[0].clone())
        if found is None:
            self.factor(h, C, precise=True)
        else:
            self._L = found

    def refactor(self, C: float) -> bool:
        """Factor the last Hessian at another C; returns whether there is one that has a factor."""
        found = None if self._A is None else factored(self._A[0] * (C / self._A[1]))
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

    def solve(self, g: Tensor) -> Tensor:
        """The inverse Hessian times g."""
        if self._low is None:
            return solved(self._L, g).double()
        return g - (self._low.T @ solved(self._L, self._low @ g.to(self._low.dtype))).double()


class TooFewDigits(ArithmeticError):
    """K in float32 will not do: it is not positive (rows of low rank), or off by more than the objective."""


@dataclass(frozen=True, eq=False)
class RowFactor:
    """The factor of one Hessian in the rows that count; see `Kernel.factor`.

    Attributes:
        rows: their numbers.
        left: the numbers of the others.
        root: the roots of their weights.
        mean: their shares of all weights.
        K_mean: of each, its product with the weighted mean.
        K_left: their products with the others.
        L: the Cholesky factor.
    """

    rows: Tensor
    left: Tensor
    root: Tensor
    mean: Tensor
    K_mean: Tensor
    K_left: Tensor
    L: Tensor


class Kernel:
    """K [N, N], and the factor of one Hessian. `columns` yields Z in float64, some columns at a time.

    Features `of_one_size` let a factor serve several values of C (measured on raw features of which two are 1e4 times
    as large: 231 steps for 10) and, unless they are in float64, float32 hold K. There K is off, and with it scores that
    sum up K's products: at random labels and C = 1e4 the gap was 3e-3 (measured). So the scores are computed anew from
    the rows when the rest of the way is short.
    """

    rough = False

    def __init__(self, n: int, columns: Callable[[], Iterator[Tensor]], of_one_size: bool, wide: bool):
        self._columns, self.of_one_size = columns, of_one_size
        self._is_off = of_one_size and not wide
        # measured on one core
        factor, step = 5e-4 + 1e-8 * n**2 + 1e-11 * n**3, 1e-3 + 1e-9 * n**2
        self.patience = max(2.0, factor / step)
        self._K = torch.zeros(n, n, dtype=NARROW if self._is_off else torch.float64)
        for Z in columns():
            self._K += gram(Z.T.to(self._K.dtype))
        self._now: RowFactor | None = None
        self._first: tuple[float, float, RowFactor] | None = None  # of the weights 0, after its C and the sum of h
        self._known: Tensor | None = None  # the multipliers whose scores were computed from the rows
        self._size = self._K.diagonal().double()
        self.size = float(self._size.mean())

    def zero(self) -> Tensor:
        """The multipliers 0 [N]."""
        return torch.zeros_like(self._size)

    def weights(self, u: Tensor) -> Tensor:
        """The weights [P, D] of multipliers [P, N]."""
        return torch.cat([u @ Z for Z in self._columns()], dim=1)

    def scores(self, u: Tensor, exact: bool) -> Tensor:
        """K u [N], in the type that holds K; `exact_scores` are those of the rows."""
        return symmetric_times(self._K, u.to(self._K.dtype)).double()

    def exact_scores(self, u: Tensor) -> Tensor:
        """K u [N], in float64: where K is in float32, from the rows themselves."""
        if not self._is_off:
            return self.scores(u, exact=True)
        self._known = u
        return sum(((u @ Z) @ Z.T for Z in self._columns()), torch.zeros_like(u))

    def is_due(self, task: "BinaryProblem", at: "Iterate", gap: float, tol: float) -> bool:
        """Whether to compute the scores anew: at the end.

        Where K is in float32, if its error on the way since the last time matters, and does not on the rest of the way.

        Raises:
            TooFewDigits: the error is larger than the objective.
        """
        if not self._is_off:
            return gap <= tol
        way = at.u if self._known is None else at.u - self._known
        error = task.C * OFF * self.size
        off = MARGIN * 0.5 * error**2 * float(way @ way) * float(at.h @ at.h) * self.size / at.f
        if off > 1:
            raise TooFewDigits
        return off > tol and gap * off <= tol

    def forget(self) -> None:
        """Begin with scores that may be off."""
        self._known = None

    def forget_factors(self) -> None:
        """Let go of the factors: other problems' solutions should not depend on these."""
        self._now = self._first = None

    def inner(self, u: Tensor, d: Tensor, scores: Tensor) -> float:
        """Return u'K d.

        Raises:
            TooFewDigits: u'K u is negative.
        """
        product = float(u @ scores)
        if product < 0 and u is d and self._is_off:
            raise TooFewDigits
        return product

    def gradient(self, u: Tensor, pull: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
        """The multipliers of w + Z' pull, and their dual."""
        g = u + pull
        return g, self.scores(g, exact)

    def begin(self, h: Tensor, C: float) -> bool:
        """Factor the Hessian at w = 0; returns whether the factor is new.

        Where a factor serves several, labels share one: their h differ by a multiple alone.
        """
        total = float(h.sum())
        at, before, first = (math.nan, 0.0, None) if self._first is None else self._first
        if self.of_one_size and at == C and before / ALIKE <= total <= before * ALIKE:
            self._now = first
            return False
        self.factor(h, C, precise=False)
        assert self._now is not None
        self._first = C, total, self._now
        return True

    def refactor(self, C: float) -> bool:
        """Keep the last factor, whatever its C: with L-BFGS it serves several (measured: three factors for nine)."""
        return self.of_one_size and self._now is not None

    def factor(self, h: Tensor, C: float, precise: bool) -> None:
        """Factor B = I + root K_c root over the rows that count, with K_c centred at their mean under h."""
        W, n = C * h, len(h)
        mean = W / W.sum().clamp_min(1e-300)
        Km = self.scores(mean, exact=True)
        rows = rows_that_count(W, (self._size - 2 * Km + mean @ Km).clamp_min(0))
        counts = torch.zeros(n, dtype=torch.bool).index_fill_(0, rows, True)
        left = torch.nonzero(~counts)[:, 0]
        W = torch.where(counts, W, 0.0)
        mean = W / W.sum().clamp_min(1e-300)
        Km = self.scores(mean, exact=True)
        self._now = None  # frees the last one
        a, root = Km[rows] - 0.5 * (mean @ Km), W[rows].sqrt()
        B, K_left = self._centred(rows, left, a, root, torch.float64 if precise else self._K.dtype)
        L = factored(B if precise else B.to(NARROW))
        if L is None:
            del B, K_left
            self.factor(h, C, precise=True)
        else:
            self._now = RowFactor(rows, left, root, mean[rows], Km[rows], K_left, L)

    def _centred(
        self, rows: Tensor, left: Tensor, a: Tensor, root: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """K - a - a' among some rows, times their roots on both sides [M, M]; and K between these and those left."""
        B, K_left = torch.empty(len(rows), len(rows), dtype=dtype), self._K.new_empty(len(rows), len(left))
        a, root = a.to(dtype), root.to(dtype)
        for start in range(0, len(rows), ROWS_OF_K):
            here = slice(start, start + ROWS_OF_K)
            own = self._K[rows[here]]
            torch.index_select(own, 1, left, out=K_left[here])
            B[here] = own[:, rows].to(dtype).sub_(a).sub_(a[here, None]).mul_(root).mul_(root[here, None])
        return B, K_left

    def solve(self, g: Tensor) -> Tensor:
        """The multipliers u of the inverse Hessian times Z'g, where g sums to 0: (I + W K_c) u = g, W = root^2.

        With W = 0 where a row does not count, u is g there, and root B^-1 (g / root - root K_c g_left) elsewhere.
        Woodbury's g - root B^-1 root K_c g would be a difference of nearly equal numbers where W K is large.
        """
        now = self._now
        assert now is not None
        u, own, left = g.clone(), g[now.rows], g[now.left]
        q = (now.K_left @ left.to(now.K_left.dtype)).double()
        q -= now.mean @ q + (now.K_mean - now.mean @ now.K_mean) * left.sum()
        each = now.root * solved(now.L, own / now.root - now.root * q).double()
        u[now.rows] = each - now.mean * (u[now.left].sum() + each.sum())
        return u


System = Primal | Kernel
