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


def test_a_doubled_column_shares_its_weight_without_shrinkage():
    X, y = problem()
    single = np.delete(X, [3, 5], axis=1)
    once, twice = LDAProbe(0.0).fit(single, y), LDAProbe(0.0).fit(X, y)
    np.testing.assert_allclose(twice.decision_function(X), once.decision_function(single), atol=1e-6)
    np.testing.assert_allclose(twice.direction[4], twice.direction[5])


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


@pytest.mark.parametrize(
    ("n_classes", "shape", "solver"), [(2, (300, 12), "lsqr"), (2, (14, 20), "eigen"), (4, (300, 12), "lsqr")]
)
@pytest.mark.parametrize("shrinkage", ["auto", 0.02, 0.5, 1.0])
def test_decisions_are_scikit_learns_on_standardised_features(shrinkage, n_classes, shape, solver):
    X, y = problem(*shape, n_classes=n_classes, names=["a", "b", "c", "d"][:n_classes])
    oracle = make_pipeline(StandardScaler(), LinearDiscriminantAnalysis(solver=solver, shrinkage=shrinkage)).fit(X, y)
    assert_same_decisions(LDAProbe(shrinkage).fit(X, y), oracle, X)
