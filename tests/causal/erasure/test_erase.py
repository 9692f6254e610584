"""LEACE: no linear probe is above chance, the mean stays, and no affine map with that changes less (the package)."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probekit.activations import ActivationSet, SplitMoments, Statistics, load_statistics
from probekit.activations.layout import Layout
from probekit.causal.erasure.erase import Eraser, fit_eraser, fit_leace, fit_leace_rows, tol_of_few_rows
from probekit.errors import DataError, UsageError
from probekit.interventions import apply_edit
from probekit.points import UnknownPoint
from probekit.probes.ridge import RidgeRegressionProbe
from probekit.selections import ALL, Selection
from probekit.tasks import Task

CASES = {"two classes": (2, 300, 12), "five classes": (5, 400, 16), "fewer rows than columns": (3, 15, 24)}


def drawn(C: int, N: int, D: int, seed: int = 0) -> tuple[Tensor, np.ndarray]:
    """Correlated rows [N, D] away from 0, whose mean depends on the class."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(N) % C
    mix, means = torch.randn(D, D, generator=g).double(), torch.randn(C, D, generator=g).double()
    return torch.randn(N, D, generator=g).double() @ mix + means[y] + 7, y.numpy()


@pytest.fixture(scope="module", params=CASES.values(), ids=list(CASES))
def case(request) -> tuple[Tensor, np.ndarray, Eraser]:
    x, y = drawn(*request.param)
    return x, y, fit_leace_rows(x, y)


def one_hot(y: np.ndarray) -> Tensor:
    return torch.nn.functional.one_hot(torch.from_numpy(y)).double()


