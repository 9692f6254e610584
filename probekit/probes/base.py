"""What all probes share: scikit-learn's manners, torch and numpy alike, many fits on the same features, and files.

Axes: N examples, D features, C classes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from probekit.errors import DataError, UsageError
from probekit.probes.files import write_probe
from probekit.probes.problem import Labels, ProblemSet


class Probe(BaseEstimator):
    """A fitted map from activations to labels, which can be saved.

    Takes numpy arrays and torch tensors of any float type on any device; decisions are computed in float64.

    Attributes:
        ARRAYS: names of the fitted arrays that make up the probe.
        FACTS: names of fitted numbers that are saved beside `converged_` and `n_iter_`; None where there is none.
        n_features_in_: D.
        converged_: whether the solver reached its tolerance.
        n_iter_: how many iterations it took; 0 for a closed form.
    """

    ARRAYS: tuple[str, ...] = ("coef_", "intercept_")
    FACTS: tuple[str, ...] = ()
    n_features_in_: int
    converged_: bool = True
    n_iter_: int = 0

    def fit(self, X: Any, y: Any) -> Self:
        """Find the weights for features [N, D] and labels or targets [N]."""
        raise NotImplementedError

    def predict(self, X: Any) -> np.ndarray:
        """The label or target of each row."""
        raise NotImplementedError

    def fit_many(self, X: torch.Tensor, problems: ProblemSet) -> Sequence[Self]:
        """A fitted copy of this probe for each problem, from features [N, D] that they share; `classes_` are 0..C-1.

        Raises:
            DataError: rows of a problem that lack one of its classes.
            UsageError: weights other than 0 and 1, or a kind of problem that the probe is not for.
        """
        probes = []
        for problem in problems.problems:
            labels = problems.labels[problem.label]
            rows = self._rows(labels, problems.weightings[problem.weighting])
            features = X if rows is None else X[torch.from_numpy(rows).to(X.device)]
            probes.append(self._with(problem.C).fit(features, labels.values if rows is None else labels.values[rows]))
        return probes

    def _with(self, C: float | None) -> Self:
        """An unfitted copy, with this regularisation where the probe has one."""
        probe: Self = clone(self)  # pyright: ignore[reportAssignmentType]
        return probe.set_params(C=C) if C is not None and "C" in probe.get_params() else probe

    def _rows(self, labels: Labels, weights: np.ndarray | None) -> np.ndarray | None:
        """The rows that have a weight, or None for all; checks that the probe can be fitted to their labels."""
        return rows_of(weights)

    def save(self, path: str | Path) -> Path:
        """Write the fitted probe as `path`.safetensors and `path`.json; returns the latter.

        Raises:
            DataError: class labels or parameters that are not numbers, booleans or strings.
            StorageError: the disk refused.
        """
        check_is_fitted(self)
        return write_probe(self, path)

    def _check_arrays(self) -> None:
        """Raise a ValueError if the fitted arrays, read from a file, do not fit together; set `n_features_in_`."""
        raise NotImplementedError


class ClassifierProbe(ClassifierMixin, Probe):
    """A probe whose labels are classes; subclasses say how it is fitted and what it decides.

    Attributes:
        classes_: [C], sorted; integers, strings or whatever `y` held.
    """

    classes_: np.ndarray

    def fit(self, X: Any, y: Any) -> Self:
        """Find the weights for features [N, D] and labels [N].

        Raises:
            ValueError: NaN or infinity, shapes that do not fit, parameters out of range.
            DataError: fewer than two classes in `y`.
        """
        self._fit(*self._checked(X, y))
        return self

    def _checked(self, X: Any, y: Any, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
        """X [N, D] of a type that is wanted, and labels 0..C-1 [N]; sets `classes_` and `n_features_in_`."""
        X, y = checked(self, X, y, dtype=dtype)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"a probe needs two classes or more; every label is of one class, {self.classes_[0]!a}")
        return X, labels

    def _fit(self, X: np.ndarray, labels: np.ndarray) -> None:
        """Set the fitted attributes, for float64 X [N, D] and labels 0..C-1."""
        raise NotImplementedError

    def _decide(self, X: np.ndarray) -> np.ndarray:
        """Scores [N, 1] for two classes, [N, C] for more, of float64 X [N, D]."""
        raise NotImplementedError

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores [N] for two classes (positive means the second one), [N, C] for more."""
        check_is_fitted(self)
        scores = self._decide(checked(self, X, reset=False))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row: [N]."""
        labels = predicted_labels(self.decision_function(X))  # first: it says so when nothing is fitted yet
        return self.classes_[labels]

    def _rows(self, labels: Labels, weights: np.ndarray | None) -> np.ndarray | None:
        rows = rows_of(weights)
        check_classes(labels.values if rows is None else labels.values[rows], labels.n_classes)
        return rows


class LinearProbe(ClassifierProbe):
    """A linear classifier of activations; subclasses say how the weights are found.

    Attributes:
        coef_: float64 [1, D] for two classes, [C, D] for more, for features as they are (nothing is standardised).
        intercept_: float64 [1] or [C].
    """

    coef_: np.ndarray
    intercept_: np.ndarray

    def _fit(self, X: np.ndarray, labels: np.ndarray) -> None:
        self.coef_, self.intercept_ = self._solve(X, labels)

    def _solve(self, X: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights [1 or C, D] and intercepts [1 or C] for float64 X [N, D] and labels 0..C-1."""
        raise NotImplementedError

    def _decide(self, X: np.ndarray) -> np.ndarray:
        return X @ self.coef_.T + self.intercept_

    @property
    def direction(self) -> np.ndarray:
        """The weights in the model's own space: [D] for two classes (from the first to the second), [C, D] for more."""
        check_is_fitted(self)
        return self.coef_[0] if len(self.coef_) == 1 else self.coef_

    def _check_arrays(self) -> None:
        rows = 1 if len(self.classes_) == 2 else len(self.classes_)
        if self.coef_.ndim != 2 or len(self.coef_) != rows or self.intercept_.shape != (rows,):
            raise ValueError(f"{len(self.classes_)} classes with weights {self.coef_.shape}")
        self.n_features_in_ = self.coef_.shape[1]


