import numpy as np
import pytest
from probe_problems import problem
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.errors import UsageError
from probekit.probes import LDAProbe


def assert_same_decisions(probe, oracle, X):
    scores = oracle.decision_function(X)
    np.testing.assert_allclose(probe.decision_function(X), scores, atol=1e-8 * np.abs(scores).max())
    np.testing.assert_allclose(probe.predict_proba(X), oracle.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(probe.predict(X), oracle.predict(X))


@pytest.mark.parametrize("shape", [(300, 12), (14, 20)], ids=str)
@pytest.mark.parametrize("solver", ["lsqr", "eigen"])
@pytest.mark.parametrize("shrinkage", ["auto", 0.02, 0.5, 1.0])
def test_two_classes_equal_scikit_learn_on_standardised_features(shrinkage, solver, shape):
    X, y = problem(*shape)
    oracle = make_pipeline(StandardScaler(), LinearDiscriminantAnalysis(solver=solver, shrinkage=shrinkage)).fit(X, y)
    assert_same_decisions(LDAProbe(shrinkage).fit(X, y), oracle, X)


@pytest.mark.parametrize("shrinkage", ["auto", 0.02, 0.5, 1.0])
def test_several_classes_equal_scikit_learn_on_standardised_features(shrinkage):
    X, y = problem(n_classes=4, names=["a", "b", "c", "d"])
    oracle = make_pipeline(StandardScaler(), LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)).fit(X, y)
    assert_same_decisions(LDAProbe(shrinkage).fit(X, y), oracle, X)


@pytest.mark.parametrize("shrinkage", ["auto", 0.0])
def test_with_automatic_or_no_shrinkage_the_scales_do_not_matter_to_scikit_learn_either(shrinkage):
    X, y = problem(n_classes=3)
    X = StandardScaler().fit_transform(np.delete(X, [3, 5], axis=1)) * np.logspace(-1, 1, 10)
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage or None).fit(X, y)
    own, other = LDAProbe(shrinkage).fit(X, y).decision_function(X), oracle.decision_function(X)
    differences = (own - own[:, :1], other - other[:, :1])  # what moving the origin adds to all cancels
    np.testing.assert_allclose(*differences, atol=1e-6)


def test_a_doubled_column_shares_its_weight_without_shrinkage():
    X, y = problem()
    single = np.delete(X, [3, 5], axis=1)
    once, twice = LDAProbe(0.0).fit(single, y), LDAProbe(0.0).fit(X, y)
    np.testing.assert_allclose(twice.decision_function(X), once.decision_function(single), atol=1e-6)
    np.testing.assert_allclose(twice.direction[4], twice.direction[5])


def test_the_direction_is_that_of_whitened_means():
    rng = np.random.default_rng(0)
    spread = rng.normal(size=(8, 8)) + 3 * np.eye(8)
    difference = rng.normal(size=8)
    y = rng.integers(2, size=20_000)
    X = rng.normal(size=(20_000, 8)) @ spread.T + np.outer(y, difference)
    planted = np.linalg.solve(spread @ spread.T, difference)
    found = LDAProbe().fit(X, y).direction
    assert planted @ found / np.linalg.norm(planted) / np.linalg.norm(found) > 0.995


@pytest.mark.parametrize("shrinkage", ["none", -0.1, 1.1, None, True, np.nan])
def test_shrinkage_is_auto_or_a_share(shrinkage):
    with pytest.raises(UsageError, match="shrinkage must be 'auto' or a number from 0 to 1"):
        LDAProbe(shrinkage).fit(*problem())


@pytest.mark.parametrize("shrinkage", ["auto", 0.02, 0.5])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_raw_features_equal_scikit_learn_without_a_scaler(shrinkage, n_classes):
    X, y = problem(n_classes=n_classes)
    X = X * np.logspace(2, -2, X.shape[1])  # of scales 0.1 to 10
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(X, y)
    probe = LDAProbe(shrinkage, standardise=False).fit(X, y)
    other = LDAProbe(shrinkage).fit(X, y).decision_function(X)
    scores = oracle.decision_function(X)
    np.testing.assert_allclose(probe.predict_proba(X), oracle.predict_proba(X), atol=1e-8)
    np.testing.assert_array_equal(probe.predict(X), oracle.predict(X))
    assert shrinkage == "auto" or np.abs(scores - other).max() > 1e-3
