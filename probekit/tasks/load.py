"""load_task: turn a built-in task, files, a dataset of the Hub, or objects in memory into one checked Task."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit import registries
from probekit.errors import DataError, UsageError
from probekit.files.scratch import IN_MEMORY, give_back_memory, settled
from probekit.options import ImportOptions, LabelOptions, TaskOptions
from probekit.options.option import keywords
from probekit.options.typed import changed
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.fields import ASKED, CARVED_FROM_TRAIN, NO_TEXTS, READ_AS, UNLABELLED
from probekit.tasks.join_labels import label_set_of_column
from probekit.tasks.labels import (
    as_labels,
    column_of,
    encode,
    is_unlabelled,
    refuse_unlabelled,
)
from probekit.tasks.splitting.classes import (
    check_number_of_classes,
    rare_info,
    settle_classes,
    too_rare_to_carve,
    warn_of_look_alikes,
    without_rare_classes,
)
from probekit.tasks.splitting.splits import (
    WHOLE,
    carve_missing,
    kept_together,
    missing_splits,
    sample,
    shared_by_splits,
    split_array,
    text_numbers,
)
from probekit.tasks.tables.columns import LABEL_COLUMNS, TEXT_COLUMNS, Columns, columns_of, split_column_of
from probekit.tasks.tables.data_table import DataTable, choose_column
from probekit.tasks.tables.objects import task_of
from probekit.tasks.tables.readers import TableFormat, read_table
from probekit.tasks.tables.rows import SKIP_HINT, Rows, collect, keep_rows
from probekit.tasks.tables.sources import check_builtin, open_tables
from probekit.tasks.token_labels import strata_of
from probekit.text import counted, listed


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
    if isinstance(source, str | Path) and source in registries.TASKS:
        check_builtin(str(source), options)
        task = registries.TASKS[str(source)](seed=options.seed)
    else:
        name, tables, info = open_tables(source, options)
        task = _assemble(name, tables, info, options)
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


def _with_train(name: str, tables: dict[str, DataTable], on_hub: bool) -> tuple[dict[str, DataTable], str]:
    """The tables with one for train, and where the splits come from, for the plan.

    A single file is carved. Where there is validation and test but no train, probes are fitted on validation.
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


def _assemble(name: str, tables: dict[str, DataTable], info: dict[str, Any], options: TaskOptions) -> Task:
    tables, origin = _with_train(name, tables, "sha256" not in info)
    rows, columns = _collected(name, tables, options)
    if columns.label is None:
        _warn_unlabelled(tables["train"], columns, options)
        labels, names, groups, carving = {}, {}, _groups(rows, columns)[1], {"seed": options.seed}
    else:
        advice = _advice(options)
        coded = _encoded(
            rows, columns.label, tables["train"], options.regression, advice and f"write the label, {advice}"
        )
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
    task = _with_more_labels(task, rows, tables["train"], columns, options)
    return task if columns.token_label is None else _with_token_labels(task, rows, columns, options)


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


def _with_token_labels(task: Task, rows: Rows, columns: Columns, options: TaskOptions) -> Task:
    """The task with labels of tokens as its target; without labels of texts, missing splits are carved by them."""
    column, is_carved = str(columns.token_label), bool(task.labels)
    names = {**task.label_names, **({column: []} if options.regression else {})}
    task = replace(task, token_labels={column: list(rows.token_cells)}, label_names=names, target=column)
    check_number_of_classes(task.label_names[column], column, task.name, options.max_classes)
    if is_carved:
        return task
    missing = missing_splits(task.splits, options.validation)
    keys = _groups(rows, columns)[0]
    splits = carve_missing(strata_of(task), task.splits, keys, missing, options.seed)
    return replace(task, splits=splits, info={**task.info, CARVED_FROM_TRAIN: missing})


def _collected(name: str, tables: dict[str, DataTable], options: TaskOptions) -> tuple[Rows, Columns]:
    """The rows of all splits, and the columns that they were read from."""
    rows, columns = Rows(), columns_of(tables["train"], options)
    if len(tables) == 1:
        taken = (columns.text, columns.label, columns.group, columns.id, columns.token_label, *(columns.span or ()))
        columns = columns._replace(split=split_column_of(tables["train"], taken, options.split_column))
    elif options.split_column is not None:
        raise UsageError(f"{name!a} has a table for each split; leave --split-column out")
    for split in [split for split in SPLITS if split in tables]:
        own = columns_of(tables[split], options, labelled=columns.label is not None)
        if own.has_chats != columns.has_chats:
            raise DataError(f"{tables[split].name} and {tables['train'].name} hold texts and chats; give one kind")
        if own.has_tokens != columns.has_tokens:
            raise DataError(f"{tables[split].name} and {tables['train'].name} hold texts and token ids; give one kind")
        columns = own._replace(split=columns.split, label=columns.label and own.label)
        collect(rows, split, tables[split], columns, options.keep_blanks, _advice(options))
    return rows, columns


