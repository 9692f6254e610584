"""The base classes of probes: scikit-learn's interface, numpy and torch input, many fits on shared features, saving.

Axes: N examples, D features, C classes.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from scipy.special import expit, softmax

from probekit.errors import DataError, UsageError
from probekit.machine.devices import find_device, find_float, has_float64
from probekit.probes.files import write_probe
from probekit.probes.problem import LARGEST, SMALLEST, Labels, ProblemSet, every_problem
from probekit.probes.scikit_learn import Parameterised, check_is_fitted, clone
from probekit.probes.stream import take_some

OTHER_NAMES = "The feature names should match"  # how scikit-learn's own list of wrong columns begins


class NoDirection(UsageError, AttributeError):
    """The probe has no weights in activation space; an AttributeError too, so that `hasattr` says so."""


class Probe(Parameterised):
    """A map from activations to labels.

    Takes numpy arrays and torch tensors of any float type on any device; decisions are computed in float64.

    The attributes up to `fits_in_threads` are capabilities: evaluation reads these, never the probe's name.

    Attributes:
        predicts: "classes" or "numbers".
        has_C: whether the parameter C is the inverse strength of a regularisation, to be chosen from a grid.
        without_penalty: whether C may be infinite, which leaves the penalty out.
        several_outputs: whether a probe of numbers predicts several for each row.
        linear: whether decisions are X @ `coef_`.T + `intercept_`.
        by_score: whether the highest decision is always the prediction.
        log_odds: whether `probabilities` of the decisions are the probe's probabilities.
        certified: whether every fit has a `gap_`.
        saveable: whether `save` works; `load_probe` reads the classes that have a name in `PROBES` or `REGRESSORS`.
        shares_decomposition: whether the fits to one set of rows share a decomposition of them, whatever the labels.
        for_codelength: whether the online code may use it: regularised, calibrated, and quick to fit to every prefix.
        fits_in_threads: whether `fit_many` may run in several threads at once.
        streams: whether `fit_many` takes a `Stream`, so that rows need not fit in memory.
        reads_sparse: whether `fit_many` keeps `SparseRows` sparse; others read their blocks, which are dense.
        strengths: values of C to choose from, rising; None takes the usual ones.
        state: how a fit says that it has converged, where it is neither in closed form nor certified; "" elsewhere.
        of_sequences: whether it takes the tokens of each text, a list of [L, D], rather than one row.
        ARRAYS: names of the fitted arrays that make up the probe.
        WHOLE: those of these arrays that hold whole numbers.
        FACTS: names of fitted numbers that are saved along with `converged_` and `n_iter_`; None where there is none.
        n_features_in_: D.
        converged_: whether the solver reached its tolerance.
        n_iter_: iterations; 0 for a closed form.
        gap_: certificate of a fit, an upper bound on (objective - optimum) / optimum; None for a probe without one.
    """

    predicts: Literal["classes", "numbers"] = "classes"
    has_C: bool = False
    without_penalty: bool = False
    several_outputs: bool = False
    linear: bool = False
    by_score: bool = True
    log_odds: bool = False
    certified: bool = False
    saveable: bool = True
    shares_decomposition: bool = False
    for_codelength: bool = False
    fits_in_threads: bool = False
    streams: bool = False
    reads_sparse: bool = False
    state: str = ""
    of_sequences: bool = False
    strengths: tuple[float, ...] | None = None
    ARRAYS: tuple[str, ...] = ("coef_", "intercept_")
    WHOLE: tuple[str, ...] = ()
    FACTS: tuple[str, ...] = ()
    n_features_in_: int
    converged_: bool = True
    n_iter_: int = 0
    gap_: Any = None

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to features [N, D] and labels or targets [N]."""
        raise NotImplementedError

    def predict(self, X: Any) -> np.ndarray:
        """The label or target of each row."""
        raise NotImplementedError

    def fit_many(self, X: torch.Tensor, problems: ProblemSet) -> Sequence[Self]:
        """Fit a copy of this probe to each problem, on shared features [N, D]; `classes_` are 0..C-1.

        Raises:
            DataError: the rows of a problem lack one of its classes.
            UsageError: weights other than 0 and 1; classes for a probe of numbers, or numbers for a probe of classes.
        """
        probes = self._copies(problems)
        for problem, probe in zip(problems.problems, probes, strict=True):
            labels, weights = problems.labels[problem.label], problems.weightings[problem.weighting]
            rows = self._rows(labels, weights)
            weights = None if rows is None or weights is None else weights[rows]
            probe._fit_rows(take_some(X, rows), Labels(labels.of(rows), labels.n_classes), weights)
        return probes

    def _fit_rows(self, X: Any, labels: Labels, weights: np.ndarray | None) -> None:
        """Fit to the rows of one problem, whose weights are not 0."""
        self.fit(X, labels.values)

    def _copies(self, problems: ProblemSet) -> list[Self]:
        """An unfitted copy for each problem with its C, if the probe has one."""
        first: Self = clone(self)
        probes = [deepcopy(first) for _ in problems.problems]  # `clone` inspects signatures, which takes longer
        for probe, problem in zip(probes, problems.problems, strict=True):
            if problem.C is not None and self.has_C:
                probe.C = problem.C  # pyright: ignore[reportAttributeAccessIssue]
        return probes

    def _rows(self, labels: Labels, weights: np.ndarray | None) -> np.ndarray | None:
        """The rows with a weight, or None for all rows; raises if the probe cannot be fitted to their labels."""
        rows = self._weighted(weights)
        if self.predicts == "classes":
            check_classes(labels.of(rows), labels.n_classes)
        elif labels.n_classes != 0:
            raise UsageError(f"a regression needs a problem with n_classes=0; got {labels.n_classes}")
        return rows

    def _weighted(self, weights: np.ndarray | None) -> np.ndarray | None:
        return rows_of(weights)

    @property
    def direction(self) -> np.ndarray:
        """The weights of a linear probe in activation space; other probes have none.

        Raises:
            NoDirection: this probe is not linear.
        """
        name = " ".join(repr(self).split())[:200]
        raise NoDirection(f"direction is that of linear weights, and {name} has none; train a linear probe: ridge")

    def direction_tensor(
        self, dtype: str | torch.dtype = torch.float32, device: str | torch.device = "cpu"
    ) -> torch.Tensor:
        """`direction` for a hook, with the length of the weights, which depends on C and on the scale of the features.

        To steer by a number of activations' units, divide by the length:
        `x + 3 * d / d.norm()` with `d = probe.direction_tensor(x.dtype, x.device)`.

        Args:
            dtype: of the model's activations: a floating-point type of torch, or its name ("bfloat16", "bf16").
            device: of the model's activations.

        Raises:
            NoDirection: this probe is not linear.
            UsageError: a type that is not floating, or a device that cannot be used here or does not have the type.
            DataError: weights that are infinite in this type.
        """
        wanted, place = find_float(dtype), find_device(device)
        if wanted == torch.float64 and not has_float64(place):
            raise UsageError(f"device {str(place)!a} has no float64; give dtype=torch.float32, or device='cpu'")
        given = torch.from_numpy(np.ascontiguousarray(self.direction))
        tensor = given.to(dtype=wanted, copy=True)
        if not bool(tensor.double().isfinite().all()):  # float8 has no isfinite of its own
            raise DataError(
                f"the largest weight, {float(given.abs().max()):.1e}, is infinite in {wanted}; take dtype=torch.float64"
            )
        return tensor.to(place)

    def save(self, path: str | Path) -> Path:
        """Write the fitted probe as `path`.safetensors and `path`.json; returns the latter.

        Raises:
            DataError: class labels or parameters that are not numbers, booleans or strings.
            StorageError: the files could not be written.
        """
        check_is_fitted(self)
        return write_probe(self, path)[0]

    def _check_arrays(self) -> None:
        """Set `n_features_in_` after loading; raises a ValueError if the shapes of the arrays do not agree."""
        raise NotImplementedError


