"""Two-class logistic regressions in memory: Newton's method along rising values of C.

The intercept is minimised out at every point, so the unknowns are the weights w alone, and the Hessian is
I + C Z_c' diag(h) Z_c, with Z_c the rows minus their mean under the curvatures h. Factoring it costs as much as many
products with Z. So one factor is the initial Hessian of L-BFGS for as long as that converges fast enough. Where a full
step does not decrease the objective enough (Nocedal and Wright 2006, chapter 3), the step is about the minimum along
the direction, which needs no product with Z.

Problems on the same rows share what depends on the rows alone, and the factor of one Hessian, a `System`. `Primal` has
the weights as unknowns u, and at least as many rows as features. `Kernel` has multipliers of the rows, w = Z'u, and
fewer rows than features: the optimum is a combination of the rows (the representer theorem; Schoelkopf, Herbrich and
Smola 2001), and a step needs K = Z Z' alone. There the gradient Z'g has the dual v = K g and the squared length g'v.
Factors only precondition, in float32 where that succeeds. Whatever was found passes the certificate in float64 from X
itself; a problem that misses is taken up again in float64.

Axes: N rows, D features, P problems, M rows that count in a Hessian.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.machine.lapack import cholesky, symmetric_times
from probekit.machine.threads import Shares
from probekit.probes.lbfgs import inverse_times
from probekit.probes.logistic.certificate import Certified, Solutions, within_tolerance
from probekit.probes.logistic.features import Features, gram
from probekit.probes.logistic.objective import objective_of
from probekit.probes.problem import ProblemSet, by_rising_C

LARGE = 1 << 23  # numbers in X from which several threads pay
ROWS_PER_FEATURE = 16  # from which L-BFGS over all problems at once is faster, where X is large (measured)
MOST_NUMBERS = 1 << 27  # in the standardised copy, or in the kernel matrix
AIM = 0.5  # share of the tolerance to stop at: the certificate is computed with less rounding
SHARPER = (0.1, 1e-4)  # shares of the tolerance, for problems that missed it
ROUNDING = 1e-22  # relative gap that float64 features are followed to, if rounding allows
EXACT = 1e-10  # relative gap of float64 features above which they are taken up again
ROWS_OF_K = 64  # at once, that a processor's cache holds
NUMBERS, COLUMNS = 1 << 20, 1024  # at least, in a block that the kernel matrix sums: adding N^2 numbers costs, too
BALANCED = 1e-11  # |sum of residuals| / sum of |residuals| at an optimal intercept; the certificate allows 1e-10
MOST_STEPS = 200  # of an intercept; bisection alone needs about a hundred
PAIRS = 8  # steps that L-BFGS remembers
FLAT = 1e-10  # relative decrease below which the objective has too few digits to judge a step
PATIENCE = 6  # steps without progress after which only rounding is left
ROUGH = 100  # times the tolerance, where slow progress may be the rounding of float32
CHECKS = 4  # recomputations of scores that may show a bound to be rounding
BRIEF = 5  # factors in a row that served one step each, after which they lack digits
POOR = 0.2  # share of a Newton step that shows the factor to be poor
ENOUGH = 0.3  # share of the slope that a full step must decrease the objective by
FIRST_RUNG = 400.0  # C times the mean squared length of the rows, up to which a fit from 0 is direct
APART = 10.0  # between rungs
RUNG = 0.1  # relative gap at which a rung is left
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


def rows_that_count(W: Tensor, size: Tensor) -> Tensor:
    """The numbers of the rows that count in sum W z z', in order, by weights W and squared sizes of z."""
    share = W * size
    order = share.argsort()
    kept = order[share[order].cumsum(0) > NEGLIGIBLE]
    return kept.sort().values


