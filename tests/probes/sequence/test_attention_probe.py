"""The attention probe: its objective, what it finds, and what it equals where the answer is known."""

# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false

import json
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_sequences import keyed, marked, two_cues
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from probekit.errors import DataError, UsageError
from probekit.probes import AggregateProbe, AttentionProbe, LogisticProbe, MultiMaxProbe, load_probe
from probekit.probes.problem import Labels, every_problem
from probekit.probes.sequence.attention import (
    SMOOTH,
    HeadsProblems,
    joined_parameters,
    objective,
    path_to,
    split_parameters,
)
from probekit.probes.sequence.ragged import as_ragged


def slow_pooled(x, q, W) -> np.ndarray:
    """The sum over heads for the tokens of one text: by attention with queries [H, D], or smooth maxima without."""
    if len(q):
        each = [read @ (softmax(x @ own) @ x) for own, read in zip(q, W, strict=True)]
    else:
        each = [[SMOOTH * float(logsumexp(x @ row / SMOOTH)) for row in read] for read in W]
    return np.sum(each, axis=0)


def slow_objective(texts, y, weights, C, q, W, b) -> float:
    """One text after the other, as the docstring of the objective says; q [Q, D], W [H, K, D], b [K]."""
    total = 0.0
    for x, label, weight in zip(texts, y, weights, strict=True):
        z = slow_pooled(x, q, W) + b
        logits = np.array([0.0, z[0]]) if len(b) == 1 else z
        total -= weight * log_softmax(logits)[label]
    return 0.5 * ((q * q).sum() + (W * W).sum()) + C * total


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(1, 3), st.sampled_from(["attention", "max"]))
def test_objective_and_gradient_equal_a_slow_reference(seed, n_classes, heads, pooling):
    rng = np.random.default_rng(seed)
    n, d, K, Q = 7, 3, 1 if n_classes == 2 else n_classes, heads if pooling == "attention" else 0
    texts = [rng.normal(size=(rng.integers(1, 6), d)) for _ in range(n)]
    y, weights = rng.integers(n_classes, size=(2, n)), rng.integers(3, size=(2, n)).astype(float)
    mean, scale, C = rng.normal(size=d), rng.uniform(0.5, 2, size=d), np.array([0.3, 5.0])
    problems = HeadsProblems(as_ragged(texts), mean, scale, y, weights, C, K, heads, pooling)
    q, W, b = rng.normal(size=(2, Q, d)), rng.normal(size=(2, heads, K, d)), rng.normal(size=(2, K))
    theta = joined_parameters(q, W, b)
    for made, found in zip((q, W, b), split_parameters(theta, problems), strict=True):
        np.testing.assert_array_equal(made, found)
    value, gradient = objective(problems, theta)
    standard = [(x - mean) / scale for x in texts]
    expected = [slow_objective(standard, y[p], weights[p], C[p], q[p], W[p], b[p]) for p in range(2)]
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    move = rng.normal(size=theta.shape)
    ends = [objective(problems, theta + step * move)[0] for step in (1e-5, -1e-5)]
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, (gradient * move).sum(axis=1), rtol=1e-5, atol=1e-6)


@cache
def fitted(make) -> AttentionProbe:
    return AttentionProbe(C=0.3).fit(*make(300, 0))


@pytest.mark.parametrize("make", [marked, keyed])
def test_finds_a_planted_token_that_mean_and_last_miss(make):
    (X, y), (X_test, y_test), probe = make(300, 0), make(400, 1), fitted(make)
    assert probe.converged_
    assert probe.score(X_test, y_test) > 0.93
    for pool in (lambda x: x.mean(axis=0), lambda x: x[-1]):
        rows = LogisticProbe(C=0.3).fit(np.stack([pool(x) for x in X]), y)
        assert rows.score(np.stack([pool(x) for x in X_test]), y_test) < 0.72


def test_attends_to_the_token_that_carries_the_label():
    X_test, _ = keyed(200, 1)
    attention = fitted(keyed).attention(X_test)
    for own, x in zip(attention, X_test, strict=True):
        assert own.shape == (len(x),)
        assert own.sum() == pytest.approx(1)
    at_key = [own.argmax() == x[:, 0].argmax() for own, x in zip(attention, X_test, strict=True)]
    assert np.mean(at_key) > 0.9


