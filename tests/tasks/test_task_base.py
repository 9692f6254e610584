"""Task: what it holds, what it refuses, and that equal tasks have equal fingerprints."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import probekit
from probekit.errors import DataError, UsageError
from probekit.tasks import Task, load_task
from probekit.tasks.base import SPLITS
from probekit.tasks.splitting.classes import count_line


def small(**changes) -> Task:
    task = Task(
        name="small",
        inputs=["a", "b", "c", "d", "e", "f"],
        labels={"label": np.array([0, 1, 0, 1, 0, 1])},
        label_names={"label": ["no", "yes"]},
        splits=np.repeat(SPLITS, 2),
        target="label",
    )
    return replace(task, **changes)


def labelled(*values: int) -> dict[str, np.ndarray]:
    return {"label": np.array(values)}


def test_a_good_task_passes_and_says_what_it_is():
    task = small()
    task.check()
    assert len(task) == 6
    assert task.n_classes() == 2
    assert task.ids == ["0", "1", "2", "3", "4", "5"]
    assert task.counts() == {split: {"no": 1, "yes": 1} for split in SPLITS}
    assert repr(task) == "Task('small': train 2, validation 2, test 2; target 'label' of 2 classes)"


def test_token_ids_and_an_index_for_each_example_pass():
    small(inputs=[[5], [6, 7], [1], [2], [3], [4]], position=np.array([0, -1, 0, 0, 0, 0])).check()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"labels": labelled(0, 0, 0, 0, 0, 0), "label_names": {"label": ["no"]}},
            DataError,
            "two classes.*train: no=2",
        ),
        ({"labels": labelled(0, 1, 0, 1, 0, 0)}, DataError, "every split needs every class.*test: no=2, yes=0"),
        ({"labels": labelled(0, 1, 0, 1, 0, -1)}, DataError, r"must be 0\.\.1.*test: -1=1, 0=1"),
        ({"labels": labelled(0, 1, 0, 1, 0, 2)}, DataError, r"must be 0\.\.1"),
        ({"labels": {"label": np.array([0.0] * 6)}}, DataError, "integers, got float64"),
        ({"labels": labelled(0, 1)}, DataError, "for each of the 6 inputs, got 2"),
        ({"labels": {}}, UsageError, "no label set 'label'"),
        ({"label_names": {"label": ["no", "yes"], "more": []}}, DataError, "name the same sets"),
        ({"splits": np.array(["train"] * 6)}, DataError, "train: no=3, yes=3; test: no=0, yes=0"),
        ({"splits": np.array(["train"] * 5 + ["dev"])}, DataError, r"got \['dev'\]"),
        ({"inputs": ["a", "b", " ", "d", "e", "f"]}, DataError, "example '2' has an empty input"),
        ({"inputs": [[1], [], [1], [1], [1], [1]]}, DataError, "example '1' has an empty input"),
        ({"ids": ["x"] * 6}, DataError, "ids must all differ, and .* occurs more than once"),
        ({"position": "lats"}, UsageError, "did you mean last"),
        ({"position": np.zeros(3, dtype=int)}, DataError, "position"),
        ({"groups": np.zeros(3, dtype=int)}, DataError, "groups"),
    ],
)
def test_check_refuses(changes, error, words):
    with pytest.raises(error, match=words) as caught:
        small(**changes).check()
    assert "\n" not in str(caught.value)


def test_fingerprint_is_of_values_and_not_of_their_types():
    tokens = [[5, 6], [6, 7], [1], [2], [3], list(range(2000))]
    plain = small(inputs=tokens).fingerprint()
    for like in (np.array, torch.tensor, tuple, lambda row: [np.int64(token) for token in row]):
        assert small(inputs=[like(row) for row in tokens]).fingerprint() == plain
        other = [*tokens[:5], [*range(1000), 0, *range(1001, 2000)]]
        assert small(inputs=[like(row) for row in other]).fingerprint() != plain
    names = {"label": [np.str_("no"), np.str_("yes")]}
    assert small(label_names=names, ids=[np.str_(i) for i in range(6)]).fingerprint() == small().fingerprint()


def test_fingerprint_sees_every_part_and_nothing_else():
    changes = [
        {"inputs": ["a", "b", "c", "d", "e", "F"]},
        {"inputs": [[1], [2], [3], [4], [5], [6]]},
        {"labels": labelled(1, 0, 0, 1, 0, 1)},
        {"label_names": {"label": ["yes", "no"]}},
        {"splits": np.repeat(SPLITS[::-1], 2)},
        {"ids": ["u", "v", "w", "x", "y", "z"]},
        {"groups": np.array([0, 0, 1, 1, 2, 2])},
        {"groups": np.array([0, 0, 1, 1, 2, 3])},
        {"position": "first"},
        {"position": np.zeros(6, dtype=int)},
    ]
    prints = [small().fingerprint(), *(small(**change).fingerprint() for change in changes)]
    assert len(set(prints)) == len(prints)
    assert small(name="other", info={"seed": 1}).fingerprint() == small().fingerprint()
    assert small(labels={"label": np.array([0, 1, 0, 1, 0, 1], dtype=np.int32)}).fingerprint() == small().fingerprint()


def test_subset_keeps_the_parts_together():
    task = small(position=np.arange(6), groups=np.arange(6) * 10)
    part = task.subset(np.array([4, 1]))
    assert (part.inputs, part.ids, part.splits.tolist()) == (["e", "b"], ["4", "1"], ["test", "train"])
    assert part.labels["label"].tolist() == [0, 1]
    assert isinstance(part.position, np.ndarray)
    assert part.groups is not None
    assert (part.position.tolist(), part.groups.tolist()) == ([4, 1], [40, 10])
    assert task.subset(task.splits == "test").inputs == ["e", "f"]


def test_many_classes_are_counted_in_one_short_line():
    line = count_line({"train": {f"class{i}": i for i in range(500)}, "test": {}})
    assert line.startswith("train: class0=0, ")
    assert line.endswith("and 497 more classes; test: nothing")


def test_agreement_loads_by_name_and_is_public():
    task = load_task("agreement", limit=40, position="mean")
    assert isinstance(task, probekit.Task)
    assert task.position == "mean"
    assert [int((task.splits == split).sum()) for split in SPLITS] == [40, 40, 40]
    assert task.fingerprint() == load_task("agreement", limit=40, position="mean").fingerprint()
    assert task.fingerprint() != load_task("agreement", limit=40, position="mean", seed=1).fingerprint()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_bad_row": "skp"}, "got 'skp'; did you mean skip"),
        ({"position": "frist"}, "did you mean first"),
        ({"limit": 0}, "limit must be a whole number, 1 or more; got 0"),
        ({"limit": 1}, "limit 1 is less than the 2 classes"),
        ({"text_column": "x"}, "has no columns"),
        ({"group_column": "x"}, "has no columns"),
    ],
)
def test_impossible_options_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        load_task("agreement", **options)


def test_lists_become_arrays_and_the_callers_dict_stays():
    given = {"label": [0, 1] * 3}
    splits: Any = ["train", "train", "validation", "validation", "test", "test"]
    task = Task("t", list("abcdef"), given, {"label": ["no", "yes"]}, splits, "label")  # pyright: ignore[reportArgumentType]
    task.check()
    assert task.counts() == {split: {"no": 1, "yes": 1} for split in ("train", "validation", "test")}
    assert given == {"label": [0, 1] * 3}


def unvalidated(n=200, seed=0, **changes) -> Task:
    """No validation split; classes of 3/4 and 1/4, half of the texts twice."""
    texts = [f"text {i % (3 * n // 4)}" for i in range(n)]
    labels = (np.random.default_rng(seed).permutation(n) % 4 == 0).astype(int)
    splits = np.where(np.arange(n) % 5 == 0, "test", "train")
    return small(inputs=texts, labels={"label": labels}, splits=splits, ids=[str(i) for i in range(n)], **changes)


def test_validation_may_be_missing_but_not_train_or_test():
    task = unvalidated()
    numbers = replace(task, labels={"label": np.arange(200.0)}, label_names={"label": []})
    for each in (task, numbers, numbers.with_validation()):
        each.check()
        for split in ("train", "test"):
            only = replace(each, splits=np.where(each.splits == "test", split, each.splits))
            only = replace(only, splits=np.where(each.splits == "train", split, only.splits))
            with pytest.raises(DataError, match=r"every split, got|every split needs"):
                only.check()
    with pytest.raises(DataError, match=r"validation: no=0, yes=1"):  # a validation split needs every class too
        small(labels=labelled(0, 1, 0, 1, 0, 1), splits=np.array(["train"] * 3 + ["test"] * 2 + ["validation"])).check()


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_carved_validation_split_is_stratified_grouped_and_seeded(fraction, seed):
    task = unvalidated(groups=np.arange(200) // 2)
    carved = task.with_validation(fraction, seed)
    carved.check()
    assert (carved.splits[task.splits == "test"] == "test").all()
    before, after = task.counts(), carved.counts()
    for name in ("no", "yes"):
        assert after["train"][name] + after["validation"][name] == before["train"][name]
        assert abs(after["validation"][name] - fraction * before["train"][name]) <= 4
    own = carved.splits != "test"
    assert carved.groups is not None
    for keys in (carved.groups, np.array(carved.inputs)):
        assert len(set(zip(keys[own], carved.splits[own], strict=True))) == len(set(keys[own]))
    assert carved.fingerprint() == task.with_validation(fraction, seed).fingerprint()
    assert carved.fingerprint() != task.with_validation(fraction, seed + 1).fingerprint()
    assert carved.info["validation_carved"] == {"fraction": fraction, "seed": seed}


def test_lists_of_token_ids_are_carved_too():
    task = unvalidated()
    ids = [np.array([i % 60, 1]) for i in range(200)]
    carved = replace(task, inputs=ids, splits=np.array(["train"] * 200)).with_validation()  # pyright: ignore
    assert all(carved.splits[i] == carved.splits[i + 60] for i in range(140))


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, float("nan")])
def test_impossible_fractions_are_refused(fraction):
    with pytest.raises(UsageError, match="fraction must be between 0 and 1"):
        unvalidated().with_validation(fraction)


def test_a_validation_split_that_is_there_stays():
    with pytest.raises(UsageError, match="has a validation split"):
        small().with_validation()
