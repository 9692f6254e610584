"""The probes are scikit-learn's own kind of estimator."""

import numpy as np
import pytest
import torch
from probe_problems import problem
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from probekit.probes import (
    PROBES,
    REGRESSORS,
    EstimatorClassifier,
    EstimatorRegressor,
    KSparseProbe,
    LDAProbe,
    MLPProbe,
)
from probekit.probes.base import as_numpy
from probekit.probes.scikit_learn import clone as clone_of

EVERY = [
    *(MLPProbe(max_epochs=50) if kind is MLPProbe else kind() for kind in (*PROBES.values(), *REGRESSORS.values())),
    LDAProbe(0.3),
    KSparseProbe(2, 1.0, "elastic-net"),
    EstimatorClassifier(GaussianNB()),
    EstimatorRegressor(LinearRegression()),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("probe", EVERY, ids=str)
def test_scikit_learns_own_checks_pass(probe):
    checks = check_estimator(probe, on_fail=None, on_skip=None)
    assert [c["check_name"] for c in checks if c["status"] not in ("passed", "skipped")] == []
    assert {c["check_name"] for c in checks if c["status"] == "skipped"} <= {"check_array_api_input"}
    assert not any(c["expected_to_fail"] for c in checks)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize(
    ("probe", "grid"), [(PROBES["logistic"](), {"C": [0.1, 10.0]}), (LDAProbe(), {"shrinkage": ["auto", 0.1]})], ids=str
)
def test_it_stands_in_pipelines_and_searches(probe, grid, kind):
    X, y = (kind(a) for a in problem(n=90))
    assert make_pipeline(StandardScaler(), PCA(5), probe).fit(X, y).predict(X).shape == (90,)
    search = GridSearchCV(probe, grid, cv=3, scoring="roc_auc").fit(X, y)
    assert 0.5 < roc_auc_score(as_numpy(y), as_numpy(search.decision_function(X))) <= 1
    assert set(search.best_params_) == set(grid)


def test_an_array_that_cannot_be_written_is_fitted_without_a_warning(recwarn):
    X, y = problem(n=90)
    X.flags.writeable = False
    PROBES["logistic"]().fit(X, y)
    assert not recwarn.list


def test_sample_weights_are_routed_to_it():
    X, y = problem(n=90)
    weights = np.linspace(0, 2, 90)
    with config_context(enable_metadata_routing=True):
        plain = make_pipeline(StandardScaler(), PROBES["logistic"]()).fit(X, y)
        assert plain.score(X, y) > 0.5
        probe = PROBES["logistic"]().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        both = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), clone(probe))
        both.fit(X, y, sample_weight=weights)
        assert 0 < both.score(X, y, sample_weight=weights) <= 1
    alone = PROBES["logistic"]().fit(StandardScaler().fit_transform(X), y, sample_weight=weights)
    np.testing.assert_allclose(both.decision_function(X), alone.decision_function(StandardScaler().fit_transform(X)))


def test_a_clone_is_scikit_learns():
    class Listed(LDAProbe):
        def __init__(self, inner):
            self.inner = inner

    class Own(LDAProbe):
        def __sklearn_clone__(self):
            return "own"

    fitted = GaussianNB().fit(*problem(n=90))
    assert not hasattr(clone_of(Listed([fitted])).inner[0], "theta_")
    assert clone_of(Own()) == "own"
    probe = LDAProbe(0.3).fit(*problem(n=90))
    assert vars(clone_of(probe)) == vars(clone(probe)) == {"shrinkage": 0.3, "standardise": True}
