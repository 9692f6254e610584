import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

from probekit.evaluation.intervals import Bootstrap
from probekit.evaluation.metrics import Predictions, measure, weighted_metrics


def predictions(n=200, n_classes=2, seed=0, ties=True) -> Predictions:
    rng = np.random.default_rng(seed)
    truth = np.concatenate([np.arange(n_classes), rng.integers(n_classes, size=n - n_classes)])
    if n_classes == 2:
        scores = truth + rng.normal(size=n)
        scores = scores.round(1) if ties else scores
        return Predictions(truth, (scores > 0.5).astype(int), scores, 2)
    scores = np.eye(n_classes)[truth] + rng.normal(size=(n, n_classes))
    scores = np.repeat(scores[: n // 2], 2, axis=0) if ties else scores
    return Predictions(truth, scores.argmax(axis=1), scores, n_classes)


def oracle(p: Predictions, weights=None) -> dict[str, float]:
    if p.n_classes == 2:
        auroc = roc_auc_score(p.truth, p.scores, sample_weight=weights)
    else:
        auroc = roc_auc_score(p.truth, softmax(p.scores, axis=1), sample_weight=weights, multi_class="ovr")
    return {
        "accuracy": accuracy_score(p.truth, p.predicted, sample_weight=weights),
        "balanced_accuracy": balanced_accuracy_score(p.truth, p.predicted, sample_weight=weights),
        "auroc": float(auroc),
    }


@pytest.mark.parametrize("n_classes", [2, 3, 6])
@pytest.mark.parametrize("ties", [False, True])
def test_metrics_equal_scikit_learns(n_classes, ties):
    p = predictions(n_classes=n_classes, ties=ties)
    assert measure(p) == pytest.approx(oracle(p), abs=1e-12)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_weighted_metrics_equal_scikit_learns_row_by_row(n_classes):
    p = predictions(n_classes=n_classes)
    W = np.random.default_rng(1).integers(4, size=(7, len(p.truth)))
    values = weighted_metrics(p, W)
    for s, weights in enumerate(W):
        assert {name: v[s] for name, v in values.items()} == pytest.approx(oracle(p, weights), abs=1e-12)


def test_a_weight_is_that_many_copies():
    p = predictions(n=30, n_classes=3)
    weights = np.random.default_rng(0).integers(1, 4, size=30)
    copies = np.repeat(np.arange(30), weights)
    copied = Predictions(p.truth[copies], p.predicted[copies], p.scores[copies], 3)
    assert measure(copied) == pytest.approx({k: v[0] for k, v in weighted_metrics(p, weights[None]).items()})


def test_a_resample_without_a_class_is_judged_on_the_others():
    two, three = predictions(n=20), predictions(n=20, n_classes=3)
    without = weighted_metrics(two, (two.truth == 0)[None].astype(float))
    assert np.isnan(without["auroc"][0])
    assert without["balanced_accuracy"] == without["accuracy"]
    assert np.isfinite(weighted_metrics(three, (three.truth != 2)[None].astype(float))["auroc"]).all()


@pytest.mark.parametrize("n_classes", [3, 5])
def test_what_is_added_to_all_scores_of_an_example_changes_nothing(n_classes):
    p = predictions(n_classes=n_classes, ties=False)
    moved = Predictions(
        p.truth, p.predicted, p.scores + 100 * np.random.default_rng(0).normal(size=(200, 1)), n_classes
    )
    assert measure(moved) == pytest.approx(measure(p), abs=1e-9)


def test_constant_scores_are_chance():
    p = Predictions(np.array([0, 1, 1, 1]), np.ones(4, dtype=int), np.zeros(4), 2)
    assert measure(p) == {"accuracy": 0.75, "balanced_accuracy": 0.5, "auroc": 0.5}


def coin_world(seed: int, n: int, chance: float, group_size: int = 1) -> tuple[Predictions, np.ndarray]:
    """A classifier that is right with probability `chance`; all of one group are right or wrong together."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n // group_size), group_size)
    right = (rng.random(n // group_size) < chance)[groups]
    truth = rng.integers(2, size=n)
    predicted = np.where(right, truth, 1 - truth)
    return Predictions(truth, predicted, predicted.astype(float), 2), groups


@pytest.mark.parametrize(("n", "chance"), [(200, 0.5), (300, 0.8)])
def test_intervals_cover_the_truth_as_often_as_they_say(n, chance):
    worlds = [coin_world(seed, n, chance)[0] for seed in range(300)]
    inside = 0
    for seed, world in enumerate(worlds):
        low, high = Bootstrap(n, seed=seed, resamples=400).intervals(world)["accuracy"]
        inside += low <= chance <= high
    assert 0.91 <= inside / len(worlds) <= 0.98


@pytest.mark.parametrize("size", [1, 5])
def test_a_perfect_score_is_not_perfectly_sure(size):
    """k = n right answers: the exact lower bound L solves L^n = 2.5% (Clopper and Pearson 1934), n counting groups."""
    n = 200
    truth = np.arange(n) % 2
    groups = None if size == 1 else np.arange(n) // size
    right = Predictions(truth, truth, truth.astype(float), 2)
    low, high = Bootstrap(n, groups=groups).intervals(right)["accuracy"]
    assert high == 1
    assert low ** (n / size) == pytest.approx(0.025)
    wrong = Predictions(truth, 1 - truth, 1.0 - truth, 2)
    assert Bootstrap(n, groups=groups).intervals(wrong)["accuracy"] == pytest.approx((0, 1 - low))


def test_the_interval_is_the_binomials():
    p, _ = coin_world(0, 400, 0.7)
    accuracy = measure(p)["accuracy"]
    low, high = Bootstrap(400, resamples=4000).intervals(p)["accuracy"]
    half = 1.96 * np.sqrt(accuracy * (1 - accuracy) / 400)
    assert (low, high) == pytest.approx((accuracy - half, accuracy + half), abs=0.006)


def test_groups_are_drawn_whole():
    n, size, inside = 200, 10, {"grouped": 0, "alone": 0}
    for seed in range(200):
        p, groups = coin_world(seed, n, 0.5, group_size=size)
        for name, given in (("grouped", groups), ("alone", None)):
            low, high = Bootstrap(n, seed=seed, groups=given, resamples=200).intervals(p)["accuracy"]
            inside[name] += low <= 0.5 <= high
    assert inside["grouped"] / 200 > 0.88
    assert inside["alone"] / 200 < 0.6  # what not knowing about groups costs


def test_resamples_are_the_same_for_a_seed_and_keep_the_number_of_units(monkeypatch):
    groups = np.array(["b", "a", "b", "c", "a"])
    whole = np.concatenate(list(Bootstrap(5, seed=3, groups=groups, resamples=50).weights()))
    assert (whole[:, 0] == whole[:, 2]).all()
    assert (whole[:, [0, 1, 3]].sum(axis=1) == 3).all()
    alone = np.concatenate(list(Bootstrap(5, seed=3, resamples=50).weights()))
    assert (alone.sum(axis=1) == 5).all()
    again = np.concatenate(list(Bootstrap(5, seed=3, resamples=50).weights()))
    np.testing.assert_array_equal(alone, again)
    monkeypatch.setattr("probekit.evaluation.intervals._CHUNK", 7 * 5)
    chunks = list(Bootstrap(5, seed=3, resamples=50).weights())
    assert len(chunks) == 8
    np.testing.assert_array_equal(np.concatenate(chunks), alone)


def test_what_no_resample_defines_has_no_interval():
    p = Predictions(np.array([0, 0]), np.array([0, 1]), np.array([0.0, 1.0]), 2)
    assert set(Bootstrap(2).intervals(p)) == {"accuracy", "balanced_accuracy"}
