"""One request to an object store: repeated while that may help, and its error in plain words."""

import errno
import itertools
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from probekit.errors import ProbekitError, StorageError
from probekit.files.remote.filesystems import SCHEMES

T = TypeVar("T")

FIRST_WAIT = 0.2  # seconds before the first repetition; each later wait is twice as long
LONGEST_WAIT = 10.0
ATTEMPTS_UNREACHED = 3  # of a store that never answered: within seconds it is clear that there is none
ATTEMPTS_REACHED = 9  # of one that did: a connection that drops for half a minute ends no run
_PASSING = {errno.EBUSY, errno.EIO, errno.EAGAIN, errno.EPIPE, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.EIO)}
_NETWORK = (  # where errors of a connection are defined; those of botocore that are none have other names
    *("aiohttp", "httpx", "httpcore", "requests", "urllib3", "fsspec"),
    *("gcsfs.retry.ChecksumError", "google.auth.exceptions.TransportError", "google.auth.exceptions.RefreshError"),
    *(f"botocore.exceptions.{name}" for name in ("ConnectionError", "HTTPClientError", "ResponseStreamingError")),
)
_NO_ACCESS = ("NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError", "ProfileNotFound", "TokenRetrieval")
_BROKEN_UPLOAD = {"IncompleteBody", "BadDigest", "RequestTimeout", "XAmzContentSHA256Mismatch", "InvalidDigest"}
_NO_BUCKET = {"NoSuchBucket"}
_EXISTS = {"PreconditionFailed", "412"}
_CANNOT = {"NotImplemented", "501"}
_BEYOND = {"InvalidRange", "416"}
_reached: set[str] = set()  # schemes whose store answered this process
_pause = threading.Event()  # never set: waiting for it ends at Ctrl-C


class CannotCreate(Exception):
    """The store has no put-if-absent."""


class NotReached(StorageError):
    """The store refused a request or did not answer: whether the object is sound is not known."""


class BeyondEnd(Exception):
    """The object ends before the first byte that was requested."""


def attempt(scheme: str, where: str, request: Callable[[], T], on_repeat: Callable[[], object] | None = None) -> T:
    """The value of `request`, which is repeated after errors that may pass.

    Args:
        scheme: of the store.
        where: the place, for messages.
        request: sends it.
        on_repeat: called before each repetition.

    Raises:
        FileNotFoundError, FileExistsError, BeyondEnd: as the store says.
        CannotCreate: the store does not know the request.
        NotReached: no access, no bucket, no answer; one line with what to do. Its cause is an OSError.
    """
    for tried in itertools.count(1):
        try:
            found = request()
        except ProbekitError:
            raise
        except Exception as error:
            failed = error
        else:
            _reached.add(scheme)
            return found
        _raise_final(scheme, where, failed)
        if tried >= (ATTEMPTS_REACHED if scheme in _reached else ATTEMPTS_UNREACHED):
            told = f"refused {tried} times" if _code(failed) or _status(failed) else f"no answer after {tried} attempts"
            raise _refused(where, f"{told} ({_words(failed)})", _access(scheme), failed)
        if on_repeat:
            on_repeat()
        _pause.wait(min(FIRST_WAIT * 2 ** (tried - 1), LONGEST_WAIT))
    raise AssertionError


def _raise_final(scheme: str, where: str, error: Exception) -> None:
    """Raise what a repetition cannot change."""
    code, access = _code(error), _access(scheme)
    if code or isinstance(error, FileNotFoundError | FileExistsError):
        _reached.add(scheme)
    if code in _NO_BUCKET:
        raise _refused(where, "there is no such bucket", "make it, or name another", error)
    if isinstance(error, FileExistsError) or code in _EXISTS:
        raise FileExistsError(errno.EEXIST, "already there", where) from error
    if isinstance(error, FileNotFoundError):
        raise FileNotFoundError(errno.ENOENT, "not there", where) from error
    if isinstance(error, NotImplementedError) or code in _CANNOT:
        raise CannotCreate from error
    if _status(error) == "416" or code in _BEYOND:
        raise BeyondEnd from error
    if isinstance(error, PermissionError) or type(error).__name__.startswith(_NO_ACCESS):
        raise _refused(where, f"access was refused ({_words(error)})", access, error)
    expired = _status(error) == "401" and scheme in _reached  # a token ended in the middle of a run; there is a new one
    if not expired and not _may_pass(error, code):
        raise _refused(where, _words(error), access, error)


def _may_pass(error: Exception, code: str) -> bool:
    """True for an error of the network, and one that the store says is passing."""
    if code in _BROKEN_UPLOAD or isinstance(error, ConnectionError | TimeoutError | EOFError):
        return True
    if status := _status(error):
        return status in ("408", "429") or status.startswith("5")
    if isinstance(error, OSError) and error.errno in _PASSING:
        return True
    return any(f"{kind.__module__}.{kind.__name__}".startswith(_NETWORK) for kind in type(error).__mro__)


def _status(error: Exception) -> str:
    """The status of an answer over HTTP; "" where the error holds none."""
    status = str(getattr(error, "code", None) or getattr(getattr(error, "response", None), "status_code", ""))
    return status if status.isdecimal() else ""


def _code(error: BaseException | None) -> str:
    """The code of an answer of S3, from the error or from one that caused it."""
    while error is not None:
        response: Any = getattr(error, "response", None)
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            return str(response["Error"].get("Code", ""))
        error = error.__cause__ or error.__context__
    return ""


def _access(scheme: str) -> str:
    about = SCHEMES[scheme].access
    return f"check the address, the network and the access: {about}" if about else ""


def _words(error: Exception) -> str:
    """An error in one line; an address in it loses its user and password."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return re.sub(r"//[^/@\s]*@", "//", " ".join(str(text).split()))[:200].rstrip(". ")


def _refused(where: str, why: str, advice: str, error: Exception) -> NotReached:
    """The error of a place; its cause is an OSError, as that of a disk that refused is."""
    refused, cause = NotReached(f"{where!a}: {why}{f'; {advice}' if advice else ''}"), OSError(errno.EIO, why, where)
    cause.__cause__ = error
    refused.__cause__ = cause
    return refused
