from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from probekit.evaluation.compare import sparse_fits
from probekit.evaluation.compare.sparse_fits import TOLERANCE, fit_path, sparse_loss

STRENGTHS = (0.1, 1.0, 10.0, 100.0)


def words(n: int = 90, v: int = 40, seed: int = 0) -> Any:
    """Rows of length 1 with a few words each, some of them rare, one constant and one in every row."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(2 / (1 + np.arange(v)), size=(n, v)).astype(float)
    counts[:, 0] = 1
    return sparse.csr_array(counts / np.linalg.norm(counts, axis=1, keepdims=True))


def exact(X: sparse.csr_array, y: np.ndarray, C: float) -> LogisticRegression:
    return LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12, max_iter=500).fit(X.toarray(), y)


def objective(X: sparse.csr_array, y: np.ndarray, n_classes: int, C: float, coef: np.ndarray, intercept: np.ndarray):
    return 0.5 * (coef**2).sum() + C * sparse_loss(y, n_classes).value(X @ coef + intercept)


@pytest.mark.parametrize("n_classes", [2, 3, 7])
@pytest.mark.parametrize("kind", ["noise", "separable", "rare"])
def test_fits_are_scikit_learns_to_the_digits_that_the_certificate_promises(n_classes, kind):
    X, rng = words(), np.random.default_rng(1)
    y = rng.permutation(np.arange(90) % n_classes)
    if kind == "separable":
        rows = X.toarray()
        rows[np.arange(90), y + 5] += 3
        X = sparse.csr_array(rows)
    if kind == "rare":
        y = np.concatenate([np.arange(n_classes), np.zeros(90 - n_classes, dtype=np.int64)])
    for C, fit in zip(STRENGTHS, fit_path(X, sparse_loss(y, n_classes), STRENGTHS), strict=True):
        best: Any = exact(X, y, C)
        least = objective(X, y, n_classes, C, best.coef_.T, best.intercept_)
        found = objective(X, y, n_classes, C, fit.coef, fit.intercept)
        assert fit.converged
        assert fit.gap <= TOLERANCE
        assert found <= least * (1 + TOLERANCE + 1e-12)
        scores = best.decision_function(X.toarray()).reshape(90, -1)
        np.testing.assert_allclose(X @ fit.coef + fit.intercept, scores, atol=2e-3 * np.abs(scores).max())
        assert n_classes == 2 or abs(fit.intercept.sum()) < 1e-9


def test_numbers_are_fitted_by_ridge_regression():
    X, y = words(), np.random.default_rng(2).normal(size=90)
    A = np.hstack([X.toarray(), np.ones((90, 1))])
    penalty = np.diag([*np.ones(X.shape[1]), 0])
    for C, fit in zip(STRENGTHS, fit_path(X, sparse_loss(y, 0), STRENGTHS), strict=True):
        solved = np.linalg.solve(A.T @ A + penalty / C, A.T @ y)
        assert fit.converged
        np.testing.assert_allclose(X @ fit.coef[:, 0] + fit.intercept[0], A @ solved, atol=2e-4)


def test_features_that_say_nothing_leave_the_frequencies():
    y = np.arange(30) % 5 % 3
    (fit,) = fit_path(sparse.csr_array((30, 4)), sparse_loss(y, 3), [1.0])
    assert fit.converged
    assert not fit.coef.any()
    np.testing.assert_allclose(np.exp(fit.intercept - fit.intercept[0]), np.bincount(y) / 12, rtol=1e-6)
    (constant,) = fit_path(sparse.csr_array((30, 4)), sparse_loss(np.zeros(30), 0), [1.0])
    assert constant.converged
    assert not constant.intercept.any()


def test_a_fit_that_is_stopped_says_so_and_its_bound_holds(monkeypatch):
    X, y = words(), np.random.default_rng(1).integers(2, size=90)
    (best,) = fit_path(X, sparse_loss(y, 2), [100.0])
    monkeypatch.setattr(sparse_fits, "MOST_STEPS", 1)
    (stopped,) = fit_path(X, sparse_loss(y, 2), [100.0])
    assert best.converged
    assert not stopped.converged
    assert stopped.gap > TOLERANCE
    found, least = (objective(X, y, 2, 100.0, each.coef, each.intercept) for each in (stopped, best))
    assert found > least * (1 + TOLERANCE)
