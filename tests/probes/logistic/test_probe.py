import numpy as np
import pytest
import torch
from probe_problems import problem
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.errors import DataError, UsageError
from probekit.probes import LogisticProbe, fit_logistic_path, load_probe
from probekit.probes.problem import Labels, Problem, ProblemSet


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("C", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("standardise", [True, False])
def test_it_is_scikit_learns_logistic_regression(n_classes, C, standardise):
    X, y = problem(n_classes=n_classes)
    if not standardise:
        X = StandardScaler().fit_transform(X) + 0.3  # as raw as newton-cholesky can still solve
    model = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12)
    oracle = (make_pipeline(StandardScaler(), model) if standardise else model).fit(X, y)
    probe = LogisticProbe(C, standardise=standardise).fit(X, y)
    assert probe.converged_
    assert probe.gap_ <= probe.tol
    assert probe.n_iter_ > 0
    np.testing.assert_allclose(probe.decision_function(X), oracle.decision_function(X), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(probe.predict_proba(X), oracle.predict_proba(X), atol=2e-5)
    np.testing.assert_array_equal(probe.predict(X), oracle.predict(X))
    if not standardise:
        np.testing.assert_allclose(probe.coef_, model.coef_, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(probe.intercept_, model.intercept_, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("names", [None, ["no", "yes"], ["a", "b", "c"]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_path_is_its_fits_one_by_one(names, dtype):
    X, y = problem(n_classes=len(names or "ab"), names=names)
    X = torch.from_numpy(X).to(dtype)
    path = fit_logistic_path(X, y, C=[0.01, 1.0, 100.0])
    for probe, C in zip(path, [0.01, 1.0, 100.0], strict=True):
        alone = LogisticProbe(C).fit(X, y)
        assert probe.C == C
        assert probe.n_features_in_ == X.shape[1]
        assert probe.objective_ == pytest.approx(alone.objective_, rel=2e-6)
        np.testing.assert_array_equal(probe.classes_, alone.classes_)
        np.testing.assert_array_equal(probe.predict(X), alone.predict(X))


def test_many_fits_may_mix_numbers_of_classes_and_weights():
    X, y = problem(n_classes=3)
    weights = np.random.default_rng(0).uniform(size=len(y))
    labels = (Labels(y, 3), Labels((y > 0).astype(np.int64)))
    problems = ProblemSet(labels, (None, weights), (Problem(0, 0, 1.0), Problem(1, 1, 0.1), Problem(0, 0, 0.1)))
    three, two, other = LogisticProbe().fit_many(torch.from_numpy(X), problems)
    assert (three.C, two.C, other.C) == (1.0, 0.1, 0.1)
    np.testing.assert_allclose(three.coef_, LogisticProbe(1.0).fit(X, y).coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(two.coef_, LogisticProbe(0.1).fit(X, y > 0, weights).coef_, rtol=1e-5, atol=1e-7)


def test_a_fit_that_did_not_converge_says_so_and_keeps_saying_it(tmp_path):
    X, y = problem()
    with pytest.warns(ConvergenceWarning, match="not converged after 2 iterations"):
        probe = LogisticProbe(100.0, max_iter=2).fit(X, y)
    assert not probe.converged_
    assert probe.gap_ > probe.tol
    again = load_probe(probe.save(tmp_path / "probe"))
    assert not again.converged_
    assert (again.gap_, again.objective_) == (probe.gap_, probe.objective_)


def test_weights_that_leave_a_class_out_are_refused():
    X, y = problem()
    with pytest.raises(DataError, match="no row of class 1"):
        LogisticProbe().fit(X, y, sample_weight=(y == 0).astype(float))
    with pytest.raises(UsageError, match="C must be a positive, finite number"):
        fit_logistic_path(X, y, C=[1.0, np.inf])
