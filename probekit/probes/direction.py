"""A probe's weights as a tensor for a hook, in a type and on a device of the model's.

Axes: C classes, D features.
"""

import numpy as np
import torch

from probekit.errors import DataError, UsageError, nearest
from probekit.machine.devices import DTYPES, find_device, has_float64
from probekit.options.kinds import DTYPES as SHORT


class NoDirection(UsageError, AttributeError):
    """The probe has no weights in activation space; an AttributeError too, so that `hasattr` says so."""


def find_float(dtype: str | torch.dtype) -> torch.dtype:
    """A torch type, or the type of a name such as "bfloat16", "bf16" or "torch.float16".

    Raises:
        UsageError: an unknown name, or a type that is not of floating-point numbers.
    """
    known, typed = {**DTYPES, "float64": torch.float64}, str(dtype).removeprefix("torch.")
    if isinstance(dtype, torch.dtype):
        if dtype.is_floating_point:
            return dtype
    elif (name := SHORT.get(typed, typed)) in known:
        return known[name]
    raise UsageError(f"dtype is a floating-point type, got {typed!a:.80}; {nearest(typed, known)}")


def as_direction(weights: np.ndarray, dtype: str | torch.dtype, device: str | torch.device) -> torch.Tensor:
    """A copy of weights [D] or [C, D] in this type on this device.

    Raises:
        UsageError: a type that is not floating, or a device that cannot be used here or does not have the type.
        DataError: weights that are infinite in this type.
    """
    wanted, place = find_float(dtype), find_device(device)
    if wanted == torch.float64 and not has_float64(place):
        raise UsageError(f"device {str(place)!a} has no float64; give dtype=torch.float32, or device='cpu'")
    given = torch.from_numpy(np.ascontiguousarray(weights))
    tensor = given.to(dtype=wanted, copy=True)
    if not bool(tensor.double().isfinite().all()):  # float8 has no isfinite of its own
        raise DataError(
            f"the largest weight, {float(given.abs().max()):.1e}, is infinite in {wanted}; take dtype=torch.float64"
        )
    return tensor.to(place)
