"""Texts without labels: what `load_task` keeps of them, and their ids."""

import json

import numpy as np
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


def test_ids_are_different_across_files_too(tmp_path):
    write(tmp_path / "train.jsonl", ROWS[:30], ())
    write(tmp_path / "test.jsonl", [*ROWS[30:], {**ROWS[0], "text": "another"}], ())
    with pytest.raises(
        DataError, match=r"test\.jsonl, line 11: the id 'q0' in 'key' is that of train\.jsonl, line 1 too"
    ):
        load_task(tmp_path, id_column="key")
