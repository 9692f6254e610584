"""A model that is made on first use, and kept in the user's cache folder.

The folder is PROBEKIT_CACHE, or probekit in XDG_CACHE_HOME, or ~/.cache/probekit.
"""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from probekit.durable import TEMPORARY, keep_names, make_folder, refused


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
        make: writes the files into the folder that it is given.

    Raises:
        StorageError: the disk refused.
    """
    if folder.is_dir():
        return folder
    make_folder(folder.parent)
    temporary = folder.parent / f"{TEMPORARY}{folder.name}-{uuid.uuid4().hex}"
    try:
        make(temporary)
        _sync(temporary)
        temporary.rename(folder)
        keep_names(folder.parent)
    except OSError as error:
        if not folder.is_dir():
            raise refused(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    keep_names(folder)