def factored(A: Tensor) -> Tensor | None:
    """The Cholesky factor of I + A, as one half of A; None where float32 has none, in float64 at worst the diagonal's.

    The other half is anything.
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
            del B
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


def fits(X: Tensor) -> bool:
    """Whether this method is the fastest for the features, and they are small enough for its matrices."""
    n, d = X.shape
    tall = n * d > LARGE and n > ROWS_PER_FEATURE * d  # a Hessian costs as much as a fit by L-BFGS with a sampled one
    return not tall and n * (d if n > d else n) <= MOST_NUMBERS


def solve_binary(
    X: Tensor, problems: ProblemSet, standardise: bool, by_thread: Shares, tol: float, max_iter: int
) -> Solutions:
    """Solve problems of one weighting: follow every path, certify all, and go on in float64 with what misses."""
    features = Features(X, by_thread)
    objective = objective_of(features, problems, 1, standardise, None, with_basis=False)
    mean, scale = objective.scaling.mean[0], objective.scaling.inverse_scale[0]
    weights = None if objective.weights is None else objective.weights[:, 0]
    (n, d), exact = X.shape, features.dtype == torch.float64

    def columns() -> Iterator[Tensor]:
        shift = features.shift.double()
        for some in torch.arange(d).split(max(COLUMNS, NUMBERS // n)):
            own = slice(int(some[0]), int(some[-1]) + 1)
            yield X[:, own].to(torch.float64, copy=True).sub_(shift[own]).sub_(mean[own]).mul_(scale[own])

    def primal() -> Primal:
        Z = torch.empty(n, d, dtype=torch.float64)

        def block(rows: slice, X: Tensor) -> list[Tensor]:
            Z[rows] = X.sub_(mean).mul_(scale)
            return []

        features.sum(block, torch.float64)
        return Primal(Z, not exact, by_thread)

    def unknowns(which: Tensor) -> Tensor:
        u, b = torch.stack([iterates[p].u for p in which.tolist()]), [iterates[p].b for p in which.tolist()]
        return torch.cat([system.weights(u), torch.tensor(b).double()[:, None]], dim=1)[:, None]

    tasks = [
        BinaryProblem(objective.labels[:, problem.label].double(), weights, C)
        for problem, C in zip(problems.problems, objective.C.tolist(), strict=True)
    ]
    kept = {} if problems.kept is None else problems.kept
    system: System = (
        kept[standardise] if standardise in kept else Kernel(n, columns, standardise, exact) if n <= d else primal()
    )
    if isinstance(system, Kernel):
        kept[standardise] = system
    iterates: dict[int, Iterate] = {}
    n_iter = torch.zeros(len(tasks), dtype=torch.int64)

    def follow(which: Sequence[int]) -> None:
        """Solve the problems of one label column along the path, after those that are solved."""
        at, before = origin(tasks[which[0]], system.zero()), 0.0
        for p in which:
            if p in iterates:
                u, b = iterates[p].u, iterates[p].b
                s = system.exact_scores(u)
                at, before = iterate_at(tasks[p], u, s, b, system.inner(u, u, s)), tasks[p].C
                continue
            rungs = (
                between(before, tasks[p].C, system.size) if isinstance(system, Kernel) and system.of_one_size else []
            )
            for C in [*rungs, tasks[p].C]:
                task, is_rung = replace(tasks[p], C=C), C < tasks[p].C
                aim = RUNG if is_rung else ROUNDING if exact else AIM * tol
                at, steps = descend(system, task, rescaled(system, task, at), aim, max_iter - int(n_iter[p]))
                n_iter[p] += steps
            iterates[p], before = at, tasks[p].C

    for which in by_rising_C(problems):
        try:
            follow(which)
        except TooFewDigits:
            system = kept[standardise] = Kernel(n, columns, standardise, wide=True)
            follow(which)

    def again(missed: Tensor, found: Certified, sharper: float) -> tuple[Tensor, Tensor]:
        nonlocal system
        if isinstance(system, Kernel):  # raw features of very unequal sizes: K has too few digits for the smaller
            u = system.weights(torch.stack([iterates[p].u for p in range(len(iterates))]))
            iterates.update({p: replace(at, u=u[p]) for p, at in iterates.items()})
            system = primal()
        more = torch.zeros_like(missed)
        for i, p in enumerate(missed.tolist()):
            at, task, left = iterates[p], tasks[p], max_iter - int(n_iter[p])
            at = iterate_at(task, at.u, system.exact_scores(at.u), at.b, float(at.u @ at.u))
            iterates[p], more[i] = descend(system, task, at, sharper, left, precise=True)
        return unknowns(missed), more

    v = unknowns(torch.arange(len(tasks)))
    if isinstance(system, Kernel):
        system.forget_factors()
    tols = [ROUNDING if exact else tol * share for share in SHARPER]
    return within_tolerance(objective, v, n_iter, again, tols, tol, max_iter, first=min(EXACT, tol) if exact else None)


def between(before: float, C: float, size: float) -> list[float]:
    """The rungs between two values of C, or from 0, on which the weights of separable rows are followed roughly.

    Straight to a large C, most steps take a factor; along the path two or three serve (measured: random labels of 3,200
    rows in 4,096 dimensions at C = 1e4 took 7 factors, and 2 with rungs).

    Args:
        before: the last C; 0 if there is none.
        C: the next one.
        size: the mean squared length of the rows.
    """
    lowest = max(before, FIRST_RUNG / max(size, 1e-300) / APART)
    if lowest >= C:
        return []
    n = math.ceil(math.log(C / lowest) / math.log(APART) - 1e-9)
    return [C / APART**i for i in range(n - 1, 0, -1)]


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


@dataclass(frozen=True, eq=False)
class Slope:
    """The gradient at an iterate, its dual, and how far the objective may be above its optimum."""

    g: Tensor
    v: Tensor
    bound: float

    def gap(self, f: float) -> float:
        """The bound relative to the least possible optimum."""
        return self.bound / (f - self.bound) if self.bound < f else math.inf


def balance(task: BinaryProblem, s: Tensor, b: float) -> tuple[float, Tensor, Tensor]:
    """The best intercept for scores s, and the derivatives of the loss by the scores there.

    Newton's method; where it leaves the interval that holds the root, bisection. A far root is approached in steps of
    up to 1, 2, 4, ...: where all rows are certain, the slope says nothing of the distance.
    """
    low, high, reach = -math.inf, math.inf, 1.0
    r, h, size = _derivatives(task, s + b)
    for _ in range(MOST_STEPS):
        drift, bend = float(r.sum()), float(h.sum())
        if not abs(drift) > BALANCED * float(size.sum()):
            break
        low, high = (low, b) if drift > 0 else (b, high)
        step = drift / bend if bend > 0 else math.copysign(math.inf, drift)
        new = b - min(reach, max(-reach, step))
        if not low < new < high:
            new = 0.5 * (low + high)
            if not low < new < high:  # no number is between
                break
        b, reach = new, 2 * reach
        r, h, size = _derivatives(task, s + b)
    return b, r, h


def _derivatives(task: BinaryProblem, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss's first and second derivative by the scores, without cancellation, and the size of the first."""
    wrong = torch.sigmoid(task.wrong * z)
    signed = task.wrong * wrong
    r, size = (signed, wrong) if task.weights is None else (signed * task.weights, wrong * task.weights)
    return r, r * (task.wrong - signed), size


