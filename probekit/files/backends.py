"""The two places where files can be: on a disk, and in an object store. `durable` has one function for each verb.

Order of a write on disk: temporary file in the same folder, write, fsync, then rename or link(2) to the final name,
fsync the folder. No file is ever rewritten in place, and a failed fsync is never retried on the same file: the kernel
may have dropped the pages that it could not write.

In an object store a file is one object: it is visible as a whole when the store has confirmed it, and not before, so
that temporary files, links and fsync have no counterpart there.
"""

import contextlib
import errno
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
from probekit.files.plain_files import file_kind, open_regular
from probekit.files.remote.attempts import attempt
from probekit.files.remote.filesystems import filesystem
from probekit.files.remote.path import ONE_REQUEST, AnyPath, Entry, RemotePath

T = TypeVar("T")
R = TypeVar("R")
Buffer = bytes | bytearray | memoryview
Bounds = tuple[int, int]  # of a range of bytes: start, and before which it ends

TEMPORARY = ".tmp-"
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}  # errors of file systems that cannot sync folders
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}  # errors of file systems without hard links
_CANNOT_LINK = {errno.EXDEV, errno.EMLINK, errno.EACCES, *_NO_LINKS}  # from one disk, or folder, to another
_COPIED = 1 << 20  # bytes
SETTLED = 2_000_000_000  # ns after which a change of a file has another date than the last: some disks count seconds


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


