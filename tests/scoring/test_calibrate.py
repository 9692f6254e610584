"""Calibrated probabilities: against the known ones of a world, never worse than the probe's own, and at the edges."""

from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.scoring.calibrate import OWN, Calibration, calibrated, calibration_of, fit_calibration


def fitted(scores: np.ndarray, labels: np.ndarray, log_odds: bool = False) -> Calibration:
    found = fit_calibration(scores, labels, log_odds)
    assert found is not None
    return found


@pytest.mark.parametrize("log_odds", [False, True])
@pytest.mark.parametrize(("slope", "shift"), [(0.5, 0.0), (3.0, -2.0), (40.0, 1.0)])
def test_two_classes_get_the_probabilities_of_their_world(slope: float, shift: float, log_odds: bool) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=20_000) / slope
    known = expit(slope * scores + shift)
    found = fitted(scores, (rng.random(len(scores)) < known).astype(int), log_odds)
    own = calibrated(found, scores)
    assert np.abs(own[:, 1] - known).max() < 0.03
    np.testing.assert_allclose(own.sum(axis=1), 1)


def test_several_classes_get_the_probabilities_of_their_world() -> None:
    """Their logits were scaled and shifted, as a probe that is too sure of rare classes does it."""
    rng, shift = np.random.default_rng(0), np.array([0.5, 0.0, -1.0, 0.5])
    logits = rng.normal(size=(40_000, 4)) * 1.5
    known = softmax(logits, axis=1)
    labels = np.array([rng.choice(4, p=p) for p in known[:20_000]])
    found = fitted(5 * (logits[:20_000] - shift), labels, log_odds=True)
    own = calibrated(found, 5 * (logits - shift))
    assert np.abs(own - known).max() < 0.05
    assert np.abs(own - known).mean() < 0.006
    assert found.slope == pytest.approx(0.2, rel=0.05)


