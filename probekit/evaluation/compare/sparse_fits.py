"""Logistic and ridge regressions on sparse features, for rising values of C, each to a certified optimum.

The objective is 0.5 |w|^2 + C * (sum of losses), the intercept free: scikit-learn's, with alpha = 1 / C for a ridge
regression. Newton's method, started at the solution of the C before. Its steps are solved by conjugate gradients
(Dembo and Steihaug 1983), with the Hessian's diagonal as preconditioner: rare and common words differ a hundredfold. A
product with the Hessian is two products with the features, so it costs as little as they are dense.

Axes: N examples, V features, K scores of an example (1 for two classes and for a number).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import sparse
from scipy.special import expit, logsumexp, softmax

TOLERANCE = 1e-8  # relative distance to the optimum
MOST_STEPS, MOST_PRODUCTS = 50, 200  # Newton steps of a fit, products with the Hessian of a step
BALANCED = 1e-10  # |sum of residuals| / sum of |residuals| of an optimal intercept, as in `probes.logistic`


class Loss(Protocol):
    """The loss of N examples and its derivatives by their scores Z [N, K]."""

    def start(self) -> np.ndarray:
        """The intercept [K] that fits best alone."""
        ...

    def value(self, Z: np.ndarray) -> float:
        """The sum over the examples."""
        ...

    def gradient(self, Z: np.ndarray) -> np.ndarray:
        """The derivatives [N, K]."""
        ...

    def curvature(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What `hessian_product` needs [N, K], and the diagonal of the Hessian by the scores [N, K]."""
        ...

    def hessian_product(self, state: np.ndarray, U: np.ndarray) -> np.ndarray:
        """The Hessian by the scores times U [N, K]."""
        ...


