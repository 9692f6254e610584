"""Splits that differ are reported; splits drawn at random are not, however many rows there are."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from probekit.tasks.base import Task
from probekit.tasks.quality.audit import audit, audit_dict
from probekit.tasks.quality.compare_splits import difference_text, split_differences
from probekit.tasks.splitting.splits import text_numbers


def random_task(n: int, seed: int, **changes) -> Task:
    """Texts of one to forty words, a third of them copies, in random splits."""
    rng = np.random.default_rng(seed)
    texts = ["word " * int(rng.integers(1, 41)) + str(i) for i in range(n)]
    for i in rng.choice(n, n // 6, replace=False):
        texts[i] = texts[rng.integers(n)]
    splits = rng.choice(["train", "validation", "test"], size=n, p=[0.6, 0.2, 0.2])
    labels = rng.integers(4, size=n)
    return replace(Task("t", texts, {"y": labels}, {"y": list("abcd")}, splits, "y"), **changes)


def found(task: Task) -> list[str]:
    return [difference_text(one) for one in split_differences(task, "y", text_numbers(task.inputs))]


@pytest.mark.parametrize("n", [30, 300, 3000])
def test_random_splits_are_alike(n):
    assert [line for seed in range(40) for line in found(random_task(n, seed))] == []


def test_length_labels_and_repetition_are_compared_with_train():
    task = random_task(1200, 0)
    long = np.array([len(text) for text in task.inputs])
    splits = np.where(long > np.quantile(long, 0.8), "test", "train")
    (line,) = found(replace(task, splits=splits))
    own, train = (long[splits == split].mean() for split in ("test", "train"))
    assert line == f"test texts are longer than train texts: {own:.1f} and {train:.1f} characters on average"
    labels = np.where((task.splits == "validation") & (np.arange(1200) % 2 == 0), 0, task.labels["y"])
    (line,) = found(replace(task, labels={"y": labels}))
    assert line.startswith("class 'a': ")
    texts = [task.inputs[i] if split != "test" else f"{task.inputs[i]} {i}" for i, split in enumerate(task.splits)]
    (line,) = found(replace(task, inputs=texts))
    assert line.startswith("texts that occur more than once: 0% of test, ")
    number = np.random.default_rng(0).normal(size=1200) + (task.splits == "test")
    (line,) = found(replace(task, labels={"y": number}, label_names={"y": []}))
    assert line.startswith("mean 'y': 0.8")


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_numbers_of_any_size_are_compared(scale):
    task = random_task(600, 3)
    values = (np.random.default_rng(1).normal(size=600) + (task.splits == "test")) * scale
    task = replace(task, labels={"y": values}, label_names={"y": []})
    kept = audit_dict(audit(task))
    (one,) = kept["differences"]
    assert (one["split"], one["what"]) == ("test", "target")
    assert 0.7 < one["d"] < 1.3
    own = values[task.splits == "train"] / scale
    assert kept["splits"]["train"]["std"] / scale == pytest.approx(own.std())
    assert one["values"][1] / scale == pytest.approx(own.mean())


def test_effects_and_their_tests_are_those_of_scipy():
    task = random_task(900, 1)
    rng = np.random.default_rng(0)
    labels = np.where((task.splits == "test") & (rng.random(900) < 0.4), 3, task.labels["y"])
    (one,) = split_differences(replace(task, labels={"y": labels}), "y", text_numbers(task.inputs))
    table = np.array([[((task.splits == s) & (labels == k)).sum() for k in range(4)] for s in ("test", "train")])
    p: float = stats.chi2_contingency(table, correction=False).pvalue  # pyright: ignore[reportAttributeAccessIssue]
    assert one["p"] == pytest.approx(p)
    shares = table / table.sum(axis=1, keepdims=True)
    assert one["total_variation"] == pytest.approx(np.abs(shares[0] - shares[1]).sum() / 2)
    assert one["values"] == pytest.approx(shares[:, 3])


def test_a_large_set_with_a_small_difference_is_not_reported():
    n = 60_000
    splits = np.array(["train", "test"])[np.arange(n) % 2]
    labels = (np.random.default_rng(0).random(n) < np.where(splits == "test", 0.55, 0.5)).astype(np.int64)
    task = Task("t", [f"text {i}" for i in range(n)], {"y": labels}, {"y": ["a", "b"]}, splits, "y")
    assert split_differences(task, "y", None) == []


def test_the_audit_holds_what_differs():
    task = random_task(600, 2)
    texts = [text * 2 if split == "validation" else text for text, split in zip(task.inputs, task.splits, strict=True)]
    kept = audit_dict(audit(replace(task, inputs=texts)))
    assert {(one["split"], one["what"]) for one in kept["differences"]} >= {("validation", "length")}
    assert any(line.startswith("validation texts are longer than train texts: ") for line in kept["findings"])


def tokens_task(classes: list[int], n_test: int, numbers: bool = False) -> Task:
    """Texts of 20 tokens each, all of the class of their text; the last ones are test."""
    splits = np.array(["train"] * (len(classes) - n_test) + ["test"] * n_test)
    labels = [np.full(20, k + 0.5 if numbers else k) for k in classes]
    ids = np.arange(20 * len(classes)).reshape(len(classes), 20).tolist()
    names = {"kind": [] if numbers else ["a", "b"]}
    return Task("tokens", ids, token_labels={"kind": labels}, label_names=names, splits=splits)


@pytest.mark.parametrize("numbers", [False, True])
def test_labels_of_tokens_are_compared_by_text(numbers):
    """With the same shares, 800 independent tokens would differ, and 40 texts do not."""
    by_chance = [0, 1] * 60 + [0] * 12 + [1] * 28
    found = audit(tokens_task(by_chance, 40, numbers), near=False)
    assert found.differences == []
    tokens = [np.repeat(np.array(by_chance)[part], 20) for part in (slice(120, None), slice(120))]
    alone = Task(
        "tokens",
        [[i] for i in range(3200)],
        {"kind": np.concatenate(tokens[::-1]) + (0.5 if numbers else 0)},
        {"kind": [] if numbers else ["a", "b"]},
        np.array(["train"] * 2400 + ["test"] * 800),
    )
    assert len(audit(alone, near=False).differences) == 1
    different = [0, 1] * 60 + [1] * 40
    (one,) = audit(tokens_task(different, 40, numbers), near=False).differences
    assert one["split"] == "test"
    assert one["values"] == ([1.5, 1.0] if numbers else [0.0, 0.5])


def test_random_texts_differ_no_more_often_than_they_should():
    """At p < 0.001 none of 60 random halves is reported, though tokens of one text have one label."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        classes = rng.permutation([0, 1] * 40).tolist()
        assert audit(tokens_task(classes, 30), near=False).differences == []
