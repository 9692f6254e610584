"""A shim between the program and the disk: it counts, delays and records calls, makes one fail, or kills at one.

And a model of a disk that loses power, fed with what was recorded: of a file it keeps what was fsynced, of a folder the
names that stood in it when it was fsynced; what came later may be there, or not.
"""

import base64
import builtins
import errno
import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

Event = tuple[str, str, str, str, int]  # operation, path, other path, bytes in base64, number of the call
CHANGES = ("create", "write", "fsync", "rename", "link", "mkdir", "unlink")
EVERY = -1
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EPERM": errno.EPERM}


class Shim:
    """What happens to calls that change something under `root`.

    Args:
        root: other paths are left alone.
        at: number of the call, of `operations`, at which `fault` happens; from 0. `EVERY`: at each of them.
        fault: "kill" or the name of an error; half of what a write wants to write is written before.
        delay: seconds before each call.
        log: file that gets every call that was carried out, one JSON list a line.
        operations: what is counted.
    """

    def __init__(
        self,
        root: Path,
        at: int | None = None,
        fault: str = "",
        delay: float = 0.0,
        log: Path | None = None,
        operations: Sequence[str] = CHANGES,
    ):
        self.root = str(root)
        self.at, self.fault, self.delay, self.operations = at, fault, delay, operations
        self.count = 0
        self.hit = ""
        self._lock = threading.RLock()
        self._open, self._os_open, self._os_write = io.open, os.open, os.write
        self._log = self._os_open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if log else None

    def _sees(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + "/")

    def call(self, operation: str, do: Callable[[], Any], path: Any, other: Any = "", data: bytes = b"") -> Any:
        path, other = str(Path(path).absolute()), other and str(Path(other).absolute())
        if not self._sees(path):
            return do()
        with self._lock:
            time.sleep(self.delay)
            if operation in self.operations:
                self.count += 1
                if self.at in (self.count - 1, EVERY):
                    self._fail(operation, path)
            result = do()
            self._record(operation, path, other, data)
            return result

    def _fail(self, operation: str, path: str) -> None:
        self.hit = f"{operation} {Path(path).name}"
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(ERRORS[self.fault], os.strerror(ERRORS[self.fault]), path)

    def _record(self, operation: str, path: str, other: str, data: bytes) -> None:
        if self._log is not None:
            line = json.dumps([operation, path, other, base64.b64encode(data).decode(), self.count - 1]) + "\n"
            self._os_write(self._log, line.encode())

    @contextmanager
    def between(self) -> Iterator["Shim"]:
        """Stand between the program and the disk."""
        one = {"unlink": "unlink", "remove": "unlink", "mkdir": "mkdir"}
        two = {"replace": "rename", "rename": "rename", "link": "link"}
        whole: dict[str, Any] = {name: self._of_one(getattr(os, name), what) for name, what in one.items()}
        whole |= {name: self._of_two(getattr(os, name), what) for name, what in two.items()}
        whole |= {name: self._of_fd(getattr(os, name)) for name in ("fsync", "fdatasync")}
        whole |= {"open": self._opened, "write": self._written}
        files = mock.patch.object(io, "open", self._file), mock.patch.object(builtins, "open", self._file)
        with mock.patch.multiple(os, **whole), files[0], files[1]:
            yield self

    def _of_one(self, real: Any, operation: str) -> Any:
        return lambda path, *args, **kw: self.call(operation, lambda: real(path, *args, **kw), path)

    def _of_two(self, real: Any, operation: str) -> Any:
        return lambda src, dst, **kw: self.call(operation, lambda: real(src, dst, **kw), src, dst)

    def _of_fd(self, real: Any) -> Any:
        return lambda fd: self.call("fsync", lambda: real(fd), _path_of(fd))

    def _opened(self, path: Any, flags: int, *args: Any, **kw: Any) -> int:
        creates = flags & (os.O_CREAT | os.O_TRUNC)
        do = lambda: self._os_open(path, flags, *args, **kw)  # noqa: E731
        return self.call("create", do, path) if creates else do()

    def _written(self, fd: int, data: bytes) -> int:
        return self.put(fd, bytes(data))

    def put(self, fd: int, data: bytes) -> int:
        """Write all, or half and then the fault."""
        path = _path_of(fd)

        def do() -> int:
            done = 0
            while done < len(data):
                done += self._os_write(fd, data[done:])
            return done

        with self._lock:  # another thread's call must not take the number, and the fault, after half has been written
            if self.count == self.at and self._sees(path) and "write" in self.operations:
                self._os_write(fd, data[: len(data) // 2])
                self._record("write", path, "", data[: len(data) // 2])
            return self.call("write", do, path, data=data)

    def _file(self, file: Any, mode: str = "r", *args: Any, **kw: Any) -> Any:
        if not set(mode) & set("wxa+") or not (isinstance(file, int) or self._sees(str(Path(file).absolute()))):
            return self._open(file, mode, *args, **kw)
        raw_mode = mode.replace("b", "").replace("t", "") + "b"
        do = lambda: self._open(file, raw_mode, buffering=0)  # noqa: E731
        return _File(self, do() if isinstance(file, int) else self.call("create", do, file))


class _File:
    """A file that is being written; nothing reaches the disk before it is flushed or closed."""

    def __init__(self, shim: Shim, raw: Any):
        self._shim, self._raw, self._held = shim, raw, b""

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def write(self, data: Any) -> int:
        self._held += data.encode() if isinstance(data, str) else bytes(data)
        return len(data)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        held, self._held = self._held, b""
        if held:
            self._shim.put(self._raw.fileno(), held)

    def close(self) -> None:
        try:
            if not self._raw.closed:
                self.flush()
        finally:
            self._raw.close()


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115


def events(log: Path) -> list[Event]:
    return [tuple(json.loads(line)) for line in log.read_text().splitlines()]


class Inode:
    """A file or a folder, as the program sees it and as the platter has it."""

    def __init__(self, is_folder: bool):
        self.is_folder = is_folder
        self.data = self.synced = b""
        self.names: dict[str, Inode] = {}
        self.synced_names: dict[str, Inode] = {}
        self.pending: list[list[tuple[str, Inode | None]]] = []  # changes of names since then, each whole or absent

    def change(self, *names: tuple[str, "Inode | None"]) -> None:
        self.pending.append(list(names))
        _apply(self.names, names)

    def fsync(self) -> None:
        self.synced, self.synced_names, self.pending = self.data, dict(self.names), []


def _apply(names: dict[str, Inode], changes: Sequence[tuple[str, Inode | None]]) -> None:
    for name, inode in changes:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


class PowerLoss:
    """A folder, empty and durable at first, that goes through recorded calls; then the power goes."""

    def __init__(self, root: Path):
        self.root, self.top = root, Inode(is_folder=True)

    def _find(self, path: str) -> Inode:
        inode = self.top
        for name in Path(path).relative_to(self.root).parts:
            inode = inode.names[name]
        return inode

    def _parent(self, path: str) -> tuple[Inode, str]:
        return self._find(str(Path(path).parent)), Path(path).name

    def apply(self, event: Event) -> None:
        operation, path, other, data, _ = event
        if operation == "write":
            self._find(path).data += base64.b64decode(data)
        elif operation == "fsync":
            self._find(path).fsync()
        elif operation in ("create", "mkdir"):
            self._create(path, operation == "mkdir")
        elif operation == "unlink":
            folder, name = self._parent(path)
            folder.change((name, None))
        else:
            self._move(path, other, operation == "rename")

    def _create(self, path: str, is_folder: bool) -> None:
        folder, name = self._parent(path)
        if name in folder.names:
            folder.names[name].data = b""
        else:
            folder.change((name, Inode(is_folder)))

    def _move(self, path: str, other: str, is_rename: bool) -> None:
        (source, old), (target, new) = self._parent(path), self._parent(other)
        gone: list[tuple[str, Inode | None]] = [(old, None)] if is_rename else []
        if source is target:
            source.change((new, source.names[old]), *gone)
        else:
            target.change((new, source.names[old]))
            source.change(*gone)

    def leave(self, folder: Path, how: str, rng: np.random.Generator) -> None:
        """What is found in `folder` afterwards.

        Args:
            folder: made here.
            how: "nothing lost"; "undone" (names that were not fsynced are not there), "kept" (they are, but no content
                that was not fsynced), "mixed" (any of the names, and any part of the contents).
            rng: chooses, for "mixed".
        """
        self._leave(self.top, folder, how, rng)

    def _leave(self, inode: Inode, path: Path, how: str, rng: np.random.Generator) -> None:
        if not inode.is_folder:
            path.write_bytes(_content(inode, how, rng))
            return
        path.mkdir()
        names = dict(inode.synced_names)
        for changes in inode.pending:
            if how in ("nothing lost", "kept") or (how == "mixed" and rng.random() < 0.5):
                _apply(names, changes)
        for name, inner in names.items():
            self._leave(inner, path / name, how, rng)


def _content(inode: Inode, how: str, rng: np.random.Generator) -> bytes:
    if how == "nothing lost" or inode.data == inode.synced:
        return inode.data
    return inode.data[: rng.integers(len(inode.data) + 1)] if how == "mixed" else inode.synced
