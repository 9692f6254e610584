"""Newton's method for two-class logistic regression, with a Hessian factor that serves many steps.

The intercept is minimised out at every point, so the unknowns are the weights w alone, and the Hessian is
I + C Z_c' diag(h) Z_c, with Z_c the rows minus their mean under the curvatures h. Factoring it costs as much as many
products with Z. So one factor is kept while L-BFGS (Liu and Nocedal 1989), started from it, converges fast enough.

A `System` says what the unknowns u are: the weights (`Primal`), or the rows' multipliers (`Kernel`, w = Z'u).

Axes: N rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

BALANCED = 1e-11  # |sum of residuals| / sum of |residuals| at an optimal intercept; the certificate allows 1e-10
TINY = 1e-7  # step of an intercept whose square is rounding: residuals follow it by their derivative
MOST_STEPS = 500  # Newton steps of an intercept; one is clamped to 1, so far intercepts need many
PAIRS = 8  # steps that L-BFGS remembers
FLAT = 1e-10  # relative decrease below which the objective has too few digits to judge a step
PATIENCE = 6  # steps without progress after which only rounding is left
ROUGH = 100  # times the tolerance, where slow progress may be the rounding of float32
CHECKS = 4  # recomputations of scores that may show a bound to be rounding
POOR = 0.2  # share of a Newton step that shows the factor to be poor
ENOUGH = 0.3  # share of the slope that a full step must decrease the objective by


class System(Protocol):
    """The standardised rows Z, as products with the unknowns u. A gradient g comes with its dual v: g'd is v @ d.

    Products that are not `exact` may be in float32, if the system is `rough`.
    """

    rough: bool
    patience: float  # steps that cost as much as a factor

    def zero(self) -> Tensor:
        """The unknowns of w = 0."""
        ...

    def weights(self, u: Tensor) -> Tensor:
        """The weights [P, D] of unknowns [P, ...]."""
        ...

    def scores(self, u: Tensor, exact: bool) -> Tensor:
        """Z w [N]."""
        ...

    def inner(self, u: Tensor, d: Tensor, scores: Tensor) -> float:
        """The inner product of the weights of u and d, where `scores` are those of d."""
        ...

    def gradient(self, u: Tensor, pull: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
        """The gradient w + Z' pull and its dual."""
        ...

    def begin(self, h: Tensor, C: float) -> None:
        """Factor the Hessian at w = 0 and curvatures h [N]."""
        ...

    def factor(self, h: Tensor, C: float, precise: bool) -> None:
        """Factor the Hessian at curvatures h, in float64 if `precise`."""
        ...

    def refactor(self, C: float) -> bool:
        """Factor the last Hessian at another C, if that is cheap; returns whether it was."""
        ...

    def solve(self, g: Tensor, v: Tensor) -> Tensor:
        """The unknowns of the inverse Hessian times g, whose dual is v."""
        ...


@dataclass(frozen=True, eq=False)
class BinaryProblem:
    """The sign of a wrong score (-1 for class 1, 1 for class 0) and the weight (None: 1) of each row [N], and C."""

    wrong: Tensor
    weights: Tensor | None
    C: float


@dataclass(frozen=True, eq=False)
class Place:
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
    """The gradient at a place, its dual, and how far the objective may be above its optimum."""

    g: Tensor
    v: Tensor
    bound: float

    def gap(self, f: float) -> float:
        """The bound relative to the least possible optimum."""
        return self.bound / (f - self.bound) if self.bound < f else math.inf


def balance(task: BinaryProblem, s: Tensor, b: float) -> tuple[float, Tensor, Tensor]:
    """The best intercept for scores s, and the derivatives of the loss by the scores there."""
    r, h, size = _derivatives(task, s + b)
    for _ in range(MOST_STEPS):
        drift, bend = float(r.sum()), float(h.sum())
        if abs(drift) <= BALANCED * float(size.sum()) or not bend > 0:
            break
        step = min(1.0, max(-1.0, -drift / bend))
        b += step
        if abs(step) < TINY:
            return b, r + step * h, h
        r, h, size = _derivatives(task, s + b)
    return b, r, h