class _LogLoss:
    """Two classes; `labels` [N] are 0 or 1."""

    def __init__(self, labels: np.ndarray):
        self.labels = labels[:, None].astype(np.float64)

    def start(self) -> np.ndarray:
        share = self.labels.mean()
        return np.log([share / (1 - share)])

    def value(self, Z: np.ndarray) -> float:
        return float(np.logaddexp(0, np.where(self.labels > 0, -Z, Z)).sum())

    def gradient(self, Z: np.ndarray) -> np.ndarray:
        return expit(Z) - self.labels

    def curvature(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weights = expit(Z) * expit(-Z)
        return weights, weights

    def hessian_product(self, state: np.ndarray, U: np.ndarray) -> np.ndarray:
        return state * U


class _CrossEntropy:
    """Classes 0..K-1; `labels` are int64 [N]."""

    def __init__(self, labels: np.ndarray, n_classes: int):
        self.labels, self.n_classes, self.rows = labels, n_classes, np.arange(len(labels))

    def start(self) -> np.ndarray:
        return np.log(np.bincount(self.labels, minlength=self.n_classes) / len(self.labels))

    def value(self, Z: np.ndarray) -> float:
        return float(np.asarray(logsumexp(Z, axis=1)).sum() - Z[self.rows, self.labels].sum())

    def gradient(self, Z: np.ndarray) -> np.ndarray:
        residuals = softmax(Z, axis=1)
        residuals[self.rows, self.labels] -= 1
        return residuals

    def curvature(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        likely = softmax(Z, axis=1)
        return likely, likely * (1 - likely)

    def hessian_product(self, state: np.ndarray, U: np.ndarray) -> np.ndarray:
        return state * (U - np.einsum("nk,nk->n", state, U)[:, None])


class _Squares:
    """Half the squared error of numbers [N]."""

    def __init__(self, targets: np.ndarray):
        self.targets = targets[:, None]

    def start(self) -> np.ndarray:
        return self.targets.mean(axis=0)

    def value(self, Z: np.ndarray) -> float:
        return 0.5 * float(((Z - self.targets) ** 2).sum())

    def gradient(self, Z: np.ndarray) -> np.ndarray:
        return Z - self.targets

    def curvature(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        one = np.ones_like(Z)
        return one, one

    def hessian_product(self, state: np.ndarray, U: np.ndarray) -> np.ndarray:
        return U


@dataclass(frozen=True, eq=False)
class SparseFit:
    """A solution.

    Attributes:
        coef: the weights [V, K].
        intercept: [K].
        gap: an upper bound on (objective - optimum) / optimum.
        converged: whether it is within `TOLERANCE`.
    """

    coef: np.ndarray
    intercept: np.ndarray
    gap: float
    converged: bool


def sparse_loss(labels: np.ndarray, n_classes: int) -> Loss:
    """The log loss of classes [N], or half the squared error of numbers [N] (n_classes 0)."""
    if n_classes == 0:
        return _Squares(labels)
    return _LogLoss(labels) if n_classes == 2 else _CrossEntropy(labels, n_classes)


def fit_path(X: Any, loss: Loss, strengths: Sequence[float]) -> list[SparseFit]:
    """A fit for each C, rising, on features [N, V]."""
    features = _Features(X)
    W = np.concatenate([np.zeros((X.shape[1], len(loss.start()))), loss.start()[None]])
    fits = []
    for C in strengths:
        W, gap = _descend(features, loss, C, W)
        W[-1] -= W[-1].mean() if len(W[-1]) > 1 else 0  # adding a constant to all classes changes nothing
        fits.append(SparseFit(W[:-1], W[-1], gap, gap <= TOLERANCE))
    return fits


class _Features:
    """The features with a column of ones, as the products of Newton's method need them: [N, V + 1]."""

    def __init__(self, X: Any):
        ones = sparse.csr_array(np.ones((X.shape[0], 1)))
        self.rows: Any = sparse.csr_array(sparse.hstack([X, ones], format="csr"))
        self.columns: Any = sparse.csr_array(self.rows.T.tocsr())
        # steps need few digits, the gradient that judges them all
        self.rows_32, self.columns_32 = self.rows.astype(np.float32), self.columns.astype(np.float32)
        self.squares_32 = self.columns_32.power(2)


def _descend(features: _Features, loss: Loss, C: float, W: np.ndarray) -> tuple[np.ndarray, float]:
    """The solution [V + 1, K] from a start, and its certificate."""
    gap = np.inf
    for _ in range(MOST_STEPS):
        Z = features.rows @ W
        g, bound = _gradient(features, loss, C, W, Z)
        value = _penalty(W) + C * loss.value(Z)
        if bound <= TOLERANCE * value:
            W, Z, is_balanced = _balanced(loss, W, Z)
            g, bound = _gradient(features, loss, C, W, Z)
            value = _penalty(W) + C * loss.value(Z)
            if is_balanced:
                gap = bound / (value - bound) if bound < value else 0.0 if bound == 0 else np.inf
            if gap <= TOLERANCE:
                break
        d = _newton(features, loss, C, Z, g, min(0.25, bound / max(value, 1e-300)))
        t = _step(loss, C, (W, Z, value), (d, features.rows @ d), float(np.vdot(g, d)))
        if not t:  # rounding alone is left
            break
        W = W + t * d
    return W, gap


def _gradient(features: _Features, loss: Loss, C: float, W: np.ndarray, Z: np.ndarray) -> tuple[np.ndarray, float]:
    """The gradient [V + 1, K], and how far the objective is above its optimum at most, if the intercept is optimal.

    With the intercept minimised out the objective is 1-strongly convex in w, as in `probes.logistic.certificate`.
    """
    g: np.ndarray = C * (features.columns @ loss.gradient(Z))
    g[:-1] += W[:-1]
    return g, 0.5 * float(np.square(g[:-1]).sum())


def _penalty(W: np.ndarray) -> float:
    return 0.5 * float(np.square(W[:-1]).sum())


def _newton(features: _Features, loss: Loss, C: float, Z: np.ndarray, g: np.ndarray, enough: float) -> np.ndarray:
    """About Newton's step [V + 1, K]: conjugate gradients until the squared residual is `enough` of the first."""
    state, diagonal = (each.astype(np.float32) for each in loss.curvature(Z))
    size = np.abs(g).max()  # float32 could not hold all
    r, d = (-g / size).astype(np.float32), np.zeros_like(g, dtype=np.float32)
    inverse: np.ndarray = np.float32(C) * (features.squares_32 @ diagonal)
    inverse[:-1] += 1
    inverse = 1 / np.maximum(inverse, np.finfo(np.float32).tiny)
    z = inverse * r
    p, left = z, float(np.vdot(r, z))
    target = max(enough, 1e-9) * left
    for _ in range(MOST_PRODUCTS):
        Hp: np.ndarray = np.float32(C) * (features.columns_32 @ loss.hessian_product(state, features.rows_32 @ p))
        Hp[:-1] += p[:-1]
        curvature = float(np.vdot(p, Hp))
        if not curvature > 0:
            break
        alpha = np.float32(left / curvature)
        d += alpha * p
        r -= alpha * Hp
        z = inverse * r
        before, left = left, float(np.vdot(r, z))
        if not left > target:
            break
        p = z + np.float32(left / before) * p
    return d * size


Here = tuple[np.ndarray, np.ndarray, float]  # weights, scores and objective
Move = tuple[np.ndarray, np.ndarray]  # of weights and scores


def _step(loss: Loss, C: float, here: Here, move: Move, slope: float) -> float:
    """The first of 1, 1/2, 1/4 ... of a move that lowers the objective enough; 0 if none does."""
    (W, Z, value), (d, U) = here, move
    linear, quadratic = float((W[:-1] * d[:-1]).sum()), _penalty(d)
    t = 1.0
    while t > 1e-9:
        # compared with the value, sums of squares and losses lose the last digits
        if (
            _penalty(W) + t * linear + t**2 * quadratic + C * loss.value(Z + t * U)
            <= value + 1e-4 * t * slope + 1e-15 * value
        ):
            return t
        t /= 2
    return 0.0


def _balanced(loss: Loss, W: np.ndarray, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Weights and scores with the intercept minimised out, and whether it is optimal."""
    W = W.copy()
    for _ in range(MOST_STEPS):
        R = loss.gradient(Z)
        drift = R.sum(axis=0)
        if (np.abs(drift) <= BALANCED * np.abs(R).sum(axis=0)).all():
            return W, Z, True
        step = _intercept_step(loss, Z, drift)
        if step is None:
            break
        W[-1] += step
        Z = Z + step
    return W, Z, False


def _intercept_step(loss: Loss, Z: np.ndarray, drift: np.ndarray) -> np.ndarray | None:
    """Newton's step of the intercept [K], each of at most 1; None where there is none."""
    state, diagonal = loss.curvature(Z)
    if Z.shape[1] == 1:
        total = diagonal.sum()
        step = -drift / total if total > 0 else np.full(1, np.nan)
    else:
        A = np.diag(state.sum(axis=0)) - state.T @ state
        A += np.diag(A).mean()  # adding a constant to all classes changes nothing
        try:
            step = np.linalg.solve(A, -drift)
        except np.linalg.LinAlgError:
            return None
    return np.clip(step, -1, 1) if np.isfinite(step).all() else None
