"""`extract` of plain lists: activations without labels, in memory and in a store; and calls with other things."""

import re
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from store_cases import plan_of

from probekit.activations import extract_statistics, list_stores, load_activations, repair, verify
from probekit.activations.plan.summary import describe_plan
from probekit.errors import DataError, ProbekitError, UsageError
from probekit.evaluation import transfer
from probekit.tasks import Task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

TEXTS = ["abc", "b", "zzyx", "abc", "lmnop", "q", "rs", "tuv"]
HOW: dict[str, Any] = {"points": "resid_pre"}


def test_rows_are_those_of_a_labelled_task_in_the_order_of_the_list(model):
    acts = extract(model, TEXTS, **HOW)
    labels: Any = ["yes", "no"] * 4
    labelled = extract(model, Task("t", TEXTS, labels), **HOW)
    assert list(acts) == list(labelled)
    for place in acts:
        assert torch.equal(acts[place], labelled[place])
    assert acts["resid_pre", 1].shape == (8, 16)
    assert (acts.inputs, acts.ids, acts.labels, acts.target) == (TEXTS, [str(i) for i in range(8)], {}, "")


@pytest.mark.parametrize(
    "texts",
    [
        tuple(TEXTS),
        np.array(TEXTS),
        pd.Series(TEXTS),
        iter(TEXTS),
        datasets.Dataset.from_dict({"text": TEXTS})["text"],
    ],
    ids=lambda given: type(given).__name__,
)
def test_columns_and_iterators_of_texts_are_taken(model, texts):
    assert torch.equal(extract(model, texts, **HOW)["resid_pre", 2], extract(model, TEXTS, **HOW)["resid_pre", 2])


def test_lists_of_token_ids_are_taken(model):
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    for given in (ids, ids.numpy(), ids.tolist(), list(ids)):
        acts = extract(model, given, **HOW)
        assert torch.equal(acts["resid_pre", 1], extract(model, ["abc", "def"], **HOW)["resid_pre", 1])


def test_a_store_without_labels_is_read_listed_verified_and_repaired(model, path):
    kept = extract(model, TEXTS, out=path, **HOW)
    again = load_activations(path)
    in_memory = extract(model, TEXTS, **HOW)
    for place in in_memory:
        assert torch.equal(again[place], in_memory[place])
    assert (again.labels, again.label_names, again.target) == ({}, {}, "")
    assert again.task.fingerprint() == kept.task.fingerprint() == in_memory.task.fingerprint()
    assert [(info.state, info.task, info.rows) for info in list_stores(path.parent)] == [("complete", "texts", 8)]
    assert not verify(path).broken
    (path / "manifest.json").unlink()
    assert repair(path).manifest
    next((path / "shards").iterdir()).unlink()
    assert repair(path, model).shards == [0]
    assert torch.equal(load_activations(path)["resid_pre", 1], in_memory["resid_pre", 1])


def test_statistics_of_texts_are_of_train_alone(model):
    found = extract_statistics(model, TEXTS)
    assert (found.splits, found.label_names) == (["train"], {})


def test_a_probe_needs_labels_and_the_plan_says_that_there_are_none(model, path):
    stored = extract(model, TEXTS, out=path, **HOW)
    for acts in (extract(model, TEXTS, **HOW), stored):
        with pytest.raises(UsageError, match="'texts' has no labels to train on; join some with probekit label"):
            train_probes(acts)
        with pytest.raises(UsageError, match="'texts' has no labels to train on; join some with probekit label"):
            transfer([acts, acts])
    with pytest.raises(UsageError, match="no label set 'x': 'texts' has no labels"):
        train_probes(stored, label="x")
    assert "labels   none" in describe_plan(plan_of(model, Task("texts", TEXTS), **HOW))


MISTAKES = [
    ("sst2", UsageError, r"got the text 'sst2'; write load_task\('sst2'\) for a dataset, \['sst2'\] for a text"),
    (5, UsageError, "expected a task or a list of texts, got an int"),
    (None, UsageError, "got None"),
    ({"text": TEXTS}, UsageError, "got a dict; make a task of it with load_task"),
    (pd.DataFrame({"text": TEXTS}), UsageError, "got a DataFrame; make a task of it with load_task"),
    (datasets.Dataset.from_dict({"text": TEXTS}), UsageError, "got a Dataset; make a task of it with load_task"),
    ([], DataError, "has no examples"),
    (["a", ""], DataError, "example '1' has no tokens"),
    (["a", 3], DataError, r"inputs\[1\]: expected a text or a list of token ids, got 3"),
    ([3, 4], DataError, "a single list of token ids goes into another list"),
    ([("a", "yes"), ("b", "no")], DataError, r"load_task takes \(text, label\) pairs"),
    (["a", [1]], DataError, r"inputs\[0\] is a text and inputs\[1\] a list of token ids"),
]


@pytest.mark.parametrize(("given", "error", "words"), MISTAKES, ids=[words for *_, words in MISTAKES])
def test_what_is_no_list_of_texts_is_refused_in_one_line(model, given, error, words):
    for verb in (extract, extract_statistics):
        with pytest.raises(error, match=words) as caught:
            verb(model, given)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["gpt2", 5, None, Task("t", TEXTS)])
def test_a_model_is_loaded_first(given):
    for verb in (extract, extract_statistics):
        with pytest.raises(UsageError, match=r"expected a model from load_model, got .*; call load_model first"):
            verb(given, TEXTS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"points": 3}, "points must be a text or a list; got 3"),
        ({"layers": 2.5}, "layers must be a text, a whole number or a list; got 2.5"),
        ({"bos": "no"}, "bos must be True or False or None; got 'no'"),
        ({"out": 3}, "out must be a text, a path or None; got 3"),
        ({"batch_tokens": "many"}, "batch_tokens must be a whole number or None"),
    ],
)
def test_options_of_a_wrong_kind_are_refused(model, options, words):
    with pytest.raises(ProbekitError, match=re.escape(words)):
        extract(model, TEXTS, **options)


def test_what_was_made_without_names_comes_back_from_its_store(model, path):
    groups: Any = [0.0, 0.0, 1.0, 1.0, 2.5, 2.5, 3.0, 3.0]
    task = Task("heights", TEXTS, {"height": np.arange(8) / 7}, {}, groups=groups)
    assert extract(model, task, out=path, **HOW).label_names == {"height": []}
    again = load_activations(path)
    assert again.label_names == {"height": []}
    assert again.task.fingerprint() == task.fingerprint()
    assert again.groups is not None
    assert again.groups.tolist() == ["0", "0", "1", "1", "2.5", "2.5", "3", "3"]
