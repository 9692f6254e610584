import numpy as np
import pytest
from probe_problems import problem
from sklearn.feature_selection import f_classif
from sklearn.linear_model import ElasticNet

from probekit.errors import UsageError
from probekit.probes import KSparseProbe, LogisticProbe, load_probe, rank_neurons
from probekit.probes.sparse import L1_RATIO, METHODS, PENALTIES


def planted(n=2000, d=40, informative=(7, 3, 21), n_classes=2, seed=0):
    """Labels that the features `informative` tell of, each less than the one before; every feature of its own scale."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n)
    X = rng.normal(size=(n, d))
    for strength, feature in zip((2, 1, 0.5), informative, strict=True):
        X[:, feature] += strength * y
    return X * 10 ** rng.uniform(-3, 3, d) + rng.normal(size=d), y


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_planted_neurons_come_first_in_their_order(method, n_classes):
    X, y = planted(n_classes=n_classes)
    neurons, scores = rank_neurons(X, y, method)
    assert neurons[:3].tolist() == [7, 3, 21]
    assert sorted(neurons) == list(range(40))
    assert (np.diff(scores) <= 0).all()


def test_mean_difference_ranks_two_classes_as_the_f_test():
    X, y = problem()
    X = np.delete(X, [3, 5], axis=1)
    neurons, scores = rank_neurons(X, y)
    np.testing.assert_array_equal(neurons, np.argsort(-f_classif(X, y)[0]))
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    np.testing.assert_allclose(scores, np.abs(Z[y == 1].mean(axis=0) - Z[y == 0].mean(axis=0))[neurons])


def test_elastic_net_scores_are_the_penalties_at_which_neurons_enter():
    X, y = planted(d=25, informative=(7, 3, 21), seed=1)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    neurons, scores = rank_neurons(X, y, "elastic-net")
    assert scores[0] == PENALTIES[1]  # at PENALTIES[0] itself none has a weight
    largest = np.abs(Z.T @ (y - y.mean())).max() / len(y) / L1_RATIO
    for penalty in (0.5, 0.1, 0.03):
        model = ElasticNet(alpha=largest * penalty, l1_ratio=L1_RATIO, tol=1e-8).fit(Z, y)
        entered = np.flatnonzero(model.coef_)
        assert set(neurons[scores > penalty * 1.08]) <= set(entered) <= set(neurons[scores > penalty / 1.08])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_k_sparse_probe_is_the_logistic_probe_of_its_neurons(method, n_classes, tmp_path):
    X, y = planted(n_classes=n_classes)
    probe = KSparseProbe(3, 0.5, method).fit(X, y)
    assert probe.neurons_.tolist() == [7, 3, 21]
    inner = LogisticProbe(0.5).fit(X[:, [7, 3, 21]], y)
    np.testing.assert_allclose(probe.decision_function(X), inner.decision_function(X[:, [7, 3, 21]]))
    assert np.flatnonzero(probe.direction.reshape(-1, 40).any(axis=0)).tolist() == [3, 7, 21]
    assert (probe.converged_, probe.n_iter_) == (inner.converged_, inner.n_iter_)
    np.testing.assert_array_equal(load_probe(probe.save(tmp_path / "p")).neurons_, probe.neurons_)


def test_unknown_methods_and_numbers_of_neurons_are_refused():
    with pytest.raises(UsageError, match="did you mean elastic-net"):
        rank_neurons(*problem(), method="elasticnet")
    for k in (0, -1, 2.0, "3", True):
        with pytest.raises(UsageError, match="k must be a whole number, 1 or more"):
            KSparseProbe().set_params(k=k).fit(*problem())
