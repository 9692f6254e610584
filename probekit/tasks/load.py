"""load_task: turn a built-in task, files, a dataset of the Hub, or objects in memory into one checked Task."""

import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit import registries
from probekit.errors import DataError, UsageError, nearest
from probekit.files.hub import ALIASES, REPO_ID, warn_of_local
from probekit.files.scratch import IN_MEMORY, give_back_memory, settled
from probekit.options import LabelOptions, TaskOptions
from probekit.options.option import keywords
from probekit.options.typed import changed
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.info import ASKED, CARVED_FROM_TRAIN, READ_AS, UNLABELLED
from probekit.tasks.join_labels import label_set_of_column
from probekit.tasks.labels import as_labels, encode, is_unlabelled, refuse_unlabelled
from probekit.tasks.side_columns import column_of
from probekit.tasks.splitting.look_alikes import warn_of_look_alikes
from probekit.tasks.splitting.overlap import shared_by_splits
from probekit.tasks.splitting.rare import (
    check_number_of_classes,
    rare_info,
    settle_classes,
    too_rare_to_carve,
    without_rare_classes,
)
from probekit.tasks.splitting.same_text import text_numbers
from probekit.tasks.splitting.split_names import WHOLE
from probekit.tasks.splitting.splits import carve_missing, kept_together, sample, split_array
from probekit.tasks.tables.columns import LABEL_COLUMNS, Columns, NamedColumns, columns_of, split_column_of
from probekit.tasks.tables.data_table import DataTable
from probekit.tasks.tables.hub import hub_tables
from probekit.tasks.tables.objects import is_dataset_dict, object_tables
from probekit.tasks.tables.readers import READERS, TableFormat, read_classes, read_stream, read_table
from probekit.tasks.tables.rows import SKIP_HINT, Rows, collect, keep_rows
from probekit.tasks.tables.split_files import class_files, split_files
from probekit.tasks.tokens.token_cells import with_token_cells
from probekit.tasks.tokens.token_labels import text_strata
from probekit.tasks.words import limited_words, unfolded
from probekit.text import listed

HUB_ALIASES = ALIASES["dataset"]
STDIN = "-"


@keywords(TaskOptions)
def load_task(source: Any, options: TaskOptions) -> Task:
    """Load a checked task: a built-in name, a file or folder, a dataset of the Hub, or texts and labels in memory.

    A folder holds train, validation (dev) and test files. A missing validation or test split is carved from train: a
    tenth each, stratified, with the same texts (and groups) in one split. A single file is split 80/10/10 alike.
    Where the Hub has no labelled test split, its validation split becomes our test split.

    A table without a column of labels gives texts alone: all are in train, or in the splits that are given. Labels are
    joined later by row id (`label`, `probekit label`), and splits are carved then.

    In CoNLL-U files, and where there is a span column, the examples are words (or phrases) of their texts. The words of
    a text are one group. A word without the label (a morphological feature, for example) is left out and counted in
    `info`.

    Args:
        source: a built-in name ("agreement", "counting", ...), "sst2", the path of a CSV, TSV, JSONL, Parquet or
            CoNLL-U file or of a folder of them, or a Hub id. Or a pandas DataFrame, a Dataset or DatasetDict, a list of
            (text, label) pairs or of dicts, a dict of columns, or split -> any of these; they are checked as a file is,
            and their rows count from 0. A column "messages" holds chats, lists of {role, content}, in place of texts; a
            column "ids" (or "input_ids") lists of token ids, which need no tokenizer.
        options: as keyword arguments.

    Raises:
        UsageError: an unknown name, column or option.
        DataError: a file, row or label that cannot be used.
    """
    named = NamedColumns(
        options.text_column,
        options.label_column,
        options.group_column,
        options.span_column,
        options.split_column,
        options.id_column,
        options.messages_column,
        options.token_label_column,
        tuple(options.keep_columns or ()),
    )
    if isinstance(source, str | Path) and source in registries.TASKS:
        check_builtin(str(source), named, options)
        task = registries.TASKS[str(source)](seed=options.seed)
    else:
        name, tables, info = open_tables(source, named, options)
        task = _assemble(name, tables, info, named, options)
    task = task if options.position is None else replace(task, position=options.position)
    if task.target:
        task = without_rare_classes(task, options.rare_classes)
        task.check()
    if options.limit is not None:
        task = _limited(task, options)
    if task.target:
        warn_of_look_alikes(task)
    name = task.name if options.name is None else options.name
    if len(task) > IN_MEMORY:
        give_back_memory()
    about = {ASKED: changed(options), "limit": options.limit, **shared_by_splits(task)}
    return replace(task, name=name, info={**task.info, **about})


