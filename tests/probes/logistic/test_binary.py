"""Two classes: Newton's method along rising C against scikit-learn's newton-cholesky and the first-order conditions."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from probekit.options.check import C_RANGE
from probekit.probes.logistic import binary, systems
from probekit.probes.logistic.binary import balance
from probekit.probes.logistic.solver import solve_logistic
from probekit.probes.logistic.systems import BinaryProblem
from probekit.probes.problem import Labels, every_problem

PATH = (1e-4, 1e-2, 1.0, 1e2, 1e4)


def drawn(n, d, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) / np.sqrt(d) + rng.normal(size=d)
    y = (X[:, 0] - X[:, 0].mean() + noise * rng.logistic(size=n) > 0).astype(int)
    y[:2] = 0, 1
    return X, y


def with_columns(make, n=80, d=6):
    X, y = drawn(n, d)
    return np.concatenate([X, make(X)], axis=1), y


def massive(n, d):
    X, y = drawn(n, d)
    X[:, 1] = 3000 + 30 * X[:, 1]
    return X, y


def rare(n, d):
    X, _ = drawn(n, d)
    return X, (X[:, 0] >= np.sort(X[:, 0])[-2]).astype(int)


def few_distinct_rows(n, d):
    X, y = drawn(n, d)
    return X[np.arange(n) % 7], y


CASES = {
    "more rows": lambda: drawn(120, 8),
    "more features": lambda: drawn(20, 60),
    "as many rows as features": lambda: drawn(30, 30),
    "one row more than features": lambda: drawn(31, 30),
    "separable": lambda: drawn(100, 8, noise=0.0),
    "separable, more features": lambda: drawn(12, 40, noise=0.0),
    "separable by one feature": lambda: (np.r_[-np.ones(9), np.ones(9)][:, None], np.repeat([0, 1], 9)),
    "rank 2 of 9": lambda: (drawn(60, 2)[0] @ np.random.default_rng(1).normal(size=(2, 9)), drawn(60, 2)[1]),
    "rank 2 of 90": lambda: (drawn(20, 2)[0] @ np.random.default_rng(1).normal(size=(2, 90)), drawn(20, 2)[1]),
    "duplicated columns": lambda: with_columns(lambda X: X),
    "nearly collinear columns": lambda: with_columns(lambda X: X[:, :3] + 1e-7 * X[:, 3:]),
    "constant columns": lambda: with_columns(lambda X: np.full((len(X), 3), 0.1)),
    "one feature": lambda: drawn(40, 1),
    "all rows equal": lambda: (np.ones((11, 4)), np.arange(11) % 2),
    "few distinct rows": lambda: few_distinct_rows(50, 20),
    "two rows": lambda: drawn(2, 5),
    "two rows of one feature": lambda: (np.array([[0.0], [1.0]]), np.array([0, 1])),
    "a massive column": lambda: massive(80, 6),
    "a massive column, more features": lambda: massive(20, 60),
    "two positives": lambda: rare(300, 5),
    "tiny features": lambda: (drawn(50, 5)[0] * 1e-20, drawn(50, 5)[1]),
    "huge features": lambda: (drawn(50, 5)[0] * 1e20, drawn(50, 5)[1]),
    "mixed scales": lambda: (drawn(50, 7)[0] * np.logspace(-6, 6, 7), drawn(50, 7)[1]),
}


def scaled(X, weights, standardise):
    """Centred, and divided by the standard deviation; a column that does not vary becomes 0."""
    mean = np.average(X, axis=0, weights=weights)
    size = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weights))
    varies = size > 1e-6 * np.abs(mean)
    scale = size if standardise else np.ones_like(size)
    return (X - mean) * np.where(varies, 1 / np.where(varies, scale, 1), 0), mean, np.where(varies, scale, np.inf)


def terms(Z, y, C, w, b, weights):
    """The objective and its gradient by w and b, from the definition."""
    sign = 2 * y - 1
    z = Z @ w + b
    r = -sign * expit(-sign * z) * weights
    return 0.5 * w @ w + C * (weights * np.logaddexp(0, -sign * z)).sum(), w + C * (Z.T @ r), C * r.sum()


def oracle(Z, y, C, weights):
    """The weights with the smallest objective that scikit-learn finds at its sharpest."""
    found = []
    for solver in ("newton-cholesky", "lbfgs"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says so when it can go no further down
            model = LogisticRegression(C=C, solver=solver, tol=1e-12, max_iter=2000).fit(Z, y, weights)
        w, b = model.coef_[0], model.intercept_[0]
        f = terms(Z, y, C, w, b, weights)[0]
        found.append((f if np.isfinite(f) else np.inf, w, b))
    return min(found, key=lambda each: each[0])


BOTH = [(case, standardise) for case in CASES for standardise in (True, False)]
# Raw, scikit-learn fails on these; the first-order conditions are tested instead
RAW = {"tiny features", "huge features", "mixed scales"}


@pytest.mark.parametrize(("case", "standardise"), [each for each in BOTH if each[1] or each[0] not in RAW])
def test_objective_weights_and_predictions_are_scikit_learns(case, standardise):
    X, y = CASES[case]()
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y)], PATH), standardise)
    one = np.ones(len(y))
    Z, _, scale = scaled(X, one, standardise)
    assert found.converged.all()
    for i, C in list(enumerate(PATH))[::2]:
        f, w, b = oracle(Z, y, C, one)
        ours = found.coef[i, 0] * np.where(np.isinf(scale), 0, scale)
        decided = X @ found.coef[i, 0] + found.intercept[i, 0]
        assert found.objective[i] <= f * (1 + 1e-10)
        assert found.objective[i] == pytest.approx(f, rel=1e-6)  # lbfgs stops early where newton-cholesky fails
        away = np.sqrt(2 * max(f - found.objective[i], 0)) + 1e-6 * (1 + np.linalg.norm(w))  # strong convexity
        assert np.linalg.norm(ours - w) <= away
        np.testing.assert_allclose(decided, Z @ w + b, atol=away * (1 + np.abs(Z).sum(axis=1).max()))


@pytest.mark.parametrize("case", ["tiny features", "mixed scales"])
def test_raw_features_of_extreme_sizes_meet_the_first_order_conditions(case):
    X, y = CASES[case]()
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y)], PATH), standardise=False)
    assert found.converged.all()
    Z, mean, _ = scaled(X, np.ones(len(y)), standardise=False)
    for i, C in enumerate(PATH):
        w = found.coef[i, 0]
        f, g, drift = terms(Z, y, C, w, found.intercept[i, 0] + mean @ w, 1.0)
        assert f == pytest.approx(found.objective[i], rel=1e-9)
        assert 0.5 * g @ g <= 1.1e-6 * f
        assert abs(drift) <= 1e-9 * C * len(y)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("shape", [(50, 5), (10, 50)])
def test_raw_features_too_large_for_float64_are_marked(shape, n_classes):
    """A residual's last digit times a feature of 1e20 exceeds every tolerance."""
    X, y = drawn(*shape)[0] * 1e20, np.arange(shape[0]) % n_classes
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y, n_classes)], [1.0, 1e4]), standardise=False)
    assert np.isfinite(found.coef).all()
    assert shape == (10, 50) or not found.converged.any()  # with fewer rows some are exact


