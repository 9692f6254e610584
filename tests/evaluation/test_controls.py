"""Control tasks: one label per type, drawn as the training labels fall."""

import numpy as np
import pytest
import torch

from probekit.activations.activations import ActivationSet
from probekit.activations.layout import Layout
from probekit.evaluation.compare.controls import control_labels, control_types
from probekit.tasks.base import SPLITS, Task

TYPES = [f"w{i % 50}" for i in range(600)]
LABELS = (np.arange(600) % 10 < 3).astype(np.int64)


def acts_of(inputs, positions=("last",), tokens=None, **info) -> ActivationSet:
    n = len(inputs)
    splits = np.array([SPLITS[i % 3] for i in range(n)])
    task = Task("t", inputs, {"y": np.arange(n) % 2}, {"y": ["a", "b"]}, splits, "y", info=info)
    layout = Layout(list(positions), np.ones(n, dtype=np.int64), 0, tokens)
    return ActivationSet({("embed", None): torch.zeros(n * len(positions), 2)}, task, None, layout)


def test_a_type_has_one_label_in_every_split():
    for control in control_labels(LABELS, TYPES, 2, 5, seed=0):
        assert all(len(set(control[i::50])) == 1 for i in range(50))
        assert set(control) == {0, 1}


def test_labels_fall_as_those_of_training():
    """The mean over draws against the share of training, within four standard errors."""
    train = np.flatnonzero(np.arange(600) % 3 == 0)
    other = LABELS.copy()
    other[np.setdiff1d(np.arange(600), train)] = 0
    drawn = control_labels(other, TYPES, 2, 400, seed=1, train=train)
    p = LABELS[train].mean()
    assert abs(drawn.mean() - p) < 4 * np.sqrt(p * (1 - p) / (400 * 50))
    assert np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1] < 0.2


def test_draws_differ_and_the_seed_decides_each():
    first = control_labels(LABELS, TYPES, 2, 3, seed=0)
    assert first.dtype == np.int64
    assert len({one.tobytes() for one in first}) == 3
    np.testing.assert_array_equal(control_labels(LABELS, TYPES, 2, 2, seed=0), first[:2])
    assert (control_labels(LABELS, TYPES, 2, 3, seed=1) != first).any()


def test_every_class_of_training_is_drawn_or_nothing():
    labels = np.arange(60) % 5
    types = [i % 8 for i in range(60)]
    train = np.arange(30)
    drawn = control_labels(labels, types, 5, 6, seed=0, train=train)
    assert all(set(one[train]) == set(range(5)) for one in drawn)
    assert len(drawn) == 6
    assert control_labels(labels, [0] * 60, 5, 6, seed=0).shape == (0, 60)


def test_a_regression_has_values_of_training():
    values = np.linspace(0, 1, 600)
    drawn = control_labels(values, TYPES, 0, 3, seed=0)
    assert drawn.dtype == np.float64
    assert set(drawn.ravel()) <= set(values)
    assert all(len(set(drawn[0][i::50])) == 1 for i in range(50))


def test_a_regression_of_several_numbers_has_two_targets():
    """Each target holds two different numbers, which are no reason to keep a draw of one target alone."""
    targets = np.array([[1.0, 2.0], [3.0, 4.0]])[np.arange(20) % 2]
    draws = control_labels(targets, ["a", "b"] * 10, 0, 20, 0)
    assert draws.shape == (20, 20, 2)
    assert (np.ptp(draws, axis=1) > 0).all()


def test_the_type_is_the_token_that_is_read():
    tokens = np.array([5, 6, 7, 5, 6, 7])
    assert control_types(acts_of(["some text"] * 6, tokens=tokens)) == tokens.tolist()


def test_of_several_positions_each_has_its_types():
    tokens = np.array([1, 5, -1, 2, 6, -1, 3, 7, -1, 4, 8, -1])
    acts = acts_of(["a b", "b c", "c d", "d e"], ["first", "last", "mean"], tokens)
    assert control_types(acts.at("first")) == [1, 2, 3, 4]
    assert control_types(acts.at("last")) == [5, 6, 7, 8]
    assert control_types(acts.at("mean")) == ["b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("inputs", "how", "types"),
    [
        (["in Paris.", "in ROME!", "in “Oslo”"], {}, ["paris", "rome", "oslo"]),
        (["in Paris.", "in Rome.", "?!"], {"tokens": np.array([13, 13, 30])}, ["paris", "rome", "!"]),
        (["in Paris.", "on Rome.", "at"], {"positions": ["first"]}, ["in", "on", "at"]),
        ([[1, 2], [3, 4], [5]], {}, [2, 4, 5]),
        (["row:0", "row:1", "row:2"], {"no_texts": True}, None),
        (["it is so", "that is so", "no"], {}, None),
    ],
)
def test_words_stand_in_for_tokens(inputs, how, types):
    assert control_types(acts_of(inputs, **how)) == types


def test_a_control_of_texts_gives_equal_texts_one_label():
    acts = acts_of(["one text", "another", "one text", "third"])
    assert control_types(acts, "text") == [0, 1, 0, 2]
    assert control_types(acts_of([[1, 2], [3], [1, 2], [4]]), "text") == [0, 1, 0, 2]
    assert control_types(acts_of(["the same"] * 4), "text") is None
