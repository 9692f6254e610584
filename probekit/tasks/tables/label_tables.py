"""Tables of labels by id: files, data frames, series, dicts of labels, pairs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.options.task import LabelOptions
from probekit.tasks.tables.columns import ID_COLUMNS
from probekit.tasks.tables.data_table import DataTable, quote
from probekit.tasks.tables.objects import object_tables
from probekit.tasks.tables.readers import TableFormat, read_table
from probekit.tasks.task_checks import is_sequence
from probekit.text import kind_of, listed

TAKES = "a file, a DataFrame or Series, a dict id -> label, a list of (id, label) pairs or of dicts"


def label_table(source: Any, options: LabelOptions) -> DataTable:
    """The table of ids and labels that a file or an object of Python holds.

    Raises:
        UsageError: something else, or no such file.
        DataError: no rows, or a damaged file.
    """
    if isinstance(source, str | Path):
        return _file(Path(source), options)
    if options.columns is not None or not options.header or options.data_format is not None:
        raise UsageError("columns, header and data_format are for files; Python objects name their own columns")
    tables = object_tables(_with_columns(source, options.id_column))[1]
    if len(tables) != 1:
        raise UsageError(f"expected one table of labels, got splits ({listed(tables)}); join them into one")
    return replace(next(iter(tables.values())), name=type(source).__name__)


def _file(path: Path, options: LabelOptions) -> DataTable:
    if not path.expanduser().is_file():
        raise UsageError(f"no file {str(path)!a}; name a CSV, TSV, JSONL or Parquet file of ids and labels")
    columns = None if options.columns is None else tuple(options.columns)
    return read_table(path.expanduser(), TableFormat(columns, options.header, options.data_format))


def _with_columns(source: Any, named: str | None) -> Any:
    """The source as `object_tables` takes it, with a column of ids.

    Raises:
        UsageError: it has no ids.
    """
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
        raise UsageError(f"labels are {TAKES}; got {kind_of(source)}")
    return source


def _rows(pairs: Iterable[Any]) -> list[dict[str, Any]]:
    """(id, label) pairs as rows of a table; the checks of rows answer ids that are neither text nor number."""
    return [{ID_COLUMNS[0]: own, "label": one} for own, one in pairs]


def _is_column(value: Any) -> bool:
    """True for what holds the cells of a column, or a table, rather than one label; a label of numpy has no axes."""
    is_one = isinstance(value, np.generic) or getattr(value, "ndim", 1) == 0
    return not is_one and (is_sequence(value) or isinstance(value, Mapping) or hasattr(value, "columns"))