@pytest.mark.parametrize("seed", [62, 63])
def test_raw_features_of_very_unequal_sizes_are_solved_from_the_rows(seed):
    """C times the curvature times the kernel exceeds 1e16: the unknowns of a step are not a difference."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(20, 40)) * 10 ** (1.5 * rng.normal(size=40))
    y = np.arange(20) % 2
    for dtype in (torch.float32, torch.float64):
        for C in (1.0, 1e5):  # alone: a path would start nearer
            problems = every_problem([Labels(y)], [C])
            assert solve_logistic(torch.from_numpy(X).to(dtype), problems, standardise=False).converged.all()


@pytest.mark.parametrize("far", [0.0, 1e3, -1e9])
@pytest.mark.parametrize("spread", [1.0, 1e3, 1e9])
def test_the_best_intercept_is_found_however_far_it_is(far, spread):
    rng = np.random.default_rng(0)
    s, wrong = far + spread * rng.normal(size=41), np.where(rng.random(41) < 0.3, -1.0, 1.0)
    task = BinaryProblem(torch.from_numpy(wrong), None, 1.0)
    b, r, _ = balance(task, torch.from_numpy(s), 0.0)
    np.testing.assert_allclose(r.numpy(), wrong * expit(wrong * (s + b)))
    near = np.spacing(abs(b) + np.abs(s).max())  # the intercept's last digit
    above, below = ((wrong * expit(wrong * (s + b + off))).sum() for off in (near, -near))
    assert below <= 1e-10 * np.abs(r.numpy()).sum()
    assert above >= -1e-10 * np.abs(r.numpy()).sum()


@pytest.mark.parametrize(("case", "standardise"), [each for each in BOTH if each != ("huge features", False)])
def test_float32_features_meet_their_certificate_along_the_path_and_alone(case, standardise):
    X, y = CASES[case]()
    X = X.astype(np.float32)
    path = solve_logistic(torch.from_numpy(X), every_problem([Labels(y)], [*PATH, 1e6]), standardise)
    exact = solve_logistic(torch.from_numpy(X).double(), every_problem([Labels(y)], [*PATH, 1e6]), standardise)
    alone = solve_logistic(torch.from_numpy(X), every_problem([Labels(y)], [1e4]), standardise)
    assert path.converged.all()
    assert alone.converged.all()
    assert (np.abs(path.objective / exact.objective - 1) <= 1.01e-6).all()
    assert alone.objective[0] == pytest.approx(exact.objective[4], rel=1.01e-6)


@settings(max_examples=30)
@given(
    n=st.integers(2, 60),
    d=st.integers(1, 70),
    rank=st.integers(1, 70),
    spread=st.floats(0, 1.5),
    noise=st.sampled_from([0.0, 0.3, 3.0]),
    weighted=st.sampled_from(["ones", "fractions", "mask"]),
    standardise=st.booleans(),
    powers=st.lists(st.floats(-6, 6), min_size=1, max_size=3),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 1000),
)
@example(4, 6, 1, 1.0, 0.0, "ones", False, [5.0], np.float64, 269)
@example(32, 69, 64, 1.375, 0.0, "ones", False, [0.0], np.float64, 418)
def test_any_problem_is_certified_and_its_first_order_conditions_hold(
    n, d, rank, spread, noise, weighted, standardise, powers, dtype, seed
):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, d)) * 10 ** (spread * rng.normal(size=d))
    X = X.clip(-1e6, 1e6).astype(dtype)
    y = (X[:, 0] - X[:, 0].mean() + noise * X[:, 0].std() * rng.logistic(size=n) > 0).astype(int)
    y[:2] = 0, 1
    weights = {"ones": np.ones(n), "fractions": rng.uniform(0.1, 3, n), "mask": (rng.random(n) < 0.7).astype(float)}
    own = weights[weighted]
    own[:2] = 1
    strengths = [10.0**power for power in powers]
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y)], strengths, [own]), standardise)
    Z, mean, scale = scaled(X.astype(float), own, standardise)
    assert found.converged.all()
    for i, C in enumerate(strengths):
        w = found.coef[i, 0] * np.where(np.isinf(scale), 0, scale)
        f, g, drift = terms(Z, y, C, w, found.intercept[i, 0] + mean @ found.coef[i, 0], own)
        assert f == pytest.approx(found.objective[i], rel=1e-7)
        assert 0.5 * g @ g <= (1.1e-6 * f if dtype == np.float32 else 1e-9 * f)
        assert abs(drift) <= 1e-5 * C * own.sum()


def test_a_prefix_of_very_many_rows_is_solved_on_its_own(monkeypatch):
    X, y = drawn(400, 3)
    first = (np.arange(400) < 30).astype(float)
    alone = solve_logistic(torch.from_numpy(X[:30]), every_problem([Labels(y[:30])], PATH))
    monkeypatch.setattr(binary, "LARGE", 400)
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y)], PATH, [first]))
    np.testing.assert_array_equal(found.coef, alone.coef)


@pytest.mark.parametrize("C", [C_RANGE[1], 1e300])
@pytest.mark.parametrize("shape", [(60, 100), (200, 10)])
def test_an_absurd_C_ends_and_is_not_called_converged(shape, C):
    """The bounds of two steps may differ by more than a float's range."""
    X = np.random.default_rng(0).normal(size=shape)
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels((X[:, 0] > 0).astype(int))], [C]), max_iter=100)
    assert not found.converged.any()
    if C in C_RANGE:
        assert np.isfinite(found.coef).all()


