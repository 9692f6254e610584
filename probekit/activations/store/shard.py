"""One shard of a store and its record: written from tensors, and read back with every byte checked.

A shard is a safetensors file. Its name is the sha256 of its header followed by the sha256 of each tensor (32 bytes
each), in file order, so that every byte is hashed once and a single tensor can be checked without the others. The
record holds the content of the header and those checksums; offsets, file name and size follow from them.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.errors import StorageError
from probekit.files.durable import Buffer, matches, unseal
from probekit.files.remote.path import AnyPath
from probekit.machine.devices import DTYPES

CHUNK = 1 << 19  # bytes that are read, hashed and copied while they are in the processor's cache
_SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_SIZE = 1 << 40  # of one size of a tensor; larger ones would overflow sums of bytes
_RECORD = {
    "plan": str,
    "file": str,
    "n_bytes": int,
    "rows": [int],
    "tensors": {str: {"dtype": str, "shape": (int, int), "sha256": str}},
}


def repair_advice(path: AnyPath) -> str:
    """What to do about a store with broken shards, records or manifest."""
    return f"run: probekit repair {str(path)!a}"


@dataclass(frozen=True)
class TensorRecord:
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


@dataclass(frozen=True, eq=False)
class Record:
    """The content of one shard: rows of the task, and a tensor for each place, by its text, in file order."""

    rows: np.ndarray
    tensors: dict[str, TensorRecord]

    @cached_property
    def header(self) -> bytes:
        """The first bytes of the shard: the safetensors header with its length."""
        entries, end = {}, 0
        for name, x in self.tensors.items():
            dtype = _SAFETENSORS_NAMES[x.dtype]
            entries[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [end, end + x.n_bytes]}
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
        """The byte of the shard at which a tensor begins."""
        names = list(self.tensors)
        return len(self.header) + sum(self.tensors[sooner].n_bytes for sooner in names[: names.index(name)])


def load_record(path: AnyPath, plan_seal: str | None) -> tuple[Record, str]:
    """Read and check one record; also the checksum of its file. Without `plan_seal` a record of any plan is taken.

    Raises:
        StorageError: missing, damaged, of another plan, or inconsistent.
    """
    advice = repair_advice(path.parent.parent)
    body, seal = unseal(path, advice=advice)
    if matches(body, _RECORD) and plan_seal in (None, body["plan"]):
        tensors = {
            name: TensorRecord(x["dtype"], tuple(x["shape"]), x["sha256"]) for name, x in body["tensors"].items()
        }
        if all(map(_is_possible, tensors.values())) and _are_distinct(body["rows"]):
            record = Record(np.array(body["rows"], dtype=np.int64), tensors)
            if tensors and (record.file, record.n_bytes) == (body["file"], body["n_bytes"]):
                return record, seal
    raise StorageError(f"{str(path)!a} is not a record of this store; {advice}")


def _is_possible(x: TensorRecord) -> bool:
    sizes = all(0 <= n < _MAX_SIZE for n in x.shape)
    return sizes and x.dtype in _SAFETENSORS_NAMES and bool(_SHA256.fullmatch(x.sha256))


def _are_distinct(rows: list[int]) -> bool:
    return len(set(rows)) == len(rows) > 0 and 0 <= min(rows) <= max(rows) < _MAX_SIZE


def record_body(record: Record) -> dict[str, Any]:
    """The content of a record's file, but for the plan."""
    tensors = {name: asdict(x) for name, x in record.tensors.items()}
    return {"file": record.file, "n_bytes": record.n_bytes, "rows": record.rows, "tensors": tensors}


def record_of(rows: np.ndarray, tensors: dict[str, Tensor]) -> Record:
    """The record of these tensors, each [R, D]; every byte is hashed."""
    return Record(rows, {name: _described(x, hashlib.sha256(bytes_of(x)).hexdigest()) for name, x in tensors.items()})


def hashed_parts(rows: np.ndarray, tensors: dict[str, Tensor], record: list[Record]) -> Iterator[Buffer]:
    """The bytes of the shard of these tensors in order; each is hashed just before it is given, while it is in cache.

    With the last of them `record` gets the shard's record.
    """
    yield Record(rows, {name: _described(x, "") for name, x in tensors.items()}).header
    digests = {}
    for name, x in tensors.items():
        digest, data = hashlib.sha256(), bytes_of(x)
        for start in range(0, len(data), CHUNK):
            digest.update(data[start : start + CHUNK])
            yield data[start : start + CHUNK]
        digests[name] = digest.hexdigest()
    record.append(Record(rows, {name: _described(x, digests[name]) for name, x in tensors.items()}))


def _described(x: Tensor, sha256: str) -> TensorRecord:
    rows, width = x.shape
    return TensorRecord(str(x.dtype).removeprefix("torch."), (int(rows), int(width)), sha256)


def bytes_of(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return x.detach().flatten().view(torch.uint8).numpy().data
