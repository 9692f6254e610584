"""Labels of every token of token-id inputs."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import DataError, UsageError
from probekit.tasks import Task
from probekit.tasks.base import SPLITS
from probekit.tasks.token_labels import labels_at, token_rows

IDS = np.arange(24).reshape(6, 4) % 5
STATE = (IDS * 3 + 1) % 4 % 3
DEPTH = np.sin(np.arange(48.0)).reshape(6, 4, 2)


def made(**changes) -> Task:
    given = {
        "name": "board",
        "inputs": IDS,
        "labels": {"won": np.arange(6) % 2},
        "label_names": {"won": ["no", "yes"]},
        "splits": np.tile(SPLITS, 2),
        "target": "state",
        "token_labels": {"state": STATE, "depth": DEPTH},
    }
    return Task(**{**given, **changes})


def ragged(**changes) -> Task:
    lengths = [4, 2, 3, 1, 4, 2]
    cut = {"state": [row[:n].tolist() for row, n in zip(STATE, lengths, strict=True)]}
    inputs = [row[:n].tolist() for row, n in zip(IDS, lengths, strict=True)]
    return made(inputs=inputs, token_labels=cut, **changes)


def test_arrays_and_lists_make_one_form():
    task = made()
    assert task.inputs == IDS.tolist()
    assert task.label_names == {"won": ["no", "yes"], "state": ["0", "1", "2"], "depth": []}
    assert [one.dtype for one in task.token_labels["state"]] == [np.int64] * 6
    assert np.array_equal(np.stack(task.token_labels["depth"]), DEPTH)
    assert made(inputs=IDS.tolist(), token_labels={"state": STATE.tolist(), "depth": DEPTH.tolist()}).fingerprint() == (
        task.fingerprint()
    )
    assert task.n_classes() == 3
    assert task.n_classes("depth") == 0
    task.check()
    task.check("won")


def test_labels_of_tokens_are_enough():
    task = Task("board", IDS, token_labels={"state": STATE}, splits=np.tile(SPLITS, 2))  # pyright: ignore[reportArgumentType]
    assert (task.target, task.labels, task.label_names) == ("state", {}, {"state": ["0", "1", "2"]})
    task.check()


def test_texts_are_classes_and_whole_numbers_without_names_are_targets():
    words = np.array(["det", "noun", "verb"])[STATE]
    task = made(token_labels={"state": words, "n": STATE}, label_names={"won": ["no", "yes"], "n": []})
    assert task.label_names["state"] == ["det", "noun", "verb"]
    assert np.array_equal(np.stack(task.token_labels["state"]), STATE)
    assert task.token_labels["n"][0].dtype == np.float64
    named = made(token_labels={"state": words}, label_names={"won": ["no", "yes"], "state": ["verb", "noun", "det"]})
    assert np.array_equal(np.stack(named.token_labels["state"]), 2 - STATE)


@pytest.mark.parametrize("values", [[3, 10**12, 5], ["10", "9", "b"], [True, False, True], ["9", "10", "10"]])
def test_labels_of_tokens_get_the_class_names_of_labels_of_texts(values):
    state = np.array(values)[STATE]
    of_tokens = made(token_labels={"state": state})
    flat = Task("flat", [[i] for i in range(24)], state.ravel(), splits=np.tile(SPLITS, 8))  # pyright: ignore[reportArgumentType]
    assert of_tokens.label_names["state"] == flat.label_names["label"]
    assert np.concatenate(of_tokens.token_labels["state"]).tolist() == flat.labels["label"].tolist()


def test_none_and_nan_are_no_label_whatever_the_others_are():
    for labels in (["a", "b", "a"], [1, 0, 1], [0.5, 0.25, 2.0], [True, False, True]):
        for missing in (None, float("nan")):
            texts = [[*labels, missing], [missing, *labels]] * 3
            own = Task("t", [[1, 2, 3, 4]] * 6, token_labels={"x": texts}).token_labels["x"]
            alone = Task("t", [[1, 2, 3]] * 6, token_labels={"x": [labels] * 6}).token_labels["x"]
            none = -1 if own[0].dtype == np.int64 else np.nan
            np.testing.assert_array_equal(own[0], [*alone[0], none])
            np.testing.assert_array_equal(own[1], [none, *alone[0]])
            assert own[0].dtype == alone[0].dtype


@pytest.mark.parametrize("task", [made(), ragged()], ids=["equal", "ragged"])
def test_each_token_is_an_example_of_its_texts_split(task):
    rows = token_rows(task)
    flat = [(i, k) for i, ids in enumerate(task.inputs) for k in range(len(ids))]
    assert [*zip(rows.text_of.tolist(), rows.position.tolist(), strict=True)] == flat
    assert rows.labels["state"].tolist() == [task.token_labels["state"][i][k] for i, k in flat]
    assert rows.labels["won"].tolist() == [task.labels["won"][i] for i, _ in flat]
    assert rows.splits.tolist() == [task.splits[i] for i, _ in flat]
    assert [rows.inputs[n][k] for n, (_, k) in enumerate(flat)] == [task.inputs[i][k] for i, k in flat]
    assert rows.ids[:3] == ["0:0", "0:1", "0:2"]
    assert len(set(rows.ids)) == len(flat)
    first, number = rows.texts()
    assert number.tolist() == [i for i, _ in flat]
    assert [flat[i] for i in first] == [(i, 0) for i in range(6)]
    assert token_rows(task) is rows
    assert task.counts() == rows.counts("state")


def test_rows_of_equal_texts_share_a_split_key():
    task = made(inputs=np.concatenate([IDS[:3], IDS[:3]]), groups=np.array([0, 1, 2, 3, 4, 2]))
    keys = token_rows(task).split_keys()
    assert keys.reshape(6, 4).tolist() == [[k] * 4 for k in task.split_keys()]
    carved = token_rows(replace(task, splits=np.array(["train"] * 5 + ["test"]))).with_validation(0.3)
    for rows in (keys, carved.text_of):
        assert all(len(set(carved.splits[rows == k])) == 1 for k in set(rows.tolist()) - {2})


def test_subset_keeps_the_labels_of_its_texts():
    task = ragged().subset(np.array([4, 1]))
    assert [one.tolist() for one in task.token_labels["state"]] == [STATE[4].tolist(), STATE[1, :2].tolist()]
    rows = token_rows(task).subset(np.array([0, 2, 5]))
    assert rows.text_of.tolist() == [0, 0, 1]
    assert rows.texts()[1].tolist() == [0, 0, 1]


def test_one_token_of_each_text():
    task = labels_at(made(), np.array([0, 1, -1, 3, 2, 2]))
    assert task.labels["state"].tolist() == STATE[np.arange(6), [0, 1, 3, 3, 2, 2]].tolist()
    assert task.labels["depth"].shape == (6, 2)
    assert not task.token_labels
    assert task.label_names["depth"] == []


def test_the_fingerprint_sees_every_label():
    prints = {made().fingerprint(), made(target="depth").fingerprint(), ragged().fingerprint()}
    for name, values in {"state": STATE, "depth": DEPTH}.items():
        changed = values.copy()
        changed.reshape(-1)[-1] = 0 if changed.reshape(-1)[-1] else 1
        prints.add(made(token_labels=made().token_labels | {name: changed}).fingerprint())
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"inputs": ["abcd"] * 6, "spans": [[0, 1]] * 6},
            DataError,
            "the task has spans, the words of its texts; leave",
        ),
        ({"inputs": ["abcd"] * 6, "targets": ["a"] * 6}, DataError, "the task has targets of a decoder; leave one of"),
        ({"token_labels": {"state": STATE[:, :3]}}, DataError, "'0' has 4 tokens and 3 labels 'state'; give one label"),
        ({"token_labels": {"state": STATE[:5]}}, DataError, "'state' of 6 inputs, got 5; give one list for each input"),
        (
            {"token_labels": {"state": [[{1}] * 4] * 6}},
            DataError,
            "'state': expected a class or a number .*got object with 1 axis; give an array",
        ),
        (
            {"token_labels": {"state": [[{}] * 4] * 6}},
            DataError,
            "'0', token labels 'state': expected a stretch such as",
        ),
        (
            {"token_labels": {"state": [[{"start": 0, "end": 1, "label": "a"}]] * 6}},
            DataError,
            "a span is of characters, and the input is a list of token ids",
        ),
        ({"token_labels": {"state": STATE, "won": STATE}}, UsageError, "'won' is in labels and in token_labels; give"),
        ({"target": "states"}, UsageError, "no label set 'states'; did you mean state"),
        (
            {"token_labels": {"state": STATE + 1, "n": STATE * 0 - 1}},
            DataError,
            "derived from its labels, and there are",
        ),
        (
            {"token_labels": {"state": STATE}, "label_names": {"won": ["no", "yes"], "state": ["a", "b"]}},
            DataError,
            r"must be 0\.\.1, got ",
        ),
        ({"token_labels": 5}, UsageError, "token_labels are a list, or label set -> list, got an int; write token_la"),
        ({"token_labels": {"state": None}}, UsageError, r"token_labels\['state'\] is an array .* got None; give"),
        (
            {"token_labels": {"state": [["a"] * 4] * 5 + [[1] * 4]}},
            DataError,
            "'state' of example '0' are texts, and those of '5' numbers; give only one",
        ),
        (
            {"token_labels": {"state": [["a"] * 4] * 5 + [["a", 1, "a", "a"]]}},
            DataError,
            "example '5', token labels 'state': they are texts and numbers; give",
        ),
        ({"token_labels": {"state": [["a"] * 4] * 5 + ["aaaa"]}}, DataError, "example '5', .* list of labels.*'aaaa'"),
        ({"label_names": {"won": ["no", "yes"], "state": ["a"] * 3}}, DataError, "names a class twice"),
        ({"token_labels": {"state": np.where(np.isnan(DEPTH), 0, np.inf)}}, DataError, "token 0 of example '0' has"),
        ({"token_labels": {"state": DEPTH * [1, np.nan]}}, DataError, r"token 0 of example '0' has \[.* nan\] as its"),
        (
            {"token_labels": {"state": DEPTH * [1, 0]}},
            DataError,
            "output 1 has one value in all of train of 'state'",
        ),
    ],
)
def test_check_says_what_is_wrong(changes, error, words):
    with pytest.raises(error, match=words):
        made(**changes).check()
