import math

import numpy as np
import pytest
import torch
from probe_problems import problem
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.errors import UsageError
from probekit.probes import RidgeProbe, RidgeRegressionProbe, fit_ridge_path, load_probe
from probekit.probes.base import standardise
from probekit.probes.ridge import triangle

GRID = [1e-4, 0.03, 1.0, 1e4]


def regression(n=200, d=12, T=1, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X, W = rng.normal(size=(n, d)), rng.normal(size=(d, T))
    Y = 40 + X @ W + noise * rng.normal(size=(n, T))
    return X * np.logspace(-3, 3, d) + 5, Y if T > 1 else Y[:, 0]


@pytest.mark.parametrize("shape", [(300, 12), (9, 12)], ids=str)
@pytest.mark.parametrize("C", GRID)
@pytest.mark.parametrize("n_classes", [2, 4])
def test_ridge_equals_scikit_learn_on_standardised_features(n_classes, C, shape):
    X, y = problem(*shape, n_classes=n_classes)
    oracle = make_pipeline(StandardScaler(), RidgeClassifier(alpha=1 / (2 * C), solver="svd")).fit(X, y)
    probe = RidgeProbe(C).fit(X, y)
    np.testing.assert_allclose(probe.decision_function(X), oracle.decision_function(X), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(probe.predict(X), oracle.predict(X))


@pytest.mark.parametrize("shape", [(200, 12), (9, 12)], ids=str)
@pytest.mark.parametrize("C", GRID)
@pytest.mark.parametrize("T", [1, 3])
def test_ridge_regression_equals_scikit_learn_on_standardised_features(T, C, shape):
    X, Y = regression(*shape, T=T)
    oracle = make_pipeline(StandardScaler(), Ridge(alpha=1 / (2 * C), solver="svd")).fit(X, Y)
    probe = RidgeRegressionProbe(C).fit(torch.from_numpy(X), torch.from_numpy(Y))
    np.testing.assert_allclose(probe.predict(X), oracle.predict(X), rtol=1e-8)
    assert probe.predict(X).shape == Y.shape
    assert probe.score(X, Y) == pytest.approx(oracle.score(X, Y))
    assert probe.direction.shape == ((12,) if T == 1 else (3, 12))


@pytest.mark.parametrize("shape", [(300, 12), (9, 12)], ids=str)
def test_a_path_is_the_single_fits(shape):
    X, y = problem(*shape, n_classes=3, names=["a", "b", "c"])
    for C, probe in zip(GRID, fit_ridge_path(X, y, C=GRID), strict=True):
        alone = RidgeProbe(C).fit(X, y)
        assert (probe.C, list(probe.classes_)) == (C, list(alone.classes_))
        np.testing.assert_allclose(probe.decision_function(X), alone.decision_function(X), rtol=1e-9, atol=1e-9)
    X, Y = regression(*shape, T=2)
    for C, probe in zip(GRID, fit_ridge_path(X, Y, C=GRID, regression=True), strict=True):
        assert isinstance(probe, RidgeRegressionProbe)
        np.testing.assert_allclose(probe.predict(X), RidgeRegressionProbe(C).fit(X, Y).predict(X), rtol=1e-9)
    with pytest.raises(UsageError, match="C must be a positive"):
        fit_ridge_path(X, Y, C=[1.0, -1.0], regression=True)


def test_a_massive_dimension_does_not_spoil_float32_features():
    X, y = problem(n=500)
    X[:, 0] = 3000 + X[:, 0] / X[:, 0].std()
    X = X.astype(np.float32)
    wide = X.astype(np.float64)
    oracle = make_pipeline(StandardScaler(), RidgeClassifier(alpha=0.5, solver="svd")).fit(wide, y)
    decision = oracle.decision_function(wide)
    np.testing.assert_allclose(RidgeProbe().fit(X, y).decision_function(X), decision, rtol=1e-9, atol=1e-9)


def test_targets_that_are_constant_or_not_numbers():
    X, Y = regression()
    probe = RidgeRegressionProbe().fit(X, 0 * Y + 7)
    np.testing.assert_allclose(probe.predict(X), 7)
    with pytest.raises(ValueError, match="NaN"):
        RidgeRegressionProbe().fit(X, Y * np.nan)
    with pytest.raises(ValueError, match="could not convert"):
        RidgeRegressionProbe().fit(X, np.where(Y > 0, "north", "south"))


def least_squares(X, y):
    """Predictions of numpy's least squares with an intercept, as a function of features."""
    weights = np.linalg.lstsq(np.column_stack([X, np.ones(len(X))]), y, rcond=None)[0]
    return lambda features: np.column_stack([features, np.ones(len(features))]) @ weights


def spectrum(n, d, smallest, seed=0):
    """Features whose singular values fall from 1 to `smallest` of the largest, in directions of no column."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return rng.normal(size=(n, d)) * np.geomspace(1, smallest, d) @ rotation + rng.normal(size=d)


@pytest.mark.parametrize("smallest", [1, 1e-3, 1e-5, 1e-7, 1e-9, 1e-10])
def test_no_penalty_is_least_squares_however_ill_conditioned(smallest):
    X = spectrum(400, 12, smallest)
    rng = np.random.default_rng(1)
    y = np.column_stack([X @ rng.normal(size=(12, 2)), X[:, :1] / np.ptp(X)]) + rng.normal(size=(400, 3))
    probe = RidgeRegressionProbe(C=math.inf).fit(X[:300], y[:300])
    expected = least_squares(X[:300], y[:300])(X)
    assert np.allclose(probe.predict(X), expected, atol=1e-6 if smallest > 1e-9 else 1e-4)
    r2 = [r2_score(y[300:], predicted[300:]) for predicted in (probe.predict(X), expected)]
    assert r2[0] == pytest.approx(r2[1], abs=1e-6)


def test_rows_that_sum_to_zero_in_float32_keep_the_noise_that_least_squares_fits():
    """As after a layer norm without weights: the direction of ones holds nothing but rounding errors."""
    X = np.random.default_rng(0).normal(size=(500, 16))
    X = ((X - X.mean(axis=1, keepdims=True)) / X.std(axis=1, keepdims=True)).astype(np.float32)
    y = np.random.default_rng(1).normal(size=500)
    probe = RidgeRegressionProbe(C=math.inf).fit(X, y)
    assert np.allclose(probe.predict(X), least_squares(X.astype(np.float64), y)(X), atol=1e-6)


@pytest.mark.parametrize("n", [200, 20])
def test_dependent_features_take_the_solution_of_least_norm(n):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 9)) @ rng.normal(size=(9, 30))
    X[:, 5] = 3.0  # constant
    y = X @ rng.normal(size=30) + rng.normal(size=n)
    probe = RidgeRegressionProbe(C=math.inf).fit(X, y)
    Z, _, scale = standardise(X)
    expected = np.linalg.pinv(Z) @ (y - y.mean())
    assert np.allclose(probe.coef_, expected / scale, atol=1e-8)
    assert np.allclose(probe.predict(X), Z @ expected + y.mean())


def test_no_penalty_for_classes_and_the_limit_of_large_C(tmp_path):
    X = spectrum(300, 6, 0.1)
    y = (X[:, 0] > X[:, 1]).astype(int)
    plain, weak = RidgeProbe(C=math.inf).fit(X, y), RidgeProbe(C=1e12).fit(X, y)
    assert np.allclose(plain.coef_, weak.coef_, atol=1e-9)
    assert np.allclose(plain.decision_function(X), least_squares(X, 2.0 * y - 1)(X))
    plain.save(tmp_path / "probe")
    again = load_probe(tmp_path / "probe")
    assert math.isinf(again.C)
    assert np.array_equal(again.predict(X), plain.predict(X))
    with pytest.raises(UsageError, match="C must be a positive number, or inf for no penalty; got nan"):
        RidgeProbe(C=math.nan).fit(X, y)


@pytest.mark.parametrize("n", [10, 5000])
def test_the_triangle_of_blocks_is_that_of_the_whole(n):
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(n, 12)))
    R = triangle(X)
    assert R.shape == (min(n, 12), 12)
    assert torch.allclose(R.T @ R, X.T @ X)
    assert not R.tril(-1).any()


@pytest.mark.parametrize("shape", [(200, 8), (9, 12)], ids=str)
@pytest.mark.parametrize("C", GRID)
def test_raw_features_equal_scikit_learn_without_a_scaler(C, shape):
    """On features of several scales, where the penalty of standardised weights is another one."""
    rng = np.random.default_rng(0)
    X = 3 + rng.normal(size=shape) * np.logspace(-1, 2, shape[1])
    X[:, 3] = 0.1
    Y = X @ rng.normal(size=(shape[1], 2)) / 50 + rng.normal(size=(shape[0], 2))
    oracle = Ridge(alpha=1 / (2 * C), solver="svd").fit(X, Y)
    probe = RidgeRegressionProbe(C, standardise=False).fit(X, Y)
    np.testing.assert_allclose(probe.predict(X), oracle.predict(X), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(probe.direction, oracle.coef_, rtol=1e-6, atol=1e-9)
    y = (Y[:, 0] > Y[:, 0].mean()) + (Y[:, 1] > Y[:, 1].mean())
    classes = RidgeClassifier(alpha=1 / (2 * C), solver="svd").fit(X, y)
    (path,) = fit_ridge_path(X, y, C=[C], standardise=False)
    for own in (RidgeProbe(C, standardise=False).fit(X, y), path):
        assert own.get_params() == {"C": C, "standardise": False}
        np.testing.assert_allclose(own.decision_function(X), classes.decision_function(X), rtol=1e-8, atol=1e-8)
    assert max(GRID) == C or np.abs(RidgeRegressionProbe(C).fit(X, Y).predict(X) - oracle.predict(X)).max() > 1e-6