def check_builtin(name: str, named: NamedColumns, options: TaskOptions) -> None:
    """Refuse options of files for a built-in task. Raises UsageError."""
    if named != NamedColumns() or options.columns is not None:
        raise UsageError(
            f"{name!r} is built in and has no columns; name none of its texts, labels, groups, spans or splits, and "
            "none to keep"
        )
    if not options.header or options.data_format is not None:
        raise UsageError(f"{name!r} is built in, not a file; leave --no-header and --data-format out")
    if options.regression:
        raise UsageError(f"{name!r} has classes, not numbers; leave regression out")


def open_tables(
    source: Any, named: NamedColumns, options: TaskOptions
) -> tuple[str, dict[str, DataTable], dict[str, Any]]:
    """The task's name, its tables by split, its source. A path wins over a name of the Hub, as for models."""
    if not isinstance(source, str | Path):
        if options.columns is not None or not options.header or options.data_format is not None:
            raise UsageError("columns, header and data_format are for files; Python objects name their own columns")
        return _open_object(source, named)
    path = _path_of(source)
    columns = None if options.columns is None else tuple(options.columns)
    how = TableFormat(columns, options.header, options.data_format)
    if source == STDIN:
        if not hasattr(sys.stdin, "buffer"):
            raise UsageError("'-' reads standard input, which is closed; give a file or a folder")
        table = read_stream(sys.stdin.buffer, how)
        tables, name, origin = {WHOLE: table}, table.stem, "stdin"
    elif path is not None:
        warn_of_local(source, "dataset")
        files = split_files(path, how.name)
        tables = {split: _read(file, how) for split, file in files.items()}
        name, origin = path.resolve().name if path.is_dir() else path.stem, str(source)
    else:
        return _open_hub(str(source), named, how)
    info = {"source": origin, "sha256": {k: v for table in tables.values() for k, v in table.checksums().items()}}
    return name, {split: unfolded(table, named.span) for split, table in tables.items()}, info


def _path_of(source: str | Path) -> Path | None:
    """The path that a source names; None for a name that no file can have, or where there is no such file."""
    try:
        path = Path(source).expanduser()
        return path if isinstance(source, Path) or (source and path.exists()) else None
    except (OSError, RuntimeError):  # too long for a file name; a home folder that is not there
        return None


def _read(path: Path, how: TableFormat) -> DataTable:
    """The table of a file, or of a folder of class files."""
    if not path.is_dir():
        return read_table(path, how)
    if not how.has_header or how.name is not None:
        raise UsageError(f"{path.name!a} holds a text file for each class; leave --columns and --data-format out")
    return read_classes(path, class_files(path))


def _open_hub(source: str, named: NamedColumns, how: TableFormat) -> tuple[str, dict[str, DataTable], dict[str, Any]]:
    is_file = Path(source).suffix.lower() in READERS
    if is_file or not (source in HUB_ALIASES or REPO_ID.fullmatch(source)):
        near = nearest(source, [*registries.TASKS, *HUB_ALIASES])
        raise UsageError(f"no dataset {source!a}: not a file, a folder or an owner/name on the Hub; {near}")
    if how != TableFormat():
        raise UsageError(f"{source!a} is on the Hub and names its columns; leave --columns and --data-format out")
    tables, info = hub_tables(source)
    tables = {split: unfolded(table, named.span) for split, table in tables.items()}
    return source.rsplit("/", 1)[-1], _with_labelled_test(tables, named), info


