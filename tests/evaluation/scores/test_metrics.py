from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import spearmanr
from sklearn import metrics as sk

from probekit.errors import UsageError
from probekit.evaluation.scores.metrics import (
    METRICS,
    Predictions,
    check_metric,
    default_metric,
    metric_names,
    metrics_of,
    weighted_metrics,
)
from probekit.evaluation.scores.permuted import under_permutation
from probekit.evaluation.scores.ranking import log_odds
from probekit.evaluation.scores.regression import r2_ceiling
from probekit.evaluation.scores.roc import ROC_RATES, least_negatives

ONCE = ("accuracy", "balanced_accuracy", "auroc", "average_precision", "f1", "brier")  # ECE: its bins stay


def classified(n=200, n_classes=2, seed=0, ties=True) -> Predictions:
    rng = np.random.default_rng(seed)
    truth = np.concatenate([np.arange(n_classes), rng.integers(n_classes, size=n - n_classes)])
    scores = np.eye(n_classes)[truth] + rng.normal(size=(n, n_classes))
    if ties:
        scores = scores.round(1) if n_classes == 2 else np.repeat(scores[: n // 2], 2, axis=0)
    probabilities, predicted = softmax(scores, axis=1), scores.argmax(axis=1)
    scores = (10 * (scores[:, 1] - scores[:, 0])).round(6) if n_classes == 2 else scores
    return Predictions(truth, predicted, scores, n_classes, probabilities)


def regressed(n=200, seed=0, ties=True) -> Predictions:
    rng = np.random.default_rng(seed)
    truth = 100 + rng.normal(size=n)
    predicted = truth + rng.normal(size=n)
    if ties:
        truth, predicted = truth.round(1), predicted.round(1)
    return Predictions(truth, predicted, predicted, 0)


def copies(p: Predictions, weights: np.ndarray) -> Predictions:
    rows = np.repeat(np.arange(len(p.truth)), weights)
    probabilities = None if p.probabilities is None else p.probabilities[rows]
    return Predictions(p.truth[rows], p.predicted[rows], p.scores[rows], p.n_classes, probabilities)


def oracle(p: Predictions, weights=None) -> dict[str, float]:
    assert p.probabilities is not None
    two = p.n_classes == 2
    one_hot = np.eye(p.n_classes)[p.truth]
    squares = ((p.probabilities - one_hot) ** 2).sum(axis=1) / (2 if two else 1)
    scores = p.scores if two else p.probabilities
    each = [
        sk.average_precision_score(one_hot[:, c], p.scores if two else p.probabilities[:, c], sample_weight=weights)
        for c in ([1] if two else range(p.n_classes))
    ]
    values = {
        "accuracy": sk.accuracy_score(p.truth, p.predicted, sample_weight=weights),
        "balanced_accuracy": sk.balanced_accuracy_score(p.truth, p.predicted, sample_weight=weights),
        "auroc": sk.roc_auc_score(p.truth, scores, sample_weight=weights, multi_class="ovr"),
        "average_precision": np.mean(each),
        "f1": sk.f1_score(p.truth, p.predicted, sample_weight=weights, average="binary" if two else "macro"),
        "brier": np.average(squares, weights=weights),
    }
    return {name: float(value) for name, value in values.items()}


def roc_oracle(p: Predictions, weights=None) -> dict[str, float]:
    """The highest true-positive rate of `roc_curve` at each false-positive rate that the negatives can resolve."""
    wrong, right, _ = sk.roc_curve(p.truth, p.scores, sample_weight=weights, drop_intermediate=False)
    known = {name: rate for name, rate in ROC_RATES.items() if (p.truth == 0).sum() >= round(1 / rate)}
    return {name: float(right[wrong <= rate * (1 + 1e-12)].max()) for name, rate in known.items()}


def regression_oracle(p: Predictions) -> dict[str, float]:
    return {
        "r2": float(sk.r2_score(p.truth, p.predicted)),
        "spearman": float(np.asarray(spearmanr(p.truth, p.predicted))[0]),
        "mae": float(sk.mean_absolute_error(p.truth, p.predicted)),
    }


@pytest.mark.parametrize("n_classes", [2, 3, 6])
@pytest.mark.parametrize("ties", [False, True])
def test_metrics_equal_scikit_learns(n_classes, ties):
    p = classified(n_classes=n_classes, ties=ties)
    values = metrics_of(p)
    assert 0 <= values.pop("ece") <= 1
    assert values == pytest.approx(oracle(p) | (roc_oracle(p) if n_classes == 2 else {}), abs=1e-12)


@pytest.mark.parametrize("n", [100, 1900, 2100])
@pytest.mark.parametrize("ties", [False, True])
def test_points_of_the_roc_curve_equal_scikit_learns_under_any_weights(n, ties):
    rng, truth = np.random.default_rng(n), np.arange(n) % 2
    scores = rng.normal(size=n) + 1.5 * truth
    p = Predictions(truth, truth, scores.round(1) if ties else scores, 2)
    W = np.stack([np.ones(n), *rng.integers(4, size=(6, n)), *rng.random(size=(3, n)), 9.0 * (scores > 1) + 1])
    values = weighted_metrics(p, W, [*ROC_RATES])
    for s, weights in enumerate(W):
        known = {name: v[s] for name, v in values.items() if np.isfinite(v[s])}
        assert known == pytest.approx(roc_oracle(p, weights), abs=1e-12)
    leasts = [least_negatives(name) for name in ROC_RATES]
    assert leasts == [1000, 100, 20]
    assert list(roc_oracle(p)) == [name for name, least in zip(ROC_RATES, leasts, strict=True) if n >= 2 * least]


def test_the_brier_score_of_two_classes_is_scikit_learns():
    p = classified()
    assert p.probabilities is not None
    assert metrics_of(p)["brier"] == pytest.approx(sk.brier_score_loss(p.truth, p.probabilities[:, 1]))


@pytest.mark.parametrize("ties", [False, True])
def test_regression_metrics_equal_scikit_learns_and_scipys(ties):
    p = regressed(ties=ties)
    assert metrics_of(p) == pytest.approx(regression_oracle(p), abs=1e-10)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_weighted_metrics_equal_scikit_learns_row_by_row(n_classes):
    p = classified(n_classes=n_classes)
    W = np.random.default_rng(1).integers(4, size=(7, len(p.truth)))
    values = weighted_metrics(p, W, ONCE)
    for s, weights in enumerate(W):
        assert {name: v[s] for name, v in values.items()} == pytest.approx(oracle(p, weights), abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_a_weight_is_that_many_copies(n_classes, ties):
    p = classified(n=40, n_classes=n_classes, ties=ties) if n_classes else regressed(n=40, ties=ties)
    W = np.random.default_rng(0).integers(4, size=(5, 40))
    values = weighted_metrics(p, W, ONCE if n_classes else None)
    for s, weights in enumerate(W):
        copied = metrics_of(copies(p, weights))
        assert {name: v[s] for name, v in values.items()} == pytest.approx({name: copied[name] for name in values})


def test_the_calibration_error_is_the_mean_over_bins_of_the_gap_between_confidence_and_accuracy():
    p = classified(n=300, ties=False)
    assert p.probabilities is not None
    confidence, right = p.probabilities.max(axis=1), p.predicted == p.truth
    bins = np.array_split(np.argsort(confidence), 15)  # 20 each
    gaps = [abs(confidence[rows].mean() - right[rows].mean()) for rows in bins]
    assert metrics_of(p)["ece"] == pytest.approx(np.mean(gaps))
    weights = np.random.default_rng(0).random(300)
    sums = [abs(weights[rows] @ (confidence - right)[rows]) for rows in bins]
    assert weighted_metrics(p, weights[None])["ece"][0] == pytest.approx(sum(sums) / weights.sum())


def test_equal_confidences_share_a_bin():
    """All at 0.8 and right four times of five: calibrated, in whatever order the examples come."""
    right = np.arange(100) % 5 > 0
    p = Predictions(right.astype(int), np.ones(100, dtype=int), np.ones(100), 2, np.tile([0.2, 0.8], (100, 1)))
    assert metrics_of(p)["ece"] == pytest.approx(0)


def test_metrics_without_probabilities_are_the_others():
    p = replace(classified(), probabilities=None)
    assert metric_names(p) == [name for name in ONCE if name != "brier"] + [*ROC_RATES]
    assert list(metrics_of(p)) == [name for name in metric_names(p) if name not in ("roc_tpr_0.001", "roc_tpr_0.01")]
    assert metric_names(classified()) == [*ONCE, "ece", *ROC_RATES]
    assert metric_names(classified(n_classes=3)) == [*ONCE, "ece"]
    assert [*ONCE, "ece", *ROC_RATES, *metric_names(regressed())] == list(METRICS)


def test_a_resample_without_a_class_is_judged_on_the_others():
    two, three = classified(n=20), classified(n=20, n_classes=3)
    without = weighted_metrics(two, (two.truth == 0)[None].astype(float))
    assert np.isnan(without["auroc"][0])
    assert np.isnan(without["average_precision"][0])
    assert without["balanced_accuracy"] == without["accuracy"]
    assert all(np.isfinite(v).all() for v in weighted_metrics(three, (three.truth != 2)[None].astype(float)).values())


@pytest.mark.parametrize("n_classes", [3, 5])
def test_what_is_added_to_all_scores_of_an_example_changes_nothing(n_classes):
    p = classified(n_classes=n_classes, ties=False)
    moved = replace(p, scores=p.scores + 100 * np.random.default_rng(0).normal(size=(200, 1)))
    assert metrics_of(moved) == pytest.approx(metrics_of(p), abs=1e-9)


def test_constant_predictions_are_chance():
    p = Predictions(np.array([0, 1, 1, 1]), np.ones(4, dtype=int), np.zeros(4), 2)
    chance = {"accuracy": 0.75, "balanced_accuracy": 0.5, "auroc": 0.5, "average_precision": 0.75, "f1": 6 / 7}
    assert metrics_of(p) == pytest.approx(chance)
    y = np.array([0.1, 0.2, 0.6])
    assert metrics_of(Predictions(y, np.full(3, 0.3), y, 0)) == pytest.approx({"r2": 0, "spearman": 0, "mae": 0.2})


def test_a_target_that_does_not_vary_has_neither_r2_nor_correlation():
    y = np.full(7, 0.1)
    assert set(metrics_of(Predictions(y, np.arange(7.0), y, 0))) == {"mae"}
    one = np.eye(7)[:1]  # a resample of one example
    assert np.isnan(weighted_metrics(regressed(n=7), one, ["r2", "spearman"])["r2"]).all()


@pytest.mark.parametrize(
    ("counts", "name"),
    [
        *[([50, 50], "accuracy"), ([80, 20], "accuracy"), ([81, 19], "auroc"), ([5, 95], "auroc")],
        *[([4, 4, 92], "auroc"), ([60, 20, 20], "accuracy"), ([79, 15, 6], "accuracy"), ([81, 13, 6], "auroc")],
        *[([40] * 9 + [1], "accuracy"), ([830, *[10] * 17], "auroc"), ([400, 200, *[10] * 15], "accuracy")],
    ],
)
def test_the_headline_is_the_auroc_where_guessing_the_commonest_class_looks_good(counts, name):
    assert default_metric(counts) == name


def test_the_headline_of_a_regression_is_r2():
    assert default_metric([]) == "r2"


def test_a_metric_can_be_asked_for():
    assert [check_metric(name, 3) for name in ("accuracy", "f1")] == ["accuracy", "f1"]
    assert check_metric("spearman", 0) == "spearman"


@pytest.mark.parametrize(
    ("name", "n_classes", "message"),
    [
        ("acuracy", 2, "unknown metric 'acuracy'; did you mean accuracy"),
        ("r2", 2, "r2 is not for labels that are classes; take accuracy, "),
        ("auroc", 0, "auroc is not for labels that are numbers; take r2, spearman"),
        ("brier", 2, "lower brier is better"),
        ("mae", 0, "lower mae is better"),
    ],
)
def test_a_metric_that_cannot_choose_is_refused(name, n_classes, message):
    with pytest.raises(UsageError, match=message):
        check_metric(name, n_classes)


@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.1, 0.5, 0.9, 2.0])
def test_no_r2_is_above_the_ceiling_of_its_spread_and_some_reach_it(spread):
    rng = np.random.default_rng(0)
    y, noise, W = rng.standard_t(3, 50), rng.normal(size=50), rng.integers(0, 3, size=(20, 50)).astype(float)
    p = Predictions(y, 3 + spread * (y + noise), y, 0)
    assert (weighted_metrics(p, W, ["r2"])["r2"] <= r2_ceiling(p, W.T) + 1e-12).all()
    best = Predictions(y, y.mean() + min(spread, 1) * (y - y.mean()), y, 0)
    assert metrics_of(best)["r2"] == pytest.approx(r2_ceiling(best, np.ones((50, 1)))[0], abs=1e-12)


def test_log_odds_are_those_of_the_softmax_however_sure_it_is():
    scores = np.random.default_rng(0).normal(size=(60, 5)) * np.logspace(-2, 3, 60)[:, None]
    expected = [[s[c] - logsumexp(np.delete(s, c)) for c in range(5)] for s in scores]
    np.testing.assert_allclose(log_odds(scores), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("row", [(0, 0, 1, 1, 2), (0.1, 0.7, -3.3, 0.2, 5.9)])
def test_log_odds_of_permuted_scores_tie_to_the_last_bit(row):
    found = log_odds(np.array(list(permutations(row))))
    assert len(np.unique(found)) == len(set(row))


@pytest.mark.parametrize("n_classes", [2, 40])
def test_many_classes_and_classes_without_examples_equal_scikit_learns(n_classes, monkeypatch):
    """Some classes at a time; integer scores have many ties; some resamples lack some classes."""
    monkeypatch.setattr("probekit.evaluation.scores.ranking._AT_ONCE", 90 * 7)
    rng = np.random.default_rng(3)
    truth = rng.integers(n_classes // 2 + 1, size=90) if n_classes > 2 else rng.integers(2, size=90)
    scores = rng.integers(4, size=90 if n_classes == 2 else (90, n_classes)).astype(float)
    p = Predictions(truth, rng.integers(n_classes, size=90), scores, n_classes)
    W = rng.integers(2, size=(3, 90)).astype(float)
    odds = scores[:, None] if n_classes == 2 else log_odds(scores)
    found = weighted_metrics(p, W, ["auroc", "average_precision"])
    for s, weights in enumerate(W):
        some = [c for c in ([1] if n_classes == 2 else range(n_classes)) if (weights @ (truth == c)) > 0]
        columns = [(truth == c, odds[:, 0 if n_classes == 2 else c]) for c in some]
        for name, of_one in (("auroc", sk.roc_auc_score), ("average_precision", sk.average_precision_score)):
            expected = np.mean([of_one(own, score, sample_weight=weights) for own, score in columns])
            assert found[name][s] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("name", ["auroc", "average_precision"])
def test_scores_that_differ_by_rounding_are_ties(n_classes, name):
    """Equal activations get scores that differ in their last bits, by the order of sums; no labels and no permutation
    of them see it, and a probe of one value for all rows is at chance."""
    p, rng = classified(n_classes=n_classes), np.random.default_rng(1)
    shaken = p.scores * (1 + 1e-15 * rng.uniform(-1, 1, size=p.scores.shape))
    other = replace(p, scores=shaken)
    assert len(np.unique(shaken)) > len(np.unique(p.scores))
    assert metrics_of(other)[name] == pytest.approx(metrics_of(p)[name], abs=1e-12)
    labels = np.stack([rng.permutation(p.truth) for _ in range(5)])
    one, two = (under_permutation([each], name)(labels) for each in (p, other))
    np.testing.assert_allclose(one, two, atol=1e-12)
    same = replace(p, scores=np.full_like(p.scores, 0.3) + 1e-16 * rng.integers(3, size=p.scores.shape))
    if name == "auroc":
        assert metrics_of(same)[name] == 0.5


def test_an_infinite_score_and_an_outlier_leave_the_other_ranks():
    truth = np.array([0, 1, 0, 1, 1, 0])
    scores = np.array([0.1, 0.4, 0.3, 0.2, 0.9, 0.35])
    for largest in (1e13, np.inf):
        p = Predictions(truth, (scores > 0.3).astype(int), np.where(truth * scores == 0.9, largest, scores), 2)
        assert metrics_of(p)["auroc"] == pytest.approx(sk.roc_auc_score(truth, scores))
        found = under_permutation([p], "auroc")(truth[None])
        assert found[0, 0] == pytest.approx(sk.roc_auc_score(truth, scores))
