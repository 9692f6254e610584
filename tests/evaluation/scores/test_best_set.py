import numpy as np
import pytest
from scipy.stats import binom, t, ttest_rel
from simulated_curves import WORLDS, apart, curve, values_of

from probekit.evaluation.scores.band import best_set
from probekit.evaluation.scores.bootstrap import Bootstrap


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
        jackknifed = np.stack([bootstrap.jackknifed(p, "accuracy") for p in layers])
        inside += best_set(*values_of(layers, bootstrap), jackknifed=jackknifed)[0]
    assert inside >= binom.ppf(1e-4, worlds, 0.92)


@pytest.mark.parametrize(("of_critical", "stays"), [(0.96, True), (1.04, False)])
def test_of_two_layers_the_worse_leaves_where_the_paired_t_test_rejects(of_critical, stays):
    """One-sided, on the values of six units whose mean is the layer's; a bootstrap's error lacks G / (G - 1)."""
    spread = np.array([0.01, -0.01, 0.01, -0.01, 0.01, -0.01])
    error = spread.std(ddof=1) / np.sqrt(6)
    units = np.stack([np.full(6, 0.5), 0.5 + spread + of_critical * t.isf(0.05, 5) * error])
    assert (ttest_rel(units[1], units[0], alternative="greater").pvalue > 0.05) == stays
    values = units.mean(axis=1)
    jackknifed = (6 * values[:, None] - units) / 5
    drawn = np.random.default_rng(0).normal(size=100_000) * error * np.sqrt(5 / 6)
    chosen = best_set(values, values[:, None] + np.stack([np.zeros_like(drawn), drawn]), jackknifed=jackknifed)
    assert chosen.tolist() == [stays, True]


def test_nothing_can_be_told_from_one_group():
    layers, _ = curve(0, 60, [0.5, 0.95])
    bootstrap = Bootstrap(60, groups=np.zeros(60))
    jackknifed = np.stack([bootstrap.jackknifed(p, "accuracy") for p in layers])
    assert best_set(*values_of(layers, bootstrap), jackknifed=jackknifed).all()
