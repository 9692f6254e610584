"""What separates the cells of a file, and what its columns are where it has no header: by its content alone."""

import csv
from collections import Counter
from collections.abc import Sequence

from probekit.tasks.splitting.split_names import split_of_cell
from probekit.tasks.tables.columns import LABEL_COLUMNS, TEXT_COLUMNS

NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
LONGEST = 1 << 20  # characters of a line that are looked at, once for each separator: a hostile one has gigabytes
MIN_REPEATS = 5  # rows for each label, on average: fewer may be texts that repeat


def separator_of(line: str, usual: str, n_columns: int | None) -> str:
    """What separates the cells of a file, by its first line: a comma, semicolon, tab or bar.

    Args:
        line: a header, or the first row of a file without one.
        usual: of the format; kept unless the line says otherwise.
        n_columns: how many columns the file has; None of a header, which has usual names, or as many as it can.
    """
    rows = {one: _cells(line[:LONGEST], one) for one in (usual, *NAMES)}
    if n_columns is None:  # names may hold separators: "note (a, b, c)"
        is_kept = len(rows[usual]) > 1
        return max(rows, key=lambda one: (_has_usual_name(rows[one]), is_kept and one == usual, len(rows[one])))
    fitting = [one for one, cells in rows.items() if len(cells) == n_columns]
    return fitting[0] if usual in fitting or len(fitting) == 1 else usual


def _cells(line: str, separator: str) -> list[str]:
    """Those of a line; one that ends within quotes, as a name with a line break does, is taken to close them."""
    try:
        return next(csv.reader([line + '"' * (line.count('"') % 2)], delimiter=separator, strict=True), [])
    except csv.Error:
        return []


def _has_usual_name(cells: Sequence[str]) -> bool:
    return not {cell.strip().lower() for cell in cells}.isdisjoint((*TEXT_COLUMNS, *LABEL_COLUMNS))


def is_header(cells: Sequence[str]) -> bool:
    """Whether a first row holds usual names of a column of texts and of one of labels."""
    names = {cell.strip().lower() for cell in cells}
    return not names.isdisjoint(TEXT_COLUMNS) and not names.isdisjoint(LABEL_COLUMNS)


def roles_of(columns: Sequence[Sequence[str]]) -> list[str] | None:
    """Names for columns without a header: one of texts, one of labels, and maybe one of splits; None if in doubt.

    Labels are few and each occurs again; texts have several words and mostly differ.
    """
    roles = [_role_of(cells) for cells in columns]
    return [str(role) for role in roles] if sorted(map(str, roles)) in _SURE else None


_SURE = (["label", "text"], ["label", "split", "text"])


def _role_of(cells: Sequence[str]) -> str | None:
    counts = Counter(cells)
    if all(split_of_cell(cell) for cell in counts):
        return "split"
    if 1 < len(counts) <= len(cells) // MIN_REPEATS and min(counts.values()) > 1:
        return "label"
    n_several = sum(len(cell.split()) > 1 for cell in cells)
    return "text" if 2 * len(counts) > len(cells) and 2 * n_several > len(cells) else None