class World:
    """Rows whose log odds are known: classes of given frequencies, and logits that separate them by `gap`."""

    def __init__(self, frequencies: np.ndarray, gap: float, seed: int):
        self.frequencies, self.gap, self.rng = frequencies / frequencies.sum(), gap, np.random.default_rng(seed)

    def rows(self, n: int, least: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Logits [n, C] and labels [n]; every class has `least` rows or more."""
        C = len(self.frequencies)
        labels = self.rng.choice(C, p=self.frequencies, size=n)
        labels[: least * C] = np.arange(least * C) % C
        logits = self.gap * np.eye(C)[labels] + np.sqrt(self.gap) * self.rng.normal(size=(n, C))
        return logits + np.log(self.frequencies), labels


WORLDS = {
    "two classes, few rows": (np.ones(2), 3.0, 24),
    "two classes, many rows": (np.ones(2), 3.0, 1000),
    "separable": (np.ones(2), 60.0, 40),
    "imbalanced": (np.array([9.0, 1.0]), 4.0, 100),
    "classes of one to three rows": (1 / np.arange(1, 18) ** 2, 5.0, 300),
    "100 classes": (np.ones(100), 8.0, 300),
}


def losses(likely: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Mean log loss and expected calibration error."""
    p = Predictions(labels, likely.argmax(axis=1), likely, likely.shape[1], likely)
    mean = -np.log(np.maximum(likely[np.arange(len(labels)), labels], 1e-300)).mean()
    return float(mean), metrics_of(p, ["ece"])["ece"]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("sureness", [1.0, 3.0])
def test_probabilities_are_never_materially_worse_than_the_probes_own(world: str, sureness: float) -> None:
    """On fresh rows, whether the probe's log odds are the true ones or three times as sure."""
    frequencies, gap, n = WORLDS[world]
    repeats = 3 if len(frequencies) == 100 else 8
    found = []
    for seed in range(repeats):
        drawn = World(frequencies, gap, seed)
        (scores, labels), (fresh, truth) = drawn.rows(n), drawn.rows(4000)
        if len(frequencies) == 2:
            scores, fresh = (x[:, 1] - x[:, 0] for x in (scores, fresh))
        own = calibrated(Calibration(sureness, np.zeros(len(frequencies) if fresh.ndim == 2 else 1), 0), fresh)
        likely = calibrated(fitted(sureness * scores, labels, log_odds=True), sureness * fresh)
        found.append((*losses(likely, truth), *losses(own, truth)))
    loss, error, own_loss, own_error = np.mean(found, axis=0)
    assert loss <= own_loss * 1.03 + 0.003
    assert error <= own_error + 0.005


def test_a_probe_that_is_too_sure_is_mended_and_says_how() -> None:
    scores, labels = World(np.ones(3), 3.0, 0).rows(400)
    found = fitted(4 * scores, labels, log_odds=True)
    assert found.kind != OWN
    assert found.slope == pytest.approx(0.25, rel=0.25)
    assert found.held_out[found.kind] < found.held_out[OWN]
    assert f"calibrated by {found.kind}, fitted on 400 validation rows" in found.method


@pytest.mark.parametrize("share", [0.05, 0.01])
@pytest.mark.parametrize("sureness", [0.02, 0.2, 3.0])
def test_log_odds_of_a_rare_class_that_are_too_flat_or_too_steep_are_calibrated(share: float, sureness: float) -> None:
    """A probe that a strong penalty keeps near the base rate: its log odds vary too little, around the right level."""
    rng, level, n = np.random.default_rng(0), np.log(share / (1 - share)), round(25 / share)
    labels = (rng.random(n) < share).astype(int)
    known = level + 4 * (labels - 0.5) + 2 * rng.normal(size=n)  # densities whose log ratio is the score's deviation
    found = fitted(level + sureness * (known - level), labels, log_odds=True)
    said = found.log_odds(level + sureness * (known - level))
    assert found.kind != OWN
    assert found.slope == pytest.approx(1 / sureness, rel=0.4)
    assert np.abs(expit(said) - expit(known)).mean() < share / 3


def test_probabilities_that_no_calibration_betters_stay_as_they_are() -> None:
    scores, labels = World(np.ones(17), 5.0, 1).rows(200, least=1)
    found = fitted(scores, labels, log_odds=True)
    assert found.kind == OWN
    np.testing.assert_array_equal(calibrated(found, scores), softmax(scores, axis=1))
    assert "the probe's own, as no calibration has a clearly lower log loss on held-out folds of 200" in found.method
    alone = fit_calibration(scores[:2], np.array([0, 1]), True, np.zeros(2))
    assert alone is not None
    assert alone.kind == OWN
    assert "2 validation rows cannot be divided" in alone.method


@pytest.mark.parametrize(("n", "n_classes"), [(300, 17), (1000, 17), (300, 100), (2000, 100)])
def test_held_out_folds_tell_nothing_of_how_often_a_class_occurs_in_them(n: int, n_classes: int) -> None:
    """Where each class has few rows, biases that follow their counts look good on folds stratified by class."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        logits = 2 * rng.normal(size=(n, n_classes))
        assert fitted(logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1), log_odds=True).kind == OWN


def test_rows_of_a_group_share_a_fold_and_count_together() -> None:
    """Copies of the same few rows are no evidence for a calibration."""
    scores, labels = World(np.ones(2), 3.0, 3).rows(12)
    odds, groups = np.repeat(scores[:, 1] - scores[:, 0], 50), np.repeat(np.arange(12), 50)
    labels = np.repeat(labels, 50)
    of_groups = fit_calibration(odds, labels, True, groups)
    once = fit_calibration(odds, labels, True)
    assert of_groups is not None
    assert once is not None
    assert of_groups.kind == OWN
    assert once.kind != OWN
    renamed = fit_calibration(odds, labels, True, 7 * groups + 3)
    assert renamed is not None
    assert renamed.held_out == of_groups.held_out
    assert "600 validation rows in 12 groups" in of_groups.method
    assert "too sure on new groups" in of_groups.method
    assert "groups" not in once.method


def test_a_class_that_validation_lacks_is_improbable_and_not_impossible() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 2
    scores = rng.normal(size=(90, 3)) + 3 * (labels[:, None] == np.arange(3))
    for log_odds in (False, True):
        own = calibrated(fitted(scores, labels, log_odds), scores)
        assert np.isfinite(own).all()
        assert (own > 0).all()
        assert own[:, 2].mean() < 1 / 3


def test_probabilities_rise_with_the_score_and_never_reverse_it() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    found = fitted(-labels + 0.1 * rng.normal(size=60), labels)  # the probe is worse than chance on validation
    assert found.slope == 0
    np.testing.assert_allclose(calibrated(found, np.array([-9.0, 9.0]))[:, 1], 0.5, atol=1e-9)
    constant = fitted(np.zeros(600), (np.arange(600) % 6 == 0).astype(int))
    assert calibrated(constant, np.zeros(1))[0, 1] == pytest.approx(1 / 6, abs=0.01)


def rows_of(splits: list[str], labels: list[int], scores: list[float], **changes: Any) -> RowScores:
    n = len(splits)
    own = {"scores": {"p.0": np.array(scores)}, "predicted": {"p.0": np.zeros(n, dtype=int)}, **changes}
    blank = np.array([""] * n, dtype=object)
    return RowScores(blank, blank, np.array(splits, dtype=object), np.array(labels), np.arange(n), **own)


def test_only_validation_rows_are_fitted() -> None:
    chosen = rows_of(["validation"] * 4, [0, 0, 1, 1], [-1, 0.2, 0.1, 2])
    more = rows_of(["validation"] * 4 + ["test"] * 3, [0, 0, 1, 1, 1, 1, 1], [-1, 0.2, 0.1, 2, -50, -50, -50])
    one, other = calibration_of(chosen, "p.0", False), calibration_of(more, "p.0", False)
    assert one is not None
    assert other is not None
    assert (one.slope, one.shift.tolist(), one.rows) == (other.slope, other.shift.tolist(), other.rows)


def test_without_rows_there_is_no_calibration() -> None:
    assert calibration_of(None, "p.0", False) is None
    assert calibration_of(rows_of(["test"] * 2, [0, 1], [0.0, 1.0]), "p.0", False) is None
    assert calibration_of(rows_of(["validation"] * 2, [1, 1], [0.0, 1.0]), "p.0", False) is None
    assert calibration_of(rows_of(["validation"] * 2, [0, 1], [0.0, 1.0]), "p.1", False) is None
    assert (
        calibration_of(rows_of(["validation"] * 2, [0, 1], [0.0, 1.0], predicted={}), "p.0", False) is None
    )  # a regression
