"""The linear fits of the baselines, which say whether they converged, against newton-cholesky and normal equations."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from probekit.evaluation.compare import baseline_fits
from probekit.evaluation.compare.baseline_fits import bags_of_words, fit_path

STRENGTHS = (0.1, 1.0, 10.0, 100.0)


def words(n: int = 90, v: int = 40, seed: int = 0) -> Any:
    """Rows of length 1 with a few words each, some of them rare, one constant and one in every row."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(2 / (1 + np.arange(v)), size=(n, v)).astype(float)
    counts[:, 0] = 1
    return sparse.csr_array(counts / np.linalg.norm(counts, axis=1, keepdims=True))


@pytest.mark.parametrize("n_classes", [2, 3, 7])
@pytest.mark.parametrize("kind", ["noise", "separable", "rare"])
@pytest.mark.parametrize("few_weights", [0, 300])  # sparse, and dense
def test_fits_along_a_path_are_those_of_another_solver(few_weights, n_classes, kind, monkeypatch):
    monkeypatch.setattr(baseline_fits, "FEW_WEIGHTS", few_weights)
    X, rng = words(), np.random.default_rng(1)
    y = rng.permutation(np.arange(90) % n_classes)
    if kind == "separable":
        rows = X.toarray()
        rows[np.arange(90), y + 5] += 3
        X = sparse.csr_array(rows)
    if kind == "rare":
        y = np.concatenate([np.arange(n_classes), np.zeros(90 - n_classes, dtype=np.int64)])
    for C, (coef, intercept, converged) in zip(STRENGTHS, fit_path(X, y, STRENGTHS), strict=True):
        best: Any = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12, max_iter=500).fit(X.toarray(), y)
        scores = best.decision_function(X.toarray()).reshape(90, -1)
        assert converged
        np.testing.assert_allclose(X @ coef + intercept, scores, atol=2e-3 * np.abs(scores).max())


def test_numbers_are_fitted_by_ridge_regression():
    counts = np.random.default_rng(0).poisson(1.0, size=(90, 30))
    y = 5 + 3 * np.random.default_rng(2).normal(size=(90, 2))
    train = np.arange(60)
    found = bags_of_words(sparse.csr_array(counts), y, train, 0, STRENGTHS)
    X = baseline_fits._tf_idf(sparse.csr_array(counts), train, 1000).toarray()
    A = np.hstack([X, np.ones((90, 1))])
    for C, guess in zip(STRENGTHS, found, strict=True):
        penalty = np.diag([*np.ones(X.shape[1]), 0]) / C
        solved = np.linalg.solve(A[train].T @ A[train] + penalty, A[train].T @ y[train])
        np.testing.assert_allclose(guess.predicted, A @ solved, atol=1e-4)
        assert guess.converged


def test_features_that_say_nothing_leave_the_frequencies():
    y = np.arange(30) % 5 % 3
    ((coef, intercept, converged),) = fit_path(sparse.csr_array((30, 4)), y, [1.0])
    assert converged
    assert not coef.any()
    np.testing.assert_allclose(np.exp(intercept - intercept[0]), np.bincount(y) / 12, rtol=1e-6)


def test_a_fit_that_is_stopped_says_so(monkeypatch):
    X, y = words(), np.random.default_rng(1).integers(2, size=90)
    monkeypatch.setattr(baseline_fits, "FEW_WEIGHTS", 0)
    monkeypatch.setattr(baseline_fits, "MOST_STEPS", 1)
    ((_, _, converged),) = fit_path(X, y, [100.0])
    assert not converged
    numbers = np.random.default_rng(2).normal(size=90)
    monkeypatch.setattr(baseline_fits, "TOLERANCE", 0.1)
    assert not bags_of_words(X, numbers, np.arange(90), 0, [100.0])[0].converged
