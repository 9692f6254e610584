"""One shard of a store and its record: written from tensors, and read back with every byte checked.

A shard is a safetensors file. Its name is the sha256 of its header followed by the sha256 of each tensor (32 bytes
each), in the order of the file, so that every byte is hashed once and a single tensor can be checked alone. The record
holds what the header says and those checksums: where each tensor stands, the name and the size of the file follow.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.devices import DTYPES
from probekit.durable import open_plain, unseal
from probekit.errors import StorageError

CHUNK = 1 << 19  # bytes that are read, hashed and put in place while they are in the processor's cache
_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # as safetensors calls them
_SHA256 = re.compile(r"[0-9a-f]{64}")


def mend(path: Path) -> str:
    """What to do about a store whose shards, records or manifest are broken."""
    return f"run: probekit repair {str(path)!a}"


@dataclass(frozen=True)
class TensorAt:
    """One tensor of a shard."""

    dtype: str
    shape: tuple[int, int]
    sha256: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.shape[1] * DTYPES[self.dtype].itemsize

    @property
    def n_bytes(self) -> int:
        """Bytes of all rows."""
        return self.shape[0] * self.row_bytes

    def is_sound(self) -> bool:
        """Whether such a tensor can be."""
        sizes = all(type(n) is int and 0 <= n < 1 << 40 for n in self.shape)
        return len(self.shape) == 2 and sizes and self.dtype in _NAMES and bool(_SHA256.fullmatch(self.sha256))


@dataclass(frozen=True, eq=False)
class Record:
    """What stands in one shard: rows of the task, and a tensor for each place, by `place_name`, in the file's order."""

    rows: np.ndarray
    tensors: dict[str, TensorAt]

    @classmethod
    def load(cls, path: Path, plan_seal: str | None) -> tuple["Record", str]:
        """Read and check one record; with it the checksum of its file. Without `plan_seal` it may be of any plan.

        Raises:
            StorageError: missing, damaged, of another plan, or naming what cannot be.
        """
        advice = mend(path.parent.parent)
        body, seal = unseal(path, advice=advice)
        try:
            tensors = {name: TensorAt(**{**at, "shape": tuple(at["shape"])}) for name, at in body["tensors"].items()}
            record = cls(whole_numbers(body["rows"]), tensors)
            if plan_seal in (None, body["plan"]) and record._is_sound() and record._head() == _head_of(body):
                return record, seal
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            pass
        raise StorageError(f"{str(path)!a} is no record of this store; {advice}")

    def body(self, plan_seal: str) -> dict[str, Any]:
        """The content of the record's file."""
        tensors = {name: {"dtype": x.dtype, "shape": x.shape, "sha256": x.sha256} for name, x in self.tensors.items()}
        return {"plan": plan_seal, **self._head(), "rows": self.rows, "tensors": tensors}

    def _head(self) -> dict[str, Any]:
        return {"file": self.file, "n_bytes": self.n_bytes}

    def _is_sound(self) -> bool:
        distinct = len(np.unique(self.rows)) == len(self.rows) > 0 and self.rows.min() >= 0
        return bool(distinct) and len(self.tensors) > 0 and all(x.is_sound() for x in self.tensors.values())

    @cached_property
    def header(self) -> bytes:
        """The first bytes of the shard, as safetensors wants them."""
        entries, end = {}, 0
        for name, x in self.tensors.items():
            entries[name] = {"dtype": _NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [end, end + x.n_bytes]}
            end += x.n_bytes
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    @cached_property
    def file(self) -> str:
        """The shard's name."""
        digests = b"".join(bytes.fromhex(x.sha256) for x in self.tensors.values())
        return f"{hashlib.sha256(self.header + digests).hexdigest()}.safetensors"

    @cached_property
    def n_bytes(self) -> int:
        """The shard's size."""
        return len(self.header) + sum(x.n_bytes for x in self.tensors.values())

    def offset(self, name: str) -> int:
        """Where a tensor begins in the shard."""
        names = list(self.tensors)
        return len(self.header) + sum(self.tensors[sooner].n_bytes for sooner in names[: names.index(name)])


