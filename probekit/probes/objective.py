"""The objectives of many logistic regressions over the same features: values, derivatives, and models of the Hessians.

Axes: N rows, D features, P problems, K score columns of a problem (1 for two classes, C for more), M weightings, L sets
of labels.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from probekit.probes.features import Basis, Features, Moments, basis, moments
from probekit.probes.losses import Binary, Multinomial
from probekit.probes.problem import ProblemSet

BALANCED = 1e-10  # the sum of the residuals, relative to that of their sizes, at which an intercept is the best one
MOST_STEPS = 500  # of an intercept


@dataclass(frozen=True, eq=False)
class Point:
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

    def of(self, which: Tensor) -> "Point":
        """That of some of the problems."""
        return Point(self.v[which], self.z[:, which], self.f[which], self.g[which], self.A[which])

    def put(self, which: Tensor, other: "Point") -> None:
        """Take some problems, by their numbers, from a point of these alone."""
        self.z[:, which] = other.z
        for name in ("v", "f", "g", "A"):
            getattr(self, name)[which] = getattr(other, name)

    def bound(self) -> Tensor:
        """How far above the optimum each objective is at most, if the intercept's gradient is 0: [P]."""
        return 0.5 * self.g[..., :-1].square().sum(dim=(1, 2))


@dataclass(frozen=True, eq=False)
class Objective:
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

    def of(self, which: Tensor) -> "Objective":
        """Some of the problems."""
        return replace(self, label_of=self.label_of[which], weight_of=self.weight_of[which], C=self.C[which])

    def at(self, v: Tensor, dtype: torch.dtype, z: Tensor | None = None) -> Point:
        """One pass over the features, in `dtype`; scores that are known are not computed again."""
        W, offset = self._raw(v)
        columns, offset = W.flatten(0, 1).to(dtype), offset.flatten().to(dtype)
        known = z is not None
        scores = z if known else v.new_empty(self.features.n, len(v), self.K, dtype=dtype)

        def block(rows: slice, X: Tensor) -> list[Tensor]:
            here = scores[rows]
            if not known:
                torch.add((columns @ X.T).T, offset, out=here.view(len(X), -1))
            labels, weights = self._rows(rows, dtype)
            r, second = self.loss.derivatives(here, labels, weights)
            G = (r.flatten(1).T @ X).view(W.shape)
            return [self.loss.loss(here, labels, weights), second, G, r.sum(dim=0, dtype=torch.float64)]

        loss, A, G, drift = self.features.sum(block, dtype)
        mean, inverse_scale = self.moments.mean[self.weight_of], self.moments.inverse_scale[self.weight_of]
        G = (G - drift[..., None] * mean[:, None]) * inverse_scale[:, None]
        g = self.C[:, None, None] * torch.cat([G, drift[..., None]], dim=2)
        g[..., :-1] += v[..., :-1]
        return Point(v, scores, self._penalty(v) + self.C * loss, g, A)

    def scores(self, v: Tensor, dtype: torch.dtype) -> Tensor:
        """[N, P, K], in one pass over the features."""
        W, offset = self._raw(v)
        columns, offset = W.flatten(0, 1).to(dtype), offset.flatten().to(dtype)
        z = v.new_empty(self.features.n, len(v), self.K, dtype=dtype)

        def block(rows: slice, X: Tensor) -> list[Tensor]:
            torch.add((columns @ X.T).T, offset, out=z[rows].view(len(X), -1))
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
        d = U @ torch.cat([out, intercept], dim=2)
        if self.K > 1:  # rounding would let the sum of the intercepts drift
            d[..., -1] -= d[..., -1].mean(dim=1, keepdim=True)
        return d

    def newton(self, point: Point) -> tuple[Tensor, Tensor]:
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
            here, own = z[rows].double(), None
            if weights is not None:
                kept = weights[rows, 0] > 0
                X, here, own = X[kept], here[kept], weights[rows][kept]
            h = self.loss.curvature(here, own)
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

    def search(self, point: Point, trial: Point, d: Tensor) -> Tensor:
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
            guess = torch.where(high.isinf(), 4 * t, torch.where(low > 0, 0.5 * (low + high), 0.1 * high))
            t = torch.where(near, t, torch.where(inside, newton, guess))
        return t

    def _along(self, point: Point, trial: Point, d: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
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

    def best_intercept(self, v: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """V with the intercept that is best for its weights, its scores z, and whether it was found, [P]."""
        balanced = torch.zeros(len(v), dtype=torch.bool, device=v.device)
        for _ in range(MOST_STEPS):
            drift, size, A = self._residuals(z)
            balanced = ((size > 0) & (drift.abs() <= BALANCED * size)).all(dim=1)
            if self.K > 1:  # the same added to all classes changes nothing: this makes the steps' sum 0
                A = A + A.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
            step, failed = torch.linalg.solve_ex(A, -drift)  # Newton's
            if (balanced | (failed != 0) | ~step.isfinite().all(dim=1)).all():
                break
            step = torch.where(balanced[:, None], 0, step.nan_to_num(0, 0, 0)).clamp(-1, 1)
            v = torch.cat([v[..., :-1], (v[..., -1] + step)[..., None]], dim=2)
            z = z + step.to(z.dtype)
        return v, z, balanced

    def _residuals(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sums over rows: of the loss's derivative by the scores [P, K], of its size, of the second one [P, K, K]."""

        def block(rows: slice) -> list[Tensor]:
            r, second = self.loss.derivatives(z[rows], *self._rows(rows, z.dtype))
            return [r.sum(dim=0), r.abs().sum(dim=0), second]

        drift, size, A = self.features.sum_rows(block)
        return drift, size, A


def objective_of(
    features: Features, problems: ProblemSet, K: int, standardise: bool, order: np.ndarray | None
) -> Objective:
    """Problems of one number of classes; `order` [N] is the label's index of each row, None for 0..N-1."""
    rows = slice(None) if order is None else order
    one = np.ones(features.n)
    labels = np.stack([each.values for each in problems.labels], axis=1)[rows]
    weights = np.stack([one if each is None else each for each in problems.weightings], axis=1)[rows]
    W = torch.as_tensor(weights, device=features.device, dtype=torch.float64)
    known, sample = moments(features, W, standardise)
    loss = Binary if K == 1 else Multinomial
    return Objective(
        features=features,
        loss=loss,
        labels=loss.prepare(torch.as_tensor(labels, device=features.device, dtype=torch.int64)),
        weights=None if bool((W == 1).all()) else W,
        label_of=torch.as_tensor([p.label for p in problems.problems], device=features.device),
        weight_of=torch.as_tensor([p.weighting for p in problems.problems], device=features.device),
        C=torch.as_tensor([p.C for p in problems.problems], device=features.device, dtype=torch.float64),
        K=K,
        moments=known,
        basis=basis(features, sample, known.inverse_scale[known.total.argmax()]),
    )
