"""load_task: a built-in task, files, or a dataset of the Hub, made into one checked Task."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probekit import builtin
from probekit.errors import DataError, UsageError, nearest
from probekit.hub import ALIASES, REPO_ID
from probekit.options import TaskOptions
from probekit.options.option import keywords
from probekit.tasks.base import SPLITS, Task, span_flaw
from probekit.tasks.files import READERS, Table, choose_column, find_files, flaw_of, quote, read_table
from probekit.tasks.hub import hub_tables
from probekit.tasks.labels import NA, as_labels, encode, group_flaw, group_name, is_number, is_unlabelled, label_flaw
from probekit.tasks.splits import carve, components, named, sample
from probekit.tasks.words import limited_words, spans_of, unfolded, without_rare

TEXT_COLUMNS = ("text", "sentence", "statement", "prompt")
LABEL_COLUMNS = ("label", "target")
CARVED = 0.1
HUB_ALIASES = ALIASES["dataset"]
SKIP_HINT = "or leave such rows out with --on-bad-row skip"


@keywords(TaskOptions)
def load_task(source: str | Path, options: TaskOptions) -> Task:
    """A checked task from a built-in name, a file or folder, or a dataset of the Hub.

    A folder holds train, validation (dev) and test files. What is missing of validation and test is carved from train,
    a tenth for each, stratified, equal texts (and groups) on one side. A single file is split 80/10/10 in the same way.
    Where the Hub has no labelled test split, its validation split is our test.

    Of CoNLL-U files, and where there is a span column, the examples are words (or phrases) of their texts. Then the
    words of a text are one group, and a label that a word does not have (a feature, say) leaves the word out; how many
    these were is in `info`.

    Args:
        source: a built-in name ("agreement", "counting", ...), "sst2", a path to CSV, TSV, JSONL, Parquet or CoNLL-U or
            to a folder of them, or a Hub id.
        options: as keyword arguments.

    Raises:
        UsageError: an unknown name, column or option.
        DataError: a file, row or label that cannot be used.
    """
    seed, limit, skip = options.seed, options.limit, options.on_bad_row == "skip"
    columns = _Columns(options.text_column, options.label_column, options.group_column, options.span_column)
    if source in builtin.TASKS:
        if columns != _Columns():
            raise UsageError(f"{source!r} is built in and has no columns; leave text, label, group and span column out")
        if options.regression:
            raise UsageError(f"{source!r} has classes; leave regression out")
        task = builtin.TASKS[str(source)](seed=seed)
    else:
        name, tables, info = _open(source, columns)
        task = _assemble(name, tables, columns, seed, options.keep_blanks, skip, options.regression, info)
    task = task if options.position is None else replace(task, position=options.position)
    if task.spans is not None:
        task = without_rare(task, skip)
    task.check()
    if limit is not None:
        task = _limited(task, limit, seed) if task.spans is None else limited_words(task, limit, seed)
    return replace(task, info={**task.info, "limit": limit, **leaks(task)})


class _Chosen(NamedTuple):
    """The names of a table's columns."""

    text: str
    label: str
    group: str | None
    span: tuple[str, ...] | None


@dataclass(frozen=True)
class _Columns:
    """The names that were asked for."""

    text: str | None = None
    label: str | None = None
    group: str | None = None
    span: str | None = None

    def of(self, table: Table) -> _Chosen:
        text = choose_column(table, self.text, TEXT_COLUMNS, "text")
        label = choose_column(table, self.label, LABEL_COLUMNS, "label")
        group = self.group if self.group is not None else table.group
        group = None if group is None else choose_column(table, group, (), "group")
        for one, other, both in (("text", "label", text == label), ("label", "group", label == group)):
            if both:
                raise UsageError(f"column {label!a} cannot be both {one} and {other}; name another one for one of them")
        return _Chosen(text, label, group, self._span(table))

    def _span(self, table: Table) -> tuple[str, ...] | None:
        named = self.span if self.span is not None else table.span
        if named is None:
            return None
        parts = [named] if named in table.columns else [part.strip() for part in named.split(",")]
        if len(parts) > 2:
            raise UsageError(f"a span is in one column or in two, such as start,end; got {named!a}")
        return tuple(choose_column(table, part, (), "span") for part in parts)


def _open(source: str | Path, columns: _Columns) -> tuple[str, dict[str, Table], dict[str, Any]]:
    """The task's name, its tables by split, and where they come from. A path wins over a Hub id, an alias over both."""
    path = Path(source).expanduser()
    if isinstance(source, Path) or (source not in HUB_ALIASES and path.exists()):
        return _open_files(path, str(source), columns)
    if path.suffix.lower() in READERS or not (source in HUB_ALIASES or REPO_ID.fullmatch(source)):
        near = nearest(source, [*builtin.TASKS, *HUB_ALIASES])
        raise UsageError(f"no dataset {source!a}: no file or folder, no owner/name of the Hub; {near}")
    tables, info = hub_tables(source)
    tables = {split: unfolded(table, columns.span) for split, table in tables.items()}
    return source.rsplit("/", 1)[-1], _with_labelled_test(tables, columns), info


