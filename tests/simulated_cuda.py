"""CUDA's streams, events and pinned memory on a machine that has none: late, as the real ones may be, and strict.

A copy to pinned memory that does not block is carried out when its event is waited for, and not before. Until then the
memory holds NaN, and every operation on it fails. Copies fail, too, that would go wrong on a GPU now and then: of a
tensor that the stream has not waited for, of memory that may have been used again, into memory that is not pinned.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from simulated_devices import SimulatedDevices, key_of, tensors
from torch import Tensor

FREE, TOTAL = 60 << 30, 80 << 30


class Misused(AssertionError):
    """What would be a race, or a fault, on a GPU."""


@dataclass(eq=False)
class Copy:
    """A copy that a stream has not carried out yet."""

    host: Tensor
    source: weakref.ref[Tensor]
    values: Tensor
    recorded: bool = False


class Stream:
    """A stream of one device, with the copies that wait in it."""

    def __init__(self, cuda: "SimulatedCuda", device: torch.device):
        self.cuda, self.device, self.queue, self.waited = cuda, device, list[Copy](), dict[torch.device, int]()

    def wait_stream(self, other: "Stream") -> None:
        self.waited[other.device] = self.cuda.n_made

    def record_event(self) -> "Event":
        return Event(self, list(self.queue))


@dataclass
class Event:
    """All copies of a stream so far."""

    stream: Stream
    copies: list[Copy] = field(default_factory=list)

    def synchronize(self) -> None:
        for copy in self.copies:
            if copy in self.stream.queue:
                self.stream.cuda.carry_out(self.stream, copy)


class SimulatedCuda(SimulatedDevices):
    """Two GPUs, cuda:0 and cuda:1; cuda:0 is the current one.

    Attributes:
        order: "copy" and "arrived" in the order of events.
        n_made: how many results the GPUs have computed.
        live: the most sources of copies that were held at one time, whether their copies were carried out or not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.n_made = 0
        self._made: dict[int, int] = {}  # storage -> the number of the operation that made it
        self._pinned: set[int] = set()
        self._late: set[int] = set()
        self._own = {index: Stream(self, torch.device("cuda", index)) for index in (0, 1)}
        self._entered: list[Stream] = []
        self._sources: list[weakref.ref[Tensor]] = []
        self.live = 0

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        pinned = kwargs.pop("pin_memory", False)
        if func == Tensor.copy_ and kwargs.get("non_blocking") and self.device_of(args[1]).type == "cuda":
            return self._copy(*args[:2])
        if self._late and any(key_of(x) in self._late for x in tensors([args, kwargs])):
            raise Misused(f"{func.__name__} reads host memory before its copy has arrived")
        if func == F.scaled_dot_product_attention and kwargs.get("enable_gqa"):
            self._grouped_attention(*args, **kwargs)
        out = super().run(func, args, kwargs)
        if pinned:
            self._pinned.add(key_of(out))
        return out

    def _grouped_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **_: Any) -> None:
        """In torch 2.13 flash attention is the only fused kernel that takes fewer heads of keys than of queries."""
        if self.device_of(q).type == "cuda" and (mask is not None or q.dtype == torch.float32):
            raise Misused("attention with fewer heads of keys materialises every score, under a mask or in float32")

    def named(self, out: Any, device: torch.device | None) -> Any:
        if device is not None and device.type == "cuda":
            self.n_made += 1
            for x in tensors([out]):
                self._made[key_of(x)] = self.n_made
        return super().named(out, device)

    def _copy(self, host: Tensor, source: Tensor) -> Tensor:
        if not self._entered:
            raise Misused("a copy on the stream that computes makes the device wait")
        stream, device = self._entered[-1], self.device_of(source)
        if key_of(host) not in self._pinned:
            raise Misused("a copy into memory that is not pinned blocks")
        if stream.device != device:
            raise Misused(f"a copy of a tensor of {device} on a stream of {stream.device}")
        if stream.waited.get(device, -1) < self._made.get(key_of(source), 0):
            raise Misused("a copy of a tensor that the stream has not waited for")
        stream.queue.append(Copy(host, weakref.ref(source), source.clone()))
        self._sources.append(weakref.ref(source))
        self.live = max(self.live, sum(one() is not None for one in self._sources))
        self._late.add(key_of(host))
        host.view(torch.uint8).fill_(0xFF)  # NaN in every type
        self.order.append("copy")
        return host

    def record(self, x: Tensor, stream: Stream) -> None:
        for copy in stream.queue:
            if copy.source() is x:
                copy.recorded = True

    def carry_out(self, stream: Stream, copy: Copy) -> None:
        if copy.source() is None and not copy.recorded:
            raise Misused("the memory of a tensor may be used again before it is copied")
        stream.queue.remove(copy)
        with torch._C.DisableTorchFunction():
            self._late.remove(key_of(copy.host))
            copy.host.copy_(copy.values)
        self.order.append("arrived")

    def current(self, device: Any) -> Stream:
        return self._own[torch.device(device).index or 0]

    @contextmanager
    def entered(self, stream: Stream) -> Iterator[None]:
        self._entered.append(stream)
        try:
            yield
        finally:
            self._entered.pop()


@contextmanager
def simulated_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCuda]:
    """Within the context, this machine has two GPUs. Functions of torch.cuda must be told which one."""
    with monkeypatch.context() as patch, SimulatedCuda() as cuda:

        class OwnStream(Stream):  # a class, since other libraries name it in annotations
            def __init__(self, device: Any):
                super().__init__(cuda, _numbered(device))

        asked: dict[str, Any] = {
            "Stream": OwnStream,
            "current_stream": cuda.current,
            "synchronize": lambda device: _numbered(device),
            "mem_get_info": lambda device: (FREE, TOTAL) if _numbered(device) else None,
            "memory_reserved": lambda device: 2 << 20 if _numbered(device) else None,
            "memory_allocated": lambda device: 1 << 20 if _numbered(device) else None,
            "max_memory_allocated": lambda device: 3 << 20 if _numbered(device) else None,
            "reset_peak_memory_stats": _numbered,
            "empty_cache": lambda: None,
            "get_device_name": lambda device: f"a simulated {_numbered(device)}",
            "is_available": lambda: True,
            "device_count": lambda: 2,
            "stream": cuda.entered,
        }
        for name, function in asked.items():
            patch.setattr(torch.cuda, name, function)
        patch.setattr(torch.Tensor, "record_stream", lambda x, stream: cuda.record(x, stream))
        yield cuda


def _numbered(device: Any) -> torch.device:
    """The device, which must be a GPU; without a number it would be the current one, cuda:0."""
    device = torch.device(device)
    assert device.type == "cuda", device
    return device
