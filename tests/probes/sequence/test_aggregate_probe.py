"""Aggregated scores of a linear probe of tokens, against slow references."""

import json
from functools import cache

import numpy as np
import pytest
from planted_sequences import keyed, marked
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.linear_model import LogisticRegression, Ridge

from probekit.errors import DataError, UsageError
from probekit.options.curve import AGGREGATES
from probekit.probes import (
    AggregateProbe,
    LDAProbe,
    LogisticProbe,
    MeanDifferenceProbe,
    find_probe,
    load_probe,
    probe_name,
)
from probekit.probes.problem import Labels, every_problem
from probekit.probes.sequence.aggregate import TOKEN_PROBES
from probekit.probes.sequence.ragged import as_ragged, token_moments

WINDOW, K = 30, 3  # among the 20 to 60 tokens of the texts

OWN = {"softmax": {"temperature": 0.5}, "top-k": {"k": K}}
OWN |= {"rolling-max": {"window": WINDOW}, "ema-max": {"window": WINDOW}}


def slow_aggregate(scores: np.ndarray, how: str, side: float, width: float) -> float:
    """Scores [L] of one text as one number."""
    if how == "mean":
        return scores.mean()
    if how == "last":
        return scores[-1]
    if how == "max":
        return side * max(side * scores)
    if how == "rolling-max":
        n = min(WINDOW, len(scores))
        return side * max((side * scores)[i : i + n].mean() for i in range(len(scores) - n + 1))
    if how == "ema-max":
        averages = [side * scores[0]]
        for score in side * scores[1:]:
            averages.append(averages[-1] + 2 / (WINDOW + 1) * (score - averages[-1]))
        return side * max(averages)
    if how == "top-k":
        return float(side * np.mean(sorted(side * scores)[-K:]))
    weights = np.exp(side * scores / width - max(side * scores / width))
    return float(weights / weights.sum() @ scores)


@pytest.mark.parametrize("how", AGGREGATES)
@pytest.mark.parametrize("name", sorted(TOKEN_PROBES))
def test_decisions_equal_a_slow_reference(name, how):
    X, y = marked(80, 0)
    assert min(map(len, X)) < WINDOW < max(map(len, X))
    probe = AggregateProbe(name, how, C=0.1, **OWN.get(how, {})).fit(X, y)
    side, width = float(probe.side_[0]), 0.5 * float(probe.spread_[0])
    if how == "softmax":
        of_tokens = [x @ probe.coef_[0] + probe.intercept_[0] for x in X]
        first = np.mean([scores.mean() for scores in of_tokens])
        assert probe.spread_[0] == pytest.approx(
            np.sqrt(np.mean([(scores**2).mean() for scores in of_tokens]) - first**2), rel=1e-6
        )
    if how == "fitted-softmax":
        side, width = float(np.sign(probe.sharpness_[0])), float(1 / np.abs(probe.sharpness_[0]))
    slow = [slow_aggregate(x.astype(float) @ probe.coef_[0] + probe.intercept_[0], how, side, width) for x in X]
    np.testing.assert_allclose(
        probe.decision_function(X), probe.slope_[0] * np.array(slow) + probe.shift_[0], rtol=1e-7, atol=1e-7
    )
    np.testing.assert_allclose(probe.token_scores(X)[4], X[4].astype(float) @ probe.coef_[0] + probe.intercept_[0])


def test_each_text_counts_once_whatever_its_length():
    """Tokens with their text's label and 1 / L of its weight, in scikit-learn on standardised features."""
    X, y = marked(60, 0)
    X = [x.astype(np.float64) for x in X]  # solved to rounding error
    lengths = np.array([len(x) for x in X])
    tokens, labels, weights = np.concatenate(X), np.repeat(y, lengths), np.repeat(1 / lengths, lengths)
    mean = weights @ tokens / 60
    scale = np.sqrt(weights @ (tokens - mean) ** 2 / 60)
    Z, means = (tokens - mean) / scale, np.stack([x.mean(axis=0) for x in X])
    logistic, ridge = AggregateProbe("logistic", C=0.2).fit(X, y), AggregateProbe("ridge", C=0.2).fit(X, y)
    theirs = LogisticRegression(C=0.2, tol=1e-10, max_iter=1000).fit(Z, labels, weights)
    np.testing.assert_allclose(logistic.coef_, theirs.coef_ / scale, atol=1e-5)
    assert logistic.converged_
    assert 0 <= logistic.gap_ < 1e-6
    np.testing.assert_allclose(
        ridge.coef_[0], Ridge(alpha=1 / 0.4).fit(Z, 2 * labels - 1, weights).coef_ / scale, atol=1e-8
    )
    difference = AggregateProbe("mean-diff").fit(X, y).direction
    np.testing.assert_allclose(difference, MeanDifferenceProbe().fit(means, y).direction, atol=1e-7)
    moments = token_moments(as_ragged(X), Labels(y, 2), np.ones(60))
    centred = tokens - mean
    np.testing.assert_allclose(moments.covariance, (weights[:, None] * centred).T @ centred / 60, atol=1e-8)
    np.testing.assert_allclose(moments.class_means[1], means[y == 1].mean(axis=0), atol=1e-8)


