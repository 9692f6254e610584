"""Ridge regression of classes or numbers on standardised features; one eigendecomposition gives every strength.

With Z the standardised features and Y the centred targets, w(alpha) = V (L + alpha)^-1 V' Z'Y where Z'Z = V L V' (Hoerl
and Kennard 1970). For n < D the smaller Z Z' = U L U' gives the same: w(alpha) = Z' U (L + alpha)^-1 U' Y.

C = inf leaves the penalty out: ordinary least squares. Normal equations square the condition of Z, so where Z'Z is
worse than `SOUND` the solution comes from a QR decomposition of Z, as accurate as LAPACK's `gelsd`.

Axes: N examples, D features, C classes, T targets.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from probekit.errors import DataError, UsageError
from probekit.machine.devices import where_float64
from probekit.options.check import check_strength
from probekit.probes.base import Probe, checked, fit_strengths, rows_of, scale_of, unstandardise
from probekit.probes.moments import MomentsProbe, RowMoments, standardised_sums, triangle_of
from probekit.probes.problem import Labels, ProblemSet, by_weighting
from probekit.probes.stream import Stream, take_some

QR_ROWS = 2048  # of a block whose triangle is computed by itself
SOUND = 1e8  # largest condition number of Z'Z that leaves 8 digits of a solution of the normal equations
Weights = tuple[np.ndarray, np.ndarray]  # [T, D] and [T], for raw features


class RidgeProbe(MomentsProbe):
    """Ridge regression of the class (-1 or 1; one against the rest for more than two) on standardised features.

    Args:
        C: inverse strength of the regularisation; scikit-learn's alpha is 1 / (2 C). Infinity is ordinary least
            squares; of linearly dependent features, the solution of least norm (of standardised weights, or of raw).
        standardise: whether to penalise the weights of standardised features, or of raw features as scikit-learn does.
            `coef_` applies to raw features in either case.
    """

    has_C = without_penalty = True
    shares_decomposition = fits_in_threads = streams = True

    def __init__(self, C: float = 1.0, standardise: bool = True):
        self.C = C
        self.standardise = standardise

    def fit_many(self, X: Tensor | Stream, problems: ProblemSet) -> list[Self]:
        """A probe for each problem; those on the same rows share one eigendecomposition. See `Probe.fit_many`."""
        probes = self._copies(problems)
        for probe, labels, weights in _solved(probes, X, problems):
            probe.classes_, probe.n_features_in_ = np.arange(labels.n_classes), X.shape[1]
            probe.coef_, probe.intercept_ = weights
        return probes

    def _solve(self, X: np.ndarray, labels: np.ndarray) -> Weights:
        C = check_strength("C", self.C)
        return RidgePath(torch.from_numpy(X), signs(labels, len(self.classes_)), self.standardise).weights(C)

    def _solve_moments(self, moments: RowMoments) -> Weights:
        C = check_strength("C", self.C)
        n, counts = moments.count, moments.class_counts
        scale = scale_of(moments.covariance.diagonal(), moments.mean, n, self.standardise)
        ZtZ = torch.from_numpy(n * moments.covariance / scale / scale[:, None])
        ZtY = 2 * (counts[:, None] * (moments.class_means - moments.mean) / scale).T  # since Y is -1 or 1 and Z'1 = 0
        own = slice(1, 2) if len(counts) == 2 else slice(None)
        values, V = eigen(ZtZ, n)
        coef = V @ (V.T @ torch.from_numpy(ZtY[:, own]) / (values + 1 / (2 * C))[:, None])
        return unstandardise(coef.T.numpy(), (2 * counts / n - 1)[own], moments.mean, scale)


class RidgeRegressionProbe(RegressorMixin, MultiOutputMixin, Probe):
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
    has_C = without_penalty = several_outputs = linear = shares_decomposition = fits_in_threads = streams = True
    coef_: np.ndarray
    intercept_: np.ndarray

    def __init__(self, C: float = 1.0, standardise: bool = True):
        self.C = C
        self.standardise = standardise

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to features [N, D] and targets [N] or [N, T].

        Raises:
            ValueError: NaN or infinity, shapes that do not agree, C out of range.
        """
        C = check_strength("C", self.C)
        X, y = self._checked(X, y)
        self._set(RidgePath(torch.from_numpy(X), _columns(y), self.standardise).weights(C), single=y.ndim == 1)
        return self

    def _checked(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        return checked(self, X, y, multi_output=True, y_numeric=True)

    def _set(self, weights: Weights, single: bool) -> None:
        coef, intercept = weights
        self.coef_, self.intercept_ = (coef[0], np.asarray(intercept[0])) if single else (coef, intercept)

    def fit_many(self, X: Tensor | Stream, problems: ProblemSet) -> list[Self]:
        """A probe for each problem; those on the same rows share one eigendecomposition. See `Probe.fit_many`."""
        probes = self._copies(problems)
        for probe, labels, weights in _solved(probes, X, problems):
            probe.n_features_in_ = X.shape[1]
            probe._set(weights, single=labels.values.ndim == 1)
        return probes

    def _rows(self, labels: Labels, weights: np.ndarray | None) -> np.ndarray | None:
        if labels.n_classes != 0:
            raise UsageError(f"a regression needs a problem with n_classes=0; got {labels.n_classes}")
        return rows_of(weights)

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


class RidgePath:
    """Ridge regressions of float64 targets [N, T] on X [N, D]: the costly part, which all strengths share."""

    def __init__(self, X: Tensor | Stream, targets: Tensor, standardise: bool = True):
        if isinstance(X, Stream):
            self._of_stream(X, targets, standardise)
            return
        Z, self.mean, self.scale = _standardised(X, standardise)
        targets = targets.to(Z.device)
        self.middle = targets.mean(dim=0).cpu().numpy()
        self._Z, self._targets = Z, targets
        if Z.shape[1] <= len(Z):
            self.values, self.basis = eigen(Z.T @ Z, len(Z))
            self.loadings = self.basis.T @ (Z.T @ targets)  # Z'1 = 0, so targets need no centring
        else:
            self.values, U = eigen(Z @ Z.T, len(Z))
            self.loadings = U.T @ (targets - targets.mean(dim=0))
            self.basis = Z.T @ U

    def _of_stream(self, X: Stream, targets: Tensor, standardise: bool) -> None:
        sums = standardised_sums(X, targets, standardise)
        self.mean, self.scale, self.middle = sums.mean, sums.scale, targets.mean(dim=0).numpy()
        self.values, self.basis = eigen(sums.gram, X.n)
        self.loadings = self.basis.T @ sums.loadings
        self._Z, self._targets = X, targets

    def weights(self, C: float, own: slice = slice(None)) -> Weights:
        """Weights [T, D] and intercepts [T] of the targets `own`, for raw features."""
        if math.isinf(C) and not self._is_sound:
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
        targets, D = self._targets - self._targets.mean(dim=0), len(self.scale)
        if isinstance(self._Z, Stream):  # R stands for the rows: the same products, and so the same solutions
            R = triangle_of(self._Z, targets, self.mean, self.scale)
            return least_norm(R[:, :D], R[:, D:], self._Z.n)
        return least_norm(self._Z, targets)


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


def _solved(probes: Sequence[Any], X: Tensor | Stream, problems: ProblemSet) -> Iterator[tuple[Any, Labels, Weights]]:
    """Each probe with its labels and its weights, from one eigendecomposition per weighting of the rows."""
    for weighting, same_rows in by_weighting(problems).items():
        numbers = list(dict.fromkeys(problems.problems[i].label for i in same_rows))
        columns = [problems.labels[number] for number in numbers]
        rows, *_ = [probes[0]._rows(labels, problems.weightings[weighting]) for labels in columns]  # checks each
        targets = [_targets(labels, rows) for labels in columns]
        path = RidgePath(take_some(X, rows), torch.cat(targets, dim=1), probes[0].standardise)
        ends = np.cumsum([part.shape[1] for part in targets]).tolist()
        own = {
            number: slice(end - part.shape[1], end) for number, part, end in zip(numbers, targets, ends, strict=True)
        }
        for i in same_rows:
            label = problems.problems[i].label
            yield probes[i], problems.labels[label], path.weights(check_strength("C", probes[i].C), own[label])


def _targets(labels: Labels, rows: np.ndarray | None) -> Tensor:
    return signs(labels.of(rows), labels.n_classes) if labels.n_classes else _columns(labels.of(rows))


def _columns(y: np.ndarray) -> Tensor:
    """Targets [N] or [N, T] as float64 [N, T]."""
    return torch.from_numpy(np.asarray(y, dtype=np.float64).reshape(len(y), -1))


def _standardised(X: Tensor, standardise: bool) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """`base.standardise` in float64 on the device of X, with one copy of X."""
    Z = where_float64(X.detach()).to(torch.float64, copy=True)
    mean = Z.mean(dim=0)
    if not torch.isfinite(mean).all():
        raise DataError("NaN or infinity in the features; check the activations, or extract again in float32")
    Z -= mean
    variance = torch.linalg.vector_norm(Z, dim=0) ** 2 / len(Z)
    scale = scale_of(variance.cpu().numpy(), mean.cpu().numpy(), len(Z), standardise)
    Z /= torch.from_numpy(scale).to(Z.device)
    return Z, mean.cpu().numpy(), scale
