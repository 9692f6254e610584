"""What `load_task` is given, as tables by split: files by their names, datasets of the Hub, Python objects.

A folder holds a table for each split (train.csv, dev.csv, test.csv). Or it holds text files named after classes
(neg.txt, pos.txt), with a text in each line; such files may be in subfolders named after splits.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from probekit import registries
from probekit.errors import DataError, UsageError, nearest
from probekit.files.hub import ALIASES, REPO_ID, warn_of_local
from probekit.options import TaskOptions
from probekit.tasks.labels import is_unlabelled
from probekit.tasks.splitting.splits import WHOLE, splits_of_names
from probekit.tasks.tables.columns import columns_of
from probekit.tasks.tables.data_table import DataTable, Flaw, quote
from probekit.tasks.tables.hub import hub_tables
from probekit.tasks.tables.objects import is_dataset_dict, object_tables
from probekit.tasks.tables.readers import (
    BESIDE,
    READERS,
    TXT,
    TableFormat,
    check_format,
    read_classes,
    read_stream,
    read_table,
)
from probekit.text import listed

HUB_ALIASES = ALIASES["dataset"]
STDIN = "-"
ABOUT = ("readme", "license", "licence", "copying")  # text files that hold no texts of a class


def check_builtin(name: str, options: TaskOptions) -> None:
    """Refuse options of files for a built-in task. Raises UsageError."""
    named = [option.name for option in fields(options) if option.name.endswith("_column")]
    if any(getattr(options, option) is not None for option in (*named, "keep_columns", "columns")):
        raise UsageError(
            f"{name!r} is built in and has no columns; name none of its texts, labels, groups, spans or splits, and "
            "none to keep"
        )
    if options.header is not None or options.data_format is not None:
        raise UsageError(f"{name!r} is built in, not a file; leave --header, --no-header and --data-format out")
    if options.regression:
        raise UsageError(f"{name!r} has classes, not numbers; leave regression out")


def open_tables(source: Any, options: TaskOptions) -> tuple[str, dict[str, DataTable], dict[str, Any]]:
    """The task's name, its tables by split, its source. A path wins over a name of the Hub, as for models."""
    how, path = TableFormat.of(options), None
    if not isinstance(source, str | Path):
        how.refuse_for_objects()
        name, tables, info = object_tables(source)
    elif source == STDIN:
        if not hasattr(sys.stdin, "buffer"):
            raise UsageError("'-' reads standard input, which is closed; give a file or a folder")
        table = read_stream(sys.stdin.buffer, how)
        name, tables, info = table.stem, {WHOLE: table}, {"source": "stdin", "sha256": table.checksums()}
    elif (path := _path_of(source)) is not None:
        warn_of_local(source, "dataset")
        tables = {split: _read(file, how) for split, file in split_files(path, how.name).items()}
        name = path.resolve().name if path.is_dir() else path.stem
        digests = {file: digest for table in tables.values() for file, digest in table.checksums().items()}
        info = {"source": str(source), "sha256": digests}
    else:
        name, tables, info = _open_hub(str(source), how)
    tables = {split: unfolded(table, options.span_column) for split, table in tables.items()}
    if is_dataset_dict(source) or "revision" in info:
        tables = _with_labelled_test(tables, options)
    return name, tables, info


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


def _open_hub(source: str, how: TableFormat) -> tuple[str, dict[str, DataTable], dict[str, Any]]:
    is_file = Path(source).suffix.lower() in READERS
    if is_file or not (source in HUB_ALIASES or REPO_ID.fullmatch(source)):
        near = nearest(source, [*registries.TASKS, *HUB_ALIASES])
        raise UsageError(f"no dataset {source!a}: not a file, a folder or an owner/name on the Hub; {near}")
    if how != TableFormat():
        raise UsageError(f"{source!a} is on the Hub and names its columns; leave --columns and --data-format out")
    return source.rsplit("/", 1)[-1], *hub_tables(source)


def _with_labelled_test(tables: dict[str, DataTable], options: TaskOptions) -> dict[str, DataTable]:
    """Replace a test split without labels (as in GLUE, which keeps them secret) by the validation split."""
    if "validation" not in tables or "train" not in tables:
        return tables
    label = columns_of(tables["train"], options).label
    test = tables.get("test")
    if label is None:
        return tables
    if test is None or label not in test.columns or all(is_unlabelled(cell) for cell in test.column(label)):
        return {"train": tables["train"], "test": tables["validation"]}
    return tables


