"""Run a model whose weights are elsewhere: on several devices and the host, as `placement.py` decided, or narrower.

Each part computes on its device: what it is given (stream, mask, rotations) is copied there first. A block of
the host is copied to its device when it runs, and leaves it afterwards. The arithmetic is the same, in the same order.
Points fire where their part computes, so a hook may see tensors of another device than the model's first.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from probekit.errors import UsageError
from probekit.machine.devices import free_bytes
from probekit.models.accounting import block_width
from probekit.models.base import LanguageModel
from probekit.models.families import shape_of
from probekit.models.placement import PartBytes, Placement, placement_of

BATCH_TOKENS = 16384  # the default batch of an extraction on a GPU
TEXT_TOKENS = 1024  # in a text of such a batch; capped scores take memory by its square
SPARE = 0.05  # of the free memory, for what the allocator rounds up and what kernels need
HOST = torch.device("cpu")
M = TypeVar("M", bound=LanguageModel)
Copies = WeakTensorKeyDictionary
"""A tensor -> its copy on one device, which is freed with the original."""


def choose_placement(model: LanguageModel, dtype: torch.dtype) -> Placement:
    """The placement of a model, which may be on the meta device, over the GPUs as they are now, and the host.

    Each GPU keeps room for the activations of a batch. Without a GPU, everything is on the host, as usual.

    Raises:
        UsageError: a model of two stacks, or one that does not fit.
    """
    (stack, *more) = shape_of(model.cfg).stacks
    if more:
        raise UsageError("device_map (--device-map) is for models of one stack; leave it out for an encoder-decoder")
    parts, room = part_bytes(model, dtype), BATCH_TOKENS * block_width(stack, TEXT_TOKENS) * dtype.itemsize
    gpus = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    host = int((1 - SPARE) * (free_bytes(HOST) or 1 << 62))
    if not gpus:
        return placement_of(parts, {str(HOST): host}, host=None)
    free = {str(gpu): int((1 - SPARE) * (free_bytes(gpu) or 0)) - room for gpu in gpus}
    return placement_of(parts, {gpu: max(0, size) for gpu, size in free.items()}, host)


def part_bytes(model: LanguageModel, dtype: torch.dtype) -> PartBytes:
    """The bytes of each part of a model in this type."""
    sizes = {"before": 0, "after": 0} | dict.fromkeys(range(len(_blocks(model))), 0)
    for name, weight in model.named_parameters():
        sizes[_part_of(model, name)] += weight.numel() * dtype.itemsize
    before, after, *blocks = sizes.values()
    return PartBytes(before, tuple(blocks), after)


def home_of(model: LanguageModel, placement: Placement) -> Callable[[str], torch.device]:
    """A function from the name of a weight to the device that holds it while the model does not run."""
    n_placed = len(placement.blocks) - placement.n_on_host

    def home(name: str) -> torch.device:
        part = _part_of(model, name)
        if isinstance(part, int):
            return torch.device(placement.blocks[part]) if part < n_placed else HOST
        return torch.device(placement.before if part == "before" else placement.after)

    return home


def spread_over(model: M, placement: Placement) -> M:
    """The model itself: every weight moved to its home, and from now on every part computes on its own device.

    A model that fits one device is as usual, and can be moved again.
    """
    home = home_of(model, placement)
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(path, recurse=False):
            if weight.device != home(name):
                setattr(module, name.rpartition(".")[2], nn.Parameter(weight.detach().to(home(name))))
    if len(placement.devices) == 1 and not placement.n_on_host:
        return model
    blocks, n_placed = _blocks(model), len(placement.blocks) - placement.n_on_host
    copies = {device: WeakTensorKeyDictionary() for device in placement.devices}
    for i, block in enumerate(blocks):
        device = torch.device(placement.blocks[i])
        _take_inputs_to(device, block, copies[placement.blocks[i]])
        if i >= n_placed:
            swap_while_it_runs(block, partial(_copy_on, device))
    blocks[-1].register_forward_hook(lambda block, args, out: out.to(home("ln_final.weight")))  # where the head is
    model.placement, model.stays = placement, True
    return model


def _blocks(model: LanguageModel) -> nn.ModuleList:
    return model.get_submodule("blocks")  # pyright: ignore[reportReturnType]


def _part_of(model: LanguageModel, name: str) -> str | int:
    """The part that a weight or a module belongs to: "before", the number of a block, or "after".

    Modules are made in the order in which they run. A head that is the embedding needs its input on the embedding's
    device, and so does the norm before it.
    """
    top, _, rest = name.partition(".")
    if top == "blocks":
        return int(rest.partition(".")[0])
    order = [child for child, _ in model.named_children()]
    runs_before = top in order and order.index(top) < order.index("blocks")
    return "before" if runs_before or getattr(model, "unembed", None) is None else "after"


def _take_inputs_to(device: torch.device, block: nn.Module, copies: Copies) -> None:
    """Copy every tensor that a block is given to the device, once for all blocks there (`copies`)."""

    def bring(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return _moved(args, device, copies), _moved(kwargs, device, copies)

    block.register_forward_pre_hook(bring, with_kwargs=True)


def _moved(x: Any, device: torch.device, copies: Copies) -> Any:
    """The value with every tensor in it on the device; keys and values of earlier tokens are there already."""
    if isinstance(x, Tensor):
        if x.device == device:
            return x
        if x not in copies:
            copies[x] = x.to(device)
        return copies[x]
    if isinstance(x, tuple):
        return tuple(_moved(part, device, copies) for part in x)
    return {key: _moved(part, device, copies) for key, part in x.items()} if isinstance(x, dict) else x


def _copy_on(device: torch.device, weight: Tensor) -> Tensor:
    return torch.empty_like(weight, device=device).copy_(weight)


def swap_while_it_runs(module: nn.Module, change: Callable[[Tensor], Tensor]) -> list[Any]:
    """From now on a module runs with `change` of its weights, which are let go of afterwards; handles that end it."""
    kept: list[tuple[Any, str, Tensor]] = [
        (part._parameters, name, weight)
        for part in module.modules()
        for name, weight in part._parameters.items()
        if weight is not None
    ]

    def swap(*_: Any) -> None:
        for weights, name, weight in kept:
            weights[name] = change(weight.detach())

    def restore(*_: Any) -> None:
        for weights, name, weight in kept:
            weights[name] = weight

    return [
        module.register_forward_pre_hook(swap, prepend=True),
        module.register_forward_hook(restore, always_call=True),
    ]


def widen(model: nn.Module, dtype: torch.dtype) -> Callable[[], None]:
    """Make a model compute in a wider type, its blocks widened one at a time to save memory; a function to undo it."""
    blocks = [block for stack in model.modules() if isinstance(stack, nn.ModuleList) for block in stack]
    within = {id(weight) for block in blocks for weight in block.parameters()}
    outside = [(weight, weight.data) for weight in model.parameters() if id(weight) not in within]
    for weight, data in outside:
        weight.data = data.to(dtype)
    handles = [handle for block in blocks for handle in swap_while_it_runs(block, lambda weight: weight.to(dtype))]

    def undo() -> None:
        for handle in handles:
            handle.remove()
        for weight, data in outside:
            weight.data = data

    return undo
