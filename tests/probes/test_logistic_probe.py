import warnings

import numpy as np
import pytest
from probe_problems import problem
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.probes import LogisticProbe, logistic


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("C", [1e-3, 1.0, 30.0])
def test_logistic_equals_scikit_learn_on_standardised_features(n_classes, C):
    X, y = problem(n_classes=n_classes)
    oracle = make_pipeline(StandardScaler(), LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12)).fit(X, y)
    probe = LogisticProbe(C).fit(X, y)
    assert probe.converged_
    assert probe.n_iter_ > 0
    np.testing.assert_allclose(probe.decision_function(X), oracle.decision_function(X), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(probe.predict_proba(X), oracle.predict_proba(X), atol=2e-5)
    np.testing.assert_array_equal(probe.predict(X), oracle.predict(X))


def test_newton_and_lbfgs_meet_at_the_same_optimum(monkeypatch):
    X, y = problem()
    newton = LogisticProbe(0.1).fit(X, y)
    monkeypatch.setattr(logistic, "NEWTON_UP_TO", 0)
    lbfgs = LogisticProbe(0.1).fit(X, y)
    np.testing.assert_allclose(lbfgs.decision_function(X), newton.decision_function(X), rtol=1e-5, atol=1e-6)


def test_a_fit_that_did_not_converge_says_so(monkeypatch):
    X, y = problem()
    monkeypatch.setattr(logistic, "MAX_ITER", {"newton-cholesky": 1, "lbfgs": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not LogisticProbe(100.0).fit(X, y).converged_
