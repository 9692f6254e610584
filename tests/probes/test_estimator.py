"""Any scikit-learn estimator as a probe gives what the estimator itself gives on the problem's rows."""

import warnings

import numpy as np
import pytest
import torch
from probe_problems import problem
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, Perceptron, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeRegressor

from probekit.errors import DataError, UsageError
from probekit.probes.estimator import EstimatorClassifier, EstimatorRegressor
from probekit.probes.problem import Labels, every_problem

X, TWO = problem(n=120)
_, THREE = problem(n=120, n_classes=3)
Z = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1)
MASK = (np.arange(120) % 3 > 0).astype(np.float64)
WEIGHTS = np.random.default_rng(0).uniform(0.5, 2, size=120) * MASK


class NearestMean(ClassifierMixin, BaseEstimator):
    """A classifier with nothing but `fit` and `predict`."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.means_ = np.stack([X[y == c].mean(axis=0) for c in self.classes_])
        return self

    def predict(self, X):
        return self.classes_[((X[:, None] - self.means_) ** 2).sum(axis=2).argmin(axis=1)]


CLASSIFIERS = [
    LogisticRegression(C=0.1),
    LinearSVC(),
    SVC(),
    SVC(break_ties=True),
    SVC(decision_function_shape="ovo"),
    Perceptron(),
    RidgeClassifier(),
    GaussianNB(),
    RandomForestClassifier(20, random_state=0),
    KNeighborsClassifier(),
    make_pipeline(StandardScaler(), LogisticRegression()),
    GridSearchCV(LogisticRegression(), {"C": [0.01, 1.0]}, cv=3),
    NearestMean(),
]


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda e: type(e).__name__)
def test_every_problem_is_predicted_as_by_the_estimator_fitted_to_its_rows(estimator):
    problems = every_problem([Labels(TWO), Labels(THREE, 3)], [None], [None, MASK])
    probes = EstimatorClassifier(estimator).fit_many(torch.from_numpy(Z), problems)
    assert not hasattr(estimator, "classes_")  # a clone was fitted
    for probe, p in zip(probes, problems.problems, strict=True):
        labels, weights = problems.labels[p.label], problems.weightings[p.weighting]
        rows = np.arange(120) if weights is None else np.flatnonzero(weights)
        own = type(estimator)(**estimator.get_params(deep=False)).fit(Z[rows], labels.values[rows])
        decision = probe.decision_function(Z)
        assert decision.shape == ((120,) if labels.n_classes == 2 else (120, labels.n_classes))
        assert np.isfinite(decision).all()
        np.testing.assert_array_equal(probe.predict(Z), own.predict(Z))
        of_pairs = getattr(own, "decision_function_shape", "") == "ovo" and labels.n_classes > 2
        if hasattr(own, "decision_function") and not of_pairs:
            np.testing.assert_allclose(decision, own.decision_function(Z), rtol=1e-9)
        if probe.log_odds:
            likely = softmax(decision if decision.ndim == 2 else np.stack([0 * decision, decision], axis=1), axis=1)
            np.testing.assert_allclose(likely, own.predict_proba(Z), atol=1e-9)
        assert (probe.gap_, probe.certified, probe.saveable) == (None, False, False)


REGRESSORS = [LinearRegression(), Lasso(), DecisionTreeRegressor(random_state=0), KNeighborsRegressor()]


@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda e: type(e).__name__)
def test_numbers_are_predicted_as_by_the_estimator(estimator):
    y = Z[:, 0] * 3 + 1
    problems = every_problem([Labels(y, 0)], [None], [None, MASK])
    every, some = EstimatorRegressor(estimator).fit_many(torch.from_numpy(Z), problems)
    make = type(estimator)
    own = make(**estimator.get_params())
    np.testing.assert_allclose(every.predict(Z), own.fit(Z, y).predict(Z))
    np.testing.assert_allclose(some.predict(Z), own.fit(Z[MASK > 0], y[MASK > 0]).predict(Z))
    assert every.predicts == "numbers"


def test_weights_reach_an_estimator_that_takes_them_and_no_other():
    problems = every_problem([Labels(THREE, 3)], [None], [WEIGHTS])
    (probe,) = EstimatorClassifier(LogisticRegression()).fit_many(torch.from_numpy(Z), problems)
    rows = MASK > 0
    own = LogisticRegression().fit(Z[rows], THREE[rows], sample_weight=WEIGHTS[rows])
    np.testing.assert_allclose(probe.decision_function(Z), own.decision_function(Z))
    with pytest.raises(UsageError, match="weights must be 0 or 1"):
        EstimatorClassifier(KNeighborsClassifier()).fit_many(torch.from_numpy(Z), problems)


def test_a_fit_that_did_not_converge_says_so():
    late = LogisticRegression(max_iter=1)
    with pytest.warns(ConvergenceWarning, match="LogisticRegression did not converge"):
        assert not EstimatorClassifier(late).fit(Z, TWO).converged_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (probe,) = EstimatorClassifier(late).fit_many(torch.from_numpy(Z), every_problem([Labels(TWO)]))
    assert (probe.converged_, probe.n_iter_) == (False, 1)
    (done,) = EstimatorClassifier(LogisticRegression()).fit_many(torch.from_numpy(Z), every_problem([Labels(TWO)]))
    assert done.converged_
    assert done.n_iter_ > 1


def test_other_warnings_are_passed_on():
    class Talkative(NearestMean):
        def fit(self, X, y):
            warnings.warn("look here", UserWarning, stacklevel=2)
            return super().fit(X, y)

    with pytest.warns(UserWarning, match="look here"):
        assert EstimatorClassifier(Talkative()).fit(Z, TWO).converged_


def test_what_the_estimator_or_the_problem_cannot_do_is_refused(tmp_path):
    with pytest.raises(DataError, match="MultinomialNB cannot be fitted: Negative values"):
        EstimatorClassifier(MultinomialNB()).fit(Z, TWO)
    with pytest.raises(DataError, match="Pipeline cannot be fitted: All intermediate steps should be transformers"):
        EstimatorClassifier(make_pipeline(GaussianNB(), GaussianNB())).fit(Z, TWO)
    many = EstimatorClassifier(KNeighborsClassifier(500)).fit(Z, TWO)
    for answer in (many.predict, many.decision_function):
        with pytest.raises(DataError, match="KNeighborsClassifier cannot predict: Expected n_neighbors <= n_samples"):
            answer(Z)
    with pytest.raises(DataError, match="class 2"):
        EstimatorClassifier(GaussianNB()).fit_many(torch.from_numpy(Z), every_problem([Labels(TWO, 3)]))
    with pytest.raises(UsageError, match="n_classes=0; got 2"):
        EstimatorRegressor(LinearRegression()).fit_many(torch.from_numpy(Z), every_problem([Labels(TWO)]))
    with pytest.raises(UsageError, match="GaussianNB cannot be saved"):
        EstimatorClassifier(GaussianNB()).fit(Z, TWO).save(tmp_path / "p")