def _advice(options: TaskOptions) -> str | None:
    """What an error says about a bad row besides what is wrong; None where such rows are left out."""
    return None if options.on_bad_row == "skip" else SKIP_HINT


def _warn_unlabelled(table: DataTable, columns: Columns, options: TaskOptions) -> None:
    """Say that texts and tokens have no labels, and which columns are not read: labels may be in one of them."""
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
    """Carve the missing splits, after too rare classes are dropped or merged: labels, class names, groups, and info."""
    labels, names = coded
    missing = missing_splits(rows.splits, options.validation)
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


def _encoded(
    rows: Rows, label: str, train: DataTable, regression: bool, advice: str | None
) -> tuple[np.ndarray, list[str]]:
    """The labels and the names of their classes; without advice for an error, unlabelled rows are dropped."""
    classes = as_labels(rows.cells, rows.places, label, regression or label in train.measured)
    if advice is None and any(map(is_unlabelled, classes)):
        labelled = [i for i, value in enumerate(classes) if not is_unlabelled(value)]
        rows.skipped["unlabelled"] += len(classes) - len(labelled)
        keep_rows(rows, labelled)
        classes = [classes[i] for i in labelled]
    labelled = {split for split, value in zip(rows.splits, classes, strict=True) if not is_unlabelled(value)}
    if labelled and (hidden := [split for split in SPLITS if split in rows.splits and split not in labelled]):
        raise DataError(  # a whole split is -1, as the secret test splits of SST and GLUE are
            f"{rows.places[rows.splits.index(hidden[0])]}: expected a label of {label!a}, got -1, which means 'not "
            f"labelled', in every row of {hidden[0]}; leave {hidden[0]} out, so that it is carved from train"
        )
    refuse_unlabelled(classes, rows.places, label, advice or "")
    return encode(classes, train.class_names.get(label))


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
    if task.target and task.spans is not None:
        task = _limited_words(task, limit, seed, keep_classes)
    else:
        least = 0 if not task.target else task.n_classes() if keep_classes and task.n_classes() else 2
        if limit < least:
            what = f"{task.n_classes()} classes" if task.n_classes() else "2 values that a regression needs"
            raise UsageError(f"limit {limit} is less than the {what} of {task.name!a}; raise it")
        labels, parts = strata_of(task), [np.flatnonzero(task.splits == split) for split in SPLITS]
        task = task.subset(np.concatenate([part[sample(labels[part], limit, seed)] for part in parts]))
    if task.target and not keep_classes:  # a small limit makes classes rare
        task = without_rare_classes(task, options.rare_classes)
    if task.target and (task.target in task.token_labels or not keep_classes):
        task.check()
    return task


def _limited_words(task: Task, limit: int, seed: int, keep_classes: bool) -> Task:
    """All words of at most `limit` texts of each split, drawn uniformly, but the first of each class is always kept."""
    first, of = task.texts()
    kept = np.zeros(len(first), dtype=bool)
    for number, split in enumerate(SPLITS):
        texts = np.flatnonzero(task.splits[first] == split)
        drawn = np.random.default_rng([seed, number]).permutation(texts)
        needed = _with_each_class(task, of, drawn)
        if len(needed) > limit and keep_classes:
            raise UsageError(
                f"limit {limit} is less than the {counted(len(needed), 'text')} of {split} needed to keep each "
                f"of the {task.n_classes()} classes of {task.name!a}; raise it, or use --rare-classes drop"
            )
        needed = needed[:0] if len(needed) > limit else needed
        rest = drawn[~np.isin(drawn, needed)]
        kept[np.concatenate([needed, rest])[:limit]] = True
    return task.subset(kept[of])


