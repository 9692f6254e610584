"""Arrays in .npy and .safetensors files of other programs: described by their headers, read in blocks of rows.

Headers are checked before they are used: their length is bounded, and the arrays must fill the file exactly. Files are
never mapped and never unpickled.
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
https://github.com/huggingface/safetensors#format
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.files.plain_files import open_regular
from probekit.files.safetensors_header import MAX_AXES, MAX_SIZE, HeaderError, check_file_size, read_header
from probekit.options.check import check_there
from probekit.text import by_numbers, listed

LABELS = "labels"  # key of a tensor, or name of a .npy file, that holds labels instead of activations
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib")

SUFFIXES = (".npy", ".safetensors")
MAX_NPY_HEADER = 10_000  # numpy's own limit
CHUNK = 8_000_000  # bytes; a multiple of every item size
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bf16"}
TYPES |= {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1"}


@dataclass(frozen=True)
class FileArray:
    """One array of a file, as the header describes it.

    Attributes:
        file: its file.
        key: its name in a safetensors file; None in a .npy file.
        dtype: as numpy writes it ("<f4", ">f8"), or "bf16".
        shape: sizes of its axes.
        fortran: True if the first axis varies fastest.
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
        """Its key, or its file's name without the suffix."""
        return self.file.name.removesuffix(self.file.suffix) if self.key is None else self.key

    @property
    def where(self) -> str:
        """Its file, and its key if it has one, for messages."""
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


def read_rows(array: FileArray, axis: int, start: int, stop: int) -> Tensor:
    """The part of an array from `start` to `stop` along one axis; the other axes complete.

    Raises:
        DataError: the file cannot be read, or ended early.
    """
    shape = list(array.shape[::-1] if array.fortran else array.shape)
    at = len(shape) - 1 - axis if array.fortran else axis
    inner = math.prod(shape[at + 1 :]) * array.itemsize
    length, period, outer = (stop - start) * inner, shape[at] * inner, math.prod(shape[:at])
    data = bytearray(outer * length)
    with _opened(array.file) as file:
        for i in range(outer):
            file.seek(array.offset + i * period + start * inner)
            _fill(file, memoryview(data)[i * length : (i + 1) * length], array.file)
    shape[at] = stop - start
    x = _values(array, data).reshape(shape)
    return x.permute(*reversed(range(x.dim()))) if array.fortran else x


def read_labels(array: FileArray) -> np.ndarray:
    """The values of an array of labels, [N].

    Raises:
        DataError: not one axis of numbers or texts; the file cannot be read, or ended early.
    """
    if len(array.shape) != 1 or array.dtype == "bf16" or np.dtype(array.dtype).kind not in "biufU":
        what = f"{list(array.shape)} of {array.type_name}"
        raise DataError(f"{array.where} must hold labels [N], numbers or texts; got {what}")
    data = bytearray(array.n_bytes)
    with _opened(array.file) as file:
        file.seek(array.offset)
        _fill(file, memoryview(data), array.file)
    return np.frombuffer(data, np.dtype(array.dtype))


def _values(array: FileArray, data: bytearray) -> Tensor:
    """These bytes of an array as floating-point values, in the machine's byte order."""
    if array.dtype == "bf16":
        return torch.frombuffer(data, dtype=torch.bfloat16)
    stored = np.dtype(array.dtype)
    return torch.from_numpy(np.frombuffer(data, stored).astype(stored.newbyteorder("="), copy=False))


def arrays_in(path: Path) -> list[FileArray]:
    """Every array of a .npy or .safetensors file, in file order.

    Raises:
        DataError: not a regular file, damaged, cut short, longer than its header says, or a pickle.
    """
    with _opened(path) as file:
        return (_npy if path.suffix == ".npy" else _safetensors)(path, file)


def file_state(path: Path) -> tuple[int, int, int]:
    """A value that changes when the file is written again.

    Raises:
        DataError: the file cannot be read.
    """
    with _reading(path):
        about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def check_unchanged(states: Mapping[Path, tuple[int, int, int]]) -> None:
    """Raise a DataError if a file was written since it had this `file_state`."""
    for path, state in states.items():
        if file_state(path) != state:
            raise DataError(f"{str(path)!a} was written while it was imported; run the same command again")


def scan(
    path: Path,
    arrays: list[FileArray],
    check: Callable[[FileArray, Tensor], None],
    advance: Callable[[int], object],
) -> str:
    """Read one file once, in order, and return its sha256; `check` gets its arrays' values in chunks.

    Raises:
        DataError: the file cannot be read, or ended early; and the errors of `check`.
    """
    digest = hashlib.sha256()
    with _opened(path) as file:
        head = bytearray(arrays[0].offset if arrays else path.stat().st_size)
        _fill(file, memoryview(head), path)
        digest.update(head)
        for array in arrays:
            for start in range(0, array.n_bytes, CHUNK):
                data = bytearray(min(CHUNK, array.n_bytes - start))
                _fill(file, memoryview(data), path)
                digest.update(data)
                check(array, _values(array, data))
                advance(len(data))
    return digest.hexdigest()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn an OSError into a DataError that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{str(path)!a} cannot be read: {error.strerror}") from None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with _reading(path), open_regular(path) as file:
        yield file


