"""Read tables from CSV, TSV, JSON, JSONL, Parquet, CoNLL-U and text files. Errors give file, line and what to do.

CSV is read strictly (RFC 4180: a cell with commas, quotes or line breaks is in double quotes); its header may show that
semicolons, tabs or bars separate the cells. TSV has no quoting (the IANA and GLUE convention). Both have a header,
unless the columns are named. JSON (a list of objects), JSONL and Parquet keep the types of their cells. CoNLL-U has one
row for each word (see `conllu`). A text file is a TSV without a header, or holds a text in each line (`read_classes`).
"""

import csv
import hashlib
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any

from probekit.errors import DataError, UsageError
from probekit.files.plain_files import MAX_TABLE, open_regular, parse_json
from probekit.files.scratch import DiskList, ScratchFile
from probekit.options import ImportOptions, LabelOptions, TaskOptions
from probekit.tasks.splitting.splits import split_of_cell
from probekit.tasks.tables import conllu
from probekit.tasks.tables.columns import LABEL_COLUMNS, TEXT_COLUMNS
from probekit.tasks.tables.data_table import DataTable, Flaw, LineNumbers, flaw_of, quote
from probekit.tasks.tables.parquet import read_parquet
from probekit.text import counted, listed, printable

TXT, JSON = ".txt", ".json"
MAX_JSON = 1 << 30  # of a list, which is parsed as a whole
SAMPLE = 10_000  # rows whose cells say what the columns of a text file are
PACKED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}  # by their first bytes
PACKED_ENDINGS = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".bz2": "bzip2"}


@dataclass(frozen=True)
class TableFormat:
    """How files are read, where they do not say so themselves.

    Attributes:
        columns: names of the columns of files without a header.
        header: whether the first line of delimited files names the columns; None if `columns` does not.
        name: csv, tsv, json, jsonl, parquet or conllu; None goes by the file's ending.
    """

    columns: tuple[str, ...] | None = None
    header: bool | None = None
    name: str | None = None

    @classmethod
    def of(cls, options: TaskOptions | LabelOptions | ImportOptions) -> "TableFormat":
        """That which the options name."""
        columns = None if options.columns is None else tuple(options.columns)
        return cls(columns, options.header, getattr(options, "data_format", None))

    def refuse_for_objects(self) -> None:
        """Raise a UsageError if this says anything: the tables are no files."""
        if self != TableFormat():
            raise UsageError("columns, header and data_format are for files; Python objects name their own columns")

    @property
    def has_header(self) -> bool:
        """Whether delimited files have a header."""
        return self.header is not False and self.columns is None


