"""Devices and number types as torch has them, and the memory that is free."""

from pathlib import Path

import torch

from probekit.dtypes import BYTES
from probekit.errors import UsageError

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in BYTES}


def find_device(device: str | torch.device, default: torch.device | None = None) -> torch.device:
    """A device that can hold values.

    Args:
        device: as in torch ("cpu", "cuda", "cuda:1", "mps"), or "auto".
        default: what "auto" means; None takes CUDA where there is any, else the CPU.

    Raises:
        UsageError: torch cannot use it here.
    """
    if str(device) == "auto":
        return default or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
        if wanted.type == "cpu" and wanted.index:  # torch accepts any index here
            raise RuntimeError("the only CPU is cpu")
        torch.empty(1, device=wanted).item()  # fails for the meta device, which holds no values
    except (RuntimeError, AssertionError, TypeError) as error:  # AssertionError: a torch without CUDA
        reason = str(error).splitlines()[0][:200]
        raise UsageError(
            f"device {str(device)!a:.80} cannot be used here ({reason}); give auto, cpu, cuda, cuda:1 or mps"
        ) from None
    return wanted


def has_float64(device: torch.device) -> bool:
    """True if the device computes in float64; Apple's MPS does not."""
    return device.type != "mps"


def where_float64(x: torch.Tensor) -> torch.Tensor:
    """The tensor where float64 can be computed: on its device, or else on the CPU."""
    return x if has_float64(x.device) else x.cpu()


def free_bytes(device: torch.device) -> int | None:
    """Memory of a device that is free now; None where it cannot be known."""
    if device.type == "cuda":  # what torch has reserved and does not use is free, too
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved
    if device.type == "cpu" and (info := Path("/proc/meminfo")).exists():
        kilobytes = next(line.split()[1] for line in info.read_text().splitlines() if line.startswith("MemAvailable"))
        return 1024 * int(kilobytes)
    return None