@pytest.mark.parametrize("C", [1.0, 1e4])
def test_separable_rows_with_fewer_rows_than_features_take_few_factors(C, monkeypatch):
    """Random labels: from 0 straight to C = 1e4 it took 15."""
    factors, factor = [], systems.Kernel.factor
    monkeypatch.setattr(systems.Kernel, "factor", lambda self, *a, **k: factors.append(factor(self, *a, **k)))
    rng = np.random.default_rng(0)
    X = torch.from_numpy(drawn(200, 500)[0].astype(np.float32))
    found = solve_logistic(X, every_problem([Labels(rng.integers(0, 2, 200))], [C]))
    assert found.converged.all()
    assert len(factors) <= 6


def test_raw_features_of_which_some_are_large_take_few_steps():
    """Float32 would hold K with too few digits, and a factor would not serve the next C: it took 61 steps for 14."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 400)).astype(np.float32)
    X[:100, :2] += 1e4
    y = rng.integers(0, 2, 200)
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y)], [1e-2, 1.0, 1e2]), standardise=False)
    assert found.converged.all()
    assert found.n_iter.max() <= 40


def test_features_without_variance_at_the_smallest_C_have_the_share_of_the_classes():
    y = np.arange(8) % 4 == 0
    found = solve_logistic(torch.ones(8, 12), every_problem([Labels(y.astype(int))], [C_RANGE[0]]))
    assert found.converged.all()
    np.testing.assert_allclose(expit(found.intercept.ravel()), y.mean())


def test_where_float32_holds_the_kernel_matrix_the_rows_correct_it(monkeypatch):
    """Random labels of rows with a steep spectrum: what K is off by would leave a gap of 4e-2 (measured)."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(300, 60)) * np.arange(1, 61) ** -0.5) @ rng.normal(size=(60, 500))
    X += 0.1 * rng.normal(size=X.shape)
    problems = every_problem([Labels(rng.integers(0, 2, 300))], [1e2, 1e4])
    taken_up, make = [], systems.Primal.__init__
    monkeypatch.setattr(systems.Primal, "__init__", lambda self, *a: taken_up.append(make(self, *a)))
    assert solve_logistic(torch.from_numpy(X.astype(np.float32)), problems).converged.all()
    assert not taken_up
    monkeypatch.setattr(systems, "OFF", 0.0)
    assert solve_logistic(torch.from_numpy(X.astype(np.float32)), problems).converged.all()
    assert taken_up