class TableBytes(io.RawIOBase):
    """The bytes of a table, read once from beginning to end.

    Attributes:
        head: the first few bytes.
        sha256: of what was read.
    """

    def __init__(self, file: IO[bytes]):
        self._file = file
        self._hash = hashlib.sha256()
        self.head = file.read(8)
        self._unread = self.head

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as there are bytes; how many there were."""
        data = self._unread or self._file.read(len(buffer))
        data, self._unread = data[: len(buffer)], data[len(buffer) :]
        buffer[: len(data)] = data
        self._hash.update(data)
        return len(data)

    @property
    def sha256(self) -> str:
        """Of all bytes, once all are read."""
        return self._hash.hexdigest()


Reader = Callable[[Path, TableBytes, TableFormat], DataTable]


def read_table(path: Path, how: TableFormat = TableFormat()) -> DataTable:
    """Read one file.

    Raises:
        DataError: it is empty, has no rows, or is damaged.
        UsageError: its format is unknown, or has no place for the names of columns.
    """
    check_format(path.name, how.name)
    with _opened(path) as data:
        return _table(path, data, how)


def read_stream(stream: IO[bytes], how: TableFormat = TableFormat()) -> DataTable:
    """Read standard input, whose format is recognised by its first line unless it is given. Errors as `read_table`."""
    if stream.isatty():
        raise UsageError("--dataset - reads standard input, got a terminal; pipe a file into the command")
    data = stream.read(MAX_TABLE + 1)
    if len(data) > MAX_TABLE:
        raise DataError(f"standard input has more than {MAX_TABLE:,} bytes; give a part of it")
    _refuse_packed("standard input", data)
    how = how if how.name else replace(how, name=_sniffed(data))
    return _table(Path("stdin"), TableBytes(io.BytesIO(data)), how)


def read_classes(folder: Path, files: Sequence[Path]) -> DataTable:
    """One table of text files that are named after classes and have a text in each line; empty lines are left out."""
    rows: list[tuple[str, str]] = []
    lines: list[int] = []
    names: list[str] = []
    digests: dict[str, str] = {}
    tables: list[list[str] | None] = []
    for file in files:
        first = len(rows)
        with _opened(file) as data:
            for line, text in enumerate(_lines(file, data), start=1):
                if text.strip():
                    rows.append((text.removesuffix("\n").removesuffix("\r"), file.stem))
                    lines.append(line)
                    names.append(file.name)
            digests[file.name] = data.sha256
        cells = [text.split("\t") for text, _ in rows[first : first + SAMPLE]]
        tables.append(roles_of([*zip(*cells, strict=True)]) if len(set(map(len, cells))) == 1 else None)
    if tables[0] is not None and None not in tables:
        raise UsageError(
            f"{files[0].name!a} and the other text files of {folder.name!a} are tables, not texts of a class: their "
            f"tab-separated columns look like {listed(tables[0], between=',')}; give one of them, or name it train{TXT}"
        )
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


def _table(path: Path, data: TableBytes, how: TableFormat) -> DataTable:
    ending = path.suffix.lower() if how.name is None else f".{how.name}"
    if replace(how, name=None) != TableFormat() and ending not in DELIMITED:
        flag = "--columns" if how.columns is not None else "--header" if how.header else "--no-header"
        raise UsageError(f"{flag} is for {', '.join(DELIMITED)}; {path.name!a} names its columns; leave it out")
    if not data.head:
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
    if first.lstrip().startswith((b"{", b"[")):
        return "json" if first.lstrip().startswith(b"[") else "jsonl"
    if first.count(b"\t") == 9 and first[:1] == b"1":
        return "conllu"
    return "tsv" if b"\t" in first else "csv"


@contextmanager
def _opened(path: Path) -> Iterator[TableBytes]:
    """The bytes of a file. Raises a DataError if it cannot be read, or is compressed."""
    try:
        with open_regular(path, MAX_TABLE) as file:
            data = TableBytes(file)
            _refuse_packed(path.name, data.head)
            yield data
    except OSError as error:
        raise DataError(f"cannot read {str(path)!a}: {error.strerror}") from None


def _refuse_packed(name: str, data: bytes) -> None:
    if packed := next((kind for start, kind in PACKED.items() if data.startswith(start)), None):
        raise DataError(_unpack(name, packed))


def _unpack(name: str, packed: str) -> str:
    named = name if name == "standard input" else ascii(name)
    return f"{named} is compressed with {packed}, expected the table itself; unpack it first"


def _lines(path: Path, data: TableBytes, ends: str = "\n") -> Iterator[str]:
    """The lines with their ends, which are line feeds, or any ends of lines where `ends` is "".

    Bytes that are not UTF-8 become surrogates, so that an error can name their row.
    """
    if data.head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path.name} is UTF-16, expected UTF-8; save it again as UTF-8")
    is_blank = True
    buffered = io.BufferedReader(data, 1 << 16)
    for line in io.TextIOWrapper(buffered, encoding="utf-8-sig", errors="surrogateescape", newline=ends):
        is_blank = is_blank and not line.strip()
        yield line
    if is_blank:
        raise _empty(path)


def _empty(path: Path) -> DataError:
    return DataError(f"{path.name} is empty; expected a table of texts and labels")


def _read_separated(path: Path, data: TableBytes, how: TableFormat, usual: str) -> DataTable:
    """A table whose cells are separated as its first line shows, or else as the format has it."""
    lines, line = _first_line(_lines(path, data, ends=""))
    separator = usual
    if how.has_header or how.columns:
        separator = separator_of(line, usual, None if how.has_header else len(how.columns or ()))
    table = _read_delimited(path, lines, data, how, separator, quoted=not separator == usual == "\t")
    told = f"{NAMES[separator]} between the cells, as in the first line"
    return table if separator == usual else replace(table, read_as=told)


def _read_txt(path: Path, data: TableBytes, how: TableFormat) -> DataTable:
    """A TSV, mostly without a header; columns that nobody names are recognised by their content, or refused."""
    lines, first = _first_line(_lines(path, data, ends=""))
    has_header = how.has_header and is_header(first.split("\t"))
    table = _read_delimited(path, lines, data, replace(how, header=has_header), "\t", quoted=False)
    if has_header or not how.has_header:
        return table
    names = None if table.bad else roles_of([table.column(name)[:SAMPLE] for name in table.columns])
    if names is None:
        raise UsageError(
            f"{path.name!a} has no names for its columns; name them, such as --columns label,text, or give a folder "
            "with a text file for each class"
        )
    return replace(
        table,
        columns=names,
        column=lambda name: table.column(table.columns[names.index(name)]),
        read_as=f"columns {', '.join(names)} by their content; --columns names others",
    )


def _first_line(lines: Iterator[str]) -> tuple[Iterator[str], str]:
    """All lines, and the first that is not blank; "" if there is none."""
    for n_blank, line in enumerate(lines):
        if line.strip():
            return chain(repeat("\n", n_blank), [line], lines), line
    return iter(()), ""


def _read_delimited(
    path: Path, lines: Iterable[str], data: TableBytes, how: TableFormat, separator: str, quoted: bool
) -> DataTable:
    rows = _csv_rows(path.name, lines, separator, quoted)
    begins, first = next(rows, (1, []))
    header = first if how.has_header else list(how.columns or (str(i) for i in range(1, len(first) + 1)))
    if how.has_header and (flaw := flaw_of(header)):
        raise DataError(f"{path.name}, line 1: {flaw[1]}")
    if not how.has_header and len(first) != len(header):
        raise UsageError(
            f"{path.name}, line {begins}: expected the {counted(len(header), 'column')} of --columns "
            f"({listed(header)}), got {len(first)}; name each of them"
        )
    file, begin = ScratchFile(), LineNumbers()  # one file for all columns, once they are many
    cells = [DiskList(file=file) for _ in header]
    bad: dict[int, Flaw] = {}
    for line, row in chain([] if how.has_header else [(begins, first)], rows):
        if len(row) != len(header):
            of = NAMES[separator]
            hint = f"double quotes around a text with {of}" if quoted else "no tab inside a text"
            first_row = "header" if how.has_header else "first line"
            words = f"expected {len(header)} cells as in the {first_row}, got {len(row)}; check for {hint}"
            bad[len(begin)] = ("ragged", words)
        elif flaw := flaw_of(row):
            bad[len(begin)] = flaw
        for k, own in enumerate(cells):
            own.append("" if len(begin) in bad else row[k])
        begin.append(line)

    def column(name: str) -> Sequence[str]:
        return cells[header.index(name)]

    return DataTable(path.name, path.stem, header, column, begin, typed=False, bad=bad, sha256=data.sha256)


def _csv_rows(name: str, text: Iterable[str], separator: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, each with its first line."""
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(text, delimiter=separator, strict=quoted, quoting=quoting)
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
        ) from None
    finally:
        csv.field_size_limit(limit)


