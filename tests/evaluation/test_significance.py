from itertools import permutations

import numpy as np
import pytest
from scipy.stats import binom, norm

from probekit.errors import UsageError
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions, measure
from probekit.evaluation.scores.significance import _under, best_set, curve_band, permutation_test, permuted

WORLDS = 150


def curve(seed: int, n: int, accuracies, size=1) -> tuple[list[Predictions], np.ndarray | None]:
    """Layers of these accuracies with noise correlated 0.8 from one to the next; groups of `size` share a class."""
    rng = np.random.default_rng([seed, n])
    group = np.arange(n) // size
    truth, error, layers = rng.integers(2, size=n)[group], rng.normal(size=n), []
    for accuracy in accuracies:
        scores = 2 * norm.ppf(accuracy) * (truth - 0.5) + error
        layers.append(Predictions(truth, (scores > 0).astype(int), scores, 2))
        error = 0.8 * error + 0.6 * rng.normal(size=n)
    return layers, None if size == 1 else group


def values_of(layers: list[Predictions], bootstrap: Bootstrap, metric="accuracy") -> tuple[np.ndarray, np.ndarray]:
    values = np.array([measure(p, [metric])[metric] for p in layers])
    return values, np.stack([bootstrap.resampled(p, metric) for p in layers])


def covers(inside: int, share=0.95) -> bool:
    """Whether this many of `WORLDS` can come of `share`; wrongly not once in 10,000 times."""
    low, high = binom.ppf([5e-5, 1 - 5e-5], WORLDS, share)
    return low <= inside <= high


def test_bands_hold_the_whole_curve_and_intervals_do_not():
    truth, inside = np.linspace(0.55, 0.9, 6), {"band": 0, "intervals": 0}
    for seed in range(WORLDS):
        layers, _ = curve(seed, 200, truth)
        bootstrap = Bootstrap(200, seed, resamples=250)
        _, resampled = values_of(layers, bootstrap)
        bands = {
            "band": curve_band(bootstrap, layers, "accuracy", resampled),
            "intervals": [bootstrap.intervals(p, names=["accuracy"])["accuracy"] for p in layers],
        }
        for name, band in bands.items():
            low, high = np.transpose(band)
            inside[name] += ((low <= truth) & (truth <= high)).all()
    assert covers(inside["band"])
    assert inside["intervals"] / WORLDS < 0.9


@pytest.mark.parametrize(("n", "accuracy", "n_layers"), [(100, 0.99, 13), (200, 0.995, 25)])
def test_bands_hold_curves_that_are_nearly_perfect(n, accuracy, n_layers):
    """Wilson's intervals at the band's level hold all layers some 90% of the time."""
    inside, worlds = 0, 300
    for seed in range(worlds):
        right = np.random.default_rng([seed, n]).random((n_layers, n)) < accuracy
        truth = np.arange(n) % 2
        layers = [Predictions(truth, np.where(one, truth, 1 - truth), np.zeros(n), 2) for one in right]
        bootstrap = Bootstrap(n, seed, resamples=100)
        low, high = curve_band(bootstrap, layers, "accuracy", values_of(layers, bootstrap)[1]).T
        inside += ((low <= accuracy) & (accuracy <= high)).all()
    assert inside >= binom.ppf(1e-4, worlds, 0.98)


@pytest.mark.parametrize("accuracies", [np.full(6, 0.8), np.array([0.6, 0.7, 0.78, 0.8, 0.8, 0.79])])
def test_the_best_set_holds_the_best_layer(accuracies):
    best, sizes = int(accuracies.argmax()), []
    inside = 0
    for seed in range(WORLDS):
        chosen = best_set(*values_of(curve(seed, 200, accuracies)[0], Bootstrap(200, seed, resamples=250)))
        inside += chosen[best]
        sizes.append(chosen.sum())
    assert inside >= binom.ppf(1e-4, WORLDS, 0.95)
    assert np.mean(sizes) > 5 if accuracies.min() == 0.8 else np.mean(sizes) < 5


