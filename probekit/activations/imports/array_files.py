"""Arrays in .npy and .safetensors files of other programs: known from their headers, read in blocks of rows.

No header is believed: its length is bounded before it is read, and what it says must fill the file exactly. Nothing is
mapped and nothing is unpickled. Formats: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html and
https://github.com/huggingface/safetensors#format
"""

import hashlib
import math
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError, UsageError
from probekit.safetensors_header import HeaderError, check_size, read_header

LABELS = "labels"  # the key, or the file labels.npy, that holds labels instead of activations
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib")

SUFFIXES = (".npy", ".safetensors")
MAX_NPY_HEADER = 10_000  # as numpy bounds it
CHUNK = 8_000_000  # bytes, a multiple of every item's size
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bf16"}
TYPES |= {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1"}


@dataclass(frozen=True)
class Held:
    """One array of a file, as a header describes it.

    Attributes:
        file: where it stands.
        key: its name in a safetensors file; None in a .npy file.
        dtype: as numpy writes it ("<f4", ">f8"), or "bf16".
        shape: sizes of its axes.
        fortran: whether the first axis runs fastest.
        offset: the byte at which it begins.
    """

    file: Path
    key: str | None
    dtype: str
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @property
    def name(self) -> str:
        """The word that says what it holds: its key, or its file's name without the ending."""
        return self.file.name.removesuffix(self.file.suffix) if self.key is None else self.key

    @property
    def where(self) -> str:
        """Its file, and its key where it has one, for messages."""
        return ascii(self.file.name) if self.key is None else f"{self.key!a} of {self.file.name!a}"

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return 2 if self.dtype == "bf16" else np.dtype(self.dtype).itemsize

    @property
    def n_bytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.itemsize

    @property
    def type_name(self) -> str:
        """The type in words, such as "float32"."""
        return "bfloat16" if self.dtype == "bf16" else np.dtype(self.dtype).name

    def values(self, data: bytearray) -> Tensor:
        """These bytes as floating-point values, in the machine's own byte order."""
        if self.dtype == "bf16":
            return torch.frombuffer(data, dtype=torch.bfloat16)
        there = np.dtype(self.dtype)
        return torch.from_numpy(np.frombuffer(data, there).astype(there.newbyteorder("="), copy=False))

    def rows(self, axis: int, start: int, stop: int) -> Tensor:
        """The part from `start` to `stop` along one axis, all of the others.

        Raises:
            DataError: the file cannot be read, or ended early.
        """
        shape = list(self.shape[::-1] if self.fortran else self.shape)
        at = len(shape) - 1 - axis if self.fortran else axis
        inner = math.prod(shape[at + 1 :]) * self.itemsize
        length, period, outer = (stop - start) * inner, shape[at] * inner, math.prod(shape[:at])
        data = bytearray(outer * length)
        with _opened(self.file) as file:
            for i in range(outer):
                file.seek(self.offset + i * period + start * inner)
                _fill(file, memoryview(data)[i * length : (i + 1) * length], self.file)
        shape[at] = stop - start
        x = self.values(data).reshape(shape)
        return x.permute(*reversed(range(x.dim()))) if self.fortran else x

    def numbers(self) -> np.ndarray:
        """All of it as numpy holds it, for labels.

        Raises:
            DataError: the file cannot be read, or ended early.
        """
        data = bytearray(self.n_bytes)
        with _opened(self.file) as file:
            file.seek(self.offset)
            _fill(file, memoryview(data), self.file)
        return np.frombuffer(data, np.dtype(self.dtype)).reshape(self.shape, order="F" if self.fortran else "C")


def arrays_of(path: Path) -> list[Held]:
    """Every array of a .npy or .safetensors file, in the order in which they stand there.

    Raises:
        DataError: no regular file, damaged, cut short, longer than its header says, or a pickle.
    """
    try:
        about = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not stat.S_ISREG(about.st_mode):
        raise DataError(f"{str(path)!a} is no regular file; name files or a folder of files")
    with _opened(path) as file:
        return (_npy if path.suffix == ".npy" else _safetensors)(path, file)


def state_of(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written again.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        about = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return about.st_ino, about.st_size, about.st_mtime_ns


def scan(arrays: list[Held], look: Callable[[Held, Tensor], None], advance: Callable[[int], object]) -> str:
    """Read the file of these arrays (all that it holds) once, in order: its sha256; `look` sees their values in chunks.

    Raises:
        DataError: the file cannot be read, or ended early; and what `look` raises.
    """
    digest, path = hashlib.sha256(), arrays[0].file
    with _opened(path) as file:
        head = bytearray(min(array.offset for array in arrays))
        _fill(file, memoryview(head), path)
        digest.update(head)
        for array in arrays:
            for size in _chunks(array.n_bytes):
                data = bytearray(size)
                _fill(file, memoryview(data), path)
                digest.update(data)
                look(array, array.values(data))
                advance(size)
    return digest.hexdigest()


def _chunks(n_bytes: int) -> Iterator[int]:
    for start in range(0, n_bytes, CHUNK):
        yield min(CHUNK, n_bytes - start)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file to read; every OSError is a DataError that names it."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error


def _fill(file: BinaryIO, data: memoryview, path: Path) -> None:
    if file.readinto(data) != len(data):  # pyright: ignore[reportAttributeAccessIssue]
        raise DataError(f"{str(path)!a} ended while it was read; leave it alone and run the same command again")


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{str(path)!a} cannot be read: {error.strerror}")


def _npy(path: Path, file: BinaryIO) -> list[Held]:
    try:
        version = np.lib.format.read_magic(file)
        if version not in _NPY_HEADERS:
            raise ValueError(f"format version {version}")
        _check_npy_header(file, 2 if version == (1, 0) else 4)
        shape, fortran, dtype = _NPY_HEADERS[version](file)
        if any(n < 0 for n in shape) or not dtype.itemsize:
            raise ValueError(f"shape {shape} of {dtype}")
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError) as error:
        raise _damaged(path, (str(error).splitlines() or [""])[0]) from error
    if dtype.hasobject:
        raise DataError(
            f"{str(path)!a} holds Python objects, a pickle, which is never read (allow_pickle=False); "
            "save numbers: np.save(path, np.stack(rows).astype(np.float32))"
        )
    array = Held(path, None, dtype.str, shape, fortran, file.tell())
    try:
        check_size(array.offset + array.n_bytes, path.stat().st_size)
    except HeaderError as error:
        raise _damaged(path, str(error)) from error
    return [array]


def _check_npy_header(file: BinaryIO, width: int) -> None:
    """Numpy reads the header before it looks at its length, which may be 4 GB."""
    length = int.from_bytes(file.read(width), "little")
    if length > MAX_NPY_HEADER:
        raise ValueError(f"its header claims {length:,} bytes")
    file.seek(-width, 1)


_NPY_HEADERS: dict[tuple[int, int], Callable[[BinaryIO], tuple[tuple[int, ...], bool, np.dtype]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _safetensors(path: Path, file: BinaryIO) -> list[Held]:
    try:
        tensors = read_header(file).tensors
        for key, entry in tensors.items():
            if entry.dtype not in TYPES:
                raise HeaderError(f"{key} is {entry.dtype}, which is not supported; save it as F32, F16 or BF16")
    except HeaderError as error:
        raise _damaged(path, str(error)) from error
    return [Held(path, key, TYPES[x.dtype], x.shape, False, x.offset) for key, x in tensors.items()]


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{str(path)!a} is damaged or no {path.suffix} file: {ascii(why)[1:-1]}; save it again")


def find_files(source: Path, labels: Path | None) -> tuple[list[Path], list[str]]:
    """The files of arrays in natural order, and the names of what else is there."""
    if not source.exists():
        raise UsageError(f"no file or folder {str(source)!a}")
    try:
        found = [source] if not source.is_dir() else sorted(source.iterdir(), key=_natural)
    except OSError as error:
        raise DataError(f"{str(source)!a} cannot be read: {error.strerror}") from error
    found = [path for path in found if not path.name.startswith(".") and not _same(path, labels)]
    for path in found:
        _refuse_pickle(path)
    files = [path for path in found if path.suffix in SUFFIXES]
    aside = [path.name for path in found if path not in files]
    if not [path for path in files if path.name != f"{LABELS}.npy"]:
        if not source.is_dir():
            raise DataError(f"{str(source)!a} is no .npy or .safetensors file, nor a folder of them")
        there = ", ".join(map(ascii, aside[:8])) or "nothing"
        raise DataError(f"{str(source)!a} has no activations in .npy or .safetensors files, but {there}")
    return files, aside


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _same(path: Path, labels: Path | None) -> bool:
    return labels is not None and labels.exists() and path.exists() and path.samefile(labels)


def _refuse_pickle(path: Path) -> None:
    if path.suffix.lower() in PICKLES:
        raise DataError(
            f"{str(path)!a} is a pickle, which can run code and is never read; convert it where you trust it: "
            "x = torch.load(path, weights_only=True), then np.save('resid_pre.3.npy', x.float().numpy()) for a tensor, "
            "safetensors.torch.save_file(x, 'acts.safetensors') for a dict of them"
        )
    if path.suffix.lower() == ".npz":
        raise DataError(
            f"{str(path)!a} is an archive; write its arrays one by one: "
            "for name, x in np.load(path).items(): np.save(name + '.npy', x)"
        )
