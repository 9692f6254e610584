"""Logistic regressions with more than two classes, in memory: inexact Newton steps by conjugate gradients.

Each label column is followed along its rising values of C, every fit from about the best combination of the two before.
A Newton step is as exact as the next gradient deserves (Dembo, Eisenstat and Steihaug 1982); its system is solved with
exact products with the Hessian, in coordinates where the features are uncorrelated, so that the Hessian is nearly
diagonal; with fewer rows than features there are no more coordinates than rows. `Diagonal` preconditions at no cost and
serves weak and medium regularisation's noise; where classes are nearly separable it leaves hundreds of iterations.
`Dense` factors the complete Hessian, where that is small enough and costs less than the iterations it saves, and serves
several steps. First steps and products are float32. Whatever was found passes the certificate in float64 from X itself;
a fit that misses is taken up again with gradients in float64.

Axes: N rows, D features, R coordinates with the last, which is 1 for the intercept, P problems, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.machine.threads import Shares
from probekit.probes.logistic.certificate import Certified, Solutions, within_tolerance
from probekit.probes.logistic.features import Array, Features, added, in_blocks
from probekit.probes.logistic.objective import Objective, objective_of
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
MOST_ROTATED = 1024  # features, or rows if there are fewer, up to which the exact axes are cheap enough
NO_VARIANCE = 1e-13  # share of the largest variance; an axis with less is left out if rows are fewer than features
BLOCK = 1 << 19  # numbers of a block's features and scores: they fit a processor's cache
MOST_UNKNOWNS = 2600  # of a dense factor: 27 MB
LIFTS = (1e-6, 1e-5, 1e-4, 1e-3)  # additions to the scaled diagonal, tried in turn where rounding leaves no factor
ONE_SHARE = 1 << 23  # multiplications of a product up to which a thread costs more than it saves


@dataclass(frozen=True, eq=False)
class Rotated:
    """The rows in their coordinates.

    Attributes:
        Z: float32 [N, R].
        axes: float64 [D, R - 1]: features = coordinates @ axes.T; None if coordinates are the features themselves.
        basis: float32 [D, some], directions in which the covariance is nearly diagonal; None if all coordinates are.
        spread: float32 [R, 1], the mean square of each coordinate, or along each direction of `basis`.
        rest: the mean square along directions orthogonal to `basis`.
        weights: float32 [N, 1]; None if all are 1.
        by_thread: who computes.
    """

    Z: Tensor
    axes: Tensor | None
    basis: Tensor | None
    spread: Tensor
    rest: float
    weights: Tensor | None
    by_thread: Shares


def rotated(objective: Objective, by_thread: Shares) -> Rotated:
    """The rows of an objective with one weighting."""
    features, weights = objective.features, objective.weights
    n, d = features.n, features.d
    own = None if weights is None else weights.float()
    if min(n, d) > MOST_ROTATED:
        Z = _standardised(objective, None)
        spread = torch.cat([objective.basis.values, torch.ones(1)]).float()[:, None]
        return Rotated(Z, None, objective.basis.vectors.float(), spread, objective.basis.rest, own, by_thread)
    if n > d:
        rows = _standardised(objective, None)[:, :-1]
        rows.div_(rows.abs().max().clamp_min(torch.finfo(rows.dtype).tiny))  # squares of the features need not fit
        _, axes = torch.linalg.eigh(product(rows.T, rows).double())
    else:  # the axes must span the rows as they are, or a gradient across them would remain
        exact = _standardised(objective, None, torch.float64)[:, :-1]
        squares, left = torch.linalg.eigh(exact @ exact.T)
        kept = squares > NO_VARIANCE * squares[-1]
        axes = exact.T @ (left[:, kept] / squares[kept].sqrt())
    Z = _standardised(objective, axes)
    square = Z.square() if own is None else Z.square() * own
    spread = square.mean(dim=0) * (n / float(square[:, -1].sum()))
    return Rotated(Z, axes, None, spread[:, None], 0.0, own, by_thread)


def _standardised(objective: Objective, axes: Tensor | None, dtype: torch.dtype = torch.float32) -> Tensor:
    """The rows centred and scaled, along `axes` if there are any, and a 1."""
    features, scaling = objective.features, objective.scaling
    Z = torch.ones(features.n, (features.d if axes is None else axes.shape[1]) + 1, dtype=dtype)

    def block(rows: slice, X: Tensor) -> list[Tensor]:
        X.sub_(scaling.mean[0]).mul_(scaling.inverse_scale[0])
        Z[rows, :-1] = X if axes is None else X @ axes
        return []

    features.sum(block, torch.float64)
    return Z


def summed(data: Rotated, K: int, work: Callable[[slice], list[Array]]) -> list[Array]:
    """Sum over blocks of rows what `work` returns for a block. Blocks are sized for R coordinates and K scores."""
    n, R = data.Z.shape
    size = max(64, BLOCK // (R + 2 * K))

    def share(rows: slice) -> list[Array]:
        return added(in_blocks(work, rows, size))

    return share(slice(0, n)) if n * R * K <= ONE_SHARE else added(data.by_thread(share, n))


def product(A: Tensor, B: Tensor) -> Tensor:
    """A B. Numpy's product with few columns takes a half to a quarter of torch's time (measured)."""
    with np.errstate(all="ignore"):  # what overflows has no certificate
        return torch.from_numpy(np.matmul(A.numpy(), B.numpy()))


def losses(data: Rotated, u: Tensor, y: Tensor) -> tuple[float, Tensor, Tensor]:
    """The summed loss at u [R, K], its gradient, and the probabilities [N, K] of all rows; y is int64 [N, 1].

    The own class of a row that fits well has a probability of nearly 1, which would lose the digits of its distance
    from 1; the other classes' probabilities have them.
    """
    p = torch.empty(len(data.Z), u.shape[1])

    def block(rows: slice) -> list[Tensor]:
        Z, here = data.Z[rows], y[rows]
        log_p = torch.log_softmax(product(Z, u), dim=1)
        first = torch.exp(log_p, out=p[rows]).scatter(1, here, 0.0)
        wrong = first.sum(dim=1, keepdim=True)
        loss = torch.where(wrong < 0.5, -torch.log1p(-wrong), -log_p.gather(1, here))
        first.scatter_(1, here, -wrong)
        if data.weights is not None:
            first *= data.weights[rows]
            loss *= data.weights[rows]
        return [loss.sum(dtype=torch.float64)[None], product(first.T, Z)]

    loss, g = summed(data, u.shape[1], block)
    return float(loss), g.T, p


def curved(data: Rotated, p: np.ndarray, top: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The product of the summed loss's Hessian with u [R, K], at probabilities p [N, K]; all float32.

    Scores move relative to that of the most likely class, `top` [N]: a difference of nearly equal numbers would lose
    the digits of a row that fits well. In numpy: torch takes 1.5 to 3 times as long (measured).
    """
    Z, weights = data.Z.numpy(), data.weights

    def block(rows: slice) -> list[np.ndarray]:
        X, here = Z[rows], p[rows]
        move = X @ u
        move -= move[np.arange(len(X)), top[rows], None]
        move -= np.einsum("nk,nk->n", here, move)[:, None]
        move *= here
        if weights is not None:
            move *= weights[rows].numpy()
        return [move.T @ X]

    return summed(data, u.shape[1], block)[0].T


