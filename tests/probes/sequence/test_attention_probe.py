"""The attention probe: its objective, what it finds, and what it equals where the answer is known."""

# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_sequences import keyed, marked
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from probekit.errors import DataError, UsageError
from probekit.probes import AggregateProbe, AttentionProbe, LogisticProbe, load_probe
from probekit.probes.problem import Labels, every_problem
from probekit.probes.sequence.attention import AttentionProblems, joined_parameters, objective, path_to
from probekit.probes.sequence.ragged import as_ragged


def slow_objective(texts, y, weights, C, q, W, b) -> float:
    """One text after the other, as the docstring of the objective says."""
    total = 0.0
    for x, label, weight in zip(texts, y, weights, strict=True):
        z = sum(p * (W @ token + b) for p, token in zip(softmax(x @ q), x, strict=True))
        logits = np.array([0.0, z[0]]) if len(W) == 1 else z
        total -= weight * log_softmax(logits)[label]
    return 0.5 * (q @ q + (W * W).sum()) + C * total


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 4))
def test_objective_and_gradient_equal_a_slow_reference(seed, n_classes):
    rng = np.random.default_rng(seed)
    n, d, K = 7, 3, 1 if n_classes == 2 else n_classes
    texts = [rng.normal(size=(rng.integers(1, 6), d)) for _ in range(n)]
    y, weights = rng.integers(n_classes, size=(2, n)), rng.integers(3, size=(2, n)).astype(float)
    mean, scale, C = rng.normal(size=d), rng.uniform(0.5, 2, size=d), np.array([0.3, 5.0])
    problems = AttentionProblems(as_ragged(texts), mean, scale, y, weights, C, K)
    q, W, b = rng.normal(size=(2, d)), rng.normal(size=(2, K, d)), rng.normal(size=(2, K))
    theta = joined_parameters(q, W, b)
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


def test_no_small_step_from_the_solution_lowers_the_objective():
    X, y = keyed(100, 3)
    probe = AttentionProbe(C=0.1, tol=1e-8).fit(X, y)
    tokens = np.concatenate([x / len(x) for x in X]).sum(axis=0) / len(X), as_ragged(X)
    mean = tokens[0]
    scale = np.sqrt(sum(((x - mean) ** 2).mean(axis=0) for x in X) / len(X))
    problems = AttentionProblems(tokens[1], mean, scale, y[None], np.ones((1, len(y))), np.array([0.1]), 1)
    W = probe.coef_ * scale
    theta = joined_parameters((probe.query_ * scale)[None], W[None], (probe.intercept_ + probe.coef_ @ mean)[None])
    value, gradient = objective(problems, theta)
    assert value[0] == pytest.approx(probe.objective_, rel=1e-6)
    assert np.linalg.norm(gradient) < 1e-4
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert objective(problems, theta + 1e-3 * rng.normal(size=theta.shape))[0][0] > value[0]


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


def test_save_load_and_clone(tmp_path):
    X, y = marked(60, 0)
    probe = AttentionProbe(C=0.3).fit(X, np.where(y, "yes", "no"))
    loaded = load_probe(probe.save(tmp_path / "probe"))
    np.testing.assert_array_equal(loaded.decision_function(X), probe.decision_function(X))
    np.testing.assert_array_equal(loaded.attention(X)[3], probe.attention(X)[3])
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
    for parameters in ({"C": -1.0}, {"tol": 0.0}, {"max_iter": 0}, {"n_random": -1}):
        with pytest.raises(UsageError):
            AttentionProbe(**parameters).fit(X, y)
    with pytest.raises(DataError, match=r"must have the tokens \[L, 12\]"):
        AttentionProbe().fit(X, y).predict([np.zeros((2, 5))])
