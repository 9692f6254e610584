"""Labels of examples that were run elsewhere: a table with a row for each, in order; texts only if there are some."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from probekit.errors import DataError
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.files import SPLIT_NAMES, Table, choose_column, flaw_of, quote, read_table
from probekit.tasks.labels import as_labels, encode, group_flaw, group_name, is_unlabelled, label_flaw
from probekit.tasks.load import LABEL_COLUMNS, TEXT_COLUMNS, carve_missing, leaks, refuse_numbers, text_flaw
from probekit.tasks.splits import components, named

SPLIT_COLUMN = "split"
NO_TEXTS = "no_texts"  # in a task's info: its inputs are names of rows and say nothing
BOTH = "take the row out of the labels and of the activations, or mend it"


def labelled_task(
    path: Path,
    text_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Task:
    """A checked task from a CSV, TSV, JSONL or Parquet file; row i of the file is example i.

    No row may be left out, since the activations have it too. A column `split` says train, validation (dev) or test;
    what it lacks, or all where there is none, is carved from train as `load_task` does. Without a column of texts the
    names of the rows stand for them, and `info["no_texts"]` says so.

    Raises:
        UsageError: a column that is not there.
        DataError: a row, label, split or text that cannot be used.
    """
    table = read_table(path)
    label = choose_column(table, label_column, LABEL_COLUMNS, "label")
    texts = _texts(table, text_column)
    cells = table.column(label)
    _check_rows(table, label, cells)
    groups = None if group_column is None else _groups(table, group_column)
    task = _made(
        name or path.stem,
        label,
        cells,
        [table.where(i) for i in range(len(cells))],
        [f"{table.stem}:{i}" for i in range(len(cells))],
        texts,
        groups,
        _splits(table),
        table.class_names.get(label),
        seed,
    )
    task.info.update(source=str(path), sha256={table.name: table.sha256}, label_column=label)
    return task


def labels_task(cells: Sequence[Any], where: str, name: str, seed: int = 0) -> Task:
    """A checked task from the labels [N] alone; `where` is what errors call them.

    Raises:
        DataError: a label that cannot be used, or too few of a class.
    """
    places = [f"{where}, row {i}" for i in range(len(cells))]
    for cell, place in zip(cells, places, strict=True):
        if flaw := label_flaw(cell, typed=True) or flaw_of([cell]):
            raise DataError(f"{place}: {flaw[1]}")
    ids = [f"row:{i}" for i in range(len(cells))]
    return _made(name, "label", cells, places, ids, None, None, None, None, seed)


def _made(
    name: str,
    label: str,
    cells: Sequence[Any],
    places: list[str],
    ids: list[str],
    texts: list[str] | None,
    groups: list[str] | None,
    splits: list[str] | None,
    names: list[str] | None,
    seed: int,
) -> Task:
    if not cells:
        raise DataError(f"{name!a} has no labels; expected one for each example")
    classes = as_labels(cells, places, label)
    for value, place in zip(classes, places, strict=True):
        if is_unlabelled(value):
            raise DataError(f"{place}: the label is -1, which stands for 'not labelled'; {BOTH}")
    given = ["train"] * len(cells) if splits is None else splits
    labels, class_names = encode(classes, given, label, names)
    missing = [split for split in SPLITS if split not in given]
    together = None if groups is None else components(*([groups] if texts is None else [_stripped(texts), groups]))
    keys: Sequence[Hashable] = _stripped(ids if texts is None else texts) if together is None else together.tolist()
    task = Task(
        name=name,
        inputs=ids if texts is None else texts,
        labels={label: labels},
        label_names={label: class_names},
        splits=carve_missing(labels, given, keys, missing, seed),
        target=label,
        ids=ids,
        groups=None if together is None or groups is None else named(together, groups),
        info={"seed": seed, "carved_from_train": missing, NO_TEXTS: texts is None},
    )
    task.check()
    task.info.update(leaks(task))
    return task


def _stripped(texts: list[str]) -> list[str]:
    return [text.strip() for text in texts]


def _check_rows(table: Table, label: str, cells: list[Any]) -> None:
    names = table.class_names.get(label, ())
    for i, cell in enumerate(cells):
        flaw = table.bad.get(i) or label_flaw(cell, table.typed, names) or flaw_of([cell])
        if flaw:
            raise DataError(f"{table.where(i)}: {flaw[1]}")


def _texts(table: Table, named: str | None) -> list[str] | None:
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


def _groups(table: Table, named: str) -> list[str]:
    cells = table.column(choose_column(table, named, (), "group"))
    for i, cell in enumerate(cells):
        if flaw := table.bad.get(i) or group_flaw(cell):
            raise DataError(f"{table.where(i)}: {flaw[1]}")
    return [group_name(cell) for cell in cells]


def _splits(table: Table) -> list[str] | None:
    """The split of each row where the table has a column of that name."""
    if SPLIT_COLUMN not in {name.strip().lower() for name in table.columns}:
        return None
    cells = table.column(choose_column(table, None, (SPLIT_COLUMN,), "split"))
    splits = []
    for i, cell in enumerate(cells):
        split = SPLIT_NAMES.get(cell.strip().lower()) if isinstance(cell, str) else None
        if split is None:
            raise DataError(f"{table.where(i)}: expected a split ({', '.join(SPLITS)}), got {quote(cell)}; mend it")
        splits.append(split)
    if "train" not in splits:
        raise DataError(f"{table.name}: no row has the split train; a probe needs some to be fitted on")
    return splits