def test_a_query_of_zero_is_the_mean():
    X, y = marked(60, 0)
    probe = AttentionProbe().fit(X, y)
    probe.query_ = np.zeros_like(probe.query_)
    means = np.stack([x.astype(np.float64).mean(axis=0) for x in X])
    np.testing.assert_allclose(probe.decision_function(X), means @ probe.coef_[0] + probe.intercept_, atol=1e-10)
    for own, x in zip(probe.attention(X), X, strict=True):
        np.testing.assert_allclose(own, 1 / len(x))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_texts_of_one_token_are_logistic_regression(n_classes):
    """The query then weighs nothing, so the penalty makes it 0, and the rest is the certified objective."""
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=200)
    X = rng.normal(size=(200, 5)) + 1.5 * np.eye(5)[y]
    ours, certified = AttentionProbe(C=0.5, tol=1e-8).fit(list(X[:, None]), y), LogisticProbe(C=0.5).fit(X, y)
    assert np.abs(ours.query_).max() < 1e-6
    assert ours.objective_ == pytest.approx(certified.objective_, rel=1e-6)
    np.testing.assert_allclose(ours.predict_proba(list(X[:, None])), certified.predict_proba(X), atol=1e-4)


def own_objective(probe, X, y, C):
    """The slow objective of one vector of parameters on standardised tokens, and the vector of a fitted probe."""
    H, D, Q = probe.heads, X[0].shape[1], probe.heads if isinstance(probe, AttentionProbe) else 0
    mean = sum(x.mean(axis=0) for x in X) / len(X)
    scale = np.sqrt(sum(((x - mean) ** 2).mean(axis=0) for x in X) / len(X))
    standard, side = [(x - mean) / scale for x in X], 1.0 if Q else probe.side_[0]
    labels = y if side > 0 else 1 - y

    def value(theta) -> float:
        parts = theta[: Q * D].reshape(Q, D), theta[Q * D : -1].reshape(H, 1, D), theta[-1:]
        return slow_objective(standard, labels, np.ones(len(y)), C, *parts)

    coef = probe.coef_.reshape(H, 1, D)
    q = probe.query_.reshape(H, D) * scale if Q else np.zeros((0, D))
    b = side * probe.intercept_ + coef.sum(axis=0) @ mean
    return value, np.concatenate([q.ravel(), (coef * scale).ravel(), b])


@pytest.mark.parametrize(
    "probe", [AttentionProbe(C=0.1, tol=1e-8), AttentionProbe(C=0.1, tol=1e-8, heads=2), MultiMaxProbe(0.1, tol=1e-7)]
)
def test_no_small_step_from_the_solution_lowers_the_objective(probe):
    X, y = keyed(100, 3)
    X = [x.astype(np.float64) for x in X]
    probe.fit(X, y)
    value, theta = own_objective(probe, X, y, 0.1)
    lowest = value(theta)
    assert lowest == pytest.approx(probe.objective_, rel=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(20):
        move = rng.normal(size=theta.shape)
        assert value(theta + 1e-3 * move) > lowest
        assert abs(value(theta + 1e-5 * move) - value(theta - 1e-5 * move)) / 2e-5 < 1e-2


@pytest.mark.parametrize("kind", [AttentionProbe, MultiMaxProbe])
def test_scipy_finds_no_lower_minimum_from_random_starts(kind):
    X, y = two_cues(40, 0, d=3)
    X = [x[-8:].astype(np.float64) for x in X]
    probe = kind(C=0.3, heads=2).fit(X, y)
    value, theta = own_objective(probe, X, y, 0.3)
    rng = np.random.default_rng(1)
    found = [minimize(value, rng.normal(size=theta.shape), method="BFGS", options={"maxiter": 60}) for _ in range(4)]
    assert value(theta) <= min(one.fun for one in found) * (1 + 1e-4)
    assert value(theta) == pytest.approx(minimize(value, theta, method="BFGS").fun, rel=1e-4)


@pytest.mark.parametrize("marked_class", [0, 1])
@pytest.mark.parametrize("kind", [AttentionProbe, MultiMaxProbe])
def test_two_heads_find_two_cues_and_one_finds_half(kind, marked_class):
    """Either cue decides, and one query, or one maximum, cannot look for both."""
    (X, y), (X_test, y_test) = two_cues(300, 0, marked_class), two_cues(400, 1, marked_class)
    one, two = (kind(C=0.1, heads=heads).fit(X, y) for heads in (1, 2))
    assert one.converged_
    assert two.converged_
    assert one.score(X_test, y_test) < 0.8
    assert two.score(X_test, y_test) > 0.95
    assert two.objective_ < 0.5 * one.objective_


def test_a_multimax_is_the_sum_of_the_highest_scores_of_heads():
    X, y = two_cues(80, 0)
    probe = MultiMaxProbe(C=0.1, heads=3).fit(X, y)
    slow = [sum(max(float(v @ t) for t in x) for v in probe.coef_[:, 0].astype(float)) for x in X]
    slow = probe.side_[0] * np.array(slow) + probe.intercept_[0]
    np.testing.assert_allclose(probe.decision_function(X), slow, rtol=1e-7, atol=1e-7)
    other = MultiMaxProbe(C=0.1, heads=3).fit(X, 1 - y)
    assert (probe.side_[0], other.side_[0]) == (1, -1)
    np.testing.assert_allclose(other.decision_function(X), -probe.decision_function(X), rtol=0.05, atol=0.05)
    longer = [np.concatenate([x, x[:5]]) for x in X]  # a token that is there twice counts once
    np.testing.assert_allclose(probe.decision_function(longer), probe.decision_function(X), rtol=1e-9, atol=1e-9)


def test_heads_that_weigh_nothing_and_heads_that_share_change_nothing():
    X, y = keyed(80, 0)
    one = AttentionProbe(C=0.3).fit(X, y)
    two = AttentionProbe(C=0.3, heads=2).fit(X, y)
    two.intercept_ = one.intercept_
    for query, coef in (
        (np.stack([one.query_, two.query_[1]]), np.stack([one.coef_, 0 * one.coef_])),
        (np.stack([one.query_, one.query_]), np.stack([0.3 * one.coef_, 0.7 * one.coef_])),
    ):
        two.query_, two.coef_ = query, coef
        np.testing.assert_allclose(two.decision_function(X), one.decision_function(X), rtol=1e-9, atol=1e-9)
        for own, of_heads in zip(one.attention(X), two.attention(X), strict=True):
            assert of_heads.shape == (len(own), 2)
            np.testing.assert_allclose(of_heads[:, 0], own)


def test_the_path_has_every_strength_and_no_step_over_ten():
    assert path_to({0.01, 0.1, 1.0, 10.0}, 1000) == pytest.approx([0.003, 0.01, 0.1, 1, 10])
    assert path_to({1.0}, 300) == pytest.approx([0.01, 0.1, 1])
    assert path_to({1e-5, 2.0}, 300) == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 2])
    assert path_to({1e-3}, 10) == [1e-3]


