"""The columns of a task, each once: what there is one of for each example, and how it is cut, fingerprinted and stored.

`FIELDS` names the columns and the kind of their cells. A kind decides the form in a file (Arrow, `to_arrow` and
`from_arrow`) and in a fingerprint; whatever treats all columns alike walks over `task_columns` or `changed_columns`.
The keys of a task's `info` that several modules read are here too.

Axes: N examples, K numbers of a cell.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from probekit.files.scratch import ArrayWriter, DiskList, on_disk, pieces, settled, take

if TYPE_CHECKING:
    import pyarrow as pa


Task = Any  # `tasks.base.Task`, which imports this module
Key = tuple[str, str]  # a field, and the name of one of its columns; "" where a field is one column

NUMBERS = "numbers"  # an array [N] or [N, K]
TEXTS = "texts"  # texts, or whole numbers as names
INPUTS = "inputs"  # texts, or lists of token ids
LISTS = "lists"  # a list, or an array [L] or [L, K], for each example
JSON = "json"  # whatever JSON can hold
ROWS = "rows"  # `RaggedRows`: how many numbers each example has differs, and one array holds those of all
_REPEATING = (INPUTS, LISTS, JSON)  # an empty cell is the same as the one above, which the words of a text share
_BATCH = 512  # rows that a fingerprint takes at once


class Region(NamedTuple):
    """The characters [start, end) of a text, and the role of the message whose content they are."""

    name: str
    start: int
    end: int


class Field(NamedTuple):
    """One column of a task, or several by name.

    Attributes:
        kind: of its cells.
        several: whether it is a dict of columns.
        made: what makes the column of a piece from the cells that were read; None leaves them.
        is_stored: False for what follows from how the task was made.
    """

    kind: str
    several: bool = False
    made: Callable[[Any], Any] | None = None
    is_stored: bool = True


class RaggedRows(NamedTuple):
    """Numbers [R] or [R, K], those of example i from offsets[i] to offsets[i + 1]."""

    numbers: np.ndarray
    offsets: np.ndarray


def _split_names(cells: Sequence[Any]) -> np.ndarray:
    return np.array(cells, dtype="<U10")


def _regions(cells: Sequence[Any]) -> list[list[Region]]:
    return [[Region(*one) for one in own] for own in cells]


def _side_column(cells: Any) -> np.ndarray:
    if isinstance(cells, np.ndarray):
        return cells
    column = np.empty(len(cells), dtype=object)
    column[:] = cells
    return column


FIELDS = {
    "ids": Field(TEXTS),
    "inputs": Field(INPUTS),
    "splits": Field(TEXTS, made=_split_names),
    "labels": Field(NUMBERS, several=True),
    "groups": Field(TEXTS, made=np.array),
    "position": Field(NUMBERS),
    "spans": Field(NUMBERS),
    "targets": Field(INPUTS),
    "token_labels": Field(LISTS, several=True),
    "text_of": Field(NUMBERS, is_stored=False),
    "chats": Field(JSON),
    "regions": Field(JSON, made=_regions),
    "token_ids": Field(LISTS, made=lambda cells: [one.tolist() for one in cells]),
    "generated": Field(NUMBERS),
    "columns": Field(TEXTS, several=True, made=_side_column),
}


def task_columns(task: Task) -> Iterator[tuple[Key, Any]]:
    """The columns that a task has: arrays [N] or [N, K], and lists [N]."""
    for field, how in FIELDS.items():
        given = getattr(task, field)
        if how.several:
            yield from (((field, name), values) for name, values in given.items())
        elif not isinstance(given, str | None):
            yield (field, ""), given


def fields_of(columns: Mapping[Key, Any]) -> dict[str, Any]:
    """Columns as the fields of a `Task`."""
    found: dict[str, Any] = {}
    for (field, name), values in columns.items():
        if FIELDS[field].several:
            found.setdefault(field, {})[name] = values
        else:
            found[field] = values
    return found


def changed_columns(task: Task, change: Callable[[Any], Any]) -> dict[str, Any]:
    """The fields of a task whose columns are what `change` makes of each."""
    return fields_of({key: change(values) for key, values in task_columns(task)})


def column_rows(values: Any, rows: np.ndarray) -> Any:
    """These rows of a column."""
    return on_disk(values[rows]) if isinstance(values, np.ndarray) else take(values, rows)


# info -----------------------------------------------------------------------------------------------------------------

ASKED = "asked"  # the options of `load_task` that differ from their defaults, as the command line has them
CARVED_FROM_TRAIN = "carved_from_train"  # the splits that were carved when the task was made
VALIDATION_CARVED = "validation_carved"  # how validation was carved later: fraction and seed
IN_MEMORY = "in_memory"  # True for data that was passed as a Python object
LABEL_SETS = "label_sets"  # label set -> where its labels come from, of those that were joined later
UNLABELLED = "unlabelled"  # label set -> how many examples have no label in it, which is written -1, or NaN
CHAT = "chat"  # how chats became texts: the sha256 of the template, where it is from, the generation prompt
GENERATE = "generate"  # how the model continued the texts, and how many tokens it wrote
READ_AS = "read_as"  # how a file was read that does not say so itself, in words
PROMPT_CHARACTERS = "prompt_characters"  # the column of a text's characters before those that the model wrote
NO_TEXTS = "no_texts"  # True where the inputs are only names of rows


def origin_of_splits(info: Mapping[str, Any]) -> str:
    """Where a task's splits come from, in words; "" where each has a file of its own."""
    carved = info.get(CARVED_FROM_TRAIN)
    parts = [info.get("splits_from"), f"{' and '.join(carved)} carved from train" if carved else ""]
    return "; ".join(part for part in parts if part)