def _open_files(path: Path, source: str, columns: _Columns) -> tuple[str, dict[str, Table], dict[str, Any]]:
    tables = {split: unfolded(read_table(file), columns.span) for split, file in find_files(path).items()}
    name = path.resolve().name if path.is_dir() else path.stem
    return name, tables, {"source": source, "sha256": {table.name: table.sha256 for table in tables.values()}}


def _with_labelled_test(tables: dict[str, Table], columns: _Columns) -> dict[str, Table]:
    """Where a benchmark keeps its test labels to itself, its validation split is our test (GLUE's SST-2)."""
    if "validation" not in tables or "train" not in tables:
        return tables
    label = columns.of(tables["train"]).label
    test = tables.get("test")
    if test is None or label not in test.columns or all(is_unlabelled(cell) for cell in test.column(label)):
        return {"train": tables["train"], "test": tables["validation"]}
    return tables


@dataclass
class _Rows:
    """The usable rows of all tables, and what was done to them."""

    texts: list[str] = field(default_factory=list)
    cells: list[Any] = field(default_factory=list)
    groups: list[str | None] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    spans: list[tuple[int, int]] = field(default_factory=list)
    dropped_blanks: int = 0
    unlabelled: int = 0  # words that do not have such a label

    def keep(self, rows: Sequence[int]) -> None:
        for name in ("texts", "cells", "groups", "splits", "ids", "places", "spans"):
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in rows] if values else values)


def _assemble(
    name: str,
    tables: dict[str, Table],
    columns: _Columns,
    seed: int,
    keep_blanks: bool,
    skip: bool,
    regression: bool,
    info: dict[str, Any],
) -> Task:
    tables = {"train": next(iter(tables.values()))} if len(tables) == 1 else tables
    if "train" not in tables:
        raise DataError(f"{name!a} has only {' and '.join(tables)}; add a train file")
    rows, chosen = _Rows(), columns.of(tables["train"])
    for split in SPLITS:
        if split in tables:
            chosen = columns.of(tables[split])
            _collect(rows, split, tables[split], chosen, keep_blanks, skip)
    labels, names = _encoded(rows, chosen.label, tables["train"], skip, regression)
    together, groups = _groups(rows, chosen)
    missing = [split for split in SPLITS if split not in tables]
    return Task(
        name,
        rows.texts,
        {chosen.label: labels},
        {chosen.label: names},
        carve_missing(labels, rows.splits, together, missing, seed),
        chosen.label,
        ids=rows.ids,
        groups=groups,
        info={**info, "seed": seed, "carved_from_train": missing, "keep_blanks": keep_blanks}
        | _told(rows, tables, chosen),
        spans=None if chosen.span is None else np.array(rows.spans, dtype=np.int64).reshape(-1, 2),
    )


def _encoded(rows: _Rows, label: str, train: Table, skip: bool, regression: bool) -> tuple[np.ndarray, list[str]]:
    """The labels and the names of their classes; with `skip`, rows that say they have none are taken out."""
    classes = as_labels(rows.cells, rows.places, label, regression or label in train.measured)
    if skip and any(map(is_unlabelled, classes)):
        labelled = [i for i, value in enumerate(classes) if not is_unlabelled(value)]
        rows.skipped["unlabelled"] += len(classes) - len(labelled)
        rows.keep(labelled)
        classes = [classes[i] for i in labelled]
    return encode(classes, rows.splits, label, train.class_names.get(label))


def _groups(rows: _Rows, chosen: _Chosen) -> tuple[list[Any], np.ndarray | None]:
    """Which rows stay in one split, equal keys [N], and the groups by name: those of a column, or texts with words."""
    texts = [text.strip() for text in rows.texts]
    given = rows.groups if chosen.group is not None else texts if chosen.span is not None else None
    if given is None:
        return texts, None
    together = components(texts, given)
    return together.tolist(), named(together, [str(group) for group in given])


def _told(rows: _Rows, tables: dict[str, Table], chosen: _Chosen) -> dict[str, Any]:
    """What a task's info says of its columns, and of the rows that are not in it."""
    told = {f"{what}_column": getattr(chosen, what) for what in ("text", "label", "group")} | {
        "dropped_blanks": rows.dropped_blanks,
        "skipped_rows": rows.skipped.total(),
        "skipped": dict(rows.skipped),
    }
    if chosen.span is None:
        return told
    totals = sum((Counter(table.counts) for table in tables.values()), Counter())
    return {**told, "span_column": ",".join(chosen.span), "unlabelled_words": rows.unlabelled, **totals}


