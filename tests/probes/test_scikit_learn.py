"""The probes are scikit-learn's own kind of estimator."""

from itertools import cycle

import numpy as np
import pytest
import torch
from probe_problems import problem
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from probekit.probes import PROBES, REGRESSORS, KSparseProbe, LDAProbe, MLPProbe
from probekit.probes.base import as_numpy

EVERY = [
    *(probe() for probe in (*PROBES.values(), *REGRESSORS.values())),
    LDAProbe(0.3),
    KSparseProbe(2, 1.0, "elastic-net"),
]
GRIDS = {"lda": {"shrinkage": ["auto", 0.1]}, "mlp": {"hidden": [2, 8]}, "k-sparse": {"k": [1, 5]}, "mean-diff": {}}


def small(name):
    return MLPProbe(max_epochs=50) if name == "mlp" else PROBES[name]()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("probe", [small("mlp") if type(p) is MLPProbe else p for p in EVERY], ids=str)
def test_scikit_learns_own_checks_pass(probe):
    checks = check_estimator(probe, on_fail=None, on_skip=None)
    assert [c["check_name"] for c in checks if c["status"] not in ("passed", "skipped")] == []
    assert {c["check_name"] for c in checks if c["status"] == "skipped"} <= {"check_array_api_input"}
    assert not any(c["expected_to_fail"] for c in checks)


@pytest.mark.parametrize(("name", "kind"), [*zip(sorted(PROBES), cycle([np.asarray, torch.as_tensor]), strict=False)])
def test_it_stands_in_pipelines_cross_validation_and_searches(name, kind):
    X, y = (kind(a) for a in problem(n=90))
    in_pipe = make_pipeline(StandardScaler(), PCA(5), small(name)).fit(X, y)
    assert in_pipe.predict(X).shape == (90,)
    assert cross_val_score(small(name), X, y, cv=3).shape == (3,)
    grid = GRIDS.get(name, {"C": [0.1, 10.0]} if PROBES[name].has_C else {})
    search = GridSearchCV(small(name), grid, cv=3, scoring="roc_auc").fit(X, y)
    assert 0.5 < roc_auc_score(as_numpy(y), as_numpy(search.decision_function(X))) <= 1
    assert set(search.best_params_) == set(grid)


def test_the_regression_stands_in_a_search():
    X, y = problem(n=90)
    search = GridSearchCV(REGRESSORS["ridge"](), {"C": [0.1, 10.0]}, cv=3).fit(X, y * 1.5)
    assert search.best_score_ == search.cv_results_["mean_test_score"].max()
