import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from probekit.causal.curve.statistics import ratio_interval
from probekit.evaluation.compare.layers import compare_layers
from probekit.evaluation.compare.lead import paired_difference
from probekit.evaluation.scores import metrics, regression
from probekit.evaluation.scores.bootstrap import FEW_GROUPS, LEAST_GROUPS, Bootstrap, groups_note
from probekit.evaluation.scores.metrics import Predictions, metrics_of, weighted_metrics
from probekit.evaluation.scores.score import for_metric, score_intervals

WORLDS = 150
FALSE_ALARM = 1e-4
RANKED = ("auroc", "average_precision", "balanced_accuracy")  # metrics of which each class has its own part


def answers(n: int, n_right: int) -> Predictions:
    truth = np.arange(n) % 2
    predicted = np.where(np.arange(n) < n_right, truth, 1 - truth)
    return Predictions(truth, predicted, predicted.astype(float), 2)


def shift_world(seed: int, n: int, shift: float, size=1) -> tuple[Predictions, np.ndarray | None]:
    """Two normal classes `shift` apart; groups of `size` have one class and share half of the variance."""
    rng = np.random.default_rng([seed, n])
    group = np.arange(n) // size
    truth = rng.integers(2, size=n)[group]
    noise = np.sqrt(0.5) * (rng.normal(size=n)[group] + rng.normal(size=n)) if size > 1 else rng.normal(size=n)
    scores = shift * (truth - 0.5) + noise
    return Predictions(truth, (scores > 0).astype(int), scores, 2), None if size == 1 else group


def assert_covered(inside: int, share=0.95) -> None:
    """As many as a coverage of `share` gives; wrong once in 10,000 times."""
    low, high = binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], WORLDS, share)
    assert low <= inside <= high


@pytest.mark.parametrize(("n", "n_right"), [(100, 50), (100, 97), (300, 4), (872, 700)])
def test_the_interval_of_accuracy_is_wilsons(n, n_right):
    wilson = binomtest(n_right, n).proportion_ci(method="wilson")
    assert Bootstrap(n).intervals(answers(n, n_right))["accuracy"] == pytest.approx((wilson.low, wilson.high))


@pytest.mark.parametrize("n", [100, 250, 1000])
def test_the_exact_coverage_of_accuracy_is_93_to_97_percent(n):
    """The sum over all numbers of right answers, so without Monte Carlo error."""
    bootstrap = Bootstrap(n, resamples=2)
    low, high = np.array([bootstrap.intervals(answers(n, k), names=["accuracy"])["accuracy"] for k in range(n + 1)]).T
    for chance in (0.5, 0.8, 0.95):
        assert 0.93 <= binom.pmf(np.arange(n + 1), n, chance)[(low <= chance) & (chance <= high)].sum() <= 0.97


