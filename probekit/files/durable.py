"""Atomic, durable files, and JSON with a checksum of itself.

Order of a write on disk: temporary file in the same folder, write, fsync, then rename or link(2) to the final name,
fsync the folder. No file is ever rewritten in place, and a failed fsync is never retried on the same file: the kernel
may have dropped the pages that it could not write.

In an object store a file is one object: it is visible as a whole when the store has confirmed it, and not before, so
that temporary files, links and fsync have no counterpart there.
"""

import contextlib
import errno
import hashlib
import json
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from probekit.errors import StorageError
from probekit.files.plain_files import file_kind, open_regular, parse_json
from probekit.files.remote.path import AnyPath, RemotePath
from probekit.files.remote.uploads import abort_stale_uploads

Buffer = bytes | bytearray | memoryview

TEMPORARY = ".tmp-"
MAX_JSON_BYTES = 64 << 20  # parsing takes ten times as much, and a hostile file must not fill memory
_SEAL = b'"seal": "%s"\n}\n'
_SEAL_BYTES = len(_SEAL % bytes(64))
_STALE_SECONDS = 3600  # a temporary file of this age belongs to a run that died
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}  # errors of file systems that cannot sync folders
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}  # errors of file systems without hard links


def make_folder(path: AnyPath) -> None:
    """Make a folder and its parents durably; an object store needs none.

    Raises:
        StorageError: the disk refused.
    """
    if isinstance(path, RemotePath):
        return
    missing = [folder for folder in [path, *path.parents] if not folder.exists()]
    try:
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
        for folder in missing or [path]:  # an existing one may be of a run that died before its fsync
            _fsync_folder(folder.parent)
    except OSError as error:
        raise refused(path, error) from error


def make_folders(path: AnyPath, *inside: str) -> None:
    """Make a folder and the named ones in it, and remove what runs that died left there; errors as in `make_folder`."""
    if isinstance(path, RemotePath):
        remove_stale(path)  # of all that is below, in one request
        return
    for folder in (path, *(path / name for name in inside)):
        make_folder(folder)
        remove_stale(folder)


def is_there(path: AnyPath) -> bool:
    """True if a file or a folder has this name, or an object; a link that leads nowhere counts."""
    return path.is_object() if isinstance(path, RemotePath) else os.path.lexists(path)


def sync_names(folder: AnyPath) -> None:
    """Make every name in a folder durable, including those of runs that died before their fsync.

    Raises:
        StorageError: the disk refused.
    """
    if isinstance(folder, RemotePath):
        return
    try:
        _fsync_folder(folder)
    except OSError as error:
        raise refused(folder, error) from error


def write_as(path: AnyPath, data: bytes) -> None:
    """Write a file, replacing any at `path`; for names that determine the content.

    Raises:
        StorageError: the disk refused; `path` holds no partial file.
    """
    if isinstance(path, RemotePath):
        path.write_bytes(data)
    else:
        _write(path.parent, [data], lambda: path, os.replace)


def write_named(folder: AnyPath, parts: Iterable[Buffer], name: Callable[[], str]) -> AnyPath:
    """Write a file whose name is known only after its content; `name` is called when the content is on disk.

    Raises:
        StorageError: the disk refused; no partial file has the name.
    """
    if isinstance(folder, RemotePath):
        data = b"".join(parts)
        path = folder / name()
        path.write_bytes(data)
        return path
    return _write(folder, parts, lambda: folder / name(), os.replace)


def write_first(path: AnyPath, data: bytes) -> bool:
    """Write a file unless `path` exists: the first writer wins. True if this one did.

    Raises:
        StorageError: the disk refused, or something other than a regular file has the name; no partial file has it.
    """
    if isinstance(path, RemotePath):
        return path.create(data)
    try:
        _write(path.parent, [data], lambda: path, _claim)
    except FileExistsError:
        _check_regular(path)
        return False
    return True


