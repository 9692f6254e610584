"""Weights that are held in another type, or on another device, than the one that computes with them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


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
