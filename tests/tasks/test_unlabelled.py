"""Texts without labels: what `load_task` keeps of them, and their ids."""

import json

import numpy as np
import pandas as pd
import pytest

from probekit.errors import DataError, UsageError
from probekit.tasks import load_task

N = 40
ROWS = [{"text": f"text number {i}", "key": f"q{i}", "label": "ab"[i % 2]} for i in range(N)]


def write(path, rows, drop=("label",)):
    kept = [{key: value for key, value in row.items() if key not in drop} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return path


def test_a_table_without_labels_gives_its_texts_all_in_train(tmp_path):
    task = load_task(write(tmp_path / "prompts.jsonl", ROWS, ("label", "key")))
    assert task.inputs == [row["text"] for row in ROWS]
    assert task.ids == [f"prompts:{i}" for i in range(N)]
    assert (task.labels, task.label_names, task.target) == ({}, {}, "")
    assert set(task.splits) == {"train"}
    assert "no labels" in repr(task)
    assert task.info["label_column"] is None


def test_columns_that_may_hold_labels_are_named(tmp_path):
    path = write(tmp_path / "prompts.jsonl", ROWS)
    with pytest.warns(UserWarning, match="no column named label or target, .* if they are in 'key', name the column"):
        load_task(path)
    assert load_task(path, id_column="key").ids == [row["key"] for row in ROWS]  # pyproject.toml: warnings are errors


def test_a_dataframe_without_labels_is_the_same():
    task = load_task(pd.DataFrame({"text": [row["text"] for row in ROWS]}))
    assert (len(task), task.target) == (N, "")


def test_a_named_column_that_is_missing_stays_an_error(tmp_path):
    path = write(tmp_path / "prompts.jsonl", ROWS)
    with pytest.raises(UsageError, match=r"prompts\.jsonl has no column 'truth'"):
        load_task(path, label_column="truth")
    with pytest.raises(UsageError, match=r"prompts\.jsonl has no column 'idd'"):
        load_task(path, id_column="idd")
    with pytest.raises(UsageError, match=r"--regression is for labels, and prompts\.jsonl has none"):
        load_task(path, regression=True)


def test_given_splits_and_groups_stay_and_none_is_carved(tmp_path):
    rows = [{**row, "split": ["train", "test"][i % 2], "topic": f"t{i % 4}"} for i, row in enumerate(ROWS)]
    task = load_task(write(tmp_path / "p.jsonl", rows), id_column="key", group_column="topic")
    assert task.splits.tolist() == [row["split"] for row in rows]
    assert task.groups is not None
    assert task.groups.tolist() == [row["topic"] for row in rows]


def test_a_folder_of_splits_without_labels(tmp_path):
    write(tmp_path / "train.jsonl", ROWS[:30])
    write(tmp_path / "test.jsonl", ROWS[30:])
    task = load_task(tmp_path, id_column="key")
    assert np.bincount(task.splits == "test").tolist() == [30, 10]


def test_a_split_that_lacks_the_labels_that_train_has_is_refused(tmp_path):
    write(tmp_path / "train.jsonl", ROWS[:30], ("key",))
    write(tmp_path / "test.jsonl", ROWS[30:], ("key", "label"))
    with pytest.raises(UsageError, match=r"test\.jsonl has no column named label or target"):
        load_task(tmp_path)


def test_a_limit_draws_from_each_split(tmp_path):
    task = load_task(write(tmp_path / "p.jsonl", ROWS, ("label", "key")), limit=7, seed=3)
    assert len(task) == 7
    again = load_task(write(tmp_path / "p.jsonl", ROWS, ("label", "key")), limit=7, seed=3)
    assert again.ids == task.ids


def test_ids_of_a_labelled_task_do_not_change_its_splits(tmp_path):
    path = write(tmp_path / "p.jsonl", ROWS, ())
    by_row, by_id = load_task(path), load_task(path, id_column="key")
    assert by_id.ids == [row["key"] for row in ROWS]
    assert by_id.splits.tolist() == by_row.splits.tolist()


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("q0", "line 2: the id 'q0' in 'key' is that of p.jsonl, line 1 too"),
        (None, "line 2: expected an id, got None"),
        ("  ", "line 2: expected an id, got '  '"),
        ([1], r"line 2: expected an id \(a text or a number\), got \[1\]"),
        (True, r"line 2: expected an id \(a text or a number\), got True"),
    ],
)
def test_a_bad_id_is_named_with_its_row_or_skipped_and_counted(tmp_path, cell, words):
    rows = [ROWS[0], {**ROWS[1], "key": cell}, *ROWS[2:]]
    path = write(tmp_path / "p.jsonl", rows, ())
    with pytest.raises(DataError, match=words) as caught:
        load_task(path, id_column="key")
    assert "\n" not in str(caught.value)
    task = load_task(path, id_column="key", on_bad_row="skip")
    assert (len(task), task.info["skipped_rows"]) == (N - 1, 1)


def test_ids_are_different_across_files_too(tmp_path):
    write(tmp_path / "train.jsonl", ROWS[:30], ())
    write(tmp_path / "test.jsonl", [*ROWS[30:], {**ROWS[0], "text": "another"}], ())
    with pytest.raises(
        DataError, match=r"test\.jsonl, line 11: the id 'q0' in 'key' is that of train\.jsonl, line 1 too"
    ):
        load_task(tmp_path, id_column="key")


def test_a_column_of_ids_is_no_other_column(tmp_path):
    path = write(tmp_path / "p.jsonl", ROWS, ())
    with pytest.raises(UsageError, match="'text' cannot be both text and id"):
        load_task(path, id_column="text")
    with pytest.raises(UsageError, match="leave --id-column out"):
        load_task(path, id_column="key", span_column="label")