def _read_jsonl(path: Path, data: TableBytes, how: TableFormat) -> DataTable:
    return _of_json_lines(path, data, _lines(path, data))


def _of_json_lines(path: Path, data: TableBytes, lines: Iterable[str]) -> DataTable:
    numbered = enumerate(lines, start=1)
    rows = ((line, *_json_row(text.removesuffix("\n"))) for line, text in numbered if text.strip())
    return _typed_table(path, data, rows, "line")


def _read_json(path: Path, data: TableBytes, how: TableFormat) -> DataTable:
    """A list of objects; or an object in each line, as in JSONL."""
    lines, first = _first_line(_lines(path, data))
    if not first.lstrip().startswith("["):
        return _of_json_lines(path, data, lines)
    pieces, n = [], 0
    for line in lines:
        pieces.append(line)
        n += len(line)
        if n > MAX_JSON:
            raise DataError(f"{path.name} is a list of more than {MAX_JSON:,} characters; write an object in each line")
    try:
        given = parse_json("".join(pieces))
    except ValueError as error:
        raise DataError(
            f"{path.name}: expected a list of JSON objects, got broken JSON ({printable(str(error))}); correct it"
        ) from None
    return _typed_table(path, data, ((row, *_json_object(one)) for row, one in enumerate(given, start=1)), "row")


