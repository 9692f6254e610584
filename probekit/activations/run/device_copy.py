"""Copy shards from the device to host memory without making the device wait."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

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
    waiting: tuple[Shard, Sequence[Any]] | None = None
    for number, rows, values in shards:
        if not any(x.is_cuda for x in values.values()):
            yield number, rows, {place: x.cpu() for place, x in values.items()}
            del values  # so that memory does not hold it while the next one is computed
            continue
        started = (number, rows, {place: _pinned(x) for place, x in values.items()}), _copied(values)
        if waiting:
            yield _arrived(*waiting)
        waiting = started
    if waiting:
        yield _arrived(*waiting)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _pinned(x: Tensor) -> Tensor:
    stream = _stream(x.device)
    stream.wait_stream(torch.cuda.current_stream(x.device))
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    with torch.cuda.stream(stream):
        host.copy_(x, non_blocking=True)
    x.record_stream(stream)
    return host


def _copied(values: dict[Place, Tensor]) -> list[Any]:
    return [_stream(device).record_event() for device in {x.device for x in values.values()}]


def _arrived(shard: Shard, copied: Sequence[Any]) -> Shard:
    for event in copied:
        event.synchronize()
    return shard