class ClassifierProbe(Probe):
    """A probe of classes. Subclasses implement `_fit` and `_decide`.

    Attributes:
        classes_: [C], sorted, of the type of `y`; 0..C-1 for a probe of a task.
        label_names_: [C], the task's names of `classes_`; `classes_` themselves unless they were set.
    """

    classes_: np.ndarray
    _names: np.ndarray | None = None

    @property
    def label_names_(self) -> np.ndarray:
        """The name of each class: [C]."""
        return self.classes_ if self._names is None else self._names

    @label_names_.setter
    def label_names_(self, names: Sequence[str]) -> None:
        if isinstance(names, str) or len(names) != len(self.classes_) or not all(isinstance(n, str) for n in names):
            raise ValueError(f"expected {len(self.classes_)} names, one for each class; got {list(names)!a:.80}")
        self._names = np.array(names, dtype=object)

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to features [N, D] and labels [N].

        Raises:
            ValueError: NaN or infinity, shapes that do not agree, parameters out of range.
            DataError: fewer than two classes in `y`.
        """
        self._fit(*self._checked(X, y))
        return self

    def _checked(self, X: Any, y: Any, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
        """X [N, D] in (one of) `dtype`, and labels 0..C-1 [N]; sets `classes_` and `n_features_in_`."""
        X, y = checked(self, X, y, dtype=dtype)
        return X, self._classed(y)

    def _classed(self, y: np.ndarray) -> np.ndarray:
        """The labels [N] as 0..C-1; sets `classes_`."""
        from sklearn.utils.multiclass import check_classification_targets  # see `probes.scikit_learn`

        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        self._names = None
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise DataError(f"a probe needs two classes or more; every label is of one class, {only!a}")
        return labels

    def _fit(self, X: np.ndarray, labels: np.ndarray) -> None:
        """Set the fitted attributes from float64 X [N, D] and labels 0..C-1."""
        raise NotImplementedError

    def _decide(self, X: np.ndarray) -> np.ndarray:
        """The scores of float64 X [N, D]: [N, 1] for two classes, [N, C] for more."""
        raise NotImplementedError

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores [N] for two classes (positive means the second one), [N, C] for more."""
        check_is_fitted(self)
        scores = self._decide(checked(self, X, reset=False))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row: [N]."""
        labels = predicted_labels(self.decision_function(X))  # before classes_: raises NotFittedError if unfitted
        return self.classes_[labels]

    def predict_labels(self, X: Any) -> np.ndarray:
        """The name of the class of each row, from `label_names_`: [N]."""
        predicted = self.predict(X)  # before classes_: raises NotFittedError if unfitted
        return self.label_names_[np.searchsorted(self.classes_, predicted)]

    @property
    def _n_outputs(self) -> int:
        """1 for two classes, C for more."""
        return 1 if len(self.classes_) == 2 else len(self.classes_)

    def _check_arrays(self) -> None:
        shapes, expected = {name: getattr(self, name).shape for name in self.ARRAYS}, self._shapes()
        if shapes != expected:
            raise ValueError(f"{len(self.classes_)} classes with arrays of the shapes {shapes}")
        self.n_features_in_ = shapes[self.ARRAYS[0]][-1]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape that each of `ARRAYS` should have; the last axis of the first of them is D."""
        raise NotImplementedError