def _collect(rows: _Rows, split: str, table: Table, chosen: _Chosen, keep_blanks: bool, skip: bool) -> None:
    """Add the usable rows of one table; raise at the first other one, or count it."""
    texts, labels = table.column(chosen.text), table.column(chosen.label)
    groups = None if chosen.group is None else table.column(chosen.group)
    spans = None if chosen.span is None else spans_of(table, chosen.span)
    if not table.typed:
        refuse_numbers(table, chosen.text, texts)
    for i, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if table.span is not None and label is None and i not in table.bad:
            rows.unlabelled += 1
            continue
        kept = text.rstrip() if isinstance(text, str) and not keep_blanks else text
        flaw = table.bad.get(i) or _row_flaw(table, chosen, text, label)
        if groups is not None:
            flaw = flaw or group_flaw(groups[i])
        if spans is not None:
            flaw = flaw or _span_flaw(kept, spans[i])
        if flaw is not None:
            if not skip:
                raise DataError(f"{table.where(i)}: {flaw[1]}, {SKIP_HINT}")
            rows.skipped[flaw[0]] += 1
            continue
        rows.dropped_blanks += kept != text
        rows.texts.append(kept)
        rows.cells.append(label)
        rows.spans += [] if spans is None else [spans[i]]
        rows.groups.append(None if groups is None else group_name(groups[i]))
        rows.splits.append(split)
        rows.ids.append(f"{table.stem}:{i}")
        rows.places.append(table.where(i))
    if split not in rows.splits:
        raise DataError(f"{table.name}: skipped {len(texts)} of {len(texts)} rows, none is left; mend the file")


def _row_flaw(table: Table, chosen: _Chosen, text: Any, label: Any) -> tuple[str, str] | None:
    """Why a row's text or label cannot be used, if it cannot: (kind, words)."""
    flaw = text_flaw(text, table.typed) or label_flaw(label, table.typed, table.class_names.get(chosen.label, ()))
    return flaw or (flaw_of([text, label]) if table.typed else None)


def _span_flaw(text: str, span: tuple[int, int] | str) -> tuple[str, str] | None:
    words = span if isinstance(span, str) else span_flaw(text, *span)
    return None if words is None else ("span", words)


def text_flaw(cell: Any, typed: bool) -> tuple[str, str] | None:
    """Why a cell cannot be a text, if it cannot: (kind, words)."""
    if cell is None or (not typed and cell.strip() in NA - {""}) or (isinstance(cell, float) and cell != cell):
        hint = "write the text" if typed else "write the text (JSONL can hold this very word)"
        return "na", f"expected a text, got {quote(cell)}, a missing value; {hint}"
    if not isinstance(cell, str):
        return "not_text", f"expected a text, got {quote(cell)} ({type(cell).__name__}); put the text in quotes"
    if not cell.strip():
        return "empty", f"expected a text, got the empty {quote(cell)}; write one"
    return None


def refuse_numbers(table: Table, column: str, texts: list[str]) -> None:
    """Single numbers are texts ("1987" is a phrase of SST-2); a column of nothing else is the wrong column."""
    present = [i for i, text in enumerate(texts) if i not in table.bad and text.strip() not in NA]
    if present and all(is_number(texts[i]) for i in present):
        there = ", ".join(map(ascii, table.columns))
        raise DataError(
            f"{table.where(present[0])}: expected texts in column {column!a}, got only numbers "
            f"(first {quote(texts[present[0]])}); name the text column with --text-column: {there}"
        )


def carve_missing(
    labels: np.ndarray, given: list[str], keys: Sequence[Hashable], missing: list[str], seed: int
) -> np.ndarray:
    """The splits [N], with a tenth of train moved to each missing one; rows with equal keys move together."""
    least = 2 if labels.dtype.kind == "f" else len(np.unique(labels))
    splits = np.array(given, dtype="<U10")
    n = int((splits == "train").sum())
    size = max(least, round(CARVED * n))
    for k, split in enumerate(reversed(missing)):
        train = np.flatnonzero(splits == "train")
        chosen = carve(labels[train], [keys[i] for i in train.tolist()], min(size, len(train)), [seed, k])
        splits[train[chosen]] = split
    return splits


def leaks(task: Task) -> dict[str, Any]:
    """How many texts of validation and test also stand in train, and how many groups in several splits (None: none)."""
    rows = task.texts()[0]
    parts = {split: [str(task.inputs[i]).strip() for i in rows[task.splits[rows] == split]] for split in SPLITS}
    train = set(parts["train"])
    torn = None
    if task.groups is not None:
        pairs = set(zip(task.groups.tolist(), task.splits.tolist(), strict=True))
        torn = sum(n > 1 for n in Counter(group for group, _ in pairs).values())
    return {
        "also_in_train": {split: sum(text in train for text in parts[split]) for split in SPLITS[1:]},
        "groups_across_splits": torn,
    }


def _limited(task: Task, limit: int, seed: int) -> Task:
    """At most `limit` texts of each split, each class of the target with its share."""
    if limit < (task.n_classes() or 2):
        least = f"{task.n_classes()} classes" if task.n_classes() else "2 values that a regression needs"
        raise UsageError(f"limit {limit} is less than the {least} of {task.name!a}; raise it")
    labels = task.labels[task.target]
    parts = [np.flatnonzero(task.splits == split) for split in SPLITS]
    return task.subset(np.concatenate([part[sample(labels[part], limit, seed)] for part in parts]))
