"""What a fitted probe says of activations that it cannot take."""

import numpy as np
import pandas as pd
import pytest
import torch
from probe_problems import problem
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from probekit.errors import DataError
from probekit.probes import EstimatorClassifier, EstimatorRegressor, LogisticProbe, RidgeRegressionProbe

X, Y = problem()
MAKE = [
    LogisticProbe,
    RidgeRegressionProbe,
    lambda: EstimatorClassifier(KNeighborsClassifier()),
    lambda: EstimatorRegressor(KNeighborsRegressor()),
]
with_nan = X[:4].copy()
with_nan[2, 5] = np.nan
GIVEN = [
    (X[0], r"expected activations \[rows, 12\], as {name} was fitted to, got \[12\]\. Reshape .*X\[None\]"),
    (torch.from_numpy(X[0]), r"got \[12\]\. Reshape your data: X\[None\] is one row"),
    (X[0].tolist(), r"got \[12\]\. Reshape your data"),
    (X[None], r"got \[1, {n}, 12\]\. Reshape your data: X\.reshape\(-1, 12\)"),
    (X[:3, :5], r"got \[3, 5\]: X has 5 features, but {name} is expecting 12 features as input; give activations of"),
    (with_nan, r"expected finite activations, got NaN or inf in row 2 \(1 of 4 rows\); leave these rows out"),
    (torch.full((2, 12), torch.inf, dtype=torch.float16), r"got NaN or inf in row 0 \(2 of 2 rows\)"),
]


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize(("given", "message"), GIVEN, ids=range(len(GIVEN)))
def test_activations_that_do_not_fit_are_refused_in_words(make, given, message):
    probe = make().fit(X, Y)
    wanted = message.format(name=type(probe).__name__, n=len(X))
    for answer in ("predict", "predict_labels", "decision_function"):
        if hasattr(probe, answer):
            with pytest.raises(DataError, match=wanted):
                getattr(probe, answer)(given)


def test_what_scikit_learn_says_best_stays_as_it_is():
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(12)])
    probe = EstimatorClassifier(KNeighborsClassifier()).fit(frame, Y)
    with pytest.raises(ValueError, match="feature names should match"):
        probe.predict(frame.rename(columns={"f3": "g"}))
    for given in ([[1.0, 2.0], [3.0]], [["a"] * 12], np.empty((0, 12))):
        with pytest.raises(ValueError, match=r"."):
            LogisticProbe().fit(X, Y).predict(given)