class LinearProbe(ClassifierProbe):
    """A linear classifier. Subclasses implement `_solve`.

    Attributes:
        coef_: float64 [1, D] for two classes, [C, D] for more; applies to raw features, not standardised ones.
        intercept_: float64 [1] or [C].
    """

    linear = True
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
        """The weights in activation space, float64: [D] for two classes (towards the second), [C, D] for more.

        Their length is not 1: it depends on C and on the scale of the features. Divide by it for steering.
        """
        check_is_fitted(self)
        return self.coef_[0] if len(self.coef_) == 1 else self.coef_

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {"coef_": (self._n_outputs, *self.coef_.shape[-1:]), "intercept_": (self._n_outputs,)}


class WithProbabilities:
    """A classifier whose decisions are log odds."""

    log_odds = True

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class: [N, C]."""
        return probabilities(self.decision_function(X))  # pyright: ignore[reportAttributeAccessIssue]


def probabilities(decision: np.ndarray) -> np.ndarray:
    """[N, C] from log odds [N] of two classes, or the logits [N, C] of more."""
    if decision.ndim == 2:
        return softmax(decision, axis=1)
    return np.stack([expit(-decision), expit(decision)], axis=1)


def fit_strengths(first: Probe, X: torch.Tensor, labels: Labels, strengths: Sequence[float]) -> Sequence[Any]:
    """A probe for each C, like an unfitted one that has looked at the features, whose classes and names they have."""
    probes = first.fit_many(X, every_problem([labels], strengths))
    for probe in probes:
        for name in ("classes_", "feature_names_in_"):
            if hasattr(first, name):
                setattr(probe, name, getattr(first, name))
    return probes


def rows_of(weights: np.ndarray | None) -> np.ndarray | None:
    """The rows with weight 1, or None for all rows if there are no weights.

    Raises:
        UsageError: weights other than 0 and 1.
    """
    if weights is None:
        return None
    if not np.isin(weights, (0, 1)).all():
        raise UsageError("this probe includes or excludes rows: weights must be 0 or 1; use the logistic probe")
    return np.flatnonzero(weights)


def check_classes(labels: np.ndarray, n_classes: int) -> None:
    """Raise a DataError unless the labels [N] are 0..n_classes-1 and each of these occurs."""
    if n_classes < 2:
        raise UsageError(f"a classifier needs a problem of 2 classes or more; got n_classes={n_classes}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < n_classes):
        raise DataError(f"labels must be 0..{n_classes - 1}; got {labels.min()}..{labels.max()}")
    if missing := np.flatnonzero(np.bincount(labels, minlength=n_classes) == 0).tolist():
        raise DataError(
            f"no row of class {missing[0]} among the {len(labels)} to fit ({len(missing)} of {n_classes} classes "
            "lack rows); take more rows, larger folds, or leave the class out"
        )


def checked(probe: Probe, X: Any, *y: Any, dtype: Any = np.float64, **how: Any) -> Any:
    """scikit-learn's `validate_data` for torch and numpy: X [N, D], and y if given.

    Raises:
        ValueError: NaN or infinity, shapes that do not agree.
        DataError: features whose squares are out of range; to predict from, also NaN, infinity and other shapes.
    """
    from sklearn.utils.validation import validate_data  # see `probes.scikit_learn`

    X = as_numpy(X)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # scikit-learn looks for NaN in the sum, which may overflow
            valid: Any = validate_data(probe, X, *map(as_numpy, y), dtype=dtype, **how)
    except ValueError as error:
        if flaw := None if y else _flaw_of_features(probe, X, error):
            raise DataError(flaw) from None
        raise
    features = valid[0] if y else valid
    check_size(max(float(features.max()), -float(features.min())), fitting=bool(y))
    return valid


def _flaw_of_features(probe: Any, X: Any, error: ValueError) -> str | None:
    """What to say of features that scikit-learn refused for a fitted probe; None where its own words are best.

    The words that scikit-learn's `check_estimator` looks for are in them.
    """
    try:
        array = X if hasattr(X, "ndim") else np.asarray(X)
        if str(error).startswith(OTHER_NAMES) or not array.ndim:
            return None
    except ValueError:  # lists of several lengths
        return None
    name, D, found = type(probe).__name__, probe.n_features_in_, list(array.shape)
    wanted = f"expected activations [rows, {D}], as {name} was fitted to, got {found}"
    if array.ndim != 2:
        return f"{wanted}. Reshape your data: {'X[None] is one row' if array.ndim == 1 else f'X.reshape(-1, {D})'}"
    if array.shape[1] != D:
        return (
            f"{wanted}: X has {found[1]} features, but {name} is expecting {D} features as input; give activations of "
            "the model and the place that it was fitted to"
        )
    try:
        finite = np.isfinite(np.asarray(array, dtype=np.float64)).all(axis=1)
    except (TypeError, ValueError):  # sparse, or no numbers
        return None
    if finite.all():
        return None
    return (
        f"expected finite activations, got NaN or inf in row {int(finite.argmin())} ({int((~finite).sum())} of "
        f"{found[0]} rows); leave these rows out, or extract them again in float32"
    )


def check_size(largest: float, fitting: bool = True) -> None:
    """Raise a DataError unless features can be squared: the largest in size is at most 1e100, and not 1e-150 or less.

    Any float32 is in range. Zeros are, and small features are if nothing is fitted to them.
    """
    if largest > LARGEST or (fitting and 0 < largest < SMALLEST):
        raise DataError(
            f"the largest feature must be between {SMALLEST:g} and {LARGEST:g} in size, and is {largest:.1e}; "
            "multiply all features by one constant"
        )


def as_numpy(x: Any) -> Any:
    """A torch tensor as numpy, half precisions as float32 (exact); anything else unchanged."""
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach().cpu()
    return (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).numpy()


def predicted_labels(decision: np.ndarray) -> np.ndarray:
    """Class numbers [N] from decisions [N] or [N, C]."""
    return (decision > 0).astype(np.int64) if decision.ndim == 1 else decision.argmax(axis=1)


def standardise(X: np.ndarray, scaled: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(X - mean) / scale, mean and scale; a constant column becomes 0 and has an infinite scale.

    Unless `scaled`, the scale of the other columns is 1.

    Weights for the result divided by the scale are therefore weights for X, exactly 0 for constant columns.
    """
    mean = X.mean(axis=0)
    Z = X - mean
    scale = scale_of(np.einsum("nd,nd->d", Z, Z) / len(X), mean, len(X), scaled)
    Z /= scale
    return Z, mean, scale


def scale_of(variance: np.ndarray, mean: np.ndarray, n: int, scaled: bool = True) -> np.ndarray:
    """The standard deviations [D] of columns of n rows, or 1 unless `scaled`; infinity for a constant column."""
    # a variance within its rounding error is 0; the bound is that of scikit-learn's _is_constant_feature
    eps = np.finfo(np.float64).eps
    constant = variance <= np.maximum(n * eps * variance + (n * mean * eps) ** 2, SMALLEST**2)
    return np.where(constant, np.inf, np.sqrt(np.maximum(variance, 0)) if scaled else 1.0)


def unstandardise(
    coef: np.ndarray, intercept: np.ndarray, mean: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Convert weights and intercepts for standardised features to raw features: same decisions."""
    raw = coef / scale
    return raw, intercept - raw @ mean
