"""A file of results whose hash is in results.json."""

import hashlib
from pathlib import Path

from probekit.errors import DataError
from probekit.plain_files import MAX_WEIGHTS, read_bytes


def read_part(path: Path, sha256: str) -> bytes:
    """The content of a file of results.

    Raises:
        DataError: it is missing, unreadable, damaged, or not of these results.
    """
    try:
        data = read_bytes(path, MAX_WEIGHTS)
    except (OSError, ValueError) as error:
        raise DataError(f"could not read {str(path)!a} ({error}); train again") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DataError(f"{str(path)!a} is not the one of these results, or is damaged; train again")
    return data
