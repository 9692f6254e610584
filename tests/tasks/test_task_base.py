"""Task: what it makes of lists and texts, what it refuses, equal fingerprints, and what holds of the built-in ones."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import probekit
from probekit.errors import DataError, ProbekitError, UsageError
from probekit.selections import Selection
from probekit.tasks import BUILTIN_TASKS, Task, load_task
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
        ({"labels": {}}, UsageError, "no label set 'label'"),
        ({"label_names": {"label": ["no", "yes"], "more": []}}, DataError, "name the same sets"),
        ({"splits": np.array(["train"] * 6)}, DataError, "train: no=3, yes=3; test: no=0, yes=0"),
        ({"splits": np.array(["train"] * 5 + ["dev"])}, DataError, r"got \['dev'\]"),
        ({"inputs": ["a", "b", " ", "d", "e", "f"]}, DataError, "example '2' has an empty input"),
        ({"inputs": [[1], [], [1], [1], [1], [1]]}, DataError, "example '1' has an empty input"),
        ({"position": "lats"}, UsageError, "did you mean last"),
    ],
)
def test_check_refuses(changes, error, words):
    with pytest.raises(error, match=words) as caught:
        small(**changes).check()
    assert "\n" not in str(caught.value)


def test_fingerprint_sees_the_class_names_and_the_position_but_not_the_name():
    """And every column (`test_fields`)."""
    changes: list[dict[str, Any]] = [{}, {"label_names": {"label": ["yes", "no"]}}, {"position": "first"}]
    prints = [small(**change).fingerprint() for change in changes]
    assert len(set(prints)) == len(prints)
    assert small(name="other", info={"seed": 1}).fingerprint() == prints[0]
    assert small(labels={"label": np.array([0, 1, 0, 1, 0, 1], dtype=np.int32)}).fingerprint() == prints[0]
    names = {"label": [np.str_("no"), np.str_("yes")]}
    assert small(label_names=names, ids=[np.str_(i) for i in range(6)]).fingerprint() == prints[0]


def test_subset_keeps_the_parts_together():
    task = small(position=np.arange(6), groups=np.arange(6) * 10)
    assert small(position=Selection.of(np.arange(6)), groups=np.arange(6) * 10).fingerprint() == task.fingerprint()
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


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, float("nan")])
def test_impossible_fractions_are_refused(fraction):
    with pytest.raises(UsageError, match="fraction must be between 0 and 1"):
        unvalidated().with_validation(fraction)


def test_a_validation_split_that_is_there_stays():
    with pytest.raises(UsageError, match="has a validation split"):
        small().with_validation()


N = 60
TEXTS = [f"text number {i}" for i in range(N)]
WORDS = ["yes" if i % 3 else "no" for i in range(N)]


def make(*args: Any, **fields: Any) -> Task:
    return Task("t", *args, **fields)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (WORDS, ["no", "yes"]),
        ([[2, 10, 1][i % 3] for i in range(N)], ["1", "2", "10"]),  # by value, as in a file
        ([["2", "10", "1"][i % 3] for i in range(N)], ["1", "2", "10"]),
        ([float(i % 2) for i in range(N)], ["0", "1"]),
        ([i % 2 == 0 for i in range(N)], ["False", "True"]),
    ],
)
@pytest.mark.parametrize("kind", [list, tuple, np.array, pd.Series])
def test_labels_become_what_the_same_file_gives(labels, names, kind, tmp_path):
    file = tmp_path / "data.jsonl"
    rows = pd.DataFrame({"text": TEXTS, "label": labels})
    rows.to_json(file, orient="records", lines=True)
    given, loaded = make(TEXTS, kind(labels)), load_task(file)
    assert given.label_names == loaded.label_names == {"label": names}
    assert given.labels["label"].tolist() == loaded.labels["label"].tolist()
    assert given.splits.tolist() == loaded.splits.tolist()
    assert given.info["carved_from_train"] == ["validation", "test"]
    given.check()


def test_numbers_with_fractions_are_a_regression_and_an_empty_dict_of_names_makes_one_of_any_floats():
    fractions, whole = np.arange(N) / 8, np.arange(N, dtype=float)
    for task in (make(TEXTS, fractions), make(TEXTS, fractions, {}), make(TEXTS, whole, {}), make(TEXTS, whole, [])):
        assert (task.n_classes(), task.label_names, task.labels["label"].dtype) == (0, {"label": []}, np.float64)
        task.check()
    assert make(TEXTS, whole).n_classes() == N
    both = make(TEXTS, {"size": whole, "odd": WORDS}, {"odd": ["yes", "no"]}, target="odd")
    assert both.label_names == {"size": [], "odd": ["yes", "no"]}
    assert both.labels["odd"][:3].tolist() == [1, 0, 0]


def test_the_only_label_set_is_the_target_and_of_several_one_is_named():
    assert make(TEXTS, {"kind": WORDS}).target == "kind"
    with pytest.raises(UsageError, match=r"none is the default; name it, target=\.\.\.: a, b"):
        make(TEXTS, {"a": WORDS, "b": WORDS})


def test_a_task_without_labels_is_all_train_and_says_so():
    task = make(TEXTS)
    assert (task.labels, task.label_names, task.target, set(task.splits.tolist())) == ({}, {}, "", {"train"})
    assert repr(task) == "Task('t': train 60, validation 0, test 0; no labels)"
    assert task.subset(np.array([3, 1])).ids == ["3", "1"]
    for verb in (task.check, task.n_classes, task.with_validation, task.counts):
        with pytest.raises(UsageError, match="'t' has no labels to train on; join some with probekit label"):
            verb()


def test_columns_arrays_and_tensors_are_taken():
    ids = torch.arange(N * 2).reshape(N, 2)
    frame = pd.DataFrame({"text": TEXTS, "label": WORDS, "group": [i // 4 for i in range(N)]})
    task = make(frame["text"], frame["label"], groups=frame["group"], ids=frame.index)
    assert (task.inputs, task.ids, task.groups is not None) == (TEXTS, list(range(N)), True)
    assert make(ids, WORDS).inputs == ids.tolist()
    assert make(ids.numpy(), WORDS).inputs == ids.tolist()


def test_groups_are_kept_together_and_named_as_a_file_names_them():
    groups = [float(i // 4) for i in range(N)]
    task = make(TEXTS, WORDS, groups=groups)
    assert task.groups is not None
    assert task.groups.tolist() == [str(i // 4) for i in range(N)]
    pairs = set(zip(task.groups.tolist(), task.splits.tolist(), strict=True))
    assert len(pairs) == N // 4


NAN, NONE = float("nan"), None
SPANNED = {"inputs": ["the fox ran"] * N, "ids": [str(i) for i in range(N)]}
REFUSED = [
    ({"name": TEXTS}, UsageError, r"begins with its name, got a list; write Task\('mine'"),
    ({"inputs": "abc"}, DataError, "inputs is a list of texts, got one text"),
    ({"inputs": 5}, DataError, "got an int"),
    ({"inputs": None}, DataError, "got None"),
    ({"inputs": pd.DataFrame({"text": TEXTS})}, DataError, "got a DataFrame"),
    ({"inputs": [3] * N}, DataError, r"inputs\[0\]: expected a text .* got 3; a single list of token ids goes into"),
    ({"inputs": [*TEXTS[:-1], 3]}, DataError, r"inputs\[59\]: expected a text or a list of token ids, got 3"),
    ({"inputs": [*TEXTS[:-1], None]}, DataError, r"inputs\[59\]: .* got None"),
    ({"inputs": [*TEXTS[:-1], [1]]}, DataError, r"inputs\[0\] is a text and inputs\[59\] a list of token ids"),
    ({"inputs": [["the", "fox"]] * N}, DataError, "expected token ids, whole numbers, got 'the'; give a text as one"),
    ({"inputs": [np.array([0.5])] * N}, DataError, "expected token ids, whole numbers, got 0.5"),
    ({"inputs": list(zip(TEXTS, WORDS, strict=True))}, DataError, r"load_task takes \(text, label\) pairs"),
    ({"splits": {"train": [0, 1]}}, UsageError, "splits is a list or an array .* got a dict"),
    ({"splits": ["dev"] * N}, DataError, r"splits are named train, validation, test, got \['dev'\]"),
    ({"splits": [None] * N}, DataError, r"splits are named .* got \[None\]"),
    ({"splits": ["train"]}, DataError, "expected one of splits for each of the 60 inputs, got 1"),
    ({"labels": WORDS[:3]}, DataError, "for each of the 60 inputs, got 3"),
    ({"labels": [*WORDS, "no"]}, DataError, "for each of the 60 inputs, got 61"),
    ({"labels": 5}, UsageError, "labels are a list, or label set -> list, got an int"),
    ({"labels": {"label": "yes"}}, UsageError, "got a str"),
    ({"labels": {3: WORDS}}, UsageError, "label sets are named by texts, got 3"),
    ({"labels": [*WORDS[:-1], None]}, DataError, "example '59' of labels.*: expected a label, got None"),
    ({"labels": [*WORDS[:-1], NAN]}, DataError, "example '59' of labels.*: expected a label, got nan"),
    ({"labels": [*WORDS[:-1], 3]}, DataError, "must all be of one kind"),
    ({"labels": [-1, *[1] * (N - 1)]}, DataError, "example '0': .* got -1, .* 'not labelled' .*; leave"),
    ({"labels": np.array([NAN, *[0.5] * 59]), "label_names": {}}, DataError, "finite numbers, example '0' has nan"),
    ({"labels": np.array([NAN, *[1.0] * 59]), "label_names": ["a", "b"]}, DataError, "numbered 0, 1.*'0' has nan"),
    ({"labels": np.full(N, 0.5), "label_names": ["a", "b"]}, DataError, "must be integers, got float64"),
    ({"labels": np.zeros((N, 2), dtype=int), "label_names": ["a", "b"]}, DataError, "got the shape"),
    (
        {"label_names": {"label": ["no", "maybe"]}},
        DataError,
        "the label 'yes' of 'label', which is not one of its class",
    ),
    ({"labels": [0, 1] * 30, "label_names": ["a", "a"]}, DataError, "names a class twice"),
    ({"label_names": {"label": "no"}}, UsageError, "is a list of class names, got a str"),
    ({"label_names": 5}, UsageError, "label set -> class names in label order, got an int"),
    ({"target": "x"}, UsageError, "no label set 'x'; known are: label"),
    ({"groups": ["a"] * 59 + [None]}, DataError, "example '59': expected a group, got None"),
    ({"groups": 3}, UsageError, "groups is a list or an array .* got an int"),
    ({"groups": ["a"]}, DataError, "expected one of groups"),
    (
        {"inputs": [], "labels": []},
        DataError,
        "classes of 'label' are derived .* there are none; give",
    ),
    ({"ids": 5}, DataError, "ids is a list of texts, got an int; give a list"),
    ({"info": None}, UsageError, "info is a dict of JSON-able values, got None; give a dict"),
    ({"ids": ["a"] * N}, DataError, "ids must all differ, and .* occurs more than once"),
    ({"ids": [1.5] * N}, DataError, "ids are texts, got a float"),
    ({"position": 3}, UsageError, "position is a list or an array .* got an int"),
    ({"position": np.zeros((N, 2), dtype=int)}, UsageError, "or a token's index for each example"),
    ({"position": [0.5] * N}, UsageError, "or a token's index for each example"),
    ({**SPANNED, "spans": [[0, 3]] * 59 + [[4, 99]]}, DataError, "example '59': expected a span from 0 to 11"),
    ({**SPANNED, "spans": [[0, 3]]}, DataError, "spans"),
    ({**SPANNED, "spans": [[0.5, 3]] * N}, DataError, r"spans are whole numbers \[60, 2\]"),
    ({"inputs": [[1, 2]] * N, "spans": [[0, 1]] * N}, DataError, "a span is of characters"),
    ({"columns": {"source": ["x"]}}, DataError, "one entry of columns"),
    ({"columns": ["x", "y"]}, UsageError, "dict of columns"),
    ({"targets": [5] * N}, DataError, r"targets\[0\]: expected a text"),
    ({"targets": "abc"}, DataError, "targets is a list of texts, got one text"),
]


@pytest.mark.parametrize(("fields", "error", "words"), REFUSED)
def test_what_cannot_be_used_is_refused_in_one_line(fields, error, words):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(error, match=words) as caught:
            Task(**{"name": "t", "inputs": TEXTS, "labels": WORDS} | fields)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("n", range(1, 6))
def test_few_examples_make_a_task_whose_check_says_what_is_missing(n):
    with pytest.raises(ProbekitError, match=r"two classes|every split needs"):
        make(TEXTS[:n], WORDS[:n]).check()


def test_copies_keep_what_was_derived_and_check_what_is_new():
    task = make(TEXTS, WORDS)
    again = replace(task, info={"x": 1})
    assert again.fingerprint() == task.fingerprint()
    assert again.splits.tolist() == task.splits.tolist()
    with pytest.raises(DataError, match="expected one of groups"):
        replace(task, groups=np.zeros(3, dtype=int))


def test_a_given_task_has_the_fingerprint_of_its_derived_form():
    derived = make(TEXTS, WORDS)
    numbers = np.array([int(word == "yes") for word in WORDS])
    given = Task("t", TEXTS, {"label": numbers}, {"label": ["no", "yes"]}, derived.splits, "label")
    assert given.fingerprint() == derived.fingerprint()
    assert set(given.splits.tolist()) == set(SPLITS)


@pytest.mark.parametrize("rows", [3, None, "x", [0.5], [N], [-N - 1], [True] * (N - 1), [[0, 1]]])
def test_a_subset_takes_indices_or_a_mask(rows):
    with pytest.raises(UsageError, match="rows"):
        make(TEXTS, WORDS).subset(rows)
    assert len(make(TEXTS, WORDS).subset(np.array([]))) == 0


@pytest.mark.parametrize("name", BUILTIN_TASKS)
def test_splits_share_no_text_and_no_group_and_every_label_set_can_be_probed(name):
    task = load_task(name)
    assert (task.name, task.info["source"]) == (name, name)
    for label_set in task.labels:
        task.check(label_set)
    assert task.info["also_in_train"] == {"validation": 0, "test": 0}
    assert task.info["groups_across_splits"] in (None, 0)
    texts = [{str(task.inputs[i]) for i in np.flatnonzero(task.splits == split)} for split in SPLITS]
    assert sum(map(len, texts)) == len(set.union(*texts))
    other = load_task(name, seed=1)
    unseen = {str(other.inputs[i]) for i in np.flatnonzero(other.splits != "train")}
    assert unseen.isdisjoint(texts[0])
    assert other.fingerprint() != task.fingerprint() == load_task(name).fingerprint()


@pytest.mark.parametrize("name", BUILTIN_TASKS)
def test_a_limit_keeps_every_class(name):
    task = load_task(name, limit=40)
    assert all((task.splits == split).sum() <= 40 for split in SPLITS)
    task.check()
    assert task.targets is None or len(task.targets) == len(task)
