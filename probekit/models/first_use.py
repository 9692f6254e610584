"""A model that is made on first use, and kept in the user's cache folder.

The folder is PROBEKIT_CACHE, or probekit in XDG_CACHE_HOME, or ~/.cache/probekit.
"""

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from probekit.durable import TEMPORARY, keep_names, make_folder, refused
from probekit.errors import StorageError

STALE_SECONDS = 24 * 3600  # nothing takes that long to make


def cache_folder() -> Path:
    """Where the user's models are kept."""
    if own := os.environ.get("PROBEKIT_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path("~/.cache").expanduser()) / "probekit"


def kept(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, made first if it is not there: it is whole or absent, whatever happens.

    Of two processes that make it at once the first one's folder stays, and the other one's goes.

    Args:
        folder: its name says what is in it; equal names, equal content.
        make: writes the files into the folder that it is given, which is there and empty.

    Raises:
        StorageError: the disk refused.
    """
    if folder.is_dir():
        return folder
    temporary = folder.parent / f"{TEMPORARY}{folder.name}-{uuid.uuid4().hex}"
    try:
        make_folder(folder.parent)
        temporary.mkdir()  # a place that cannot be written is found out before the work
        _sweep(folder.parent)
        make(temporary)
        _sync(temporary)
        temporary.rename(folder)
        keep_names(folder.parent)
    except (OSError, StorageError) as error:
        if not folder.is_dir():
            why = refused(folder, error) if isinstance(error, OSError) else error
            raise StorageError(f"{why}; PROBEKIT_CACHE may name another folder for models") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _sweep(folder: Path) -> None:
    """Remove what runs that died long ago had begun; another run's may be in use."""
    for path in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path)


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    keep_names(folder)