@pytest.mark.parametrize("n_groups", [5, 20])
def test_the_best_set_holds_each_of_equal_layers_with_few_groups(n_groups):
    """Layers that are drawn apart; without the corrections it holds one 73% of the time with five groups."""
    inside, worlds = 0, 100
    for seed in range(worlds):
        layers, groups = apart(seed, n_groups, 13)
        bootstrap = Bootstrap(100, seed, groups, resamples=250)
        without = np.stack([bootstrap.without_each(p, "accuracy") for p in layers])
        inside += best_set(*values_of(layers, bootstrap), without=without)[0]
    assert inside >= binom.ppf(1e-4, worlds, 0.92)


def test_bands_hold_curves_of_few_groups():
    """With five groups, where a quantile that takes the standard errors for known holds them 85% of the time."""
    inside, worlds = 0, 300
    for seed in range(worlds):
        layers, groups = apart(seed, 5, 13)
        bootstrap = Bootstrap(100, seed, groups, resamples=150)
        low, high = curve_band(bootstrap, layers, "accuracy", values_of(layers, bootstrap)[1]).T
        inside += ((low <= 0.8) & (high >= 0.8)).all()
    assert inside >= binom.ppf(1e-4, worlds, 0.95)


def apart(seed: int, n_groups: int, n_layers: int) -> tuple[list[Predictions], np.ndarray]:
    """100 examples; half of the variance of each layer's noise is its group's."""
    rng = np.random.default_rng([seed, n_groups])
    groups, truth = np.arange(100) * n_groups // 100, np.arange(100) % 2
    noise = rng.normal(size=(n_layers, 100)) + rng.normal(size=(n_layers, n_groups))[:, groups]
    scores = np.where(truth == 1, 1, -1) * (np.sqrt(2) * norm.ppf(0.8) + noise)
    return [Predictions(truth, (each > 0).astype(int), each, 2) for each in scores], groups


def test_nothing_can_be_told_from_one_group():
    layers, _ = curve(0, 60, [0.5, 0.95])
    bootstrap = Bootstrap(60, groups=np.zeros(60))
    without = np.stack([bootstrap.without_each(p, "accuracy") for p in layers])
    assert best_set(*values_of(layers, bootstrap), without=without).all()


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
        observed = measure(p)[metric]
        orders = [truth[list(order)] for order in permutations(range(7))]
        null = np.array([measure(Predictions(t, p.predicted, scores, 2), [metric])[metric] for t in orders[::5]])
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
    assert measure(p)["r2"] > 0.99
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


