"""Devices that this machine does not have: every tensor gets the name of one, and every operation checks the names.

The numbers stay on the CPU. `x.device` gives the name, `x.to(...)` and `device=...` set it, and an operation on tensors
of two devices fails, as it does on real ones. A name belongs to a storage, so views and parameters share it.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
_MOVES = ("copy_", "__set__", "_has_compatible_shallow_copy_type")  # may see two devices; x.data = y is __set__
_DEVICE_OF = Tensor.device.__get__  # pyright: ignore[reportAttributeAccessIssue]


class SimulatedDevices(TorchFunctionMode):
    """Within the context, tensors are on the devices that the code asks for."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[int, tuple[torch.device, Any]] = {}  # the storages are kept, so that no address is used twice
        self.copies: list[tuple[torch.device, torch.device]] = []

    def device_of(self, x: Tensor) -> torch.device:
        return self._names.get(x.untyped_storage().data_ptr(), (CPU, None))[0]

    def _put(self, x: Tensor, device: torch.device) -> Tensor:
        self._names[x.untyped_storage().data_ptr()] = (device, x.untyped_storage())
        return x

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        with torch._C.DisableTorchFunction():
            if func == _DEVICE_OF:
                return self.device_of(args[0])
            if func == Tensor.to:
                return self._to(*args, **kwargs)
            if func == Tensor.cpu:
                return self._to(args[0], CPU)
            asked = torch.device(kwargs.pop("device")) if kwargs.get("device") is not None else None
            given = {self.device_of(x) for x in tensors([args, kwargs]) if x.dim()}
            if len(given) > 1 and func.__name__ not in _MOVES:
                raise AssertionError(f"{func.__name__} got tensors of {given}")
            out = func(*args, **kwargs)
            for x in tensors([out]):
                known = x.untyped_storage().data_ptr() in self._names
                if not known and (asked or given):
                    self._put(x, asked or next(iter(given)))
            return out

    def _to(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`x.to(device)`, `x.to(dtype)`, `x.to(device, dtype)`; a move to another device is a copy."""
        here = there = self.device_of(x)
        types = [one for one in [*args, kwargs.get("dtype")] if isinstance(one, torch.dtype)]
        for one in [*args, kwargs.get("device")]:
            there = torch.device(one) if isinstance(one, torch.device | str) else there
        out = x.to(types[0]) if types else x
        if here == there:
            return out if out is x else self._put(out, here)
        self.copies.append((here, there))
        return self._put(out.clone() if out is x else out, there)


def tensors(nested: Any) -> Iterator[Tensor]:
    for x in nested.values() if isinstance(nested, dict) else nested:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, dict | list | tuple):
            yield from tensors(x)
