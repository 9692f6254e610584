"""Products with weights through oneDNN, on CPUs where it is available and exact; through torch's own kernel elsewhere.

oneDNN's linear is as exact as MKL's, which torch uses by default, and up to twice as fast where MKL has no kernel for
the processor. Its operators are private to torch, so each is tried on a small product before it is used. It has no
backward, and runs only without gradients.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)  # float16 came to 25-55 GFLOP/s on a CPU, bfloat16 to 840-930


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of x [..., in] with weight [out, in], plus bias. Every product with weights goes through here."""
    kernel = kernel_for(x, weight)
    return F.linear(x, weight, bias) if kernel is None else kernel(x, weight, bias, "none", [], "")


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    """gelu(x W^T + b), in one kernel where there is one; `approximate` is "none" or "tanh", as in torch."""
    kernel = kernel_for(x, weight)
    if kernel is None:
        return F.gelu(linear(x, weight, bias), approximate=approximate)
    return kernel(x, weight, bias, "gelu", [], approximate)


def kernel_for(x: Tensor, weight: Tensor) -> Callable[..., Tensor] | None:
    """The linear of oneDNN if it takes these operands: on a CPU, without gradients, both float32 or both bfloat16."""
    fits = x.device.type == "cpu" and x.dtype == weight.dtype and not torch.is_grad_enabled()
    return onednn_linear(x.dtype) if fits else None


def reordered(weight: Tensor) -> Tensor | None:
    """The weight in the layout that oneDNN's kernel works in; None where that gains too little (all but bfloat16).

    A reordered bfloat16 weight saves a twelfth of the time and takes the weight's memory once more. No other kernel
    can read it.
    """
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu" or onednn_linear(weight.dtype) is None:
        return None
    return _reorder(weight)


@cache
def onednn_linear(dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """The linear of oneDNN for a type; None if this torch lacks it, or its error against float64 is too large."""
    op = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if op is None or dtype not in DTYPES:
        return None
    x, weight = torch.linspace(-1, 1, 40 * 8).view(40, 8), torch.linspace(-2, 1, 24).view(3, 8)
    x, weight, bias = x.to(dtype), weight.to(dtype), torch.ones(3, dtype=dtype)
    y = F.linear(x.double(), weight.double(), bias.double())
    try:
        pairs = [(op(x, _reorder(weight), bias, "none", [], ""), y)]
        pairs += [(op(x, weight, bias, "gelu", [], kind), F.gelu(y, approximate=kind)) for kind in ("none", "tanh")]
    except (RuntimeError, TypeError, AttributeError):  # another signature, or a torch built without oneDNN
        return None
    eps = torch.finfo(dtype).eps
    return op if all(torch.allclose(got.double(), y, rtol=8 * eps, atol=8 * eps) for got, y in pairs) else None


def _reorder(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight)