def _open_object(source: Any, named: NamedColumns) -> tuple[str, dict[str, DataTable], dict[str, Any]]:
    name, tables, info = object_tables(source)
    tables = {split: unfolded(table, named.span) for split, table in tables.items()}
    return name, _with_labelled_test(tables, named) if is_dataset_dict(source) else tables, info


def _with_labelled_test(tables: dict[str, DataTable], named: NamedColumns) -> dict[str, DataTable]:
    """Replace a test split without labels (as in GLUE, which keeps them secret) by the validation split."""
    if "validation" not in tables or "train" not in tables:
        return tables
    label = columns_of(tables["train"], named).label
    test = tables.get("test")
    if label is None:
        return tables
    if test is None or label not in test.columns or all(is_unlabelled(cell) for cell in test.column(label)):
        return {"train": tables["train"], "test": tables["validation"]}
    return tables


def _with_train(name: str, tables: dict[str, DataTable], on_hub: bool) -> tuple[dict[str, DataTable], str]:
    """The tables with one for train, and where the splits come from, for the plan.

    A single file is carved. Where there is validation and test but no train, probes are fitted on validation.

    Raises:
        DataError: a folder with a single file, of validation or test.
    """
    if WHOLE in tables:
        return {"train": tables[WHOLE]}, ""
    if "train" in tables:
        return tables, ""
    if len(tables) == 1:
        (table,) = tables.values()
        if on_hub:  # whose one split cannot be given as a file
            return {"train": table}, f"all carved from {table.name}, the only split"
        raise DataError(
            f"{name!a} has only {' and '.join(tables)}, expected a train file; add one, or give the path of "
            f"{table.name!a} itself, which is then split 80/10/10"
        )
    rest = {split: table for split, table in tables.items() if split != "validation"}
    return {"train": tables["validation"], **rest}, f"no train: fitted on {tables['validation'].name}"


def _assemble(
    name: str, tables: dict[str, DataTable], info: dict[str, Any], named: NamedColumns, options: TaskOptions
) -> Task:
    tables, origin = _with_train(name, tables, "sha256" not in info)
    rows, columns = _collected(name, tables, named, options)
    skip = options.on_bad_row == "skip"
    if columns.label is None:
        _warn_unlabelled(tables["train"], columns, options)
        labels, names, groups, carving = {}, {}, _groups(rows, columns)[1], {"seed": options.seed}
    else:
        coded = _encoded(rows, columns.label, tables["train"], skip, options.regression)
        rows.cells = []
        own, own_names, groups, carving = _carved(rows, columns, columns.label, coded, options)
        labels, names = {columns.label: own}, {columns.label: own_names}
    origin = f"by column {columns.split!a}" if columns.split is not None else origin
    task = Task(
        name,
        settled(rows.texts),
        labels,
        names,
        split_array(rows.splits),
        columns.label or "",
        ids=settled(rows.ids),
        groups=groups,
        info=info | carving | _row_info(rows, tables, columns) | {"splits_from": origin},
        spans=None if columns.span is None else np.array(rows.spans, dtype=np.int64).reshape(-1, 2),
        chats=rows.chats if columns.has_chats else None,
        columns={name: column_of(rows.kept[name], name, rows.places) for name in columns.kept},
    )
    return _with_token_cells(_with_more_labels(task, rows, tables["train"], columns, options), rows, columns, options)


def _with_more_labels(task: Task, rows: Rows, train: DataTable, columns: Columns, options: TaskOptions) -> Task:
    """The task with the label sets after the first; a text may lack a label of these."""
    labels, names, unlabelled = dict(task.labels), dict(task.label_names), dict(task.info.get(UNLABELLED, {}))
    for name in columns.labels:
        column = column_of(rows.kept[name], name, rows.places)
        regression = name in train.measured or (options.regression and column.dtype.kind == "f")
        how = LabelOptions(on_bad_row="skip", regression=regression, max_classes=options.max_classes)
        classes = train.class_names.get(name, ())
        found = label_set_of_column(task, name, rows.kept[name], rows.places, train.typed, classes, how)
        labels[name], names[name] = found.labels, found.names
        unlabelled |= {name: found.info["unlabelled"]} if found.info["unlabelled"] else {}
    if not columns.labels:
        return task
    info = {**task.info, UNLABELLED: unlabelled}
    return replace(task, labels=labels, label_names=names, info=info)


