"""The probes are scikit-learn's own kind of estimator."""

import numpy as np
import pytest
import torch
from probe_problems import problem
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
