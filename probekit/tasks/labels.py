"""From the cells of a label column to classes 0..C-1, or to the numbers that a regression is to tell."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from probekit.errors import DataError
from probekit.tasks.base import count_line
from probekit.tasks.files import quote

# How missing values are written in CSV and TSV. "None" is not among them: it is a word, and a usual name of a class.
NA = frozenset({"", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null"})
DIGITS = re.compile(r"[+-]?\d{1,1000}")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def is_number(cell: str) -> bool:
    """Whether a text is a number and nothing else."""
    return NUMBER.fullmatch(cell.strip()) is not None


def label_flaw(cell: Any, typed: bool, names: Sequence[str] = ()) -> tuple[str, str] | None:
    """Why a cell cannot be a label (the number of one of the `names`, where there are any): (kind, words)."""
    missing = cell is None or (isinstance(cell, float) and math.isnan(cell))
    if missing or (isinstance(cell, str) and cell.strip() in ({""} if typed else NA)):
        return "na", f"expected a label, got {quote(cell)}; write one"
    if not isinstance(cell, (bool, int, float, str)):
        return "label_type", f"expected a label (a text, a number, true or false), got {quote(cell)}"
    if names and isinstance(cell, int) and not -1 <= cell < len(names):  # -1 is told apart: not labelled
        few = quote(", ".join(names))
        return "label_range", f"expected a label in 0..{len(names) - 1} ({few}), got {quote(cell)}; mend it"
    return None


def group_flaw(cell: Any) -> tuple[str, str] | None:
    """Why a cell cannot name a group, if it cannot: (kind, words). "NA" can: it is Namibia, too."""
    if cell is None or cell != cell or (isinstance(cell, str) and not cell.strip()):
        return "no_group", f"expected a group, got {quote(cell)}; write one"
    if not isinstance(cell, (bool, int, float, str)):
        return "group_type", f"expected a group (a text, a number, true or false), got {quote(cell)}"
    return None


def group_name(cell: bool | int | float | str) -> str:
    """One name for 1, 1.0 and "1 ", which files of several formats may write for the same group."""
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell).strip()


def as_labels(cells: Sequence[Any], places: Sequence[str], column: str, regression: bool = False) -> list[Any]:
    """Cells of one kind: all bool, all int (also when written "1" or 1.0), or all str; or all float, a regression.

    Numbers are a regression where one of them is not whole, or where `regression` says so.

    Raises:
        DataError: kinds are mixed, or a regression's are not all finite numbers.
    """
    kinds = {_kind(c) for c in cells}
    if "a number" in kinds and all(is_number(c) for c in cells if isinstance(c, str)):
        kinds -= {"a text"}  # a CSV file beside a JSONL file
    if len(kinds) > 1:
        first = {_kind(c): f"{place}: {quote(c)}" for c, place in zip(reversed(cells), reversed(places), strict=True)}
        raise DataError(f"labels {column!a} must all be of one kind, got {'; '.join(first.values())}; write all alike")
    if kinds == {"true or false"} and not regression:
        return list(cells)
    cells = [c.strip() if isinstance(c, str) else c for c in cells]
    if regression or _are_measured(cells):
        return [_number(c, place, column) for c, place in zip(cells, places, strict=True)]
    if kinds == {"a text"} and not all(map(is_number, cells)):
        return cells
    return [_whole(c) for c in cells]


def _kind(cell: bool | int | float | str) -> str:
    return "true or false" if isinstance(cell, bool) else "a text" if isinstance(cell, str) else "a number"


def _are_measured(cells: Sequence[bool | str | int | float]) -> bool:
    """Whether cells are numbers, but for a few that cannot be, and one of them is not whole."""
    numbers = [c for c in cells if not isinstance(c, str) or is_number(c)]
    return 2 * len(numbers) > len(cells) and not all(_is_whole(c) for c in numbers)


def _is_whole(cell: str | int | float) -> bool:
    return isinstance(cell, int) or bool(isinstance(cell, str) and DIGITS.fullmatch(cell)) or float(cell).is_integer()


def _whole(cell: str | int | float) -> int:
    return int(cell if isinstance(cell, int) or (isinstance(cell, str) and DIGITS.fullmatch(cell)) else float(cell))


def _number(cell: Any, place: str, column: str) -> float:
    """The number that a regression is to tell."""
    try:
        value = math.nan if isinstance(cell, bool) or (isinstance(cell, str) and not is_number(cell)) else float(cell)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise DataError(
            f"{place}: expected a finite number, got the label {quote(cell)} of {column!a}, whose labels are those of "
            "a regression; mend it, put the numbers into classes, or name another column with --label-column"
        )
    return value


def encode(
    classes: Sequence[Any], splits: Sequence[str], column: str, names: list[str] | None = None
) -> tuple[np.ndarray, list[str]]:
    """Labels 0..C-1 and the names of the classes that occur, in order: numbers by value.

    With `names` given, class k is called names[k]; names of classes that never occur are left out. A regression's
    floats stay as they are, float64, and there are no names.

    Raises:
        DataError: there is a -1, which stands for "not labelled".
    """
    if any(is_unlabelled(c) for c in classes):
        counts: dict[str, Counter[str]] = {}
        for split, value in zip(splits, classes, strict=True):
            counts.setdefault(split, Counter())[str(value)] += 1
        raise DataError(
            f"a label of {column!a} is -1, which stands for 'not labelled', got {count_line(counts)}; "
            "leave these rows out with --on-bad-row skip, or write another label"
        )
    if isinstance(classes[0], float):
        return np.array(classes, dtype=np.float64), []
    order = sorted(set(classes))
    index = {value: k for k, value in enumerate(order)}
    return np.array([index[c] for c in classes], dtype=np.int64), [names[k] if names else str(k) for k in order]


def is_unlabelled(value: Any) -> bool:
    """Whether a class is the number -1."""
    return type(value) is int and value == -1