def test_the_shrinkage_of_texts_of_one_token_is_ledoit_and_wolfs():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    rows = rng.normal(size=(90, 6)) @ rng.normal(size=(6, 6)) + np.eye(6)[y]
    Z = rows / rows.std(axis=0)
    within = Z - np.stack([Z[y == k].mean(axis=0) for k in range(3)])[y]
    shrinkage = ledoit_wolf_shrinkage(within, assume_centered=True)
    X = list(rows[:, None])
    expected = LDAProbe(shrinkage).fit_statistics(
        *vars(token_moments(as_ragged(X), Labels(y, 3), np.ones(90))).values()
    )
    np.testing.assert_allclose(AggregateProbe("lda").fit(X, y).coef_, expected.coef_, rtol=1e-8)
    doubled = AggregateProbe("lda").fit([np.repeat(x, 2, axis=0) for x in X], y)  # n is the number of texts
    np.testing.assert_allclose(doubled.coef_, expected.coef_, rtol=1e-8)


@cache
def pooled_score(name: str, how: str, marked_class: int) -> float:
    (X, y), (X_test, y_test) = marked(300, 0, marked_class), marked(400, 1, marked_class)
    return AggregateProbe(name, how, C=0.1).fit(X, y).score(X_test, y_test)


@pytest.mark.parametrize("how", ["max", "softmax", "top-k"])
@pytest.mark.parametrize("marked_class", [0, 1])
@pytest.mark.parametrize("name", ["logistic", "ridge", "lda"])
def test_finds_a_planted_token_that_mean_and_last_miss(name, how, marked_class):
    (X, y), (X_test, y_test) = marked(300, 0, marked_class), marked(400, 1, marked_class)
    probe = AggregateProbe(name, how, C=0.1, **({"k": 2} if how == "top-k" else {})).fit(X, y)
    assert probe.score(X_test, y_test) > 0.93
    assert probe.side_[0] == (1 if marked_class else -1)
    for missing in ("mean", "last"):
        assert pooled_score(name, missing, marked_class) < 0.75


def test_a_label_that_takes_two_features_of_one_token_needs_attention():
    """No linear score of tokens has its extreme where the label is, so no aggregate finds it."""
    (X, y), (X_test, y_test) = keyed(300, 0), keyed(400, 1)
    for how in AGGREGATES:
        assert AggregateProbe("logistic", how, C=0.1).fit(X, y).score(X_test, y_test) < 0.7


@pytest.mark.parametrize("marked_class", [0, 1])
def test_the_fitted_temperature_has_the_lowest_loss(marked_class):
    """Against scipy, which moves temperature, slope and bias together; the loss is that of `fit_scale`."""
    X, y = marked(120, 0, marked_class)
    probe = AggregateProbe("logistic", "fitted-softmax", C=0.1).fit(X, y)
    of_tokens, unit = probe.token_scores(X), float(probe.spread_[0])

    def loss(v) -> float:
        pooled = np.array([softmax(v[0] / unit * scores) @ scores for scores in of_tokens])
        z, share = v[1] / unit * (pooled - pooled.mean()) + v[2], y.mean()
        prior = 10 / len(y) * (share * np.logaddexp(0, -z) + (1 - share) * np.logaddexp(0, z))
        bias = v[2] - np.log(share / (1 - share))  # around the frequencies of the classes
        return float(np.logaddexp(0, -z * (2 * y - 1)).sum() + prior.sum() + bias**2 / 4)

    sharpness, slope = float(probe.sharpness_[0]), float(probe.slope_[0])
    pooled = np.array([softmax(sharpness * scores) @ scores for scores in of_tokens])
    own = loss([sharpness * unit, slope * unit, float(probe.shift_[0]) + slope * pooled.mean()])
    starts = [(s, 3.0, 0.0) for s in (-4.0, -1.0, 0.0, 1.0, 4.0)]
    best = min(
        (minimize(loss, start, method="Nelder-Mead", options={"maxiter": 800}) for start in starts), key=lambda r: r.fun
    )
    assert own == pytest.approx(best.fun, rel=1e-4)
    assert sharpness * unit == pytest.approx(best.x[0], rel=0.05)
    assert np.sign(sharpness) == (1 if marked_class else -1)


def test_a_low_temperature_is_the_maximum_and_a_high_one_the_mean():
    X, y = marked(100, 0)
    for temperature, how in ((1e-3, "max"), (1e6, "mean")):
        soft = AggregateProbe("ridge", "softmax", temperature=temperature).fit(X, y)
        np.testing.assert_allclose(
            soft.decision_function(X), AggregateProbe("ridge", how).fit(X, y).decision_function(X), rtol=1e-3, atol=1e-3
        )


