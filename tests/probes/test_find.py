"""A probe by its name, its class or an instance; and what each says that it can do."""

from typing import Any

import numpy as np
import pytest
import torch
from probe_problems import problem
from sklearn.base import BaseEstimator, ClassifierMixin, is_classifier
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier, StackingClassifier
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.errors import UsageError
from probekit.probes import PROBES, REGRESSORS, KSparseProbe, LogisticProbe, RidgeProbe, RidgeRegressionProbe
from probekit.probes.estimator import EstimatorClassifier, EstimatorRegressor
from probekit.probes.find import find_probe, probe_name
from probekit.probes.problem import Labels, every_problem

EVERY = [*PROBES.values(), *REGRESSORS.values()]


@pytest.mark.parametrize("name", sorted(PROBES))
def test_a_name_is_its_probe_with_default_parameters(name):
    probe = find_probe(name, 2)
    assert type(probe) is PROBES[name]
    assert probe_name(probe) == name


def test_the_labels_decide_between_two_probes_of_one_name_and_the_default():
    assert type(find_probe("ridge", 3)) is RidgeProbe
    assert type(find_probe("ridge", 0)) is RidgeRegressionProbe
    assert type(find_probe(None, 2)) is LogisticProbe
    assert type(find_probe(None, 0)) is RidgeRegressionProbe
    assert probe_name(find_probe(None, 0)) == "ridge"


def test_an_instance_keeps_its_parameters_and_is_not_fitted_itself():
    given = KSparseProbe(k=4)
    X, y = problem()
    probe: Any = find_probe(given, 2)
    assert probe is not given
    assert probe_name(probe) == "k-sparse-4"
    fitted = probe.fit_many(torch.from_numpy(X), every_problem([Labels(y)], [0.1, 1.0]))
    assert [np.count_nonzero(each.coef_) for each in fitted] == [4, 4]
    assert [(each.k, each.C) for each in fitted] == [(4, 0.1), (4, 1.0)]
    assert not hasattr(given, "coef_")
    assert not hasattr(probe, "coef_")


def test_estimators_of_scikit_learn_are_probes_as_classes_and_as_instances():
    by_class = find_probe(RandomForestClassifier, 2)
    assert isinstance(by_class, EstimatorClassifier)
    by_instance = find_probe(Lasso(alpha=0.5), 0)
    assert isinstance(by_instance, EstimatorRegressor)
    assert by_instance.estimator.alpha == 0.5
    assert probe_name(by_instance) == "Lasso(alpha=0.5)"
    stacked = StackingClassifier([("forest", RandomForestClassifier())])
    assert not hasattr(stacked, "predict")
    assert isinstance(find_probe(stacked, 2), EstimatorClassifier)
    assert find_probe(EstimatorClassifier(RandomForestClassifier(3)), 2).get_params()["estimator__n_estimators"] == 3


class NoPredict(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        return self


class Altered(LogisticRegression):
    """Its constructor changes a parameter, which scikit-learn cannot clone."""

    def __init__(self, C=1):
        super().__init__(C=C + 1)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_what_a_probe_says_that_it_can_do_is_true(kind):
    X, y = problem(n=90)
    probe = kind().fit(X, y * 1.0 if kind.predicts == "numbers" else y)
    assert kind.predicts == ("classes" if is_classifier(kind()) else "numbers")
    assert kind.has_C == ("C" in kind().get_params())
    assert kind.certified == (isinstance(probe.gap_, float) and probe.gap_ >= 0)
    assert kind.linear == hasattr(probe, "coef_")
    assert kind.log_odds == hasattr(probe, "predict_proba")
    assert kind.saveable
    if kind.linear:
        scores = X @ probe.coef_.T + probe.intercept_
        decide = probe.predict if kind.predicts == "numbers" else probe.decision_function
        np.testing.assert_allclose(decide(X), scores.reshape(len(X)))


YEAR = "predicts classes, and 'year' holds a number .*; take ridge"
KIND = "predicts numbers, and 'kind' has classes; take logistic"
REFUSED = [
    *((given, 0, YEAR) for given in (LogisticProbe, "mlp", RandomForestClassifier())),
    *((given, 2, KIND) for given in (RidgeRegressionProbe, Lasso())),
    *((given, 2, "must be a name") for given in (3, KMeans(), BaseEstimator(), dict, NoPredict, NoPredict())),
    (make_pipeline(StandardScaler()), 2, "must be a name"),
    ("logistics", 2, "did you mean logistic"),
    (GridSearchCV, 2, "needs arguments .*give an instance"),
    (Altered(), 2, "cannot be cloned for each fit"),
]


@pytest.mark.parametrize(("given", "n_classes", "said"), REFUSED, ids=str)
def test_what_is_no_probe_of_the_labels_is_refused(given, n_classes, said):
    with pytest.raises(UsageError, match=said):
        find_probe(given, n_classes, "kind" if n_classes else "year")
