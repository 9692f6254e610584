"""Devices that this machine does not have: every tensor gets the name of one, and every operation checks the names.

The numbers stay on the CPU. `x.device` gives the name, `x.to(...)` and `device=...` set it, and an operation on tensors
of two devices fails, as it does on real ones; so does numpy on a tensor that is not on the CPU. A name belongs to a
storage, so views and parameters share it. `simulated_cuda.py` adds streams and pinned memory.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
_MOVES = ("copy_", "__set__", "_has_compatible_shallow_copy_type")  # may see two devices; x.data = y is __set__
_DEVICE_OF = Tensor.device.__get__  # pyright: ignore[reportAttributeAccessIssue]
_IS_CUDA = Tensor.is_cuda.__get__  # pyright: ignore[reportAttributeAccessIssue]
_TO_NUMPY = (Tensor.numpy, Tensor.__array__)
_INDEXED = (Tensor.__getitem__, Tensor.__setitem__)
_NOT_ON_MPS = ("segment_reduce",)  # operations that torch has not got on Apple's GPUs


class SimulatedDevices(TorchFunctionMode):
    """Within the context, tensors are on the devices that the code asks for.

    Attributes:
        copies: (from, to) of each move to another device.
        used: every device that a tensor was made on or moved to.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[int, tuple[torch.device, Any]] = {}  # the storages are kept, so that no address is used twice
        self.copies: list[tuple[torch.device, torch.device]] = []
        self.used: set[str] = set()

    def device_of(self, x: Tensor) -> torch.device:
        return self._names.get(key_of(x), (CPU, None))[0]

    def _put(self, x: Tensor, device: torch.device) -> Tensor:
        if device.type in ("cuda", "mps") and device.index is None:
            device = torch.device(device.type, 0)  # a tensor's device has a number
        self._names[key_of(x)] = (device, x.untyped_storage())
        self.used.add(str(device))
        if device.type == "mps" and x.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as MPS has no float64")
        return x

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        with torch._C.DisableTorchFunction():
            if func == _DEVICE_OF:
                return self.device_of(args[0])
            if func == _IS_CUDA:
                return self.device_of(args[0]).type == "cuda"
            if func.__name__ == "__get__":  # shape, dtype and the like, or a view
                return func(*args)
            if func == Tensor.to:
                return self._to(*args, **kwargs)
            if func == Tensor.cpu:
                return self._to(args[0], CPU)
            if func in _TO_NUMPY and self.device_of(args[0]) != CPU and not kwargs.get("force"):
                raise TypeError(f"can't convert {self.device_of(args[0])} device type tensor to numpy")
            asked = torch.device(kwargs.pop("device")) if kwargs.get("device") is not None else None
            checked = [args[0], *args[2:]] if func in _INDEXED and self.indexed_from_cpu(args[1]) else [args, kwargs]
            given = {self.device_of(x) for x in tensors(checked) if x.dim()}
            if len(given) > 1 and func.__name__ not in _MOVES:
                raise AssertionError(f"{func.__name__} got tensors of {given}")
            if func.__name__ in _NOT_ON_MPS and any(device.type == "mps" for device in given):
                raise NotImplementedError(f"{func.__name__} is not implemented for the MPS device")
            device = asked or (None if func.__name__ in _MOVES else next(iter(given), None))
            return self.named(self.run(func, args, kwargs), device)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Carry out an operation whose tensors are on one device."""
        return func(*args, **kwargs)

    def indexed_from_cpu(self, index: Any) -> bool:
        """True if the tensors of an index are all on the CPU, from where every device takes them."""
        return all(self.device_of(x) == CPU for x in tensors([index if isinstance(index, tuple | list) else [index]]))

    def named(self, out: Any, device: torch.device | None) -> Any:
        """The result of an operation, on this device if it is new."""
        for x in tensors([out]):
            if device is not None and key_of(x) not in self._names:
                self._put(x, device)
        return out

    def _to(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`x.to(device)`, `x.to(dtype)`, `x.to(device, dtype)`; a move to another device is a copy."""
        here = there = self.device_of(x)
        types = [one for one in [*args, kwargs.get("dtype")] if isinstance(one, torch.dtype)]
        for one in [*args, kwargs.get("device")]:
            if isinstance(one, Tensor):  # x.to(other)
                there, types = self.device_of(one), [one.dtype]
            there = torch.device(one) if isinstance(one, torch.device | str) else there
        if there.type == here.type and there.index is None:
            there = here
        out = x.to(types[0]) if types else x
        if here == there:
            return out if out is x else self._put(out, here)
        self.copies.append((here, there))
        return self._put(out.clone() if out is x else out, there)


def key_of(x: Tensor) -> int:
    """The storage of a tensor, which its views share."""
    return x.untyped_storage()._cdata


def tensors(nested: Any) -> list[Tensor]:
    """Every tensor in nested lists, tuples and dictionaries."""
    found: list[Tensor] = []
    for x in nested.values() if isinstance(nested, dict) else nested:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, dict | list | tuple):
            found += tensors(x)
    return found
