"""Atomic, durable files, here or in an object store, and JSON with a checksum of itself.

A file is under its name as a whole or not at all, and stays there once the function has returned. A refusal of the disk
or of the store is a StorageError. Nothing above asks where a file is.

Order of a write on disk: temporary file in the same folder, write, fsync, then rename or link(2) to the final name,
fsync the folder. No file is ever rewritten in place, and a failed fsync is never retried on the same file: the kernel
may have dropped the pages that it could not write.

In an object store a file is one object: it is visible as a whole when the store has confirmed it, and not before, so
that folders, temporary files, links and fsync have no counterpart there.
"""

import contextlib
import errno
import hashlib
import json
import os
import stat
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from probekit.errors import StorageError
from probekit.files.plain_files import file_kind, open_regular, parse_json
from probekit.files.remote.attempts import attempt
from probekit.files.remote.filesystems import filesystem
from probekit.files.remote.path import ONE_REQUEST, AnyPath, Entry, RemotePath

T = TypeVar("T")
R = TypeVar("R")
Buffer = bytes | bytearray | memoryview
Bounds = tuple[int, int]  # of a range of bytes: start, and before which it ends

TEMPORARY = ".tmp-"
STALE_SECONDS = 3600  # a file of this age that nothing names belongs to a run that died
REQUESTS = 16  # small ones in flight
SETTLED = 2_000_000_000  # ns after which a change of a file has another date than the last: some disks count seconds
MAX_JSON_BYTES = 64 << 20  # parsing takes ten times as much, and a hostile file must not fill memory
_SEAL = b'"seal": "%s"\n}\n'
_SEAL_BYTES = len(_SEAL % bytes(64))
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}  # errors of file systems that cannot sync folders
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}  # errors of file systems without hard links
_CANNOT_LINK = {errno.EXDEV, errno.EMLINK, errno.EACCES, *_NO_LINKS}  # from one disk, or folder, to another
_COPIED = 1 << 20  # bytes


def refused(path: AnyPath, error: OSError) -> StorageError:
    """The StorageError for an error of the system at `path`."""
    return StorageError(f"{str(path)!a}: {error.strerror or error}")


@contextlib.contextmanager
def _refusals(path: AnyPath, *passed: type[OSError]) -> Iterator[None]:
    """Turn an error of the system into a StorageError that names `path`; those of the types `passed` stay."""
    try:
        yield
    except passed:
        raise
    except OSError as error:
        raise refused(path, error) from error


# folders and names ----------------------------------------------------------------------------------------------------


def make_folder(path: AnyPath) -> None:
    """Make a folder and its parents durably; an object store needs none."""
    if isinstance(path, RemotePath):
        return
    missing = [folder for folder in [path, *path.parents] if not folder.exists()]
    with _refusals(path):
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
        for folder in missing or [path]:  # an existing one may be of a run that died before its fsync
            _fsync_folder(folder.parent)


def make_folders(path: AnyPath, *inside: str) -> None:
    """Make a folder and the named ones in it, and remove what runs that died left there. Raises as `make_folder`."""
    for folder in (path, *(path / name for name in inside)):
        make_folder(folder)
        remove_stale(folder)


def check_folder(path: AnyPath) -> None:
    """Raise a StorageError if a link or a file is where a folder should be."""
    if isinstance(path, Path) and (path.is_symlink() or (path.exists() and not path.is_dir())):
        raise StorageError(f"{str(path)!a} is a link or a file, expected a folder; put the real folder there")


def remove_folder(path: AnyPath) -> None:
    """Remove a folder of files that nothing names any more; what cannot be removed stays, and only takes room."""
    with contextlib.suppress(OSError):
        for file in sorted(path.iterdir(), key=lambda one: one.suffix != ".json"):  # no record outlives its files
            file.unlink(missing_ok=True)
        if isinstance(path, Path):
            path.rmdir()


def is_there(path: AnyPath) -> bool:
    """True if a file or a folder has this name, or an object; a link that leads nowhere counts."""
    return path.is_object() if isinstance(path, RemotePath) else os.path.lexists(path)


