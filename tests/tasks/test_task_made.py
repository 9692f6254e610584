"""`Task` when it is made: what it derives from lists and texts, and what it refuses."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from probekit.errors import DataError, ProbekitError, UsageError
from probekit.tasks import Task, load_task
from probekit.tasks.base import SPLITS

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
    ({"labels": [-1, *[1] * (N - 1)]}, DataError, "example '0' has the label -1 .* means 'not labelled'; leave"),
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
