import numpy as np
from scipy.stats import binom
from simulated_curves import WORLDS, apart, covers, curve, values_of

from probekit.evaluation.scores.band import curve_band
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions


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


def test_bands_hold_curves_that_are_nearly_perfect():
    """Wilson's intervals at the band's level hold all layers some 90% of the time."""
    n, accuracy, n_layers = 100, 0.99, 13
    inside, worlds = 0, 300
    for seed in range(worlds):
        right = np.random.default_rng([seed, n]).random((n_layers, n)) < accuracy
        truth = np.arange(n) % 2
        layers = [Predictions(truth, np.where(one, truth, 1 - truth), np.zeros(n), 2) for one in right]
        bootstrap = Bootstrap(n, seed, resamples=100)
        low, high = curve_band(bootstrap, layers, "accuracy", values_of(layers, bootstrap)[1]).T
        inside += ((low <= accuracy) & (accuracy <= high)).all()
    assert inside >= binom.ppf(1e-4, worlds, 0.98)


def test_bands_hold_curves_of_few_groups():
    """With five groups, where a quantile that takes the standard errors for known holds them 85% of the time."""
    inside, worlds = 0, 300
    for seed in range(worlds):
        layers, groups = apart(seed, 5, 13)
        bootstrap = Bootstrap(100, seed, groups, resamples=150)
        low, high = curve_band(bootstrap, layers, "accuracy", values_of(layers, bootstrap)[1]).T
        inside += ((low <= 0.8) & (high >= 0.8)).all()
    assert inside >= binom.ppf(1e-4, worlds, 0.95)


def test_a_band_contains_every_interval():
    layers, groups = curve(4, 120, np.linspace(0.5, 0.95, 7), size=6)
    bootstrap = Bootstrap(120, groups=groups)
    for metric in ("accuracy", "auroc"):
        band = curve_band(bootstrap, layers, metric, values_of(layers, bootstrap, metric)[1])
        each = np.array([bootstrap.intervals(p)[metric] for p in layers])
        assert (band[:, 0] <= each[:, 0]).all()
        assert (each[:, 1] <= band[:, 1]).all()


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
