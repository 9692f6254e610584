"""Checks of the arrays that files of results hold."""

import numpy as np

from probekit.files.records import LARGEST, ensure


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