def test_texts_without_weight_play_no_part():
    """Not even where they hold values of another size, which would change the scale of the features."""
    X, y = marked(60, 0)
    weights = np.where(np.arange(60) < 40, 1.0, 0.0)
    wild = [x if weight else 1000 * x for x, weight in zip(X, weights, strict=True)]
    (probe,) = AttentionProbe(C=0.1, n_random=1).fit_many(
        as_ragged(wild), every_problem([Labels(y, 2)], [0.1], [weights])
    )
    alone = AttentionProbe(C=0.1, n_random=1).fit(X[:40], y[:40])
    np.testing.assert_array_equal(probe.query_, alone.query_)
    np.testing.assert_array_equal(probe.coef_, alone.coef_)


def test_several_classes_and_names():
    rng = np.random.default_rng(0)
    y, X = rng.integers(3, size=300), []
    for label in y:
        x = rng.normal(size=(rng.integers(5, 20), 8))
        x[rng.integers(len(x)), label] += 6
        X.append(x)
    probe = AttentionProbe(C=1.0).fit(X[:200], np.array(["a", "b", "c"])[y[:200]])
    assert probe.coef_.shape == (3, 8)
    assert (probe.predict_labels(X[200:]) == np.array(["a", "b", "c"])[y[200:]]).mean() > 0.85
    np.testing.assert_allclose(probe.predict_proba(X[200:]).sum(axis=1), 1)


def test_order_of_texts_type_and_container_do_not_matter():
    X, y = marked(60, 0)
    one = AttentionProbe(C=0.3, n_random=2).fit(X, y)
    order = np.random.default_rng(0).permutation(len(y))
    other = AttentionProbe(C=0.3, n_random=2).fit([torch.from_numpy(X[i]) for i in order], y[order])
    np.testing.assert_allclose(other.decision_function(X), one.decision_function(X), atol=1e-3)
    same = np.random.default_rng(0).normal(size=(30, 4, 3))
    labels = np.arange(30) % 2
    np.testing.assert_array_equal(
        AttentionProbe().fit(same, labels).query_, AttentionProbe().fit(list(same), labels).query_
    )