def origin(task: BinaryProblem, zero: Tensor) -> Iterate:
    """The iterate of weights 0."""
    return iterate_at(task, zero, torch.zeros_like(task.wrong), 0.0, 0.0)


def iterate_at(task: BinaryProblem, u: Tensor, s: Tensor, b: float, square: float) -> Iterate:
    """The iterate of unknowns u with scores s, from a guess of the intercept."""
    b, r, h = balance(task, s, b)
    loss = F.softplus(task.wrong * (s + b), threshold=50)
    if task.weights is not None:
        loss = loss * task.weights
    return Iterate(u, s, b, 0.5 * square + task.C * float(loss.sum()), r, h, square)


def slope_at(system: System, task: BinaryProblem, at: Iterate, exact: bool) -> Slope:
    """The gradient at an iterate."""
    g, v = system.gradient(at.u, task.C * at.r, exact)
    return Slope(g, v, 0.5 * float((g @ v).clamp_min(0).nan_to_num(math.inf)))


def rescaled(system: System, task: BinaryProblem, at: Iterate) -> Iterate:
    """The best multiple of the weights: where a smaller C's optimum leads at a larger one."""
    along = task.C * float(at.r @ at.s)
    if not at.square + along < 0:
        return iterate_at(task, at.u, at.s, at.b, at.square)
    t = search(task, at, at.s, at.square, at.square)
    return iterate_at(task, (1 + t) * at.u, (1 + t) * at.s, at.b, (1 + t) ** 2 * at.square)


def search(task: BinaryProblem, at: Iterate, ds: Tensor, ud: float, dd: float) -> float:
    """About the step t that minimises the objective along a direction with scores ds, inner products ud and dd."""
    low, high, t, b = 0.0, math.inf, 1.0, at.b
    first = abs(ud + task.C * float(at.r @ ds))
    for _ in range(30):
        b, r, h = balance(task, at.s + t * ds, b)
        moved = h * ds
        bend = dd + task.C * float(moved @ ds - moved.sum().square() / h.sum().clamp_min(1e-300))
        slope = ud + t * dd + task.C * float(r @ ds)
        if abs(slope) <= 0.1 * first:
            break
        low, high = (t, high) if slope < 0 else (low, t)
        guess = t - slope / bend if bend > 0 else math.inf
        wide = 4 * t if math.isinf(high) else 0.5 * (low + high) if low > 0 else 0.1 * high
        t = guess if low < guess < min(high, 10 * t) else wide
    return t