def _derivatives(task: BinaryProblem, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss's first and second derivative by the scores, without cancellation, and the size of the first."""
    wrong = torch.sigmoid(task.wrong * z)
    signed = task.wrong * wrong
    r, size = (signed, wrong) if task.weights is None else (signed * task.weights, wrong * task.weights)
    return r, r * (task.wrong - signed), size


def place(task: BinaryProblem, u: Tensor, s: Tensor, b: float, square: float) -> Place:
    """The place of unknowns u with scores s, from a guess of the intercept."""
    b, r, h = balance(task, s, b)
    loss = F.softplus(task.wrong * (s + b), threshold=50)
    if task.weights is not None:
        loss = loss * task.weights
    return Place(u, s, b, 0.5 * square + task.C * float(loss.sum()), r, h, square)


def slope_at(system: System, task: BinaryProblem, at: Place, exact: bool) -> Slope:
    """The gradient at a place."""
    g, v = system.gradient(at.u, task.C * at.r, exact)
    return Slope(g, v, 0.5 * max(0.0, float(g @ v)))


def stretched(system: System, task: BinaryProblem, at: Place) -> Place:
    """The best multiple of a place's weights: where a smaller C's optimum leads at a larger one."""
    along = task.C * float(at.r @ at.s)
    if not at.square + along < 0:
        return place(task, at.u, at.s, at.b, at.square)
    t = search(task, at, at.s, at.square, at.square)
    return place(task, (1 + t) * at.u, (1 + t) * at.s, at.b, (1 + t) ** 2 * at.square)


def search(task: BinaryProblem, at: Place, ds: Tensor, ud: float, dd: float) -> float:
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


class _Memory:
    """The last steps since a factor, and their changes of the gradient: the two loops of L-BFGS."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor, Tensor, float]] = []

    def add(self, step: Tensor, before: Slope, after: Slope) -> None:
        change, dual = after.g - before.g, after.v - before.v
        inner = float(step @ dual)
        if inner > 0:
            self._pairs = [*self._pairs[1 - PAIRS :], (step, change, dual, inner)]

    def direction(self, system: System, slope: Slope) -> Tensor:
        """Minus the inverse Hessian times the gradient."""
        g, v, shares = slope.g, slope.v, []
        for step, change, dual, inner in reversed(self._pairs):
            share = float(step @ v) / inner
            g, v = g - share * change, (v - share * dual)
            shares.append(share)
        d = system.solve(g, v)
        for (step, _, dual, inner), share in zip(self._pairs, reversed(shares), strict=True):
            d = d + (share - float(dual @ d) / inner) * step
        return -d


class _Factor:
    """The factor in use, the steps since, and when to factor anew: if the steps left would cost more than that."""

    def __init__(self, system: System, precise: bool) -> None:
        self.system, self.memory = system, _Memory()
        self._logs: list[float] = []  # of the contraction of the gradient, step by step
        self._failed, self._precise = False, precise

    def begin(self, at: Place, C: float) -> None:
        if at.square == 0:
            self.system.begin(at.h, C)
        elif self._precise or not self.system.refactor(C):
            self.renew(at, C)

    def renew(self, at: Place, C: float) -> None:
        self.system.factor(at.h, C, self._precise)
        self.memory, self._logs, self._failed = _Memory(), [], False

    def note(self, step: Tensor, before: Slope, after: Slope, t: float) -> None:
        self._precise |= t < POOR and not self._logs  # a new factor that does not serve lacks digits
        self._failed = t == 0
        self._logs.append(0.5 * math.log(max(after.bound, 1e-300) / max(before.bound, 1e-300)))
        self.memory.add(step, before, after)

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


def descend(
    system: System, task: BinaryProblem, at: Place, tol: float, max_iter: int, precise: bool = False
) -> tuple[Place, int]:
    """Descend from a place until the relative bound is `tol` or only rounding is left; returns place and steps.

    All products are in float64 if `precise`.
    """
    exact = precise or not system.rough
    slope, factor = slope_at(system, task, at, exact), _Factor(system, precise)
    best, idle, checks, n_iter = (at, slope), 0, 0, 0
    factor.begin(at, task.C)
    while n_iter < max_iter and idle < PATIENCE and checks < CHECKS:
        gap = slope.gap(at.f)
        if gap <= tol or (not exact and factor.slow and gap <= ROUGH * tol):
            exact = True
            at = place(task, at.u, system.scores(at.u, exact), at.b, at.square)  # they were summed up step by step
            slope, checks = slope_at(system, task, at, exact), checks + 1
            best, gap = (at, slope), slope.gap(at.f)
            if gap <= tol:
                break
        if factor.is_stale(gap, tol):
            factor.renew(at, task.C)
        new, step, t = _step(system, task, at, slope, factor.memory, exact)
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
    system: System, task: BinaryProblem, at: Place, slope: Slope, memory: _Memory, exact: bool
) -> tuple[Place, Tensor, float]:
    """The next place, the step to it, and its share t of the full one: 1 if that is good enough, else the best."""
    d = memory.direction(system, slope)
    ds = system.scores(d, exact)
    fall = float(slope.v @ d)
    ud, dd = system.inner(at.u, d, ds), system.inner(d, d, ds)
    b = at.b - float(at.h @ ds) / max(float(at.h.sum()), 1e-300)
    new = place(task, at.u + d, at.s + ds, b, at.square + 2 * ud + dd)
    if new.f <= at.f + ENOUGH * fall or abs(fall) <= FLAT * at.f:
        return new, d, 1.0
    t = search(task, at, ds, ud, dd) if fall < 0 else 0.0
    return place(task, at.u + t * d, at.s + t * ds, at.b, at.square + 2 * t * ud + t * t * dd), t * d, t


def path(system: System, tasks: Sequence[BinaryProblem], tol: float, max_iter: int) -> list[tuple[Place, int]]:
    """Solutions of tasks that differ in C alone, which rises: each starts from the one before."""
    first = tasks[0]
    at = place(first, system.zero(), torch.zeros_like(first.wrong), 0.0, 0.0)
    found = []
    for number, task in enumerate(tasks):
        start = stretched(system, task, at) if number else at
        at, n_iter = descend(system, task, start, tol, max_iter)
        found.append((at, n_iter))
    return found
