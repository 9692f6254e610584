"""The one tidy table of results: a row for each score, and the same columns for every kind of results."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.text import spreadsheet_cell, utf8_text

if TYPE_CHECKING:
    import pandas as pd

TableRow = Mapping[str, Any]
"""The cells of a row by column; columns that it lacks are empty."""

_TEXT, _WHOLE, _REAL, _FLAG = "object", "Int64", "float64", "boolean"  # as pandas names them
_PYTHON: dict[str, Callable[[Any], Any]] = {_WHOLE: index, _REAL: float}  # what they may be, as a cell of CSV
COLUMNS = {
    "kind": _TEXT,  # what the score is of: "probe", "baseline", "lead", "difference" and more
    "run": _TEXT,  # of a comparison
    "model": _TEXT,
    "task": _TEXT,
    "label": _TEXT,  # the label set
    "probe": _TEXT,  # empty for baselines that read no activations
    "name": _TEXT,  # of the probe, the baseline, the method, or what was subtracted
    "train_task": _TEXT,  # of a transfer; of a shift, the value that was trained on
    "test_task": _TEXT,
    "position": _TEXT,  # the token that is read
    "by": _TEXT,  # what there is a curve or a cell for each of: "position", "head", "within COLUMN", "shift of COLUMN"
    "at": _TEXT,  # which of them; of a grid of a value both are named: "head within COLUMN", "3, VALUE"
    "token": _TEXT,  # its text
    "point": _TEXT,
    "layer": _WHOLE,
    "depth": _REAL,  # the share of the model's blocks before it
    "place": _TEXT,
    "direction": _TEXT,  # of an edit
    "scale": _REAL,
    "C": _REAL,
    "converged": _FLAG,
    "split": _TEXT,
    "n": _WHOLE,  # rows
    "metric": _TEXT,
    "value": _REAL,
    "low": _REAL,  # the 95% interval
    "high": _REAL,
    "band_low": _REAL,  # the band that holds the complete curve; of an effect, the range of the placebos
    "band_high": _REAL,
    "chance": _REAL,
    "p_value": _REAL,
    "p_corrected": _REAL,
    "selected": _FLAG,
    "in_best_set": _FLAG,
    "at_edge": _FLAG,
    "note": _TEXT,
}


def results_table(rows: Iterable[TableRow]) -> "pd.DataFrame":
    """The rows as a DataFrame with `COLUMNS`."""
    import pandas as pd

    cells = []
    for row in rows:
        assert row.keys() <= COLUMNS.keys(), row.keys() - COLUMNS.keys()
        cells.append(tuple(row.get(name) for name in COLUMNS))
    return pd.DataFrame(cells, columns=list(COLUMNS), dtype=object).astype(COLUMNS)


def csv_bytes(rows: Iterable[TableRow]) -> bytes:
    """The rows as CSV in UTF-8, whose texts, which may come from data, are no formulas for a spreadsheet."""
    lines = []
    for row in rows:
        assert row.keys() <= COLUMNS.keys(), row.keys() - COLUMNS.keys()
        lines.append([_cell(row.get(name), kind) for name, kind in COLUMNS.items()])
    # Python 3.11 leaves a lone carriage return bare, which readers take for the end of a line
    is_broken = any("\r" in cell for line in lines for cell in line if isinstance(cell, str))
    out = io.StringIO()
    quoting = csv.QUOTE_NONNUMERIC if is_broken else csv.QUOTE_MINIMAL
    writer = csv.writer(out, lineterminator="\n", quoting=quoting)
    writer.writerow(COLUMNS)
    writer.writerows(lines)
    return out.getvalue().encode()


def parquet_bytes(table: "pd.DataFrame") -> bytes:
    """A table as Parquet."""
    out = io.BytesIO()
    safe = table.map(lambda cell: utf8_text(cell) if isinstance(cell, str) else cell)
    safe.to_parquet(out, index=False)
    return out.getvalue()


def ends_of(interval: Sequence[float] | None, low: str = "low", high: str = "high") -> dict[str, float]:
    """The two cells of an interval; none for None."""
    return {} if interval is None else {low: interval[0], high: interval[1]}


def _cell(value: Any, kind: str) -> Any:
    """A cell of CSV; a text that is a number, such as the position -1, stays as it is."""
    if value is None or value != value:  # nan
        return ""
    if kind == _FLAG:
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"expected True or False, got {value!r}")
        return bool(value)
    if kind != _TEXT:
        return _PYTHON[kind](value)
    if not isinstance(value, str):
        return value
    text = utf8_text(value)
    return text if text.removeprefix("-").isdecimal() else spreadsheet_cell(text)