def _collected(
    name: str, tables: dict[str, DataTable], named: NamedColumns, options: TaskOptions
) -> tuple[Rows, Columns]:
    """The rows of all splits, and the columns that they were read from."""
    rows, columns = Rows(), columns_of(tables["train"], named)
    if len(tables) == 1:
        taken = (columns.text, columns.label, columns.group, columns.id, columns.token_label, *(columns.span or ()))
        columns = columns._replace(split=split_column_of(tables["train"], taken, named.split))
    elif named.split is not None:
        raise UsageError(f"{name!a} has a table for each split; leave --split-column out")
    for split in [split for split in SPLITS if split in tables]:
        own = columns_of(tables[split], named, labelled=columns.label is not None)
        if own.has_chats != columns.has_chats:
            raise DataError(f"{tables[split].name} and {tables['train'].name} hold texts and chats; give one kind")
        if own.has_tokens != columns.has_tokens:
            raise DataError(f"{tables[split].name} and {tables['train'].name} hold texts and token ids; give one kind")
        columns = own._replace(split=columns.split, label=columns.label and own.label)
        collect(rows, split, tables[split], columns, options.keep_blanks, options.on_bad_row == "skip")
    return rows, columns


def _with_token_cells(task: Task, rows: Rows, columns: Columns, options: TaskOptions) -> Task:
    """The task with the labels of its tokens, where there is a column of them."""
    if columns.token_label is None:
        return task
    return with_token_cells(task, columns.token_label, rows.token_cells, _groups(rows, columns)[0], options)


def _warn_unlabelled(table: DataTable, columns: Columns, options: TaskOptions) -> None:
    """Say that texts and tokens have no labels, and which columns are not read: labels may be in one of them.

    Raises:
        UsageError: options that are of no use without labels.
    """
    if columns.token_label is not None:
        return
    if options.regression:
        raise UsageError(f"--regression is for labels, and {table.name} has none; name their column, --label-column")
    read = (columns.text, columns.group, columns.split, columns.id, *(columns.span or ()), *columns.kept)
    if other := [f"{name!a:.80}" for name in table.columns if name not in read]:
        warnings.warn(
            f"{table.name} has no column named {' or '.join(LABEL_COLUMNS)}, so its texts have no labels; if they are "
            f"in {listed(other, most=6)}, name the column with --label-column",
            stacklevel=5,
        )


def _carved(
    rows: Rows, columns: Columns, label: str, coded: tuple[np.ndarray, list[str]], options: TaskOptions
) -> tuple[np.ndarray, list[str], np.ndarray | None, dict[str, Any]]:
    """Carve the missing splits, after classes that are too rare for it were dropped or merged.

    Returns:
        labels, class names, groups, and the part of the info about all this.
    """
    labels, names = coded
    wanted = [split for split in SPLITS if options.validation or split != "validation"]
    missing = [split for split in wanted if split not in rows.splits]
    info = {"seed": options.seed, CARVED_FROM_TRAIN: missing, "keep_blanks": options.keep_blanks}
    together, groups = _groups(rows, columns)
    if names and options.rare_classes != "error":
        rare = too_rare_to_carve(labels, len(names), rows.splits, together, missing)
        if len(names) - len(rare) >= 2:
            made = settle_classes(labels, names, rare, options.rare_classes)
            keep_rows(rows, made.kept.tolist())
            labels, names = made.labels, made.names
            together, groups = _groups(rows, columns) if made.rare else (together, groups)
            info |= rare_info(made, options.rare_classes, {})
    check_number_of_classes(names, label, rows.places[0].rpartition(",")[0], options.max_classes)
    rows.splits = carve_missing(labels, rows.splits, together, missing, options.seed)
    return labels, names, groups, info


