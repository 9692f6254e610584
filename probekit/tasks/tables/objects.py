"""What Python code has in its hands instead of files: data frames, datasets, lists and dicts, as tables of texts.

The tables go through the checks of files (`rows`); their rows count from 0, as Python's do.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.options.task import LabelOptions
from probekit.tasks.base import Task
from probekit.tasks.chats.messages import chat_flaw, is_chat, plain_lines
from probekit.tasks.fields import IN_MEMORY
from probekit.tasks.splitting.splits import WHOLE, splits_of_names
from probekit.tasks.tables.columns import ID_COLUMNS
from probekit.tasks.tables.data_table import DataTable, Flaw, quote
from probekit.tasks.tables.hub import dataset_table, dataset_tables
from probekit.tasks.tables.readers import TableFormat, read_table
from probekit.tasks.task_checks import is_sequence, listed_inputs
from probekit.text import kind_of, listed

PAIRS = "(text, label) pairs"
TAKES = f"a name, a path, a DataFrame, a Dataset, a list of {PAIRS} or of dicts, or a dict of columns or splits"
MISSING = ("NAType", "NaTType")  # of pandas


def object_tables(source: Any) -> tuple[str, dict[str, DataTable], dict[str, Any]]:
    """The name of a Python object's kind, its tables by split ({"all": table} for one), and its source.

    Raises:
        UsageError: an object that holds no table, or an unknown split.
        DataError: no rows, columns of several lengths, or two tables for one split.
    """
    name, info = type(source).__name__, {"source": type(source).__name__, IN_MEMORY: True}
    if _is_a(source, "datasets", "IterableDatasetDict", "IterableDataset"):
        raise UsageError("a streamed dataset cannot be read twice; load it without streaming=True")
    if is_dataset_dict(source):
        return name, dataset_tables(name, source.with_format(None), first=0), info
    if isinstance(source, Mapping) and _are_splits(source):
        return name, _split_tables(source), info
    return name, {WHOLE: _table(source, name, "row")}, info


def task_of(given: Any) -> Task:
    """A task as it is; texts, or lists of token ids, as a task without labels.

    Raises:
        UsageError: anything else.
        DataError: an entry that is neither a text nor a list of token ids.
    """
    if isinstance(given, Task):
        return given
    if isinstance(given, str):
        raise UsageError(
            f"expected a task or a list of texts, got the text {quote(given)}; write load_task({quote(given)}) for a "
            f"dataset, [{quote(given)}] for a text"
        )
    given = list(given) if isinstance(given, Iterator) else given
    if not is_sequence(given) or _is_table(given):
        is_data = isinstance(given, Mapping) or _is_table(given)
        hint = "make a task of it with load_task" if is_data else "give one of the two"
        raise UsageError(f"expected a task or a list of texts, got {kind_of(given)}; {hint}")
    if is_chat(given):
        raise UsageError("expected a list of chats, got the messages of one; write [messages]")
    if len(given) and is_chat(given[0]):
        return Task("chats", ["" if chat_flaw(chat) else plain_lines(chat) for chat in given], chats=list(given))
    return Task("texts", given)  # pyright: ignore[reportArgumentType]  Task makes a list of it


def is_dataset_dict(given: Any) -> bool:
    """True for a `datasets.DatasetDict`, as `load_dataset` returns it."""
    return _is_a(given, "datasets", "DatasetDict")


def _is_a(given: Any, library: str, *names: str) -> bool:
    """True for an object of these classes; a library that is not imported has made no object."""
    module = sys.modules.get(library)
    return isinstance(given, tuple(kind for name in names if (kind := getattr(module, name, None)) is not None))


def _is_table(given: Any) -> bool:
    return _is_a(given, "pandas", "DataFrame") or _is_a(given, "datasets", "Dataset")


def _are_splits(source: Mapping[Any, Any]) -> bool:
    """True for a dict of splits, False for one of columns."""
    return bool(source) and (len(splits_of_names(source)) == len(source) or any(map(_holds_rows, source.values())))


def _holds_rows(value: Any) -> bool:
    """True for a value that can be a split and no column; a column may hold lists of dicts, the spans of its texts."""
    if _is_table(value) or isinstance(value, Mapping):
        return True
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping | tuple)


def _split_tables(source: Mapping[Any, Any]) -> dict[str, DataTable]:
    tables: dict[str, DataTable] = {}
    splits = splits_of_names(source)
    for key, part in source.items():
        split = splits.get(key)
        if split is None:
            raise UsageError(f"splits are named train, validation (dev) and test, got {quote(key)}; rename it")
        if split in tables:
            raise DataError(f"two tables for {split}: {tables[split].name!a} and {key!a}; keep one")
        tables[split] = _table(part, str(key), str(key))
    return tables


def _table(source: Any, name: str, stem: str) -> DataTable:
    """One table; errors call it `name`, and its rows are the examples `stem`:0, `stem`:1, ..."""
    if _is_a(source, "datasets", "Dataset"):
        table = dataset_table(name, stem, source.with_format(None), first=0)
    elif _is_a(source, "pandas", "DataFrame"):
        _refuse_levels(source)
        columns = [str(column) for column in source.columns]
        table = _made(name, stem, columns, len(source), lambda column: source.iloc[:, columns.index(column)].tolist())
    elif isinstance(source, Mapping):
        table = _of_columns(source, name, stem)
    elif isinstance(source, Iterator) or (is_sequence(source) and not _is_a(source, "pandas", "Series")):
        table = _of_rows(list(source) if isinstance(source, Iterator) else listed_inputs(source), name, stem)
    else:
        if _is_a(source, "pandas", "Series"):
            _refuse_no_pairs(source.tolist())
        hint = "pass it to extract as it is" if isinstance(source, Task) else "give one of these"
        raise UsageError(f"load_task takes {TAKES}, got {kind_of(source)}; {hint}")
    if not len(table.lines):
        raise DataError(f"{name} has no rows; expected one row for each text")
    return table


def _refuse_levels(frame: Any) -> None:
    """Raise a DataError for a data frame whose texts and labels are in its index, or whose columns have levels."""
    if not len(frame.columns) and len(frame):
        names = listed([f"{name!a:.80}" for name in frame.index.names if name is not None])
        there = f"only an index of {names}" if names else "only an index"
        raise DataError(f"expected a DataFrame with columns of texts and labels, got {there}; write df.reset_index()")
    if frame.columns.nlevels > 1:
        raise DataError(
            "expected a DataFrame whose columns have one name each, such as text and label, got "
            f"{frame.columns.nlevels} levels of names; take one of them: df.columns = df.columns.get_level_values(-1)"
        )


def _made(
    name: str,
    stem: str,
    columns: list[str],
    n: int,
    column: Callable[[str], Sequence[Any]],
    bad: dict[int, Flaw] | None = None,
) -> DataTable:
    def cells(wanted: str) -> list[Any]:
        return [_cell(cell) for cell in column(wanted)]

    return DataTable(name, stem, columns, cells, range(n), typed=True, unit="row", bad=bad or {})


def _cell(cell: Any) -> Any:
    """A cell as one of Python's own values; None for what pandas calls missing."""
    if type(cell).__name__ in MISSING:
        return None
    return cell.tolist() if hasattr(cell, "tolist") else cell