def _fill(file: BinaryIO, data: memoryview, path: Path) -> None:
    if file.readinto(data) != len(data):  # pyright: ignore[reportAttributeAccessIssue]
        raise DataError(
            f"{str(path)!a} ended while it was read; wait until it is complete and run the same command again"
        )


def _npy(path: Path, file: BinaryIO) -> list[FileArray]:
    try:
        version = np.lib.format.read_magic(file)
        if version not in _NPY_HEADERS:
            raise ValueError(f"format version {version}")
        width = 2 if version == (1, 0) else 4
        length = int.from_bytes(file.read(width), "little")
        if length > MAX_NPY_HEADER:  # numpy would read all of it, up to 4 GB, before it checks the length
            raise ValueError(f"its header claims {length:,} bytes")
        file.seek(-width, 1)
        shape, fortran, dtype = _NPY_HEADERS[version](file)
        if len(shape) > MAX_AXES or not all(0 <= n < MAX_SIZE for n in shape) or not dtype.itemsize:
            raise ValueError(f"shape {shape} of {dtype}")
    except OSError:
        raise
    except Exception as error:  # numpy parses the header as Python, which may fail in any way
        raise _damaged(path, (str(error).splitlines() or [""])[0][:100]) from None
    if dtype.hasobject:
        raise DataError(
            f"{str(path)!a} holds Python objects, a pickle, which is never read (allow_pickle=False); "
            "save numbers: np.save(path, np.stack(rows).astype(np.float32))"
        )
    array = FileArray(path, None, dtype.str, shape, fortran, file.tell())
    try:
        check_file_size(array.offset + array.n_bytes, path.stat().st_size)
    except HeaderError as error:
        raise _damaged(path, str(error)) from None
    return [array]


_NPY_HEADERS: dict[tuple[int, int], Callable[[BinaryIO], tuple[tuple[int, ...], bool, np.dtype]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _safetensors(path: Path, file: BinaryIO) -> list[FileArray]:
    try:
        tensors = read_header(file).tensors
        for key, entry in tensors.items():
            if entry.dtype not in TYPES:
                raise HeaderError(f"{key} is {entry.dtype}, which is not supported; save it as F32, F16 or BF16")
    except HeaderError as error:
        raise _damaged(path, str(error)) from None
    return [FileArray(path, key, TYPES[x.dtype], x.shape, False, x.offset) for key, x in tensors.items()]


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"{str(path)!a} is damaged or not a {path.suffix} file: {ascii(why)[1:-1]}; save it again")


def find_array_files(source: Path, labels: Path | None) -> tuple[list[Path], list[str]]:
    """The files of arrays in natural order, and the names of other files."""
    check_there(source)
    with _reading(source):
        found = sorted(source.iterdir(), key=lambda path: by_numbers(path.name)) if source.is_dir() else [source]
    if labels is not None and labels.exists():
        found = [path for path in found if not (path.exists() and path.samefile(labels))]
    found = [path for path in found if not path.name.startswith(".")]
    for path in found:
        _refuse_pickle(path)
    files = [path for path in found if path.suffix in SUFFIXES]
    left_aside = [path.name for path in found if path not in files]
    if not [path for path in files if path.name != f"{LABELS}.npy"]:
        if not source.is_dir():
            raise DataError(
                f"{str(source)!a} is neither a .npy or .safetensors file nor a folder of them; name one of these"
            )
        others = listed([ascii(name) for name in left_aside]) or "nothing"
        raise DataError(
            f"{str(source)!a} holds no .npy or .safetensors file of activations, but {others}; save them there as one"
        )
    return files, left_aside


def _refuse_pickle(path: Path) -> None:
    if path.suffix.lower() in PICKLES:
        raise DataError(
            f"{str(path)!a} is a pickle, which can run code and is never read; if you trust it, convert it: "
            "x = torch.load(path, weights_only=True), then np.save('resid_pre.3.npy', x.float().numpy()) for a tensor, "
            "safetensors.torch.save_file(x, 'acts.safetensors') for a dict of them"
        )
    if path.suffix.lower() == ".npz":
        raise DataError(
            f"{str(path)!a} is an archive; save its arrays one by one: "
            "for name, x in np.load(path).items(): np.save(name + '.npy', x)"
        )
