"""The slope and biases of scores: the optimum of the penalised likelihood, and what its penalty does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax

from probekit.probes.calibration import PRIOR_ROWS, fit_scale


def penalised(v: np.ndarray, scores: np.ndarray, labels: np.ndarray, log_odds: bool) -> float:
    """The objective as the module states it, for a slope and a shift of each of C classes."""
    logs = log_softmax(v[0] * scores + v[1:], axis=1)
    counts = np.bincount(labels, minlength=scores.shape[1])
    prior = softmax(scores, axis=1) if log_odds else np.tile((counts + 1) / (counts + 1).sum(), (len(scores), 1))
    level = np.log(counts + PRIOR_ROWS * prior.mean(axis=0))
    bias = v[1:] + v[0] * scores.mean(axis=0) - (level - level.mean())
    return (
        -logs[np.arange(len(labels)), labels].sum() - PRIOR_ROWS * (prior * logs).sum(axis=1).mean() + bias @ bias / 2
    )


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 5), st.booleans(), st.booleans())
def test_no_slope_and_bias_has_a_lower_penalised_loss(seed: int, n_classes: int, log_odds: bool, biased: bool) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_classes, size=30)
    scores = rng.uniform(-2, 2) + 2 * rng.normal(size=(30, n_classes))
    scores += (labels[:, None] == np.arange(n_classes)) * rng.uniform(1, 6)
    found = fit_scale(scores, labels, log_odds, biased)
    own = np.concatenate([[found.slope], found.shift])
    if biased:
        best = minimize(
            penalised, own, (scores, labels, log_odds), tol=1e-12, bounds=[(0, None)] + [(None, None)] * n_classes
        )
        assert found.loss == pytest.approx(penalised(own, scores, labels, log_odds), rel=1e-9)
    else:  # a temperature leaves the scores where they are
        assert not found.shift.any()
        zeros = np.zeros(n_classes)
        prior = softmax(scores, axis=1) if log_odds else np.full(scores.shape, 1 / n_classes)

        def of_slope(v: np.ndarray) -> float:
            logs = log_softmax(v[0] * scores + zeros, axis=1)
            return -logs[np.arange(30), labels].sum() - PRIOR_ROWS * (prior * logs).sum(axis=1).mean()

        best = minimize(of_slope, own[:1], tol=1e-12, bounds=[(0, None)])
    assert found.loss <= best.fun * (1 + 1e-9)


@pytest.mark.parametrize("log_odds", [False, True])
def test_two_classes_are_several_classes_whose_first_scores_nothing(log_odds: bool) -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(50, 1)) * 3, np.arange(50) % 2
    one = fit_scale(scores + labels[:, None], labels, log_odds, True)
    two = fit_scale(np.concatenate([np.zeros((50, 1)), scores + labels[:, None]], axis=1), labels, log_odds, True)
    assert one.slope == pytest.approx(two.slope)
    assert one.shift[0] == pytest.approx(two.shift[1] - two.shift[0])


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n_classes", [2, 17, 100])
def test_the_slope_of_many_rows_is_the_true_one(n_classes: int, biased: bool) -> None:
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(min(20_000, 400_000 // n_classes), n_classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    for slope in (0.1, 1.0, 30.0):
        assert fit_scale(logits / slope, labels, True, biased).slope == pytest.approx(slope, rel=0.05)


def test_a_negative_slope_becomes_zero() -> None:
    labels = np.arange(60) % 3 % 2
    found = fit_scale(-labels[:, None] + 0.0, labels, log_odds=False, biased=True)
    assert found.slope == 0
    assert expit(found.shift[0]) == pytest.approx(1 / 3, abs=2e-3)  # the frequency


@pytest.mark.parametrize(("n", "share"), [(1000, 0.01), (2500, 0.01), (300, 0.05)])
def test_plain_scores_of_a_rare_class_get_their_slope_and_its_frequency(n: int, share: float) -> None:
    """Two normal classes 1.5 apart: the true log odds rise by 1.5; the median over 40 worlds, in units of the truth."""
    slopes, means = [], []
    for seed in range(40):
        rng = np.random.default_rng([seed, n])
        labels = (np.arange(n) < round(n * share)).astype(int)
        x = rng.normal(size=n) + 1.5 * labels
        found = fit_scale(x[:, None], labels, False, True)
        slopes.append(found.slope / 1.5)
        means.append(expit(found.slope * x + found.shift[0]).mean() / labels.mean())
    assert 0.8 < np.median(slopes) < 1.2
    assert 0.9 < np.median(means) < 1.1
