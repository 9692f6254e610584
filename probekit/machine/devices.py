"""Devices and number types as torch has them, and the memory that is free."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from probekit.errors import UsageError, nearest
from probekit.machine.dtypes import BYTES, SHORT

# Files of a control group: its limit, what it uses, and the shares of that; version 2 of the kernel's interface, and 1
_GROUP_FILES = {
    "new": ("memory.max", "memory.current", "memory.stat"),
    "old": ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
}
_FILE_PAGES = {"new": ("inactive_file", "active_file"), "old": ("total_inactive_file", "total_active_file")}

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
        if reason.startswith("Expected one of"):  # 20 types follow
            reason = "no such type of device"
        raise UsageError(
            f"device {str(device)!a:.80} cannot be used here ({reason}); give auto, cpu, cuda, cuda:1 or mps"
        ) from None
    return wanted


def find_float(dtype: str | torch.dtype) -> torch.dtype:
    """A torch type, or the type of a name such as "bfloat16", "bf16" or "torch.float16".

    Raises:
        UsageError: another type.
    """
    known, typed = {**DTYPES, "float64": torch.float64}, str(dtype).removeprefix("torch.")
    if isinstance(dtype, torch.dtype):
        if dtype.is_floating_point:
            return dtype
    elif (name := SHORT.get(typed, typed)) in known:
        return known[name]
    raise UsageError(f"dtype is a floating-point type, got {typed!a:.80}; {nearest(typed, known)}")


def has_float64(device: torch.device) -> bool:
    """True if the device computes in float64; Apple's MPS does not."""
    return device.type != "mps"


def where_float64(x: torch.Tensor) -> torch.Tensor:
    """The tensor where float64 can be computed: on its device, or else on the CPU."""
    return x if has_float64(x.device) else x.cpu()


def free_bytes(device: torch.device) -> int | None:
    """Memory of a device that is free now, within the limits of this process; None where it cannot be known."""
    if device.type == "cuda":  # what torch has reserved and does not use is free, too
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved
    if device.type != "cpu":
        return None
    known = [_available(), free_in_groups(), *_limits]
    return min((n for n in known if n is not None), default=None)


_limits: list[int] = []


@contextmanager
def at_most(n_bytes: int | None) -> Iterator[None]:
    """Inside, `free_bytes` of the CPU is at most this; None changes nothing."""
    if n_bytes is None:
        yield
        return
    _limits.append(n_bytes)
    try:
        yield
    finally:
        _limits.remove(n_bytes)


def _available(info: Path = Path("/proc/meminfo")) -> int | None:
    """What the machine has free."""
    if not info.exists():
        return None
    kilobytes = next(line.split()[1] for line in info.read_text().splitlines() if line.startswith("MemAvailable"))
    return 1024 * int(kilobytes)


def free_in_groups(own: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the control groups of this process leave it, as Slurm and containers limit it; None without a limit.

    A group's limit holds for the groups inside it, and file pages that it could drop are free.
    """
    free: list[int] = []
    for line in _lines_of(own):
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        version = "old" if controllers else "new"
        top = root / "memory" if controllers else root
        inside = top / group.strip("/")
        for folder in [inside, *inside.parents]:
            if folder == top.parent:
                break
            limit, used, pages = (_lines_of(folder / name) for name in _GROUP_FILES[version])
            if not (limit and used) or not limit[0].isdecimal():  # "max": no limit
                continue
            droppable = [int(each.split()[1]) for each in pages if each.split()[0] in _FILE_PAGES[version]]
            free.append(int(limit[0]) - int(used[0]) + sum(droppable))
    return max(0, min(free)) if free else None


def _lines_of(path: Path) -> list[str]:
    """The lines of a small file of the system; none where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
