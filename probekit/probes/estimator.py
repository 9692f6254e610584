"""Any scikit-learn classifier or regressor as a probe.

Axes: N examples, D features, C classes.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.probes.base import ClassifierProbe, Probe, checked, rows_of
from probekit.probes.problem import Labels
from probekit.probes.scikit_learn import check_is_fitted


class EstimatorProbe(Probe):
    """A scikit-learn estimator, cloned for every fit and left with the parameters that it was given.

    It has no certificate: `converged_` is False where the fit raised a ConvergenceWarning, and `gap_` is None. It has
    no C either; give a `GridSearchCV` to choose its parameters. It cannot be saved, since that would take a pickle.
    `fit_many` takes other weights than 0 and 1 if the estimator does, and raises what it refuses as a DataError.

    Args:
        estimator: anything that scikit-learn can clone, with `fit` and `predict`.

    Attributes:
        estimator_: the fitted clone; of a classifier its classes are 0..C-1.
    """

    saveable = False
    ARRAYS = ()
    estimator_: Any

    def __init__(self, estimator: Any):
        self.estimator = estimator

    def _fit_rows(self, X: Any, labels: Labels, weights: np.ndarray | None) -> None:
        if weights is None or (weights == 1).all():
            self._learn(X, labels.values)
        else:
            self._learn(X, labels.values, sample_weight=weights)

    def _learn(self, X: Any, y: Any, **weights: Any) -> None:
        """Fit a clone; sets the fitted attributes but warns of nothing."""
        from sklearn.base import clone  # see `probes.scikit_learn`

        X, y = self._checked(X, y, dtype=[np.float64, np.float32])
        self.estimator_ = clone(self.estimator)
        with _named(self.estimator, "be fitted"), _convergence() as warned:
            self.estimator_.fit(X, y, **weights)
        self.converged_ = not warned
        n_iter = getattr(self.estimator_, "n_iter_", None)
        self.n_iter_ = 0 if n_iter is None else int(np.max(n_iter))

    def _checked(self, X: Any, y: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def _predicted(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = checked(self, X, reset=False)
        with _named(self.estimator, "predict"):
            return np.asarray(self.estimator_.predict(X))

    def fit(self, X: Any, y: Any) -> Self:
        """Fit a clone of the estimator to features [N, D] and labels [N].

        Raises:
            ValueError: what the estimator itself refuses.
        """
        self._learn(X, y)
        if not self.converged_:
            from sklearn.exceptions import ConvergenceWarning  # see `probes.scikit_learn`

            warnings.warn(
                f"{_name(self.estimator)} did not converge; raise its number of iterations",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _weighted(self, weights: np.ndarray | None) -> np.ndarray | None:
        from sklearn.utils.validation import has_fit_parameter  # see `probes.scikit_learn`

        if weights is not None and has_fit_parameter(self.estimator, "sample_weight"):
            return np.flatnonzero(weights)
        return rows_of(weights)

    def save(self, path: str | Path) -> Path:
        """Raise a UsageError: only a pickle could hold every estimator."""
        raise UsageError(f"{_name(self.estimator)} cannot be saved: probekit writes no pickle; keep the fitted object")


class EstimatorClassifier(ClassifierProbe, EstimatorProbe):
    """A scikit-learn classifier.

    Its decisions are the first of these that it has: `decision_function`, where that gives one score for each class;
    log probabilities (log odds for two classes); 1 for the predicted class and 0 for the others. The prediction is
    the estimator's own, which need not be the highest decision: an `SVC` of several classes votes by pairs.
    """

    by_score = False

    @property
    def log_odds(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether decisions are made from the estimator's probabilities."""
        estimator = getattr(self, "estimator_", self.estimator)
        return not hasattr(estimator, "decision_function") and hasattr(estimator, "predict_proba")

    fit = EstimatorProbe.fit  # pyright: ignore[reportAssignmentType]

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row: [N]."""
        predicted = self._predicted(X)  # before classes_: raises NotFittedError if unfitted
        return self.classes_[predicted]

    def _decide(self, X: np.ndarray) -> np.ndarray:
        C, fitted = len(self.classes_), self.estimator_
        # decisions of pairs of three classes are as many as if they were of classes
        shapes = [value for name, value in fitted.get_params().items() if name.endswith("decision_function_shape")]
        with _named(self.estimator, "predict"):
            if hasattr(fitted, "decision_function") and (C == 2 or "ovo" not in shapes):
                scores = np.asarray(fitted.decision_function(X), dtype=np.float64).reshape(len(X), -1)
                if scores.shape[1] == self._n_outputs:
                    return scores
            if hasattr(fitted, "predict_proba"):
                # a probability of 0, as a forest gives, has no logarithm: the least positive number instead
                logs = np.log(np.maximum(fitted.predict_proba(X), np.finfo(np.float64).tiny))
            else:
                logs = (np.asarray(fitted.predict(X))[:, None] == np.arange(C)).astype(np.float64)
        return logs[:, 1:] - logs[:, :1] if C == 2 else logs


class EstimatorRegressor(EstimatorProbe):
    """A scikit-learn regressor."""

    predicts = "numbers"

    @property
    def several_outputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether scikit-learn says that the estimator takes targets [N, T]."""
        from sklearn.utils import get_tags  # see `probes.scikit_learn`

        return get_tags(self.estimator).target_tags.multi_output

    def _checked(self, X: Any, y: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        return checked(self, X, y, dtype=dtype, y_numeric=True, multi_output=self.several_outputs)

    def predict(self, X: Any) -> np.ndarray:
        """The target of each row: float64 [N], or [N, T] if fitted to [N, T]."""
        return self._predicted(X).astype(np.float64)


@contextmanager
def _convergence() -> Iterator[list[warnings.WarningMessage]]:
    """Collects the ConvergenceWarnings of what runs inside; passes other warnings on."""
    from sklearn.exceptions import ConvergenceWarning  # see `probes.scikit_learn`

    warned: list[warnings.WarningMessage] = []
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", ConvergenceWarning)
        yield warned
    for each in raised:
        if issubclass(each.category, ConvergenceWarning):
            warned.append(each)
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


@contextmanager
def _named(estimator: Any, verb: str) -> Iterator[None]:
    """Raises what the estimator refuses as a DataError that names the estimator."""
    try:
        yield
    except (TypeError, ValueError) as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise DataError(f"{_name(estimator)} cannot {verb}: {first}") from None


def _name(estimator: Any) -> str:
    return type(estimator).__name__
