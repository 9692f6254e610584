"""Ridge regression of classes or numbers on standardised features; one eigendecomposition gives every strength.

With Z the standardised features and Y the centred targets, w(alpha) = V (L + alpha)^-1 V' Z'Y where Z'Z = V L V' (Hoerl
and Kennard 1970). For n < D the smaller Z Z' = U L U' gives the same: w(alpha) = Z' U (L + alpha)^-1 U' Y.

C = inf leaves the penalty out: ordinary least squares. Normal equations square the condition of Z, so where Z'Z is
worse than `SOUND` the solution comes from a QR decomposition of Z, as accurate as LAPACK's `gelsd`.

Axes: N examples, D features, C classes, T targets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from probekit.machine.devices import where_float64
from probekit.options.check import check_strength
from probekit.probes.base import Probe, checked, fit_strengths, scale_of, unstandardise
from probekit.probes.moments import (
    MomentsProbe,
    RowMoments,
    StandardisedSums,
    check_finite,
    standardised_sums,
    triangle_of,
)
from probekit.probes.problem import Labels, ProblemSet, by_weighting
from probekit.probes.scikit_learn import check_is_fitted
from probekit.probes.stream import Stream, take_some

QR_ROWS = 2048  # of a block whose triangle is computed by itself
SOUND = 1e8  # largest condition number of Z'Z that leaves 8 digits of a solution of the normal equations
Weights = tuple[np.ndarray, np.ndarray]  # [T, D] and [T], for raw features


class _Ridge(Probe):
    has_C = without_penalty = shares_decomposition = fits_in_threads = streams = True

    def __init__(self, C: float = 1.0, standardise: bool = True):
        self.C = C
        self.standardise = standardise

    def _set(self, weights: Weights, labels: Labels) -> None:
        raise NotImplementedError

    def fit_many(self, X: Tensor | Stream, problems: ProblemSet) -> list[Self]:
        """A probe for each problem; those on the same rows share one eigendecomposition. See `Probe.fit_many`."""
        probes = self._copies(problems)
        for weighting, same_rows in by_weighting(problems).items():
            numbers = list(dict.fromkeys(problems.problems[i].label for i in same_rows))
            columns = [problems.labels[number] for number in numbers]
            rows, *_ = [self._rows(labels, problems.weightings[weighting]) for labels in columns]  # checks each
            targets = [_targets(labels, rows) for labels in columns]
            path = ridge_path(take_some(X, rows), torch.cat(targets, dim=1), self.standardise)
            ends = np.cumsum([part.shape[1] for part in targets]).tolist()
            own = {n: slice(end - part.shape[1], end) for n, end, part in zip(numbers, ends, targets, strict=True)}
            for i in same_rows:
                label = problems.problems[i].label
                probes[i].n_features_in_ = X.shape[1]
                probes[i]._set(path.weights(check_strength("C", probes[i].C), own[label]), problems.labels[label])
        return probes


class RidgeProbe(_Ridge, MomentsProbe):
    """Ridge regression of the class (-1 or 1; one against the rest for more than two) on standardised features.

    Args:
        C: inverse strength of the regularisation; scikit-learn's alpha is 1 / (2 C). Infinity is ordinary least
            squares; of linearly dependent features, the solution of least norm (of standardised weights, or of raw).
        standardise: whether to penalise the weights of standardised features, or of raw features as scikit-learn does.
            `coef_` applies to raw features in either case.
    """

    def _set(self, weights: Weights, labels: Labels) -> None:
        self.classes_, (self.coef_, self.intercept_) = np.arange(labels.n_classes), weights

    def _solve(self, X: np.ndarray, labels: np.ndarray) -> Weights:
        C = check_strength("C", self.C)
        return ridge_path(torch.from_numpy(X), signs(labels, len(self.classes_)), self.standardise).weights(C)

    def _solve_moments(self, moments: RowMoments) -> Weights:
        C = check_strength("C", self.C)
        n, counts = moments.count, moments.class_counts
        scale = scale_of(moments.covariance.diagonal(), moments.mean, n, self.standardise)
        ZtZ = torch.from_numpy(n * moments.covariance / scale / scale[:, None])
        ZtY = 2 * (counts[:, None] * (moments.class_means - moments.mean) / scale).T  # since Y is -1 or 1 and Z'1 = 0
        own = slice(1, 2) if len(counts) == 2 else slice(None)
        sums = StandardisedSums(ZtZ, torch.from_numpy(ZtY[:, own]), moments.mean, scale)
        return RidgePath.of_sums(sums, (2 * counts / n - 1)[own], n).weights(C)


class RidgeRegressionProbe(_Ridge):
    """Ridge regression of one or more numbers (year, latitude) on standardised features; `score` is R2.

    Args:
        C: inverse strength of the regularisation; scikit-learn's alpha is 1 / (2 C). Infinity is ordinary least
            squares; of linearly dependent features, the solution of least norm (of standardised weights, or of raw).
        standardise: whether to penalise the weights of standardised features, or of raw features as scikit-learn does.
            `coef_` applies to raw features in either case.

    Attributes:
        coef_: float64 [D], or [T, D] for targets [N, T]; applies to raw features.
        intercept_: float64 [] or [T].
    """

    predicts = "numbers"
    several_outputs = linear = True
    coef_: np.ndarray
    intercept_: np.ndarray

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to features [N, D] and targets [N] or [N, T].

        Raises:
            ValueError: NaN or infinity, shapes that do not agree, C out of range.
        """
        C = check_strength("C", self.C)
        X, y = self._checked(X, y)
        targets = Labels(y, 0)
        self._set(ridge_path(torch.from_numpy(X), _targets(targets, None), self.standardise).weights(C), targets)
        return self

    def _checked(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        return checked(self, X, y, multi_output=True, y_numeric=True)

    def _set(self, weights: Weights, labels: Labels) -> None:
        coef, intercept = weights
        single = labels.values.ndim == 1
        self.coef_, self.intercept_ = (coef[0], np.asarray(intercept[0])) if single else weights

    def predict(self, X: Any) -> np.ndarray:
        """The target of each row: float64 [N], or [N, T] if fitted to [N, T]."""
        check_is_fitted(self)
        return checked(self, X, reset=False) @ self.coef_.T + self.intercept_

    @property
    def direction(self) -> np.ndarray:
        """The weights in activation space, float64: [D], or [T, D] for targets [N, T]; their length is not 1."""
        check_is_fitted(self)
        return self.coef_

    def _check_arrays(self) -> None:
        if self.coef_.ndim not in (1, 2) or self.intercept_.shape != self.coef_.shape[:-1]:
            raise ValueError(f"weights {self.coef_.shape} with intercepts {self.intercept_.shape}")
        self.n_features_in_ = self.coef_.shape[-1]


def fit_ridge_path(
    X: Any,
    y: Any,
    C: Sequence[float] = (1e-4, 1e-2, 1.0, 1e2, 1e4),
    regression: bool = False,
    standardise: bool = True,
) -> list[Any]:
    """Fit one `RidgeProbe` or `RidgeRegressionProbe` per C, all from one eigendecomposition of the features.

    Args:
        X: features [N, D].
        y: labels [N]; with `regression` targets [N] or [N, T].
        C: inverse strengths of the regularisation.
        regression: whether `y` holds numbers rather than classes.
        standardise: as in the probe.

    Raises:
        ValueError: as from `fit`.
    """
    kind = RidgeRegressionProbe if regression else RidgeProbe
    first = kind(standardise=standardise)
    X, labels = first._checked(X, y)
    n_classes = 0 if isinstance(first, RidgeRegressionProbe) else len(first.classes_)
    return [*fit_strengths(first, torch.from_numpy(X), Labels(labels, n_classes), C)]


@dataclass(frozen=True, eq=False)
class RidgePath:
    """Ridge regressions of T targets: the costly part, which all strengths share.

    Attributes:
        values: [R], the eigenvalues of Z'Z.
        basis: [D, R], the weights that `loadings` are along.
        loadings: [R, T], of the targets along the eigenvectors.
        middle: [T], the means of the targets.
        mean: of the features, [D].
        scale: of the features, [D].
        rows: standardised [N, D], or a stream of raw ones, and the targets [N, T]; None where they are not known.
    """

    values: Tensor
    basis: Tensor
    loadings: Tensor
    middle: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    rows: tuple[Tensor | Stream, Tensor] | None = None

    @staticmethod
    def of_sums(sums: StandardisedSums, middle: np.ndarray, n: int, rows: Any = None) -> "RidgePath":
        """From sums over n rows. Z'1 = 0, so targets need no centring."""
        values, basis = eigen(sums.gram, n)
        return RidgePath(values, basis, basis.T @ sums.loadings, middle, sums.mean, sums.scale, rows)

    def weights(self, C: float, own: slice = slice(None)) -> Weights:
        """Weights [T, D] and intercepts [T] of the targets `own`, for raw features."""
        if math.isinf(C) and self.rows is not None and not self._is_sound:
            coef = self._least_squares[:, own]
        else:
            coef = self.basis @ (self.loadings[:, own] / (self.values + 1 / (2 * C))[:, None])
        return unstandardise(coef.T.cpu().numpy(), self.middle[own], self.mean, self.scale)

    @property
    def _is_sound(self) -> bool:
        """Whether the normal equations give least squares to 8 digits, all directions included."""
        varying = int(np.isfinite(self.scale).sum())
        return len(self.values) == varying > 0 and float(self.values.max() / self.values.min()) <= SOUND

    @cached_property
    def _least_squares(self) -> Tensor:
        """The solutions of least norm of all targets, [D, T]."""
        assert self.rows is not None
        (Z, targets), D = self.rows, len(self.scale)
        targets = targets - targets.mean(dim=0)
        if isinstance(Z, Stream):  # the factor R replaces the rows: it has their products, and so their solutions
            R = triangle_of(Z, targets, self.mean, self.scale)
            return least_norm(R[:, :D], R[:, D:], Z.n)
        return least_norm(Z, targets)


def ridge_path(X: Tensor | Stream, targets: Tensor, standardise: bool = True) -> RidgePath:
    """The path of float64 targets [N, T] on X [N, D], which is standardised in one copy, on its device.

    Raises:
        DataError: NaN or infinity in the features.
    """
    if isinstance(X, Stream):
        sums = standardised_sums(X, targets, standardise)
        return RidgePath.of_sums(sums, targets.mean(dim=0).numpy(), X.n, (X, targets))
    Z = where_float64(X.detach()).to(torch.float64, copy=True)
    mean = Z.mean(dim=0)
    check_finite(mean)
    Z -= mean
    variance = torch.linalg.vector_norm(Z, dim=0) ** 2 / len(Z)
    scale = scale_of(variance.cpu().numpy(), mean.cpu().numpy(), len(Z), standardise)
    Z /= torch.from_numpy(scale).to(Z.device)
    targets, mean = targets.to(Z.device), mean.cpu().numpy()
    middle = targets.mean(dim=0).cpu().numpy()
    if Z.shape[1] <= len(Z):
        return RidgePath.of_sums(StandardisedSums(Z.T @ Z, Z.T @ targets, mean, scale), middle, len(Z), (Z, targets))
    values, U = eigen(Z @ Z.T, len(Z))
    return RidgePath(values, Z.T @ U, U.T @ (targets - targets.mean(dim=0)), middle, mean, scale, (Z, targets))


def least_norm(Z: Tensor, targets: Tensor, n_rows: int | None = None) -> Tensor:
    """The least-squares solutions of least norm [D, T] of targets [N, T] on Z [N, D].

    Singular values below max(N, D) eps of the largest count as 0, as in `numpy.linalg.lstsq`; `n_rows` is N where Z
    and the targets are the triangle of more rows.
    """
    N, D = Z.shape
    if N > D:  # R of [Z, targets] holds R of Z and Q' targets; Q is never formed
        R = triangle(torch.cat([Z, targets], dim=1))
        small, rotated = R[:D, :D], R[:D, D:]
    else:
        small, rotated = Z, targets
    U, values, Vt = torch.linalg.svd(small, full_matrices=False)
    kept = values > values.max() * max(n_rows or N, D) * torch.finfo(Z.dtype).eps
    return Vt[kept].T @ ((U[:, kept].T @ rotated) / values[kept, None])


def triangle(X: Tensor) -> Tensor:
    """The upper triangle R of the QR decomposition of X [N, D], up to signs: [min(N, D), D].

    In blocks of rows, whose triangles are decomposed together (Demmel et al. 2012): several times as fast for tall X.
    """
    size = max(4 * X.shape[1], QR_ROWS)
    if len(X) <= 2 * size:
        return torch.linalg.qr(X, mode="r")[1]
    return triangle(torch.cat([torch.linalg.qr(block, mode="r")[1] for block in X.split(size)]))


def eigen(gram: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The non-zero eigenvalues [R] and their eigenvectors [D, R] of a matrix [D, D] of sums over n rows.

    The features do not vary in the other directions, so a least-norm solution is orthogonal to them.
    """
    values, vectors = torch.linalg.eigh(gram)
    kept = values > values.max() * max(n, len(gram)) * torch.finfo(gram.dtype).eps
    return values[kept], vectors[:, kept]


def signs(labels: np.ndarray, n_classes: int) -> Tensor:
    """Targets of -1 or 1: for the second of two classes [N, 1], or for each of more [N, C]."""
    own = np.arange(n_classes) if n_classes > 2 else np.array([1])
    return torch.from_numpy(np.where(labels[:, None] == own, 1.0, -1.0))


def _targets(labels: Labels, rows: np.ndarray | None) -> Tensor:
    """Targets [N, T] of some rows, float64."""
    y = labels.of(rows)
    if labels.n_classes:
        return signs(y, labels.n_classes)
    return torch.from_numpy(np.asarray(y, dtype=np.float64).reshape(len(y), -1))
