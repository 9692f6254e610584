from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import binom, chisquare
from simulated_curves import WORLDS, covers, curve

from probekit.evaluation.scores import permutation
from probekit.evaluation.scores import permuted as permuted_metrics
from probekit.evaluation.scores.metrics import HEADLINES, Predictions, metrics_of
from probekit.evaluation.scores.permutation import permutation_test, permuter
from probekit.evaluation.scores.permuted import under_permutation


def permuted(truth: np.ndarray, rng: np.random.Generator, groups: np.ndarray | None, permutations: int) -> np.ndarray:
    return permuter(truth, groups)(rng, permutations)


@pytest.mark.parametrize(("size", "metric"), [(1, "accuracy"), (1, "auroc"), (4, "accuracy")])
def test_p_values_are_uniform_under_the_null(size, metric):
    """5% of them are 5% or less, of each layer and of the best of them."""
    single, best = 0, 0
    for seed in range(WORLDS):
        layers, groups = curve(seed, 60, np.full(4, 0.5), size)
        test = permutation_test(layers, metric, seed, groups, permutations=99)
        single += test.p_values[0] <= 0.05
        best += test.p_max <= 0.05
    most = binom.ppf(1 - 1e-4, WORLDS, 0.05)
    assert single <= most
    assert best <= most
    if metric == "auroc":  # accuracy has ties, which make its p-values larger
        assert covers(single, 0.05)
        assert covers(best, 0.05)


def test_the_p_value_is_that_of_all_permutations():
    """Seven examples have 5,040 orders, which can be counted."""
    truth = np.array([0, 0, 0, 1, 1, 1, 1])
    scores = np.array([0.1, 0.7, 0.2, 0.6, 0.5, 0.9, 0.8])
    p = Predictions(truth, (scores > 0.55).astype(int), scores, 2)
    for metric in ("accuracy", "auroc", "balanced_accuracy"):
        observed = metrics_of(p)[metric]
        orders = [truth[list(order)] for order in permutations(range(7))]
        null = np.array([metrics_of(Predictions(t, p.predicted, scores, 2), [metric])[metric] for t in orders[::5]])
        test = permutation_test([p], metric, permutations=4000)
        assert test.p_values[0] == pytest.approx((null >= observed - 1e-9).mean(), abs=0.05)
        assert test.null_mean[0] == pytest.approx(null.mean(), abs=0.02)
        assert test.p_max == test.p_values[0]


def test_what_is_known_is_found_and_the_best_of_many_is_paid_for():
    layers, _ = curve(0, 300, [0.5] * 12 + [0.7])
    test = permutation_test(layers, "accuracy", permutations=200)
    assert test.p_values[-1] == test.p_max == 1 / 201
    assert (test.null_mean > 0.45).all()
    assert test.null_high > 0.53
    nothing = permutation_test(layers[:12], "accuracy", permutations=200)
    assert nothing.p_max >= nothing.p_values.min()


@pytest.mark.parametrize("metric", ["r2", "spearman"])
def test_regressions_are_permuted_too(metric):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=80)
    said = [truth + rng.normal(size=80), rng.normal(size=80)]
    test = permutation_test([Predictions(truth, each, each, 0) for each in said], metric, permutations=199)
    assert test.p_values[0] == test.p_max == 1 / 200
    assert test.p_values[1] > 0.01