def test_rows_near_a_subspace_take_few_factors(monkeypatch):
    """Random labels at C = 1e6: K in float32 is off by more than the objective, and factors in float32 serve one step.

    With these it took 500 factors, and did not converge.
    """
    factors, factor = [], systems.Kernel.factor
    monkeypatch.setattr(systems.Kernel, "factor", lambda self, *a, **k: factors.append(factor(self, *a, **k)))
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 75)) @ rng.normal(size=(75, 450)) + 0.003 * rng.normal(size=(300, 450))
    problems = every_problem([Labels(rng.integers(0, 2, 300))], [1e-2, 1.0, 1e2, 1e6])
    found = solve_logistic(torch.from_numpy(X.astype(np.float32)), problems)
    assert found.converged.all()
    assert len(factors) <= 40


def test_problems_on_the_same_rows_share_the_kernel_matrix_and_those_of_one_set_the_first_factor(monkeypatch):
    made, begun, make, begin = [], [], systems.Kernel.__init__, systems.Kernel.begin
    monkeypatch.setattr(systems.Kernel, "__init__", lambda self, *a: made.append(make(self, *a)))
    monkeypatch.setattr(systems.Kernel, "begin", lambda self, *a: begun.append(begin(self, *a)) or begun[-1])
    X, y = drawn(60, 200)
    rows, others = torch.from_numpy(X.astype(np.float32)), np.roll(y, 7)
    kept = {}
    problems = replace(every_problem([Labels(y)], PATH), kept=kept)
    more = replace(every_problem([Labels(others), Labels(y)], PATH), kept=kept)
    first, both = solve_logistic(rows, problems), solve_logistic(rows, more)
    assert len(made) == 1
    assert begun == [True, True, False]  # whether the factor of the weights 0 was new
    again = solve_logistic(rows, problems)
    np.testing.assert_array_equal(again.coef, first.coef)  # whatever was solved before
    alone = solve_logistic(rows, every_problem([Labels(others)], PATH))
    assert both.converged.all()
    np.testing.assert_allclose(both.objective, np.concatenate([alone.objective, first.objective]), rtol=2e-6)
    solve_logistic(rows, more, standardise=False)
    assert len(made) == 3  # of `alone`, and of features on another scale
    weighted = replace(every_problem([Labels(y)], [1.0], [np.arange(60) % 3.0]), kept=kept)
    assert solve_logistic(rows, weighted).converged.all()
    assert len(made) == 4  # of other rows
