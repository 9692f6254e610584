"""A file of results whose hash is in results.json, and the arrays in it."""

import hashlib
from pathlib import Path

import numpy as np

from probekit.errors import DataError
from probekit.files.plain_files import MAX_WEIGHTS, read_bytes
from probekit.files.records import LARGEST, ensure


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


def check_array(x: np.ndarray, kinds: str, name: str, shape: tuple[int, ...] | None = None) -> None:
    """Check the type, shape and size of the values of an array.

    Args:
        x: the array.
        kinds: "f" for floats, "i" for whole numbers, "fi" for either.
        name: of the array, for messages.
        shape: of it; None for any.

    Raises:
        Unfit: another type or shape; NaN, infinity or larger than any result.
    """
    expected = {"f": "floating-point numbers", "i": "whole numbers"}.get(kinds, "numbers")
    ensure(x.dtype.kind in kinds, expected, x.dtype.name, name)
    ensure(shape is None or x.shape == shape, f"the shape {list(shape or ())}", list(x.shape), name)
    is_small = not x.size or bool((np.abs(x.astype(np.float64)) <= LARGEST).all())  # False for nan
    ensure(is_small, f"finite numbers of at most {LARGEST:g}", "NaN, infinity or a larger one", name)
