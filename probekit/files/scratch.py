"""Lists and arrays with millions of entries, in files without a name rather than in memory.

A file has no name from the moment that it is made, so the system frees it when the process ends, however it ends: there
is nothing to remove after a kill -9. The files are in the folder for temporary ones, which TMPDIR names.

Lists below `IN_MEMORY` entries and arrays below `LEAST_BYTES` stay in memory.
"""

import ctypes
import json
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from probekit.errors import StorageError

IN_MEMORY = 16_384  # entries of a list, or rows of a task
LEAST_BYTES = 1 << 17  # of an array
PIECE = 4096  # entries that are encoded at once
_CODEC = ("utf-8", "surrogatepass")


class ScratchFile:
    """A file without a name that only grows."""

    def __init__(self) -> None:
        self._fd = -1  # opened when something is written
        self.size = 0

    def __del__(self, close: Any = os.close) -> None:  # as Python ends, `os` may be gone already
        if self._fd >= 0:
            close(self._fd)

    def write(self, data: Any) -> int:
        """Put some bytes at the end; where they begin."""
        begin, view = self.size, memoryview(data).cast("B")
        with _disk_errors():
            if self._fd < 0:
                with tempfile.TemporaryFile() as file:
                    self._fd = os.dup(file.fileno())
            while len(view):
                n = os.pwrite(self._fd, view, self.size)
                view, self.size = view[n:], self.size + n
        return begin

    def read(self, begin: int, n: int) -> bytes:
        """`n` bytes from `begin` on."""
        return os.pread(self._fd, n, begin)

    def mapped(self) -> "mmap.mmap | bytearray":
        """All bytes as memory that may be changed; changes stay in this process."""
        return mmap.mmap(self._fd, self.size, access=mmap.ACCESS_COPY) if self.size else bytearray()


class DiskList(Sequence[Any]):
    """A list that only grows: texts, and what else JSON can hold. Past `IN_MEMORY` entries they are in a file.

    Entries are new objects each time that they are read. A slice is a list.

    Args:
        values: the first entries.
        file: the file, which several lists may share; None makes one when it is needed.
    """

    def __init__(self, values: Iterable[Any] = (), file: ScratchFile | None = None):
        self._file = file
        self._pieces: list[tuple[int, bool]] = []  # where each begins in the file, and whether it holds only texts
        self._rest: list[Any] = []
        self._in_memory = IN_MEMORY
        self.extend(values)

    def append(self, value: Any) -> None:
        """Add an entry."""
        self._rest.append(value)
        if len(self._rest) >= self._in_memory:
            self._spill()

    def extend(self, values: Iterable[Any]) -> None:
        """Add entries."""
        for value in values:
            self.append(value)

    def _spill(self) -> None:
        self._file = self._file or ScratchFile()
        while len(self._rest) >= PIECE:
            piece, rest = self._rest[:PIECE], self._rest[PIECE:]
            are_texts = set(map(type, piece)) == {str}
            try:
                data = [(one if are_texts else json.dumps(one)).encode(*_CODEC) for one in piece]
            except TypeError:  # a date or bytes out of Parquet: such a list stays in memory
                self._rest, self._pieces, self._in_memory = [*self], [], 1 << 62
                return
            offsets = np.cumsum([0, *map(len, data)], dtype=np.int64)
            begin = self._file.write(offsets)
            self._file.write(b"".join(data))
            self._pieces.append((begin, are_texts))
            self._rest = rest
        self._in_memory = PIECE

    @property
    def is_on_disk(self) -> bool:
        """True if entries are in a file."""
        return bool(self._pieces)

    @property
    def are_texts(self) -> bool:
        """True if every entry is a text."""
        return all(texts for _, texts in self._pieces) and set(map(type, self._rest)) <= {str}

    def __len__(self) -> int:
        return len(self._pieces) * PIECE + len(self._rest)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self._range(start, stop) if step == 1 else [self[i] for i in range(start, stop, step)]
        row = int(key)
        row += len(self) if row < 0 else 0
        if not 0 <= row < len(self):
            raise IndexError("list index out of range")
        return self._range(row, row + 1)[0]

    def _range(self, start: int, stop: int) -> list[Any]:
        found: list[Any] = []
        on_disk = len(self._pieces) * PIECE
        while start < min(stop, on_disk):
            number, first = divmod(start, PIECE)
            n = min(stop - start, PIECE - first)
            found += self._decoded(number, first, n)
            start += n
        return found + self._rest[start - on_disk : stop - on_disk] if start < stop else found

    def _decoded(self, number: int, first: int, n: int) -> list[Any]:
        assert self._file is not None
        begin, are_texts = self._pieces[number]
        offsets = np.frombuffer(self._file.read(begin + 8 * first, 8 * (n + 1)), np.int64).tolist()
        data = self._file.read(begin + 8 * (PIECE + 1) + offsets[0], offsets[-1] - offsets[0])
        base = offsets[0]
        texts = [data[a - base : b - base].decode(*_CODEC) for a, b in pairwise(offsets)]
        return texts if are_texts else [json.loads(one) for one in texts]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), PIECE):
            yield from self._range(start, min(start + PIECE, len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | DiskList):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other] if isinstance(other, list | DiskList) else NotImplemented

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> Any:
        return list, ([*self],)  # a copy, or another process, does not share the file

    def __repr__(self) -> str:
        return f"<{len(self):,} entries, the first {ascii(self[:1])[1:-1]:.60}>" if len(self) else "[]"


