"""Escape text that comes from data before it is shown; write counts, lists and large numbers."""

import re
from collections.abc import Collection

MOST_LISTED = 10


def printable(text: object) -> str:
    """`text` with control and invisible characters written as escapes.

    Names of files, labels and texts may hold ANSI sequences, or characters that reorder a line.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def metric(n: float) -> str:
    """292_000_000_000 -> "292 G": three digits and the prefix of the unit; the largest prefix is Q (1e30)."""
    prefixes = list("QRYZEPTGMk ")
    while n >= 999.5 and len(prefixes) > 1:
        n, _ = n / 1000, prefixes.pop()
    prefix = prefixes[-1].strip()
    decimals = 0 if n >= 99.95 or not prefix else 1 if n >= 9.995 else 2
    return f"{n:.{decimals}f} {prefix}"


def by_numbers(name: str) -> list[str | int]:
    """For sorting names with numbers in them: step2 before step10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def counted(n: int, noun: str, plural: str = "") -> str:
    """1 -> "1 text", 12_000 -> "12,000 texts"."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def kind_of(given: object) -> str:
    """'a list', 'an ndarray', 'None', for messages."""
    if given is None:
        return "None"
    name = type(given).__name__
    return f"a{'n' if name[0] in 'aeiouAEIOU' else ''} {name}"


def listed(names: Collection[object], most: int = MOST_LISTED, between: str = ", ") -> str:
    """The names with commas between them, as they are; after `most` of them "and N more"."""
    shown = between.join(str(name) for name, _ in zip(names, range(most), strict=False))
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


def utf8_text(text: str) -> str:
    """The text; a lone surrogate, which JSON can hold and UTF-8 cannot, becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def spreadsheet_cell(text: str) -> str:
    """`text` as a cell of a CSV file that no spreadsheet takes for a formula: an apostrophe precedes a start like "=".

    One that starts with an apostrophe gets another, so that `from_spreadsheet_cell` gives every text back.
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def from_spreadsheet_cell(cell: str) -> str:
    """The text of which `spreadsheet_cell` made this cell."""
    return cell.removeprefix("'")
