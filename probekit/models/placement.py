"""Decide which device holds which part of a model that is larger than one device; sizes in, devices out.

Parts stay whole and in order: embedding, blocks, final norm and head. Each device is filled before the next is used.
The last blocks, if no device has room for them, stay on the host, and the last device keeps room for one of them at a
time. Filling in order is optimal for parts in a fixed order: if any such placement fits, this one does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probekit.errors import UsageError
from probekit.text import counted, metric


@dataclass(frozen=True)
class PartBytes:
    """The bytes of a model's parts, in the order in which they run.

    Attributes:
        before: what runs before the blocks: embeddings and their norm, and a head that is the embedding.
        blocks: each block.
        after: what runs after them: the final norm, and a head of its own.
    """

    before: int
    blocks: tuple[int, ...]
    after: int


@dataclass(frozen=True)
class Placement:
    """The device on which each part runs.

    Attributes:
        before: the device of what runs before the blocks.
        blocks: the device of each block.
        after: the device of what runs after them.
        n_on_host: how many of the last blocks stay on the host, and are copied to their device while they run.
    """

    before: str
    blocks: tuple[str, ...]
    after: str
    n_on_host: int = 0

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that is used, in order."""
        return tuple(dict.fromkeys([self.before, *self.blocks, self.after]))


def describe_placement(placement: Placement) -> str:
    """`"cuda:0 (12 blocks), cuda:1 (20 blocks, 8 of them kept on the host)"`."""
    counts = {device: counted(placement.blocks.count(device), "block") for device in placement.devices}
    if placement.n_on_host:
        counts[placement.after] += f", {placement.n_on_host} of them kept on the host"
    return ", ".join(f"{device} ({count})" for device, count in counts.items())


def placement_of(parts: PartBytes, free: Mapping[str, int], host: int | None) -> Placement:
    """The placement of a model's parts: as many blocks on devices as fit, the others on the host.

    Args:
        parts: their sizes.
        free: device -> bytes that weights may take there, in the order in which devices are filled.
        host: bytes that blocks may take on the host; None keeps every block on a device.

    Raises:
        UsageError: the parts do not fit; the message says how much is missing, and where.
    """
    n = len(parts.blocks)
    tried = []
    for kept in range(n, -1 if host is not None else n - 1, -1):
        room = max(parts.blocks[kept:], default=0)  # for one block of the host
        where, short = _filled([parts.before, *parts.blocks[:kept], parts.after + room], list(free.values()))
        tried.append((short, kept, where))
        if not short:
            break
    short, kept, where = min(tried, key=lambda one: one[0])  # ties go to the one that keeps the most blocks
    short_on_host = max(0, sum(parts.blocks[kept:]) - (host or 0))
    if short or short_on_host:
        raise UsageError(_too_large(parts, free, host, short, short_on_host))
    before, *blocks, after = (list(free)[device] for device in where)
    return Placement(before, (*blocks, *[after] * (n - kept)), after, n - kept)


def _filled(sizes: Sequence[int], free: Sequence[int]) -> tuple[list[int], int]:
    """The device of each part, filled in order, and the bytes by which they exceed the last device."""
    where, device, used = [], 0, 0
    for size in sizes:
        while used + size > free[device] and device + 1 < len(free):
            device, used = device + 1, 0
        used += size
        where.append(device)
    return where, max(0, used - free[device])


def _too_large(parts: PartBytes, free: Mapping[str, int], host: int | None, short: int, short_on_host: int) -> str:
    sizes = dict(free) if host is None else {**free, "the host": host}
    memory = ", ".join(f"{metric(size)}B on {device}" for device, size in sizes.items())
    missing = {list(free)[-1]: short, "the host": short_on_host}
    needed = " and ".join(f"{metric(size)}B more on {device}" for device, size in missing.items() if size)
    whole = metric(parts.before + sum(parts.blocks) + parts.after)
    return f"the model takes {whole}B, and free are {memory}; it needs {needed}"