def regressed(seed: int, jitter: float, known: float) -> tuple[Predictions, np.ndarray]:
    """12 groups of unequal sizes whose values vary by `jitter` within; predictions vary by group too."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(12), rng.integers(3, 8, size=12))
    value, noise = rng.normal(size=12), rng.normal(size=12)
    truth = value[groups] + jitter * rng.normal(size=len(groups))
    said = known * truth + (1 - known) * noise[groups] + 0.05 * rng.normal(size=len(groups))
    return Predictions(truth, said, said, 0), groups


@pytest.mark.parametrize("jitter", [0, 1e-6, 0.05, 0.3])
@pytest.mark.parametrize("metric", ["r2", "spearman"])
def test_what_is_known_of_groups_is_found_whatever_varies_within(jitter, metric):
    p, groups = regressed(0, jitter, 1)
    assert metrics_of(p)["r2"] > 0.99
    test = permutation_test([p], metric, groups=groups, permutations=199)
    assert test.p_max == 1 / 200
    assert test.null_mean[0] < 0.2


@pytest.mark.parametrize("jitter", [0, 0.3, 3])
def test_p_values_of_a_grouped_regression_are_uniform_under_the_null(jitter):
    few = 0
    for seed in range(WORLDS):
        p, groups = regressed(seed, jitter, 0)
        few += permutation_test([p], "spearman", seed, groups, permutations=39).p_values[0] <= 0.05
    assert few <= binom.ppf(1 - 1e-4, WORLDS, 0.05)


def test_values_that_vary_within_groups_alone_are_permuted_there():
    groups, truth = np.repeat(np.arange(5), 4), np.random.default_rng(0).normal(size=20)
    truth -= np.repeat(truth.reshape(5, 4).mean(axis=1), 4)
    drawn = permuted(truth, np.random.default_rng(0), groups, 50).reshape(50, 5, 4)
    np.testing.assert_array_equal(np.sort(drawn), np.broadcast_to(np.sort(truth.reshape(5, 4)), drawn.shape))


@pytest.mark.parametrize("jitter", [0, 0.3, 3])
def test_several_equal_outputs_are_permuted_as_one_whatever_their_units(jitter):
    p, groups = regressed(0, jitter, 1)
    groups = np.where(groups < 3, groups, groups + np.arange(len(groups)) % 2)  # some smaller groups
    one = permuted(p.truth, np.random.default_rng(0), groups, 30)
    units = np.array([1.0, -1e6])
    several = permuted(p.truth[:, None] * units, np.random.default_rng(0), groups, 30)
    np.testing.assert_allclose(several, one[:, :, None] * units, rtol=1e-9, atol=1e-9)


def test_the_units_of_an_output_do_not_decide_what_is_permuted():
    """Two outputs vary between groups alone and one within; in small units the last must not decide, nor in large."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(6), 4)
    between, within = rng.normal(size=(6, 2))[groups], rng.normal(size=(24, 1))
    within -= np.repeat(within.reshape(6, 4).mean(axis=1), 4)[:, None]
    drawn = [
        permuted(np.concatenate([between, unit * within], axis=1), np.random.default_rng(0), groups, 20)
        for unit in (1e-6, 1.0, 1e6)
    ]
    for one in drawn:
        np.testing.assert_allclose(one[:, :, :2], drawn[0][:, :, :2], atol=1e-9)
        assert np.ptp(one[:, groups == 0, :2], axis=0).max() > 0.1


def test_several_classes_are_permuted_as_one_by_one():
    rng = np.random.default_rng(1)
    truth, scores = rng.integers(4, size=50), rng.normal(size=(50, 4))
    p = Predictions(truth, scores.argmax(axis=1), scores, 4)
    null = [
        metrics_of(Predictions(t, p.predicted, scores, 4), ["auroc"])["auroc"]
        for t in permuted(truth, np.random.default_rng(0), None, 40)
    ]
    test = permutation_test([p], "auroc", seed=0, permutations=40)
    assert test.null_mean[0] == pytest.approx(np.mean(null))
    assert test.null_high == pytest.approx(np.quantile(null, 0.95, method="higher"))


