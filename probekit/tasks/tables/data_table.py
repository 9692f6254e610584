"""A table of texts and labels, whatever format it was read from; and its columns and cells."""

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from probekit.errors import DataError, UsageError, nearest
from probekit.text import listed

Flaw = tuple[str, str]  # what is wrong with a row: (kind, description)

NOT_UTF8 = re.compile("[\ud800-\udfff]")  # surrogates: undecodable bytes (U+DC80 and up), or halves written as \ud83d


class LineNumbers(Sequence[int]):
    """Where rows begin, four bytes each."""

    def __init__(self) -> None:
        self._numbers = array("L" if array("L").itemsize == 4 else "I")

    def append(self, line: int) -> None:
        """Add the line of the next row."""
        self._numbers.append(line)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, row: Any) -> Any:
        return self._numbers[row]


@dataclass(frozen=True)
class DataTable:
    """The rows of one file, or of one split of a dataset.

    Attributes:
        name: of the file or split, for errors.
        stem: the name without its ending, for the ids of examples.
        columns: names of the columns.
        column: a function of a column's name that returns its cells.
        lines: where each row begins, counted in `unit`.
        typed: whether cells have types of their own; otherwise all are texts.
        unit: what `lines` counts: "line" or "row".
        bad: row -> (kind, description), for rows that cannot be read.
        class_names: label column -> its class names, where the format has them.
        sha256: of the file.
        span: the column of each row's characters in its text, where rows are words.
        group: the column of the group that each row belongs to.
        measured: columns whose cells are always numbers, never classes.
        counts: what the file holds, for the task's info.
        files: the file of each row, where the table was read from several.
        digests: the sha256 of each of these.
        read_as: how the file was read where it does not say so itself, in words.
    """

    name: str
    stem: str
    columns: list[str]
    column: Callable[[str], Sequence[Any]]
    lines: Sequence[int]
    typed: bool
    unit: str = "line"
    bad: dict[int, Flaw] = field(default_factory=dict)
    class_names: dict[str, list[str]] = field(default_factory=dict)
    sha256: str | None = None
    span: str | None = None
    group: str | None = None
    measured: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    read_as: str = ""

    def where(self, row: int) -> str:
        """'train.csv, line 7'."""
        return f"{self.files[row] if self.files else self.name}, {self.unit} {self.lines[row]}"

    def checksums(self) -> dict[str, str | None]:
        """File -> its sha256."""
        return {**self.digests} if self.digests else {self.name: self.sha256}


def flaw_of(cells: list[Any]) -> Flaw | None:
    """What is wrong with the characters of a row, as (kind, description); None if nothing is."""
    for cell in cells:
        if not isinstance(cell, str):
            continue
        if found := NOT_UTF8.search(cell):
            code = ord(found[0])
            if 0xDC80 <= code <= 0xDCFF:
                return "not_utf8", f"byte 0x{code - 0xDC00:02x} is not UTF-8; save the file again as UTF-8"
            return "not_utf8", f"\\u{code:04x} is half a character; write both halves or neither"
        if "\0" in cell:
            return "nul", "expected a text, got a NUL byte in it; remove it"
    return None


def quote(value: Any, most: int = 60) -> str:
    """A value from data for a one-line error: shortened, with special characters escaped."""
    shown = ascii(value)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def _or_chats(table: DataTable) -> str:
    """How to name the first column that holds lists of objects, as chats do; "" if there is none."""
    for name in table.columns if table.typed else ():
        cell = next((cell for cell in table.column(name) if cell is not None), None)
        if isinstance(cell, list | tuple) and cell and isinstance(cell[0], dict):
            return f", or chats with --messages-column {name!a:.80}"
    return ""


def choose_column(table: DataTable, named: str | None, usual: tuple[str, ...], what: str) -> str:
    """The named column, or else the first of the usual names that the table has (upper or lower case).

    Raises:
        UsageError: no such column, or none is named and none has a usual name.
        DataError: two columns have the name.
    """
    there = listed([f"{name!a:.80}" for name in table.columns])
    if named is not None and named not in table.columns:
        near = nearest(named, [ascii(name) for name in table.columns])
        near = near if near.startswith("did you mean") else "name one of these"
        raise UsageError(f"{table.name} has no column {named!a}, only {there}; {near}")
    lower = {name.strip().lower(): name for name in reversed(table.columns)}
    chosen = named if named is not None else next((lower[name] for name in usual if name in lower), None)
    if chosen is None:
        first = "id" if what == "id" or "id" in lower else "text" if what == "label" else usual[0]
        header = "" if table.typed else f"; without a header, name all columns: --columns {first},label"
        raise UsageError(
            f"{table.name} has no column named {' or '.join(usual)}, only {there}; name the {what} column with "
            f"--{what}-column{_or_chats(table) if what == 'text' else ''}{header}"
        )
    if table.columns.count(chosen) > 1:
        raise DataError(f"{table.name} has {table.columns.count(chosen)} columns named {chosen!a}; rename all but one")
    return chosen