def _encoded(rows: Rows, label: str, train: DataTable, skip: bool, regression: bool) -> tuple[np.ndarray, list[str]]:
    """The labels and the names of their classes; with `skip`, unlabelled rows are dropped."""
    classes = as_labels(rows.cells, rows.places, label, regression or label in train.measured)
    if skip and any(map(is_unlabelled, classes)):
        labelled = [i for i, value in enumerate(classes) if not is_unlabelled(value)]
        rows.skipped["unlabelled"] += len(classes) - len(labelled)
        keep_rows(rows, labelled)
        classes = [classes[i] for i in labelled]
    _refuse_unlabelled_splits(classes, rows, label)
    refuse_unlabelled(classes, rows.places, label, f"write the label, {SKIP_HINT}")
    return encode(classes, train.class_names.get(label))


def _refuse_unlabelled_splits(classes: list[Any], rows: Rows, label: str) -> None:
    """Raise if a whole split is labelled -1, as the secret test splits of SST and GLUE are."""
    labelled = {split for split, value in zip(rows.splits, classes, strict=True) if not is_unlabelled(value)}
    if labelled and (hidden := [split for split in SPLITS if split in rows.splits and split not in labelled]):
        raise DataError(
            f"{rows.places[rows.splits.index(hidden[0])]}: expected a label of {label!a}, got -1, which means 'not "
            f"labelled', in every row of {hidden[0]}; leave {hidden[0]} out, so that it is carved from train"
        )


def _groups(rows: Rows, columns: Columns) -> tuple[np.ndarray, np.ndarray | None]:
    """Keys and group names of the rows (`kept_together`): of the group column, or the texts of words."""
    groups = [str(group) for group in rows.groups] if columns.group is not None else None
    if groups is None and columns.span is not None:
        groups = [text.strip() for text in rows.texts]
    return kept_together(text_numbers(rows.texts), groups)


def _row_info(rows: Rows, tables: dict[str, DataTable], columns: Columns) -> dict[str, Any]:
    """The part of a task's info about its columns and the rows left out."""
    info = {
        f"{what}_column": getattr(columns, what) for what in ("text", "label", "group", "split", "id", "token_label")
    } | {
        "dropped_blanks": rows.dropped_blanks,
        "skipped_rows": rows.skipped.total(),
        "skipped": dict(rows.skipped),
    }
    if any(table.files for table in tables.values()):
        info["classes_from_files"] = True
    if read_as := [*dict.fromkeys(table.read_as for table in tables.values() if table.read_as)]:
        info[READ_AS] = "; ".join(read_as)
    if columns.span is None:
        return info
    totals = sum((Counter(table.counts) for table in tables.values()), Counter())
    return {**info, "span_column": ",".join(columns.span), "unlabelled_words": rows.unlabelled, **totals}


def _limited(task: Task, options: TaskOptions) -> Task:
    """The task with at most `limit` texts of each split, stratified by the target's classes."""
    limit, seed, keep_classes = options.limit or 0, options.seed, options.rare_classes == "error"
    if not task.target:
        parts = [np.flatnonzero(task.splits == split) for split in SPLITS]
        return task.subset(np.concatenate([part[sample(np.zeros(len(part)), limit, seed)] for part in parts]))
    if task.spans is not None:
        task = limited_words(task, limit, seed, keep_classes)
    else:
        least = 2 if not task.n_classes() or not keep_classes else task.n_classes()
        if limit < least:
            what = f"{task.n_classes()} classes" if task.n_classes() else "2 values that a regression needs"
            raise UsageError(f"limit {limit} is less than the {what} of {task.name!a}; raise it")
        of_tokens = task.target in task.token_labels
        labels = text_strata(task, task.target) if of_tokens else task.labels[task.target]
        parts = [np.flatnonzero(task.splits == split) for split in SPLITS]
        task = task.subset(np.concatenate([part[sample(labels[part], limit, seed)] for part in parts]))
        if of_tokens and keep_classes:
            task.check()
    if not keep_classes:  # a small limit makes classes rare
        task = without_rare_classes(task, options.rare_classes)
        task.check()
    return task
