"""L2-regularised logistic regression to the optimum, many problems over the same features in one solve.

The objective is scikit-learn's, 0.5 |w|^2 + C * (sum of log losses), intercept free; for more than two classes w holds
a row for each class (multinomial). Standardising is a change of variables, and a fold a weight of 0: neither copies X.

Problems go down together by L-BFGS (Liu and Nocedal 1989), so that a pass over X is one matrix product. In the
eigenbasis of the covariance the Hessian is nearly diagonal, C * (curvature of the loss) * eigenvalue + 1, and that is
what L-BFGS starts from at every iteration.

The certificate needs nothing but the gradient. With the intercept minimised out the objective F is 1-strongly convex in
w, so F(w) - min F <= |grad F(w)|^2 / 2, which for logistic regression is the duality gap at the dual point that the
residuals make. It is computed in float64, from X as it is, whatever the iterations were computed in.

Axes: N rows, D features, P problems, K score columns of a problem (1 for two classes, C for more), M weightings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from probekit.probes.features import Basis, Features, Moments, Stream, basis, moments, on_device
from probekit.probes.losses import Binary, Multinomial
from probekit.probes.problem import Problem
from probekit.probes.threads import shares

TOLERANCE = 1e-6  # of the relative distance to the optimum
MEMORY = 10  # pairs that L-BFGS remembers
MAX_ITER = 500
NEWTON_AFTER = 12  # iterations, or a sixteenth of the unknowns: then their Hessian is worth its price
NEWTON_UP_TO = 4200  # unknowns of one problem
SMALL = 1 << 19  # features in all, up to which one thread is the fastest
MOST_SCORES = 1 << 26  # scores held at once; more problems than that go in parts
ENOUGH_DECREASE, ENOUGH_FLATTER = 1e-4, 0.3  # Wolfe's conditions; the second is what a search along a line costs for
BALANCED = 1e-13  # the sum of residuals, relative to that of the weights, at which an intercept is the best one


@dataclass(frozen=True)
class _Arithmetic:
    """How far down each type of number is followed."""

    aim: float  # relative gap that is enough, where it is less than the tolerance
    least: float  # relative decrease that is not worth a pass
    rounding: float  # of the objective, relative
    patience: int  # passes that gain nothing but a flatter gradient, which has more digits than the objective


ARITHMETIC = {
    torch.float32: _Arithmetic(aim=1.0, least=1e-7, rounding=1e-7, patience=1),
    torch.float64: _Arithmetic(aim=1e-22, least=1e-23, rounding=1e-15, patience=5),  # down to rounding
}


@dataclass(frozen=True, eq=False)
class Solutions:
    """The optimum of each of P problems, for features as they are.

    Attributes:
        coef: float64 [P, K, D].
        intercept: float64 [P, K].
        objective: float64 [P], in the variables that are regularised.
        gradient_norm: float64 [P], of the objective with the intercept minimised out.
        gap: float64 [P], an upper bound on (objective - optimum) / optimum.
        n_iter: int64 [P].
        converged: bool [P], whether gap is within the tolerance.
    """

    coef: np.ndarray
    intercept: np.ndarray
    objective: np.ndarray
    gradient_norm: np.ndarray
    gap: np.ndarray
    n_iter: np.ndarray
    converged: np.ndarray


def solve_logistic(
    X: Tensor | Stream,
    problems: Sequence[Problem],
    standardise: bool = True,
    tol: float = TOLERANCE,
    max_iter: int = MAX_ITER,
) -> Solutions:
    """Minimise each problem's objective to a relative distance of `tol` from its optimum.

    Args:
        X: [N, D], of any float type, on any device; or a stream of its rows, which is read once a pass.
        problems: all of one number of classes; every class of a problem has rows with weight.
        standardise: regularise the weights of the features divided by their standard deviation among the problem's own
            rows, instead of those of the features as they are. The intercept makes their means irrelevant in any case.
        tol: which relative distance counts as converged.
        max_iter: iterations, after which a problem is given back unconverged.
    """
    on_cpu = isinstance(X, Stream) or X.device.type == "cpu"
    with shares(parallel=on_cpu and X.shape[0] * X.shape[1] > SMALL) as by_thread:
        features = Features(X, by_thread)
        K = 1 if problems[0].n_classes == 2 else problems[0].n_classes
        every = _objective(features, problems, K, standardise, X.order if isinstance(X, Stream) else None)
        size = max(1, MOST_SCORES // (features.n * K))
        parts = [_solve(every.of(part), tol, max_iter) for part in torch.arange(len(problems)).split(size)]
    fields = (np.concatenate([getattr(part, name) for part in parts]) for name in Solutions.__dataclass_fields__)
    return Solutions(*fields)


@dataclass(frozen=True, eq=False)
class _Point:
    """Where the problems stand.

    Attributes:
        v: [P, K, D + 1], the weights and the intercept of the centred and scaled features.
        z: [N, P, K], the scores.
        f: [P], the objective.
        g: [P, K, D + 1], its gradient.
        A: [P, K, K], the sum over rows of the loss's second derivative by the scores.
    """

    v: Tensor
    z: Tensor
    f: Tensor
    g: Tensor
    A: Tensor

    def of(self, which: Tensor) -> "_Point":
        return _Point(self.v[which], self.z[:, which], self.f[which], self.g[which], self.A[which])

    def put(self, which: Tensor, other: "_Point") -> None:
        """Take some problems, by their numbers, from a point of these alone."""
        self.z[:, which] = other.z
        for name in ("v", "f", "g", "A"):
            getattr(self, name)[which] = getattr(other, name)

    def bound(self) -> Tensor:
        """How far above the optimum each objective is at most, if the intercept's gradient is 0: [P]."""
        return 0.5 * self.g[..., :-1].square().sum(dim=(1, 2))


