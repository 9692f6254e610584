"""More than two classes: scikit-learn's newton-cholesky at tol 1e-12 is the oracle."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_problems import oracle, standardised, world

from probekit.probes.logistic import multinomial
from probekit.probes.logistic.solver import solve_logistic
from probekit.probes.problem import Labels, every_problem

PATH = (1e-3, 1.0, 1e2)


def _one_of_a_class():
    X, y = world(150, 8, 4)
    y[y == 3] = 0
    y[7] = 3
    return X, y


def _imbalanced():
    X, y = world(400, 8, 4)
    rng = np.random.default_rng(0)
    return X, np.where(rng.uniform(size=400) < 0.97, 0, y)


def _columns(more):
    X, y = world(150, 8, 4)
    return np.concatenate([X, more(X)], axis=1), y


def _equal_rows():
    return np.full((30, 3), 0.5), np.arange(30) % 3


CASES = {
    "plain": lambda: world(150, 8, 4),
    "rank-deficient": lambda: _columns(lambda X: X @ np.ones((8, 3))),
    "duplicate columns": lambda: _columns(lambda X: X[:, :5]),
    "a constant column": lambda: _columns(lambda X: np.full((len(X), 1), 7.0)),
    "one feature": lambda: world(150, 1, 4),
    "separable": lambda: world(150, 8, 4, noise=0.0),
    "imbalanced": _imbalanced,
    "a class of one row": _one_of_a_class,
    "fewer rows than features": lambda: world(30, 60, 4),
    "all rows equal": _equal_rows,
    "a column 3,000 times the others": lambda: _columns(lambda X: 3000 * X[:, :1] ** 2),
    "repeated rows": lambda: tuple(np.repeat(each, 3, axis=0) for each in world(50, 8, 4)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_objective_coefficients_and_predictions_are_those_of_newton_cholesky(case, standardise, dtype):
    X, y = CASES[case]()
    X = X.astype(np.float32).astype(np.float64)
    K = int(y.max()) + 1
    found = solve_logistic(torch.from_numpy(X).to(dtype), every_problem([Labels(y, K)], PATH), standardise)
    assert found.converged.all()
    Z = standardised(X) if standardise else X
    scale = np.where(X.std(axis=0) > 1e-12, X.std(axis=0), 1) if standardise else 1.0
    for i, C in enumerate(PATH):
        model, best = oracle(Z, y, C)
        assert found.objective[i] / best - 1 <= found.gap[i] + 1e-9
        coef, scores = found.coef[i] * scale, X @ found.coef[i].T + found.intercept[i]
        # within the gap of the optimum: the objective is 1-strongly convex in the coefficients
        assert 0.5 * np.square(coef - model.coef_).sum() <= (found.gap[i] + 1e-9) * best * 4
        theirs = model.decision_function(Z)
        clear = np.diff(np.sort(theirs, axis=1)[:, -2:], axis=1)[:, 0] > 0.05
        np.testing.assert_array_equal(scores.argmax(axis=1)[clear], theirs.argmax(axis=1)[clear])


@settings(max_examples=15)
@given(
    n=st.integers(12, 60),
    d=st.integers(1, 40),
    K=st.integers(3, 7),
    seed=st.integers(0, 10**6),
    noise=st.sampled_from([0.0, 0.3, 2.0]),
    C=st.sampled_from([1e-3, 0.1, 10.0]),
    weighted=st.booleans(),
)
def test_any_problem_is_within_its_gap_of_the_optimum(n, d, K, seed, noise, C, weighted):
    X, y = world(n, d, K, seed, noise)
    weights = np.random.default_rng(seed).uniform(0.2, 2, size=n) if weighted else None
    found = solve_logistic(torch.from_numpy(X).float(), every_problem([Labels(y, K)], [C], [weights]))
    best = oracle(standardised(X, weights), y, C, weights)[1]
    assert found.converged.all()
    assert -1e-7 <= found.objective[0] / best - 1 <= found.gap[0] + 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_fit_to_the_last_digit_are_certified(dtype):
    """The own class's probability is 1 in float64; the others' still tell the residual."""
    X, y = world(20, 60, 4)
    found = solve_logistic(torch.from_numpy(X).to(dtype), every_problem([Labels(y, 4)], [1e-4, 1e8]))
    assert found.converged.all()
    assert found.objective[1] / oracle(standardised(X), y, 1e8)[1] - 1 <= 1e-6


@pytest.mark.parametrize("size", [1e-300, 1e-40, 1e40])
def test_weights_of_any_size_are_a_factor_of_C(size):
    X, y = world(60, 8, 4)
    weights = np.random.default_rng(0).uniform(0.2, 2, size=60)
    found = solve_logistic(torch.from_numpy(X).float(), every_problem([Labels(y, 4)], [1 / size], [weights * size]))
    same = solve_logistic(torch.from_numpy(X).float(), every_problem([Labels(y, 4)], [1.0], [weights]))
    assert found.converged.all()
    np.testing.assert_allclose(found.objective, same.objective, rtol=1e-6)


def test_masks_and_label_columns_together_are_as_alone():
    X, y = world(200, 8, 4)
    labels = [Labels(y, 4), Labels(np.random.default_rng(0).permutation(y), 4)]
    masks = [None, (np.arange(200) % 3 > 0).astype(float)]
    together = solve_logistic(torch.from_numpy(X).float(), every_problem(labels, PATH, masks))
    for i, (label, mask) in enumerate((label, mask) for label in labels for mask in masks):
        rows = slice(None) if mask is None else mask > 0
        alone = solve_logistic(torch.from_numpy(X[rows]).float(), every_problem([Labels(label.values[rows], 4)], PATH))
        np.testing.assert_array_equal(together.coef[3 * i : 3 * i + 3], alone.coef)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_complete_factor_and_the_diagonal_alone_find_the_same(noise, monkeypatch):
    X, y = world(300, 12, 6, noise=noise)
    problems = every_problem([Labels(y, 6)], (1e-2, 1.0, 1e2, 1e4))
    made = []

    class Counted(multinomial.Dense):
        def __init__(self, *arguments):
            made.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(multinomial, "Dense", Counted)
    monkeypatch.setattr(multinomial, "FACTOR_RATE", 0.0)
    dense = solve_logistic(torch.from_numpy(X).float(), problems)
    assert made
    monkeypatch.setattr(multinomial, "MOST_UNKNOWNS", 0)
    made.clear()
    diagonal = solve_logistic(torch.from_numpy(X).float(), problems)
    assert not made
    assert dense.converged.all()
    assert diagonal.converged.all()
    np.testing.assert_allclose(dense.objective, diagonal.objective, rtol=2e-6)


def test_a_basis_of_a_sample_serves_what_is_too_large_to_rotate(monkeypatch):
    X, y = world(300, 40, 4)
    problems = every_problem([Labels(y, 4)], PATH)
    turned = solve_logistic(torch.from_numpy(X).float(), problems)
    monkeypatch.setattr(multinomial, "MOST_ROTATED", 10)
    found = solve_logistic(torch.from_numpy(X).float(), problems)
    assert found.converged.all()
    np.testing.assert_allclose(found.objective, turned.objective, rtol=2e-6)


def test_a_fit_whose_work_is_bounded_is_marked(monkeypatch):
    X, y = world(300, 20, 10, noise=0.0)
    monkeypatch.setattr(multinomial, "MOST_PRODUCTS", 3 * 2 * 300 * 21 * 10)
    found = solve_logistic(torch.from_numpy(X).float(), every_problem([Labels(y, 10)], [1e-4, 1e3]))
    assert found.converged[0]
    assert not found.converged[1]
    assert found.gap[1] > 1e-6