def bend(data: Rotated, p: Tensor) -> Tensor:
    """The sum over rows of each class's curvature p (1 - p): [K]."""
    each = p * (1 - p)
    return (each if data.weights is None else each * data.weights).sum(dim=0)


class Diagonal:
    """The Hessian's diagonal: 1 + C * (curvature of the class) * (variance along the coordinate)."""

    def __init__(self, rows: Rotated, bend: Tensor):
        """From C times each class's curvature [K]."""
        curvature = bend.clamp_min(1e-30)
        inverse = 1 / (rows.spread * curvature + 1)
        inverse[-1] = 1 / curvature.clamp_min(float(1e-6 * curvature.max()))
        self.basis = None if rows.basis is None else rows.basis.numpy()
        self.inverse, self.other = inverse.numpy(), (1 / (rows.rest * curvature + 1)).numpy()

    def __call__(self, g: np.ndarray) -> np.ndarray:
        """The approximate inverse times g [R, K]."""
        if self.basis is None:
            return g * self.inverse
        inside = (self.basis.T @ g[:-1]) * (self.inverse[:-1] - self.other)
        return np.concatenate([self.basis @ inside + g[:-1] * self.other, g[-1:] * self.inverse[-1:]])


class Dense:
    """The Cholesky factor of the complete Hessian, in float32, its diagonal scaled to 1."""

    def __init__(self, rows: Rotated, p: Tensor, C: float):
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

    def __call__(self, g: np.ndarray) -> np.ndarray:
        """The approximate inverse times g [R, K]."""
        x = (torch.from_numpy(g).T.reshape(-1) * self.scale)[:, None]
        x = torch.linalg.solve_triangular(self.L, x, upper=False)
        x = torch.linalg.solve_triangular(self.L.mT, x, upper=True)[:, 0]
        return (x * self.scale).view(self.K, -1).T.contiguous().numpy()


