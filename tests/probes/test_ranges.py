"""Features of every size and rank: a fit that is finite and right, or an error that says what to do."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_problems import problem
from sklearn.exceptions import ConvergenceWarning

from probekit.errors import DataError
from probekit.probes import (
    PROBES,
    KSparseProbe,
    LDAProbe,
    LogisticProbe,
    RidgeProbe,
    RidgeRegressionProbe,
)
from probekit.probes.problem import Labels, every_problem

MAKE: dict[str, Callable[[], Any]] = {
    **PROBES,
    "mlp": lambda: PROBES["mlp"](hidden=4, max_epochs=2, patience=1),
    "raw logistic": lambda: LogisticProbe(standardise=False),
    "raw ridge": lambda: RidgeProbe(standardise=False),
    "raw lda": lambda: LDAProbe(0.1, standardise=False),
    "elastic-net": lambda: KSparseProbe(method="elastic-net"),
    "regression": RidgeRegressionProbe,
}
KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda X: X,
    "constant": lambda X: np.full_like(X, 0.1),
    "constant column": lambda X: np.where(np.arange(X.shape[1]) == 1, X.dtype.type(3), X),
    "zero": np.zeros_like,
    "one column": lambda X: X[:, :1],
    "equal columns": lambda X: np.repeat(X[:, :1], 5, axis=1),
    "equal rows": lambda X: np.repeat(X[:1], len(X), axis=0),
    "far from 0": lambda X: X + X.dtype.type(1e6),
    "mixed scales": lambda X: X * np.logspace(-3, 3, X.shape[1]).astype(X.dtype),
}


def fitted(name: str, X: np.ndarray, y: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)  # which is how a fit says that it has no certificate
        probe = MAKE[name]().fit(X, y)
        decided = probe.predict(X) if name == "regression" else probe.decision_function(X)
    assert np.isfinite(decided).all()
    assert all(np.isfinite(getattr(probe, array)).all() for array in probe.ARRAYS)
    assert "logistic" not in name or probe.converged_ == (probe.gap_ <= probe.tol)
    return probe


@settings(max_examples=12)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    exponent=st.sampled_from([0, -320, -300, -200, -100, -44, -40, -30, -16, 16, 30, 37, 90, 120, 200, 300]),
    dtype=st.sampled_from([np.float32, np.float64]),
    n_classes=st.integers(2, 3),
    shape=st.sampled_from([(40, 5), (9, 20)]),
)
@pytest.mark.parametrize("name", MAKE)
def test_features_of_any_size_and_rank_are_fitted_or_refused(name, kind, exponent, dtype, n_classes, shape):
    y = np.arange(shape[0]) % n_classes
    X = (np.random.default_rng(0).normal(size=shape) + y[:, None]).clip(-3, 3).astype(dtype)
    X = KINDS[kind](X)
    X = (X.astype(np.longdouble) * np.longdouble(10.0) ** exponent).clip(np.finfo(dtype).min, np.finfo(dtype).max)
    X = X.astype(dtype)
    largest = float(np.abs(X).max())
    if largest == 0 or 1e-150 <= largest <= 1e100:
        fitted(name, X, y)
    else:
        with pytest.raises(DataError, match="multiply all features by one constant"):
            fitted(name, X, y)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("exponent", [16, 30, 37, 90])
def test_raw_features_whose_products_float32_cannot_hold_are_fitted(exponent, n_classes):
    y = np.arange(40) % n_classes
    X = np.random.default_rng(0).normal(size=(40, 5)) + y[:, None]
    for kind in ("plain", "mixed scales", "far from 0"):
        fitted("raw logistic", KINDS[kind](X) * 10.0**exponent, y)


@pytest.mark.parametrize("exponent", [-40, -38, -20, 20, 34])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_certified_fit_is_the_one_of_features_of_plain_size(exponent, n_classes):
    """The features are so small or large that float32 could not hold their scales or their squares."""
    X, y = problem(n_classes=n_classes)
    scaled = ((X - X.mean(axis=0)) * 10.0**exponent).astype(np.float32)
    plain = scaled.astype(np.float64) * 10.0**-exponent
    probe, same = LogisticProbe().fit(scaled, y), LogisticProbe().fit(plain, y)
    assert probe.converged_
    assert probe.objective_ == pytest.approx(same.objective_, rel=3e-6)
    np.testing.assert_allclose(probe.decision_function(scaled), same.decision_function(plain), atol=0.02)
    (many,) = LogisticProbe().fit_many(torch.from_numpy(scaled), every_problem([Labels(y, n_classes)]))
    assert many.converged_


def test_features_at_the_ends_of_float32_have_certified_fits():
    y = np.arange(60) % 2
    X = np.random.default_rng(0).normal(size=(60, 4)) + y[:, None]
    for size in (1e-40, 3e38):
        assert fitted("logistic", (X / np.abs(X).max() * size).astype(np.float32), y).converged_


@pytest.mark.parametrize("name", ["logistic", "ridge", "lda", "mean-diff"])
def test_new_features_that_cannot_be_squared_are_refused(name):
    X, y = problem()
    probe = MAKE[name]().fit(X, y)
    with pytest.raises(DataError, match=r"and is 1\.0e\+200"):
        probe.predict(np.full_like(X, 1e200))
    probe.predict(np.full_like(X, 1e-200))


def test_moments_that_overflow_are_refused():
    with pytest.raises(DataError, match="multiply all features"):
        RidgeProbe().fit_statistics(4, [0.0], [[1e250]], [2, 2], [[-1e125], [1e125]])
