"""What all linear probes share: scikit-learn's manners, decisions in the features' own space, and files without pickle.

Axes: N examples, D features, C classes.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import safetensors.numpy
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from probekit.durable import write_as
from probekit.errors import DataError, UsageError, nearest

FORMAT = "probekit.probe/1"


class LinearProbe(ClassifierMixin, BaseEstimator):
    """A linear classifier of activations; subclasses say how the weights are found.

    Takes numpy arrays and torch tensors of any float type on any device; everything is computed in float64.

    Attributes:
        coef_: float64 [1, D] for two classes, [C, D] for more, for features as they are (nothing is standardised).
        intercept_: float64 [1] or [C].
        classes_: [C], sorted; integers, strings or whatever `y` held.
        n_features_in_: D.
        converged_: whether the solver reached its tolerance.
        n_iter_: how many iterations it took; 0 for a closed form.
    """

    coef_: np.ndarray
    intercept_: np.ndarray
    classes_: np.ndarray
    n_features_in_: int
    converged_: bool = True
    n_iter_: int = 0

    def fit(self, X: Any, y: Any) -> Self:
        """Find the weights for features [N, D] and labels [N].

        Raises:
            ValueError: NaN or infinity, shapes that do not fit, parameters out of range.
            DataError: fewer than two classes in `y`.
        """
        X, y = validate_data(self, as_numpy(X), as_numpy(y), dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"a probe needs two classes or more; every label is of one class, {self.classes_[0]!a}")
        self.coef_, self.intercept_ = self._solve(X, labels)
        return self

    def _solve(self, X: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights [1 or C, D] and intercepts [1 or C] for float64 X [N, D] and labels 0..C-1."""
        raise NotImplementedError

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores [N] for two classes (positive means the second one), [N, C] for more."""
        check_is_fitted(self)
        X = validate_data(self, as_numpy(X), dtype=np.float64, reset=False)
        scores = X @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.coef_) == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row: [N]."""
        labels = predicted_labels(self.decision_function(X))  # first: it says so when nothing is fitted yet
        return self.classes_[labels]

    @property
    def direction(self) -> np.ndarray:
        """The weights in the model's own space: [D] for two classes (from the first to the second), [C, D] for more."""
        check_is_fitted(self)
        return self.coef_[0] if len(self.coef_) == 1 else self.coef_

    def save(self, path: str | Path) -> Path:
        """Write the fitted probe as `path`.safetensors and `path`.json; returns the latter.

        Raises:
            DataError: class labels that are not numbers, booleans or strings.
            StorageError: the disk refused.
        """
        check_is_fitted(self)
        stem = _stem(path)
        # safetensors writes the buffer as it lies, so an array in Fortran's order would come back scrambled
        tensors = {"coef": np.ascontiguousarray(self.coef_), "intercept": np.ascontiguousarray(self.intercept_)}
        weights = safetensors.numpy.save(tensors)
        about = {
            "format": FORMAT,
            "probe": type(self).__name__,
            "parameters": {k: float(v) for k, v in self.get_params(deep=False).items()},
            "classes": _plain_classes(self.classes_),
            "classes_dtype": self.classes_.dtype.str,
            "converged": bool(self.converged_),
            "n_iter": int(self.n_iter_),
            "sha256": hashlib.sha256(weights).hexdigest(),
        }
        if hasattr(self, "feature_names_in_"):
            about["feature_names"] = list(self.feature_names_in_)  # pyright: ignore[reportAttributeAccessIssue]
        text = json.dumps(about, indent=1, allow_nan=False)
        write_as(Path(f"{stem}.safetensors"), weights)
        write_as(Path(f"{stem}.json"), text.encode())
        return Path(f"{stem}.json")


