"""Turn the cells of a label column into classes 0..C-1, or into the numbers that a regression predicts."""

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from probekit.errors import DataError
from probekit.tasks.tables.data_table import Flaw, flaw_of, quote
from probekit.text import counted, listed

# How CSV and TSV write missing values. "None" is not one of them: it is a word, and a common class name.
NA = frozenset({"", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null"})
DIGITS = re.compile(r"[+-]?\d{1,1000}")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@lru_cache(maxsize=4096)  # labels repeat
def is_numeral(cell: str) -> bool:
    """True if the text is a number and nothing else."""
    return NUMBER.fullmatch(cell.strip()) is not None


def are_whole_numbers(names: Iterable[str]) -> bool:
    """True if all names of classes are whole numbers."""
    return all(map(DIGITS.fullmatch, names))


def label_flaw(cell: Any, typed: bool, names: Sequence[str] = ()) -> Flaw | None:
    """What is wrong with a cell as a label (a number in the range of `names`, if given), as (kind, description)."""
    missing = cell is None or (isinstance(cell, float) and math.isnan(cell))
    if missing or (isinstance(cell, str) and cell.strip() in ({""} if typed else NA)):
        return "na", f"expected a label, got {quote(cell)}; write one"
    if not isinstance(cell, (bool, int, float, str)):
        return "label_type", f"expected a label (a text, a number, true or false), got {quote(cell)}; write one"
    if names and isinstance(cell, int) and not -1 <= cell < len(names):  # -1, not labelled, is handled separately
        few = quote(listed(names))
        return "label_range", f"expected a label in 0..{len(names) - 1} ({few}), got {quote(cell)}; correct it"
    return None


def name_flaw(cell: Any, what: Literal["group", "id"]) -> Flaw | None:
    """What is wrong with a cell as the name of a group, or the id of a row, as (kind, description).

    "NA" is fine: it is also Namibia.
    """
    a = f"expected {'a' if what == 'group' else 'an'} {what}"
    if cell is None or cell != cell or (isinstance(cell, str) and not cell.strip()):
        return f"no_{what}", f"{a}, got {quote(cell)}; write one"
    if not isinstance(cell, (int, float, str)) or (what == "id" and isinstance(cell, bool)):
        kinds = "a text, a number, true or false" if what == "group" else "a text or a number"
        return f"{what}_type", f"{a} ({kinds}), got {quote(cell)}; write one"
    return None


def group_name(cell: bool | int | float | str) -> str:
    """The same name for 1, 1.0 and "1 ", which different formats may write for one group or id."""
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell).strip()


def as_labels(cells: Sequence[Any], places: Sequence[str], column: str, regression: bool = False) -> list[Any]:
    """Cells of one type: all bool, all int (also if written "1" or 1.0), all str; or all float, for a regression.

    Numbers are a regression if one of them is not whole, or if `regression` is True.

    Raises:
        DataError: the types are mixed, or a regression's labels are not all finite numbers.
    """
    kinds = set(map(_kind, set(map(type, cells))))
    if "a number" in kinds and all(is_numeral(c) for c in cells if isinstance(c, str)):
        kinds -= {"a text"}  # one file is CSV, another JSONL
    if len(kinds) > 1:
        first = {
            _kind(type(c)): f"{place}: {quote(c)}" for c, place in zip(reversed(cells), reversed(places), strict=True)
        }
        raise DataError(
            f"labels {column!a} must all be of one kind, got {listed(first.values(), between='; ')}; write all alike"
        )
    if kinds == {"true or false"} and not regression:
        return list(cells)
    cells = [c.strip() if isinstance(c, str) else c for c in cells]
    if regression or _are_measured(cells):
        return [_number(c, place, column) for c, place in zip(cells, places, strict=True)]
    if kinds == {"a text"} and not all(map(is_numeral, cells)):
        return cells
    return [_whole(c) for c in cells]


def _kind(kind: type) -> str:
    return "true or false" if issubclass(kind, bool) else "a text" if issubclass(kind, str) else "a number"


def _are_measured(cells: Sequence[bool | str | int | float]) -> bool:
    """True if most cells are numbers, and one of these is not whole."""
    numbers = [c for c in cells if not isinstance(c, str) or is_numeral(c)]
    return 2 * len(numbers) > len(cells) and not all(_is_whole(c) for c in numbers)


def _is_whole(cell: str | int | float) -> bool:
    return isinstance(cell, int) or bool(isinstance(cell, str) and DIGITS.fullmatch(cell)) or float(cell).is_integer()


def _whole(cell: str | int | float) -> int:
    return int(cell if isinstance(cell, int) or (isinstance(cell, str) and DIGITS.fullmatch(cell)) else float(cell))


def _number(cell: Any, place: str, column: str) -> float:
    """A cell as the number that a regression predicts."""
    try:
        value = math.nan if isinstance(cell, bool) or (isinstance(cell, str) and not is_numeral(cell)) else float(cell)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise DataError(
            f"{place}: expected a finite number, got the label {quote(cell)} of {column!a}, whose labels are those of "
            "a regression; correct it, put the numbers into classes, or name another column with --label-column"
        )
    return value


def refuse_unlabelled(classes: Sequence[Any], places: Sequence[str], column: str, advice: str) -> None:
    """Raise a DataError that names the first row whose label is -1, if there is one."""
    rows = [i for i, value in enumerate(classes) if is_unlabelled(value)]
    if rows:
        raise DataError(
            f"{places[rows[0]]}: expected a label of {column!a}, got -1, which means 'not labelled' ({len(rows):,} of "
            f"{counted(len(classes), 'row')}); {advice}"
        )


def encode(classes: Sequence[Any], names: list[str] | None = None) -> tuple[np.ndarray, list[str]]:
    """Labels 0..C-1, and the names of the classes that occur, in order (numbers by value).

    With `names`, class k is called names[k]; classes that never occur are left out. A regression's numbers become
    float64, without names.
    """
    if isinstance(classes[0], float):
        return np.array(classes, dtype=np.float64), []
    order = sorted(set(classes))
    index = {value: k for k, value in enumerate(order)}
    numbers = np.fromiter((index[c] for c in classes), np.int64, len(classes))
    return numbers, [names[k] if names else str(k) for k in order]


def is_unlabelled(value: Any) -> bool:
    """True if a class is the number -1."""
    return type(value) is int and value == -1


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
        expected = f"expected a number or a text in the column {name!a:.80}"
        return "column", f"{expected}, got {quote(cell)}; keep another column"
    if isinstance(cell, str):
        return flaw_of([cell])
    too_large = isinstance(cell, int) and abs(cell) > 1e300
    if too_large or math.isinf(cell):
        return "column", f"expected a finite number in {name!a:.80}, got {quote(cell)}; correct it"
    return None


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing: None, NaN, a blank, or NA as files write it."""
    return cell is None or cell != cell or (isinstance(cell, str) and cell.strip() in NA)


def _is_number(cell: Any) -> bool:
    if isinstance(cell, bool | np.bool_):
        return False
    return not isinstance(cell, str) or (is_numeral(cell) and math.isfinite(float(cell)))


def _category(cell: Any) -> str:
    return str(bool(cell)).lower() if isinstance(cell, bool | np.bool_) else group_name(cell)
