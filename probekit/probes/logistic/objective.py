"""The objectives of many logistic regressions on the same features: values, derivatives, preconditioner, Newton steps.

Axes: N rows, B rows of a block, D features, P problems, K score columns of a problem (1 for two classes, C for more), M
weightings, L sets of labels.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.probes.logistic.features import Basis, Features, Scaling, basis, no_basis, scaling_of
from probekit.probes.problem import ProblemSet

BALANCED = 1e-10  # an intercept is optimal if |sum of residuals| / sum of |residuals| is at most this
MOST_STEPS = 500  # Newton steps of an intercept; one is clamped to 1, so far intercepts need many


class _Binary:
    """The logistic loss of one score. Labels are -1 for class 1 and 1 for class 0, so score * label is the error.

    Scores z are [B, P, K]. Weights are None, [B, P] or [B, 1]. Nothing cancels.
    """

    @staticmethod
    def prepare(labels: Tensor) -> Tensor:
        """Convert int64 labels 0 and 1 [N, L] to what the other methods take: float32 [N, L]."""
        return (1 - 2 * labels).float()

    @staticmethod
    def loss(z: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """The summed loss: float64 [P]."""
        return _summed(F.softplus(z[..., 0] * y, threshold=50), weights)

    @staticmethod
    def derivatives(z: Tensor, y: Tensor, weights: Tensor | None, second: bool = True) -> tuple[Tensor, Tensor]:
        """Derivatives by the scores: the first [B, P, K], and the row sum of the second if wanted, [P, K, K]."""
        wrong = torch.sigmoid(z[..., 0] * y)
        bend = _summed(wrong * (1 - wrong), weights)[:, None, None] if second else _nothing(z)
        return _weighted(wrong.mul_(y), weights)[..., None], bend

    @staticmethod
    def curvature(z: Tensor, weights: Tensor | None) -> Tensor:
        """The second derivative [B, K, K] by the scores [B, K] of one problem, with weights [B, 1]."""
        p = torch.sigmoid(z)
        return _weighted(p * torch.sigmoid(-z), weights)[..., None]

    @staticmethod
    def along(z: Tensor, move: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The summed loss's first and second derivative along a move [B, P, K] of the scores: float64 [P] each."""
        wrong, step = torch.sigmoid(z[..., 0] * y), move[..., 0] * y
        slope = wrong * step
        return _summed(slope, weights), _summed(slope * (1 - wrong) * step, weights)


