"""The examples of a store: the columns of its task, and how the rows of its tensors belong to them.

examples.json says what all examples have in common and names the pieces, Parquet files of some thousand rows: memory
holds one of them while they are written and read. A piece is named by the sha256 of its bytes, which is compared before
Arrow reads any of them.

Axes: N examples.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np

from probekit.activations.layout import Layout
from probekit.activations.store.format import AGAIN, MAX_EXAMPLES_BYTES, PlanFile, require, storage_errors
from probekit.activations.store.old_format import is_old, old_columns, old_head
from probekit.errors import StorageError
from probekit.files.durable import each_of, read_plain, seal, unseal, write_first, write_named
from probekit.files.records import read_as
from probekit.files.remote.path import AnyPath
from probekit.files.scratch import give_back_memory, pieces
from probekit.selections import Selection
from probekit.tasks.base import Task
from probekit.tasks.fields import (
    FIELDS,
    NUMBERS,
    ROWS,
    Field,
    RaggedRows,
    column_key,
    column_name,
    fields_of,
    from_arrow,
    joined_columns,
    task_columns,
    to_arrow,
)

FOLDER = "examples"
PIECE_BYTES = 4 << 20  # roughly; parsing a piece takes several times as much memory for a moment
PIECE_ROWS = 16_384
AHEAD = 3  # pieces that are read ahead from an object store
_NUMBER_BYTES = 8
_BATCH_ROWS = 1024  # rows of a piece that are unfolded before their bytes are counted
_MOST_BYTES, _MOST_FACTOR = 256 << 20, 50  # what a piece may unfold to: this, or this many times its size

Columns = dict[tuple[str, str], Any]

LAYOUT = {
    "lengths": Field(NUMBERS),
    "tokens": Field(ROWS),
    "picked": Field(NUMBERS),
    "token_index": Field(ROWS),
    "characters": Field(ROWS),
    "positions": Field(NUMBERS, several=True),  # those with an index for each example, by number
}
_COLUMNS = {field: how for field, how in (FIELDS | LAYOUT).items() if how.is_stored}
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_WHAT = "list of the examples"
_NOT_SAID = {"own", "is_old", "seal"}  # of `ExamplesHead`, which no file may say


class _Form(TypedDict):
    positions: list[str]
    n_bos: int
    n_end: int


@dataclass(frozen=True, eq=False)
class ExamplesHead:
    """examples.json.

    Attributes:
        name: of the task, as `target`, `info` and `label_names` are.
        target: its default label set.
        info: where it comes from.
        label_names: label set -> class names.
        positions: the positions that were requested; None for each that has an index for each example.
        layout: names of the positions, and the context tokens before and after each text.
        pieces: checksums of the pieces.
        position: the selection of the task; None where it has an index for each example.
        own: the examples of a small store of format 2, which are in the file itself.
        is_old: True for format 2, whose pieces are JSON.
        seal: checksum of the file.
    """

    name: str
    target: str
    info: dict[str, Any]
    label_names: dict[str, list[str]]
    positions: list[str | int | None]
    layout: _Form
    pieces: list[str]
    position: str | None = None
    own: Any = None
    is_old: bool = False
    seal: str = ""


@dataclass(frozen=True, eq=False)
class StoredExamples:
    """The examples of a store.

    Attributes:
        task: the N examples.
        layout: how many rows each has at a place.
        positions: those that were requested.
        seal: checksum of examples.json.
    """

    task: Task
    layout: Layout
    positions: list[Selection]
    seal: str


# write ----------------------------------------------------------------------------------------------------------------


def write_examples(path: AnyPath, task: Task, layout: Layout, positions: Sequence[Selection]) -> None:
    """Write the examples of the store at `path`: the pieces first, and examples.json last.

    Raises:
        StorageError: the disk refused, or a text is larger than what is read again.
    """
    columns = _columns_to_write(task, layout, positions)
    checksums = [_write_piece(path, columns, rows) for rows in _cuts(columns, len(task))]
    _give_back_memory()
    body = {
        "name": task.name,
        "target": task.target,
        "info": task.info,
        "label_names": task.label_names,
        "position": task.position if isinstance(task.position, str) else None,
        "positions": [one.plain if one.each is None else None for one in positions],
        "layout": {"positions": layout.positions, "n_bos": layout.n_bos, "n_end": layout.n_end},
        "pieces": checksums,
    }
    write_first(path / "examples.json", seal(body, MAX_EXAMPLES_BYTES)[0])


def _columns_to_write(task: Task, layout: Layout, positions: Sequence[Selection]) -> Columns:
    columns: Columns = {key: values for key, values in task_columns(task) if key[0] in _COLUMNS}
    columns["lengths", ""] = layout.lengths
    columns |= {("positions", str(k)): one.each for k, one in enumerate(positions) if one.each is not None}
    for field in ("tokens", "token_index", "characters"):
        if (numbers := getattr(layout, field)) is not None:
            columns[field, ""] = RaggedRows(numbers, layout.offsets())
    return columns if layout.picked is None else columns | {("picked", ""): layout.picked}


def _cuts(columns: Columns, n: int) -> Iterator[slice]:
    """The rows of each piece."""
    for block in pieces(n, PIECE_ROWS):
        ends = np.cumsum(sum(_row_bytes(_part(values, block)) for values in columns.values()))
        start = 0
        while start < len(ends):
            most = PIECE_BYTES + (ends[start - 1] if start else 0)
            stop = max(start + 1, int(np.searchsorted(ends, most, side="right")))
            yield slice(block.start + start, block.start + stop)
            start = stop


def _part(values: Any, rows: slice) -> Any:
    """Some rows of a column."""
    if not isinstance(values, RaggedRows):
        return values[rows]
    offsets = values.offsets[rows.start : rows.stop + 1]
    return RaggedRows(values.numbers[offsets[0] : offsets[-1]], offsets - offsets[0])


def _row_bytes(values: Any) -> np.ndarray:
    """Bytes of each cell, roughly; an input that repeats the one above takes none."""
    if isinstance(values, RaggedRows):
        return np.diff(values.offsets) * _NUMBER_BYTES * (values.numbers.size // max(1, len(values.numbers)))
    if isinstance(values, np.ndarray) and values.dtype != object:
        return np.full(len(values), values.nbytes // max(1, len(values)))
    sizes, last = np.zeros(len(values), dtype=np.int64), None
    for row, one in enumerate(values):
        is_text = isinstance(one, str)
        if one is not last and not (is_text and one == last) and one is not None:
            each = 1 if is_text else _NUMBER_BYTES
            sizes[row] = each * (len(one) if hasattr(one, "__len__") else 1)
            if isinstance(one, list) and one and isinstance(one[0], dict | tuple):  # messages, regions
                sizes[row] = len(str(one))
        last = one
    return sizes


def _write_piece(path: AnyPath, columns: Columns, rows: slice) -> str:
    """Put one piece on disk, named by its checksum, which is returned."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {column_name(key): to_arrow(_COLUMNS[key[0]].kind, _part(values, rows)) for key, values in columns.items()}
    out = io.BytesIO()
    table = pa.Table.from_arrays([*arrays.values()], names=[*arrays])
    pq.write_table(table, out, compression="zstd", write_statistics=False)
    data = out.getvalue()
    del table, arrays, out
    pa.default_memory_pool().release_unused()  # or it keeps what the pieces took
    if len(data) > MAX_EXAMPLES_BYTES:
        raise StorageError(
            f"{len(data):,} bytes of examples exceed the limit of {MAX_EXAMPLES_BYTES:,}; split the task"
        )
    checksum = hashlib.sha256(data).hexdigest()
    write_named(path / FOLDER, [data], lambda: f"{checksum}.parquet")
    return checksum


