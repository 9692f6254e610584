"""What Python code has in its hands instead of files: data frames, datasets, lists and dicts, as tables of texts.

The tables go through the checks of files (`rows`); their rows count from 0, as Python's do.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from probekit.errors import DataError, UsageError
from probekit.tasks.base import Task
from probekit.tasks.chats.messages import chat_flaw, is_chat, plain_lines
from probekit.tasks.info import IN_MEMORY
from probekit.tasks.splitting.split_names import WHOLE, splits_of_names
from probekit.tasks.tables.data_table import DataTable, quote
from probekit.tasks.tables.hub import dataset_table, dataset_tables
from probekit.tasks.task_checks import is_sequence
from probekit.tasks.task_fields import listed_inputs
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
    """One table; errors call it `name`, and its rows are the examples `stem`:0, `stem`:1, ...

    Raises:
        UsageError: an object that holds no table.
        DataError: no rows, or columns of several lengths.
    """
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
    bad: dict[int, tuple[str, str]] | None = None,
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