def _hessian(rows: Rotated, p: Tensor) -> Tensor:
    """The lower triangle of the Hessian of the summed loss: [K * R, K * R].

    One product of all pairs of coordinates with all pairs of classes. Probabilities sum to 1, so that the sums over the
    other class of a pair give the diagonal blocks.
    """
    Z, each = rows.Z.numpy(), p.numpy()
    R, K = Z.shape[1], each.shape[1]

    def block(some: slice) -> list[np.ndarray]:
        own = each[some] if rows.weights is None else each[some] * rows.weights[some].numpy()
        return [_pairs(own, each[some], -1).T @ _pairs(Z[some], Z[some], 0)]

    (pairs,) = summed(rows, (R * R + K * K) // 16, block)
    a, b = np.tril_indices(R)
    where = np.empty((R, R), dtype=np.int64)
    where[a, b] = where[b, a] = np.arange(len(a))
    H, same, first = np.zeros((K, R, K, R), dtype=np.float32), np.zeros((K, R, R), dtype=np.float32), 0
    for k in range(K):
        others = pairs[first : first + k][:, where]
        H[k, :, :k] = -others.transpose(1, 0, 2)
        same[:k] += others
        same[k] += others.sum(axis=0)
        first += k
    for k in range(K):
        H[k, :, k] = same[k]
    return torch.from_numpy(H).view(K * R, K * R)


def _pairs(A: np.ndarray, B: np.ndarray, offset: int) -> np.ndarray:
    """The products of each column of A with those of B up to its own number (with an offset of -1, before it)."""
    n, size = A.shape
    out, first = np.empty((n, size * (size + 1 + 2 * offset) // 2), dtype=np.float32), 0
    for i in range(size):
        end = first + i + 1 + offset
        np.multiply(A[:, i, None], B[:, : i + 1 + offset], out=out[:, first:end])
        first = end
    return out


def solve_multinomial(
    X: Tensor, problems: ProblemSet, standardise: bool, by_thread: Shares, tol: float, max_iter: int
) -> Solutions:
    """Solve problems of one weighting: follow every path, certify all, and go on in float64 with what misses."""
    features, K = Features(X, by_thread), problems.labels[0].n_classes
    objective = objective_of(features, problems, K, standardise, None, with_basis=min(X.shape) > MOST_ROTATED)
    rows, P, exact = rotated(objective, by_thread), len(objective.C), features.dtype == torch.float64
    u, n_iter = torch.zeros(P, rows.Z.shape[1], K, dtype=torch.float64), torch.zeros(P, dtype=torch.int64)
    for which in by_rising_C(problems):
        path = _Path(objective, rows, max_iter)
        start = u[which[0]]
        for p in which:
            start, n_iter[p] = path.follow(p, start, AIM * tol, 0)
            u[p] = start

    def again(missed: Tensor, found: Certified, sharper: float) -> tuple[Tensor, Tensor]:
        more = torch.zeros_like(missed)
        for i, p in enumerate(missed.tolist()):
            path = _Path(objective, rows, max_iter, exact=True)
            u[p, -1] = found.v[p, :, -1]
            u[p], more[i] = path.follow(p, u[p], sharper, int(n_iter[p]))
        return _weights(rows, u[missed]), more

    tols = [ROUNDING if exact and not number else tol * share for number, share in enumerate(SHARPER)]
    return within_tolerance(
        objective, _weights(rows, u), n_iter, again, tols, tol, max_iter, first=0.0 if exact else None
    )


def _weights(rows: Rotated, u: Tensor) -> Tensor:
    """Weights and intercepts v [P, K, D + 1] of coordinates u [P, R, K]."""
    if rows.axes is None:
        return u.mT.contiguous()
    return torch.cat([rows.axes @ u[:, :-1], u[:, -1:]], dim=1).mT.contiguous()


@dataclass(frozen=True, eq=False)
class _Iterate:
    """A point u [R, K], float64: the objective, its gradient, the probabilities [N, K] and C * curvatures [K] there."""

    u: Tensor
    f: float
    g: Tensor
    p: Tensor
    bend: Tensor

    @property
    def size(self) -> float:
        """About the length of the gradient with the intercepts minimised out.

        A class whose rows all fit well has a flat intercept: a small gradient there moves it far, and the others too.
        """
        w, b = self.g[:-1], self.g[-1]
        return float((w.square().sum() + (b.square() / self.bend.clamp(1e-12, 1)).sum()).sqrt())


class _Path:
    """The fits of one label column by rising C, and what they hand on."""

    def __init__(self, objective: Objective, rows: Rotated, max_iter: int, exact: bool = False):
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
            here = self.extrapolated(here, [start] if self.last is None else [start, start - self.last])
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

    def at(self, u: Tensor) -> _Iterate:
        """The point u: in float64 if this path is sharp."""
        if not self.sharp:
            loss, g, p = losses(self.rows, u.float(), self.y)
            g = self.C * g.double()
            g[:-1] += u[:-1]
            return _Iterate(u, 0.5 * float(u[:-1].square().sum()) + self.C * loss, g, p, self.C * bend(self.rows, p))
        point = self.one.at(_weights(self.rows, u[None]), torch.float64, second=False)
        g, axes = point.g[0].T, self.rows.axes
        g = g if axes is None else torch.cat([axes.T @ g[:-1], g[-1:]])
        p = torch.softmax(point.z[:, 0].float(), dim=1)
        return _Iterate(u, float(point.f), g, p, self.C * bend(self.rows, p))

    def newton(self, here: _Iterate, enough: float) -> Tensor:
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

    def extrapolated(self, here: _Iterate, ways: list[Tensor]) -> _Iterate:
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

    def inverse(self, here: _Iterate) -> Dense | Diagonal:
        """The preconditioner at a point; a factor only where it pays."""
        renew = self.worth if self.dense is None else max(10, SAVED * self.worth)
        if self.slow > renew or (self.dense is None and self.spent > renew):
            self.dense = Dense(self.rows, here.p, self.C)
        self.limit = max(renew, 10) + 1 if np.isfinite(renew) else np.inf
        if self.dense is not None and self.dense.found:
            return self.dense
        return Diagonal(self.rows, here.bend)

    def along(self, here: _Iterate, d: Tensor) -> _Iterate | None:
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