def _of_columns(source: Mapping[Any, Any], name: str, stem: str) -> DataTable:
    lengths = {}
    for column, cells in source.items():
        if not is_sequence(cells):
            raise UsageError(
                f"a dict holds columns, such as 'text' and 'label', or splits, such as 'train'; {column!a} is "
                f"{kind_of(cells)}; give lists"
            )
        lengths[column] = len(cells)
    if len(set(lengths.values())) > 1:
        found = listed([f"{column!a} has {n:,}" for column, n in lengths.items()])
        raise DataError(f"the columns of a dict have one entry for each text, got several lengths: {found}")
    given = {str(column): cells for column, cells in source.items()}
    return _made(name, stem, list(given), next(iter(lengths.values()), 0), given.__getitem__)


def _of_rows(rows: list[Any], name: str, stem: str) -> DataTable:
    """The table of dicts, or of pairs, as the first row is."""
    if rows and isinstance(rows[0], Mapping):
        bad = {
            row: ("dict", f"expected a dict, as in row 0, got {quote(one)}; correct it")
            for row, one in enumerate(rows)
            if not isinstance(one, Mapping)
        }
        dicts = [one if isinstance(one, Mapping) else {} for one in rows]
        columns = {str(column): column for one in dicts for column in one}
        return _made(
            name, stem, list(columns), len(rows), lambda column: [one.get(columns[column]) for one in dicts], bad
        )
    _refuse_no_pairs(rows)
    bad = {
        row: ("pair", f"expected (text, label), got {quote(one)}; correct it")
        for row, one in enumerate(rows)
        if not is_sequence(one) or len(one) != 2
    }
    pairs = [("", "") if row in bad else one for row, one in enumerate(rows)]
    first = next((one[0] for one in rows if is_sequence(one) and len(one) == 2), None)
    at = {"messages" if is_chat(first) else "text": 0, "label": 1}
    return _made(name, stem, list(at), len(rows), lambda column: [one[at[column]] for one in pairs], bad)