@dataclass(frozen=True, eq=False)
class _Objective:
    """P problems over features that all share, as functions of v [P, K, D + 1]."""

    features: Features
    loss: type[Binary] | type[Multinomial]
    labels: Tensor  # [N, L], as the loss takes them
    weights: Tensor | None  # [N, M]; None where all are 1
    label_of: Tensor  # [P], a column of labels
    weight_of: Tensor  # [P], a column of weights
    C: Tensor  # [P]
    K: int
    moments: Moments
    basis: Basis

    def of(self, which: Tensor) -> "_Objective":
        return replace(self, label_of=self.label_of[which], weight_of=self.weight_of[which], C=self.C[which])

    def at(self, v: Tensor, dtype: torch.dtype, z: Tensor | None = None) -> _Point:
        """One pass over the features, in `dtype`; scores that are known are not computed again."""
        W, offset = self._raw(v)
        columns, offset = W.flatten(0, 1).to(dtype), offset.flatten().to(dtype)
        known = z is not None
        scores = z if known else v.new_empty(self.features.n, len(v), self.K, dtype=dtype)

        def block(rows: slice, X: Tensor) -> list[Tensor]:
            here = scores[rows]
            if not known:
                torch.addmm(offset, X, columns.T, out=here.view(len(X), -1))
            labels, weights = self._rows(rows, dtype)
            r, second = self.loss.derivatives(here, labels, weights)
            G = (r.flatten(1).T @ X).view(W.shape)
            return [self.loss.loss(here, labels, weights), second, G, r.sum(dim=0, dtype=torch.float64)]

        loss, A, G, drift = self.features.sum(block, dtype)
        mean, inverse_scale = self.moments.mean[self.weight_of], self.moments.inverse_scale[self.weight_of]
        G = (G - drift[..., None] * mean[:, None]) * inverse_scale[:, None]
        g = self.C[:, None, None] * torch.cat([G, drift[..., None]], dim=2)
        g[..., :-1] += v[..., :-1]
        return _Point(v, scores, self._penalty(v) + self.C * loss, g, A)

    def scores(self, v: Tensor, dtype: torch.dtype) -> Tensor:
        """[N, P, K], in one pass over the features."""
        W, offset = self._raw(v)
        columns, offset = W.flatten(0, 1).to(dtype), offset.flatten().to(dtype)
        z = v.new_empty(self.features.n, len(v), self.K, dtype=dtype)

        def block(rows: slice, X: Tensor) -> list[Tensor]:
            torch.addmm(offset, X, columns.T, out=z[rows].view(len(X), -1))
            return []

        self.features.sum(block, dtype)
        return z

    @staticmethod
    def _penalty(v: Tensor) -> Tensor:
        return 0.5 * v[..., :-1].square().sum(dim=(1, 2))

    def _raw(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [P, K, D] and intercepts [P, K] for the features minus their shift."""
        W = v[..., :-1] * self.moments.inverse_scale[self.weight_of][:, None]
        return W, v[..., -1] - (W * self.moments.mean[self.weight_of][:, None]).sum(dim=2)

    def raw(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [P, K, D] and intercepts [P, K] for the features as they are."""
        W, offset = self._raw(v)
        return W, offset - W @ self.features.shift.double()

    def _rows(self, rows: slice, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Labels and weights of some rows, [B, P] each, or [B, 1] where all problems have the same."""
        y = self._columns(self.labels[rows], self.label_of)
        weights = None if self.weights is None else self._columns(self.weights[rows], self.weight_of).to(dtype)
        return y.to(dtype) if y.is_floating_point() else y, weights

    @staticmethod
    def _columns(x: Tensor, which: Tensor) -> Tensor:
        return x if x.shape[1] == 1 else x[:, which]

    def precondition(self, A: Tensor, q: Tensor) -> Tensor:
        """The inverse of the nearly diagonal Hessian, times q [P, K, D + 1]."""
        curvatures, U = (A[..., 0], torch.ones_like(A)) if self.K == 1 else torch.linalg.eigh(A)
        bend = (self.C[:, None] * curvatures.clamp_min(0))[..., None]
        q = U.mT @ q
        here = q[..., :-1] @ self.basis.vectors
        out = (here / (1 + bend * self.basis.values)) @ self.basis.vectors.T
        if self.basis.vectors.shape[1] < self.features.d:
            out += (q[..., :-1] - here @ self.basis.vectors.T) / (1 + bend * self.basis.rest)
        flat = bend <= 1e-12 * bend.amax(dim=1, keepdim=True)  # the same added to all classes' scores changes nothing
        intercept = torch.where(flat, 0, q[..., -1:] / bend.masked_fill(flat, 1))
        return U @ torch.cat([out, intercept], dim=2)

    def newton(self, point: _Point) -> tuple[Tensor, Tensor]:
        """Newton's direction [P, K, D + 1], and for which problems there is one: [P]."""
        d, found = torch.zeros_like(point.g), torch.zeros(len(self.C), dtype=torch.bool, device=self.C.device)
        for p in range(len(self.C)):
            H = self._hessian(p, point.z[:, p])
            factor, failed = torch.linalg.cholesky_ex(H)
            if not failed:
                d[p] = -torch.cholesky_solve(point.g[p].reshape(-1, 1), factor).view_as(d[p])
                found[p] = True
        return d, found

    def _hessian(self, p: int, z: Tensor) -> Tensor:
        """The Hessian [K * (D + 1), K * (D + 1)] of problem p where its scores are z [N, K], in float64."""
        D, K, which = self.features.d, self.K, self.weight_of[p]
        weights = None if self.weights is None else self.weights[:, which, None]
        pairs = [(k, other) for k in range(K) for other in range(k + 1)]

        def block(rows: slice, X: Tensor) -> list[Tensor]:
            h = self.loss.curvature(z[rows].double(), None if weights is None else weights[rows])
            X = torch.cat([X, torch.ones_like(X[:, :1])], dim=1)
            return [torch.stack([(X * h[:, k, other, None]).T @ X for k, other in pairs])]

        (sums,) = self.features.sum(block, torch.float64)
        inverse_scale, mean = self.moments.inverse_scale[which], self.moments.mean[which]
        change = torch.diag(torch.cat([inverse_scale, torch.ones_like(inverse_scale[:1])]))
        change[:D, D] = -mean * inverse_scale  # from (x, 1) to the standardised (x, 1)
        H = sums.new_empty(K, D + 1, K, D + 1)
        for (k, other), part in zip(pairs, self.C[p] * (change @ sums @ change.T), strict=True):
            H[k, :, other], H[other, :, k] = part, part.T
        if K > 1:  # the same added to the intercepts of all classes changes nothing: this makes the steps' sum 0
            H[:, D, :, D] += H[:, D, :, D].diagonal().mean()
        H = H.view(K * (D + 1), -1)
        H.diagonal().view(K, D + 1)[:, :D] += 1
        return H

    def search(self, point: _Point, trial: _Point, d: Tensor) -> Tensor:
        """The step t [P] that minimises the objective at point.v + t d, given t = 1; no pass over the features."""
        low, high = d.new_zeros(len(d)), d.new_full((len(d),), torch.inf)
        slope0 = (point.g * d).sum(dim=(1, 2))
        t = torch.ones_like(low)
        for _ in range(12):
            slope, bend = self._along(point, trial, d, t)
            low, high = torch.where(slope < 0, t, low), torch.where(slope >= 0, torch.minimum(t, high), high)
            near = slope.abs() <= 0.1 * slope0.abs()
            if near.all():
                break
            newton = t - slope / bend.clamp_min(torch.finfo(bend.dtype).tiny)
            inside = (newton > low) & (newton < high) & (newton < 10 * t)
            guess = torch.where(high.isinf(), 4 * t, 0.5 * (low + high))
            t = torch.where(near, t, torch.where(inside, newton, guess))
        return t

    def _along(self, point: _Point, trial: _Point, d: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative of the objective by t: [P] each."""
        w, step = point.v[..., :-1], d[..., :-1]
        bend = step.square().sum(dim=(1, 2))
        slope = (w * step).sum(dim=(1, 2)) + t * bend

        def block(rows: slice) -> list[Tensor]:
            z = point.z[rows]
            move = trial.z[rows] - z
            labels, weights = self._rows(rows, z.dtype)
            return list(self.loss.along(z + t.to(z.dtype)[None, :, None] * move, move, labels, weights))

        first, second = self.features.sum_rows(block)
        return slope + self.C * first, bend + self.C * second

    def best_intercept(self, v: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """V with the intercept that is best for its weights, and the scores z that it gives; Newton's method."""
        for _ in range(MAX_ITER):
            drift, A = self._drift(z)
            if (drift.abs().amax(dim=1) <= BALANCED * self.moments.total[self.weight_of]).all():
                break
            if self.K > 1:  # the same added to all classes changes nothing: this makes the steps' sum 0
                A = A + A.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
            step = -torch.linalg.solve(A + torch.finfo(A.dtype).tiny, drift).clamp(-1, 1)
            v = torch.cat([v[..., :-1], (v[..., -1] + step)[..., None]], dim=2)
            z = z + step.to(z.dtype)
        return v, z

    def _drift(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The sum over rows of the loss's first [P, K] and second [P, K, K] derivative by the scores."""

        def block(rows: slice) -> list[Tensor]:
            r, second = self.loss.derivatives(z[rows], *self._rows(rows, z.dtype))
            return [r.sum(dim=0), second]

        drift, A = self.features.sum_rows(block)
        return drift, A


class _Memory:
    """The last steps and what they did to the gradient, for all problems: the two loops of L-BFGS."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, step: Tensor, change: Tensor) -> None:
        inner = (step * change).sum(dim=(1, 2))
        sound = inner > 1e-12 * step.flatten(1).norm(dim=1) * change.flatten(1).norm(dim=1)
        self._pairs = [*self._pairs[1 - MEMORY :], (step, change, torch.where(sound, 1 / inner, 0))]

    def of(self, which: Tensor) -> None:
        self._pairs = [(s[which], y[which], rho[which]) for s, y, rho in self._pairs]

    def apply(self, g: Tensor, initial: Callable[[Tensor], Tensor]) -> Tensor:
        """The inverse Hessian times g [P, K, D + 1], where `initial` is what is known without the steps."""
        q, shares = g, []
        for s, y, rho in reversed(self._pairs):
            share = rho * (s * q).sum(dim=(1, 2))
            q = q - share[:, None, None] * y
            shares.append(share)
        q = initial(q)
        for (s, y, rho), share in zip(self._pairs, reversed(shares), strict=True):
            q = q + (share - rho * (y * q).sum(dim=(1, 2)))[:, None, None] * s
        return q


def _solve(objective: _Objective, tol: float, max_iter: int) -> Solutions:
    """Down in the features' own type, then, what that leaves open, in float64."""
    P = len(objective.C)
    v = torch.zeros(P, objective.K, objective.features.d + 1, dtype=torch.float64, device=objective.C.device)
    dtype = objective.features.dtype
    n_iter = torch.zeros(P, dtype=torch.int64, device=v.device)
    v, n_iter = _descend(objective, v, n_iter, dtype, min(tol, ARITHMETIC[dtype].aim), max_iter)
    certified = _certify(objective, v)
    for sharper in (4, 100, 1e4):
        late = torch.nonzero((certified.gap > tol) & (n_iter < max_iter))[:, 0]
        if not len(late):
            break
        part = objective.of(late)
        better, more = _descend(
            part, certified.v[late], n_iter[late], torch.float64, tol / sharper, max_iter - int(n_iter[late].min())
        )
        n_iter[late] += more
        certified.put(late, _certify(part, better))
    coef, intercept = objective.raw(certified.v)
    numbers = (coef, intercept, certified.f, certified.gradient_norm, certified.gap, n_iter, certified.gap <= tol)
    return Solutions(*(x.cpu().numpy() for x in numbers))


@dataclass(frozen=True, eq=False)
class _Certified:
    """v [P, K, D + 1] with the best intercept, its objective [P], its gradient's norm [P] and its relative gap [P]."""

    v: Tensor
    f: Tensor
    gradient_norm: Tensor
    gap: Tensor

    def put(self, which: Tensor, better: "_Certified") -> None:
        for name, values in vars(better).items():
            getattr(self, name)[which] = values


def _certify(objective: _Objective, v: Tensor) -> _Certified:
    v, z = objective.best_intercept(v, objective.scores(v, torch.float64))
    point = objective.at(v, torch.float64, z)
    bound = point.bound()
    gap = torch.where(bound < point.f, bound / (point.f - bound), torch.inf)
    return _Certified(v, point.f, (2 * bound).sqrt(), gap)


def _descend(
    objective: _Objective, v: Tensor, before: Tensor, dtype: torch.dtype, tol: float, max_iter: int
) -> tuple[Tensor, Tensor]:
    """L-BFGS until each problem's bound is `tol`, or what is left to win is rounding: v and iterations."""
    found, n_iter = v.clone(), torch.zeros_like(before)
    size = objective.K * (objective.features.d + 1)
    patience = max(NEWTON_AFTER, size // 16) if size <= NEWTON_UP_TO else max_iter
    left, memory, point = torch.arange(len(v), device=v.device), _Memory(), objective.at(v, dtype)
    how, idle, best = ARITHMETIC[dtype], torch.zeros_like(left), v
    for i in range(max_iter + 1):
        d = -memory.apply(point.g, partial(objective.precondition, point.A))
        slow = torch.nonzero(before[left] + i >= patience)[:, 0]
        if len(slow):
            direct, found_one = objective.of(slow).newton(point.of(slow))
            d[slow[found_one]] = direct[found_one]
        done = (idle >= how.patience) | _finished(objective, point, d, tol, how.least) | (i == max_iter)
        found[left[done]], n_iter[left[done]] = best[done], i
        if done.all():
            break
        if done.any():
            going = ~done
            objective, point, d = objective.of(going), point.of(going), d[going]
            left, idle, best = left[going], idle[going], best[going]
            memory.of(going)
        new = _step(objective, point, d, how.rounding)
        better = (new.f < point.f) | (new.bound() < 0.5 * point.bound())
        idle, best = torch.where(better, 0, idle + 1), torch.where(better[:, None, None], new.v, best)
        memory.add(new.v - point.v, new.g - point.g)
        point = new
    return found, n_iter


def _finished(objective: _Objective, point: _Point, d: Tensor, tol: float, least: float) -> Tensor:
    decrease = -0.5 * (point.g * d).sum(dim=(1, 2))  # that is left, as far as the memory knows
    drift = point.g[..., -1].square().sum(dim=1) / (objective.C * point.A.diagonal(dim1=1, dim2=2).sum(dim=1) + 1e-300)
    return (point.bound() + drift <= tol * point.f) | (decrease <= least * point.f)


def _step(objective: _Objective, point: _Point, d: Tensor, rounding: float) -> _Point:
    """The point one step further: the whole of d where that does, else as far along d as is best."""
    trial = objective.at(point.v + d, point.z.dtype)
    slope0, slope = ((p.g * d).sum(dim=(1, 2)) for p in (point, trial))
    enough = trial.f <= point.f + ENOUGH_DECREASE * slope0 + rounding * point.f
    far = torch.nonzero(~(enough & (slope.abs() <= ENOUGH_FLATTER * slope0.abs())))[:, 0]
    if len(far):
        part, here, there, along = objective.of(far), point.of(far), trial.of(far), d[far]
        t = part.search(here, there, along)
        z = torch.lerp(here.z, there.z, t.to(here.z.dtype)[None, :, None])
        trial.put(far, part.at(here.v + t[:, None, None] * along, point.z.dtype, z))
    return trial


def _objective(
    features: Features, problems: Sequence[Problem], K: int, standardise: bool, order: np.ndarray | None
) -> _Objective:
    labels, label_of = _distinct([problem.labels for problem in problems], order)
    one = np.ones(features.n)
    weights, weight_of = _distinct([one if p.weights is None else p.weights for p in problems], order)
    W = on_device(weights, features.device, torch.float64)
    known, sample = moments(features, W, standardise)
    loss = Binary if K == 1 else Multinomial
    return _Objective(
        features=features,
        loss=loss,
        labels=loss.prepare(on_device(labels, features.device, torch.int64)),
        weights=None if bool((W == 1).all()) else W,
        label_of=on_device(label_of, features.device, torch.int64),
        weight_of=on_device(weight_of, features.device, torch.int64),
        C=on_device([problem.C for problem in problems], features.device, torch.float64),
        K=K,
        moments=known,
        basis=basis(features, sample, known.inverse_scale.amax(dim=0)),
    )


def _distinct(arrays: Sequence[np.ndarray], order: np.ndarray | None) -> tuple[np.ndarray, list[int]]:
    """The arrays [N] that differ, as columns, and which of them each one is."""
    number = {key: i for i, key in enumerate(dict.fromkeys(map(id, arrays)))}
    columns = np.stack(list({id(x): x for x in arrays}.values()), axis=1)
    return columns if order is None else columns[order], [number[id(x)] for x in arrays]
