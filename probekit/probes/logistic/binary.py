"""Two-class logistic regressions in memory: Newton's method along rising values of C.

The intercept is minimised out at every point, so the unknowns are the weights w alone, and the Hessian is
I + C Z_c' diag(h) Z_c, with Z_c the rows minus their mean under the curvatures h. Factoring it costs as much as many
products with Z. So one factor is the initial Hessian of L-BFGS for as long as that converges fast enough. Where a full
step does not decrease the objective enough (Nocedal and Wright 2006, chapter 3), the step is about the minimum along
the direction, which needs no product with Z.

Problems on the same rows share a `System`. Whatever was found passes the certificate in float64 from X itself; a
problem that misses is taken up again in float64.

Axes: N rows, D features, P problems.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.machine.threads import Shares
from probekit.probes.lbfgs import inverse_times
from probekit.probes.logistic.certificate import Certified, Solutions, within_tolerance
from probekit.probes.logistic.features import Features
from probekit.probes.logistic.objective import objective_of
from probekit.probes.logistic.systems import BinaryProblem, Iterate, Kernel, Primal, System, TooFewDigits
from probekit.probes.problem import ProblemSet, by_rising_C

LARGE = 1 << 23  # numbers in X from which several threads pay
ROWS_PER_FEATURE = 16  # from which L-BFGS over all problems at once is faster, where X is large (measured)
MOST_NUMBERS = 1 << 27  # in the standardised copy, or in the kernel matrix
AIM = 0.5  # share of the tolerance to stop at: the certificate is computed with less rounding
SHARPER = (0.1, 1e-4)  # shares of the tolerance, for problems that missed it
ROUNDING = 1e-22  # relative gap that float64 features are followed to, if rounding allows
NUMBERS, COLUMNS = 1 << 20, 1024  # at least, in a block that the kernel matrix sums: adding N^2 numbers costs, too
EXACT = 1e-10  # relative gap of float64 features above which they are taken up again
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


def fits(X: Tensor) -> bool:
    """Whether this method is the fastest for the features, and they are small enough for its matrices."""
    n, d = X.shape
    tall = n * d > LARGE and n > ROWS_PER_FEATURE * d  # a Hessian costs as much as a fit by L-BFGS with a sampled one
    return not tall and n * (d if n > d else n) <= MOST_NUMBERS


def solve_binary(
    X: Tensor, problems: ProblemSet, standardise: bool, by_thread: Shares, tol: float, max_iter: int
) -> Solutions:
    """Solve problems of one weighting: follow every path, certify all, and go on in float64 with what misses."""
    return _Solve(X, problems, standardise, by_thread, tol, max_iter).solutions()


class _Solve:
    """The iterates of some problems on the same rows, whose system a later solve may take over."""

    def __init__(
        self, X: Tensor, problems: ProblemSet, standardise: bool, by_thread: Shares, tol: float, max_iter: int
    ):
        self._X, self._problems, self._by_thread = X, problems, by_thread
        self._tol, self._max_iter = tol, max_iter
        self._features = Features(X, by_thread)
        self._objective = objective_of(self._features, problems, 1, standardise, None, with_basis=False)
        self._exact = self._features.dtype == torch.float64
        weights = None if self._objective.weights is None else self._objective.weights[:, 0]
        self._tasks = [
            BinaryProblem(self._objective.labels[:, problem.label].double(), weights, C)
            for problem, C in zip(problems.problems, self._objective.C.tolist(), strict=True)
        ]
        self._iterates: dict[int, Iterate] = {}
        self._n_iter = torch.zeros(len(self._tasks), dtype=torch.int64)
        self._kept, self._standardise = {} if problems.kept is None else problems.kept, standardise
        self._system = self._kept.get(standardise) or self._new_system()

    def solutions(self) -> Solutions:
        for which in by_rising_C(self._problems):
            try:
                self._follow(which)
            except TooFewDigits:
                self._system = self._kernel(wide=True)
                self._follow(which)
        v = self._unknowns(torch.arange(len(self._tasks)))
        if isinstance(self._system, Kernel):
            self._system.forget_factors()
        exact, tol = self._exact, self._tol
        tols = [ROUNDING if exact else tol * share for share in SHARPER]
        first = min(EXACT, tol) if exact else None
        return within_tolerance(self._objective, v, self._n_iter, self._again, tols, tol, self._max_iter, first)

    def _new_system(self) -> System:
        n, d = self._X.shape
        return self._kernel(self._exact) if n <= d else self._primal()

    def _kernel(self, wide: bool) -> Kernel:
        """The system of the rows; kept for the next solve."""
        kernel = self._kept[self._standardise] = Kernel(len(self._X), self._columns, self._standardise, wide)
        return kernel

    def _columns(self) -> Iterator[Tensor]:
        """Z [N, D] in float64, some columns at a time."""
        (n, d), shift = self._X.shape, self._features.shift.double()
        scaling = self._objective.scaling
        mean, scale = scaling.mean[0], scaling.inverse_scale[0]
        for some in torch.arange(d).split(max(COLUMNS, NUMBERS // n)):
            own = slice(int(some[0]), int(some[-1]) + 1)
            yield self._X[:, own].to(torch.float64, copy=True).sub_(shift[own]).sub_(mean[own]).mul_(scale[own])

    def _primal(self) -> Primal:
        """The system of the features."""
        scaling = self._objective.scaling
        Z = torch.empty(*self._X.shape, dtype=torch.float64)

        def block(rows: slice, X: Tensor) -> list[Tensor]:
            Z[rows] = X.sub_(scaling.mean[0]).mul_(scaling.inverse_scale[0])
            return []

        self._features.sum(block, torch.float64)
        return Primal(Z, not self._exact, self._by_thread)

    def _follow(self, which: Sequence[int]) -> None:
        """Solve the problems of one label column along the path, after those that are solved."""
        system, tasks = self._system, self._tasks
        at, before = origin(tasks[which[0]], system.zero()), 0.0
        for p in which:
            if p in self._iterates:
                u, b = self._iterates[p].u, self._iterates[p].b
                s = system.exact_scores(u)
                at, before = iterate_at(tasks[p], u, s, b, system.inner(u, u, s)), tasks[p].C
                continue
            rungs = []
            if isinstance(system, Kernel) and system.of_one_size:
                rungs = between(before, tasks[p].C, system.size)
            for C in [*rungs, tasks[p].C]:
                task, is_rung = replace(tasks[p], C=C), C < tasks[p].C
                aim = RUNG if is_rung else ROUNDING if self._exact else AIM * self._tol
                left = self._max_iter - int(self._n_iter[p])
                at, steps = descend(system, task, rescaled(system, task, at), aim, left)
                self._n_iter[p] += steps
            self._iterates[p], before = at, tasks[p].C

    def _unknowns(self, which: Tensor) -> Tensor:
        """Weights and intercepts [P, 1, D + 1] of some problems."""
        some = [self._iterates[p] for p in which.tolist()]
        weights = self._system.weights(torch.stack([at.u for at in some]))
        return torch.cat([weights, torch.tensor([at.b for at in some]).double()[:, None]], dim=1)[:, None]

    def _again(self, missed: Tensor, found: Certified, sharper: float) -> tuple[Tensor, Tensor]:
        """Go on in float64 with the problems that missed; returns their unknowns and the steps."""
        if isinstance(self._system, Kernel):  # raw features of very unequal sizes: K has too few digits for the smaller
            u = self._system.weights(torch.stack([self._iterates[p].u for p in range(len(self._iterates))]))
            self._iterates = {p: replace(at, u=u[p]) for p, at in self._iterates.items()}
            self._system = self._primal()
        system, more = self._system, torch.zeros_like(missed)
        for i, p in enumerate(missed.tolist()):
            at, task, left = self._iterates[p], self._tasks[p], self._max_iter - int(self._n_iter[p])
            at = iterate_at(task, at.u, system.exact_scores(at.u), at.b, float(at.u @ at.u))
            self._iterates[p], more[i] = descend(system, task, at, sharper, left, precise=True)
        return self._unknowns(missed), more


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
