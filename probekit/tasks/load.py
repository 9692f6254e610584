"""load_task: turn a built-in task, files, a dataset of the Hub, or objects in memory into one checked Task."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit import builtin
from probekit.errors import DataError, UsageError, nearest
from probekit.hub import ALIASES, REPO_ID
from probekit.options import TaskOptions
from probekit.options.option import keywords
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.columns import Columns, NamedColumns, columns_of
from probekit.tasks.data_table import DataTable
from probekit.tasks.hub import hub_tables
from probekit.tasks.labels import as_labels, encode, is_unlabelled
from probekit.tasks.objects import is_dataset_dict, object_tables
from probekit.tasks.overlap import shared_by_splits
from probekit.tasks.readers import READERS, read_table, split_files
from probekit.tasks.rows import Rows, collect, keep_rows
from probekit.tasks.same_text import text_numbers
from probekit.tasks.splits import carve_missing, components, name_groups, sample
from probekit.tasks.words import limited_words, unfolded, without_rare

HUB_ALIASES = ALIASES["dataset"]


@keywords(TaskOptions)
def load_task(source: Any, options: TaskOptions) -> Task:
    """Load a checked task: a built-in name, a file or folder, a dataset of the Hub, or texts and labels in memory.

    A folder holds train, validation (dev) and test files. A missing validation or test split is carved from train: a
    tenth each, stratified, with the same texts (and groups) in one split. A single file is split 80/10/10 alike.
    Where the Hub has no labelled test split, its validation split becomes our test split.

    In CoNLL-U files, and where there is a span column, the examples are words (or phrases) of their texts. The words of
    a text are one group. A word without the label (a morphological feature, for example) is left out and counted in
    `info`.

    Args:
        source: a built-in name ("agreement", "counting", ...), "sst2", the path of a CSV, TSV, JSONL, Parquet or
            CoNLL-U file or of a folder of them, or a Hub id. Or a pandas DataFrame, a Dataset or DatasetDict, a list of
            (text, label) pairs or of dicts, a dict of columns, or split -> any of these; they are checked as a file is,
            and their rows count from 0.
        options: as keyword arguments.

    Raises:
        UsageError: an unknown name, column or option.
        DataError: a file, row or label that cannot be used.
    """
    seed, limit, skip = options.seed, options.limit, options.on_bad_row == "skip"
    named = NamedColumns(options.text_column, options.label_column, options.group_column, options.span_column)
    if isinstance(source, str | Path) and source in builtin.TASKS:
        if named != NamedColumns():
            raise UsageError(f"{source!r} is built in and has no columns; name no text, label, group or span column")
        if options.regression:
            raise UsageError(f"{source!r} has classes; leave regression out")
        task = builtin.TASKS[str(source)](seed=seed)
    else:
        name, tables, info = _open(source, named)
        task = _assemble(name, tables, info, named, options)
    task = task if options.position is None else replace(task, position=options.position)
    if task.spans is not None:
        task = without_rare(task, skip)
    task.check()
    if limit is not None:
        task = _limited(task, limit, seed) if task.spans is None else limited_words(task, limit, seed)
    name = task.name if options.name is None else options.name
    return replace(task, name=name, info={**task.info, "limit": limit, **shared_by_splits(task)})


def _open(source: Any, named: NamedColumns) -> tuple[str, dict[str, DataTable], dict[str, Any]]:
    """The task's name, its tables by split, its source. An alias ("sst2") wins over a path, a path over a Hub id."""
    if not isinstance(source, str | Path):
        return _open_object(source, named)
    path = Path(source).expanduser()
    if isinstance(source, Path) or (source not in HUB_ALIASES and path.exists()):
        return _open_files(path, str(source), named)
    if path.suffix.lower() in READERS or not (source in HUB_ALIASES or REPO_ID.fullmatch(source)):
        near = nearest(source, [*builtin.TASKS, *HUB_ALIASES])
        raise UsageError(f"no dataset {source!a}: no file or folder, no owner/name of the Hub; {near}")
    tables, info = hub_tables(source)
    tables = {split: unfolded(table, named.span) for split, table in tables.items()}
    return source.rsplit("/", 1)[-1], _with_labelled_test(tables, named), info


def _open_object(source: Any, named: NamedColumns) -> tuple[str, dict[str, DataTable], dict[str, Any]]:
    name, tables, info = object_tables(source)
    tables = {split: unfolded(table, named.span) for split, table in tables.items()}
    return name, _with_labelled_test(tables, named) if is_dataset_dict(source) else tables, info


