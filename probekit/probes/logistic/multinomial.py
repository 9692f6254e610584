"""Logistic regressions with more than two classes, in memory: inexact Newton steps by conjugate gradients.

Each label column is followed along its rising values of C, every fit from about the best combination of the two before.
A Newton step is as exact as the next gradient deserves (Dembo, Eisenstat and Steihaug 1982); its system is solved with
exact products with the Hessian, preconditioned by the Hessian's diagonal in coordinates where the features are
uncorrelated, and by a complete factor where that costs less than the iterations it saves. First steps and products are
float32. Whatever was found passes the certificate in float64 from X itself; a fit that misses is taken up again with
gradients in float64.

Axes: N rows, D features, R coordinates with the constant, P problems, K classes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.machine.threads import Shares
from probekit.probes.logistic.certificate import Certified, Solutions, within_tolerance
from probekit.probes.logistic.features import Features
from probekit.probes.logistic.objective import Objective, objective_of
from probekit.probes.logistic.softmax import (
    MOST_UNKNOWNS,
    TURNED,
    Dense,
    Diagonal,
    Turned,
    bend,
    curved,
    losses,
    turned,
)
from probekit.probes.problem import ProblemSet, by_rising_C

LARGE = 1 << 19  # numbers in X from which several threads pay
AIM = 0.7  # share of the tolerance to stop at: the certificate is computed with less rounding
SHARPER = (0.5, 0.01)  # shares of the tolerance, for fits that missed it
ROUNDING = 1e-18  # relative gap that float64 features are followed to, if rounding allows
FLATTER = 0.3  # share of the slope that a point on a line may keep
TRIALS = 4  # points on a line
FIRST = 10  # most steps along known directions
FORCING = 0.1  # share of the gradient that a Newton step may leave
BEYOND = 0.6  # share of the gradient aimed at: a step need not leave less
LEAST = 1e-6  # relative decrease that float32 shows
MOST_PRODUCTS = 3e12  # multiplications of one fit's products with the Hessian: half a minute of two cores
FACTOR_RATE = 1.0  # time of a multiplication in a factor, in that of one in a product with the Hessian (measured)
SAVED = 0.1  # share of a factor's cost in iterations, at which a stale factor is renewed


def solve_multinomial(
    X: Tensor, problems: ProblemSet, standardise: bool, by_thread: Shares, tol: float, max_iter: int
) -> Solutions:
    """Solve problems of one weighting: follow every path, certify all, and go on in float64 with what misses."""
    features, K = Features(X, by_thread), problems.labels[0].n_classes
    objective = objective_of(features, problems, K, standardise, None, with_basis=min(X.shape) > TURNED)
    rows, P, exact = turned(objective, by_thread), len(objective.C), features.dtype == torch.float64
    u, n_iter = torch.zeros(P, rows.Z.shape[1], K, dtype=torch.float64), torch.zeros(P, dtype=torch.int64)
    for which in by_rising_C(problems):
        path = _Path(objective, rows, max_iter)
        start = u[which[0]]
        for p in which:
            start, n_iter[p] = path.follow(p, start, AIM * tol, 0)
            u[p] = start

    def again(late: Tensor, found: Certified, sharper: float) -> tuple[Tensor, Tensor]:
        more = torch.zeros_like(late)
        for i, p in enumerate(late.tolist()):
            path = _Path(objective, rows, max_iter, exact=True)
            u[p, -1] = found.v[p, :, -1]
            u[p], more[i] = path.follow(p, u[p], sharper, int(n_iter[p]))
        return _weights(rows, u[late]), more

    tols = [ROUNDING if exact and not number else tol * share for number, share in enumerate(SHARPER)]
    return within_tolerance(objective, _weights(rows, u), n_iter, again, tols, tol, max_iter, every=exact)


def _weights(rows: Turned, u: Tensor) -> Tensor:
    """Weights and intercepts v [P, K, D + 1] of coordinates u [P, R, K]."""
    if rows.axes is None:
        return u.mT.contiguous()
    return torch.cat([rows.axes @ u[:, :-1], u[:, -1:]], dim=1).mT.contiguous()


@dataclass(frozen=True, eq=False)
class _Here:
    """A point u [R, K], float64: the objective, its gradient, the probabilities [N, K] and C * curvatures [K] there."""

    u: Tensor
    f: float
    g: Tensor
    p: Tensor
    bend: Tensor

    def length(self, g: Tensor) -> float:
        """About the length of a gradient g [R, K] with the intercepts minimised out.

        A class whose rows all fit well has a flat intercept: a small gradient there moves it far, and the others too.
        """
        return float((g[:-1].square().sum() + (g[-1].square() / self.bend.clamp(1e-12, 1)).sum()).sqrt())

    @property
    def size(self) -> float:
        """The length of the gradient."""
        return self.length(self.g)


class _Path:
    """The fits of one label column by rising C, and what they hand on."""

    def __init__(self, objective: Objective, rows: Turned, max_iter: int, exact: bool = False):
        self.objective, self.rows, self.max_iter, self.exact = objective, rows, max_iter, exact
        (N, R), K = rows.Z.shape, objective.K
        self.most = MOST_PRODUCTS / (2 * N * R * K) * (0.2 if exact else 1)  # products that a fit may take
        cost = N * (R * K) ** 2 / 4 + (R * K) ** 3 / 6
        self.worth = FACTOR_RATE * cost / (2 * N * R * K) if R * K <= MOST_UNKNOWNS else np.inf
        self.dense: Dense | None = None
        self.last: Tensor | None = None  # the solution before `start`
        self.spent = 0  # products of this fit
        self.slow = 0  # those of the last step

    def follow(self, p: int, start: Tensor, aim: float, before: int) -> tuple[Tensor, int]:
        """Descend on problem p from `start` [R, K] to the relative gap `aim`; also returns the number of steps."""
        self.one = self.objective.of(torch.tensor([p]))
        self.C = float(self.one.C)
        self.y = self.objective.labels[:, int(self.one.label_of), None]
        if self.dense is None and self.spent > 0.6 * self.worth:
            self.slow = self.spent
        elif self.dense is not None:
            self.dense.factor(self.C)
        self.spent, self.sharp = 0, self.exact
        here, steps = self.at(start), 0
        if start.any() and not self.exact:
            here = self.onward(here, [start] if self.last is None else [start, start - self.last])
            self.last = start
        while steps + before < self.max_iter and self.spent < self.most:
            target = (2 * aim * here.f) ** 0.5
            if here.size <= target:
                break
            d = self.newton(here, max(FORCING * here.size, BEYOND * target))
            steps += 1
            new = self.along(here, d)
            if new is not None and (new.f < here.f * (1 - (0 if self.sharp else LEAST)) or new.size < 0.5 * here.size):
                here = new
            elif self.sharp:
                break
            else:  # float32 shows no more
                self.sharp = True
                here = self.at(here.u)
        return here.u, steps

    def at(self, u: Tensor) -> _Here:
        """The point u: in float64 if this path is sharp."""
        if not self.sharp:
            loss, g, p = losses(self.rows, u.float(), self.y)
            g = self.C * g.double()
            g[:-1] += u[:-1]
            return _Here(u, 0.5 * float(u[:-1].square().sum()) + self.C * loss, g, p, self.C * bend(self.rows, p))
        point = self.one.at(_weights(self.rows, u[None]), torch.float64, second=False)
        g, axes = point.g[0].T, self.rows.axes
        g = g if axes is None else torch.cat([axes.T @ g[:-1], g[-1:]])
        p = torch.softmax(point.z[:, 0].float(), dim=1)
        return _Here(u, float(point.f), g, p, self.C * bend(self.rows, p))

    def newton(self, here: _Here, enough: float) -> Tensor:
        """Newton's direction [R, K] at a point, so exact that the next gradient is about `enough` long."""
        inverse, p, size = self.inverse(here), here.p.numpy(), here.size
        top, flat = p.argmax(axis=1), (1 / here.bend.clamp(1e-12, 1) - 1).float().numpy()
        r = (here.g / -size).float().numpy()
        x, z = np.zeros_like(r), inverse(r)
        d, power, self.slow = z.copy(), float(np.vdot(r, z)), 0
        while power > 0 and self.slow < self.limit and self.spent < self.most:
            h, self.slow = self.curved(p, top, d), self.slow + 1
            curvature = float(np.vdot(d, h))
            if not curvature > 0:
                break
            x += np.float32(power / curvature) * d
            r -= np.float32(power / curvature) * h
            if (np.vdot(r, r) + float(np.square(r[-1]) @ flat)) ** 0.5 * size <= enough:
                break
            z = inverse(r)
            power, before = float(np.vdot(r, z)), power
            d *= np.float32(power / before)
            d += z
        step = torch.from_numpy(x).double() * size
        return step - step.mean(dim=1, keepdim=True)  # the same for all classes changes no score's difference

    def curved(self, p: np.ndarray, top: np.ndarray, d: np.ndarray) -> np.ndarray:
        """The Hessian times d [R, K], at probabilities p."""
        h = np.float32(self.C) * curved(self.rows, p, top, d)
        h[:-1] += d[:-1]
        self.spent += 1
        return h

    def onward(self, here: _Here, ways: list[Tensor]) -> _Here:
        """About the lowest point along some directions [R, K].

        Where data are separable, weights grow by log C: each Newton step would only divide the loss by about e.
        """
        for _ in range(FIRST):
            p = here.p.numpy()
            top, D = p.argmax(axis=1), torch.stack(ways).flatten(1)
            H = torch.stack([torch.from_numpy(self.curved(p, top, each.float().numpy())) for each in ways])
            slope = D @ here.g.flatten()
            inside = D @ H.double().flatten(1).T
            inside.diagonal().mul_(1 + 1e-9)  # the directions may be parallel
            step, _ = torch.linalg.solve_ex(inside, -slope)
            new = self.along(here, (step @ D).view_as(here.g))
            if new is None or here.f - new.f < 0.01 * here.f:
                return here if new is None else new
            here = new
        return here

    def inverse(self, here: _Here) -> Dense | Diagonal:
        """The preconditioner at a point; a factor only where it pays."""
        renew = self.worth if self.dense is None else max(10, SAVED * self.worth)
        if self.slow > renew or (self.dense is None and self.spent > renew):
            self.dense = Dense(self.rows, here.p, self.C)
        self.limit = max(renew, 10) + 1 if np.isfinite(renew) else np.inf
        if self.dense is not None and self.dense.found:
            return self.dense
        return Diagonal(self.rows, here.bend)

    def along(self, here: _Here, d: Tensor) -> _Here | None:
        """About the lowest point along d, by the secant of the slopes; None if rounding leaves nothing to gain."""
        slope, t, best = float((here.g * d).sum()), 1.0, None
        for _ in range(TRIALS):
            new = self.at(here.u + t * d)
            there, shorter = float((new.g * d).sum()), new.size < 0.5 * here.size
            lower = new.f <= here.f + 1e-4 * t * slope or (shorter and new.f <= here.f * (1 + 1e-6))
            if lower and (best is None or new.f < best.f):
                best = new
            if lower and (shorter or abs(there) <= FLATTER * abs(slope)):
                break
            t *= min(max(slope / (slope - there), 0.1), 4.0) if there > slope else 0.1
        return best
