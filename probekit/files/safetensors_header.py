"""The header of a safetensors file, checked before any tensor is loaded.

A header is input like any other: its length is bounded before it is read, no name may appear twice (the library takes
the last one), and the tensors must fill the file exactly, without gaps or overlaps.
The format: https://github.com/huggingface/safetensors#format
"""

import math
from dataclasses import dataclass
from typing import Any, BinaryIO

from probekit.files.records import parse_record

MAX_HEADER = 10_000_000  # bytes; the header of GPT-2 XL, one file of 580 tensors, has 60,000
MAX_SIZE = 1 << 63  # of a shape or an offset; numbers of thousands of digits cannot even be shown
MAX_AXES = 64  # as in numpy; the product of a million sizes would take minutes
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "BOOL": 1} | {
    f"{kind}{bits}": bits // 8 for kind in "IU" for bits in (8, 16, 32, 64)
}


class HeaderError(ValueError):
    """The header cannot be used; the message says why in a clause."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor as the header describes it.

    Attributes:
        dtype: as safetensors writes it, such as "F32"; possibly a type that is not in `ITEM_BYTES`.
        shape: sizes of its axes.
        offset: byte of the file at which its values begin.
        n_bytes: bytes of its values.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class Header:
    """Tensors by key, in file order, and the metadata."""

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]


def read_header(file: BinaryIO) -> Header:
    """The header of an open safetensors file, which is read from its beginning.

    Raises:
        HeaderError: the header is damaged or too long, or does not describe this file.
        OSError: the file cannot be read.
    """
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER):
        raise HeaderError(f"its header claims {length:,} bytes, the file has {size:,}")
    try:
        entries = parse_record(file.read(length))
        metadata = entries.pop("__metadata__", None) or {}
        tensors = {key: _entry(key, entry, 8 + length) for key, entry in entries.items()}
    except HeaderError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HeaderError(str(error)) from None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HeaderError("its metadata is not a mapping from names to text")
    return Header(_in_file_order(tensors, 8 + length, size), metadata)


def check_file_size(expected: int, size: int) -> None:
    """Raise a HeaderError unless a file has exactly the `expected` bytes."""
    if size < expected:
        raise HeaderError(f"it is cut short, {size:,} bytes instead of {expected:,}")
    if size > expected:
        raise HeaderError(f"it has {size:,} bytes, its header describes {expected:,}")


def _entry(key: str, entry: dict[str, Any], begin: int) -> TensorEntry:
    first, last = entry["data_offsets"]
    dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
    if (
        len(shape) > MAX_AXES
        or not all(type(n) is int and 0 <= n < MAX_SIZE for n in (first, last, *shape))
        or first > last
    ):
        raise HeaderError(f"{key} has invalid offsets or an invalid shape")
    n_bytes = last - first
    if dtype in ITEM_BYTES and (expected := math.prod(shape) * ITEM_BYTES[dtype]) != n_bytes:
        raise HeaderError(f"{key} needs {expected:,} bytes, its offsets leave {n_bytes:,}")
    return TensorEntry(dtype, shape, begin + first, n_bytes)


def _in_file_order(tensors: dict[str, TensorEntry], begin: int, size: int) -> dict[str, TensorEntry]:
    """The tensors as they follow one another; together they must fill the file."""
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].n_bytes)))
    for key, entry in ordered.items():
        if entry.offset != begin:
            raise HeaderError(f"{key} begins at byte {entry.offset:,}, expected {begin:,}")
        begin += entry.n_bytes
    check_file_size(begin, size)
    return ordered