def _open_files(path: Path, source: str, named: NamedColumns) -> tuple[str, dict[str, DataTable], dict[str, Any]]:
    tables = {split: unfolded(read_table(file), named.span) for split, file in split_files(path).items()}
    name = path.resolve().name if path.is_dir() else path.stem
    return name, tables, {"source": source, "sha256": {table.name: table.sha256 for table in tables.values()}}


def _with_labelled_test(tables: dict[str, DataTable], named: NamedColumns) -> dict[str, DataTable]:
    """Replace a test split without labels (as in GLUE, which keeps them secret) by the validation split."""
    if "validation" not in tables or "train" not in tables:
        return tables
    label = columns_of(tables["train"], named).label
    test = tables.get("test")
    if test is None or label not in test.columns or all(is_unlabelled(cell) for cell in test.column(label)):
        return {"train": tables["train"], "test": tables["validation"]}
    return tables


def _assemble(
    name: str, tables: dict[str, DataTable], info: dict[str, Any], named: NamedColumns, options: TaskOptions
) -> Task:
    tables = {"train": next(iter(tables.values()))} if len(tables) == 1 else tables
    if "train" not in tables:
        raise DataError(f"{name!a} has only {' and '.join(tables)}; add a train file")
    rows, columns, skip = Rows(), columns_of(tables["train"], named), options.on_bad_row == "skip"
    for split in SPLITS:
        if split in tables:
            columns = columns_of(tables[split], named)
            collect(rows, split, tables[split], columns, options.keep_blanks, skip)
    labels, names = _encoded(rows, columns.label, tables["train"], skip, options.regression)
    together, groups = _groups(rows, columns)
    missing = [split for split in SPLITS if split not in tables]
    settings = {"seed": options.seed, "carved_from_train": missing, "keep_blanks": options.keep_blanks}
    return Task(
        name,
        rows.texts,
        {columns.label: labels},
        {columns.label: names},
        carve_missing(labels, rows.splits, together, missing, options.seed),
        columns.label,
        ids=rows.ids,
        groups=groups,
        info=info | settings | _row_info(rows, tables, columns),
        spans=None if columns.span is None else np.array(rows.spans, dtype=np.int64).reshape(-1, 2),
    )


def _encoded(rows: Rows, label: str, train: DataTable, skip: bool, regression: bool) -> tuple[np.ndarray, list[str]]:
    """The labels and the names of their classes; with `skip`, unlabelled rows are dropped."""
    classes = as_labels(rows.cells, rows.places, label, regression or label in train.measured)
    if skip and any(map(is_unlabelled, classes)):
        labelled = [i for i, value in enumerate(classes) if not is_unlabelled(value)]
        rows.skipped["unlabelled"] += len(classes) - len(labelled)
        keep_rows(rows, labelled)
        classes = [classes[i] for i in labelled]
    return encode(classes, rows.splits, label, train.class_names.get(label))


def _groups(rows: Rows, columns: Columns) -> tuple[list[Any], np.ndarray | None]:
    """Keys [N], equal for rows that must share a split; and the names of the groups, if there are any.

    Groups come from the group column; the words of a text are a group.
    """
    texts = text_numbers(rows.texts).tolist()
    names = [text.strip() for text in rows.texts] if columns.span is not None else None
    given = rows.groups if columns.group is not None else names
    if given is None:
        return texts, None
    together = components(texts, given)
    return together.tolist(), name_groups(together, [str(group) for group in given])


def _row_info(rows: Rows, tables: dict[str, DataTable], columns: Columns) -> dict[str, Any]:
    """The part of a task's info about its columns and the rows left out."""
    info = {f"{what}_column": getattr(columns, what) for what in ("text", "label", "group")} | {
        "dropped_blanks": rows.dropped_blanks,
        "skipped_rows": rows.skipped.total(),
        "skipped": dict(rows.skipped),
    }
    if columns.span is None:
        return info
    totals = sum((Counter(table.counts) for table in tables.values()), Counter())
    return {**info, "span_column": ",".join(columns.span), "unlabelled_words": rows.unlabelled, **totals}


def _limited(task: Task, limit: int, seed: int) -> Task:
    """The task with at most `limit` texts of each split, stratified by the target's classes."""
    if limit < (task.n_classes() or 2):
        least = f"{task.n_classes()} classes" if task.n_classes() else "2 values that a regression needs"
        raise UsageError(f"limit {limit} is less than the {least} of {task.name!a}; raise it")
    labels = task.labels[task.target]
    parts = [np.flatnonzero(task.splits == split) for split in SPLITS]
    return task.subset(np.concatenate([part[sample(labels[part], limit, seed)] for part in parts]))
