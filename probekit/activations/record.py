"""One shard of a store and its record: written from tensors, and read back with every byte checked."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from probekit.activations.sets import DTYPES
from probekit.durable import refused, unseal
from probekit.errors import StorageError

AGAIN = "remove the store and extract again"
_SHARD_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")


@dataclass(frozen=True)
class TensorAt:
    """Where one tensor stands in a shard."""

    dtype: str
    shape: tuple[int, int]
    offset: int
    n_bytes: int
    sha256: str


@dataclass(frozen=True)
class Record:
    """What stands in one shard: rows of the task, and a tensor for each place, by `place_name`."""

    file: str
    sha256: str
    n_bytes: int
    rows: np.ndarray
    tensors: dict[str, TensorAt]
    seal: str

    @classmethod
    def load(cls, path: Path, plan_seal: str) -> "Record":
        """Read and check one record.

        Raises:
            StorageError: missing, damaged, of another plan, or naming what cannot be.
        """
        body, checksum = unseal(path)
        try:
            rows = np.array(body["rows"], dtype=np.int64)
            tensors = {name: TensorAt(**{**at, "shape": tuple(at["shape"])}) for name, at in body["tensors"].items()}
            record = cls(body["file"], body["sha256"], body["n_bytes"], rows, tensors, checksum)
            if body["plan"] == plan_seal and record._is_sound():
                return record
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            pass
        raise StorageError(f"{str(path)!a} is no record of this store")

    def _is_sound(self) -> bool:
        named = bool(_SHARD_NAME.fullmatch(self.file)) and self.file == f"{self.sha256}.safetensors"
        return named and self.rows.ndim == 1 and all(self._fits(at) for at in self.tensors.values())

    def _fits(self, at: TensorAt) -> bool:
        rows, width = at.shape
        inside = at.offset >= 0 and at.offset + at.n_bytes <= self.n_bytes
        return inside and rows == len(self.rows) and at.n_bytes == rows * width * DTYPES[at.dtype].itemsize


def pack(tensors: dict[str, Tensor]) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """The bytes of a safetensors file, and where each tensor stands in it."""
    data = safetensors.torch.save({name: x.contiguous() for name, x in tensors.items()})
    start = 8 + int.from_bytes(data[:8], "little")
    places = {}
    for name, entry in json.loads(data[8:start]).items():
        first, last = entry["data_offsets"]
        places[name] = {
            "dtype": str(tensors[name].dtype).removeprefix("torch."),
            "shape": entry["shape"],
            "offset": start + first,
            "n_bytes": last - first,
            "sha256": hashlib.sha256(memoryview(data)[start + first : start + last]).hexdigest(),
        }
    return data, places


def check_size(path: Path, record: Record) -> Path:
    """The shard's file in the store at `path`, or a StorageError when it is missing or of another size."""
    shard = path / "shards" / record.file
    try:
        size = shard.stat().st_size
    except FileNotFoundError:
        raise StorageError(f"shard {str(shard)!a} is missing; {AGAIN}") from None
    except OSError as error:
        raise refused(shard, error) from error
    if size != record.n_bytes:
        raise StorageError(f"shard {str(shard)!a} is damaged: {size} bytes instead of {record.n_bytes}; {AGAIN}")
    return shard


def check_shard(path: Path, record: Record) -> None:
    """Raise a StorageError unless every byte of the shard is as it was written."""
    shard = check_size(path, record)
    try:
        with shard.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise refused(shard, error) from error
    if digest != record.sha256:
        raise StorageError(f"shard {str(shard)!a} is damaged: its content does not match its checksum; {AGAIN}")


def read_tensor(path: Path, record: Record, name: str) -> Tensor:
    """One tensor of a shard, checked, without a look at the others."""
    shard, at = check_size(path, record), record.tensors[name]
    data = bytearray(at.n_bytes)
    try:
        with shard.open("rb") as file:
            file.seek(at.offset)
            n = file.readinto(data)
    except OSError as error:
        raise refused(shard, error) from error
    if n != at.n_bytes or hashlib.sha256(data).hexdigest() != at.sha256:
        raise StorageError(f"shard {str(shard)!a} is damaged: {name} does not match its checksum; {AGAIN}")
    return torch.frombuffer(data, dtype=DTYPES[at.dtype]).reshape(at.shape)
