"""Tables from files: CSV, TSV, JSONL, Parquet, CoNLL-U. What cannot be read is said with file, line and what to do.

CSV is read strictly (RFC 4180: a cell with commas, quotes or line breaks stands in double quotes). TSV knows no quoting
(the IANA and GLUE convention). Both have a header. JSONL and Parquet keep the types of their cells. CoNLL-U has a row
for each word (`conllu`).
"""

import csv
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probekit.errors import DataError, UsageError, nearest
from probekit.tasks import conllu

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "dev", "val", "valid"), "validation"),
    "test": "test",
}
NOT_UTF8 = re.compile("[\ud800-\udfff]")  # surrogates: undecodable bytes (U+DC80 and up), or halves written as \ud83d


@dataclass(frozen=True)
class Table:
    """The rows of one file, or of one split of a dataset.

    `column(name)` gives the cells. `lines[i]` is where row i begins, `unit` what that counts. `typed` says that cells
    have the types they were written with (otherwise all are texts). `bad[i]` is why row i cannot be read: (kind,
    words). `class_names` are a label column's own names, by column, where the format has them.

    Where rows are words, `span` and `group` are the columns that say which characters of which text, a label of None
    is that of a word which is no example, columns of `measured` hold numbers, and `counts` says what the file holds.
    """

    name: str
    stem: str
    columns: list[str]
    column: Callable[[str], list[Any]]
    lines: list[int] | range
    typed: bool
    unit: str = "line"
    bad: dict[int, tuple[str, str]] = field(default_factory=dict)
    class_names: dict[str, list[str]] = field(default_factory=dict)
    sha256: str | None = None
    span: str | None = None
    group: str | None = None
    measured: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def where(self, row: int) -> str:
        """'train.csv, line 7'."""
        return f"{self.name}, {self.unit} {self.lines[row]}"


def find_files(path: Path) -> dict[str, Path]:
    """Split -> file. A single file, or a folder's only one, is "all" of the data.

    Raises:
        DataError: the folder has no such files, two for one split, or none for training.
        UsageError: there is nothing there, or the file is of no known format.
    """
    if not path.exists():
        raise UsageError(f"no file or folder {str(path)!a}")
    if path.is_file():
        _reader(path)
        return {"all": path}
    found: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        split = _split_of(file)
        if split is None or file.suffix.lower() not in READERS or not file.is_file():
            continue
        if split in found:
            raise DataError(
                f"{str(path)!a} has two files for {split}: {found[split].name!a} and {file.name!a}; keep one"
            )
        found[split] = file
    if not found:
        there = ", ".join(ascii(file.name) for file in sorted(path.iterdir())[:8]) or "nothing"
        raise DataError(
            f"{str(path)!a} has no train, validation (dev) or test file ending in {', '.join(READERS)}, but {there}; "
            "rename its files, or name one of them"
        )
    return found


def _split_of(file: Path) -> str | None:
    """The split that a file's name says; Universal Dependencies calls it en_ewt-ud-dev.conllu."""
    stem = file.stem.lower()
    return SPLIT_NAMES.get(stem.rsplit("-", 1)[-1] if file.suffix.lower() == ".conllu" else stem)