def _with_each_class(task: Task, of: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The first drawn text of each class, rarest class first, without repetitions."""
    place = np.full(of.max() + 1, len(drawn))
    place[drawn] = np.arange(len(drawn))
    labels, where = task.labels[task.target], place[of]
    classes = range(task.n_classes())
    counts = np.bincount(labels[where < len(drawn)], minlength=len(classes)) if classes else np.empty(0)
    chosen: list[int] = []
    for k in sorted(classes, key=lambda k: counts[k]):
        there = where[(labels == k) & (where < len(drawn))]
        if not np.isin(there, chosen).any():
            chosen.append(int(there.min()))
    return drawn[np.array(chosen, dtype=np.int64)]


def typed_texts(texts: Sequence[str], as_chats: bool = False) -> Task:
    """Texts that were typed, as a task; `as_chats` makes each a chat of one message from the user.

    Raises:
        UsageError: an empty text.
    """
    if not all(texts):
        raise UsageError(f"text {list(map(bool, texts)).index(False)} (--text) is empty; write one")
    if as_chats:
        return task_of([[{"role": "user", "content": text}] for text in texts])
    return Task("texts", list(texts))


def load_texts(source: Any, options: TaskOptions) -> Task:
    """The texts, words or chats of a source that `load_task` takes, without labels and splits, in their order.

    Raises:
        UsageError: an unknown name, column or option.
        DataError: a file or text that cannot be used.
    """
    unread = ("label_column", "group_column", "split_column", "token_label_column", "keep_columns")
    options = replace(options, **dict.fromkeys(unread))
    if isinstance(source, str | Path) and source in registries.TASKS:
        check_builtin(str(source), options)
        task = registries.TASKS[str(source)](seed=options.seed)
        return replace(task, labels={}, label_names={}, token_labels={}, target="", groups=None)
    name, tables, info = open_tables(source, options)
    rows, of_spans = Rows(), False
    for table in tables.values():
        table = table if options.span_column is None else replace(table, span=None)  # whose rows would need labels
        is_words = table.span is not None  # the words of CoNLL-U need some label to be read
        columns = columns_of(table, replace(options, label_column="upos") if is_words else options)
        columns = columns._replace(label=columns.label if is_words else None, group=None, token_label=None)
        collect(rows, "train", table, columns, options.keep_blanks, _advice(options))
        of_spans = columns.span is not None
    return Task(
        name,
        rows.texts,
        {},
        {},
        np.full(len(rows.texts), "train"),
        ids=rows.ids,
        info=info | {"dropped_blanks": rows.dropped_blanks, "skipped_rows": rows.skipped.total()},
        spans=np.array(rows.spans, dtype=np.int64).reshape(-1, 2) if of_spans else None,
        chats=rows.chats or None,
    )


def labelled_task(path: Path, options: ImportOptions, name: str) -> Task:
    """A checked task of examples that were run elsewhere, from a CSV, TSV, JSONL or Parquet file.

    Row i of the file is example i. No row may be left out, since the activations have it too. A column `split` that
    names splits is kept to; missing splits are carved from train as `load_task` does. Without a text column, the rows'
    names serve as texts and `info["no_texts"]` is True.

    Raises:
        UsageError: a column that is not there.
        DataError: a row, label, split or text that cannot be used.
    """
    table = read_table(path, TableFormat.of(options))
    task, origin = _task_of_all_rows(table, options, name)
    task.info.update(source=str(path), sha256=table.checksums(), label_column=task.target, splits_from=origin)
    return task


def labels_task(cells: Sequence[Any], where: str, options: ImportOptions, name: str) -> Task:
    """A checked task from the labels [N] alone; errors call them `where`.

    Raises:
        DataError: a label that cannot be used, or too few of a class.
    """
    if not len(cells):
        raise DataError(f"{name!a} has no labels; write one for each example")
    table = DataTable(where, "row", ["label"], lambda _: cells, range(len(cells)), typed=True, unit="row")
    return _task_of_all_rows(table, options, name)[0]


def _task_of_all_rows(table: DataTable, options: ImportOptions, name: str) -> tuple[Task, str]:
    """A task in which no row of the table is left out, and where its splits come from, in words."""
    label = choose_column(table, options.label_column, LABEL_COLUMNS, "label")
    group = None if options.group_column is None else choose_column(table, options.group_column, (), "group")
    usual = {one.strip().lower() for one in table.columns}
    has_texts = options.text_column is not None or not usual.isdisjoint(TEXT_COLUMNS)
    text = choose_column(table, options.text_column, TEXT_COLUMNS, "text") if has_texts else None
    split = split_column_of(table, (options.text_column, label, options.group_column))
    columns, rows = Columns(text, label, group, None, split), Rows()
    collect(rows, "train", table, columns, keep_blanks=True, advice="")
    advice = "remove the row from the labels and from the activations, or correct it"
    coded = _encoded(rows, label, table, options.regression, advice)
    how = TaskOptions(seed=options.seed, max_classes=options.max_classes)
    labels, names, groups, carving = _carved(rows, columns, label, coded, how)
    del carving["keep_blanks"]
    task = Task(
        name,
        settled(rows.texts),
        {label: labels},
        {label: names},
        split_array(rows.splits),
        ids=[f"{table.stem}:{i}" for i in range(len(labels))],
        groups=groups,
        info=carving | {NO_TEXTS: not has_texts},
    )
    task.check()
    task.info.update(shared_by_splits(task))
    warn_of_look_alikes(task)
    return task, "" if split is None else f"by column {split!a}"
