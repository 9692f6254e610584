"""Directions of a place: placebos know nothing of the label."""

import numpy as np
import pytest
import torch

import probekit as pk
from probekit.causal.curve.problem import fit_place
from probekit.probes.lda import LDAProbe

N, D = 400, 6


@pytest.fixture(scope="module")
def correlated():
    """Activations in which the label lies along axis 0 and another label set, equal in 3 rows of 4, along axis 1."""
    rng = np.random.default_rng(0)
    label = np.arange(N) % 2
    other = np.where(np.arange(N) % 8 < 6, label, 1 - label)
    x_ND = torch.from_numpy(0.01 * rng.standard_normal((N, D)))
    x_ND[:, 0] += torch.from_numpy(10.0 * label)
    x_ND[:, 1] += torch.from_numpy(1.0 * other)
    names = {"label": ["a", "b"], "other": ["c", "d"]}
    labels = {"label": label, "other": other}
    task = pk.Task(name="two", inputs=[[1]] * N, labels=labels, label_names=names, target="label")
    return x_ND, task, LDAProbe().fit(x_ND.numpy(), label)


def found(correlated, k=1):
    x_ND, task, probe = correlated
    return {one.name: one for one in fit_place(x_ND, task, "label", ["other"], probe, k, 0).fitted}


def test_the_placebo_of_a_correlated_label_set_does_not_carry_the_label(correlated):
    place = found(correlated)
    axis = place["label other"].basis_Dk[:, 0].abs()
    assert axis[1] > 0.99
    assert axis[0] < 0.02  # the means of its classes over all rows differ mostly along axis 0
    assert place["mean-difference"].basis_Dk[0].abs() > 0.99


def test_equal_class_means_give_no_direction_and_placebos_all_the_same(correlated):
    x_ND, task, probe = correlated
    same = torch.full_like(x_ND, 3.0)
    place = {one.name: one for one in fit_place(same, task, "label", ["other"], probe, 1, 0).fitted}
    ranks = {name: one.basis_Dk.shape[1] for name, one in place.items()}
    assert [ranks[name] for name in ("probe", "mean-difference", "lda", "label other")] == [0, 0, 0, 0]
    assert ranks["random"] == ranks["covariance"] == 1


def test_a_label_that_is_all_that_varies_has_placebos_of_the_covariance(correlated):
    """Texts that end in one of two tokens: the activations of one class are all equal."""
    _, task, probe = correlated
    x_ND = torch.zeros(N, D) + torch.from_numpy(task.labels["label"])[:, None]
    place = {one.name: one for one in fit_place(x_ND, task, "label", ["other"], probe, 1, 0).fitted}
    assert place["covariance"].basis_Dk.shape[1] == 1
    assert place["label other"].basis_Dk.shape[1] == 0  # within a class it makes no difference
