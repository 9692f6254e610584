"""Other columns of the examples, kept with a task: numbers or categories that a probe might be reading instead.

A column of numbers is float64 with NaN where one is missing; a column of categories holds texts, and None where one is
missing.

Axes: N examples.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.tasks.labels import NA, is_numeral
from probekit.tasks.tables.data_table import flaw_of, quote
from probekit.tasks.task_checks import is_sequence
from probekit.text import kind_of

Flaw = tuple[str, str]


def side_columns(given: Any, ids: Sequence[Any]) -> dict[str, np.ndarray]:
    """Column -> numbers float64 [N] or categories object [N], from lists, arrays or columns of tables.

    Raises:
        UsageError: no dict of columns by name.
        DataError: more or fewer entries than examples, or one that is no number, text or truth value.
    """
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise UsageError(f"columns is a dict of columns by name, got {kind_of(given)}; write columns={{'source': ...}}")
    found = {}
    for name, cells in given.items():
        if not is_sequence(cells):
            raise UsageError(f"columns[{name!r}] has one entry for each example, got {kind_of(cells)}; give a list")
        if isinstance(cells, np.ndarray) and cells.dtype == np.float64 and cells.ndim == 1:
            column = cells
        else:
            own = cells.tolist() if hasattr(cells, "tolist") else list(cells)
            column = column_of(own, name, [f"example {one!a}" for one in ids] + [f"row {i}" for i in range(len(own))])
        if len(column) != len(ids):
            raise DataError(
                f"expected one entry of columns[{name!r}] for each of the {len(ids):,} inputs, got {len(column):,}; "
                "give as many"
            )
        found[name] = column
    return found


def column_of(cells: Sequence[Any], name: str, places: Sequence[str]) -> np.ndarray:
    """The cells of a column as numbers, if all that are not missing are numbers, or else as categories.

    Raises:
        DataError: a cell that is neither; `places` say where each is.
    """
    for cell, place in zip(cells, places, strict=False):
        if flaw := cell_flaw(cell, name):
            raise DataError(f"{place}: {flaw[1]}")
    there = [cell for cell in cells if not is_missing(cell)]
    if there and all(_is_number(cell) for cell in there):
        return np.array([math.nan if is_missing(cell) else float(cell) for cell in cells])
    values = np.empty(len(cells), dtype=object)
    values[:] = [None if is_missing(cell) else _category(cell) for cell in cells]
    return values


def cell_flaw(cell: Any, name: str) -> Flaw | None:
    """What is wrong with a cell of a column that is kept, as (kind, description); None if nothing is."""
    if cell is None or isinstance(cell, bool | np.bool_):
        return None
    if not isinstance(cell, str | int | float | np.number):
        return (
            "column",
            f"expected a number or a text in the column {name!a:.80}, got {quote(cell)}; keep another column",
        )
    if not isinstance(cell, str):
        too_large = isinstance(cell, int) and abs(cell) > 1e300
        finite = not too_large and (math.isfinite(cell) or cell != cell)
        return (
            None if finite else ("column", f"expected a finite number in {name!a:.80}, got {quote(cell)}; correct it")
        )
    return flaw_of([cell])


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing: None, NaN, a blank, or NA as files write it."""
    return cell is None or cell != cell or (isinstance(cell, str) and cell.strip() in NA)


def _is_number(cell: Any) -> bool:
    if isinstance(cell, bool | np.bool_):
        return False
    return not isinstance(cell, str) or (is_numeral(cell) and math.isfinite(float(cell)))


def _category(cell: Any) -> str:
    """The same name for 1 and 1.0, which different formats may write."""
    if isinstance(cell, bool | np.bool_):
        return str(bool(cell)).lower()
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell).strip()
