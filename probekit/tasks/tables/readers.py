"""Read tables from CSV, TSV, JSONL, Parquet, CoNLL-U and text files. Errors give file, line and what to do.

CSV is read strictly (RFC 4180: a cell with commas, quotes or line breaks is in double quotes). TSV has no quoting (the
IANA and GLUE convention). Both have a header, unless the columns are named. JSONL and Parquet keep the types of their
cells. CoNLL-U has one row for each word (see `conllu`). A text file is a TSV without a header, or holds a text in each
line (`read_classes`).
"""

import csv
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from probekit.errors import DataError, UsageError
from probekit.plain_files import MAX_TABLE, parse_json, read_bytes
from probekit.tasks.tables import conllu
from probekit.tasks.tables.data_table import DataTable, flaw_of, quote
from probekit.tasks.tables.parquet import read_parquet
from probekit.text import counted, listed

TXT = ".txt"
PACKED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}  # by their first bytes
PACKED_ENDINGS = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".bz2": "bzip2"}


@dataclass(frozen=True)
class TableFormat:
    """How files are read, where they do not say so themselves.

    Attributes:
        columns: names of the columns of files without a header.
        header: whether the first line of delimited files names the columns.
        name: csv, tsv, jsonl, parquet or conllu; None goes by the file's ending.
    """

    columns: tuple[str, ...] | None = None
    header: bool = True
    name: str | None = None

    @property
    def has_header(self) -> bool:
        """Whether delimited files have a header."""
        return self.header and self.columns is None


Reader = Callable[[Path, bytes, TableFormat], DataTable]


def read_table(path: Path, how: TableFormat = TableFormat()) -> DataTable:
    """Read one file.

    Raises:
        DataError: it is empty, has no rows, or is damaged.
        UsageError: its format is unknown, or has no place for the names of columns.
    """
    check_format(path.name, how.name)
    return _table(path, _bytes_of(path), how)


def read_stream(stream: IO[bytes], how: TableFormat = TableFormat()) -> DataTable:
    """Read standard input, whose format is recognised by its first line unless it is given. Errors as `read_table`."""
    if stream.isatty():
        raise UsageError("--dataset - reads standard input, got a terminal; pipe a file into the command")
    data = stream.read(MAX_TABLE + 1)
    if len(data) > MAX_TABLE:
        raise DataError(f"standard input has more than {MAX_TABLE:,} bytes; give a part of it")
    _refuse_packed("standard input", data)
    return _table(Path("stdin"), data, how if how.name else replace(how, name=_sniffed(data)))


def read_classes(folder: Path, files: Sequence[Path]) -> DataTable:
    """One table of text files that are named after classes and have a text in each line; empty lines are left out."""
    rows: list[tuple[str, str]] = []
    lines: list[int] = []
    names: list[str] = []
    digests: dict[str, str] = {}
    for file in files:
        data = _bytes_of(file)
        digests[file.name] = _sha256(data)
        for line, text in enumerate(_decode(file, data).split("\n"), start=1):
            if text.strip():
                rows.append((text.removesuffix("\r"), file.stem))
                lines.append(line)
                names.append(file.name)
    flaws = ((i, flaw_of([text])) for i, (text, _) in enumerate(rows))
    return DataTable(
        name=folder.name,
        stem=folder.resolve().name,
        columns=["text", "label"],
        column=lambda name: [row[name == "label"] for row in rows],
        lines=lines,
        typed=True,
        bad={i: flaw for i, flaw in flaws if flaw},
        files=names,
        digests=digests,
    )


def check_format(name: str, data_format: str | None) -> None:
    """Check that a file of this name can be read.

    Raises:
        UsageError: an unknown format.
        DataError: a compressed file.
    """
    if data_format is None and (packed := PACKED_ENDINGS.get(Path(name).suffix.lower())):
        raise DataError(_unpack(name, packed))
    if data_format is None and Path(name).suffix.lower() not in READERS:
        raise UsageError(
            f"{name!a} has an unknown format; expected a name ending in {', '.join(READERS)}, or its --data-format"
        )


def _table(path: Path, data: bytes, how: TableFormat) -> DataTable:
    ending = path.suffix.lower() if how.name is None else f".{how.name}"
    if not how.has_header and ending not in DELIMITED:
        flag = "--no-header" if how.columns is None else "--columns"
        raise UsageError(f"{flag} is for {', '.join(DELIMITED)}; {path.name!a} names its columns; leave it out")
    if not data:
        raise _empty(path)
    table = READERS[ending](path, data, how)
    if not len(table.lines):
        raise DataError(f"{path.name} has a header and no rows; expected one row for each text")
    return table


