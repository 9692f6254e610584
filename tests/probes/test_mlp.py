import numpy as np
import pytest
import torch
from probe_problems import problem
from scipy.special import log_softmax

from probekit.errors import UsageError
from probekit.probes import LogisticProbe, MLPProbe


def rings(n=1000, seed=0):
    """Two classes that no line tells apart: within and beyond a circle."""
    X = np.random.default_rng(seed).normal(size=(n, 2))
    return X, np.linalg.norm(X, axis=1) > 1.18


def test_it_reads_what_is_not_linear():
    X, y = rings(2000)
    train, test = slice(0, 1000), slice(1000, None)
    assert MLPProbe().fit(X[train], y[train]).score(X[test], y[test]) > 0.95
    assert LogisticProbe().fit(X[train], y[train]).score(X[test], y[test]) < 0.6


def test_with_nothing_held_out_it_memorises_random_labels():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 50)), rng.integers(3, size=200)
    memory = MLPProbe(hidden=256, weight_decay=0.0, validation_fraction=0.0).fit(X, y)
    assert memory.score(X, y) == 1
    assert memory.converged_
    assert memory.loss_ is not None
    assert memory.loss_ < 0.05
    stopped = MLPProbe(hidden=256).fit(X, y)
    assert stopped.n_iter_ < memory.n_iter_
    assert stopped.score(X, y) < 1


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_random_state_gives_one_probe_and_leaves_torch_alone(n_classes):
    X, y = problem(n_classes=n_classes)
    before = torch.get_rng_state(), torch.get_num_threads()
    with torch.no_grad():
        one, same, other = (MLPProbe(max_epochs=5, random_state=seed).fit(X, y) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]
    np.testing.assert_array_equal(one.decision_function(X), same.decision_function(X))
    assert np.abs(one.decision_function(X) - other.decision_function(X)).max() > 0.01


def test_scales_that_are_powers_of_two_change_nothing_at_all():
    X, y = problem()
    X -= X.mean(axis=0)
    scale = 2.0 ** np.arange(-6, 6)
    one, other = MLPProbe(max_epochs=5).fit(X, y), MLPProbe(max_epochs=5).fit(X * scale, y)
    np.testing.assert_array_equal(other.predict_proba(X * scale), one.predict_proba(X))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_loss_is_that_of_the_probe_itself(n_classes):
    X, y = problem(n_classes=n_classes)
    probe = MLPProbe(max_epochs=20, validation_fraction=0.0).fit(X, y)
    truth = log_softmax(np.log(probe.predict_proba(X)), axis=1)[np.arange(len(y)), y]
    assert probe.loss_ == pytest.approx(-truth.mean(), rel=1e-4)


def test_a_fit_that_was_cut_short_says_so():
    X, y = rings()
    assert not MLPProbe(max_epochs=2).fit(X, y).converged_
    assert MLPProbe(patience=1, learning_rate=1e-9).fit(X, y).converged_


def test_a_fit_that_only_made_things_worse_did_not_converge():
    assert not MLPProbe(learning_rate=1e3).fit(*rings()).converged_


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("hidden", 0), ("hidden", 2.5), ("batch_size", True), ("max_epochs", 0), ("patience", "3")),
        *(("learning_rate", 0), ("weight_decay", -1.0), ("validation_fraction", 1.0), ("validation_fraction", -0.1)),
    ],
)
def test_parameters_out_of_range_are_refused(name, value):
    with pytest.raises(UsageError, match=f"{name} must be"):
        MLPProbe(**{name: value}).fit(*problem())
