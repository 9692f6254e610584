import numpy as np
import pytest
import torch
from probe_problems import objective, oracle, standardised, world

from probekit.errors import DataError, UsageError
from probekit.probes.lbfgs import BatchedLBFGS
from probekit.probes.logistic import binary, certificate, features, multinomial, solver
from probekit.probes.logistic.solver import solve_logistic
from probekit.probes.problem import Labels, concatenated, every_problem, subset
from probekit.probes.stream import Stream

PATH = (1e-4, 1e-2, 1.0, 1e2, 1e4)


def optimum(X, y, C, weights=None):
    return oracle(X, y, C, weights)[1]


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_the_objective_is_that_of_newton_cholesky(n_classes, seed):
    X, y = world(n_classes=n_classes, seed=seed, n=200 + 20 * seed, d=3 + seed)
    C, standardise = 10.0 ** (seed % 5 - 2), seed % 2 == 0
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y, n_classes)], [C]), standardise)
    best = optimum(standardised(X) if standardise else X, y, C)
    assert found.converged.all()
    assert found.objective[0] == pytest.approx(best, rel=1e-9)
    if not standardise:
        assert objective(X, y, C, found.coef[0], found.intercept[0]) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(("n_classes", "tolerance"), [(2, 1e-9), (5, 1e-5)])
def test_another_order_of_the_classes_is_the_same_fit(n_classes, tolerance):
    X, y = world(150, 8, n_classes)
    order = np.roll(np.arange(n_classes), 1)
    one, other = (
        solve_logistic(torch.from_numpy(X), every_problem([Labels(k, n_classes)], PATH)) for k in (y, order[y])
    )
    np.testing.assert_allclose(other.objective, one.objective, rtol=1e-9)
    for given, same in ((one.coef, other.coef), (one.intercept, other.intercept)):
        np.testing.assert_allclose(-same if n_classes == 2 else same[:, order], given, atol=tolerance)


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("max_iter", [0, 1, 2])
def test_the_gap_bounds_the_distance_of_a_fit_that_was_cut_short(n_classes, max_iter):
    X, y = world(n_classes=n_classes)
    problems = every_problem([Labels(y, n_classes)], PATH)
    early = solve_logistic(torch.from_numpy(X), problems, max_iter=max_iter)
    best = solve_logistic(torch.from_numpy(X), problems)
    distance = early.objective / best.objective - 1
    assert (distance <= early.gap * (1 + 1e-9) + 1e-14).all()
    assert (early.converged == (early.gap <= 1e-6)).all()
    assert not early.converged.all()


def test_a_gap_that_would_be_below_zero_is_infinite_not_small():
    X, y = world(noise=0.0)
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y, 2)], [1e4]), max_iter=0)
    assert np.isinf(found.gap[0])
    assert not found.converged[0]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_weight_is_a_row_repeated_and_a_weight_of_0_a_row_left_out(n_classes):
    X, y = world(n_classes=n_classes)
    weights = np.random.default_rng(0).integers(3, size=len(y)).astype(float)
    C = 0.3
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y, n_classes)], [C], [weights]))
    rows = np.repeat(np.arange(len(y)), weights.astype(int))
    repeated = solve_logistic(torch.from_numpy(X[rows]), every_problem([Labels(y[rows], n_classes)], [C]))
    assert found.objective[0] == pytest.approx(repeated.objective[0], rel=1e-9)
    np.testing.assert_allclose(found.coef, repeated.coef, rtol=1e-5, atol=1e-7)
    assert found.objective[0] == pytest.approx(optimum(standardised(X, weights), y, C, weights), rel=1e-9)


def test_problems_together_are_as_alone():
    X, y = world(n=240, d=9)
    rng = np.random.default_rng(0)
    labels = [y, rng.permutation(y)]
    masks = [None, *((np.arange(240) % 4 != fold).astype(float) for fold in range(4))]
    problems = every_problem([Labels(each) for each in labels], PATH, masks)
    together = solve_logistic(torch.from_numpy(X), problems)
    assert together.converged.all()
    for i in range(0, len(problems.problems), 7):
        alone = solve_logistic(torch.from_numpy(X), subset(problems, [i]))
        assert together.objective[i] == pytest.approx(alone.objective[0], rel=1e-9)
        np.testing.assert_allclose(together.coef[i], alone.coef[0], rtol=1e-5, atol=1e-7)


def streamed(X):
    """Features that are read anew on each pass: all problems descend together."""
    n, d = X.shape
    return Stream(n, d, lambda: iter([torch.from_numpy(X)]))


