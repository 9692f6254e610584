"""Other columns that a task keeps: numbers and categories, through files, subsets, tokens, fingerprints and stores."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_configs import new_model

import probekit as pk
from probekit.tasks import Task, load_task
from probekit.tasks.labels import column_of
from probekit.tasks.token_labels import token_rows

N = 40
ODD = ["<script>", "=1+1", 'a,b"c', "日本 ‮", "", "NA"]
CELLS = [ODD[i % len(ODD)] for i in range(N)]


def task_of(*fields: Any, **named: Any) -> Task:
    """A task from lists and arrays, which it takes in place of its own types."""
    return Task(*fields, **named)


def rows(**changes: Any) -> list[dict[str, Any]]:
    made = {"text": lambda i: f"text number {i}", "label": lambda i: i % 2, "source": lambda i: CELLS[i]}
    made |= {"size": lambda i: None if i == 3 else i / 2, **changes}
    return [{name: make(i) for name, make in made.items()} for i in range(N)]


def kept(**changes: Any) -> Task:
    return load_task(rows(**changes), keep_columns="source,size")


def test_numbers_and_categories_are_kept_with_what_is_missing():
    task = kept()
    assert task.columns["size"].dtype == np.float64
    assert math.isnan(task.columns["size"][3])
    np.testing.assert_array_equal(np.delete(task.columns["size"], 3), np.delete(np.arange(N) / 2, 3))
    assert task.columns["source"].tolist() == [None if cell in ("", "NA") else cell for cell in CELLS]


def test_a_file_gives_the_same_columns_as_objects(tmp_path: Path):
    import pandas as pd

    pd.DataFrame(rows()).to_csv(tmp_path / "t.csv", index=False)
    one, other = load_task(tmp_path / "t.csv", keep_columns=["source", "size"]), kept()
    np.testing.assert_array_equal(one.columns["size"], other.columns["size"])
    assert one.columns["source"].tolist() == other.columns["source"].tolist()


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2.5", None], [1, 2.5, math.nan]),
        ([1, "2", 3.0], [1, 2, 3]),
        (["1", "b", None], ["1", "b", None]),
        ([1, "b", 2.0], ["1", "b", "2"]),
        ([True, False, None], ["true", "false", None]),
        ([None, None, math.nan], [None, None, None]),
    ],
)
def test_a_column_is_numbers_only_if_all_of_it_is(cells: list[Any], expected: list[Any]):
    found = column_of(cells, "c", ["1", "2", "3"])
    assert repr(found.tolist()) == repr([float(one) for one in expected] if found.dtype == float else expected)


def test_subsets_and_tokens_have_the_columns_of_their_texts():
    task = kept()
    own = task.subset(np.array([5, 3]))
    assert own.columns["source"].tolist() == [CELLS[5] if CELLS[5] != "NA" else None, CELLS[3]]
    ids = task_of("ids", [[1, 2], [3], [4, 5, 6]], [0, 1, 0], columns={"source": ["a", "b", "c"]})
    assert token_rows(ids).columns["source"].tolist() == ["a", "a", "b", "c", "c", "c"]


@pytest.mark.parametrize("rows_of_a_piece", [16_384, 7])
def test_a_store_keeps_the_columns_in_one_piece_or_several(
    rows_of_a_piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also those of which only the last piece has a value, or none has."""
    monkeypatch.setattr("probekit.activations.store.examples.PIECE_ROWS", rows_of_a_piece)
    none: list[Any] = [None] * (N - 1)
    columns = {"source": [None if cell in ("", "NA") else cell for cell in CELLS], "none": [*none, None]}
    columns |= {"size": [None if i == 3 else i / 4 for i in range(N)], "late": [*none, "x"], "number": [*none, 1.5]}
    ids = [[1 + i % 5, 2, 3 + i % 7] for i in range(N)]
    task = task_of("ids", ids, [i % 2 for i in range(N)], columns=columns)
    acts = pk.extract(new_model("gpt2"), task, points="resid_pre", out=tmp_path / "store")
    assert (len(list((tmp_path / "store" / "examples").iterdir())) > 1) == (rows_of_a_piece < N)
    read = pk.load_activations(tmp_path / "store").task
    for found in (acts.task, read):
        assert found.columns.keys() == columns.keys()
        for name, values in task.columns.items():
            np.testing.assert_array_equal(found.columns[name], values)
    assert read.columns["late"].tolist() == columns["late"]
    assert read.fingerprint() == task.fingerprint()
