"""Read the tensors of shards. Bytes are compared with the recorded checksum as they are read.

Reading a place again, as each label set and each probe does, need not hash it again: a tensor whose bytes this process
has compared once is not hashed while its file has the same size, dates and inode.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.store.shard import CHUNK, Record, repair_advice
from probekit.errors import StorageError
from probekit.files.durable import open_plain
from probekit.files.remote.path import AnyPath, RemotePath
from probekit.files.remote.together import read_ranges
from probekit.machine.devices import DTYPES

ALWAYS, ONCE, SIZE = "always", "hash", "size"  # hash whenever bytes are read; once in a process; only compare sizes
_SETTLED = 2_000_000_000  # ns after which a change of a file has another date than the last: some disks count seconds
RANGE = 8 << 20  # bytes of one request to an object store
_MOST_KNOWN = 1 << 20  # tensors to remember, some 200 MB
_intact: set[tuple[int | str, ...]] = set()


@contextmanager
def open_shard(path: Path, record: Record) -> Iterator[Any]:
    """The shard of the store at `path` on disk, open for reading, its size checked; raises StorageError."""
    shard = path / "shards" / record.file
    try:
        with open_plain(shard) as buffered:
            file = buffered.raw
            size = file.seek(0, 2)
            if size != record.n_bytes:
                raise _damaged(path, record, f"{size} bytes instead of {record.n_bytes}")
            yield file
    except FileNotFoundError:
        raise StorageError(f"shard {str(shard)!a} is missing; {repair_advice(path)}") from None


def _damaged(path: AnyPath, record: Record, why: str) -> StorageError:
    return StorageError(f"shard {str(path / 'shards' / record.file)!a} is damaged: {why}; {repair_advice(path)}")


def check_shard_sizes(path: AnyPath, records: Iterable[Record]) -> None:
    """Raise a StorageError unless each shard is a regular file, or an object, of the recorded size."""
    if isinstance(path, RemotePath):  # one listing says the sizes of a thousand
        sizes = {one.path.name: one.st_size for one in (path / "shards").entries()}
        for record in records:
            _check_object_size(path, record, sizes.get(record.file))
        return
    for record in records:
        check_shard_size(path, record)


def check_shard_size(path: AnyPath, record: Record) -> None:
    """Raise a StorageError unless the shard is a regular file, or an object, of the recorded size."""
    if not isinstance(path, RemotePath):
        with open_shard(path, record):
            return
    try:
        size = (path / "shards" / record.file).stat().st_size
    except FileNotFoundError:
        size = None
    _check_object_size(path, record, size)


def _check_object_size(path: RemotePath, record: Record, size: int | None) -> None:
    if size is None:
        raise StorageError(f"shard {str(path / 'shards' / record.file)!a} is missing; {repair_advice(path)}")
    if size != record.n_bytes:
        raise _damaged(path, record, f"{size} bytes instead of {record.n_bytes}")


def check_shard(path: AnyPath, record: Record) -> None:
    """Raise a StorageError unless every byte of the shard is as it was written."""
    if _header(path, record) != record.header:
        raise _damaged(path, record, "its header is not the record's")
    for name in record.tensors:
        for _ in chunks(path, record, name):
            pass


def _header(path: AnyPath, record: Record) -> bytes:
    """The first bytes of a shard, whose size is checked."""
    if not isinstance(path, RemotePath):
        with open_shard(path, record) as file:
            file.seek(0)
            return file.read(len(record.header))
    check_shard_size(path, record)
    return (path / "shards" / record.file).read_bytes(0, len(record.header))


def prefetch(path: AnyPath, record: Record, name: str) -> None:
    """Ask the system to read one tensor of a shard soon, where it and the file system take such requests."""
    if isinstance(path, Path) and hasattr(os, "posix_fadvise"):
        with open_shard(path, record) as file, contextlib.suppress(OSError):
            wanted = record.offset(name), record.tensors[name].n_bytes
            os.posix_fadvise(file.fileno(), *wanted, os.POSIX_FADV_WILLNEED)


def chunks(path: AnyPath, record: Record, name: str, check: str = ALWAYS) -> Iterator[tuple[int, np.ndarray]]:
    """One tensor of a shard as (first row, bytes uint8 [rows, row_bytes]), each valid until the next is requested.

    The checksum is compared after the last chunk: use the bytes only when the iteration has ended.

    Args:
        path: the store.
        record: of the shard.
        name: of the tensor.
        check: ALWAYS, ONCE or SIZE.

    Raises:
        StorageError: the shard is missing or damaged.
    """
    if isinstance(path, RemotePath):
        yield from _chunks_of_object(path, record, name, check)
        return
    x, digest = record.tensors[name], hashlib.sha256()
    with open_shard(path, record) as file:
        known = (*(state := _state(file)), record.file, name)
        hashed = check == ALWAYS or (check == ONCE and known not in _intact)
        file.seek(record.offset(name))
        step = max(1, CHUNK // max(1, x.row_bytes))
        buffer = np.empty((min(step, x.shape[0]), x.row_bytes), dtype=np.uint8)
        for first in range(0, x.shape[0] if x.row_bytes else 0, step):
            part = buffer[: x.shape[0] - first]
            if file.readinto(part) != part.nbytes:
                raise _damaged(path, record, f"{name} ends too soon")
            if hashed:
                digest.update(part.data)
            yield first, part
        if hashed and digest.hexdigest() != x.sha256:
            raise _damaged(path, record, f"{name} does not match its checksum")
        if hashed and state and _state(file) == state:
            if len(_intact) >= _MOST_KNOWN:
                _intact.clear()
            _intact.add(known)


def _chunks_of_object(path: RemotePath, record: Record, name: str, check: str) -> Iterator[tuple[int, np.ndarray]]:
    """`chunks` of a shard in an object store: ranges of some megabytes, several on their way at once.

    What comes over a network is hashed each time, unless only sizes are checked.
    """
    x, digest, shard = record.tensors[name], hashlib.sha256(), path / "shards" / record.file
    step, begin = max(1, RANGE // max(1, x.row_bytes)), record.offset(name)
    firsts = range(0, x.shape[0] if x.row_bytes else 0, step)
    bounds = [(begin + first * x.row_bytes, begin + min(first + step, x.shape[0]) * x.row_bytes) for first in firsts]
    try:
        for first, (start, end), data in zip(firsts, bounds, read_ranges(shard, bounds), strict=True):
            if len(data) != end - start:
                raise _damaged(path, record, f"{name} ends too soon")
            if check != SIZE:
                digest.update(data)
            yield first, np.frombuffer(data, dtype=np.uint8).reshape(-1, x.row_bytes)
    except FileNotFoundError:
        raise StorageError(f"shard {str(shard)!a} is missing; {repair_advice(path)}") from None
    if check != SIZE and digest.hexdigest() != x.sha256:
        raise _damaged(path, record, f"{name} does not match its checksum")


def _state(file: Any) -> tuple[int, ...]:
    """What changes when a file is written to; empty if it was written to just now, so that its date may stay."""
    about = os.fstat(file.fileno())
    if time.time_ns() - max(about.st_mtime_ns, about.st_ctime_ns) < _SETTLED:
        return ()
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def read_tensor(path: AnyPath, record: Record, name: str, check: str = ALWAYS) -> Tensor:
    """One tensor of a shard; the others are not read. `check` and errors as in `chunks`."""
    x = record.tensors[name]
    values = np.empty((x.shape[0], x.row_bytes), dtype=np.uint8)
    for first, part in chunks(path, record, name, check):  # faster than reading into memory that is new
        values[first : first + len(part)] = part
    return torch.from_numpy(values.reshape(-1)).view(DTYPES[x.dtype]).view(x.shape)
