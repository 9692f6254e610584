"""Files that are whole or absent, whatever happens, and JSON that knows when it was altered.

Order of a write: temporary file in the same folder, write, fsync, then rename or link(2) to the final name, fsync the
folder. No file is ever rewritten in place, and a failed fsync is never retried on the same file.
"""

import contextlib
import errno
import hashlib
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from probekit.errors import StorageError

TEMPORARY = ".tmp-"
_STALE_SECONDS = 3600  # a temporary file that old belongs to a run that died
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}  # how file systems without hard links answer


def make_folder(path: Path) -> None:
    """Make a folder and its parents, and make sure that they stay.

    Raises:
        StorageError: the disk refused.
    """
    missing = [folder for folder in [path, *path.parents] if not folder.exists()]
    try:
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
    _write(path, data, os.replace)


def write_first(path: Path, data: bytes) -> bool:
    """Write a file unless one is there already: the first writer wins. Whether it was this one.

    Raises:
        StorageError: the disk refused; nothing partial stands at `path`.
    """
    try:
        _write(path, data, _claim)
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


def _write(path: Path, data: bytes, put: Any) -> None:
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex}")
    if not path.parent.is_dir():
        make_folder(path.parent)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        put(temporary, path)
        _fsync_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise refused(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _fsync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
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


def seal(body: dict[str, Any]) -> tuple[bytes, str]:
    """A JSON file that carries a checksum of its content, and that checksum.

    Raises:
        TypeError, ValueError: what JSON cannot hold.
    """
    body = json.loads(json.dumps(body, allow_nan=False, default=_plain))
    checksum = _checksum(body)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in [*body.items(), ("seal", checksum)]]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode(), checksum


def unseal(path: Path) -> tuple[dict[str, Any], str]:
    """The content of a file that `seal` made, and its checksum.

    Raises:
        StorageError: it is missing, unreadable or altered.
    """
    damaged = StorageError(
        f"{str(path)!a} is damaged: its content does not match its checksum; remove the store and extract again"
    )
    try:
        body = json.loads(path.read_bytes())
        checksum = body.pop("seal")
    except OSError as error:
        raise refused(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged from None
    if _checksum(body) != checksum:
        raise damaged
    return body, checksum


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")