def _give_back_memory() -> None:
    """Give back what Arrow keeps of the pieces for later use, and then the C library."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    give_back_memory()


# read -----------------------------------------------------------------------------------------------------------------


def read_examples(path: AnyPath, plan: PlanFile) -> StoredExamples:
    """The examples of the store at `path`; apart from them memory holds one piece, of an object store `AHEAD`.

    Raises:
        StorageError: missing, damaged, or not those of the plan.
    """
    head = read_head(path)
    found = joined(path, plan, head, each_of(path, lambda one: read_piece(path, head, one), head.pieces, AHEAD))
    if len(head.pieces) > 1:
        _give_back_memory()
    return found


def check_examples(path: AnyPath, plan: PlanFile) -> None:
    """Read the examples of the store at `path`, a piece at a time; errors as `read_examples`."""
    head = read_head(path)
    some = [head.own] if head.own else each_of(path, lambda one: read_piece(path, head, one), head.pieces, AHEAD)
    with storage_errors(path / "examples.json", _WHAT, AGAIN):
        require(sum(len(one["ids", ""]) for one in some) == plan.rows)


def read_head(path: AnyPath) -> ExamplesHead:
    """examples.json of the store at `path`.

    Raises:
        StorageError: missing or damaged.
    """
    file = path / "examples.json"
    body, checksum = unseal(file, MAX_EXAMPLES_BYTES, AGAIN)
    with storage_errors(file, _WHAT, AGAIN):
        old = is_old(body)
        body = old_head(path, body) if old else body
        said = {name: body[name] for name in ExamplesHead.__annotations__ if name in body and name not in _NOT_SAID}
        own = body.get("own") if old else None
        head = replace(read_as(ExamplesHead, said), own=own, is_old=old, seal=checksum)
        form, positions = head.layout, head.positions
        require(head.target in (head.label_names or [""]), form["n_bos"] in (0, 1), form["n_end"] in (0, 1))
        require(len(form["positions"]) == len(positions) > 0, bool(head.pieces) or head.is_old)
        require(all(map(_CHECKSUM.fullmatch, head.pieces)))
        if head.own is not None:
            _check_piece(head.own, head)
        return head


def read_piece(path: AnyPath, head: ExamplesHead, checksum: str) -> Columns:
    """The columns of one piece of the examples.

    Raises:
        StorageError: missing, damaged, or not the one that is named.
    """
    file = piece_path(path, head, checksum)
    if head.is_old:
        content, found = unseal(file, MAX_EXAMPLES_BYTES, AGAIN)
    else:
        try:
            content = read_plain(file, MAX_EXAMPLES_BYTES)
        except FileNotFoundError:
            raise StorageError(f"{str(file)!a} is missing; {AGAIN}") from None
        found = hashlib.sha256(content).hexdigest()
    if found != checksum:
        raise StorageError(f"{str(file)!a} is damaged: its content does not match its name; {AGAIN}")
    with storage_errors(file, _WHAT, AGAIN):
        columns = old_columns(content, head.label_names) if isinstance(content, dict) else _columns_of_file(content)
        _check_piece(columns, head)
        return columns


def piece_path(path: AnyPath, head: ExamplesHead, checksum: str) -> AnyPath:
    """The file of a piece of the examples, which is named by its content."""
    return path / FOLDER / f"{checksum}.{'json' if head.is_old else 'parquet'}"


def _columns_of_file(data: bytes) -> Columns:
    """The columns of a Parquet file. Raises ValueError for one that `write_examples` does not write."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        n, most, batches = file.metadata.num_rows, max(_MOST_BYTES, _MOST_FACTOR * len(data)), list[pa.RecordBatch]()
        require(0 < n <= max(PIECE_ROWS, 1 << 14))
        for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
            batches.append(batch)
            most -= batch.nbytes
            require(most >= 0)
        table = pa.Table.from_batches(batches).combine_chunks()
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise ValueError(str(error)) from None
    require(table.num_rows == n)
    columns: Columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        key = column_key(name)
        require(key[0] in _COLUMNS, key not in columns, bool(key[1]) == _COLUMNS[key[0]].several)
        columns[key] = from_arrow(_COLUMNS[key[0]], column.chunk(0))
    del file, batches, table
    pa.default_memory_pool().release_unused()
    return columns