def _check_regular(path: Path) -> None:
    """Refuse a link, which may lead nowhere, and all else that is not a file under a name that a file should have."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a link" if stat.S_ISLNK(mode) else file_kind(mode)
            raise StorageError(f"{str(path)!a} is {kind}, and a file must be written there; move it away")


def _claim(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.replace(path)  # of two writers at once the last one wins; both files are complete


def _write(
    folder: Path, parts: Iterable[Buffer], target: Callable[[], Path], put: Callable[[Path, Path], object]
) -> Path:
    temporary = folder / f"{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex}"
    path = folder
    if not folder.is_dir():
        make_folder(folder)
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        path = target()
        put(temporary, path)
        _fsync_folder(folder)
    except FileExistsError:
        raise
    except OSError as error:
        raise refused(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def remove(path: AnyPath) -> None:
    """Remove a file durably; a missing file is no error.

    Raises:
        StorageError: the disk refused.
    """
    try:
        path.unlink(missing_ok=True)
        if isinstance(path, Path):
            _fsync_folder(path.parent)
    except OSError as error:
        raise refused(path, error) from error


@contextlib.contextmanager
def open_plain(path: Path, max_bytes: int | None = None) -> Iterator[BufferedReader]:
    """A regular file of a store or of a run; links, and pipes that would make a reader wait, are refused.

    Raises:
        FileNotFoundError: there is no such file.
        StorageError: not a regular file, more than `max_bytes` bytes, or the disk refused.
    """
    try:
        with open_regular(path, max_bytes, follow=False) as file:
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise refused(path, error) from error


def read_plain(path: AnyPath, max_bytes: int) -> bytes:
    """The content of a regular file, or of an object; errors as in `open_plain`."""
    if not isinstance(path, RemotePath):
        with open_plain(path, max_bytes) as file:
            return file.read(os.fstat(file.fileno()).st_size)
    data = path.read_bytes(0, max_bytes + 1)
    if len(data) > max_bytes:
        raise StorageError(f"{str(path)!a}: more than the {max_bytes:,} bytes that are read")
    return data


def _fsync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


def refused(path: AnyPath, error: OSError) -> StorageError:
    """The StorageError for an error of the system at `path`."""
    return StorageError(f"{str(path)!a}: {error.strerror or error}")


def remove_stale(folder: AnyPath) -> None:
    """Remove temporary files, or unfinished uploads, of runs that died; recent ones may be in use by another run."""
    if isinstance(folder, RemotePath):
        abort_stale_uploads(folder, _STALE_SECONDS)
        return
    for path in folder.glob(TEMPORARY + "*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


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


def matches(value: Any, schema: Any) -> bool:
    """True if a value out of JSON has the form of `schema`.

    A schema is a type or a union of types (exact: a bool is no int), `[schema]` for a list, `(schema, ...)` for a list
    of that length, `{"key": schema}` for an object with at least these keys ("key?" may be missing or null), or
    `{str: schema}` for an object with any keys.
    """
    if isinstance(schema, dict):
        return type(value) is dict and _fields_match(value, schema)
    if isinstance(schema, list):
        return type(value) is list and _items_match(value, schema[0])
    if isinstance(schema, tuple):
        return type(value) is list and len(value) == len(schema) and all(map(matches, value, schema))
    return type(value) in _types(schema)


def _fields_match(fields: dict[str, Any], schema: dict[Any, Any]) -> bool:
    if str in schema:
        return all(matches(value, schema[str]) for value in fields.values())
    return all(
        matches(fields.get(key.removesuffix("?")), inner)
        or (key.endswith("?") and fields.get(key.removesuffix("?")) is None)
        for key, inner in schema.items()
    )


def _items_match(items: Iterable[Any], schema: Any) -> bool:
    """`matches` for each item; one call for lists and atoms, since there may be millions of them."""
    if isinstance(schema, dict | tuple):
        return all(matches(item, schema) for item in items)
    if isinstance(schema, list):
        items = list(items)
        return set(map(type, items)) <= {list} and _items_match(chain.from_iterable(items), schema[0])
    return set(map(type, items)) <= set(_types(schema))


def _types(schema: Any) -> tuple[type, ...]:
    return get_args(schema) if isinstance(schema, UnionType) else (schema,)
