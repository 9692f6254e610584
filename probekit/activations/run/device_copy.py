"""Copy shards from the device to host memory without making the device wait."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from probekit.points import Place

Shard = tuple[int, np.ndarray, dict[Place, Tensor]]  # number, rows, values


def on_host(shards: Iterator[Shard]) -> Iterator[Shard]:
    """The same shards in host memory.

    Shards on a GPU are copied into pinned memory on a separate stream, each while the next one is computed, so that at
    most two are held.
    """
    waiting: tuple[Shard, Callable[[], None]] | None = None
    copies: HostCopies | None = None
    for number, rows, values in shards:
        device = next(iter(values.values())).device
        if device.type != "cuda":
            yield number, rows, {place: x.cpu() for place, x in values.items()}
            del values  # so that memory does not hold it while the next one is computed
            continue
        copies = copies or HostCopies(device)
        copied, arrive = copies.start(list(values.values()))
        started = (number, rows, dict(zip(values, copied, strict=True))), arrive
        del values  # the GPU may use their memory again as soon as they are copied
        if waiting:
            yield _arrived(*waiting)
        waiting = started
    if waiting:
        yield _arrived(*waiting)


def _arrived(shard: Shard, arrive: Callable[[], None]) -> Shard:
    arrive()
    return shard


class HostCopies:
    """Copies from one GPU into pinned memory, on a stream of its own: all that this project does with streams.

    Args:
        device: the GPU of every tensor.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def start(self, values: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], None]]:
        """Begin to copy tensors that the current stream computes; the caller may let go of them at once.

        Returns:
            The copies, and a function that waits until they may be read.
        """
        copied = [torch.empty(x.shape, dtype=x.dtype, pin_memory=True) for x in values]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for host, x in zip(copied, values, strict=True):
                host.copy_(x, non_blocking=True)
                x.record_stream(self._stream)  # its memory is not used again before this stream has read it
        return copied, self._stream.record_event().synchronize