def _sniffed(data: bytes) -> str:
    """The format of data without a name."""
    if data.startswith(b"PAR1"):
        return "parquet"
    lines = (line for line in data.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip())
    first = next((line for line in lines if not line.startswith(b"#")), b"")
    if first.lstrip().startswith(b"{"):
        return "jsonl"
    if first.count(b"\t") == 9 and first[:1] == b"1":
        return "conllu"
    return "tsv" if b"\t" in first else "csv"


def _bytes_of(path: Path) -> bytes:
    try:
        data = read_bytes(path, MAX_TABLE)
    except OSError as error:
        raise DataError(f"cannot read {str(path)!a}: {error.strerror}") from error
    _refuse_packed(path.name, data)
    return data


def _refuse_packed(name: str, data: bytes) -> None:
    if packed := next((kind for start, kind in PACKED.items() if data.startswith(start)), None):
        raise DataError(_unpack(name, packed))


def _unpack(name: str, packed: str) -> str:
    named = name if name == "standard input" else ascii(name)
    return f"{named} is compressed with {packed}, expected the table itself; unpack it first"


def _decode(path: Path, data: bytes) -> str:
    """The text. Bytes that are not UTF-8 become surrogates, so that an error can name their row."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path.name} is UTF-16, expected UTF-8; save it again as UTF-8")
    text = data.decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise _empty(path)
    return text


def _empty(path: Path) -> DataError:
    return DataError(f"{path.name} is empty; expected a table of texts and labels")


def _read_csv(path: Path, data: bytes, how: TableFormat) -> DataTable:
    return _read_delimited(path, data, how, delimiter=",", strict=True)


def _read_tsv(path: Path, data: bytes, how: TableFormat) -> DataTable:
    return _read_delimited(path, data, how, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_txt(path: Path, data: bytes, how: TableFormat) -> DataTable:
    if how.has_header:
        raise UsageError(
            f"{path.name!a} has no names for its columns; name them, such as --columns label,text, or give a folder "
            "with a text file for each class"
        )
    return _read_tsv(path, data, how)


def _read_delimited(path: Path, data: bytes, how: TableFormat, **dialect: Any) -> DataTable:
    lines, rows = [], []
    for line, row in _csv_rows(path.name, _decode(path, data), dialect):
        lines.append(line)
        rows.append(row)
    if how.has_header:
        header, lines, rows = rows[0], lines[1:], rows[1:]
        if flaw := flaw_of(header):
            raise DataError(f"{path.name}, line 1: {flaw[1]}")
    else:
        header = list(how.columns or (str(i) for i in range(1, len(rows[0]) + 1)))
    if not how.has_header and len(rows[0]) != len(header):
        raise UsageError(
            f"{path.name}, line {lines[0]}: expected the {counted(len(header), 'column')} of --columns "
            f"({listed(header)}), got {len(rows[0])}; name each of them"
        )
    bad: dict[int, tuple[str, str]] = {}
    for i, row in enumerate(rows):
        if len(row) != len(header):
            hint = "double quotes around a text with commas" if dialect["delimiter"] == "," else "no tab inside a text"
            first = "header" if how.has_header else "first line"
            words = f"expected {len(header)} cells as in the {first}, got {len(row)}; check for {hint}"
            bad[i] = ("ragged", words)
        elif flaw := flaw_of(row):
            bad[i] = flaw

    def column(name: str) -> list[str]:
        at = header.index(name)
        return [row[at] if i not in bad else "" for i, row in enumerate(rows)]

    return DataTable(path.name, path.stem, header, column, lines, typed=False, bad=bad, sha256=_sha256(data))


def _csv_rows(name: str, text: str, dialect: dict[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, each with its first line."""
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


def _read_jsonl(path: Path, data: bytes, how: TableFormat) -> DataTable:
    lines: list[int] = []
    rows: list[dict[str, Any]] = []
    bad: dict[int, tuple[str, str]] = {}
    for line, text in enumerate(_decode(path, data).split("\n"), start=1):
        if not text.strip():
            continue
        row: Any = {}
        try:
            row = parse_json(text)
        except ValueError as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            flaw = flaw_of([text]) or (
                "json",
                f"expected one JSON object, got broken JSON ({why}): {quote(text)}; correct it",
            )
        else:
            is_object = isinstance(row, dict)
            flaw = (
                flaw_of([*row, *row.values()])
                if is_object
                else ("json", f"expected a JSON object, got {quote(row)}; correct it")
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

    return DataTable(path.name, path.stem, columns, column, lines, typed=True, bad=bad, sha256=_sha256(data))


def _read_parquet(path: Path, data: bytes, how: TableFormat) -> DataTable:
    return read_parquet(path, data, _sha256(data))


def _read_conllu(path: Path, data: bytes, how: TableFormat) -> DataTable:
    words = conllu.WordRows(path.stem, _decode(path, data))
    return DataTable(
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


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


READERS: dict[str, Reader] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".conllu": _read_conllu,
    TXT: _read_txt,
}
DELIMITED = (".csv", ".tsv", TXT)