def test_fitting_again_gives_the_same_bits_and_many_problems_the_same_probes():
    X, y = keyed(80, 0)
    X = [x[-8:] for x in X]
    other = np.random.default_rng(1).integers(2, size=80)
    weights = np.where(np.arange(80) < 60, 1.0, 0.0)
    problems = every_problem([Labels(y, 2), Labels(other, 2)], [0.03, 0.3], [None, weights])
    many = AttentionProbe(n_random=2).fit_many(as_ragged(X), problems)
    again = AttentionProbe(n_random=2).fit_many(as_ragged(X), problems)
    for one, same, problem in zip(many, again, problems.problems, strict=True):
        np.testing.assert_array_equal(one.query_, same.query_)
        rows = np.flatnonzero(np.ones(80) if problem.weighting == 0 else weights)
        labels = (y, other)[problem.label]
        alone = AttentionProbe(C=problem.C, n_random=2).fit([X[i] for i in rows], labels[rows])
        assert one.objective_ <= alone.objective_ * 1.05  # a longer path may find another minimum
        if problem.C == 0.03:
            assert one.objective_ == pytest.approx(alone.objective_, rel=1e-5)


@pytest.mark.parametrize("kind", [AttentionProbe(), AttentionProbe(heads=3), MultiMaxProbe(), MultiMaxProbe(heads=1)])
@pytest.mark.parametrize("names", [("no", "yes"), ("a", "b", "c")])
def test_save_load_and_clone(tmp_path, kind, names):
    X, y = marked(60, 0)
    y = (y + (len(names) == 3) * (np.arange(60) % 2)).astype(int)
    probe = clone(kind).set_params(C=0.03, n_random=2).fit(X, np.array(names)[y])
    path = probe.save(tmp_path / "probe")
    loaded = load_probe(path)
    np.testing.assert_array_equal(loaded.decision_function(X), probe.decision_function(X))
    if isinstance(probe, AttentionProbe):
        np.testing.assert_array_equal(loaded.attention(X)[3], probe.attention(X)[3])
    for heads in (probe.heads + 1, 0, 1.5):
        (tmp_path / "other.safetensors").write_bytes(path.with_suffix(".safetensors").read_bytes())
        about = json.loads(path.read_text())
        about["parameters"]["heads"] = heads
        (tmp_path / "other.json").write_text(json.dumps(about))
        with pytest.raises(DataError, match="not a complete probe"):
            load_probe(tmp_path / "other")
    assert loaded.predict_labels(X[:5]).tolist() == probe.predict_labels(X[:5]).tolist()
    assert loaded.gradient_norm_ == probe.gradient_norm_
    assert clone(probe).get_params() == probe.get_params()


def test_says_that_it_has_not_converged():
    X, y = keyed(60, 0)
    with pytest.warns(ConvergenceWarning, match="not converged after"):
        probe = AttentionProbe(C=10.0, max_iter=2).fit(X, y)
    assert not probe.converged_
    assert not hasattr(AttentionProbe, "gap_") or AttentionProbe.gap_ is None


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (np.zeros((4, 3)), UsageError, r"takes a list of arrays \[L, D\].*got \[4, 3\]"),
        ([], DataError, "got none"),
        ([np.zeros((2, 3)), np.zeros((0, 3))], DataError, r"text 1 must have the tokens \[L, 3\]"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], DataError, "text 1 must have"),
        ([np.zeros((2, 3)), np.full((2, 3), np.nan)], DataError, "text 1 holds NaN or infinity"),
    ],
)
@pytest.mark.parametrize("probe", [AttentionProbe(), AggregateProbe()], ids=["attention", "aggregate"])
def test_refuses_other_input_with_the_text(probe, X, error, message):
    with pytest.raises(error, match=message):
        probe.fit(X, np.arange(len(X)) % 2)


def test_refuses_labels_and_parameters():
    X, y = marked(20, 0)
    with pytest.raises(DataError, match="a label for each of the 20 texts, got 19"):
        AttentionProbe().fit(X, y[:-1])
    with pytest.raises(DataError, match="two classes or more"):
        AttentionProbe().fit(X, np.zeros(20))
    for parameters in ({"C": -1.0}, {"tol": 0.0}, {"max_iter": 0}, {"n_random": -1}, {"heads": 0}):
        for kind in (AttentionProbe, MultiMaxProbe):
            with pytest.raises(UsageError):
                kind(**parameters).fit(X, y)
    with pytest.raises(DataError, match=r"must have the tokens \[L, 12\]"):
        AttentionProbe().fit(X, y).predict([np.zeros((2, 5))])
