"""Labels of examples that were run elsewhere: a table with one row for each, in order, with or without texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probekit.errors import DataError
from probekit.options import ImportOptions
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.info import CARVED_FROM_TRAIN, NO_TEXTS
from probekit.tasks.labels import as_labels, encode, group_flaw, group_name, label_flaw, refuse_unlabelled
from probekit.tasks.splitting.classes import check_number_of_classes, warn_of_look_alikes
from probekit.tasks.splitting.same_text import shared_by_splits, text_numbers
from probekit.tasks.splitting.splits import carve_missing, kept_together, split_of_cell
from probekit.tasks.tables.columns import LABEL_COLUMNS, TEXT_COLUMNS, split_column_of, split_flaw
from probekit.tasks.tables.data_table import DataTable, choose_column, flaw_of
from probekit.tasks.tables.readers import TableFormat, read_table
from probekit.tasks.tables.rows import refuse_numbers, text_flaw

BOTH = "remove the row from the labels and from the activations, or correct it"


def labelled_task(path: Path, options: ImportOptions, name: str) -> Task:
    """Load a checked task from a CSV, TSV, JSONL or Parquet file; row i of the file is example i.

    No row may be left out, since the activations have it too. A column `split` that names splits is kept to;
    missing splits are carved from train as `load_task` does. Without a text column, the rows' names serve as texts and
    `info["no_texts"]` is True.

    Raises:
        UsageError: a column that is not there.
        DataError: a row, label, split or text that cannot be used.
    """
    columns = None if options.columns is None else tuple(options.columns)
    table = read_table(path, TableFormat(columns, options.header))
    label = choose_column(table, options.label_column, LABEL_COLUMNS, "label")
    texts = _texts(table, options.text_column)
    cells = table.column(label)
    _check_rows(table, label, cells)
    groups = None if options.group_column is None else _groups(table, options.group_column)
    split_column = split_column_of(table, (options.text_column, label, options.group_column))
    rows = _Rows(
        label,
        cells,
        places=[table.where(i) for i in range(len(cells))],
        ids=[f"{table.stem}:{i}" for i in range(len(cells))],
        texts=texts,
        groups=groups,
        splits=None if split_column is None else _splits(table, split_column),
        class_names=table.class_names.get(label),
    )
    task = _task(name, rows, options)
    task.info.update(source=str(path), sha256=table.checksums(), label_column=label)
    task.info["splits_from"] = "" if split_column is None else f"by column {split_column!a}"
    return task


def labels_task(cells: Sequence[Any], where: str, options: ImportOptions, name: str) -> Task:
    """A checked task from the labels [N] alone; errors call them `where`.

    Raises:
        DataError: a label that cannot be used, or too few of a class.
    """
    places = [f"{where}, row {i}" for i in range(len(cells))]
    for cell, place in zip(cells, places, strict=True):
        if flaw := label_flaw(cell, typed=True) or flaw_of([cell]):
            raise DataError(f"{place}: {flaw[1]}")
    ids = [f"row:{i}" for i in range(len(cells))]
    return _task(name, _Rows("label", cells, places, ids), options)


@dataclass(frozen=True)
class _Rows:
    """The rows of a file by column; N of each."""

    label: str
    cells: Sequence[Any]
    places: list[str]
    ids: list[str]
    texts: Any = None  # a list, or a `DiskList` of a large table
    groups: list[str] | None = None
    splits: list[str] | None = None
    class_names: list[str] | None = None


def _task(name: str, rows: _Rows, options: ImportOptions) -> Task:
    if not rows.cells:
        raise DataError(f"{name!a} has no labels; write one for each example")
    classes = as_labels(rows.cells, rows.places, rows.label, options.regression)
    refuse_unlabelled(classes, rows.places, rows.label, BOTH)
    splits = ["train"] * len(rows.cells) if rows.splits is None else rows.splits
    labels, class_names = encode(classes, rows.class_names)
    check_number_of_classes(class_names, rows.label, rows.places[0].rpartition(",")[0], options.max_classes)
    missing = [split for split in SPLITS if split not in splits]
    texts = np.arange(len(rows.ids)) if rows.texts is None else text_numbers(rows.texts)
    keys, groups = kept_together(texts, rows.groups)
    task = Task(
        name=name,
        inputs=rows.ids if rows.texts is None else rows.texts,
        labels={rows.label: labels},
        label_names={rows.label: class_names},
        splits=carve_missing(labels, splits, keys, missing, options.seed),
        target=rows.label,
        ids=rows.ids,
        groups=groups,
        info={"seed": options.seed, CARVED_FROM_TRAIN: missing, NO_TEXTS: rows.texts is None},
    )
    task.check()
    task.info.update(shared_by_splits(task))
    warn_of_look_alikes(task)
    return task


def _check_rows(table: DataTable, label: str, cells: Sequence[Any]) -> None:
    names = table.class_names.get(label, ())
    for i, cell in enumerate(cells):
        flaw = table.bad.get(i) or label_flaw(cell, table.typed, names) or flaw_of([cell])
        if flaw:
            raise DataError(f"{table.where(i)}: {flaw[1]}")


def _texts(table: DataTable, named: str | None) -> Sequence[str] | None:
    lower = {name.strip().lower() for name in table.columns}
    if named is None and lower.isdisjoint(TEXT_COLUMNS):
        return None
    column = choose_column(table, named, TEXT_COLUMNS, "text")
    texts = table.column(column)
    if not table.typed:
        refuse_numbers(table, column, texts)
    for i, text in enumerate(texts):
        if flaw := table.bad.get(i) or text_flaw(text, table.typed) or flaw_of([text]):
            raise DataError(f"{table.where(i)}: {flaw[1]}")
    return texts


def _groups(table: DataTable, named: str) -> list[str]:
    cells = table.column(choose_column(table, named, (), "group"))
    for i, cell in enumerate(cells):
        if flaw := table.bad.get(i) or group_flaw(cell):
            raise DataError(f"{table.where(i)}: {flaw[1]}")
    return [group_name(cell) for cell in cells]


def _splits(table: DataTable, column: str) -> list[str]:
    """The split of each row."""
    cells = table.column(column)
    for i, cell in enumerate(cells):
        if flaw := split_flaw(cell, column):
            raise DataError(f"{table.where(i)}: {flaw[1]}")
    splits = [str(split_of_cell(cell, column)) for cell in cells]
    if "train" not in splits:
        raise DataError(f"{table.name}: no row is in the split train by column {column!a}; put some there to fit on")
    return splits