def _head_of(body: dict[str, Any]) -> dict[str, Any]:
    return {"file": body["file"], "n_bytes": body["n_bytes"]}


def whole_numbers(values: Any) -> np.ndarray:
    """A list of ints as int64; ValueError for anything else."""
    array = np.array(values)
    if not isinstance(values, list) or array.ndim != 1 or (array.dtype.kind != "i" and len(array)):
        raise ValueError("a list of whole numbers")
    return array.astype(np.int64)


def record_of(rows: np.ndarray, tensors: dict[str, Tensor]) -> Record:
    """The record of these tensors, each [R, D]: every byte is hashed."""
    about = {}
    for name, x in tensors.items():
        sha256 = hashlib.sha256(bytes_of(x)).hexdigest()
        rows_width = (int(x.shape[0]), int(x.shape[1]))
        about[name] = TensorAt(str(x.dtype).removeprefix("torch."), rows_width, sha256)
    return Record(rows, about)


def header_of(rows: np.ndarray, tensors: dict[str, Tensor]) -> bytes:
    """The header alone, before anything is hashed."""
    shapes = {name: (str(x.dtype).removeprefix("torch."), tuple(x.shape)) for name, x in tensors.items()}
    return Record(rows, {name: TensorAt(*about, "") for name, about in shapes.items()}).header  # pyright: ignore


def bytes_of(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return x.detach().flatten().view(torch.uint8).numpy().data


@contextmanager
def open_shard(path: Path, record: Record) -> Iterator[Any]:
    """The shard of the store at `path`, open for reading, after its size is compared; raises StorageError."""
    shard = path / "shards" / record.file
    try:
        with open_plain(shard) as fd, open(fd, "rb", buffering=0, closefd=False) as file:
            size = file.seek(0, 2)
            if size != record.n_bytes:
                raise _damaged(path, record, f"{size} bytes instead of {record.n_bytes}")
            yield file
    except FileNotFoundError:
        raise StorageError(f"shard {str(shard)!a} is missing; {mend(path)}") from None


def _damaged(path: Path, record: Record, why: str) -> StorageError:
    return StorageError(f"shard {str(path / 'shards' / record.file)!a} is damaged: {why}; {mend(path)}")


def check_size(path: Path, record: Record) -> None:
    """Raise a StorageError unless the shard is a plain file of its size."""
    with open_shard(path, record):
        pass


def check_shard(path: Path, record: Record) -> None:
    """Raise a StorageError unless every byte of the shard is as it was written."""
    with open_shard(path, record) as file:
        file.seek(0)
        if file.read(len(record.header)) != record.header:
            raise _damaged(path, record, "its header is not the record's")
    for name in record.tensors:
        for _ in chunks(path, record, name):
            pass


def chunks(path: Path, record: Record, name: str) -> Iterator[tuple[int, np.ndarray]]:
    """One tensor of a shard as (first row, bytes uint8 [rows, bytes of a row]), each valid until the next is asked for.

    What came is not to be used before the last one has come: the checksum is compared then.

    Raises:
        StorageError: the shard is missing or damaged.
    """
    at, digest = record.tensors[name], hashlib.sha256()
    with open_shard(path, record) as file:
        file.seek(record.offset(name))
        step = max(1, CHUNK // max(1, at.row_bytes))
        buffer = np.empty((min(step, at.shape[0]), at.row_bytes), dtype=np.uint8)
        for first in range(0, at.shape[0] if at.row_bytes else 0, step):
            part = buffer[: at.shape[0] - first]
            if file.readinto(part) != part.nbytes:
                raise _damaged(path, record, f"{name} ends too soon")
            digest.update(part.data)
            yield first, part
    if digest.hexdigest() != at.sha256:
        raise _damaged(path, record, f"{name} does not match its checksum")


def read_tensor(path: Path, record: Record, name: str) -> Tensor:
    """One tensor of a shard, checked, without a look at the others."""
    at = record.tensors[name]
    values = np.empty((at.shape[0], at.row_bytes), dtype=np.uint8)
    for first, part in chunks(path, record, name):
        values[first : first + len(part)] = part
    return torch.from_numpy(values.reshape(-1)).view(DTYPES[at.dtype]).view(at.shape)
