"""load_task: a built-in task, files, or a dataset of the Hub, made into one checked Task."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from probekit.errors import DataError, UsageError, nearest
from probekit.hub import ALIASES, REPO_ID
from probekit.tasks.agreement import agreement
from probekit.tasks.base import POSITIONS, SPLITS, Task
from probekit.tasks.files import READERS, Table, choose_column, find_files, flaw_of, quote, read_table
from probekit.tasks.hub import hub_tables
from probekit.tasks.labels import NA, as_classes, encode, is_number, is_unlabelled, label_flaw
from probekit.tasks.splits import carve, sample

BUILTIN_TASKS = ("agreement",)
TEXT_COLUMNS = ("text", "sentence", "statement", "prompt")
LABEL_COLUMNS = ("label", "target")
CARVED = 0.1
HUB_ALIASES = ALIASES["dataset"]
SKIP_HINT = "or leave such rows out with --on-bad-row skip"

OnBadRow = Literal["error", "skip"]


def load_task(
    source: str | Path,
    text_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    keep_blanks: bool = False,
    on_bad_row: OnBadRow = "error",
    position: str = "last",
) -> Task:
    """A checked task from a built-in name, a file or folder, or a dataset of the Hub.

    A folder holds train, validation (dev) and test files. What is missing of validation and test is carved from train,
    a tenth for each, stratified, equal texts on one side. A single file is split 80/10/10 in the same way. Where the
    Hub has no labelled test split, its validation split is our test.

    Args:
        source: "agreement", "sst2", a path to CSV, TSV, JSONL or Parquet or to a folder of them, or a Hub id.
        text_column: default: the first of text, sentence, statement, prompt that is there.
        label_column: default: the first of label, target that is there.
        limit: at most so many texts of each split, stratified.
        seed: for carving, for the limit and for built-in tasks.
        keep_blanks: leave white space at the end of texts, which is dropped and counted otherwise.
        on_bad_row: "error", or "skip" to leave out and count rows that cannot be used.
        position: which token is read: "last", "first" or "mean".

    Raises:
        UsageError: an unknown name, column or option.
        DataError: a file, row or label that cannot be used.
    """
    for what, value, known in (("on_bad_row", on_bad_row, ("error", "skip")), ("position", position, POSITIONS)):
        if value not in known:
            raise UsageError(f"no {what} {value!a}; {nearest(str(value), known)}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be 1 or more, got {limit}")
    if source in BUILTIN_TASKS:
        if text_column or label_column:
            raise UsageError(f"{source!r} is built in and has no columns; leave text_column and label_column out")
        task = agreement(seed=seed)
    else:
        columns = _Columns(text_column, label_column)
        name, tables, info = _open(source, columns)
        task = _assemble(name, tables, columns, seed, keep_blanks, skip=on_bad_row == "skip", info=info)
    task = replace(task, position=position, info={**task.info, "limit": limit})
    task.check()
    return task if limit is None else _limited(task, limit, seed)


@dataclass(frozen=True)
class _Columns:
    text: str | None
    label: str | None

    def of(self, table: Table) -> tuple[str, str]:
        text = choose_column(table, self.text, TEXT_COLUMNS, "text")
        label = choose_column(table, self.label, LABEL_COLUMNS, "label")
        if text == label:
            raise UsageError(f"column {text!a} cannot be both text and label; name another one for one of them")
        return text, label


def _open(source: str | Path, columns: _Columns) -> tuple[str, dict[str, Table], dict[str, Any]]:
    """The task's name, its tables by split, and where they come from. A path wins over a Hub id, an alias over both."""
    path = Path(source).expanduser()
    if isinstance(source, Path) or (source not in HUB_ALIASES and path.exists()):
        return _open_files(path, str(source))
    if path.suffix.lower() in READERS or not (source in HUB_ALIASES or REPO_ID.fullmatch(source)):
        near = nearest(source, [*BUILTIN_TASKS, *HUB_ALIASES])
        raise UsageError(f"no dataset {source!a}: no file or folder, no owner/name of the Hub; {near}")
    tables, info = hub_tables(source)
    return source.rsplit("/", 1)[-1], _with_labelled_test(tables, columns), info


def _open_files(path: Path, source: str) -> tuple[str, dict[str, Table], dict[str, Any]]:
    tables = {split: read_table(file) for split, file in find_files(path).items()}
    name = path.resolve().name if path.is_dir() else path.stem
    return name, tables, {"source": source, "sha256": {table.name: table.sha256 for table in tables.values()}}


def _with_labelled_test(tables: dict[str, Table], columns: _Columns) -> dict[str, Table]:
    """Where a benchmark keeps its test labels to itself, its validation split is our test (GLUE's SST-2)."""
    if "validation" not in tables or "train" not in tables:
        return tables
    _, label = columns.of(tables["train"])
    test = tables.get("test")
    if test is None or label not in test.columns or all(is_unlabelled(cell) for cell in test.column(label)):
        return {"train": tables["train"], "test": tables["validation"]}
    return tables


@dataclass
class _Rows:
    """The usable rows of all tables, and what was done to them."""

    texts: list[str] = field(default_factory=list)
    cells: list[Any] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    dropped_blanks: int = 0

    def keep(self, rows: Sequence[int]) -> None:
        for name in ("texts", "cells", "splits", "ids", "places"):
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in rows])


