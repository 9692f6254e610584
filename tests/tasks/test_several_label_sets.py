"""Several label sets from one table: named as columns of labels, or kept with the texts and named later."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import probekit as pk
from probekit.activations import ActivationSet
from probekit.errors import DataError, UsageError
from probekit.tasks import load_task

N = 80
SOURCES = ["web", "book", "mail", None]
TABLE: dict[str, list[Any]] = {
    "text": [f"text number {i}" for i in range(N)],
    "label": ["good" if i % 2 else "bad" for i in range(N)],
    "source": [SOURCES[i // 2 % 4] for i in range(N)],
    "year": [1900 + i // 8 % 2 for i in range(N)],
    "share": [i / 7 if i % 5 else None for i in range(N)],
}


def write(path: Path) -> Path:
    rows = [dict(zip(TABLE, cells, strict=True)) for cells in zip(*TABLE.values(), strict=True)]
    if path.suffix == ".csv":
        cells = ["" if cell is None else str(cell) for row in rows for cell in row.values()]
        lines = [",".join(cells[i : i + len(TABLE)]) for i in range(0, len(cells), len(TABLE))]
        path.write_text("\n".join([",".join(TABLE), *lines]) + "\n")
    else:
        path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


@pytest.fixture
def acts() -> ActivationSet:
    rng = np.random.default_rng(0)
    task = load_task(TABLE, label_column="label", keep_columns="source,year")
    return ActivationSet({("resid_pre", 0): torch.from_numpy(rng.normal(size=(N, 6)).astype(np.float32))}, task)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_each_column_is_the_label_set_that_it_is_alone(tmp_path, suffix):
    path = write(tmp_path / f"data{suffix}")
    task = load_task(path, label_column="label,source,year,share")
    assert (task.target, [*task.labels], task.columns) == ("label", ["label", "source", "year", "share"], {})
    assert task.splits.tolist() == load_task(path).splits.tolist()
    for name in ("label", "source", "year", "share"):
        alone = load_task(path, label_column=name, on_bad_row="skip")
        labelled = [row for row, cell in enumerate(TABLE[name]) if cell is not None]
        assert task.label_names[name] == alone.label_names[name]
        np.testing.assert_array_equal(task.labels[name][labelled], alone.labels[name])
    assert (task.labels["source"] == -1).tolist() == [cell is None for cell in TABLE["source"]]
    assert np.isnan(task.labels["share"]).tolist() == [cell is None for cell in TABLE["share"]]
    assert task.info["unlabelled"] == {"source": N // 4, "share": N // 5}


def test_regression_is_for_the_columns_of_numbers(tmp_path):
    task = load_task(write(tmp_path / "data.csv"), label_column="year,source", regression=True)
    assert (task.n_classes("year"), task.n_classes("source")) == (0, 3)


def test_a_name_with_a_comma_is_one_column():
    table = {"text": TABLE["text"], "a,b": TABLE["label"]}
    assert [*load_task(table, label_column="a,b").labels] == ["a,b"]


def test_a_column_without_any_label_is_named():
    with pytest.raises(DataError, match="the column 'empty' of 'dict' has no label for any text"):
        load_task({**TABLE, "empty": [None] * N}, label_column="label,empty")


def test_a_kept_column_is_a_label_set_when_it_is_named(acts):
    task = load_task(TABLE, label_column="label,source")
    wanted = pk.train_probes(ActivationSet(dict(acts), task), label="source", quick=True)
    found = pk.train_probes(acts, label="source", quick=True)
    assert found.best.metrics == wanted.best.metrics
    both = pk.train_probes(acts, labels=["label", "year"], quick=True)
    assert [one.meta["label"] for one in both.values()] == ["label", "year"]
    assert [*acts.labels] == ["label"]
    with pytest.raises(UsageError, match="no label set 'sourc'"):
        pk.train_probes(acts, label="sourc")


def test_a_kept_column_of_texts_without_labels_carves_their_splits(acts):
    table = {name: TABLE[name] for name in ("text", "label")}
    bare = load_task({"text": table["text"], "kind": table["label"]}, keep_columns="kind")
    found = pk.train_probes(ActivationSet(dict(acts), bare), label="kind", quick=True)
    wanted = pk.train_probes(ActivationSet(dict(acts), load_task(table)), quick=True)
    assert found.best.metrics == wanted.best.metrics
