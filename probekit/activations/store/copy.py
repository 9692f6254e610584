"""Bring files that are named by their content from one store to another: as hard links where the disk can."""

import errno
import os
from collections.abc import Iterator

from probekit.files.durable import TEMPORARY, open_plain, refused, sync_names, write_named
from probekit.files.remote.path import AnyPath, RemotePath

_CHUNK = 1 << 20
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}


def link_or_copy(source: AnyPath, folder: AnyPath) -> None:
    """Bring a complete file into a folder under its own name, durably; one that is there is left.

    A link is safe: no file of a store is ever written to again, and `repair` replaces one by another file.

    Raises:
        StorageError: the disk refused; the folder holds no partial file of that name.
        FileNotFoundError: there is no such file.
    """
    if isinstance(source, RemotePath) or isinstance(folder, RemotePath):
        write_named(folder, _chunks(source), lambda: source.name)
        return
    target = folder / source.name
    try:
        if source.is_symlink():
            raise OSError(errno.EPERM, "a link is not linked to")
        os.link(source, target)
        sync_names(folder)
    except FileExistsError:
        sync_names(folder)  # the run that put it there may have died before
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise refused(target, error) from error
        write_named(folder, _chunks(source), lambda: source.name)


def _chunks(source: AnyPath) -> Iterator[bytes]:
    if isinstance(source, RemotePath):
        yield source.read_bytes()
        return
    with open_plain(source) as file:
        while data := file.read(_CHUNK):
            yield data


def files_in(folder: AnyPath) -> list[AnyPath]:
    """The complete files in a folder, by name; none where there is no folder."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.glob("*")) if not path.name.startswith(TEMPORARY) and path.is_file()]
