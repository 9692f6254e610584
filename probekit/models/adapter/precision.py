"""Compute in float32 for a moment, so that a proof on a bfloat16 or float16 model is as sharp as on a float32 one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def in_float32(hf: nn.Module) -> Iterator[None]:
    """Within the context a model of narrow weights computes in float32; blocks are widened one at a time.

    Weights that are quantized, or on several devices, stay as they are.
    """
    stays = getattr(hf, "hf_device_map", None) or getattr(hf, "quantization_method", None)
    narrow = [weight for weight in hf.parameters() if weight.dtype in (torch.bfloat16, torch.float16)]
    if stays or not narrow:
        yield
        return
    blocks = [block for stack in hf.modules() if isinstance(stack, nn.ModuleList) for block in stack]
    within = {id(weight) for block in blocks for weight in block.parameters()}
    outside = [(weight, weight.data) for weight in narrow if id(weight) not in within]
    handles: list[Any] = []
    try:
        for weight, data in outside:
            weight.data = data.float()
        for block in blocks:
            handles += _widened_during_forward(block)
        yield
    finally:
        for handle in handles:
            handle.remove()
        for weight, data in outside:
            weight.data = data


def _widened_during_forward(block: nn.Module) -> list[Any]:
    narrow: list[tuple[Tensor, Tensor]] = [(weight, weight.data) for weight in block.parameters()]

    def widen(*_: Any) -> None:
        for weight, data in narrow:
            weight.data = data.float()

    def restore(*_: Any) -> None:
        for weight, data in narrow:
            weight.data = data

    return [
        block.register_forward_pre_hook(widen, prepend=True),
        block.register_forward_hook(restore, always_call=True),
    ]