def test_problems_in_parts_are_as_together(monkeypatch):
    X, y = world()
    problems = every_problem([Labels(y), Labels(1 - y)], PATH)
    for given, module in ((streamed(X), solver), (torch.from_numpy(X), certificate)):
        together = solve_logistic(given, problems)
        with monkeypatch.context() as patch:
            patch.setattr(module, "MOST_SCORES", 2 * len(y))
            np.testing.assert_allclose(solve_logistic(given, problems).objective, together.objective, rtol=1e-9)


def test_a_fold_in_which_a_feature_never_varies_gives_it_no_weight():
    X, y = world(n=200, d=5)
    weights = (np.arange(200) < 100).astype(float)
    X[:100, 2] = 7.0
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y, 2)], [10.0], [weights]))
    alone = solve_logistic(torch.from_numpy(X[:100]), every_problem([Labels(y[:100], 2)], [10.0]))
    assert found.coef[0, 0, 2] == 0
    np.testing.assert_allclose(found.coef, alone.coef, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_features_of_any_type_are_certified_against_the_values_they_hold(dtype):
    X, y = world(n=400)
    X = torch.from_numpy(X).to(dtype)
    found = solve_logistic(X, every_problem([Labels(y, 2)], PATH), standardise=False)
    exact = solve_logistic(X.double(), every_problem([Labels(y, 2)], PATH), standardise=False)
    assert found.converged.all()
    assert (found.objective / exact.objective - 1 <= found.gap + 1e-12).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stream_in_an_order_of_its_own_is_the_same_problem(dtype):
    X, y = world(n=500, d=7)
    X = torch.from_numpy(X).to(dtype)
    order = np.random.default_rng(0).permutation(500)
    stream = Stream(500, 7, lambda: iter(X[torch.from_numpy(order)].split(130)), order)
    weights = (np.arange(500) % 5 > 0).astype(float)
    problems = every_problem([Labels(y, 2)], PATH, [weights])
    streamed, held = solve_logistic(stream, problems), solve_logistic(X, problems)
    assert streamed.converged.all()
    np.testing.assert_allclose(streamed.objective, held.objective, rtol=1e-6 if dtype == torch.float32 else 1e-9)


def test_a_wide_sample_gives_a_basis_that_is_poorer_not_wrong(monkeypatch):
    X, y = world(n=600, d=40)
    full = solve_logistic(streamed(X), every_problem([Labels(y, 2)], PATH[:3]))
    monkeypatch.setattr(features, "WIDE", 10)
    monkeypatch.setattr(features, "WIDE_SAMPLE", 40)
    narrow = solve_logistic(streamed(X), every_problem([Labels(y, 2)], PATH[:3]))
    assert narrow.converged.all()
    np.testing.assert_allclose(narrow.objective, full.objective, rtol=1e-9)


@pytest.mark.parametrize("n", [90, 600, 1500])  # all rows, a third of them, and as many as are ever sampled
def test_a_basis_of_some_rows_leaves_the_rows_as_they_are_and_finds_the_optimum(n):
    X, y = world(n=n, d=9)
    before = X.copy()
    found = solve_logistic(streamed(X), every_problem([Labels(y, 2)], PATH))
    np.testing.assert_array_equal(X, before)
    assert found.converged.all()
    best = [optimum(standardised(X), y, C) for C in PATH]
    np.testing.assert_allclose(found.objective, best, rtol=1e-8)


def test_no_weight_runs_away_where_nothing_but_the_penalty_holds_it():
    """Prefixes of separable rows at the weakest regularisation: the loss is flat, and so is the intercept's Hessian."""
    X, y = world(n=600, d=24, noise=0.02)
    X = torch.from_numpy(X).float()
    prefixes = [(np.arange(600) < n).astype(float) for n in (20, 80, 320, 600)]
    problems = every_problem([Labels(y, 2)], (1.0, 1e2, 1e4, 1e6), prefixes)
    found = solve_logistic(X, problems)
    exact = solve_logistic(X.double(), problems)
    at_zero = np.array([p.C * prefixes[p.weighting].sum() * np.log(2) for p in problems.problems if p.C])
    assert found.converged.all()
    assert (found.objective < at_zero).all()
    assert (np.abs(found.objective / exact.objective - 1) <= 1.01e-6).all()


def test_a_mask_of_few_rows_spoils_no_fit_beside_it():
    """Rows of which only 12 are distinct: four of them vary on scales that all of them do not have."""
    rng = np.random.default_rng(0)
    distinct = rng.normal(size=(12, 64)).astype(np.float32)
    X = torch.from_numpy(distinct[rng.choice(12, size=600, p=rng.dirichlet(np.ones(12)))])
    y = rng.integers(2, size=600)
    four = np.zeros(600)
    four[np.concatenate([np.flatnonzero(y == 0)[:2], np.flatnonzero(y == 1)[:2]])] = 1
    problems = every_problem([Labels(y, 2)], PATH)
    together = solve_logistic(X, concatenated([problems, every_problem([Labels(y, 2)], [1.0], [four])]))
    alone = solve_logistic(X, problems)
    assert together.converged.all()
    np.testing.assert_array_equal(together.n_iter[:-1], alone.n_iter)
    np.testing.assert_array_equal(together.objective[:-1], alone.objective)
    of_four = solve_logistic(X[torch.from_numpy(four > 0)], every_problem([Labels(y[four > 0], 2)], [1.0]))
    assert together.objective[-1] == pytest.approx(of_four.objective[0], rel=1e-6)


@pytest.fixture
def in_pieces(monkeypatch):
    """Blocks of a few rows, three threads: what a pass over many rows is made of."""
    monkeypatch.setattr(features, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(features, "BLOCK_OF_SCORES", 50)
    monkeypatch.setattr(solver, "SMALL", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(threads)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("in_pieces")
def test_blocks_and_threads_change_nothing(n_classes, dtype):
    X, y = world(n=1013, d=9, n_classes=n_classes)
    weights = np.random.default_rng(0).integers(1, 4, size=len(y)).astype(float)
    X = torch.from_numpy(X).to(dtype)
    problems = every_problem([Labels(y, n_classes)], (0.01, 1.0, 1e4), [None, weights])
    found = solve_logistic(X, problems)
    assert found.converged.all()
    for problem, f in zip(problems.problems, found.objective, strict=True):
        own = problems.weightings[problem.weighting]
        assert f == pytest.approx(optimum(standardised(X.double().numpy(), own), y, problem.C, own), rel=1.01e-6)
    again = solve_logistic(X, problems)
    for name in vars(found):
        np.testing.assert_array_equal(getattr(found, name), getattr(again, name))


@pytest.mark.parametrize("shape", [(5000, 9, 2), (4200, 270, 2), (40, 300, 2), (6000, 4, 4)])  # L-BFGS, weights, rows
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_threads_gives_the_same_bits(shape, dtype, monkeypatch):
    for module, name, value in (
        (binary, "LARGE", 0),
        (multinomial, "LARGE", 0),
        (multinomial, "ONE_SHARE", 0),
        (multinomial, "BLOCK", 20_000),
    ):
        monkeypatch.setattr(module, name, value)
    X, y = world(*shape)
    X, before, found = torch.from_numpy(X).to(dtype), torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(solve_logistic(X, every_problem([Labels(y, shape[2])], PATH[:4])))
    torch.set_num_threads(before)
    for other in found[1:]:
        for name in vars(other):
            np.testing.assert_array_equal(getattr(other, name), getattr(found[0], name))


@pytest.mark.parametrize("n", [1_000, 30_000])
@pytest.mark.parametrize("C", [1e6, 1e10])
def test_the_gap_is_a_bound_where_every_residual_is_tiny(n, C):
    X, y = world(n=n, d=4, noise=0.0, seed=2)
    early = solve_logistic(torch.from_numpy(X).float(), every_problem([Labels(y, 2)], [C]))
    best = solve_logistic(torch.from_numpy(X).float().double(), every_problem([Labels(y, 2)], [C]))
    assert best.gap[0] < 1e-12
    # float32 moments would be another problem: the same standardised features, to 1e-9
    assert early.objective[0] / best.objective[0] - 1 <= early.gap[0] + 1e-8


@pytest.mark.parametrize("seed", range(2))
def test_float64_features_are_followed_down_beyond_the_digits_of_the_objective(seed):
    X, y = world(n=30_000, d=4, noise=0.0, seed=seed)
    found = solve_logistic(torch.from_numpy(X), every_problem([Labels(y)], [1e4, 1e6, 1e8, 1e10, 1e12]))
    assert found.gap.max() < 1e-12


def test_rows_far_from_the_first_ones_are_standardised_as_they_are():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 3)).astype(np.float32)
    y = (X[:, 2] + rng.logistic(size=5000) > 0).astype(int)
    X[:1500, 2] -= 5000
    weights = (np.arange(5000) >= 1500).astype(float)
    masked = solve_logistic(torch.from_numpy(X), every_problem([Labels(y, 2)], [1.0], [weights]))
    assert masked.objective[0] == pytest.approx(optimum(standardised(X[1500:].astype(float)), y[1500:], 1.0), rel=2e-6)


def test_a_hundred_classes_keep_the_sum_of_their_intercepts_at_0():
    X, y = world(n=1000, d=10, n_classes=100)
    y = np.unique(y, return_inverse=True)[1]
    found = solve_logistic(torch.from_numpy(X).float(), every_problem([Labels(y, int(y.max()) + 1)], [10.0]))
    assert found.converged.all()
    assert abs(found.intercept.sum()) < 1e-3
    np.testing.assert_allclose(found.coef.sum(axis=1), 0, atol=1e-2)


def test_iterations_are_never_more_than_asked_for():
    X, y = world(n=400, d=30, noise=0.0)
    found = solve_logistic(torch.from_numpy(X).float(), every_problem([Labels(y, 2)], PATH), max_iter=9)
    assert found.n_iter.max() <= 9


def test_saturated_classes_bring_no_other_problem_down():
    X, y = world(n=200, d=5, n_classes=4, noise=0.0)
    found = solve_logistic(
        torch.from_numpy(X * 100).float(), every_problem([Labels(y, 4)], (1.0, 1e30)), standardise=False
    )
    assert found.converged[0]


def test_what_does_not_fit_the_rows_is_refused():
    X, y = world()
    X = torch.from_numpy(X)
    with pytest.raises(UsageError, match="no labels to fit"):
        solve_logistic(X, every_problem([]))
    with pytest.raises(UsageError, match="one label for each of the 300 rows, got labels of shape"):
        solve_logistic(X, every_problem([Labels(np.r_[y, y])]))
    for bad in (-1.0, np.nan):
        with pytest.raises(UsageError, match="a weight of 0 or more for each of the 300 rows"):
            solve_logistic(X, every_problem([Labels(y)], weightings=[np.full(300, bad)]))
    with pytest.raises(UsageError, match="no row of a problem has a weight"):
        solve_logistic(X, every_problem([Labels(y)], weightings=[np.zeros(300)]))
    with pytest.raises(DataError, match="expected 400 rows of features, got 300"):
        solve_logistic(Stream(400, 12, lambda: iter([X])), every_problem([Labels(np.r_[y, y[:100]])]))
    X[3, 2] = torch.nan
    with pytest.raises(DataError, match="NaN or infinity"):
        solve_logistic(X, every_problem([Labels(y)]))


def test_tensors_of_a_model_at_work_are_taken():
    X, y = world()
    with torch.inference_mode():
        inside = solve_logistic(torch.from_numpy(X), every_problem([Labels(y)]))
    needing = solve_logistic(torch.from_numpy(X).requires_grad_(), every_problem([Labels(y)]))
    np.testing.assert_array_equal(inside.coef, needing.coef)


D = 30


def minimised(conditions: list[float], is_preconditioned: bool):
    """0.5 (x - 1)' A (x - 1) for A with the eigenvalues 1 to `condition`, all problems at once."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(D, D)))[0]
    A = np.stack([rotation * np.geomspace(1, condition, D) @ rotation.T for condition in conditions])

    def evaluate(which: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        g = np.einsum("pij,pj->pi", A[which], at - 1)
        return 0.5 * ((at - 1) * g).sum(axis=1), g

    inverse = np.linalg.inv(A[0])
    start = rng.normal(size=(1, D)).repeat(len(conditions), axis=0)
    precondition = (lambda g: g @ inverse) if is_preconditioned else (lambda g: g)
    return BatchedLBFGS(evaluate, start, np.full(len(conditions), 1e-6), precondition).run(400)


def test_problems_of_one_run_equal_those_alone():
    together = minimised([10.0, 1e3], False)
    alone = minimised([10.0], False)
    assert together.finished.all()
    np.testing.assert_allclose(together.theta, 1, atol=1e-5)
    np.testing.assert_allclose(together.theta[0], alone.theta[0], atol=1e-9)
    assert together.passes[0] == alone.passes[0] < together.passes[1]


def test_the_inverse_hessian_as_preconditioner_takes_newton_steps():
    plain, newton = minimised([1e4], False), minimised([1e4], True)
    np.testing.assert_allclose(newton.theta, 1, atol=1e-5)
    assert newton.passes[0] < 15 < 60 < plain.passes[0]
