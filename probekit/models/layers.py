"""Leaves that the model families share. None has a flag: what would need one forks into its family's file.

Axes: B batch, L query position, M key position, D d_model, H heads, G key/value heads, K d_head.
Weights of linear maps are [out, in].
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probekit.hooks import HookPoint

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}


FUSED = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}  # activation -> oneDNN's name of its GELU


@cache
def _onednn(dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """The linear of oneDNN, where this torch has it (its name is private) and it proves exact; else None."""
    op = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if op is None or dtype not in (torch.float32, torch.bfloat16):
        return None
    x, weight = torch.linspace(-1, 1, 40 * 8).view(40, 8), torch.linspace(-2, 1, 24).view(3, 8)
    x, weight, bias = x.to(dtype), weight.to(dtype), torch.ones(3, dtype=dtype)
    y = F.linear(x.double(), weight.double(), bias.double())
    try:
        pairs = [(op(x, _packed(weight), bias, "none", [], ""), y)]
        pairs += [(op(x, weight, bias, "gelu", [], kind), F.gelu(y, approximate=kind)) for kind in ("none", "tanh")]
    except (RuntimeError, TypeError, AttributeError):  # another signature, or a torch built without oneDNN
        return None
    eps = torch.finfo(dtype).eps
    return op if all(torch.allclose(got.double(), y, rtol=8 * eps, atol=8 * eps) for got, y in pairs) else None


def _packed(weight: Tensor) -> Tensor:
    """The weight in the layout that oneDNN's kernel works on, so that no call has to bring it there."""
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def _kernel(x: Tensor, weight: Tensor) -> Callable[..., Tensor] | None:
    """OneDNN's linear for these operands: on a CPU, without gradients (it has no backward), float32 or bfloat16."""
    fits = x.device.type == "cpu" and x.dtype == weight.dtype and not torch.is_grad_enabled()
    return _onednn(x.dtype) if fits else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of x [..., in] with weight [out, in], plus bias: every one with weights goes through here.

    On a CPU and without gradients it is oneDNN's, which is as exact as torch's own (MKL) and up to twice as fast where
    MKL has no kernel for the processor.
    """
    kernel = _kernel(x, weight)
    return F.linear(x, weight, bias) if kernel is None else kernel(x, weight, bias, "none", [], "")


class Linear(nn.Module):
    """y = x W^T + b, with W [out, in]."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out))
        self._prepared: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self._fitting(x), self.bias)

    def activated(self, x: Tensor, activation: str) -> Tensor:
        """ACTIVATIONS[activation](y), in one kernel where there is one."""
        weight = self._fitting(x)
        kernel = _kernel(x, weight) if activation in FUSED else None
        if kernel is None:
            return ACTIVATIONS[activation](linear(x, weight, self.bias))
        return kernel(x, weight, self.bias, "gelu", [], FUSED[activation])

    def _fitting(self, x: Tensor) -> Tensor:
        """The weight: prepared, if it is and if oneDNN's kernel takes x; nothing else can read that layout."""
        ready = self._prepared
        return self.weight if ready is None or _kernel(x, ready) is None else ready


@contextmanager
def prepared(model: nn.Module) -> Iterator[None]:
    """Within the context, bfloat16 weights on a CPU stand ready in oneDNN's layout too; they must not change.

    It saves a twelfth of the time and costs the weights' memory once more; float32 gains too little.
    """
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    try:
        for module in linears:
            weight = module.weight.detach()
            if weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and _onednn(weight.dtype):
                module._prepared = _packed(weight)
        yield
    finally:
        for module in linears:
            module._prepared = None


class Embedding(nn.Module):
    """Rows of a table [n, D], by index."""

    def __init__(self, n: int, d_model: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, d_model))

    def forward(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.weight)


class LayerNorm(nn.Module):
    """Centre, divide by the root of (variance + eps), then gain and shift (Ba et al. 2016).

    `hook_scale` is that root, [B, L, 1]; `hook_normalized` is the output, gain and shift included.
    """

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(d_model))
        self.hook_scale = HookPoint("B L 1")
        self.hook_normalized = HookPoint("B L D")

    def forward(self, x_BLD: Tensor) -> Tensor:
        if not self.hook_scale.hooked:
            return self.hook_normalized(F.layer_norm(x_BLD, self.weight.shape, self.weight, self.bias, self.eps))
        x32_BLD = x_BLD.to(torch.promote_types(x_BLD.dtype, torch.float32))  # as the fused kernel: fp16 has no squares
        centred_BLD = x32_BLD - x32_BLD.mean(-1, keepdim=True)
        scale_BL1 = self.hook_scale((centred_BLD.square().mean(-1, keepdim=True) + self.eps).sqrt())
        return self.hook_normalized((centred_BLD / scale_BL1 * self.weight + self.bias).to(x_BLD.dtype))


def causal_mask(mask_BL: Tensor) -> Tensor:
    """Who may attend to whom, [B, L, M], in a model that looks back: from which tokens are real (True or 1).

    Every position sees itself, padding too, so that no row of the softmax is empty.
    """
    length = mask_BL.shape[1]
    return padding_mask(mask_BL) & torch.ones(length, length, dtype=torch.bool, device=mask_BL.device).tril()


def padding_mask(mask_BL: Tensor) -> Tensor:
    """Who may attend to whom, [B, L, M], in a model that looks both ways; every position sees itself."""
    return mask_BL.bool()[:, None, :] | torch.eye(mask_BL.shape[1], dtype=torch.bool, device=mask_BL.device)


def positions_from_mask(attention_mask: Tensor) -> Tensor:
    """Position of each token among those it may attend to, [B, L], from a mask [B, L] or [B, L, M]."""
    count = attention_mask.long().cumsum(1) if attention_mask.dim() == 2 else attention_mask.long().sum(-1)
    return (count - 1).clamp(min=0)


def attention(q_BLHK: Tensor, k_BMGK: Tensor, v_BMGK: Tensor, mask_BLM: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(K)) v through the fused kernel, [B, L, H, K]; without a mask all see all.

    G heads of keys and values serve H = n * G heads of queries, n neighbours each (Ainslie et al. 2023).
    """
    mask = None if mask_BLM is None else mask_BLM[:, None]
    return _fused(q_BLHK, k_BMGK, v_BMGK, attn_mask=mask)


def causal_attention(q_BLHK: Tensor, k_BLGK: Tensor, v_BLGK: Tensor) -> Tensor:
    """`attention` where every position sees itself and those before it."""
    return _fused(q_BLHK, k_BLGK, v_BLGK, is_causal=True)


def _fused(q_BLHK: Tensor, k_BMGK: Tensor, v_BMGK: Tensor, **which: Any) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q_BLHK, k_BMGK, v_BMGK))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **which).transpose(1, 2)


def attention_scores(q_BLHK: Tensor, k_BMGK: Tensor, mask_BLM: Tensor | None) -> Tensor:
    """Q k^T / sqrt(K), [B, H, L, M], with -inf where attention is not allowed; without a mask it is everywhere."""
    k_BMHK = heads_for(q_BLHK, k_BMGK)
    scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_BLHK, k_BMHK) / math.sqrt(q_BLHK.shape[-1])
    return scores_BHLM if mask_BLM is None else scores_BHLM.masked_fill(~mask_BLM[:, None], -math.inf)


def heads_for(q_BLHK: Tensor, k_BMGK: Tensor) -> Tensor:
    """Keys or values repeated for the query heads that they serve: [B, M, H, K]."""
    return k_BMGK.repeat_interleave(q_BLHK.shape[2] // k_BMGK.shape[2], 2)