class _Factor:
    """The factor in use, the steps since, and when to factor anew: if the steps left would cost more than that."""

    def __init__(self, system: System, precise: bool) -> None:
        self.system = system
        # as `inverse_times` takes them; gradients with duals [2, .]
        self.pairs: list[tuple[Tensor, Tensor, float]] = []
        self._logs: list[float] = []  # of the contraction of the gradient, step by step
        self._failed, self._precise, self._is_new = False, precise, False
        self._brief = 0  # factors in a row that served one step

    def begin(self, at: Iterate, C: float) -> None:
        if at.square == 0:
            self._is_new = self.system.begin(at.h, C)
        elif self._precise or not self.system.refactor(C):
            self.renew(at, C)

    def renew(self, at: Iterate, C: float) -> None:
        self._brief = self._brief + 1 if len(self._logs) == 1 else 0
        self._precise |= self._brief >= BRIEF
        self.system.factor(at.h, C, self._precise)
        self.pairs, self._logs, self._failed, self._is_new = [], [], False, True

    def note(self, step: Tensor, before: Slope, after: Slope, t: float) -> None:
        self._precise |= t < POOR and self._is_new  # a new factor that does not serve lacks digits
        self._failed, self._is_new = t == 0, False
        self._logs.append(0.5 * (math.log(max(after.bound, 1e-300)) - math.log(max(before.bound, 1e-300))))
        change = torch.stack([after.g - before.g, after.v - before.v])
        inner = float(_inner(step, change))
        if inner > 1e-300:
            self.pairs = [*self.pairs[1 - PAIRS :], (step, change, 1 / inner)]

    def direction(self, slope: Slope) -> Tensor:
        """Minus the inverse Hessian times the gradient."""
        both = torch.stack([slope.g, slope.v])
        return -inverse_times(self.pairs, both, lambda q: self.system.solve(q[0]), _inner, float)

    def sharpen(self) -> None:
        """Make the next factor at once, and in float64."""
        self._precise = self._failed = True

    @property
    def slow(self) -> bool:
        """Whether the last step brought the gradient down by less than a fifth."""
        return bool(self._logs) and self._logs[-1] > math.log(0.8)

    def is_stale(self, gap: float, tol: float) -> bool:
        if not self._logs:
            return False
        last = self._logs[-3:]
        fall = -sum(last) / len(last)
        need = 0.5 * math.log(max(min(gap, 1e6), tol) / tol)
        return self._failed or fall <= 0 or need / fall > self.system.patience


def _inner(step: Tensor, gradient: Tensor) -> Tensor:
    """The inner product of a step and a gradient [2, .], which has its dual in the second row."""
    return step @ gradient[1]


def descend(
    system: System, task: BinaryProblem, at: Iterate, tol: float, max_iter: int, precise: bool = False
) -> tuple[Iterate, int]:
    """Descend from an iterate until the relative bound is `tol` or only rounding is left; returns iterate and steps.

    All products are in float64 if `precise`.
    """
    exact = precise or not system.rough
    slope, factor = slope_at(system, task, at, exact), _Factor(system, precise)
    system.forget()
    best, idle, checks, n_iter = (at, slope), 0, 0, 0
    factor.begin(at, task.C)
    while n_iter < max_iter and idle < PATIENCE and checks < CHECKS:
        gap = slope.gap(at.f)
        if system.is_due(task, at, gap, tol) or (not exact and factor.slow and gap <= ROUGH * tol):
            exact, s = True, system.exact_scores(at.u)  # they were summed up step by step
            at = iterate_at(task, at.u, s, at.b, system.inner(at.u, at.u, s))
            slope, checks = slope_at(system, task, at, exact), checks + 1
            best, gap = (at, slope), slope.gap(at.f)
        if gap <= tol:
            break
        if factor.is_stale(gap, tol):
            factor.renew(at, task.C)
        new, step, t = _step(system, task, at, slope, factor.direction(slope), exact)
        after = slope_at(system, task, new, exact)
        factor.note(step, slope, after, t)
        at, slope, n_iter = new, after, n_iter + 1
        if after.bound < 0.5 * best[1].bound or at.f < best[0].f * (1 - FLAT):
            best, idle = (at, slope), 0
        else:
            idle += 1
            if idle == PATIENCE // 2:
                factor.sharpen()
    return best[0], n_iter


def _step(
    system: System, task: BinaryProblem, at: Iterate, slope: Slope, d: Tensor, exact: bool
) -> tuple[Iterate, Tensor, float]:
    """The next iterate, the step to it, and its share t of the full one d: 1 if that is good enough, else the best."""
    ds = system.scores(d, exact)
    fall = float(slope.v @ d)
    ud, dd = system.inner(at.u, d, ds), system.inner(d, d, ds)
    b = at.b - float(at.h @ ds) / max(float(at.h.sum()), 1e-300)
    new = iterate_at(task, at.u + d, at.s + ds, b, at.square + 2 * ud + dd)
    if new.f <= at.f + ENOUGH * min(fall, 0.0) or (abs(fall) <= FLAT * at.f and new.f <= at.f * (1 + FLAT)):
        return new, d, 1.0
    t = search(task, at, ds, ud, dd) if fall < 0 else 0.0
    return iterate_at(task, at.u + t * d, at.s + t * ds, at.b, at.square + 2 * t * ud + t * t * dd), t * d, t