# fingerprint ----------------------------------------------------------------------------------------------------------


def fingerprint(task: Task) -> str:
    """Hex sha256 of a `tasks.base.Task`: equal for tasks whose columns, class names and target are equal.

    Lists, arrays and tensors of equal numbers are equal; so are whole numbers of any type.
    """
    names = {name: task.label_names[name] for name in sorted([*task.labels, *task.token_labels])}
    position = task.position if isinstance(task.position, str) else None
    digest = hashlib.sha256(_json([task.target, position, names]))
    for (field, name), values in sorted(task_columns(task), key=itemgetter(0)):
        if not FIELDS[field].is_stored:
            continue
        digest.update(_json([field, name]))
        for rows in pieces(len(values), _BATCH):
            for part in _parts(FIELDS[field].kind, values[rows]):
                digest.update(part)
    return digest.hexdigest()


def _parts(kind: str, values: Any) -> Iterator[bytes]:
    """The bytes of some rows of a column."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        yield from _number_parts(values)
    elif _are_lists(kind, values):
        if any(hasattr(one, "spans") for one in values):  # labels by character, `token_labels.Stretches`
            yield from _list_parts([one.spans for one in values])
            values = [one.values for one in values]
        yield from _list_parts(values)
    else:
        yield _json(values)


def _list_parts(values: Any) -> Iterator[bytes]:
    yield np.fromiter(map(len, values), "<i8", len(values)).tobytes()
    flat = _flat(values)
    yield from [_json(values)] if flat is None else _number_parts(flat)


def _number_parts(values: np.ndarray) -> Iterator[bytes]:
    kind = "<f8" if values.dtype.kind == "f" else "<i8"
    yield f"{kind}{values.shape[1:]}".encode()
    yield values.astype(kind).tobytes()


def _json(value: Any) -> bytes:
    return json.dumps(value.tolist() if hasattr(value, "tolist") else value, default=_plain).encode()


def _plain(value: Any) -> Any:
    return value.tolist()  # of NumPy and torch


def _are_lists(kind: str, values: Any) -> bool:
    if kind != INPUTS:
        return kind == LISTS
    return not isinstance(next((one for one in values if one is not None), ""), str)


def _flat(rows: Sequence[Any]) -> np.ndarray | None:
    """The numbers of all rows one after the other, [R] or [R, K]; None where int64 and float64 cannot hold them."""
    if rows and all(isinstance(one, np.ndarray) for one in rows):
        return np.concatenate(rows)
    plain = [one.tolist() if hasattr(one, "tolist") else one for one in rows]
    try:
        return np.fromiter(chain.from_iterable(plain), np.int64)
    except OverflowError:
        return None


# Arrow ----------------------------------------------------------------------------------------------------------------


def column_name(key: Key) -> str:
    """What a column is called in a file: "inputs", "labels.sentiment"."""
    field, name = key
    return f"{field}.{json.dumps(name)[1:-1]}" if name else field


def column_key(name: str) -> Key:
    """The key of `column_name`. Raises ValueError for no such name."""
    field, _, own = name.partition(".")
    return field, json.loads(f'"{own}"')


def to_arrow(kind: str, values: Any) -> "pa.Array":
    """Some rows of a column as Arrow holds them, N cells.

    Texts are strings, or JSON where one is no Unicode (a lone surrogate); names that are whole numbers are int64.
    """
    import pyarrow as pa

    if isinstance(values, RaggedRows):
        return _packed_lists(values.offsets, values.numbers)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return _packed_numbers(values)
    cells: Any = _once(values) if kind in _REPEATING else values.tolist() if hasattr(values, "tolist") else values
    if _are_lists(kind, cells):
        there = [one for one in cells if one is not None]
        lengths = np.fromiter((0 if one is None else len(one) for one in cells), np.int64, len(cells))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if (flat := _flat(there)) is None:
            raise OverflowError("token ids are whole numbers of at most 64 bits")
        return _packed_lists(offsets, flat, _present(cells))
    kinds = {type(one) for one in cells if one is not None}
    try:
        if kind != JSON and all(issubclass(one, str) for one in kinds):
            return _packed_bytes(pa.string(), [None if one is None else one.encode() for one in cells])
        if kind != JSON and all(issubclass(one, int | np.integer) for one in kinds):
            numbers = np.array([0 if one is None else one for one in cells], dtype=np.int64)
            return pa.Array.from_buffers(pa.int64(), len(cells), [_present(cells), pa.py_buffer(numbers)])
    except (UnicodeEncodeError, OverflowError):
        pass
    return _packed_bytes(pa.binary(), [None if one is None else _json(one) for one in cells])


# `pa.array` and `to_numpy` would import pandas, if it is installed: 30 MB, and half a second.
def _packed_numbers(values: np.ndarray) -> "pa.Array":
    import pyarrow as pa

    flat = np.ascontiguousarray(values.reshape(-1), dtype=np.float64 if values.dtype.kind == "f" else np.int64)
    kind = pa.float64() if values.dtype.kind == "f" else pa.int64()
    packed = pa.Array.from_buffers(kind, len(flat), [None, pa.py_buffer(flat)])
    return packed if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(packed, values.shape[1])


def _packed_lists(offsets: np.ndarray, numbers: np.ndarray, present: "pa.Buffer | None" = None) -> "pa.Array":
    """Lists of numbers, or of rows of them; list i has the numbers from offset i to offset i + 1."""
    import pyarrow as pa

    packed = _packed_numbers(numbers)
    buffers = [present, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(pa.list_(packed.type), len(offsets) - 1, buffers, children=[packed])


def _packed_bytes(kind: "pa.DataType", cells: Sequence[bytes | None]) -> "pa.Array":
    """Cells of bytes, or of texts in UTF-8."""
    import pyarrow as pa

    ends = np.cumsum([0, *(0 if one is None else len(one) for one in cells)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{ends[-1]:,} bytes in one piece")
    data = b"".join(one for one in cells if one is not None)
    buffers = [_present(cells), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(cells), buffers)


def _present(cells: Sequence[Any]) -> "pa.Buffer | None":
    """A bit for each cell that is not empty; None if none is."""
    import pyarrow as pa

    there = np.array([one is not None for one in cells], dtype=bool)
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))


def _once(values: Any) -> list[Any]:
    """The cells with None in place of each that equals the one above: the same text, or the same object."""
    found, last = [], None
    for one in values:
        is_same = one is last or (isinstance(one, str) and isinstance(last, str) and one == last)
        found.append(None if is_same else one)
        last = one
    return found


def from_arrow(field: Field, array: "pa.Array") -> Any:
    """The column of a piece from what `to_arrow` made: an array, a list of N cells, or of `ROWS` the array [R].

    Raises:
        ValueError: cells of a type that no column has, or without a value.
    """
    import pyarrow as pa

    kind, cells = array.type, None
    if pa.types.is_list(kind) and field.kind in (INPUTS, LISTS, ROWS):
        rows, numbers = _numbers_of(array.offsets), _unpacked_numbers(array.values)
        if field.kind == ROWS:
            return numbers
        numbers = numbers.tolist() if field.kind == INPUTS else numbers
        cells = [numbers[a:b] for a, b in pairwise(rows.tolist())]
    elif pa.types.is_string(kind):
        cells = array.to_pylist()
    elif pa.types.is_binary(kind):
        cells = [None if one is None else json.loads(one) for one in array.to_pylist()]
    if cells is None:
        cells = _unpacked_numbers(array)
        cells = cells.tolist() if field.kind == TEXTS and field is not FIELDS["columns"] else cells
    is_number = isinstance(cells, np.ndarray)
    if field.kind == ROWS or (is_number != (field.kind == NUMBERS) and field is not FIELDS["columns"]):
        raise ValueError("expected numbers, and no others")
    if field.kind in _REPEATING:
        empty = _gaps(array)
        for row in empty:
            cells[row] = cells[row - 1]
        if empty and empty[0] == 0:
            raise ValueError("the first cell is empty")
    return cells if field.made is None else field.made(cells)


def _gaps(array: "pa.Array") -> list[int]:
    """The rows without a value; `is_null` would import pyarrow.compute, a quarter of a second."""
    if (there := array.buffers()[0]) is None:
        return []
    bits = np.unpackbits(np.frombuffer(there, dtype=np.uint8), bitorder="little")
    return np.flatnonzero(bits[array.offset : array.offset + len(array)] == 0).tolist()


def _numbers_of(array: "pa.Array") -> np.ndarray:
    """The numbers of an array without gaps, in its own memory."""
    held = np.frombuffer(array.buffers()[1] or b"", dtype=array.type.to_pandas_dtype())
    return held[array.offset : array.offset + len(array)]


def _unpacked_numbers(array: "pa.Array") -> np.ndarray:
    import pyarrow as pa

    width = None
    if pa.types.is_fixed_size_list(array.type):
        width, array = array.type.list_size, array.flatten()
    if array.null_count or array.type not in (pa.int64(), pa.float64()):
        raise ValueError("expected whole or decimal numbers without gaps")
    numbers = _numbers_of(array)
    return numbers if width is None else numbers.reshape(-1, width)


# join -----------------------------------------------------------------------------------------------------------------


def joined_columns(some: Iterable[Mapping[Any, Any]]) -> dict[Any, Any]:
    """Columns that come in pieces, as one; texts and numbers are in a file without a name if they are many.

    Raises:
        ValueError: the pieces do not have the same columns, or those of one name are of several types.
    """
    made: dict[Any, list[Any] | ArrayWriter | DiskList] = {}
    forms: dict[Any, Any] = {}
    for piece in some:
        if made and piece.keys() != made.keys():
            raise ValueError("pieces with other columns")
        for key, values in piece.items():
            is_array = isinstance(values, np.ndarray) and (
                values.dtype.kind in "if" or values.dtype == np.dtype("<U10")
            )
            form = (values.dtype.kind, values.shape[1:]) if isinstance(values, np.ndarray) else list
            if forms.setdefault(key, form) != form:
                raise ValueError("pieces with columns of other types")
            if key not in made:
                made[key] = ArrayWriter() if is_array else DiskList() if _are_texts(values) else []
            column = made[key]
            if isinstance(column, ArrayWriter):
                column.add(values)
            elif isinstance(column, DiskList):
                column.extend(values)
            else:
                column.append(values)
    return {key: _joined(column) for key, column in made.items()}


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and isinstance(values[0], str)


def _joined(column: Any) -> Any:
    if isinstance(column, ArrayWriter):
        return column.array()
    if isinstance(column, DiskList):
        return settled(column)
    return np.concatenate(column) if isinstance(column[0], np.ndarray) else [*chain.from_iterable(column)]