def test_several_classes_are_permuted_as_one_by_one():
    rng = np.random.default_rng(1)
    truth, scores = rng.integers(4, size=50), rng.normal(size=(50, 4))
    p = Predictions(truth, scores.argmax(axis=1), scores, 4)
    null = [
        measure(Predictions(t, p.predicted, scores, 4), ["auroc"])["auroc"]
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


def test_the_band_of_one_layer_is_its_interval():
    layers, _ = curve(1, 200, [0.8])
    bootstrap = Bootstrap(200, resamples=4000)
    values, resampled = values_of(layers, bootstrap)
    interval = bootstrap.intervals(layers[0])["accuracy"]
    assert curve_band(bootstrap, layers, "accuracy", resampled)[0] == pytest.approx(interval, abs=0.005)
    assert best_set(values, resampled).tolist() == [True]


def test_layers_that_are_all_equal_are_nearly_one_layer():
    layers, _ = curve(2, 200, [0.8])
    bootstrap = Bootstrap(200)
    alone = curve_band(bootstrap, layers, "accuracy", values_of(layers, bootstrap)[1])
    values, resampled = values_of(layers * 5, bootstrap)
    np.testing.assert_allclose(
        curve_band(bootstrap, layers * 5, "accuracy", resampled), np.repeat(alone, 5, axis=0), atol=0.004
    )
    assert best_set(values, resampled).all()


def test_perfect_layers_vary_in_no_resample_and_keep_an_exact_band():
    truth = np.arange(100) % 2
    perfect = Predictions(truth, truth, truth.astype(float), 2)
    layers = [*curve(3, 100, [0.7])[0], perfect, perfect]
    layers[0] = Predictions(truth, layers[0].predicted, layers[0].scores, 2)
    bootstrap = Bootstrap(100)
    values, resampled = values_of(layers, bootstrap)
    assert best_set(values, resampled).tolist() == [False, True, True]
    band = curve_band(bootstrap, layers[1:], "accuracy", resampled[1:])
    assert band[0] == pytest.approx([(0.05 / 2 / 2) ** (1 / 100), 1])  # Bonferroni over two
    assert not best_set(np.array([0.5, 0.6]), np.array([[0.5] * 9, [0.6] * 9]))[0]


def test_a_band_contains_every_interval():
    layers, groups = curve(4, 120, np.linspace(0.5, 0.95, 7), size=6)
    bootstrap = Bootstrap(120, groups=groups)
    for metric in ("accuracy", "auroc"):
        band = curve_band(bootstrap, layers, metric, values_of(layers, bootstrap, metric)[1])
        each = np.array([bootstrap.intervals(p)[metric] for p in layers])
        assert (band[:, 0] <= each[:, 0]).all()
        assert (each[:, 1] <= band[:, 1]).all()


def test_a_tiny_test_set_is_answered():
    layers = [Predictions(np.array([0, 1]), np.array([0, k]), np.array([0.0, k]), 2) for k in (0, 1)]
    bootstrap = Bootstrap(2)
    for metric in ("accuracy", "auroc"):
        values, resampled = values_of(layers, bootstrap, metric)
        assert np.isfinite(curve_band(bootstrap, layers, metric, resampled)).all()
        assert best_set(values, resampled)[1]
        assert permutation_test(layers, metric).p_max > 0.05


def test_a_layer_without_a_value_is_left_out():
    values, resampled = np.array([0.5, np.nan, 0.9]), np.random.default_rng(0).normal(0.7, 0.01, size=(3, 50))
    resampled[1] = np.nan
    assert best_set(values, resampled).tolist() == [False, False, True]
    one_class = [Predictions(np.zeros(5, dtype=int), np.zeros(5, dtype=int), np.arange(5.0), 2)]
    bootstrap = Bootstrap(5)
    assert np.isnan(curve_band(bootstrap, one_class, "auroc", np.full((1, 1000), np.nan))).all()
    nothing = permutation_test(one_class, "auroc", permutations=19)
    assert nothing.p_max == 1
    assert np.isnan(nothing.null_mean).all()


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match=r"expected values \[L\]"):
        best_set(np.zeros(3), np.zeros((4, 9)))
    with pytest.raises(UsageError, match="higher is better"):
        permutation_test(curve(0, 10, [0.5])[0], "brier")


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("metric", ["auroc", "accuracy"])
def test_what_permuted_labels_give_is_the_metric_itself(n_classes, metric):
    """With ties among the scores, and a labelling that lacks a class."""
    rng = np.random.default_rng(5)
    truths = np.stack([*rng.integers(n_classes, size=(6, 40)), rng.integers(n_classes - 1, size=40) + (n_classes == 2)])
    scores = rng.integers(6, size=40 if n_classes == 2 else (40, n_classes)).astype(float)
    predicted = rng.integers(n_classes, size=40)
    said = [Predictions(truth, predicted, scores, n_classes) for truth in truths]
    expected = [measure(one, [metric]).get(metric, np.nan) for one in said]
    np.testing.assert_allclose(_under(said[0], truths, metric), expected, rtol=1e-12)


def test_bands_of_r2_hold_heavy_tailed_curves_and_are_not_much_wider_than_intervals():
    truth, worlds, held, wider = np.linspace(0, 0.8, 6), 60, 0, []
    for seed in range(worlds):
        rng = np.random.default_rng(seed)
        y, error, layers = rng.standard_t(3, 80), rng.standard_t(3, 80), []
        for r2 in truth:  # y and the error have one variance, so this is the R2
            layers.append(Predictions(y, r2 * y + np.sqrt(r2 * (1 - r2)) * error, y, 0))
            error = 0.9 * error + np.sqrt(0.19) * rng.standard_t(3, 80)
        bootstrap = Bootstrap(80, seed, resamples=300)
        band = curve_band(bootstrap, layers, "r2", values_of(layers, bootstrap, "r2")[1])
        each = np.array([bootstrap.intervals(p, names=["r2"])["r2"] for p in layers])
        held += ((band[:, 0] <= truth) & (truth <= band[:, 1] + 1e-9)).all()
        wider.append(np.diff(band)[1:] / np.diff(each)[1:])
    assert held >= 53  # of 60: a coverage of 95% gives fewer in one of 100 suites
    assert 1 < np.median(wider) < 1.7
