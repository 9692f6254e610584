"""The file systems of object stores, through fsspec: one for each scheme and process, made when it is first used.

Nothing here is imported before a place in an object store is read or written.
"""

import os
import threading
from dataclasses import dataclass
from types import MethodType
from typing import Any

from probekit.errors import StorageError

CONNECT_SECONDS, READ_SECONDS = 5, 60  # after which one attempt counts as failed
POOL = 64  # connections that may be open at once


@dataclass(frozen=True)
class Scheme:
    """What is known of one kind of object store.

    Attributes:
        package: the package with its file system.
        extra: the extra of this project that installs it; "" for none.
        options: given to the file system.
        creates: whether it can refuse to replace an object (put-if-absent) in one step.
        access: where credentials and addresses come from.
    """

    package: str
    extra: str
    options: dict[str, Any]
    creates: bool
    access: str


_S3_CONFIG = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": READ_SECONDS,
    "retries": {"total_max_attempts": 1},  # `attempts` repeats, and knows that it did
    "max_pool_connections": POOL,
}
SCHEMES = {
    "s3": Scheme(
        "s3fs",
        "s3",
        {"use_listings_cache": False, "config_kwargs": _S3_CONFIG},
        True,
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_ENDPOINT_URL for a server other than AWS",
    ),
    "gs": Scheme(
        "gcsfs",
        "gcs",
        {"use_listings_cache": False},
        True,
        "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS",
    ),
    "hf": Scheme("huggingface_hub", "", {}, False, "hf auth login, or HF_TOKEN"),
    "memory": Scheme("fsspec", "", {}, True, ""),
}
_made: dict[tuple[str, int], Any] = {}
_lock = threading.Lock()


def filesystem(scheme: str) -> Any:
    """The fsspec file system of a scheme; never one whose listings may be old, or one of a parent process.

    Raises:
        StorageError: its package is not installed, or it cannot be made.
    """
    key = scheme, os.getpid()  # the thread that talks to the network does not survive a fork
    with _lock:
        if key not in _made:
            _made[key] = _make(scheme, SCHEMES[scheme])
        return _made[key]


def _make(scheme: str, about: Scheme) -> Any:
    try:
        import fsspec

        if scheme == "gs":
            return _google(about.options)
        made = fsspec.filesystem(scheme, skip_instance_cache=scheme != "memory", **about.options)
    except ImportError as error:
        name = f"'.[{about.extra}]'" if about.extra else about.package
        raise StorageError(
            f"{scheme}:// needs the package {about.package}, which cannot be imported: pip install {name} in the "
            "checkout"
        ) from error
    except Exception as error:
        raise StorageError(f"{scheme}:// cannot be used: {type(error).__name__}: {error!s:.200}") from error
    if scheme == "s3":
        made.retries = 1
    return made


def _google(options: dict[str, Any]) -> Any:
    """Gcsfs without its own repetitions, which take half a minute and print tracebacks: `attempts` repeats.

    The class that fsspec takes would ask over gRPC for the kind of each bucket, for up to a minute.
    """
    from gcsfs.core import GCSFileSystem

    made = GCSFileSystem(skip_instance_cache=True, **options)
    once = getattr(GCSFileSystem._request, "__wrapped__", None)
    if once is not None:
        made._request = MethodType(once, made)
    return made