def entries(folder: AnyPath) -> list[Entry]:
    """What is directly in a folder, by name, with sizes and dates; links are not followed. Empty for no folder."""
    if isinstance(folder, RemotePath):
        return folder.entries()
    found = []
    with _refusals(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for one in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                about = one.stat(follow_symlinks=False)
                is_folder = one.is_dir(follow_symlinks=False)
                found.append(Entry(folder / one.name, is_folder, about.st_size, about.st_mtime))
    return sorted(found, key=lambda one: one.path)


def sync_names(folder: AnyPath) -> None:
    """Make every name in a folder durable, including those of runs that died before their fsync."""
    if isinstance(folder, Path):
        with _refusals(folder):
            _fsync_folder(folder)


def remove(path: AnyPath) -> None:
    """Remove a file durably; a missing file is no error."""
    with _refusals(path):
        path.unlink(missing_ok=True)
        if isinstance(path, Path):
            _fsync_folder(path.parent)


def touch(path: AnyPath) -> None:
    """Date a file as if it were written now; one that is read-only or in an object store keeps its date."""
    now = time.time_ns()
    with contextlib.suppress(OSError):
        if isinstance(path, Path):
            os.utime(path, ns=(now, now))


def remove_old(folder: AnyPath, which: Callable[[str], bool]) -> None:
    """Remove the files of a folder, chosen by their names, that runs that died left; a young one may be in use."""
    found, now = entries(folder), time.time()
    if isinstance(folder, RemotePath):  # whose clock is compared with itself alone
        now = max((one.st_mtime for one in found), default=0.0)
    for one in found:
        if which(one.path.name) and now - one.st_mtime > STALE_SECONDS:
            with contextlib.suppress(OSError):
                one.path.unlink()


def remove_stale(folder: AnyPath) -> None:
    """Remove temporary files, or unfinished uploads, of runs that died; recent ones may be in use by another run.

    Nobody sees an upload in parts, and S3 charges for it until it is aborted; Google ends them by itself after a week.
    What cannot be listed or aborted stays.
    """
    if isinstance(folder, Path):
        remove_old(folder, lambda name: name.startswith(TEMPORARY))
        return
    if folder.scheme != "s3":
        return
    bucket, _, prefix = folder.key.partition("/")
    files = filesystem("s3")

    def ask(verb: str, **about: Any) -> dict[str, Any]:
        return attempt("s3", str(folder), lambda: files.call_s3(verb, Bucket=bucket, **about))

    with contextlib.suppress(StorageError, OSError):  # the right to write does not imply this one
        answer = ask("list_multipart_uploads", Prefix=f"{prefix}/" if prefix else "")
        now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        for upload in answer.get("Uploads", []):
            if (now - upload["Initiated"]).total_seconds() > STALE_SECONDS:
                ask("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])


def _fsync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


# write ----------------------------------------------------------------------------------------------------------------


def write_as(path: AnyPath, data: bytes) -> None:
    """Write a file, replacing any at `path`; for names that determine the content."""
    write_named(path.parent, [data], lambda: path.name)


def write_named(folder: AnyPath, parts: Iterable[Buffer], name: Callable[[], str]) -> AnyPath:
    """Write a file whose name is known only after its content; `name` is called when the content is on disk."""
    if isinstance(folder, Path):
        return _write(folder, parts, lambda: folder / name(), os.replace)
    data = _collected(parts)
    path = folder / name()
    path.write_bytes(data)
    return path


def _collected(parts: Iterable[Buffer]) -> Any:
    """All parts in memory up to `ONE_REQUEST` bytes; beyond, in a mapped temporary file: sums may be many GB."""
    held, spool = bytearray(), None
    for part in parts:
        if spool is None and len(held) + memoryview(part).nbytes > ONE_REQUEST:
            from probekit.files.scratch import ScratchFile  # which imports numpy

            spool = ScratchFile()
            spool.write(held)
        if spool is None:
            held += part
        else:
            spool.write(part)
    return bytes(held) if spool is None else spool.mapped()


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
        with contextlib.suppress(FileNotFoundError):  # a link may lead nowhere
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode):
                kind = "a link" if stat.S_ISLNK(mode) else file_kind(mode)
                raise StorageError(f"{str(path)!a} is {kind}, and a file must be written there; move it away") from None
        return False
    return True


def link_or_copy(source: AnyPath, folder: AnyPath) -> None:
    """Bring a complete file into a folder under its own name, durably, as a hard link where the disk can.

    A file that is there is left. A link is safe: no file of a store is ever written to again, and `repair` replaces one
    by another file.

    Raises:
        StorageError: the disk refused; the folder holds no partial file of that name.
        FileNotFoundError: there is no such file.
    """
    target = folder / source.name
    try:
        if isinstance(source, RemotePath) or isinstance(target, RemotePath) or source.is_symlink():
            raise OSError(errno.EPERM, "it cannot be linked to")
        os.link(source, target)
        sync_names(folder)
    except FileExistsError:
        sync_names(folder)  # the run that put it there may have died before
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise refused(target, error) from error
        write_named(folder, _content(source), lambda: source.name)


def _content(path: AnyPath) -> Iterator[bytes]:
    if isinstance(path, RemotePath):
        yield path.read_bytes()
        return
    with _refusals(path, FileNotFoundError), open_regular(path, follow=False) as file:
        while data := file.read(_COPIED):
            yield data


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


def _claim(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.replace(path)  # of two writers at once the last one wins; both files are complete


# read -----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_plain(path: AnyPath, max_bytes: int | None = None) -> "Iterator[OpenFile | OpenObject]":
    """An `OpenFile` or `OpenObject`, for reading ranges; links, and pipes that would make a reader wait, are refused.

    Raises:
        FileNotFoundError: there is no such file; of an object when it is first read.
        StorageError: not a regular file, more than `max_bytes` bytes, or the disk refused.
    """
    if isinstance(path, RemotePath):
        yield OpenObject(path)
        return
    with _refusals(path, FileNotFoundError), open_regular(path, max_bytes, follow=False) as file:
        yield OpenFile(file)


def read_plain(path: AnyPath, max_bytes: int) -> bytes:
    """The content of a regular file, or of an object; errors as in `open_plain`."""
    if isinstance(path, Path):
        with _refusals(path, FileNotFoundError), open_regular(path, max_bytes, follow=False) as file:
            return file.read(os.fstat(file.fileno()).st_size)
    data = path.read_bytes(0, max_bytes + 1)
    if len(data) > max_bytes:
        raise StorageError(f"{str(path)!a}: more than the {max_bytes:,} bytes that are read")
    return data


def sizes_of(paths: list[Any]) -> Iterator[int | None]:
    """The size of each of these regular files or objects; None where there is none. Errors as in `open_plain`."""
    if len(paths) > 1 and isinstance(paths[0], RemotePath):  # one listing says the sizes of a thousand
        known = {one.path: one.st_size for folder in {path.parent for path in paths} for one in folder.entries()}
        yield from map(known.get, paths)
        return
    for path in paths:
        try:
            if isinstance(path, RemotePath):
                yield path.stat().st_size
            else:
                with open_plain(path) as file:
                    yield file.size
        except FileNotFoundError:
            yield None


def each_of(path: AnyPath, function: Callable[[T], R], items: Iterable[T], most: int = REQUESTS) -> Iterator[R]:
    """`function` of each item in order; at most `most` at a time where `path` is in an object store.

    Most of the time of a small request is waiting for the answer.
    """
    return _ahead(function, items, most) if isinstance(path, RemotePath) else map(function, items)


def readers_of(path: AnyPath) -> int:
    """How many files are best read at once.

    On disk, reading and hashing release the GIL, and memory bandwidth is the limit, not threads.
    """
    return 8 if isinstance(path, RemotePath) else 2


class OpenFile:
    """A regular file on disk that is being read."""

    step = 1 << 19  # bytes that are read, hashed and copied while they are in the processor's cache

    def __init__(self, buffered: BufferedReader):
        self.buffered = buffered
        self._raw: Any = buffered.raw
        self.size: int | None = os.fstat(self._raw.fileno()).st_size

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`, fewer where the file ends sooner."""
        return os.pread(self._raw.fileno(), end - start, start)

    def ranges(self, bounds: Iterable[Bounds]) -> Iterator[memoryview]:
        """The bytes of each range, in order; each is valid until the next is requested."""
        buffer = memoryview(bytearray())
        for start, end in bounds:
            buffer = buffer if len(buffer) >= end - start else memoryview(bytearray(end - start))
            self._raw.seek(start)
            yield buffer[: self._raw.readinto(buffer[: end - start])]

    def expect(self, start: int, n: int) -> None:
        """Ask the system to read these bytes soon, where it and the file system take such requests."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._raw.fileno(), start, n, os.POSIX_FADV_WILLNEED)

    def state(self) -> tuple[int, ...]:
        """What changes when a file is written to; empty if it was written to just now, so that its date may stay."""
        about = os.fstat(self._raw.fileno())
        if time.time_ns() - max(about.st_mtime_ns, about.st_ctime_ns) < SETTLED:
            return ()
        return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


class OpenObject:
    """An object that is being read; its size is not asked for."""

    step = 8 << 20  # bytes of one request
    size: int | None = None

    def __init__(self, path: RemotePath):
        self._path = path

    def read(self, start: int, end: int) -> bytes:
        """As of an `OpenFile`."""
        return self._path.read_bytes(start, end)

    def ranges(self, bounds: Iterable[Bounds]) -> Iterator[bytes]:
        """As of an `OpenFile`; the next ranges are on their way meanwhile."""
        return _ahead(lambda bound: self._path.read_bytes(*bound), bounds, 4)

    def expect(self, start: int, n: int) -> None:
        """Nothing: what is read ahead is asked for anyway."""

    def state(self) -> tuple[int, ...]:
        """Empty: what comes over a network is never known to be what came before."""
        return ()


def _ahead(function: Callable[[T], R], items: Iterable[T], most: int) -> Iterator[R]:
    """`map` with at most so many results that are under way or not yet taken."""
    items = list(items)
    if len(items) < 2:
        yield from map(function, items)
        return
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(min(most, len(items)), thread_name_prefix="probekit-remote")
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) == most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# JSON -----------------------------------------------------------------------------------------------------------------


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