def scratch_list(values: Iterable[Any]) -> Sequence[Any]:
    """A list of these values; a long one is on disk."""
    return settled(DiskList(values))


def settled(values: Sequence[Any]) -> Any:
    """A list that is on disk as it is, any other as a plain list."""
    is_done = isinstance(values, list) or (isinstance(values, DiskList) and values.is_on_disk)
    return values if is_done else [*values]


def take(values: Sequence[Any], rows: Any) -> Any:
    """The entries of these rows; those of a list on disk are again on disk, if they are many."""
    return scratch_list(picked(values, rows)) if isinstance(values, DiskList) else [values[i] for i in rows]


def picked(values: Sequence[Any], rows: Any) -> Iterator[Any]:
    """The entries of these rows, which a list on disk gives fastest in ascending order."""
    rows = np.asarray(rows)
    for some in pieces(len(rows), PIECE):
        own = rows[some]
        low, high = int(own.min()), int(own.max()) + 1
        is_near = low >= 0 and high - low <= 8 * PIECE
        part = values[low:high] if is_near else values
        yield from (part[i] for i in (own - low * is_near).tolist())


def give_back_memory() -> None:
    """Give freed memory back to the system where the C library has a call for it; glibc keeps much of it for itself."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def own_memory(n_bytes: int) -> mmap.mmap:
    """Bytes that are zero, and that the system has back as soon as nothing uses them.

    glibc returns large blocks at once only until the first of them is freed. From then on it keeps blocks of that size,
    up to 32 MB, for later use (M_MMAP_THRESHOLD in mallopt(3)), also where their pages lie between blocks in use.
    """
    return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class ArrayWriter:
    """An array that is made piece by piece, along its first axis."""

    def __init__(self) -> None:
        self._pieces: list[np.ndarray] = []
        self._n_bytes = 0
        self._file: ScratchFile | None = None
        self._form: tuple[np.dtype, tuple[int, ...]] = np.dtype(np.int64), ()

    def add(self, piece: np.ndarray) -> None:
        """Add the next entries; all pieces have one type."""
        self._form = piece.dtype, piece.shape[1:]
        self._n_bytes += piece.nbytes
        self._pieces.append(piece)
        if self._n_bytes >= LEAST_BYTES:
            self._file = self._file or ScratchFile()
            for one in self._pieces:
                self._file.write(np.ascontiguousarray(one).view(np.uint8) if one.size else b"")
            self._pieces = []

    def array(self) -> np.ndarray:
        """All entries; an array that may be written to."""
        dtype, shape = self._form
        if self._file is None:
            return np.concatenate(self._pieces) if self._pieces else np.empty((0, *shape), dtype)
        return np.frombuffer(self._file.mapped(), dtype).reshape(-1, *shape)


def on_disk(x: np.ndarray) -> np.ndarray:
    """The same array, in a file if it is large; it may be written to."""
    if x.nbytes < LEAST_BYTES or x.dtype.hasobject or is_mapped(x):
        return x
    writer = ArrayWriter()
    for rows in pieces(len(x)):
        writer.add(x[rows])
    return writer.array()


def is_mapped(x: np.ndarray) -> bool:
    """True if an array, or what it is a part of, is in a file."""
    base: Any = x
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap) or (isinstance(base, memoryview) and isinstance(base.obj, mmap.mmap))


def pieces(n: int, rows: int = 1 << 16) -> Iterator[slice]:
    """0..n in slices of at most `rows`."""
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Turn an error of the disk into one StorageError that says where the files are."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write temporary data to {tempfile.gettempdir()!a}: {error.strerror}; set TMPDIR to a folder with "
            "room for it"
        ) from error
