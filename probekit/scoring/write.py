"""Tables as CSV, JSONL or Parquet, written part by part; the file is complete or absent."""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from probekit.errors import StorageError, UsageError, nearest
from probekit.files.durable import write_named
from probekit.scoring.rows import ScoreRows, score_columns
from probekit.text import spreadsheet_cell, utf8_text

Columns = dict[str, np.ndarray]


def check_table_file(path: Path, what: str = "scores") -> None:
    """Check, before anything is loaded, that a table can be written to `path`; `what` says of what.

    Raises:
        UsageError: a name that ends in none of .csv, .jsonl and .parquet.
        StorageError: a folder has the name, or its own folder cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"{what} are written to a file such as {what}.csv, got {str(path)!a}; {nearest(path.suffix, FORMATS)}"
        )
    if path.is_dir():
        raise StorageError(f"{str(path)!a} is a folder; name a file, such as {str(path / what)!a}.csv")
    there = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"{str(path)!a}: {str(there)!a} may not be written; name another folder")


def write_scores(path: Path, parts: Iterable[ScoreRows]) -> None:
    """Write the rows of all parts to `path`; see `write_columns`."""
    write_columns(path, (score_columns(part) for part in parts))


def write_columns(path: Path, parts: Iterable[Columns], what: str = "scores") -> None:
    """Write columns, part by part, in the format of the path's ending; a file that is there is replaced at the end.

    Cells of a CSV file that a spreadsheet would take for a formula start with an apostrophe
    (`probekit.text.from_spreadsheet_cell`). None and NaN are empty cells, or null.

    Raises:
        StorageError: the disk refused; nothing was written.
        UsageError: an unknown ending.
    """
    check_table_file(path, what)
    write_named(path.absolute().parent, FORMATS[path.suffix.lower()](iter(parts)), lambda: path.name)


def _csv(parts: Iterator[Columns]) -> Iterator[bytes]:
    for number, columns in enumerate(parts):
        rows = [] if number else [[spreadsheet_cell(name) for name in columns]]
        cells = [[_csv_cell(value) for value in values.tolist()] for values in columns.values()]
        lines = [",".join(map(_quoted, row)) for row in [*rows, *zip(*cells, strict=True)]]
        yield "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")


def _csv_cell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or value != value:
        return ""
    return spreadsheet_cell(value) if isinstance(value, str) else str(value)


def _quoted(cell: str) -> str:
    """A cell in quotes where it needs them; the csv module of Python 3.11 leaves a lone carriage return bare."""
    return '"' + cell.replace('"', '""') + '"' if any(c in cell for c in ',"\r\n') else cell


def _jsonl(parts: Iterator[Columns]) -> Iterator[bytes]:
    for columns in parts:
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        lines = (json.dumps(dict(zip(columns, map(_known, row), strict=True)), allow_nan=False) for row in rows)
        yield "".join(f"{line}\n" for line in lines).encode()


def _known(value: Any) -> Any:
    return None if value != value else value


class _Drained(io.RawIOBase):
    """A file whose bytes are taken out as they come."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        self.parts.append(bytes(data))
        self._at += len(self.parts[-1])
        return len(self.parts[-1])

    def take(self) -> bytes:
        found, self.parts = b"".join(self.parts), []
        return found


def _parquet(parts: Iterator[Columns]) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out, writer = _Drained(), None
    for columns in parts:
        table = pa.table({name: pa.array(_plain_texts(values), from_pandas=True) for name, values in columns.items()})
        writer = writer or pq.ParquetWriter(out, table.schema, compression="zstd")
        writer.write_table(table)
        yield out.take()
    if writer is not None:
        writer.close()
        yield out.take()


def _plain_texts(values: np.ndarray) -> Any:
    """The values; of texts those that UTF-8 can hold."""
    if values.dtype != object:
        return values
    return [utf8_text(value) if isinstance(value, str) else value for value in values]


FORMATS: dict[str, Callable[[Iterator[Columns]], Iterator[bytes]]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
