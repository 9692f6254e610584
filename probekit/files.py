"""Files that are whole or absent: written beside their place, flushed, then moved there."""

import os
import tempfile
from pathlib import Path

from probekit.errors import StorageError


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path`; whoever reads meanwhile finds the old file or the new one, never a part.

    Raises:
        StorageError: the disk refused; nothing is left behind.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name[:64]}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # tempfile's own 0600 would keep a shared folder's other readers out
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"could not write {str(path)!a}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
