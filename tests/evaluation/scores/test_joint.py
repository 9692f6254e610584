"""Band, best set and permutation test of the same curves, at their edges."""

import numpy as np
import pytest
from simulated_curves import curve, values_of

from probekit.errors import UsageError
from probekit.evaluation.scores.band import best_set, curve_band
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.permutation import permutation_test


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


def test_a_tiny_test_set_is_answered():
    layers = [Predictions(np.array([0, 1]), np.array([0, k]), np.array([0.0, k]), 2) for k in (0, 1)]
    bootstrap = Bootstrap(2)
    for metric in ("accuracy", "auroc"):
        values, resampled = values_of(layers, bootstrap, metric)
        known = metric == "accuracy"  # one row of a class says nothing of the other
        assert (np.isfinite(curve_band(bootstrap, layers, metric, resampled)) == known).all()
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
