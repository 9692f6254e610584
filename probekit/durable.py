"""Files that are whole or absent, whatever happens, and JSON that knows when it was altered.

Order of a write: temporary file in the same folder, write, fsync, then rename or link(2) to the final name, fsync the
folder. No file is ever rewritten in place, and a failed fsync is never retried on the same file.
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
from pathlib import Path
from typing import Any

from probekit.errors import StorageError

Buffer = bytes | bytearray | memoryview

TEMPORARY = ".tmp-"
MOST = 64 << 20  # bytes of a JSON file; parsed it takes ten times that, and a hostile one must not fill the memory
_SEAL = b'"seal": "%s"\n}\n'
_SEAL_BYTES = len(_SEAL % bytes(64))
_STALE_SECONDS = 3600  # a temporary file that old belongs to a run that died
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}  # how file systems answer on which folders cannot be synced
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}  # how file systems without hard links answer


def make_folder(path: Path) -> None:
    """Make a folder and its parents, and make sure that they stay.

    Raises:
        StorageError: the disk refused.
    """
    missing = [folder for folder in [path, *path.parents] if not folder.exists()]
    try:
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
        for folder in missing or [path]:  # one that is there may be of a run that died before it could do this
            _fsync_folder(folder.parent)
    except OSError as error:
        raise refused(path, error) from error


def keep_names(folder: Path) -> None:
    """Make sure that every name in a folder stays, also one that a run put there that died before it could do so.

    Raises:
        StorageError: the disk refused.
    """
    try:
        _fsync_folder(folder)
    except OSError as error:
        raise refused(folder, error) from error


def write_as(path: Path, data: bytes) -> None:
    """Write a file that replaces whatever stood at `path`; for names that say what the content is.

    Raises:
        StorageError: the disk refused; nothing partial stands at `path`.
    """
    _write(path.parent, [data], lambda: path, os.replace)


def write_named(folder: Path, parts: Iterable[Buffer], name: Callable[[], str]) -> Path:
    """Write a file whose name is known when its content is on disk; `name` is called then.

    Raises:
        StorageError: the disk refused; nothing partial stands under the name.
    """
    return _write(folder, parts, lambda: folder / name(), os.replace)


def write_first(path: Path, data: bytes) -> bool:
    """Write a file unless one is there already: the first writer wins. Whether it was this one.

    Raises:
        StorageError: the disk refused; nothing partial stands at `path`.
    """
    try:
        _write(path.parent, [data], lambda: path, _claim)
    except FileExistsError:
        return False
    return True


def _claim(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.replace(path)  # two writers at once: the last one wins, and both wrote whole files


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


def remove(path: Path) -> None:
    """Take a file away for good; one that is not there is no fault.

    Raises:
        StorageError: the disk refused.
    """
    try:
        path.unlink(missing_ok=True)
        _fsync_folder(path.parent)
    except OSError as error:
        raise refused(path, error) from error


@contextlib.contextmanager
def open_plain(path: Path) -> Iterator[int]:
    """The descriptor of a plain file; what is behind a link, or would make a reader wait, is refused.

    Raises:
        FileNotFoundError: it is not there.
        StorageError: it is no plain file, or the disk refused.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StorageError(f"{str(path)!a} is a link; a store holds plain files") from error
        raise refused(path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StorageError(f"{str(path)!a} is no plain file")
        yield fd
    except OSError as error:
        raise refused(path, error) from error
    finally:
        os.close(fd)


def _fsync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


def refused(path: Path, error: OSError) -> StorageError:
    """The StorageError for what the system said about `path`."""
    return StorageError(f"{str(path)!a}: {error.strerror or error}")


def sweep(folder: Path) -> None:
    """Remove the temporary files of runs that died long ago; another run's may be in use."""
    for path in folder.glob(TEMPORARY + "*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def seal(body: dict[str, Any], most: int = MOST) -> tuple[bytes, str]:
    """A JSON file whose last line is a checksum of what stands before it, and that checksum.

    Raises:
        TypeError, ValueError: what JSON cannot hold.
        StorageError: more than `most` bytes, which `unseal` would not read.
    """
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, allow_nan=False, default=_plain)},\n" for key, value in body.items()
    ]
    data = ("{\n" + "".join(lines)).encode()
    if len(data) > most:
        raise StorageError(
            f"{len(data):,} bytes of JSON are more than the {most:,} that are read again; split the task"
        )
    checksum = hashlib.sha256(data).hexdigest()
    return data + _SEAL % checksum.encode(), checksum


def unseal(path: Path, most: int = MOST, advice: str = "") -> tuple[dict[str, Any], str]:
    """The content of a file that `seal` made, and its checksum; nothing is parsed before the checksum is compared.

    Raises:
        StorageError: it is missing, unreadable, larger than `most` bytes or altered; the message ends with `advice`.
    """
    advice = advice and f"; {advice}"
    try:
        data = _content(path, most)
    except FileNotFoundError:
        raise StorageError(f"{str(path)!a} is missing{advice}") from None
    head, tail = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    checksum = hashlib.sha256(head).hexdigest()
    try:
        body = json.loads(data) if tail == _SEAL % checksum.encode() else None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise StorageError(f"{str(path)!a} is damaged: its content does not match its checksum{advice}")
    del body["seal"]
    return body, checksum


def _content(path: Path, most: int) -> bytes:
    with open_plain(path) as fd, open(fd, "rb", closefd=False) as file:
        size = os.fstat(fd).st_size
        if size > most + _SEAL_BYTES:
            raise StorageError(f"{str(path)!a} is damaged: {size:,} bytes are more than such a file ever has")
        return file.read(most + _SEAL_BYTES)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")