def test_labels_are_permuted_within_groups_that_differ_and_among_those_that_do_not():
    groups = np.array(["a", "b", "a", "b", "c", "d", "d", "e", "c"])
    truth = np.array([0, 1, 1, 1, 0, 0, 0, 1, 0])  # a differs; b, c, d, e do not
    drawn = permuted(truth, np.random.default_rng(0), groups, 500)
    assert (drawn[:, groups == "a"].sum(axis=1) == 1).all()
    assert drawn[:, 0].mean() == pytest.approx(0.5, abs=0.1)
    for group in "bcd":
        assert np.ptp(drawn[:, groups == group], axis=1).max() == 0
    first = np.array([np.flatnonzero(groups == group)[0] for group in "bcde"])
    assert (np.sort(drawn[:, first], axis=1) == [0, 0, 1, 1]).all()
    assert drawn[:, first].mean(axis=0) == pytest.approx([0.5] * 4, abs=0.12)
    np.testing.assert_array_equal(drawn, permuted(truth, np.random.default_rng(0), groups, 500))


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("metric", HEADLINES[:5])
def test_what_permuted_labels_give_is_the_metric_itself(n_classes, metric):
    """With ties among the scores, and a labelling that lacks a class."""
    rng = np.random.default_rng(5)
    truths = np.stack([*rng.integers(n_classes, size=(6, 40)), rng.integers(n_classes - 1, size=40) + (n_classes == 2)])
    scores = rng.integers(6, size=40 if n_classes == 2 else (40, n_classes)).astype(float)
    predicted = rng.integers(n_classes, size=40)
    said = [Predictions(truth, predicted, scores, n_classes) for truth in truths]
    expected = [metrics_of(one, [metric]).get(metric, np.nan) for one in said]
    other = replace(said[0], predicted=1 - predicted % 2, scores=-scores)
    values = under_permutation([said[0], other], metric)(truths)
    np.testing.assert_allclose(values[0], expected, rtol=1e-12)
    np.testing.assert_allclose(values[1:], under_permutation([other], metric)(truths), rtol=1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("metric", ["r2", "spearman"])
def test_what_permuted_numbers_give_is_the_metric_itself(outputs, metric):
    """With ties, a constant prediction, and targets far from 0."""
    rng = np.random.default_rng(5)
    shape = (40,) if outputs == 1 else (40, outputs)
    truths, predicted = 1e3 + rng.integers(9, size=(6, *shape)), 1e3 + rng.integers(9, size=shape).astype(float)
    for said in (predicted, np.full(shape, 1e3)):
        expected = [metrics_of(Predictions(truth, said, said, 0), [metric])[metric] for truth in truths]
        values = under_permutation([Predictions(truths[0], said, said, 0)], metric)(truths)[0]
        np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12)


class Counting:
    """A generator that counts its calls."""

    def __init__(self):
        self.rng, self.calls = np.random.default_rng(0), 0

    def permuted(self, values: np.ndarray, axis: int) -> np.ndarray:
        self.calls += 1
        return self.rng.permuted(values, axis=axis)


@pytest.mark.parametrize("truth", ["classes", "numbers"])
def test_ten_times_the_groups_take_no_more_calls(truth):
    def calls(n_groups: int) -> int:
        rng = np.random.default_rng(0)
        groups = np.repeat(np.arange(n_groups), 2 + np.arange(n_groups) % 3)
        values = rng.integers(2, size=len(groups)) if truth == "classes" else rng.normal(size=len(groups))
        counting = Counting()
        permuter(values, groups)(counting, 3)  # pyright: ignore[reportArgumentType]
        return counting.calls

    assert calls(400) == calls(40) <= 4  # one for each size of groups that differ, one for the others


def test_groups_and_scores_are_looked_at_once(monkeypatch):
    made, ranked = [], []
    monkeypatch.setattr(permutation, "_CHUNK", 100)  # one permutation in each chunk
    monkeypatch.setattr(permutation, "permuter", lambda *a: made.append(1) or permuter(*a))
    rank = permuted_metrics._ranks
    monkeypatch.setattr(permuted_metrics, "_ranks", lambda *a: ranked.append(1) or rank(*a))
    layers, groups = curve(0, 60, np.full(3, 0.5), 4)
    permutation_test(layers, "auroc", groups=groups, permutations=20)
    assert (len(made), len(ranked)) == (1, 3)


def test_every_order_within_groups_is_as_likely():
    """Groups of two sizes, their members not side by side: 2 x 2 x 6 orders of three classes."""
    groups = np.array([0, 1, 2, 2, 1, 0, 2])
    truth = np.array([0, 1, 0, 1, 0, 1, 2])
    drawn = permuted(truth, np.random.default_rng(0), groups, 24_000)
    orders, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(orders) == 24
    assert chisquare(counts).pvalue > 1e-4


def test_an_association_is_not_an_r2_above_zero():
    """Predictions of the wrong size: their order is related to the labels, and the mean predicts better."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=200)
    said = 3 * (truth + 2 * rng.normal(size=200))
    p = Predictions(truth, said, said, 0)
    assert metrics_of(p)["r2"] < -5
    assert permutation_test([p], "r2").p_max < 0.01
