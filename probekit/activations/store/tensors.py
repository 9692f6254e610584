"""Read the tensors of shards. Bytes are compared with the recorded checksum as they are read.

Reading a place again, as each label set and each probe does, need not hash it again: a tensor whose bytes this process
has compared once is not hashed while its file has the same size, dates and inode (`OpenFile.state`).
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.store.shard import SHARDS, TYPES, Record, count_again, repair_advice
from probekit.errors import StorageError
from probekit.files.durable import open_plain, sizes_of
from probekit.files.remote.path import AnyPath

ALWAYS, ONCE, SIZE = "always", "hash", "size"  # hash whenever bytes are read; once in a process; only compare sizes
_MOST_KNOWN = 1 << 20  # tensors to remember, some 200 MB
_intact: set[tuple[int | str, ...]] = set()


@contextmanager
def _open_shard(path: AnyPath, record: Record) -> Iterator[Any]:
    """The shard of the store at `path`, open for reading; raises StorageError."""
    try:
        with open_plain(path / record.folder / record.file) as file:
            _check_size(path, record, record.n_bytes if file.size is None else file.size)
            yield file
    except FileNotFoundError:
        raise _missing(path, record) from None


def _missing(path: AnyPath, record: Record) -> StorageError:
    return StorageError(f"shard {str(path / record.folder / record.file)!a} is missing; {_advice(path, record)}")


def _damaged(path: AnyPath, record: Record, why: str) -> StorageError:
    file = path / record.folder / record.file
    return StorageError(f"shard {str(file)!a} is damaged: {why}; {_advice(path, record)}")


def _advice(path: AnyPath, record: Record) -> str:
    """What to do about a broken shard; one beside those of the store is of sums, which are counted again."""
    if record.folder == SHARDS:
        return repair_advice(path)
    return count_again(path / record.folder / f"{record.piece}.json")


def _check_size(path: AnyPath, record: Record, size: int | None) -> None:
    if size is None:
        raise _missing(path, record)
    if size != record.n_bytes:
        raise _damaged(path, record, f"{size} bytes instead of {record.n_bytes}")


def check_shard_sizes(path: AnyPath, records: Iterable[Record]) -> None:
    """Raise a StorageError unless each shard is a regular file, or an object, of the recorded size."""
    records = list(records)
    for record, size in zip(records, sizes_of([path / one.folder / one.file for one in records]), strict=True):
        _check_size(path, record, size)


def check_shard(path: AnyPath, record: Record, check: str = ALWAYS) -> None:
    """Raise a StorageError unless every byte of the shard is as it was written; with SIZE, unless its size is."""
    check_shard_sizes(path, [record])
    if check == SIZE:
        return
    check_header(path, record)
    for name in record.tensors:
        for _ in chunks(path, record, name):
            pass


def check_header(path: AnyPath, record: Record) -> None:
    """Raise a StorageError unless the shard has the recorded size and header."""
    with _open_shard(path, record) as file:
        if file.read(0, len(record.header)) != record.header:
            raise _damaged(path, record, "its header is not the record's")


def prefetch(path: AnyPath, record: Record, name: str) -> None:
    """Ask the system to read one tensor of a shard soon, where it and the file system take such requests."""
    with _open_shard(path, record) as file:
        file.expect(record.offset(name), record.tensors[name].n_bytes)


def chunks(path: AnyPath, record: Record, name: str, check: str = ALWAYS) -> Iterator[tuple[int, np.ndarray]]:
    """One tensor of a shard as (first row, bytes uint8 [rows, row_bytes]), each valid until the next is requested.

    The checksum is compared after the last chunk: use the bytes only when the iteration has ended. What comes over a
    network is hashed each time, unless only sizes are checked (`check` is ALWAYS, ONCE or SIZE).

    Raises:
        StorageError: the shard is missing or damaged.
    """
    x, digest, begin = record.tensors[name], hashlib.sha256(), record.offset(name)
    with _open_shard(path, record) as file:
        known = (*(state := file.state()), record.file, name)
        hashed = check == ALWAYS or (check == ONCE and known not in _intact)
        step = max(1, file.step // max(1, x.row_bytes))
        firsts = range(0, x.shape[0] if x.row_bytes else 0, step)
        bounds = [
            (begin + first * x.row_bytes, begin + min(first + step, x.shape[0]) * x.row_bytes) for first in firsts
        ]
        for first, (start, end), data in zip(firsts, bounds, file.ranges(bounds), strict=True):
            if len(data) != end - start:
                raise _damaged(path, record, f"{name} ends too soon")
            if hashed:
                digest.update(data)
            yield first, np.frombuffer(data, dtype=np.uint8).reshape(-1, x.row_bytes)
        if hashed and digest.hexdigest() != x.sha256:
            raise _damaged(path, record, f"{name} does not match its checksum")
        if hashed and state and file.state() == state:
            if len(_intact) >= _MOST_KNOWN:
                _intact.clear()
            _intact.add(known)


def read_tensor(path: AnyPath, record: Record, name: str, check: str = ALWAYS) -> Tensor:
    """One tensor of a shard; the others are not read. `check` and errors as in `chunks`."""
    x = record.tensors[name]
    values = np.empty((x.shape[0], x.row_bytes), dtype=np.uint8)
    for first, part in chunks(path, record, name, check):  # faster than reading into memory that is new
        values[first : first + len(part)] = part
    return torch.from_numpy(values.reshape(-1)).view(TYPES[x.dtype]).view(x.shape)
