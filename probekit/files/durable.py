"""Atomic, durable files, here or in an object store, and JSON with a checksum of itself.

Every path is given to one of two backends (`backends`, which has the order of each write), so that nothing above asks
where a file is. A file is under its name as a whole or not at all, and stays there once the function has returned.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from probekit.errors import StorageError
from probekit.files.backends import TEMPORARY, Buffer, backend_of, refused
from probekit.files.plain_files import parse_json
from probekit.files.remote.path import AnyPath, Entry

__all__ = ["TEMPORARY", "refused"]

T = TypeVar("T")
R = TypeVar("R")

MAX_JSON_BYTES = 64 << 20  # parsing takes ten times as much, and a hostile file must not fill memory
_SEAL = b'"seal": "%s"\n}\n'
_SEAL_BYTES = len(_SEAL % bytes(64))
STALE_SECONDS = 3600  # a file of this age that nothing names belongs to a run that died
REQUESTS = 16  # small ones in flight


def make_folder(path: AnyPath) -> None:
    """Make a folder and its parents durably; an object store needs none.

    Raises:
        StorageError: the disk refused.
    """
    backend_of(path).make_folder(path)


def make_folders(path: AnyPath, *inside: str) -> None:
    """Make a folder and the named ones in it, and remove what runs that died left there; errors as in `make_folder`."""
    for folder in (path, *(path / name for name in inside)):
        make_folder(folder)
        remove_stale(folder)


def check_folder(path: AnyPath) -> None:
    """Raise a StorageError if a link or a file is where a folder should be."""
    backend_of(path).check_folder(path)


def remove_folder(path: AnyPath) -> None:
    """Remove a folder of files that nothing names any more; what cannot be removed stays, and only takes room."""
    backend_of(path).remove_folder(path)


def is_there(path: AnyPath) -> bool:
    """True if a file or a folder has this name, or an object; a link that leads nowhere counts."""
    return backend_of(path).is_there(path)


def entries(folder: AnyPath) -> list[Entry]:
    """What is directly in a folder, by name, with sizes and dates; links are not followed. Empty for no folder.

    Raises:
        StorageError: the disk refused.
    """
    return backend_of(folder).entries(folder)


def sync_names(folder: AnyPath) -> None:
    """Make every name in a folder durable, including those of runs that died before their fsync.

    Raises:
        StorageError: the disk refused.
    """
    backend_of(folder).sync_names(folder)


def write_as(path: AnyPath, data: bytes) -> None:
    """Write a file, replacing any at `path`; for names that determine the content.

    Raises:
        StorageError: the disk refused; `path` holds no partial file.
    """
    write_named(path.parent, [data], lambda: path.name)


def write_named(folder: AnyPath, parts: Iterable[Buffer], name: Callable[[], str]) -> AnyPath:
    """Write a file whose name is known only after its content; `name` is called when the content is on disk.

    Raises:
        StorageError: the disk refused; no partial file has the name.
    """
    return backend_of(folder).put(folder, parts, name)


def write_first(path: AnyPath, data: bytes) -> bool:
    """Write a file unless `path` exists: the first writer wins. True if this one did.

    Raises:
        StorageError: the disk refused, or something other than a regular file has the name; no partial file has it.
    """
    return backend_of(path).put_if_absent(path, data)


def link_or_copy(source: AnyPath, folder: AnyPath) -> None:
    """Bring a complete file into a folder under its own name, durably, as a hard link where the disk can.

    A file that is there is left. A link is safe: no file of a store is ever written to again, and `repair` replaces one
    by another file.

    Raises:
        StorageError: the disk refused; the folder holds no partial file of that name.
        FileNotFoundError: there is no such file.
    """
    backend_of(folder).bring(source, folder)


def remove(path: AnyPath) -> None:
    """Remove a file durably; a missing file is no error.

    Raises:
        StorageError: the disk refused.
    """
    backend_of(path).remove(path)


def touch(path: AnyPath) -> None:
    """Date a file as if it were written now; one that is read-only or in an object store keeps its date."""
    backend_of(path).touch(path)


def open_plain(path: AnyPath, max_bytes: int | None = None) -> "AbstractContextManager[Any]":
    """An `OpenFile` or `OpenObject`, for reading ranges; links, and pipes that would make a reader wait, are refused.

    Raises:
        FileNotFoundError: there is no such file; of an object when it is first read.
        StorageError: not a regular file, more than `max_bytes` bytes, or the disk refused.
    """
    return backend_of(path).open(path, max_bytes)


def read_plain(path: AnyPath, max_bytes: int) -> bytes:
    """The content of a regular file, or of an object; errors as in `open_plain`."""
    return backend_of(path).read(path, max_bytes)


def sizes_of(paths: list[Any]) -> Iterator[int | None]:
    """The size of each of these regular files or objects; None where there is none. Errors as in `open_plain`."""
    return backend_of(paths[0]).sizes(paths) if paths else iter(())


def each_of(path: AnyPath, function: Callable[[T], R], items: Iterable[T], most: int = REQUESTS) -> Iterator[R]:
    """`function` of each item in order; at most `most` at a time where `path` is in an object store.

    Most of the time of a small request is waiting for the answer.
    """
    return backend_of(path).each(function, items, most)


def readers_of(path: AnyPath) -> int:
    """How many files are best read at once."""
    return backend_of(path).readers


def remove_old(folder: AnyPath, which: Callable[[str], bool]) -> None:
    """Remove the files of a folder, chosen by their names, that runs that died left; a young one may be in use."""
    backend_of(folder).remove_old(folder, STALE_SECONDS, which)


def remove_stale(folder: AnyPath) -> None:
    """Remove temporary files, or unfinished uploads, of runs that died; recent ones may be in use by another run."""
    backend_of(folder).remove_unfinished(folder, STALE_SECONDS)


def seal(body: dict[str, Any], max_bytes: int = MAX_JSON_BYTES) -> tuple[bytes, str]:
    """A JSON file whose last line is a checksum of the lines before it, and that checksum.

    Raises:
        TypeError, ValueError: values that JSON cannot hold.
        StorageError: more than `max_bytes` bytes, which `unseal` would refuse.
    """
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, allow_nan=False, default=_plain)},\n" for key, value in body.items()
    ]
    data = ("{\n" + "".join(lines)).encode()
    if len(data) > max_bytes:
        raise StorageError(
            f"{len(data):,} bytes of JSON exceed the limit of {max_bytes:,} for reading them again; split the task"
        )
    checksum = hashlib.sha256(data).hexdigest()
    return data + _SEAL % checksum.encode(), checksum


def unseal(path: AnyPath, max_bytes: int = MAX_JSON_BYTES, advice: str = "") -> tuple[dict[str, Any], str]:
    """The content of a file that `seal` made, and its checksum, which is compared before anything is parsed.

    Raises:
        StorageError: missing, unreadable, larger than `max_bytes` bytes, or altered; the message ends with `advice`.
    """
    advice = advice and f"; {advice}"
    try:
        data = read_plain(path, max_bytes + _SEAL_BYTES)
    except FileNotFoundError:
        raise StorageError(f"{str(path)!a} is missing{advice}") from None
    head, tail = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    checksum = hashlib.sha256(head).hexdigest()
    try:
        body = parse_json(data) if tail == _SEAL % checksum.encode() else None
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise StorageError(f"{str(path)!a} is damaged: its content does not match its checksum{advice}")
    del body["seal"]
    return body, checksum


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")