def _typed_table(path: Path, data: TableBytes, rows: Iterable[tuple[int, dict[str, Any], Any]], unit: str) -> DataTable:
    """The table of objects, each with its place and what is wrong with it."""
    lines, file = LineNumbers(), ScratchFile()
    cells: dict[str, DiskList] = {}
    bad: dict[int, Flaw] = {}
    for line, row, flaw in rows:
        if flaw:
            bad[len(lines)] = flaw
        for name, cell in row.items():
            own = cells[name] if name in cells else cells.setdefault(name, DiskList(file=file))
            own.extend([None] * (len(lines) - len(own)))
            own.append(cell)
        lines.append(line)
    if not cells:
        first = min(bad, default=0)
        place = f", {unit} {lines[first]}" if len(lines) else ""
        raise DataError(f"{path.name}{place}: {bad.get(first, ('', 'expected a JSON object with names'))[1]}")
    for own in cells.values():
        own.extend([None] * (len(lines) - len(own)))
    column = cells.__getitem__
    return DataTable(path.name, path.stem, [*cells], column, lines, typed=True, unit=unit, bad=bad, sha256=data.sha256)


def _json_row(text: str) -> tuple[dict[str, Any], Flaw | None]:
    """The object of a line, and what is wrong with it; an empty one if something is."""
    try:
        row = parse_json(text)
    except ValueError as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        broken = "json", f"expected one JSON object, got broken JSON ({why}): {quote(text)}; correct it"
        return {}, flaw_of([text]) or broken
    return _json_object(row)


def _json_object(row: Any) -> tuple[dict[str, Any], Flaw | None]:
    """A row that is an object, and what is wrong with it; an empty one if something is."""
    if not isinstance(row, dict):
        return {}, ("json", f"expected a JSON object, got {quote(row)}; correct it")
    flaw = flaw_of([*row, *row.values()])
    return ({} if flaw else row), flaw


def _read_parquet(path: Path, data: TableBytes, how: TableFormat) -> DataTable:
    copy = ScratchFile()  # of a file that another program may cut short while it is mapped
    while piece := data.read(1 << 20):
        copy.write(piece)
    return read_parquet(path, copy.mapped(), data.sha256)


def _read_conllu(path: Path, data: TableBytes, how: TableFormat) -> DataTable:
    words = conllu.WordRows(path.stem, "".join(_lines(path, data)))
    return DataTable(
        path.name,
        path.stem,
        words.columns,
        words.column,
        words.lines,
        typed=True,
        bad=words.bad,
        sha256=data.sha256,
        span=conllu.SPAN,
        group=conllu.GROUP,
        measured=conllu.MEASURED,
        counts=words.counts,
    )


READERS: dict[str, Reader] = {
    ".csv": partial(_read_separated, usual=","),
    ".tsv": partial(_read_separated, usual="\t"),
    ".jsonl": _read_jsonl,
    JSON: _read_json,
    ".parquet": _read_parquet,
    ".conllu": _read_conllu,
    TXT: _read_txt,
}
DELIMITED = (".csv", ".tsv", TXT)
BESIDE = (TXT, JSON)  # may hold something else where other tables are in the folder


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