def unfolded(table: DataTable, column: str | None) -> DataTable:
    """The table with one row for each span, where the cells of `column` are lists of spans: {"start", "end", ...}.

    Other keys of the spans become columns: `label`, or `COLUMN.label` where the table already has a `label`.
    """
    cells: Sequence[Any] = table.column(column) if column in table.columns else []
    if not any(_are_spans(cell) and cell for cell in cells):
        return table
    rows: list[tuple[int, dict[str, Any]]] = []
    bad: dict[int, Flaw] = {}
    for i, cell in enumerate(cells):
        if i in table.bad or not _are_spans(cell):
            bad[len(rows)] = table.bad.get(i) or ("span", f"expected a list of spans, got {quote(cell)}; correct it")
            cell = [{}]
        rows += [(i, span) for span in cell]
    keys = dict.fromkeys(key for _, span in rows for key in span)
    named = {f"{column}.{key}" if key in table.columns else key: key for key in keys}

    def values(name: str) -> list[Any]:
        if name == column:
            return [[span.get("start"), span.get("end")] for _, span in rows]
        if name in named:
            return [span.get(named[name]) for _, span in rows]
        cells_of_texts = table.column(name)
        return [cells_of_texts[i] for i, _ in rows]

    lines = [table.lines[i] for i, _ in rows]
    return replace(table, columns=[*table.columns, *named], column=values, lines=lines, bad=bad, span=column)


def _are_spans(cell: Any) -> bool:
    return isinstance(cell, list) and all(isinstance(one, dict) for one in cell)


def split_files(path: Path, data_format: str | None = None) -> dict[str, Path]:
    """Split -> its file, or the folder of its class files; {"all": path} for a single file or folder of classes.

    Files with a split's name may have any ending where the format is given.

    Raises:
        DataError: the folder has no such files, or two for one split.
        UsageError: the path does not exist, is neither file nor folder, or the file's format is unknown.
    """
    if path.is_file():
        check_format(path.name, data_format)
        return {WHOLE: path}
    if not path.is_dir():
        if path.exists():
            raise UsageError(f"{str(path)!a} is neither a file nor a folder; pipe data in with --dataset -")
        raise UsageError(f"no file or folder {str(path)!a}; correct the path")
    found = _files_of_splits(_files(path))
    tables = {file: split for file, split in found.items() if file.suffix.lower() in READERS}
    named = {file: split for file, split in tables.items() if is_table(file)} or tables
    named = named or (found if data_format is not None else {})
    if not named:
        folders = [one for one in sorted(path.iterdir()) if one.is_dir() and class_files(one)]
        splits = splits_of_names(one.name for one in folders)
        named = {one: splits[one.name] for one in folders if one.name in splits}
    if not named and len(class_files(path)) > 1:
        return {WHOLE: path}
    return _by_split(path, named)


def class_files(folder: Path) -> list[Path]:
    """The text files of a folder that are named after classes, in order."""
    files = [file for file in _files(folder) if file.suffix.lower() == TXT]
    splits = _files_of_splits(files)
    return [file for file in files if file not in splits]


def is_one_task(folder: Path) -> bool:
    """Whether a folder is one task: all of its tables are splits, or it holds text files, of classes or splits."""
    files = _files(folder)
    if tables := [one for one in files if is_table(one)]:
        return len(_files_of_splits(tables)) == len(tables)
    return sum(one.suffix.lower() == TXT for one in files) > 1


def is_table(file: Path) -> bool:
    """Whether a file among others is a table by its ending; a .txt or .json may also be something else."""
    return file.suffix.lower() in READERS and file.suffix.lower() not in BESIDE


def _files(folder: Path) -> list[Path]:
    """The files that may be data, in order."""
    files = [one for one in sorted(folder.iterdir()) if one.is_file() and not one.name.startswith(".")]
    return [one for one in files if one.stem.lower() not in ABOUT]


def _files_of_splits(files: Sequence[Path]) -> dict[Path, str]:
    """File -> its split, of those that are named after one among the files of the same ending."""
    endings: dict[str, list[Path]] = defaultdict(list)
    for file in files:
        endings[file.suffix.lower()].append(file)
    found = {}
    for alike in endings.values():
        splits = splits_of_names(map(_name_of_split, alike))
        found |= {file: splits[name] for file in alike if (name := _name_of_split(file)) in splits}
    return {file: found[file] for file in files if file in found}


def _by_split(path: Path, named: dict[Path, str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file, split in named.items():
        if split in found:
            raise DataError(
                f"{str(path)!a} has two files for {split}: {found[split].name!a} and {file.name!a}; keep one"
            )
        found[split] = file
    if not found:
        there = listed([ascii(file.name) for file in sorted(path.iterdir())]) or "nothing"
        raise DataError(
            f"{str(path)!a} has no train, validation (dev) or test file ending in {', '.join(READERS)}; "
            f"it has {there}; rename its files, or give the path of one of them"
        )
    return found


def _name_of_split(file: Path) -> str:
    """What may name a split in a file's name; Universal Dependencies names files like en_ewt-ud-dev.conllu."""
    return file.stem.rsplit("-", 1)[-1] if file.suffix.lower() == ".conllu" else file.stem
