"""A place in an object store that is used like a `pathlib.Path`, with the few verbs that a store needs.

An object store has no folders: a name with objects below it counts as one. What is written is visible as a whole or not
at all, listings are asked for anew each time, and nothing is requested before a verb that needs it.
"""

import fnmatch
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from probekit.errors import UsageError
from probekit.files.remote.attempts import BeyondEnd, CannotCreate, attempt
from probekit.files.remote.filesystems import SCHEMES, filesystem

T = TypeVar("T")

ONE_REQUEST = 256 << 20  # bytes of one upload; more go in parts, which are visible when all are there
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/(/?)(.*)", re.DOTALL | re.IGNORECASE)
_ALIASES = {"gcs": "gs", "s3a": "s3"}


@dataclass(frozen=True)
class Entry:
    """What a listing says of one name.

    Attributes:
        path: the place.
        is_folder: True for a folder, or if there are objects below it, and none of this name.
        st_size: bytes.
        st_mtime: date of the object by the store's own clock, seconds since 1970; 0 where the store does not say.
    """

    path: Any
    is_folder: bool
    st_size: int
    st_mtime: float

    @property
    def st_mtime_ns(self) -> int:
        """The date in nanoseconds."""
        return int(self.st_mtime * 1e9)


class RemotePath:
    """A place in an object store: `RemotePath("s3", "bucket/folder")`. Made by `as_path`.

    Every verb that asks the store raises a StorageError if there is no access, no bucket or no answer.

    Args:
        scheme: "s3", "gs", "hf" or "memory".
        key: bucket and names, with slashes between them.
    """

    __slots__ = ("key", "scheme")

    def __init__(self, scheme: str, key: str):
        self.scheme, self.key = scheme, key

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}"

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: "RemotePath") -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: object) -> "RemotePath":
        return RemotePath(self.scheme, f"{self.key}/{_joined(str(name))}")

    @property
    def name(self) -> str:
        """What follows the last slash."""
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return Path(self.name).stem

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot."""
        return Path(self.name).suffix

    @property
    def parent(self) -> "RemotePath":
        """The folder; of a bucket, the bucket."""
        return RemotePath(self.scheme, self.key.rpartition("/")[0] or self.key)

    @property
    def parents(self) -> list["RemotePath"]:
        """The folder, its folder, and so on to the bucket."""
        names = self.key.split("/")
        return [RemotePath(self.scheme, "/".join(names[:n])) for n in range(len(names) - 1, 0, -1)]

    def relative_to(self, folder: "RemotePath") -> Path:
        """The names below a folder.

        Raises:
            ValueError: it is not below that folder.
        """
        if not self.key.startswith(f"{folder.key}/"):
            raise ValueError(f"{str(self)!r} is not below {str(folder)!r}")
        return Path(self.key.removeprefix(f"{folder.key}/"))

    def resolve(self) -> "RemotePath":
        """The same place: there are no links."""
        return self

    def absolute(self) -> "RemotePath":
        """The same place."""
        return self

    def exists(self) -> bool:
        """True if there is an object of this name, or one below it."""
        return self._entry() is not None

    def is_dir(self) -> bool:
        """True if there are objects below this name."""
        found = self._entry()
        return found is not None and found.is_folder

    def is_file(self) -> bool:
        """True if there is an object of this name."""
        found = self._entry()
        return found is not None and not found.is_folder

    def is_object(self) -> bool:
        """True if there is an object of this name; one request, where `is_file` takes two if there is none."""
        if self.scheme == "hf":  # whose ranges are read in blocks of megabytes
            return self.is_file()
        try:
            self.read_bytes(0, 1)
        except FileNotFoundError:
            return False
        return True

    def stat(self) -> Entry:
        """Size and date of the object, asked for anew.

        Raises:
            FileNotFoundError: there is none.
        """
        found = self._entry()
        if found is None:
            raise FileNotFoundError(2, "not there", str(self))
        return found

    def entries(self) -> list[Entry]:
        """What is directly below this name, by name, with sizes and dates; empty where there is nothing."""

        def listing(files: Any) -> list[dict[str, Any]]:
            files.invalidate_cache()
            return files.ls(self.key, detail=True)

        try:
            found = [self._as_entry(one) for one in self._ask(listing)]
        except FileNotFoundError:
            return []
        return sorted((one for one in found if one.path.parent == self and one.path != self), key=lambda one: one.path)

    def iterdir(self) -> Iterator["RemotePath"]:
        """The places directly below this one."""
        return (one.path for one in self.entries())

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """The places below this one whose names match a pattern such as "*.json" or "s*/*.safetensors"."""
        head, _, rest = pattern.partition("/")
        for one in self.entries():
            if fnmatch.fnmatchcase(one.path.name, head) and (not rest or one.is_folder):
                yield from one.path.glob(rest) if rest else [one.path]

    def rglob(self, name: str) -> Iterator["RemotePath"]:
        """Every object below this place that has a name."""
        for one in self.entries():
            if one.is_folder:
                yield from one.path.rglob(name)
            elif fnmatch.fnmatchcase(one.path.name, name):
                yield one.path

    def read_bytes(self, start: int = 0, end: int | None = None) -> bytes:
        """Bytes of the object from `start` to before `end`, in one request; fewer where it ends sooner.

        Raises:
            FileNotFoundError: there is none.
        """
        if end is not None and end <= start:
            return b""
        bounds = {} if end is None and start == 0 else {"start": start, "end": end}
        try:
            return self._ask(lambda files: files.cat_file(self.key, **bounds))
        except BeyondEnd:
            return b""

    def write_bytes(self, data: bytes) -> None:
        """Put an object here, in place of one that is there; no reader ever sees a part of it."""
        self._ask(lambda files: files.pipe_file(self.key, data, **self._in_parts(data)))

    def create(self, data: bytes) -> bool:
        """Put an object here unless there is one; False if there is.

        A store that cannot refuse to replace an object is asked first whether there is one: of two writers at once the
        last one wins there, which names made of the content make harmless.
        """
        if not SCHEMES[self.scheme].creates:
            return self._create_if_missing(data)
        repeated: list[bool] = []
        how = {"mode": "create", **self._in_parts(data)}
        try:
            self._ask(lambda files: files.pipe_file(self.key, data, **how), lambda: repeated.append(True))
        except CannotCreate:
            return self._create_if_missing(data)
        except FileExistsError:
            # the answer to the first request may have been lost: then the object is this one
            return (bool(repeated) or self.scheme == "gs") and self.read_bytes() == data
        return True

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object.

        Raises:
            FileNotFoundError: there is none, and not `missing_ok`.
        """
        try:
            self._ask(lambda files: files.rm_file(self.key))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def _create_if_missing(self, data: bytes) -> bool:
        if self.exists():
            return False
        self.write_bytes(data)
        return True

    def _in_parts(self, data: bytes) -> dict[str, int]:
        """S3 takes an object in one request below twice the size of a part."""
        return {"chunksize": ONE_REQUEST // 2} if self.scheme == "s3" and len(data) else {}

    def _entry(self) -> Entry | None:
        def info(files: Any) -> dict[str, Any]:
            files.invalidate_cache()
            return files.info(self.key)

        try:
            return self._as_entry(self._ask(info))
        except FileNotFoundError:
            return None

    def _as_entry(self, info: dict[str, Any]) -> Entry:
        changed: Any = info.get("LastModified") or info.get("mtime") or info.get("created") or info.get("updated")
        date = changed.timestamp() if hasattr(changed, "timestamp") else 0.0
        path = RemotePath(self.scheme, str(info["name"]).strip("/"))
        return Entry(path, info["type"] == "directory", int(info.get("size") or 0), date)

    def _ask(self, request: Callable[[Any], T], on_repeat: Callable[[], object] | None = None) -> T:
        files = filesystem(self.scheme)
        return attempt(self.scheme, str(self), lambda: request(files), on_repeat)


AnyPath = Path | RemotePath


def as_path(value: "str | Path | RemotePath") -> AnyPath:
    """A place in an object store ("s3://bucket/x", "gs://", "hf://datasets/owner/name", "memory://"), or on disk.

    `Path("s3://bucket/x")`, in which pathlib leaves one slash, is the same place.

    Raises:
        UsageError: another scheme, no bucket, "..", a version, or credentials in the address.
    """
    if isinstance(value, RemotePath):
        return value
    text = str(value)
    if text.endswith(":") and text[:-1] in SCHEMES:  # what pathlib leaves of "s3://"
        text += "/"
    found = _ADDRESS.fullmatch(text)
    scheme = found[1].lower() if found else ""
    scheme = _ALIASES.get(scheme, scheme)
    if found is None or (scheme not in SCHEMES and _is_on_disk(value, found)):
        return Path(value)
    if scheme not in SCHEMES:
        known = ", ".join(f"{one}://" for one in SCHEMES)
        raise UsageError(f"no store can be at '{found[1]}://'; name a folder, or a place that starts with {known}")
    if scheme in ("s3", "gs") and "@" in found[3].partition("/")[0]:
        raise UsageError(f"{scheme}:// takes a bucket and no credentials; give those in the environment")
    if scheme == "s3" and "?versionId=" in found[3]:  # which s3fs would cut off, with all that follows
        raise UsageError(f"{str(value)!a:.80}: a store is many objects, and has no versionId; leave it out")
    key = _joined(found[3])
    if not key:
        raise UsageError(f"'{scheme}://' names no bucket; write {scheme}://BUCKET/FOLDER")
    if scheme == "hf" and key.partition("/")[0] not in ("datasets", "models", "spaces"):
        key = f"datasets/{key}"  # stores are in dataset repositories: hf://owner/name is one
    return RemotePath(scheme, key)


def _is_on_disk(value: "str | Path", found: "re.Match[str]") -> bool:
    """True for "x:/y" as a text; `Path("abfs://y")` looks the same, so that of a path the folder "x:" must be there."""
    return not found[2] and (not isinstance(value, Path) or Path(f"{found[1]}:").exists())


def local_path(path: AnyPath) -> Path | None:
    """The path, for what must be a file of this machine; None for a place in an object store."""
    return None if isinstance(path, RemotePath) else path


def is_private(path: AnyPath) -> bool:
    """True for a place that no other process sees, and that is gone when this one ends."""
    return isinstance(path, RemotePath) and path.scheme == "memory"


def _joined(names: str) -> str:
    """Names with one slash between them."""
    parts = [part for part in names.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise UsageError(f"{names!a:.80}: '..' has no meaning in an object store; write the whole address")
    return "/".join(parts)