def test_moving_averages_of_one_token_are_the_maximum_and_the_best_of_all_the_mean():
    X, y = marked(60, 0)
    wanted = AggregateProbe("ridge", "max").fit(X, y).decision_function(X)
    for how, options in (("rolling-max", {"window": 1}), ("ema-max", {"window": 1}), ("top-k", {"k": 1})):
        found = AggregateProbe("ridge", how, **options).fit(X, y)
        np.testing.assert_allclose(found.decision_function(X), wanted, rtol=1e-9, atol=1e-9)
    wanted = AggregateProbe("ridge", "mean").fit(X, y).decision_function(X)
    for how, options in (("rolling-max", {"window": 1000}), ("top-k", {"k": 1000})):
        found = AggregateProbe("ridge", how, **options).fit(X, y)
        np.testing.assert_allclose(found.decision_function(X), wanted, rtol=1e-6, atol=1e-6)


def test_several_classes():
    rng = np.random.default_rng(0)
    y, X = rng.integers(3, size=300), []
    for label in y:
        x = rng.normal(size=(rng.integers(5, 30), 8))
        x[rng.integers(len(x)), label] += 8
        X.append(x)
    for name in TOKEN_PROBES:
        probe = AggregateProbe(name, "max", C=0.1).fit(X[:200], y[:200])
        assert probe.coef_.shape == (3, 8)
        assert probe.shift_.shape == (3,)
        assert probe.score(X[200:], y[200:]) > 0.8
        np.testing.assert_allclose(probe.predict_proba(X[200:]).sum(axis=1), 1)


def test_many_problems_equal_one_by_one():
    X, y = marked(60, 0)
    weights = np.where(np.arange(60) < 45, 1.0, 0.0)
    for name in TOKEN_PROBES:
        strengths = [0.01, 1.0] if AggregateProbe(name).has_C else [None]
        problems = every_problem([Labels(y, 2)], strengths, [None, weights])
        found = AggregateProbe(name, "max").fit_many(as_ragged(X), problems)
        for probe, problem in zip(found, problems.problems, strict=True):
            rows = np.flatnonzero(np.ones(60) if problem.weighting == 0 else weights)
            alone = AggregateProbe(name, "max", C=problem.C or 1.0).fit([X[i] for i in rows], y[rows])
            np.testing.assert_allclose(probe.decision_function(X), alone.decision_function(X), rtol=1e-3, atol=1e-3)


def test_save_and_load(tmp_path):
    X, y = marked(40, 0)
    for name, how in [*(("logistic", how) for how in AGGREGATES), ("ridge", "max"), ("lda", "softmax")]:
        probe = AggregateProbe(name, how).fit(X, np.where(y, "yes", "no"))
        loaded = load_probe(probe.save(tmp_path / how))
        np.testing.assert_array_equal(loaded.decision_function(X), probe.decision_function(X))
        assert loaded.predict_labels(X[:3]).tolist() == probe.predict_labels(X[:3]).tolist()
        assert loaded.gap_ == probe.gap_


@pytest.mark.parametrize(("name", "value"), [("window", 0), ("k", 0), ("k", 2.5), ("window", True)])
def test_numbers_of_tokens_are_checked(tmp_path, name, value):
    X, y = marked(20, 0)
    with pytest.raises(UsageError, match=f"{name} must be a whole number"):
        AggregateProbe("ridge", "top-k", **{name: value}).fit(X, y)
    path = AggregateProbe("ridge", "top-k").fit(X, y).save(tmp_path / "probe")
    about = json.loads(path.read_text())
    about["parameters"][name] = value
    path.write_text(json.dumps(about))
    with pytest.raises(DataError, match=name):
        load_probe(path)


@pytest.mark.parametrize(("how", "option"), [("max", "window"), ("rolling-max", "k"), ("mean", "temperature")])
def test_a_number_that_an_aggregate_does_not_read_is_refused(how, option):
    with pytest.raises(UsageError, match=f"{how} reads no {option}, as .* leave it out"):
        AggregateProbe("ridge", how, **{option: 3}).fit(*marked(10, 0))


def test_found_by_name_and_named():
    assert probe_name(find_probe(None, 2, aggregate="max")) == "max-over-tokens-logistic"
    assert find_probe(LogisticProbe(C=3.0), 2, aggregate="mean").get_params()["C"] == 3.0
    assert probe_name(find_probe("attention", 2)) == "attention"
    for probe, how, message in (
        ("mlp", "max", "takes a linear probe of tokens, logistic, ridge, lda, mean-diff; got mlp"),
        ("attention", "max", "attention aggregates by itself"),
        (LogisticProbe(standardise=False), "max", "takes no standardise of the token probe"),
    ):
        with pytest.raises(UsageError, match=message):
            find_probe(probe, 2, aggregate=how)
    for name, how in (("attention", None), ("ridge", "mean")):
        with pytest.raises(UsageError, match="predicts classes, and 'year' holds a number"):
            find_probe(name, 0, "year", how)
    with pytest.raises(UsageError, match="unknown aggregate 'maximum'"):
        AggregateProbe("ridge", "maximum").fit(*marked(10, 0))
