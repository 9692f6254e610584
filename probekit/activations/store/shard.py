"""One shard of a store and its record: written from tensors, and read back with every byte checked.

A shard is a safetensors file. Its name is the sha256 of its header followed by the sha256 of each tensor (32 bytes
each), in file order, so that every byte is hashed once and a single tensor can be checked without the others. The
record holds the content of the header and those checksums; offsets, file name and size follow from them.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from probekit.errors import StorageError
from probekit.files.durable import Buffer, unseal
from probekit.files.records import has_form
from probekit.files.remote.path import AnyPath
from probekit.machine.devices import DTYPES

SHARDS = "shards"
CHUNK = 1 << 19  # bytes that are read, hashed and copied while they are in the processor's cache
TYPES = {**DTYPES, "float64": torch.float64, "int32": torch.int32}  # those of sums, and of the numbers of latents
_SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int32": "I32"}
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_SIZE = 1 << 40  # of one size of a tensor; larger ones would overflow sums of bytes


def repair_advice(path: AnyPath) -> str:
    """What to do about a store with broken shards, records or manifest."""
    return f"run: probekit repair {str(path)!a}"


def count_again(record: AnyPath) -> str:
    """What to do about broken sums that a record names."""
    return f"remove {str(record)!a}, and run the same command again"


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of a shard."""

    dtype: str
    shape: tuple[int, int]
    sha256: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.shape[1] * TYPES[self.dtype].itemsize

    @property
    def n_bytes(self) -> int:
        """Bytes of all rows."""
        return self.shape[0] * self.row_bytes


class RecordFile(TypedDict):
    """The JSON of a record."""

    plan: str
    file: str
    n_bytes: int
    rows: list[int]
    tensors: dict[str, TensorRecord]


@dataclass(frozen=True, eq=False)
class Record:
    """The content of one shard: rows of the task, and a tensor for each place, by its text, in file order.

    The shard is in `folder` of the store, "latents/NAME" for one. Sums are counted again if the record `piece` is gone.
    """

    rows: np.ndarray
    tensors: dict[str, TensorRecord]
    folder: str = SHARDS
    piece: str = ""

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
    if has_form(RecordFile, body) and plan_seal in (None, body["plan"]):
        record = record_in(body)
        if record is not None:
            return record, seal
    raise StorageError(f"{str(path)!a} is not a record of this store; {advice}")


def record_in(body: dict[str, Any], folder: str = SHARDS, piece: str = "") -> Record | None:
    """The record that a body of the form `RecordFile` holds, of a shard in `folder`; None if it is inconsistent."""
    tensors = {name: TensorRecord(x["dtype"], tuple(x["shape"]), x["sha256"]) for name, x in body["tensors"].items()}
    if all(map(_is_possible, tensors.values())) and _are_distinct(body["rows"]):
        record = Record(np.array(body["rows"], dtype=np.int64), tensors, folder, piece)
        if tensors and (record.file, record.n_bytes) == (body["file"], body["n_bytes"]):
            return record
    return None


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


def hashed_parts(
    rows: np.ndarray, described: Mapping[str, TensorRecord], tensors: Iterable[Tensor], record: list[Record]
) -> Iterator[Buffer]:
    """The bytes of a shard in order; each is hashed just before it is given, while it is in cache.

    Args:
        rows: of the task.
        described: the form of each tensor, whatever its checksum.
        tensors: their values, each taken when those before are written.
        record: gets the shard's record with the last bytes.
    """
    yield Record(rows, dict(described)).header
    found = {}
    for (name, form), x in zip(described.items(), tensors, strict=True):
        digest, data = hashlib.sha256(), bytes_of(x)
        for start in range(0, len(data), CHUNK):
            digest.update(data[start : start + CHUNK])
            yield data[start : start + CHUNK]
        found[name] = replace(form, sha256=digest.hexdigest())
    record.append(Record(rows, found))


def forms_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorRecord]:
    """The type and shape of each tensor, without a checksum."""
    return {name: _described(x, "") for name, x in tensors.items()}


def _described(x: Tensor, sha256: str) -> TensorRecord:
    rows, width = x.shape
    return TensorRecord(str(x.dtype).removeprefix("torch."), (int(rows), int(width)), sha256)


def bytes_of(x: Tensor) -> memoryview:
    """The memory of a contiguous tensor, or of its copy in host memory."""
    return x.detach().cpu().flatten().view(torch.uint8).numpy().data