def _refuse_no_pairs(rows: list[Any]) -> None:
    if rows and all(isinstance(one, str) for one in rows):
        raise UsageError(f"load_task takes {PAIRS}, got texts alone; extract(model, texts) takes these")
    if len(rows) == 2 and all(is_sequence(one) and len(one) > 2 for one in rows):
        raise UsageError(f"load_task takes {PAIRS}, got two lists; write load_task(list(zip(texts, labels)))")


LABEL_SOURCES = "a file, a DataFrame or Series, a dict id -> label, a list of (id, label) pairs or of dicts"


def label_table(source: Any, options: LabelOptions) -> DataTable:
    """The table of ids and labels that a file or an object of Python holds.

    Raises:
        UsageError: something else, or no such file.
        DataError: no rows, or a damaged file.
    """
    how = TableFormat.of(options)
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if not path.is_file():
            raise UsageError(f"no file {str(source)!a}; name a CSV, TSV, JSONL or Parquet file of ids and labels")
        return read_table(path, how)
    how.refuse_for_objects()
    tables = object_tables(_with_columns(source, options.id_column))[1]
    if len(tables) != 1:
        raise UsageError(f"expected one table of labels, got splits ({listed(tables)}); join them into one")
    return replace(next(iter(tables.values())), name=type(source).__name__)


def _with_columns(source: Any, named: str | None) -> Any:
    """The source as `object_tables` takes it, with a column of ids."""
    if hasattr(source, "columns") and hasattr(source, "index"):  # a DataFrame; ids may be its index
        names = {str(name).strip().lower() for name in source.columns}
        has_ids = named in source.columns if named is not None else not names.isdisjoint(ID_COLUMNS)
        return source if has_ids else source.rename_axis(named or ID_COLUMNS[0]).reset_index()
    if hasattr(source, "index") and hasattr(source, "items") and hasattr(source, "name"):  # a Series
        return _rows(zip(source.index.tolist(), source.tolist(), strict=True))
    if isinstance(source, Mapping) and not any(map(_is_column, source.values())):
        if not source:
            raise DataError("the dict of labels is empty; expected id -> label")
        return _rows(source.items())
    if isinstance(source, Mapping) and all(isinstance(one, Mapping) for one in source.values()):
        raise UsageError(
            f"labels are those of one set, a dict id -> label, got a dict of dicts ({listed([*map(quote, source)])}); "
            f"give one at a time: label(acts, labels[{quote(next(iter(source)))}], name=...)"
        )
    if is_sequence(source) and len(source) and all(isinstance(one, tuple | list) and len(one) == 2 for one in source):
        return _rows(source)
    if is_sequence(source) and len(source) and not isinstance(source[0], Mapping | list | tuple):
        raise UsageError(
            f"labels are joined by id, and {kind_of(source)} holds none; write dict(zip(acts.ids, labels)) for labels "
            "in the order of the texts"
        )
    if not isinstance(source, Mapping) and not is_sequence(source):
        raise UsageError(f"labels are {LABEL_SOURCES}; got {kind_of(source)}")
    return source


def _rows(pairs: Iterable[Any]) -> list[dict[str, Any]]:
    """(id, label) pairs as rows of a table; the checks of rows answer ids that are neither text nor number."""
    return [{ID_COLUMNS[0]: own, "label": one} for own, one in pairs]


def _is_column(value: Any) -> bool:
    """True for what holds the cells of a column, or a table, rather than one label; a label of numpy has no axes."""
    is_one = isinstance(value, np.generic) or getattr(value, "ndim", 1) == 0
    return not is_one and (is_sequence(value) or isinstance(value, Mapping) or hasattr(value, "columns"))