def read_table(path: Path) -> Table:
    """Read one file whole.

    Raises:
        DataError: it is empty, has no rows, or cannot be read from some place on.
        UsageError: it is of no known format.
    """
    reader = _reader(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {str(path)!a}: {error.strerror}") from error
    if not data:
        raise _empty(path)
    table = reader(path, data)
    if not len(table.lines):
        raise DataError(f"{path.name} has a header and no rows; expected one row for each text")
    return table


def _reader(path: Path) -> Callable[[Path, bytes], Table]:
    if path.suffix.lower() not in READERS:
        raise UsageError(f"{path.name!a} is of no known format; expected a name ending in {', '.join(READERS)}")
    return READERS[path.suffix.lower()]


def _decode(path: Path, data: bytes) -> str:
    """The text, with bytes that are not UTF-8 left in it as surrogates, so that each can be laid to its row."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path.name} is UTF-16, expected UTF-8; save it again as UTF-8")
    text = data.decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise _empty(path)
    return text


def _empty(path: Path) -> DataError:
    return DataError(f"{path.name} is empty; expected a table of texts and labels")


def flaw_of(cells: list[Any]) -> tuple[str, str] | None:
    """Why the characters of a row cannot be used, if they cannot."""
    for cell in cells:
        if not isinstance(cell, str):
            continue
        if found := NOT_UTF8.search(cell):
            code = ord(found[0])
            if 0xDC80 <= code <= 0xDCFF:
                return "not_utf8", f"byte 0x{code - 0xDC00:02x} is not UTF-8; save the file again as UTF-8"
            return "not_utf8", f"\\u{code:04x} is half a character; write both halves or none"
        if "\0" in cell:
            return "nul", "expected a text, got a NUL byte in it; take it out"
    return None


def _read_csv(path: Path, data: bytes) -> Table:
    return _read_delimited(path, data, delimiter=",", strict=True)


def _read_tsv(path: Path, data: bytes) -> Table:
    return _read_delimited(path, data, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_delimited(path: Path, data: bytes, **dialect: Any) -> Table:
    lines, rows = [], []
    for line, row in _csv_rows(path.name, _decode(path, data), dialect):
        lines.append(line)
        rows.append(row)
    header, lines, rows = rows[0], lines[1:], rows[1:]
    if flaw := flaw_of(header):
        raise DataError(f"{path.name}, line 1: {flaw[1]}")
    bad: dict[int, tuple[str, str]] = {}
    for i, row in enumerate(rows):
        if len(row) != len(header):
            hint = "double quotes around a text with commas" if dialect["delimiter"] == "," else "no tab inside a text"
            words = f"expected {len(header)} cells as in the header, got {len(row)}; check for {hint}"
            bad[i] = ("ragged", words)
        elif flaw := flaw_of(row):
            bad[i] = flaw

    def column(name: str) -> list[str]:
        at = header.index(name)
        return [row[at] if i not in bad else "" for i, row in enumerate(rows)]

    return Table(path.name, path.stem, header, column, lines, typed=False, bad=bad, sha256=_sha256(data))


def _csv_rows(name: str, text: str, dialect: dict[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line it begins on."""
    reader = csv.reader(io.StringIO(text, newline=""), **dialect)
    limit, begins = csv.field_size_limit(sys.maxsize), 1
    try:
        for row in reader:
            if row:
                yield begins, row
            begins = reader.line_num + 1
    except csv.Error as error:
        what = "a quote is opened and never closed" if "end of data" in str(error) else f"broken quoting ({error})"
        raise DataError(
            f'{name}, line {begins}: {what}; close it, and write a quote inside a quoted text twice ("")'
        ) from error
    finally:
        csv.field_size_limit(limit)


def _read_jsonl(path: Path, data: bytes) -> Table:
    lines: list[int] = []
    rows: list[dict[str, Any]] = []
    bad: dict[int, tuple[str, str]] = {}
    for line, text in enumerate(_decode(path, data).split("\n"), start=1):
        if not text.strip():
            continue
        row: Any = {}
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            flaw = flaw_of([text]) or (
                "json",
                f"expected one JSON object, got broken JSON ({why}): {quote(text)}; mend it",
            )
        else:
            is_object = isinstance(row, dict)
            flaw = (
                flaw_of([*row, *row.values()]) if is_object else ("json", f"expected a JSON object, got {quote(row)}")
            )
        if flaw:
            bad[len(rows)] = flaw
            row = {}
        lines.append(line)
        rows.append(row)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        first = min(bad, default=0)
        raise DataError(
            f"{path.name}, line {lines[first]}: {bad.get(first, ('', 'expected a JSON object with names'))[1]}"
        )

    def column(name: str) -> list[Any]:
        return [row.get(name) for row in rows]

    return Table(path.name, path.stem, columns, column, lines, typed=True, bad=bad, sha256=_sha256(data))


def _read_parquet(path: Path, data: bytes) -> Table:
    import pyarrow as pa  # a dependency of datasets
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        columns, n = file.schema_arrow.names, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path.name} is not a readable Parquet file ({_first_line(error)}); write it again") from error

    def column(name: str) -> list[Any]:
        try:
            return file.read(columns=[name]).column(0).to_pylist()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path.name}: column {name!a} is damaged ({_first_line(error)}); write it again"
            ) from error

    return Table(path.name, path.stem, columns, column, range(1, n + 1), typed=True, unit="row", sha256=_sha256(data))


def _read_conllu(path: Path, data: bytes) -> Table:
    words = conllu.WordRows(path.stem, _decode(path, data))
    return Table(
        path.name,
        path.stem,
        words.columns,
        words.column,
        words.lines,
        typed=True,
        bad=words.bad,
        sha256=_sha256(data),
        span=conllu.SPAN,
        group=conllu.GROUP,
        measured=conllu.MEASURED,
        counts=words.counts,
    )


def quote(value: Any, most: int = 60) -> str:
    """A value from data, shortened and with every strange character escaped, for an error's single line."""
    shown = ascii(value)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def choose_column(table: Table, named: str | None, usual: tuple[str, ...], what: str) -> str:
    """The column that is named, or else the first of the usual names that the table has (in any case).

    Raises:
        UsageError: no such column, or none is named and none has a usual name.
        DataError: two columns have the name.
    """
    there = ", ".join(ascii(name) for name in table.columns)
    if named is not None and named not in table.columns:
        near = nearest(named, [ascii(name) for name in table.columns])
        near = near if near.startswith("did you mean") else "name one of these"
        raise UsageError(f"{table.name} has no column {named!a} but {there}; {near}")
    lower = {name.strip().lower(): name for name in reversed(table.columns)}
    chosen = named if named is not None else next((lower[name] for name in usual if name in lower), None)
    if chosen is None:
        header = "" if table.typed else " (the first line is the header)"
        raise UsageError(
            f"{table.name} has no column named {' or '.join(usual)} but {there}; name the {what} column with "
            f"--{what}-column{header}"
        )
    if table.columns.count(chosen) > 1:
        raise DataError(f"{table.name} has {table.columns.count(chosen)} columns named {chosen!a}; rename all but one")
    return chosen


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _first_line(error: BaseException) -> str:
    return quote((str(error).splitlines() or [""])[0], most=100)


READERS: dict[str, Callable[[Path, bytes], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".conllu": _read_conllu,
}