@pytest.mark.parametrize("size", [1, 5])
def test_a_perfect_score_is_not_perfectly_sure(size):
    """k = n right answers: the exact lower bound L solves L^n = 2.5% (Clopper and Pearson 1934), n counting groups.

    All of the m pairs of one positive and one negative example are in order with probability AUROC^m, so it is the
    same with m, the number of units of the rarer class.
    """
    n = 200
    groups = None if size == 1 else np.arange(n) // size
    truth = (np.arange(n) // size % 2 == 0).astype(int)
    right = Predictions(truth, truth, truth.astype(float), 2)
    intervals = Bootstrap(n, groups=groups).intervals(right)
    low, high = intervals["accuracy"]
    assert high == 1
    assert low ** (n / size) == pytest.approx(0.025)
    assert intervals["auroc"] == pytest.approx((0.025 ** (2 * size / n), 1))
    wrong = Bootstrap(n, groups=groups).intervals(Predictions(truth, 1 - truth, 1.0 - truth, 2))
    assert wrong["accuracy"] == pytest.approx((0, 1 - low))
    assert wrong["auroc"] == pytest.approx((0, 1 - 0.025 ** (2 * size / n)))


@pytest.mark.parametrize(("n", "size", "accuracy"), [(100, 5, 0.8), (300, 5, 0.95), (300, 3, 0.5)])
def test_intervals_of_accuracy_cover_the_truth_with_groups(n, size, accuracy):
    inside = 0
    for seed in range(WORLDS):
        p, groups = shift_world(seed, n, float(2 * norm.ppf(accuracy)), size)
        low, high = Bootstrap(n, seed, groups, resamples=200).intervals(p, names=["accuracy"])["accuracy"]
        inside += low <= accuracy <= high
    assert_covered(inside)


@pytest.mark.parametrize(("n", "size", "auroc"), [(100, 1, 0.5), (100, 1, 0.95), (200, 1, 0.8), (200, 5, 0.95)])
def test_intervals_of_auroc_cover_the_truth(n, size, auroc):
    inside = 0
    for seed in range(WORLDS):
        p, groups = shift_world(seed, n, float(np.sqrt(2) * norm.ppf(auroc)), size)
        low, high = Bootstrap(n, seed, groups, resamples=200).intervals(p, names=["auroc"])["auroc"]
        inside += low <= auroc <= high
    assert_covered(inside)


def few(
    seed: int, n: int, positives: int | None, n_groups: int | None, auroc: float
) -> tuple[list[Predictions], Bootstrap]:
    """Two probes of one true AUROC, of few positives, or of few groups of one class each."""
    rng = np.random.default_rng([seed, n])
    group = np.arange(n) if n_groups is None else np.arange(n) * n_groups // n
    labels = rng.permutation(np.arange(group[-1] + 1) < (positives or (group[-1] + 1) // 2)).astype(int)[group]

    def noise() -> np.ndarray:
        own = rng.normal(size=n)
        return own if n_groups is None else np.sqrt(0.5) * (own + rng.normal(size=n_groups)[group])

    shared, probes = noise(), []
    for _ in range(2):
        scores = 2 * norm.ppf(auroc) * (labels - 0.5) + shared + noise()
        probes.append(Predictions(labels, (scores > 0).astype(int), scores, 2))
    return probes, Bootstrap(n, seed, None if n_groups is None else group, resamples=300)


@pytest.mark.parametrize(
    ("n", "positives", "n_groups"), [(50, 3, None), (200, 5, None), (200, 10, None), (200, None, 6), (200, None, 10)]
)
@pytest.mark.parametrize("auroc", [0.7, 0.9])
def test_intervals_of_auroc_and_of_its_difference_cover_the_truth_with_few_of_a_class(n, positives, n_groups, auroc):
    """At least as often as is said: with a handful of units they are wider than they need to be."""
    inside, ahead = 0, 0
    for seed in range(WORLDS):
        probes, draws = few(seed, n, positives, n_groups, auroc)
        low, high = draws.intervals(probes[0], names=["auroc"])["auroc"]
        inside += low <= auroc <= high
        ends = paired_difference(probes[0], probes[1], "auroc", draws)[1]
        assert ends is not None
        ahead += ends[0] <= 0 <= ends[1]
        assert -1 <= ends[0] <= ends[1] <= 1
    least = binom.ppf(FALSE_ALARM, WORLDS, 0.95)
    assert min(inside, ahead) >= least


def test_one_row_fewer_of_100_contrast_pairs_hardly_moves_an_interval():
    """The pair that is left with one row is the only group of one class, and still no class of one unit."""
    rng, pair = np.random.default_rng(3), np.arange(200) // 2
    labels, noise = np.arange(200) % 2, rng.normal(size=100)[pair]
    probes = [Predictions(labels, labels, gap * labels + noise + rng.normal(size=200), 2) for gap in (1.8, 1.2)]

    def ends(keep: np.ndarray) -> np.ndarray:
        one, other = (Predictions(p.truth[keep], (p.scores[keep] > 0.9).astype(int), p.scores[keep], 2) for p in probes)
        draws = Bootstrap(len(keep), 0, pair[keep])
        own = draws.intervals(one, names=RANKED)
        leads = [paired_difference(one, other, metric, draws)[1] for metric in RANKED]
        return np.array([*(own[metric] for metric in RANKED), *leads])

    whole = ends(np.arange(200))
    width = np.diff(whole, axis=1)
    for dropped in (0, 1, 77):
        assert (np.abs(ends(np.delete(np.arange(200), dropped)) - whole) < 0.15 * width).all()


@pytest.mark.parametrize("size", [2, 10])
def test_groups_of_mixed_labels_that_leave_some_pure_still_say_something(size):
    """Groups of random labels, some of one class by chance: intervals are those of `40 * size` rows in 40 groups."""
    group = np.arange(40 * size) // size
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = rng.integers(2, size=len(group))
        scores = 1.5 * labels + rng.normal(size=len(group))
        one = Predictions(labels, (scores > 0.75).astype(int), scores, 2)
        found = Bootstrap(len(group), seed, group, resamples=100).intervals(one, names=RANKED)
        assert max(high - low for low, high in found.values()) < 0.5


@pytest.mark.parametrize(("sizes", "size"), [((5, 195), 1), ((10, 190), 1), ((4, 90, 90), 1), ((4, 12), 10)])
def test_balanced_accuracy_and_its_difference_cover_the_truth_with_few_of_a_class(sizes, size):
    """The rare class is right in 90% of its units and the others in 84%: often in all of it, which says it varies not.

    Two probes are wrong in a tenth of these units each, and both in the others.
    """
    inside, ahead, C = 0, 0, len(sizes)
    labels = np.repeat(np.arange(C), sizes)
    for seed in range(WORLDS):
        rng = np.random.default_rng([seed, *sizes])
        wrong = rng.random(len(labels)) < np.where(labels == 0, 0.1, 0.16)
        own = rng.random((2, len(labels))) < 0.1
        probes = []
        for mistaken in (wrong, wrong | own[0], wrong | own[1]):
            predicted = np.where(mistaken, (labels + 1) % C, labels).repeat(size)
            probes.append(Predictions(labels.repeat(size), predicted, np.eye(C)[predicted], C))
        draws = Bootstrap(len(labels) * size, seed, np.arange(len(labels)).repeat(size), resamples=200)
        low, high = draws.intervals(probes[0], names=["balanced_accuracy"])["balanced_accuracy"]
        inside += low <= (0.9 + (C - 1) * 0.84) / C <= high
        ends = paired_difference(probes[1], probes[2], "balanced_accuracy", draws)[1]
        assert ends is not None
        ahead += ends[0] <= 0 <= ends[1]
    assert min(inside, ahead) >= binom.ppf(FALSE_ALARM, WORLDS, 0.95)


@pytest.mark.parametrize("positives", [4, 12, 30])
def test_the_error_of_an_auroc_is_delongs_and_its_freedom_welchs(positives):
    """DeLong et al. (1988): the variances of the placements of each class over its size; Welch (1947) for their sum.

    With few positives it is larger, by no more than m / (m - 1).
    """
    n, rng = 300, np.random.default_rng(positives)
    labels = (np.arange(n) < positives).astype(int)
    scores = 1.2 * labels + rng.normal(size=n)
    wins = scores[labels == 1][:, None] > scores[labels == 0]
    parts = [np.var(wins.mean(axis=axis), ddof=1) / wins.shape[1 - axis] for axis in (1, 0)]
    error, freedom = Bootstrap(n, resamples=4000).error_of("auroc", Predictions(labels, labels, scores, 2))
    least = np.sqrt(sum(parts))
    assert 0.95 * least <= error <= 1.05 * least * positives / (positives - 1)
    welch = sum(parts) ** 2 / (parts[0] ** 2 / (positives - 1) + parts[1] ** 2 / (n - positives - 1))
    assert freedom == pytest.approx(welch, rel=0.25)


@pytest.mark.parametrize(("units", "grouped"), [(1, False), (2, False), (3, False), (2, True), (3, True)])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_class_of_one_or_two_units_says_nothing_of_a_metric_of_each_class(units, grouped, n_classes):
    """In groups of five rows, it is in as many groups, beside others; and a perfect score is no exception."""
    rng, n = np.random.default_rng(0), 200
    row = np.arange(n)
    labels = row % (n_classes - 1)
    labels[[40, 80, 120][:units]] = n_classes - 1
    if grouped:
        labels[[41, 81, 121][:units]] = n_classes - 1
    for noise in (1.0, 0.0):
        scores = np.eye(n_classes)[labels] + noise * rng.normal(size=(n, n_classes))
        one, other = (
            Predictions(labels, s.argmax(axis=1), s if n_classes > 2 else s[:, 1] - s[:, 0], n_classes)
            for s in (scores, scores[:, ::-1])
        )
        draws = Bootstrap(n, 0, row // 5 if grouped else None, resamples=100)
        found = draws.intervals(one)
        assert "accuracy" in found
        known = set(metrics_of(one, RANKED))
        assert known >= {"auroc", "balanced_accuracy"}
        assert known & set(found) == (known if units > 2 else set())
        for metric in known:
            assert (paired_difference(one, other, metric, draws)[1] is None) == (units < 3)


@pytest.mark.parametrize("other", [1, 0])
def test_perfect_and_failing_probes_differ_by_no_less_than_their_intervals(other):
    """From the exact limit L of a perfect one, of Clopper and Pearson, and its mirror image, combined by squares.

    And by nothing at all if they are the same, whatever the units of their scores.
    """
    labels, noise = np.arange(40) % 2, np.random.default_rng(0).random(40) / 2
    one = Predictions(labels, labels, labels + noise, 2)
    said = labels if other else 1 - labels
    ahead, ends = paired_difference(one, Predictions(labels, said, said - noise, 2), "auroc", Bootstrap(40))
    gap = 1 - 0.025 ** (1 / 20)
    assert ahead == 1 - other
    assert ends == pytest.approx([-gap, gap] if other else [1 - np.sqrt(2) * gap, 1])
    for same in (replace(one), replace(one, scores=3 * one.scores)):
        assert paired_difference(one, same, "auroc", Bootstrap(40))[1] == [0, 0]


@pytest.mark.parametrize(("n", "ahead"), [(50, 0.02), (200, 0.005), (200, 0.05)])
def test_the_lead_in_accuracy_covers_the_truth_where_few_rows_differ(n, ahead):
    """The sum over all numbers of rows that the first alone gets right, so without Monte Carlo error."""
    covered = 0.0
    for won in range(n + 1):
        if (chance := binom.pmf(won, n, ahead)) > 1e-12:
            pair = answers(n, n // 2 + won), answers(n, n // 2)
            found, ends = paired_difference(*pair, "accuracy", Bootstrap(n, resamples=2))
            assert found == pytest.approx(won / n)
            assert ends is not None
            covered += chance * (ends[0] <= ahead <= ends[1])
        if won == n // 2:
            break
    assert covered >= 0.93


def test_intervals_of_a_regression_cover_the_truth():
    """Bivariate normal of correlation r: R2 is r^2, Spearman's 6/pi asin(r/2), the error the mean of a half normal."""
    r = 0.8
    truth = {"r2": r**2, "spearman": 6 / np.pi * np.arcsin(r / 2), "mae": np.sqrt((1 - r**2) * 2 / np.pi)}
    inside = dict.fromkeys(truth, 0)
    for seed in range(WORLDS):
        rng = np.random.default_rng(seed)
        said = r * rng.normal(size=150)
        p = Predictions(said + np.sqrt(1 - r**2) * rng.normal(size=150), said, said, 0)
        for name, (low, high) in Bootstrap(150, seed, resamples=200).intervals(p).items():
            inside[name] += low <= truth[name] <= high
    for name in truth:
        assert_covered(inside[name])


def test_not_knowing_about_groups_is_paid_for():
    inside = 0
    for seed in range(WORLDS):
        p, _ = shift_world(seed, 200, 0.0, size=10)
        low, high = Bootstrap(200, seed, resamples=2).intervals(p, names=["accuracy"])["accuracy"]
        inside += low <= 0.5 <= high
    assert inside / WORLDS < 0.75


def test_copies_within_a_group_add_nothing():
    p, _ = shift_world(0, 90, 2.0)
    rows = np.repeat(np.arange(90), 3)
    copied = Predictions(p.truth[rows], p.predicted[rows], p.scores[rows], 2)
    alone = Bootstrap(90, groups=np.arange(90)).intervals(p)
    copies = Bootstrap(270, groups=rows).intervals(copied)
    assert {name: copies[name] for name in alone} == {name: pytest.approx(ends) for name, ends in alone.items()}


def test_groups_of_one_are_nearly_examples():
    p, _ = shift_world(1, 400, 1.5)
    alone, grouped = (Bootstrap(400, groups=groups).intervals(p) for groups in (None, np.arange(400)))
    for name, ends in alone.items():
        assert grouped[name] == pytest.approx(ends, abs=0.01)


def test_intervals_stay_where_the_metric_can_be_and_are_plain_numbers():
    p, _ = shift_world(2, 60, 4.2)
    odds = np.clip(3 * p.scores, -30, 30)
    p = replace(p, probabilities=np.stack([1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))], axis=1))
    intervals = Bootstrap(60).intervals(p)
    assert set(intervals) == set(metrics_of(p)) - {"ece"}
    assert json.loads(json.dumps(intervals, allow_nan=False)) == {name: list(ends) for name, ends in intervals.items()}
    for name, (low, high) in intervals.items():
        assert 0 <= low <= metrics_of(p)[name] <= high <= 1


def test_a_smaller_level_lies_inside():
    p, _ = shift_world(3, 100, 1.0)
    wide, narrow = Bootstrap(100).intervals(p, 0.99), Bootstrap(100).intervals(p, 0.5)
    assert all(wide[name][0] < narrow[name][0] < narrow[name][1] < wide[name][1] for name in wide)


def test_constant_scores_have_an_auroc_of_exactly_one_half():
    p = Predictions(np.arange(40) % 2, np.zeros(40, dtype=int), np.zeros(40), 2)
    assert Bootstrap(40).intervals(p)["auroc"] == (0.5, 0.5)


def test_one_group_says_nothing_and_two_examples_little():
    p = answers(6, 4)
    assert Bootstrap(6, groups=np.zeros(6)).intervals(p) == {}
    low, high = Bootstrap(2).intervals(answers(2, 1))["accuracy"]
    assert high - low > 0.8


def test_groups_that_agree_by_luck_are_as_sure_as_their_examples():
    """Half right in each of 25 groups of four: no group differs from the next, which is not to know everything."""
    p, groups = answers(100, 0), np.arange(100) // 4
    p = replace(p, predicted=np.where(np.arange(100) % 4 < 2, p.truth, 1 - p.truth))
    low, high = Bootstrap(100, groups=groups).intervals(p)["accuracy"]
    assert (low, high) == pytest.approx(Bootstrap(100).intervals(p)["accuracy"], abs=0.01)


def test_what_no_resample_defines_has_no_interval():
    p = Predictions(np.array([0, 0]), np.array([0, 1]), np.array([0.0, 1.0]), 2)
    assert set(Bootstrap(2).intervals(p)) == {"accuracy", "f1"}


def test_next_to_nothing_known_is_a_wide_interval_and_no_overflow():
    rng = np.random.default_rng(0)
    said = rng.normal(size=30)
    p = Predictions(said + rng.normal(size=30), said, said, 0)
    intervals = Bootstrap(30, groups=np.arange(30) % 2).intervals(p, level=1 - 1e-6)
    assert all(low < metrics_of(p)[name] < high for name, (low, high) in intervals.items())
    assert np.isfinite(list(intervals.values())).all()


def test_resampled_values_are_those_of_the_shared_resamples():
    p, groups = shift_world(4, 60, 1.0, size=3)
    bootstrap = Bootstrap(60, seed=5, groups=groups, resamples=30)
    W = np.concatenate(list(bootstrap.weights()))
    np.testing.assert_allclose(bootstrap.resampled(p, "auroc"), weighted_metrics(p, W)["auroc"])
    np.testing.assert_array_equal(bootstrap.resampled(p, "auroc"), bootstrap.resampled(p, "auroc"))


def test_resamples_are_the_same_for_a_seed_and_keep_the_number_of_units(monkeypatch):
    groups = np.array(["b", "a", "b", "c", "a"])
    whole = np.concatenate(list(Bootstrap(5, seed=3, groups=groups, resamples=50).weights()))
    assert (whole[:, 0] == whole[:, 2]).all()
    assert (whole[:, [0, 1, 3]].sum(axis=1) == 3).all()
    alone = np.concatenate(list(Bootstrap(5, seed=3, resamples=50).weights()))
    assert (alone.sum(axis=1) == 5).all()
    again = np.concatenate(list(Bootstrap(5, seed=3, resamples=50).weights()))
    np.testing.assert_array_equal(alone, again)
    assert (alone != np.concatenate(list(Bootstrap(5, seed=4, resamples=50).weights()))).any()
    monkeypatch.setattr("probekit.evaluation.scores.bootstrap._CHUNK", 7 * 5)
    monkeypatch.setattr("probekit.evaluation.scores.bootstrap._LEAST_CHUNK", 1)
    chunks = list(Bootstrap(5, seed=3, resamples=50).weights())
    assert len(chunks) == 8
    np.testing.assert_array_equal(np.concatenate(chunks), alone)


@pytest.mark.parametrize("size", [1, 5])
def test_no_interval_of_the_r2_of_a_constant_reaches_above_0(size):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        y = rng.standard_t(2, 60)
        bootstrap = Bootstrap(60, seed, None if size == 1 else np.arange(60) // size)
        low, high = bootstrap.intervals(Predictions(y, np.full(60, rng.normal()), y, 0), names=["r2"])["r2"]
        assert low < high <= 0
        nearly = Predictions(y, 1e-3 * rng.normal(size=60), y, 0)
        assert bootstrap.intervals(nearly, names=["r2"])["r2"][1] < 0.01


def test_a_rank_correlation_is_resampled_once(monkeypatch):
    truth, said = np.random.default_rng(0).normal(size=(2, 40))
    p, bootstrap, ranked = Predictions(truth, said, said, 0), Bootstrap(40, resamples=50), []

    def counted(p, names):
        prepared = regression.spearman(p, names)
        return lambda V: ranked.append(V.shape[1]) or prepared(V)

    families = [(names, counted if names == ("spearman",) else made) for names, made in metrics._FAMILIES]
    monkeypatch.setattr(metrics, "_FAMILIES", families)
    score_intervals(bootstrap, p)
    bootstrap.resampled(for_metric(p, "spearman"), "spearman")
    assert sum(ranked) == 50 + 1  # the resamples, and the value itself


@pytest.mark.parametrize("n_groups", [2, 4, 5, 12, 20, 40])
def test_few_groups_have_no_intervals_and_some_are_said(n_groups):
    """Below `LEAST_GROUPS` there is none, in each place that asks; below `FEW_GROUPS` the number of groups is said."""
    rng = np.random.default_rng(n_groups)
    groups, truth = np.arange(120) % n_groups, rng.integers(2, size=120)
    layers = []
    for _ in range(2):
        scores = truth + rng.normal(size=120)
        layers.append(Predictions(truth, (scores > 0.5).astype(int), scores, 2))
    draws, enough = Bootstrap(120, 0, groups), n_groups >= LEAST_GROUPS
    compared = compare_layers(layers, "accuracy", draws, None)
    found = [
        *draws.intervals(layers[0], names=["accuracy", "auroc"]).values(),
        paired_difference(layers[0], layers[1], "accuracy", draws)[1],
        *compared.bands,
        ratio_interval(layers[0].scores, layers[1].scores + 9, draws),
    ]
    assert all(each is not None for each in found) if enough else not any(found)
    assert (None in compared.in_best_set) != enough
    note = groups_note(draws.n_groups)
    assert (note == f"Too few groups: {n_groups}; intervals need {LEAST_GROUPS}.") != enough
    assert (str(n_groups) in note) == (n_groups < FEW_GROUPS)
    assert groups_note(Bootstrap(4).n_groups) == ""