def _check_piece(columns: Columns, head: ExamplesHead) -> None:
    """Check that a piece has what the head says, and as many rows of tokens as examples. Raises ValueError."""
    require({("ids", ""), ("splits", ""), ("inputs", ""), ("lengths", "")} <= columns.keys())
    labelled = {name for field, name in columns if field in ("labels", "token_labels")}
    require(labelled == head.label_names.keys(), (head.position is None) == (("position", "") in columns))
    indexed = {str(k) for k, one in enumerate(head.positions) if one is None}
    require(indexed == {name for field, name in columns if field == "positions"})
    for (field, name), values in columns.items():
        if isinstance(values, np.ndarray) and (field == "labels" or field in LAYOUT):
            is_whole = bool(head.label_names[name]) if field == "labels" else True
            require(
                values.dtype.kind == ("i" if is_whole else "f"), values.ndim == 1 or field in ("labels", "characters")
            )
    layout = _layout(columns, head)
    rows = int(layout.counts().sum())
    for numbers in (layout.tokens, layout.token_index, layout.characters):
        require(numbers is None or len(numbers) == rows)
    if layout.characters is not None:
        require(layout.characters.shape[1:] == (2,))
        start, end = layout.characters.T
        require(bool(((start >= 0) & (start <= end)).all()))
    if isinstance(columns["inputs", ""][0], str):
        own_lengths = layout.own_lengths.tolist()
        labels = [values for (field, _), values in columns.items() if field == "token_labels"]
        require(all(list(map(len, one)) == own_lengths for one in labels))


def _layout(columns: Mapping[Any, Any], head: ExamplesHead) -> Layout:
    lengths, form, picked = columns["lengths", ""], head.layout, columns.get(("picked", ""))
    require(lengths.min() >= form["n_bos"] + form["n_end"], (lengths.astype(float) ** 2).sum() < 2**60)
    require(picked is None or (len(form["positions"]) == 1 and bool((picked > 0).all())))
    return Layout(
        [Selection.named(one) for one in form["positions"]],
        lengths,
        form["n_bos"],
        columns.get(("tokens", "")),
        form["n_end"],
        picked,
        columns.get(("token_index", "")),
        columns.get(("characters", "")),
    )


def joined(path: AnyPath, plan: PlanFile, head: ExamplesHead, some: Iterable[Columns]) -> StoredExamples:
    """All examples in order.

    Raises:
        StorageError: the pieces do not fit together, or are not those of the plan.
    """
    file = path / "examples.json"
    with storage_errors(file, _WHAT, AGAIN):
        columns = joined_columns([head.own] if head.own else some)
        require(len(columns["ids", ""]) == plan.rows)
        layout = _layout(columns, head)
        positions = [
            Selection.named(one) if one is not None else Selection.of(columns["positions", str(k)])
            for k, one in enumerate(head.positions)
        ]
        fields = fields_of({key: values for key, values in columns.items() if key[0] in FIELDS})
        if head.position is not None:
            fields["position"] = head.position
        task = Task(head.name, label_names=head.label_names, target=head.target, info=head.info, **fields)
        return StoredExamples(task, layout, positions, head.seal)
