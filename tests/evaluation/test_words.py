"""Words as examples: what the word alone says, what is learnt by heart, and an audit of their texts."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

from probekit.activations.activations import ActivationSet
from probekit.evaluation.compare.baseline_fits import word_type
from probekit.evaluation.compare.controls import control_types
from probekit.tasks.base import Task
from probekit.tasks.quality.audit import audit, audit_lines
from probekit.verbs.train_probes import train_probes

RNG = np.random.default_rng(0)


def world(n_texts=90, noise=0.3, position="last") -> ActivationSet:
    """Four words a text; the class is the first letter of the word, but for some; activations show it with noise."""
    inputs, spans, labels = [], [], []
    rng = np.random.default_rng(1)
    for _ in range(n_texts):
        words = [f"{'ab'[rng.integers(2)]}{rng.integers(9)}" for _ in range(4)]
        inputs += [" ".join(words)] * 4
        spans += [(3 * i, 3 * i + 2) for i in range(4)]
        labels += [int(word[0] == "b") if rng.random() > 0.1 else int(rng.integers(2)) for word in words]
    labels = np.array(labels)
    splits = np.repeat(np.array(["train", "train", "validation", "test"])[np.arange(n_texts) % 4], 4)
    groups = np.repeat(np.arange(n_texts), 4)
    task = Task(
        "words",
        inputs,
        {"y": labels},
        {"y": ["a", "b"]},
        splits,
        "y",
        position=position,
        groups=groups,
        spans=np.array(spans),
    )
    x = np.eye(2)[labels] + noise * rng.normal(size=(len(labels), 2))
    return ActivationSet({("resid_pre", 0): torch.from_numpy(x.astype(np.float32))}, task)


@pytest.mark.parametrize("n_classes", [2, 3, 0])
def test_the_word_type_baseline_against_counting(n_classes):
    types = RNG.integers(30, size=400).tolist()
    labels = RNG.integers(n_classes, size=400) if n_classes else RNG.normal(size=400)
    train = np.arange(150)
    guess = word_type(types, labels, train, n_classes)
    for i in range(400):
        own = [labels[j] for j in train if types[j] == types[i]]
        if not n_classes:
            assert guess.predicted[i] == pytest.approx(np.mean(own if own else labels[train]))
            continue
        counts = Counter(own or labels[train].tolist())
        assert counts[guess.predicted[i]] == max(counts.values())
        assert guess.probabilities is not None
        shares = [counts[k] / counts.total() for k in range(n_classes)]
        np.testing.assert_allclose(guess.probabilities[i], shares)


def test_of_equally_common_classes_the_commoner_of_all():
    labels = np.array([0, 1, 1, 1, 0])
    guess = word_type(["x", "x", "y", "y", "new"], labels, np.arange(4), 2)
    assert guess.predicted.tolist() == [1, 1, 1, 1, 1]


def test_the_type_is_the_word_whatever_token_is_read():
    for position in ("first", "last", "mean"):
        acts = world(position=position)
        assert control_types(acts) == acts.task.words
    same = replace(acts.task, inputs=["a a a a"] * 360, spans=np.array([(0, 1)] * 360))
    assert control_types(ActivationSet(dict(acts), same)) is None


def test_a_curve_of_words():
    acts = world()
    results = train_probes(acts, C=1.0, codelength=False)
    assert [baseline.name for baseline in results.baselines] == ["majority", "word-type"]
    task = acts.task
    train, test = np.flatnonzero(task.splits == "train"), np.flatnonzero(task.splits == "test")
    guess = word_type(task.words or [], task.labels["y"], train, 2)
    expected = accuracy_score(task.labels["y"][test], guess.predicted[test])
    assert results.baselines[1].metrics["test"]["accuracy"] == pytest.approx(expected)
    assert results.meta["control"]["type"] == "word"
    assert results.meta["interval"]["unit"] == "group"
    assert "a random label for each distinct word, mean of" in results.summary()


def test_folds_keep_texts_together():
    results = train_probes(world(24), C=1.0, codelength=False, folds=3, controls=1)
    assert [baseline.name for baseline in results.baselines] == ["majority", "word-type"]
    assert results.meta["audit"]["linked"] == 0


def test_the_audit_counts_texts():
    """A text of several words is no conflict and no duplicate of itself; one that stands in two splits leaks once."""
    task = world().task
    found = audit(task)
    assert found.conflicts["texts"] == 0
    assert audit_lines(found) == []
    assert found.splits["train"]["texts"] == 46
    assert found.splits["train"]["n"] == 4 * 46
    assert found.splits["train"]["median_length"] == 4
    inputs = list(task.inputs)
    inputs[12:16] = inputs[:4]  # text 3 is of test, text 0 of train
    leaky = audit(replace(task, inputs=inputs))
    assert leaky.shared["test in train"]["exact"] == 1
    assert leaky.shared["test in train"]["n"] == 22
    assert leaky.leaks.tolist() == [0, 1, 2, 3]
    assert "1 of the 22 test texts also occurs in train" in " ".join(audit_lines(leaky))


def test_one_word_with_two_labels_is_a_conflict():
    task = world(40).task
    spans = np.array(task.spans)
    spans[1] = spans[0]
    labels = task.labels["y"].copy()
    labels[:2] = 0, 1
    found = audit(replace(task, spans=spans, labels={"y": labels}))
    assert (found.conflicts["texts"], found.conflicts["rows"]) == (1, 2)
    assert "1 word with contradictory labels (2 rows)" in " ".join(audit_lines(found))