class MomentsProbe(LinearProbe):
    """A probe that needs no more of its rows than their moments, which may have been summed elsewhere."""

    def fit_statistics(self, count: int, mean: Any, covariance: Any, class_counts: Any, class_means: Any) -> Self:
        """The probe that `fit` gives on N rows with labels 0..C-1, from the rows' moments.

        Args:
            count: N.
            mean: [D].
            covariance: [D, D], divided by N.
            class_counts: rows of each class, [C]; a class without rows is left out, as it is from `classes_` by `fit`.
            class_means: [C, D].

        Raises:
            DataError: fewer than two classes with rows, shapes that do not fit, NaN or infinity.
        """
        given = (as_numpy(x) for x in (mean, covariance, class_counts, class_means))
        every = RowMoments(int(count), *(np.asarray(x, dtype=np.float64) for x in given))
        self.classes_, moments = every.of_classes_with_rows()
        self.n_features_in_ = len(moments.mean)
        self.coef_, self.intercept_ = self._solve_moments(moments)
        return self

    def _solve_moments(self, moments: "RowMoments") -> tuple[np.ndarray, np.ndarray]:
        """Weights [1 or C, D] and intercepts [1 or C], as `_solve` would give on the rows."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class RowMoments:
    """Float64: count N, mean [D], covariance [D, D] divided by N, class counts [C], class means [C, D]."""

    count: int
    mean: np.ndarray
    covariance: np.ndarray
    class_counts: np.ndarray
    class_means: np.ndarray

    def of_classes_with_rows(self) -> tuple[np.ndarray, "RowMoments"]:
        """The numbers of the classes that have rows, and the moments without the others.

        Raises:
            DataError: no probe can be fitted to them.
        """
        self._check_shapes()
        there = np.flatnonzero(self.class_counts)
        if len(there) < 2:
            raise DataError(f"a probe needs two classes or more with rows; there are {len(there)}")
        kept = replace(self, class_counts=self.class_counts[there], class_means=self.class_means[there])
        if not all(np.isfinite(x).all() for x in (kept.mean, kept.covariance, kept.class_means)):
            raise DataError("NaN or infinity in the moments; check the activations that they were summed from")
        return there, kept

    def _check_shapes(self) -> None:
        D, C = self.mean.size, self.class_counts.size
        shapes = [x.shape for x in (self.mean, self.covariance, self.class_counts, self.class_means)]
        of_classes = self.class_counts.sum() == self.count and (self.class_counts >= 0).all()
        if shapes != [(D,), (D, D), (C,), (C, D)] or not of_classes:
            raise DataError(
                f"moments that do not fit together: {self.count} rows, {self.class_counts.sum():g} with a class; "
                f"mean, covariance, class counts, class means of {', '.join(str(list(shape)) for shape in shapes)}"
            )


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


def read_probe(path: str | Path, known: dict[str, Callable[[], LinearProbe]]) -> LinearProbe:
    """The probe at `path`.safetensors and `path`.json, made by one of `known` (class name -> class).

    Raises:
        DataError: no such files, or files that are not a whole probe.
    """
    stem = _stem(path)
    try:
        about = json.loads(Path(f"{stem}.json").read_bytes())
        weights = Path(f"{stem}.safetensors").read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"no probe here: {str(error.filename)!a} is missing") from None
    except (OSError, ValueError) as error:
        raise DataError(f"could not read the probe {stem!a}: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise DataError(f"{stem + '.json'!a} is not a probe's file (expected format {FORMAT})")
    if about.get("probe") not in known:
        raise DataError(f"{stem + '.json'!a}: unknown probe; {nearest(str(about.get('probe')), known)}")
    if about.get("sha256") != hashlib.sha256(weights).hexdigest():
        raise DataError(f"{stem + '.safetensors'!a} is damaged, or not the one that its .json was written with")
    try:
        return _restored(known[about["probe"]](), about, safetensors.numpy.load(weights))
    except (KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise DataError(f"{stem + '.json'!a} is not a whole probe: {error!a}") from None


def _restored(probe: LinearProbe, about: dict[str, Any], weights: dict[str, np.ndarray]) -> LinearProbe:
    probe.set_params(**about["parameters"])
    probe.coef_, probe.intercept_ = weights["coef"], weights["intercept"]
    probe.classes_ = np.array(about["classes"], dtype=np.dtype(about["classes_dtype"]))
    rows = 1 if len(probe.classes_) == 2 else len(probe.classes_)
    if probe.coef_.ndim != 2 or len(probe.coef_) != rows or probe.intercept_.shape != (rows,):
        raise ValueError(f"{len(probe.classes_)} classes with weights {probe.coef_.shape}")
    probe.n_features_in_ = probe.coef_.shape[1]
    if "feature_names" in about:
        probe.feature_names_in_ = np.array(about["feature_names"], dtype=object)  # pyright: ignore
    probe.converged_, probe.n_iter_ = about["converged"], about["n_iter"]
    return probe


def _plain_classes(classes: np.ndarray) -> list[Any]:
    plain = classes.tolist()
    if classes.dtype.kind in "iufbU" or all(isinstance(c, str) for c in plain):
        return plain
    raise DataError(f"class labels must be numbers, booleans or strings to be saved; got {plain[0]!a}")


def _stem(path: str | Path) -> str:
    text = str(path)
    for ending in (".safetensors", ".json"):
        text = text.removesuffix(ending)
    return text
