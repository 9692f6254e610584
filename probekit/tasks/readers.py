"""Read tables from CSV, TSV, JSONL, Parquet and CoNLL-U files. Errors give file, line and what to do.

CSV is read strictly (RFC 4180: a cell with commas, quotes or line breaks is in double quotes). TSV has no quoting (the
IANA and GLUE convention). Both have a header. JSONL and Parquet keep the types of their cells. CoNLL-U has one row for
each word (see `conllu`).
"""

import csv
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from probekit.errors import DataError, UsageError
from probekit.plain_files import MAX_TABLE, read_bytes
from probekit.tasks import conllu
from probekit.tasks.data_table import DataTable, flaw_of, quote
from probekit.text import listed

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "dev", "val", "valid"), "validation"),
    "test": "test",
}


def split_files(path: Path) -> dict[str, Path]:
    """Split -> file; {"all": file} for a single file.

    Raises:
        DataError: the folder has no such files, two for one split, or none for training.
        UsageError: the path does not exist, or the file's format is unknown.
    """
    if not path.exists():
        raise UsageError(f"no file or folder {str(path)!a}")
    if not path.is_dir():  # what is no regular file is refused when it is read
        _reader(path)
        return {"all": path}
    files: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        split = _split_of(file)
        if split is None or file.suffix.lower() not in READERS or not file.is_file():
            continue
        if split in files:
            raise DataError(
                f"{str(path)!a} has two files for {split}: {files[split].name!a} and {file.name!a}; keep one"
            )
        files[split] = file
    if not files:
        there = listed([ascii(file.name) for file in sorted(path.iterdir())]) or "nothing"
        raise DataError(
            f"{str(path)!a} has no train, validation (dev) or test file ending in {', '.join(READERS)}; "
            f"it has {there}; rename its files, or give the path of one of them"
        )
    return files


def _split_of(file: Path) -> str | None:
    """The split in a file's name; Universal Dependencies names files like en_ewt-ud-dev.conllu."""
    stem = file.stem.lower()
    return SPLIT_NAMES.get(stem.rsplit("-", 1)[-1] if file.suffix.lower() == ".conllu" else stem)


def read_table(path: Path) -> DataTable:
    """Read one file.

    Raises:
        DataError: it is empty, has no rows, or is damaged.
        UsageError: its format is unknown.
    """
    reader = _reader(path)
    try:
        data = read_bytes(path, MAX_TABLE)
    except OSError as error:
        raise DataError(f"cannot read {str(path)!a}: {error.strerror}") from error
    if not data:
        raise _empty(path)
    table = reader(path, data)
    if not len(table.lines):
        raise DataError(f"{path.name} has a header and no rows; expected one row for each text")
    return table


def _reader(path: Path) -> Callable[[Path, bytes], DataTable]:
    if path.suffix.lower() not in READERS:
        raise UsageError(f"{path.name!a} has an unknown format; expected a name ending in {', '.join(READERS)}")
    return READERS[path.suffix.lower()]


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


def _read_csv(path: Path, data: bytes) -> DataTable:
    return _read_delimited(path, data, delimiter=",", strict=True)


def _read_tsv(path: Path, data: bytes) -> DataTable:
    return _read_delimited(path, data, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_delimited(path: Path, data: bytes, **dialect: Any) -> DataTable:
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


def _read_jsonl(path: Path, data: bytes) -> DataTable:
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
                f"expected one JSON object, got broken JSON ({why}): {quote(text)}; correct it",
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

    return DataTable(path.name, path.stem, columns, column, lines, typed=True, bad=bad, sha256=_sha256(data))


def _read_parquet(path: Path, data: bytes) -> DataTable:
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

    return DataTable(
        path.name, path.stem, columns, column, range(1, n + 1), typed=True, unit="row", sha256=_sha256(data)
    )


def _read_conllu(path: Path, data: bytes) -> DataTable:
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


def _first_line(error: BaseException) -> str:
    return quote((str(error).splitlines() or [""])[0], most=100)


READERS: dict[str, Callable[[Path, bytes], DataTable]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".conllu": _read_conllu,
}
