"""What people give as tensors: tensors, NumPy arrays, lists, numbers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def to_tensor(given: Any) -> Tensor | None:
    """A dense tensor with these values, lists of floats in float64; None for anything that is no array of numbers.

    Tensors are returned as they are. Arrays are copied, so read-only ones and views in any order will do.
    """
    if isinstance(given, Tensor):
        is_dense = given.layout == torch.strided and not given.is_quantized and given.device.type != "meta"
        return given if is_dense else None
    try:
        array = np.array(given)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, tensors on a GPU
        return None
    if array.dtype.kind not in "biufc":
        return None
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))


def in_one_line(given: Any) -> str:
    """What was given, in one short line of a message."""
    return " ".join(f"{given!a:.60}".split())