def _assemble(
    name: str,
    tables: dict[str, Table],
    columns: _Columns,
    seed: int,
    keep_blanks: bool,
    skip: bool,
    info: dict[str, Any],
) -> Task:
    tables = {"train": next(iter(tables.values()))} if len(tables) == 1 else tables
    if "train" not in tables:
        raise DataError(f"{name!a} has only {' and '.join(tables)}; add a train file")
    rows, label_column = _Rows(), ""
    for split in SPLITS:
        if split in tables:
            text_column, label_column = columns.of(tables[split])
            _collect(rows, split, tables[split], text_column, label_column, keep_blanks, skip)
            info |= {"text_column": text_column, "label_column": label_column}
    names = tables["train"].class_names.get(label_column)
    classes = as_classes(rows.cells, rows.places, label_column)
    if skip and any(map(is_unlabelled, classes)):
        labelled = [i for i, value in enumerate(classes) if not is_unlabelled(value)]
        rows.skipped["unlabelled"] += len(classes) - len(labelled)
        rows.keep(labelled)
        classes = [classes[i] for i in labelled]
    labels, names = encode(classes, rows.splits, label_column, names)
    splits = _carve_missing(labels, rows, [split for split in SPLITS if split not in tables], seed)
    info |= {
        "seed": seed,
        "carved_from_train": [split for split in SPLITS if split not in tables],
        "keep_blanks": keep_blanks,
        "dropped_blanks": rows.dropped_blanks,
        "skipped_rows": rows.skipped.total(),
        "skipped": dict(rows.skipped),
        "also_in_train": _also_in_train(rows.texts, splits),
    }
    return Task(name, rows.texts, {"label": labels}, {"label": names}, splits, "label", ids=rows.ids, info=info)


def _collect(
    rows: _Rows, split: str, table: Table, text_column: str, label_column: str, keep_blanks: bool, skip: bool
) -> None:
    """Add the usable rows of one table; raise at the first other one, or count it."""
    texts, labels = table.column(text_column), table.column(label_column)
    if not table.typed:
        _refuse_numbers(table, text_column, texts)
    for i, (text, label) in enumerate(zip(texts, labels, strict=True)):
        flaw = table.bad.get(i) or _text_flaw(text, table.typed) or label_flaw(label, table.typed)
        if flaw is None and table.typed:
            flaw = flaw_of([text, label])
        if flaw is not None:
            if not skip:
                raise DataError(f"{table.where(i)}: {flaw[1]}, {SKIP_HINT}")
            rows.skipped[flaw[0]] += 1
            continue
        kept = text if keep_blanks else text.rstrip()
        rows.dropped_blanks += kept != text
        rows.texts.append(kept)
        rows.cells.append(label)
        rows.splits.append(split)
        rows.ids.append(f"{table.stem}:{i}")
        rows.places.append(table.where(i))
    if split not in rows.splits:
        raise DataError(f"{table.name}: skipped {len(texts)} of {len(texts)} rows, none is left; mend the file")


def _text_flaw(cell: Any, typed: bool) -> tuple[str, str] | None:
    """Why a cell cannot be a text, if it cannot: (kind, words)."""
    if cell is None or (not typed and cell.strip() in NA - {""}) or (isinstance(cell, float) and cell != cell):
        hint = "write the text" if typed else "write the text (JSONL can hold this very word)"
        return "na", f"expected a text, got {quote(cell)}, a missing value; {hint}"
    if not isinstance(cell, str):
        return "not_text", f"expected a text, got {quote(cell)} ({type(cell).__name__}); put the text in quotes"
    if not cell.strip():
        return "empty", f"expected a text, got the empty {quote(cell)}; write one"
    return None


def _refuse_numbers(table: Table, column: str, texts: list[str]) -> None:
    """Single numbers are texts ("1987" is a phrase of SST-2); a column of nothing else is the wrong column."""
    present = [i for i, text in enumerate(texts) if i not in table.bad and text.strip() not in NA]
    if present and all(is_number(texts[i]) for i in present):
        there = ", ".join(map(ascii, table.columns))
        raise DataError(
            f"{table.where(present[0])}: expected texts in column {column!a}, got only numbers "
            f"(first {quote(texts[present[0]])}); name the text column with --text-column: {there}"
        )


def _carve_missing(labels: np.ndarray, rows: _Rows, missing: list[str], seed: int) -> np.ndarray:
    """The splits [N], with a tenth of train moved to each missing one; equal texts move together."""
    splits = np.array(rows.splits, dtype="<U10")
    n = int((splits == "train").sum())
    size = max(len(np.unique(labels)), round(CARVED * n))
    for k, split in enumerate(reversed(missing)):
        train = np.flatnonzero(splits == "train")
        chosen = carve(labels[train], [rows.texts[i].strip() for i in train], min(size, len(train)), [seed, k])
        splits[train[chosen]] = split
    return splits


def _also_in_train(texts: list[str], splits: np.ndarray) -> dict[str, int]:
    """How many texts of validation and test also stand in train: a leak in the data as it came."""
    train = {texts[i].strip() for i in np.flatnonzero(splits == "train")}
    return {split: sum(texts[i].strip() in train for i in np.flatnonzero(splits == split)) for split in SPLITS[1:]}


def _limited(task: Task, limit: int, seed: int) -> Task:
    """At most `limit` texts of each split, each class of the target with its share."""
    if limit < task.n_classes():
        raise UsageError(f"limit {limit} is less than the {task.n_classes()} classes of {task.name!a}; raise it")
    labels = task.labels[task.target]
    parts = [np.flatnonzero(task.splits == split) for split in SPLITS]
    return task.subset(np.concatenate([part[sample(labels[part], limit, seed)] for part in parts]))
