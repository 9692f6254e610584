"""Read regular files of a bounded size: never a pipe or a device, which would make a reader wait or read for ever.

Everything that a person or another program put on disk is read through here. What cannot be read is an OSError whose
`strerror` says why, so that each caller makes its own error of it.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

MAX_TABLE = 4 << 30  # bytes of a table of texts
MAX_MODEL_JSON = 256 << 20  # of config.json, tokenizer.json (35 MB with 260,000 tokens) and the like
MAX_RESULTS = 256 << 20  # of results.json; a thousand places have 5 MB
MAX_WEIGHTS = 4 << 30  # of a probe's arrays, which are read at once
MAX_CONFIG = 1 << 20  # of a file of --config
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


@contextmanager
def open_regular(path: str | Path, max_bytes: int | None = None, follow: bool = True) -> Iterator[BufferedReader]:
    """A regular file, open for reading from its beginning.

    Args:
        path: the file.
        max_bytes: the largest size; None is any, for files that are read in parts.
        follow: False refuses a link.

    Raises:
        OSError: no such file, not a regular file, too large, or refused by the disk.
    """
    flags = _FLAGS if follow else _FLAGS | getattr(os, "O_NOFOLLOW", 0)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "a link, not the file itself", str(path)) from None
        raise
    try:
        _check(os.fstat(fd), path, max_bytes)
    except OSError:
        os.close(fd)
        raise
    with open(fd, "rb") as file:  # noqa: PTH123  (a descriptor)
        yield file


def _check(about: os.stat_result, path: str | Path, max_bytes: int | None) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, f"{file_kind(about.st_mode)}, not a regular file", str(path))
    if max_bytes is not None and about.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"{about.st_size:,} bytes, more than the {max_bytes:,} that are read", str(path))


def file_kind(mode: int) -> str:
    """What a file that is not a regular one is, in words."""
    return "a folder" if stat.S_ISDIR(mode) else _KINDS.get(stat.S_IFMT(mode), "a special file")


def read_bytes(path: str | Path, max_bytes: int) -> bytes:
    """The content of a regular file; errors as in `open_regular`."""
    with open_regular(path, max_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)  # Python allocates what may be read, before it reads


def parse_json(data: str | bytes) -> Any:
    """The value in a JSON text.

    Raises:
        ValueError: not JSON, nested too deeply, or a number of thousands of digits.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None