class _Disk:
    """Files on a disk of this machine, or on one that it has mounted."""

    readers = 2  # files read at once: reading and hashing release the GIL; memory bandwidth is the limit, not threads

    def make_folder(self, path: Path) -> None:
        missing = [folder for folder in [path, *path.parents] if not folder.exists()]
        with _refusals(path):
            if not path.is_dir():
                path.mkdir(parents=True, exist_ok=True)
            for folder in missing or [path]:  # an existing one may be of a run that died before its fsync
                _fsync_folder(folder.parent)

    def check_folder(self, path: Path) -> None:
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise StorageError(f"{str(path)!a} is a link or a file, expected a folder; put the real folder there")

    def remove_folder(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            for file in sorted(path.iterdir(), key=_records_first):
                file.unlink(missing_ok=True)
            path.rmdir()

    def is_there(self, path: Path) -> bool:
        return os.path.lexists(path)

    def sync_names(self, folder: Path) -> None:
        with _refusals(folder):
            _fsync_folder(folder)

    def put(self, folder: Path, parts: Iterable[Buffer], name: Callable[[], str]) -> Path:
        return self._write(folder, parts, lambda: folder / name(), os.replace)

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        try:
            self._write(path.parent, [data], lambda: path, _claim)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # a link may lead nowhere
                mode = path.lstat().st_mode
                if not stat.S_ISREG(mode):
                    kind = "a link" if stat.S_ISLNK(mode) else file_kind(mode)
                    raise StorageError(
                        f"{str(path)!a} is {kind}, and a file must be written there; move it away"
                    ) from None
            return False
        return True

    @staticmethod
    def _write(
        folder: Path, parts: Iterable[Buffer], target: Callable[[], Path], put: Callable[[Path, Path], object]
    ) -> Path:
        temporary = folder / f"{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex}"
        path = folder
        if not folder.is_dir():
            DISK.make_folder(folder)
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

    def bring(self, source: AnyPath, folder: Path) -> None:
        target = folder / source.name
        try:
            if isinstance(source, RemotePath) or source.is_symlink():
                raise OSError(errno.EPERM, "it cannot be linked to")
            os.link(source, target)
            self.sync_names(folder)
        except FileExistsError:
            self.sync_names(folder)  # the run that put it there may have died before
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise refused(target, error) from error
            self.put(folder, backend_of(source).content(source), lambda: source.name)

    def remove(self, path: Path) -> None:
        with _refusals(path):
            path.unlink(missing_ok=True)
            _fsync_folder(path.parent)

    def touch(self, path: Path) -> None:
        now = time.time_ns()
        with contextlib.suppress(OSError):
            os.utime(path, ns=(now, now))

    @contextlib.contextmanager
    def open(self, path: Path, max_bytes: int | None = None) -> Iterator[OpenFile]:
        with _refusals(path, FileNotFoundError), open_regular(path, max_bytes, follow=False) as file:
            yield OpenFile(file)

    def read(self, path: Path, max_bytes: int) -> bytes:
        with _refusals(path, FileNotFoundError), open_regular(path, max_bytes, follow=False) as file:
            return file.read(os.fstat(file.fileno()).st_size)

    def content(self, path: Path) -> Iterator[bytes]:
        with _refusals(path, FileNotFoundError), open_regular(path, follow=False) as file:
            while data := file.read(_COPIED):
                yield data

    def sizes(self, paths: list[Path]) -> Iterator[int | None]:
        for path in paths:
            try:
                with self.open(path) as file:
                    yield file.size
            except FileNotFoundError:
                yield None

    def entries(self, folder: Path) -> list[Entry]:
        found = []
        with _refusals(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for one in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    about = one.stat(follow_symlinks=False)
                    is_folder = one.is_dir(follow_symlinks=False)
                    found.append(Entry(folder / one.name, is_folder, about.st_size, about.st_mtime))
        return sorted(found, key=lambda one: one.path)

    def remove_old(self, folder: Path, seconds: float, which: Callable[[str], bool]) -> None:
        for one in self.entries(folder):
            if which(one.path.name) and time.time() - one.st_mtime > seconds:
                with contextlib.suppress(OSError):
                    one.path.unlink()

    def remove_unfinished(self, folder: Path, seconds: float) -> None:
        self.remove_old(folder, seconds, lambda name: name.startswith(TEMPORARY))

    def each(self, function: Callable[[T], R], items: Iterable[T], most: int) -> Iterator[R]:
        return map(function, items)


class _ObjectStore:
    """Objects behind a network, through the requests of a `RemotePath`."""

    readers = 8  # objects that are on their way at once

    def make_folder(self, path: RemotePath) -> None:
        pass

    check_folder = sync_names = touch = make_folder

    def remove_folder(self, path: RemotePath) -> None:
        for one in sorted(path.iterdir(), key=_records_first):
            one.unlink(missing_ok=True)

    def is_there(self, path: RemotePath) -> bool:
        return path.is_object()

    def put(self, folder: RemotePath, parts: Iterable[Buffer], name: Callable[[], str]) -> RemotePath:
        from probekit.files.scratch import ScratchFile  # which imports numpy

        spool = ScratchFile()  # sums may be many GB, and their name is known only after the last byte
        for part in parts:
            spool.write(part)
        path = folder / name()
        path.write_bytes(spool.read(0, spool.size) if spool.size < ONE_REQUEST else spool.mapped())
        return path

    def put_if_absent(self, path: RemotePath, data: bytes) -> bool:
        return path.create(data)

    def bring(self, source: AnyPath, folder: RemotePath) -> None:
        self.put(folder, backend_of(source).content(source), lambda: source.name)

    def remove(self, path: RemotePath) -> None:
        path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def open(self, path: RemotePath, max_bytes: int | None = None) -> Iterator[OpenObject]:
        yield OpenObject(path)

    def read(self, path: RemotePath, max_bytes: int) -> bytes:
        data = path.read_bytes(0, max_bytes + 1)
        if len(data) > max_bytes:
            raise StorageError(f"{str(path)!a}: more than the {max_bytes:,} bytes that are read")
        return data

    def content(self, path: RemotePath) -> Iterator[bytes]:
        yield path.read_bytes()

    def sizes(self, paths: list[RemotePath]) -> Iterator[int | None]:
        if len(paths) == 1:
            try:
                yield paths[0].stat().st_size
            except FileNotFoundError:
                yield None
        else:  # one listing says the sizes of a thousand
            known = {one.path: one.st_size for folder in {path.parent for path in paths} for one in folder.entries()}
            yield from map(known.get, paths)

    def entries(self, folder: RemotePath) -> list[Entry]:
        return folder.entries()

    def remove_old(self, folder: RemotePath, seconds: float, which: Callable[[str], bool]) -> None:
        found = folder.entries()
        now = max((one.st_mtime for one in found), default=0.0)  # the store's clock is compared with itself alone
        for one in found:
            if which(one.path.name) and now - one.st_mtime > seconds:
                one.path.unlink(missing_ok=True)

    def remove_unfinished(self, folder: RemotePath, seconds: float) -> None:
        """Uploads in parts: nobody sees them, and S3 charges for them until they are aborted.

        Only S3 has such uploads; Google ends them by itself after a week. What cannot be listed or aborted stays.
        """
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
                if (now - upload["Initiated"]).total_seconds() > seconds:
                    ask("abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])

    def each(self, function: Callable[[T], R], items: Iterable[T], most: int) -> Iterator[R]:
        return _ahead(function, items, most)


def _records_first(path: AnyPath) -> bool:
    """The key of an order in which no record is left whose files are gone."""
    return path.suffix != ".json"


DISK, OBJECTS = _Disk(), _ObjectStore()


def backend_of(path: AnyPath) -> Any:
    """The backend of a path, whose verbs take such paths."""
    return OBJECTS if isinstance(path, RemotePath) else DISK


def _claim(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.replace(path)  # of two writers at once the last one wins; both files are complete


def _fsync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


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
