"""Calibrated probabilities: against the known ones of a world, against scikit-learn, and at the edges."""

from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from probekit.evaluation.results.row_scores import RowScores
from probekit.scoring.calibrate import Calibration, calibrated, calibration_of, fit_calibration


def fitted(scores: np.ndarray, labels: np.ndarray) -> Calibration:
    found = fit_calibration(scores, labels)
    assert found is not None
    return found


@pytest.mark.parametrize(("slope", "shift"), [(0.5, 0.0), (3.0, -2.0), (40.0, 1.0)])
def test_two_classes_get_the_probabilities_of_their_world(slope: float, shift: float) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=40_000) / slope
    known = expit(slope * scores + shift)
    found = fitted(scores, (rng.random(len(scores)) < known).astype(int))
    own = calibrated(found, scores)
    assert np.abs(own[:, 1] - known).max() < 0.02
    np.testing.assert_allclose(own.sum(axis=1), 1)


def test_several_classes_get_the_probabilities_of_their_world() -> None:
    """Their logits were scaled and shifted, as a probe that is too sure of rare classes does it."""
    rng, shift = np.random.default_rng(0), np.array([0.5, 0.0, -1.0, 0.5])
    logits = rng.normal(size=(40_000, 4)) * 1.5
    known = softmax(logits, axis=1)
    labels = np.array([rng.choice(4, p=p) for p in known[:20_000]])
    found = fitted(5 * (logits[:20_000] - shift), labels)
    own = calibrated(found, 5 * (logits - shift))
    assert np.abs(own - known).max() < 0.05
    assert np.abs(own - known).mean() < 0.006
    assert found.slope == pytest.approx(0.2, rel=0.05)


def test_a_class_that_validation_lacks_is_improbable_and_not_impossible() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 2
    scores = rng.normal(size=(90, 3)) + 3 * (labels[:, None] == np.arange(3))
    own = calibrated(fitted(scores, labels), scores)
    assert np.isfinite(own).all()
    assert (own > 0).all()
    assert own[:, 2].mean() < 2 / 92  # the targets give it 1 / (45 + 3) of each row


def test_targets_are_those_of_platt() -> None:
    """Separated scores keep a finite slope: it minimises the log loss of the targets (n + 1) / (n + 2)."""
    scores, labels = np.array([-2.0, -1.0, 1.0, 2.0, 3.0]), np.array([0, 0, 1, 1, 1])
    found = fitted(scores, labels)
    targets = np.where(labels == 1, 4 / 5, 1 / 4)
    p = calibrated(found, scores)[:, 1]
    assert abs((p - targets).sum()) < 1e-5
    assert abs(((p - targets) * scores).sum()) < 1e-5
    assert 0 < found.slope < 10


def test_probabilities_rise_with_the_score_and_never_reverse_it() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    found = fitted(-labels + 0.1 * rng.normal(size=60), labels)  # the probe is worse than chance on validation
    assert found.slope == 0
    np.testing.assert_allclose(calibrated(found, np.array([-9.0, 9.0]))[:, 1], 0.5, atol=1e-9)
    constant = fitted(np.zeros(60), (np.arange(60) % 3 == 0).astype(int))
    assert calibrated(constant, np.zeros(1))[0, 1] == pytest.approx(1 / 3, abs=0.02)


def rows_of(splits: list[str], labels: list[int], scores: list[float], **changes: Any) -> RowScores:
    n = len(splits)
    own = {"scores": {"p.0": np.array(scores)}, "predicted": {"p.0": np.zeros(n, dtype=int)}, **changes}
    blank = np.array([""] * n, dtype=object)
    return RowScores(blank, blank, np.array(splits, dtype=object), np.array(labels), np.arange(n), **own)


def test_only_validation_rows_are_fitted() -> None:
    chosen = rows_of(["validation"] * 4, [0, 0, 1, 1], [-1, 0.2, 0.1, 2])
    more = rows_of(["validation"] * 4 + ["test"] * 3, [0, 0, 1, 1, 1, 1, 1], [-1, 0.2, 0.1, 2, -50, -50, -50])
    one, other = calibration_of(chosen, "p.0"), calibration_of(more, "p.0")
    assert one is not None
    assert other is not None
    assert (one.slope, one.shift.tolist(), one.rows) == (other.slope, other.shift.tolist(), other.rows)


def test_without_rows_there_is_no_calibration() -> None:
    assert calibration_of(None, "p.0") is None
    assert calibration_of(rows_of(["test"] * 2, [0, 1], [0.0, 1.0]), "p.0") is None
    assert calibration_of(rows_of(["validation"] * 2, [1, 1], [0.0, 1.0]), "p.0") is None
    assert calibration_of(rows_of(["validation"] * 2, [0, 1], [0.0, 1.0]), "p.1") is None
    assert calibration_of(rows_of(["validation"] * 2, [0, 1], [0.0, 1.0], predicted={}), "p.0") is None  # a regression