class WithProbabilities:
    """A classifier whose decisions are log odds."""

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class: [N, C]."""
        return probabilities(self.decision_function(X))  # pyright: ignore[reportAttributeAccessIssue]


def probabilities(decision: np.ndarray) -> np.ndarray:
    """[N, C] from log odds [N] of two classes, or the logits [N, C] of more."""
    if decision.ndim == 2:
        return softmax(decision, axis=1)
    return np.stack([expit(-decision), expit(decision)], axis=1)


def rows_of(weights: np.ndarray | None) -> np.ndarray | None:
    """The rows whose weight is 1; None for all of them, where there are no weights.

    Raises:
        UsageError: other weights than 0 and 1.
    """
    if weights is None:
        return None
    if not np.isin(weights, (0, 1)).all():
        raise UsageError("this probe takes rows or leaves them out: weights must be 0 or 1; use the logistic probe")
    return np.flatnonzero(weights)


def check_classes(labels: np.ndarray, n_classes: int) -> None:
    """Raise a DataError unless each of the classes 0..n_classes-1, and nothing else, is among the labels [N]."""
    if n_classes < 2:
        raise UsageError(f"a classifier needs a problem of 2 classes or more; got n_classes={n_classes}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < n_classes):
        raise DataError(f"labels must be 0..{n_classes - 1}; got {labels.min()}..{labels.max()}")
    if missing := np.flatnonzero(np.bincount(labels, minlength=n_classes) == 0).tolist():
        raise DataError(
            f"no row of class {missing[0]} among the {len(labels)} to fit ({len(missing)} of {n_classes} classes "
            "lack rows); take more rows, larger folds, or leave the class out"
        )


def checked(probe: BaseEstimator, X: Any, *y: Any, dtype: Any = np.float64, **how: Any) -> Any:
    """What scikit-learn's `validate_data` gives of torch or numpy: X [N, D], and y where it is given."""
    return validate_data(probe, as_numpy(X), *map(as_numpy, y), dtype=dtype, **how)


def as_numpy(x: Any) -> Any:
    """A torch tensor as numpy (half precisions as float32, which holds them exactly); anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach().cpu()
    return (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).numpy()


def predicted_labels(decision: np.ndarray) -> np.ndarray:
    """Class numbers [N] from decisions [N] or [N, C]."""
    return (decision > 0).astype(np.int64) if decision.ndim == 1 else decision.argmax(axis=1)


def standardise(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(X - mean) / scale, mean and scale; a constant column becomes 0 and has the scale infinity.

    So weights for the result, divided by the scale, are weights for X, and exactly 0 where a column is constant.
    """
    mean = X.mean(axis=0)
    Z = X - mean
    scale = scale_of(np.einsum("nd,nd->d", Z, Z) / len(X), mean, len(X))
    Z /= scale
    return Z, mean, scale


def scale_of(variance: np.ndarray, mean: np.ndarray, n: int) -> np.ndarray:
    """The standard deviation of each of D columns of n rows; infinity where a column is constant."""
    # the bound on the rounding error of the variance, as in scikit-learn's _is_constant_feature
    eps = np.finfo(np.float64).eps
    constant = variance <= n * eps * variance + (n * mean * eps) ** 2
    return np.where(constant, np.inf, np.sqrt(np.maximum(variance, 0)))


def unstandardise(
    coef: np.ndarray, intercept: np.ndarray, mean: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and intercepts for standardised features, as those that give the same decisions on the raw ones."""
    raw = coef / scale
    return raw, intercept - raw @ mean


def check_positive(name: str, value: Any) -> float:
    """`value` as a float, or a UsageError: the regularisation must be a positive, finite number."""
    if isinstance(value, (bool, str)) or not np.isscalar(value) or not 0 < float(value) < np.inf:  # pyright: ignore
        raise UsageError(f"{name} must be a positive, finite number; got {value!a}")
    return float(value)  # pyright: ignore[reportArgumentType]


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """`value` as an int, or a UsageError: it must be a whole number, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise UsageError(f"{name} must be a whole number, {least} or more; got {value!a}")
    return int(value)