class _Multinomial:
    """The cross-entropy of the softmax of K scores, with the methods of `_Binary`; labels are int64 0..K-1 [N, L].

    A row that fits well has an own class of probability nearly 1, which has lost the digits of its distance from 1. The
    other classes' probabilities have them.
    """

    @staticmethod
    def prepare(labels: Tensor) -> Tensor:
        return labels

    @staticmethod
    def loss(z: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        log_p = F.log_softmax(z, dim=2)
        wrong = _others(log_p, y).sum(dim=2)
        return _summed(torch.where(wrong < 0.5, -torch.log1p(-wrong), -_own(log_p, y)), weights)

    @staticmethod
    def derivatives(z: Tensor, y: Tensor, weights: Tensor | None, second: bool = True) -> tuple[Tensor, Tensor]:
        log_p = F.log_softmax(z, dim=2)
        first, bend = _others(log_p, y), _nothing(z)
        if second:
            p = log_p.exp()
            weighted = p if weights is None else p * weights[..., None]
            outer = torch.einsum("bpk,bpl->pkl", weighted, p).double()
            bend = torch.diag_embed(weighted.sum(dim=0, dtype=torch.float64)) - outer
        first.scatter_(2, _index(z, y), -first.sum(dim=2, keepdim=True))
        return first if weights is None else first * weights[..., None], bend

    @staticmethod
    def curvature(z: Tensor, weights: Tensor | None) -> Tensor:
        p = torch.softmax(z, dim=1)
        each = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        return each if weights is None else each * weights[..., None]

    @staticmethod
    def along(z: Tensor, move: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        p = torch.softmax(z, dim=2)
        mean = (p * move).sum(dim=2)
        bend = (p * (move - mean[..., None]).square()).sum(dim=2)
        return _summed(mean - _own(move, y), weights), _summed(bend, weights)


def _nothing(z: Tensor) -> Tensor:
    return z.new_zeros(z.shape[1], 0, 0)


def _others(log_p: Tensor, y: Tensor) -> Tensor:
    """The probabilities [B, P, K] of the classes, but 0 at the labels."""
    return log_p.exp().scatter_(2, _index(log_p, y), 0.0)


def _own(x: Tensor, y: Tensor) -> Tensor:
    """The entries of x [B, P, K] at the labels: [B, P]."""
    return x.gather(2, _index(x, y))[..., 0]


def _index(x: Tensor, y: Tensor) -> Tensor:
    return y.expand(x.shape[:2])[..., None]


def _weighted(x: Tensor, weights: Tensor | None) -> Tensor:
    return x if weights is None else x * weights


def _summed(x: Tensor, weights: Tensor | None) -> Tensor:
    """The weighted sum over rows of [B, P], in float64."""
    return _weighted(x, weights).sum(dim=0, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Point:
    """A point in the space of the unknowns, with the objectives and derivatives there.

    Attributes:
        v: [P, K, D + 1], the weights and the intercept for centred and scaled features.
        z: [N, P, K], the scores.
        f: [P], the objective.
        g: [P, K, D + 1], its gradient.
        A: [P, K, K], the row sum of the loss's second derivative by the scores.
    """

    v: Tensor
    z: Tensor
    f: Tensor
    g: Tensor
    A: Tensor

    def of(self, which: Tensor) -> "Point":
        """The point of some of the problems."""
        return Point(self.v[which], self.z[:, which], self.f[which], self.g[which], self.A[which])

    def put(self, which: Tensor, other: "Point") -> None:
        """Overwrite the problems `which` with those of `other`, which holds no more."""
        self.z[:, which] = other.z
        for name in ("v", "f", "g", "A"):
            getattr(self, name)[which] = getattr(other, name)

    def bound(self) -> Tensor:
        """An upper bound on objective - optimum if the intercept's gradient is 0: [P]."""
        return 0.5 * self.g[..., :-1].square().sum(dim=(1, 2))


@dataclass(frozen=True, eq=False)
class Objective:
    """P problems on shared features, as functions of v [P, K, D + 1]."""

    features: Features
    loss: type[_Binary] | type[_Multinomial]
    labels: Tensor  # [N, L], prepared by the loss
    weights: Tensor | None  # [N, M]; None if all are 1
    label_of: Tensor  # [P], the column of labels of each problem
    weight_of: Tensor  # [P], the column of weights of each problem
    C: Tensor  # [P]
    K: int
    scaling: Scaling
    basis: Basis

    def of(self, which: Tensor) -> "Objective":
        """Some of the problems."""
        return replace(self, label_of=self.label_of[which], weight_of=self.weight_of[which], C=self.C[which])

    def at(self, v: Tensor, dtype: torch.dtype, z: Tensor | None = None, second: bool = True) -> Point:
        """Evaluate all objectives at v in one pass over the features, in `dtype`; `z` gives scores already known.

        Without `second` the point's A is empty: for 1,000 classes it costs more than all else.
        """
        score = self._scorer(v, dtype)
        scores = v.new_empty(self.features.n, len(v), self.K, dtype=dtype) if z is None else z

        def block(rows: slice, X: Tensor) -> list[Tensor]:
            here = scores[rows]
            if z is None:
                score(X, here)
            labels, weights = self._rows(rows, dtype)
            r, bend = self.loss.derivatives(here, labels, weights, second)
            G = (r.flatten(1).T @ X).view(len(v), self.K, -1)
            return [self.loss.loss(here, labels, weights), bend, G, r.sum(dim=0, dtype=torch.float64)]

        loss, A, G, drift = self.features.sum(block, dtype)
        mean, inverse_scale = self.scaling.mean[self.weight_of], self.scaling.inverse_scale[self.weight_of]
        G = (G - drift[..., None] * mean[:, None]) * inverse_scale[:, None]
        g = self.C[:, None, None] * torch.cat([G, drift[..., None]], dim=2)
        g[..., :-1] += v[..., :-1]
        penalty = 0.5 * v[..., :-1].square().sum(dim=(1, 2))
        return Point(v, scores, penalty + self.C * loss, g, A)

    def scores(self, v: Tensor, dtype: torch.dtype) -> Tensor:
        """The scores [N, P, K], in one pass over the features."""
        score, z = self._scorer(v, dtype), v.new_empty(self.features.n, len(v), self.K, dtype=dtype)

        def block(rows: slice, X: Tensor) -> list[Tensor]:
            score(X, z[rows])
            return []

        self.features.sum(block, dtype)
        return z

    def _scorer(self, v: Tensor, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
        """A function that writes the scores of some rows [B, D] to [B, P, K]."""
        W, offset = self._raw(v)
        columns, offset = W.flatten(0, 1).to(dtype), offset.flatten().to(dtype)
        return lambda X, out: torch.add((columns @ X.T).T, offset, out=out.view(len(X), -1))

    def _raw(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [P, K, D] and intercepts [P, K] for features minus the shift."""
        W = v[..., :-1] * self.scaling.inverse_scale[self.weight_of][:, None]
        return W, v[..., -1] - (W * self.scaling.mean[self.weight_of][:, None]).sum(dim=2)

    def raw(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [P, K, D] and intercepts [P, K] for raw features."""
        W, offset = self._raw(v)
        return W, offset - W @ self.features.shift.double()

    def _rows(self, rows: slice, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Labels and weights of some rows: [B, P] each, or [B, 1] if all problems share them."""
        y = self._columns(self.labels[rows], self.label_of)
        weights = None if self.weights is None else self._columns(self.weights[rows], self.weight_of).to(dtype)
        return y.to(dtype) if y.is_floating_point() else y, weights

    @staticmethod
    def _columns(x: Tensor, which: Tensor) -> Tensor:
        return x if x.shape[1] == 1 else x[:, which]

    def precondition(self, A: Tensor, q: Tensor) -> Tensor:
        """Multiply q [P, K, D + 1] by the inverse of the Hessian, taken as diagonal in the basis."""
        curvatures, U = (A[..., 0], torch.ones_like(A)) if self.K == 1 else torch.linalg.eigh(A)
        bend = (self.C[:, None] * curvatures.clamp_min(0))[..., None]
        q = U.mT @ q
        here = q[..., :-1] @ self.basis.vectors
        out = (here / (1 + bend * self.basis.values)) @ self.basis.vectors.T
        if self.basis.vectors.shape[1] < self.features.d:
            out += (q[..., :-1] - here @ self.basis.vectors.T) / (1 + bend * self.basis.rest)
        flat = bend <= 1e-12 * bend.amax(dim=1, keepdim=True)  # adding a constant to all classes changes nothing
        intercept = torch.where(flat, 0, q[..., -1:] / bend.masked_fill(flat, 1))
        d = U @ torch.cat([out, intercept], dim=2)
        if self.K > 1:  # or the sum of the intercepts would drift by rounding
            d[..., -1] -= d[..., -1].mean(dim=1, keepdim=True)
        return d

    def newton(self, point: Point) -> tuple[Tensor, Tensor]:
        """Newton's direction [P, K, D + 1], and which problems [P] have one (their Hessian has a Cholesky factor)."""
        d, found = torch.zeros_like(point.g), torch.zeros(len(self.C), dtype=torch.bool, device=self.C.device)
        for p in range(len(self.C)):
            H = self._hessian(p, point.z[:, p])
            factor, failed = torch.linalg.cholesky_ex(H)
            if not failed:
                d[p] = -torch.cholesky_solve(point.g[p].reshape(-1, 1), factor).view_as(d[p])
                found[p] = True
        return d, found

    def _hessian(self, p: int, z: Tensor) -> Tensor:
        """The float64 Hessian [K * (D + 1), K * (D + 1)] of problem p at scores z [N, K]."""
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
        inverse_scale, mean = self.scaling.inverse_scale[which], self.scaling.mean[which]
        change = torch.diag(torch.cat([inverse_scale, torch.ones_like(inverse_scale[:1])]))
        change[:D, D] = -mean * inverse_scale  # from (x, 1) to the standardised (x, 1)
        H = sums.new_empty(K, D + 1, K, D + 1)
        for (k, other), part in zip(pairs, self.C[p] * (change @ sums @ change.T), strict=True):
            H[k, :, other], H[other, :, k] = part, part.T
        if K > 1:  # adding a constant to all intercepts changes nothing; this makes steps sum to 0
            H[:, D, :, D] += H[:, D, :, D].diagonal().mean()
        H = H.view(K * (D + 1), -1)
        H.diagonal().view(K, D + 1)[:, :D] += 1
        return H

    def search(self, point: Point, trial: Point, d: Tensor) -> Tensor:
        """The step t [P] that minimises the objective at point.v + t d. `trial` is t = 1; no pass over the features."""
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
        """First and second derivative of the objective by t, [P] each."""
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
        """Minimise over the intercepts alone: v and z with them, and whether each is optimal, [P]."""
        balanced = torch.zeros(len(v), dtype=torch.bool, device=v.device)
        A, before = None, torch.full(balanced.shape, torch.inf, dtype=torch.float64, device=v.device)
        for _ in range(MOST_STEPS):
            drift, size, _ = self._residuals(z, second=False)
            balanced = ((size > 0) & (drift.abs() <= BALANCED * size)).all(dim=1)
            if balanced.all():
                break
            left = drift.abs().sum(dim=1)
            # else the last A still serves: it is dear for many classes
            if A is None or bool((left > 0.1 * before).any()):
                A = self._residuals(z, second=True)[2]
                if self.K > 1:  # adding a constant to all intercepts changes nothing; this makes steps sum to 0
                    A = A + A.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
            before = left
            step, failed = torch.linalg.solve_ex(A, -drift)  # Newton's step
            if (balanced | (failed != 0) | ~step.isfinite().all(dim=1)).all():
                break
            step = torch.where(balanced[:, None], 0, step.nan_to_num(0, 0, 0)).clamp(-1, 1)
            v = torch.cat([v[..., :-1], (v[..., -1] + step)[..., None]], dim=2)
            z = z + step.to(z.dtype)
        return v, z, balanced

    def _residuals(self, z: Tensor, second: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Row sums of residuals (the loss's derivative by the scores) [P, K], of |residuals|, of second derivatives."""

        def block(rows: slice) -> list[Tensor]:
            r, bend = self.loss.derivatives(z[rows], *self._rows(rows, z.dtype), second)
            return [r.sum(dim=0), r.abs().sum(dim=0), bend]

        drift, size, A = self.features.sum_rows(block)
        return drift, size, A


def objective_of(
    features: Features,
    problems: ProblemSet,
    K: int,
    standardise: bool,
    order: np.ndarray | None,
    with_basis: bool = True,
) -> Objective:
    """The objectives of problems with the same number of classes; `order` as in `Stream`.

    Without a basis they are all that a certificate needs, but `precondition` does nothing for the weights.
    """
    rows = slice(None) if order is None else order
    one = np.ones(features.n)
    labels = np.stack([each.values for each in problems.labels], axis=1)[rows]
    weights = np.stack([one if each is None else each for each in problems.weightings], axis=1)[rows]
    W = torch.as_tensor(weights, device=features.device, dtype=torch.float64)
    scaling, sample = scaling_of(features, W, standardise, with_basis)
    largest = scaling.inverse_scale[scaling.total.argmax()]
    loss = _Binary if K == 1 else _Multinomial
    return Objective(
        features=features,
        loss=loss,
        labels=loss.prepare(torch.as_tensor(labels, device=features.device, dtype=torch.int64)),
        weights=None if bool((W == 1).all()) else W,
        label_of=torch.as_tensor([p.label for p in problems.problems], device=features.device),
        weight_of=torch.as_tensor([p.weighting for p in problems.problems], device=features.device),
        C=torch.as_tensor([p.C for p in problems.problems], device=features.device, dtype=torch.float64),
        K=K,
        scaling=scaling,
        basis=basis(features, sample, largest) if with_basis else no_basis(sample),
    )
