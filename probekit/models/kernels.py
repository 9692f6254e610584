"""Products with weights through oneDNN, on CPUs where it is faster and exact; through torch's own kernel elsewhere.

oneDNN's linear is as exact as MKL's, which torch uses by default, and up to twice as fast where MKL has no kernel for
the processor. Its operators are private to torch, so each is tried on a small product before it is used. It has no
backward, and runs only without gradients. Half-width types that the processor cannot multiply go through float32.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)  # float16 came to 25-55 GFLOP/s on a CPU, bfloat16 to 840-930
SUPPORTED_BY = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
# With AVX2, torch's own product of 512 rows takes five times as long in half width, of 16 up to twice, of one a third
WIDENED_ROWS = 16
WIDENED_NUMBERS = 1 << 22  # of the weight at once, which are copied
GELU_NUMBERS = 200_000  # at once, so that they stay in the cache; 50,000 to 800,000 take the same time
_GELU_LINEAR = 2 * math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715 * _GELU_LINEAR


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of x [..., in] with weight [out, in], plus bias. Every product with weights goes through here."""
    kernel = kernel_for(x, weight)
    if kernel is not None:
        return kernel(x, weight, bias, "none", [], "")
    return _widened(linear, x, weight, bias) if _is_widened(x, weight) else F.linear(x, weight, bias)


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    """gelu(x W^T + b), in one kernel where there is one; `approximate` is "none" or "tanh", as in torch."""
    kernel = kernel_for(x, weight)
    if kernel is not None:
        return kernel(x, weight, bias, "gelu", [], approximate)
    if _is_widened(x, weight):
        return _widened(gelu_linear, x, weight, bias, approximate)
    on_cpu = x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_grad_enabled()
    if approximate == "tanh" and on_cpu:
        return _tanh_gelu_(linear(x, weight, None), bias)
    return F.gelu(linear(x, weight, bias), approximate=approximate)


def _tanh_gelu_(x: Tensor, bias: Tensor | None) -> Tensor:
    """F.gelu(x + bias, approximate="tanh") in place; 0.5 y (1 + tanh(u)) is computed as y sigmoid(2u), its equal.

    Half the time of torch's kernel: its sigmoid is three times as fast as its tanh, and rows that stay in the cache
    cost no pass over memory (11 ms for 2,048 x 3,072 on one core, torch 23, without the cutting 16 to 28).
    """
    for y in x.view(-1, x.shape[-1]).split(max(1, GELU_NUMBERS // x.shape[-1])):
        if bias is not None:
            y += bias
        y *= (y * y).mul_(_GELU_CUBIC).add_(_GELU_LINEAR).mul_(y).sigmoid_()
    return x


def kernel_for(x: Tensor, weight: Tensor) -> Callable[..., Tensor] | None:
    """The linear of oneDNN if it takes these operands: on a CPU, without gradients, both float32 or both bfloat16."""
    fits = x.device.type == "cpu" and x.dtype == weight.dtype and not torch.is_grad_enabled()
    return onednn_linear(x.dtype) if fits else None


def _is_widened(x: Tensor, weight: Tensor) -> bool:
    """True for products that float32 computes faster: of a half-width type, on a CPU that cannot multiply it."""
    fits = x.device.type == "cpu" and x.dtype == weight.dtype and not torch.is_grad_enabled()
    return fits and x.dtype in SUPPORTED_BY and x.numel() >= WIDENED_ROWS * x.shape[-1] and not multiplies(x.dtype)


def _widened(product: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None, *more: str) -> Tensor:
    """The product in float32, some outputs at a time, rounded once."""
    wide, size = x.float(), max(1, WIDENED_NUMBERS // weight.shape[1])
    out = x.new_empty(*x.shape[:-1], len(weight))
    for start in range(0, len(weight), size):
        some = slice(start, start + size)
        out[..., some] = product(wide, weight[some].float(), None if bias is None else bias[some].float(), *more)
    return out


@cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies this half-width type on this CPU; True if torch cannot say."""
    supported = getattr(torch.ops.mkldnn, SUPPORTED_BY[dtype], None)
    return supported is None or supported()


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
    """The linear of oneDNN for a type; None if torch lacks it, its error against float64 is too large, or MKL wins.

    MKL wins in float32 on processors with AVX2 and no AVX-512: 86-91 GFLOP/s a core against 69-80, and 48 with GELU in
    the kernel. With AVX-512 oneDNN reached 350-430 on two cores where MKL reached 170-215.
    """
    op = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    mkl_wins = dtype == torch.float32 and torch.backends.cpu.get_cpu_capability() == "AVX2"
    if op is None or dtype not in DTYPES or mkl_wins:
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
