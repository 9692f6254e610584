"""Folders that are made on first use and kept in the user's cache folder.

The cache folder is PROBEKIT_CACHE, or else the platform's own place: on Linux `probekit` in XDG_CACHE_HOME or ~/.cache.
"""

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import platformdirs

from probekit.errors import StorageError
from probekit.files.durable import TEMPORARY, make_folder, refused, sync_names

STALE_SECONDS = 24 * 3600  # no training takes that long


def cache_folder() -> Path:
    """The folder for models that are trained on first use."""
    if own := os.environ.get("PROBEKIT_CACHE"):
        return Path(own).expanduser()
    return platformdirs.user_cache_path("probekit", appauthor=False)


def make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, made first if it is not there. It is either complete or absent, whatever happens.

    If two processes make it at once, the first one's folder stays and the other's is removed.

    Args:
        folder: its name identifies its content: the same name, the same content.
        make: writes the files into the empty folder that it is given.

    Raises:
        StorageError: the disk refused.
    """
    if folder.is_dir():
        return folder
    temporary = folder.parent / f"{TEMPORARY}{folder.name}-{uuid.uuid4().hex}"
    try:
        make_folder(folder.parent)
        temporary.mkdir()  # fails before the work if the place cannot be written
        _sweep(folder.parent)
        make(temporary)
        _sync(temporary)
        temporary.rename(folder)
        sync_names(folder.parent)
    except (OSError, StorageError) as error:
        if not folder.is_dir():
            why = refused(folder, error) if isinstance(error, OSError) else error
            raise StorageError(f"{why}; set PROBEKIT_CACHE to another folder for models") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _sweep(folder: Path) -> None:
    """Remove what killed runs left behind; a recent folder may belong to a run in progress."""
    for path in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path)


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    sync_names(folder)