def the_package(x: Tensor, z: Tensor, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it scripts a function as it is imported
        from concept_erasure import LeaceFitter

    options = {"shrinkage": False, "svd_tol": 1e-9, "constrain_cov_trace": False, **options}
    return LeaceFitter(x.shape[1], z.shape[1], dtype=torch.float64, **options).update(x, z).eraser


def best_squares(x: Tensor, z: Tensor) -> Tensor:
    """The predictions of the least-squares optimum with an intercept, by LAPACK."""
    with_one = torch.cat([x - x.mean(dim=0), torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    return with_one @ torch.linalg.lstsq(with_one, z, driver="gelsd", rcond=1e-10).solution


def test_the_least_squares_optimum_is_the_mean(case):
    x, y, eraser = case
    z = one_hot(y)
    torch.testing.assert_close(best_squares(eraser(x), z), z.mean(dim=0).expand_as(z), rtol=0, atol=1e-9)
    assert (best_squares(x, z) - z.mean(dim=0)).abs().max() > 0.1
    assert eraser.remaining < 1e-12


def test_it_keeps_the_mean_and_is_idempotent(case):
    x, y, eraser = case
    erased = eraser(x)
    torch.testing.assert_close(erased.mean(dim=0), x.mean(dim=0))
    torch.testing.assert_close(eraser(erased), erased)
    torch.testing.assert_close(eraser.matrix @ eraser.matrix, eraser.matrix)
    assert eraser.rank == y.max()
    assert torch.linalg.matrix_rank(torch.eye(len(eraser.matrix)) - eraser.matrix) == eraser.rank


def test_it_changes_the_rows_as_the_package_does(case):
    """Which is proved to change least; beyond the span of fewer rows than columns, the map is a matter of choice."""
    x, y, eraser = case
    package = the_package(x, one_hot(y))
    torch.testing.assert_close(eraser(x), package(x), rtol=0, atol=1e-9)
    if len(x) > x.shape[1]:
        torch.testing.assert_close(eraser.matrix, package.P, rtol=0, atol=1e-9)
    change = (eraser(x) - x).square().sum(dim=1).mean() / x.var(dim=0, correction=0).sum()
    assert eraser.change == pytest.approx(float(change))


def test_no_other_exact_map_changes_less(case):
    """Projecting out the same number of dimensions orthogonally is exact as well, and costs more."""
    x, y, eraser = case
    A = (x - x.mean(dim=0)).T @ (one_hot(y) - one_hot(y).mean(dim=0))
    U = torch.linalg.svd(A)[0][:, : eraser.rank]
    projected = x - (x - x.mean(dim=0)) @ U @ U.T
    assert (eraser(x) - x).square().sum() < (projected - x).square().sum()


def test_sums_give_what_rows_give(case):
    x, y, eraser = case
    sums = SplitMoments.zero(x[:5].mean(dim=0), {"label": y.max() + 1}).including(x, {"label": y})
    from_sums = fit_leace(sums, "label")
    torch.testing.assert_close(from_sums(x), eraser(x), rtol=0, atol=1e-8)
    assert (from_sums.rank, from_sums.remaining < 1e-9) == (eraser.rank, True)


def test_the_edit_is_the_map(case):
    x, _, eraser = case
    torch.testing.assert_close(apply_edit(eraser.edit, x[None])[0], eraser(x))
    torch.testing.assert_close(x @ eraser.matrix.T + eraser.bias, eraser(x))
    assert eraser(x.float()).dtype == torch.float32


@pytest.mark.parametrize("columns", [1, 2])
def test_numbers_are_erased_too(columns):
    x, _ = drawn(2, 200, 10)
    z = x[:, :columns].numpy() / 3 + np.random.default_rng(0).normal(size=(200, columns))
    eraser = fit_leace_rows(x, z[:, 0] if columns == 1 else z)
    assert eraser.rank == columns
    torch.testing.assert_close(eraser(x), the_package(x, torch.from_numpy(z))(x), rtol=0, atol=1e-9)
    before, after = (RidgeRegressionProbe(C=np.inf).fit(rows, z) for rows in (x, eraser(x)))
    assert before.score(x, z) > 0.1
    assert abs(after.score(eraser(x), z)) < 1e-9


def weak_concept() -> tuple[Tensor, np.ndarray]:
    """Eight columns of noise, one of which knows the class with a correlation of 0.01."""
    g = torch.Generator().manual_seed(1)
    y = torch.arange(2000) % 2
    x = torch.randn(2000, 8, generator=g).double()
    design = torch.stack([torch.ones(2000), y]).T.double()
    x -= design @ torch.linalg.lstsq(design, x).solution  # now nothing at all is known
    x[:, 0] += 0.02 * x[:, 0].std() * y
    return x, y.numpy()


def test_a_weak_concept_is_erased_which_the_package_leaves_in():
    x, y = weak_concept()
    z = one_hot(y)
    left_in = the_package(x, z, svd_tol=0.01)(x)  # its default
    assert torch.equal(left_in, x)
    eraser = fit_leace_rows(x, y)
    assert (eraser.rank, eraser.remaining < 1e-12) == (1, True)
    assert (best_squares(left_in, z) - 0.5).abs().max() > 1e-3
    assert (best_squares(eraser(x), z) - 0.5).abs().max() < 1e-9


def test_nothing_is_changed_where_nothing_is_known():
    x, y = weak_concept()
    x[:, 0] -= x[y == 1, 0].mean() * torch.from_numpy(y)
    x -= torch.stack([x[y == c].mean(dim=0) for c in (0, 1)])[y]
    eraser = fit_leace_rows(x, y)
    assert (eraser.rank, eraser.change) == (0, 0)
    assert torch.equal(eraser(x), x)


def test_scales_constants_and_copies_of_columns_do_not_matter():
    """A column a billion times as large, and one as small, which alone hold the class; constant columns stay."""
    x, y = drawn(3, 300, 6)
    x[:, 0] *= 1e9
    x[:, 1] *= 1e-9
    hostile = torch.cat([x, x[:, :2], torch.full((300, 1), 3e3), torch.zeros(300, 1)], dim=1)
    eraser = fit_leace_rows(hostile, y)
    erased = eraser(hostile)
    z = one_hot(y)
    scaled = (erased - erased.mean(dim=0)) / hostile.std(dim=0).clamp(min=1e-300)
    assert eraser.rank == 2
    assert (best_squares(scaled, z) - z.mean(dim=0)).abs().max() < 1e-6
    torch.testing.assert_close(erased[:, -2:], hostile[:, -2:], rtol=0, atol=0)
    torch.testing.assert_close(erased[:, 6:8], erased[:, :2], rtol=1e-9, atol=0)


def test_a_cut_off_keeps_the_erasure_exact_and_costs_more():
    x, y = drawn(4, 60, 50)
    full, cut = fit_leace_rows(x, y), fit_leace_rows(x, y, tol=0.05)
    z = one_hot(y)
    assert cut.remaining < 1e-12
    torch.testing.assert_close(best_squares(cut(x), z), z.mean(dim=0).expand_as(z), rtol=0, atol=1e-9)
    torch.testing.assert_close(cut(cut(x)), cut(x))
    assert cut.change > full.change


@pytest.mark.parametrize("seed", range(3))
def test_a_cut_off_spares_other_rows_where_rows_are_as_few_as_columns(seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(1040) % 2
    mix = torch.randn(40, 40, generator=g).double() * torch.logspace(0, -2, 40)
    x = torch.randn(1040, 40, generator=g).double() @ mix + 3 * mix[0] * y[:, None]
    fitted, others = slice(0, 40), slice(40, None)
    full, cut = (fit_leace_rows(x[fitted], y[fitted], tol=tol) for tol in (0.0, 0.01))
    change = [(eraser(x[others]) - x[others]).square().mean() for eraser in (full, cut)]
    assert change[1] < 0.7 * change[0]
    assert max(full.remaining, cut.remaining) < 1e-12


def test_a_cut_off_is_for_fewer_rows_than_twice_the_columns():
    x, y = drawn(2, 24, 12)
    for rows, tol in ((24, 0.0), (23, 0.01)):
        sums = SplitMoments.zero(x[0], {"label": 2}).including(x[:rows], {"label": y[:rows]})
        assert tol_of_few_rows(sums) == tol
        assert fit_leace(sums, "label", tol_of_few_rows(sums)).remaining < 1e-9


def task_of(y: np.ndarray, **fields: Any) -> Task:
    splits = np.resize(["train", "train", "validation", "test", "train"], len(y))
    return Task("t", [f"text {i}" for i in range(len(y))], {"class": y}, splits=splits, **fields)


@pytest.fixture(scope="module")
def acts() -> ActivationSet:
    x, y = drawn(3, 100, 8)
    return ActivationSet({("resid_pre", 2): x.float()}, task_of(y))


def test_an_eraser_of_activations_is_fitted_on_the_rows_of_one_split(acts, tmp_path):
    x, y, train = acts["resid_pre", 2], acts.labels["class"], acts.splits == "train"
    eraser = fit_eraser(acts, "resid_pre.2")
    torch.testing.assert_close(eraser.matrix, fit_leace_rows(x[train], y[train]).matrix)
    sums = SplitMoments.zero(x[0].double(), {"class": 3}).including(x[train], {"class": y[train]})
    statistics = Statistics({(("resid_pre", 2), "train"): sums}, {"class": ["a", "b", "c"]}, {})
    torch.testing.assert_close(fit_eraser(statistics, ("resid_pre", 2)).matrix, eraser.matrix)
    statistics.save(tmp_path / "sums")  # places that are plain tuples are saved like others
    torch.testing.assert_close(fit_eraser(load_statistics(tmp_path / "sums"), "resid_pre.2").matrix, eraser.matrix)
    test = acts.splits == "test"
    on_test = fit_eraser(acts, "resid_pre.2", split="test")
    torch.testing.assert_close(on_test.matrix, fit_leace_rows(x[test], y[test]).matrix)


@pytest.mark.parametrize("tol", [-0.1, 1, True, "0", float("nan")])
def test_a_cut_off_out_of_range_is_refused(acts, tol):
    with pytest.raises(UsageError, match="tol is a share"):
        fit_eraser(acts, "resid_pre.2", tol=tol)


def test_bad_input_is_refused(acts):
    x, y = drawn(2, 20, 4)
    for bad, expected in [(x[:, 0], "rows \\[N, D\\]"), (x[:5], "and 20"), (x[:0], "and 20")]:
        with pytest.raises(UsageError, match=expected):
            fit_leace_rows(bad, y)
    for labels in (np.zeros(20, dtype=int), np.full(20, 0.1)):
        with pytest.raises(DataError, match="the same in every row"):
            fit_leace_rows(x, labels)
    with pytest.raises(DataError, match="label holds NaN"):
        fit_leace_rows(x, np.where(y, np.nan, 1.0))
    with pytest.raises(DataError, match="NaN or infinity in the activations"):
        fit_leace_rows(x.log() * float("nan"), y)
    with pytest.raises(UsageError, match="no label set 'klass'; did you mean class"):
        fit_eraser(acts, "resid_pre.2", "klass")
    with pytest.raises(UnknownPoint, match=r"resid_pre\.3"):
        fit_eraser(acts, "resid_pre.3")
    with pytest.raises(DataError, match="no rows of 'dev'"):
        fit_eraser(acts, "resid_pre.2", split="dev")


def test_several_tokens_of_a_text_are_refused_until_one_is_chosen():
    x, y = drawn(2, 40, 4)
    task = task_of(y[:20])
    several = ActivationSet(
        {("embed", None): x}, task, layout=Layout([Selection("first"), Selection("last")], np.full(20, 3), 0)
    )
    ragged = ActivationSet({("embed", None): x}, task, layout=Layout([ALL], np.full(20, 2), 0))
    for acts in (several, ragged):
        with pytest.raises(UsageError, match=r"embed has several tokens of each text; choose one with acts\.at"):
            fit_eraser(acts, "embed")
        last, train = x[1::2], task.splits == "train"
        expected = fit_leace_rows(last[train], y[:20][train])
        torch.testing.assert_close(fit_eraser(acts.at("last"), "embed").matrix, expected.matrix)
    each = np.repeat(train, 2)
    expected = fit_leace_rows(x[each], np.repeat(y[:20], 2)[each])
    torch.testing.assert_close(fit_eraser(ragged.at("all"), "embed").matrix, expected.matrix)


def test_sums_of_one_class_and_of_unnamed_label_sets_are_refused():
    sums = SplitMoments.zero(torch.zeros(2).double(), {"a": 2, "b": 2})
    sums = sums.including(torch.eye(2), {"a": np.array([1, 1]), "b": np.array([0, 1])})
    with pytest.raises(DataError, match="rows of two classes or more, got 1"):
        fit_leace(sums, "a")
    assert fit_leace(sums, "b").rank == 1
    with pytest.raises(UsageError, match="name one, label=: a, b"):
        fit_eraser(Statistics({(("embed", None), "train"): sums}, {"a": ["0", "1"], "b": ["0", "1"]}, {}), "embed")
