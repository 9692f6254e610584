"""Weights in 8 or 4 bits by bitsandbytes; every product widens them to the type of the model and rounds nothing else.

bitsandbytes' own 8-bit product (LLM.int8, Dettmers et al. 2022) rounds the stream too, except in columns where any
token of the batch exceeds 6: one token's outlier changed its neighbours by 6e-4. Its 4-bit product has another kernel
for a single token. So both are replaced: a token's activations depend on its own text alone, as in other models.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear

QUANTIZED = ("Linear8bitLt", "Linear4bit")  # bitsandbytes' modules


def bits_config(quantize: str) -> Any:
    """Transformers' options for "8bit" or "4bit": an integer or a 4-bit normal float for each weight."""
    from transformers import BitsAndBytesConfig

    bits = {"load_in_8bit": quantize == "8bit", "load_in_4bit": quantize == "4bit"}
    return BitsAndBytesConfig(**bits, bnb_4bit_quant_type="nf4")


def widen_for_products(hf: nn.Module) -> bool:
    """Replace bitsandbytes' products; whether there were any."""
    modules = list(_quantized(hf))
    for module in modules:
        name = "_old_forward" if hasattr(module, "_old_forward") else "forward"  # accelerate wraps the latter
        setattr(module, name, partial(_product, module))
    return bool(modules)


def quantization_of(hf: Any) -> str | None:
    """What quantized the weights of a model of transformers ("bitsandbytes", "gptq"); None for weights in full."""
    method = getattr(hf, "quantization_method", None)
    return None if method is None else str(getattr(method, "value", method))


def _quantized(hf: nn.Module) -> Iterator[Any]:
    return (module for module in hf.modules() if type(module).__name__ in QUANTIZED)


def _product(module: Any, x: Tensor) -> Tensor:
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight

    wide = dequantize_bnb_weight(module.weight, getattr(module, "state", None))
    bias = None if module.bias is None else module.bias.to(x.dtype)
    return linear(x, wide.to(x.dtype), bias)
