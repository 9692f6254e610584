"""Leaves that the model families share. None has a flag: what would need one forks into its family's file.

Axes: B batch, L query position, M key position, D d_model, H heads, G key/value heads, K d_head.
Weights of linear maps are [out, in].
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from probekit.errors import UsageError
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
    """y = x W^T + b, with W [out, in]; without a bias, b is None."""

    def __init__(self, d_in: int, d_out: int, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out)) if bias else None
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


class RMSNorm(nn.Module):
    """Divide by the root of (mean square + eps), then gain (Zhang and Sennrich 2019); in float32 inside.

    `hook_scale` is that root, [B, L, 1]; `hook_normalized` is the output, gain included.
    """

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(d_model))
        self.hook_scale = HookPoint("B L 1")
        self.hook_normalized = HookPoint("B L D")

    def forward(self, x_BLD: Tensor) -> Tensor:
        x32_BLD = x_BLD.to(torch.promote_types(x_BLD.dtype, torch.float32))
        scale_BL1 = self.hook_scale((x32_BLD.square().mean(-1, keepdim=True) + self.eps).sqrt())
        return self.hook_normalized((x32_BLD / scale_BL1 * self.weight).to(x_BLD.dtype))


class FeedForward(nn.Module):
    """act(x W_up + b) W_down + b, at each position alone (Vaswani et al. 2017, 3.3)."""

    def __init__(self, d_model: int, d_mlp: int, activation: str):
        super().__init__()
        self.activation = activation
        self.up = Linear(d_model, d_mlp)
        self.down = Linear(d_mlp, d_model)
        self.hook_pre = HookPoint("B L F")
        self.hook_post = HookPoint("B L F")

    def forward(self, x_BLD: Tensor) -> Tensor:
        if self.hook_pre.hooked:
            post_BLF = ACTIVATIONS[self.activation](self.hook_pre(self.up(x_BLD)))
        else:
            post_BLF = self.up.activated(x_BLD, self.activation)
        return self.down(self.hook_post(post_BLF))


def swiglu_width(d_model: int) -> int:
    """The width at which SwiGLU's three matrices weigh what two of 4 d_model do: 8/3 d_model, in whole 64s."""
    return max(64, 64 * round(8 * d_model / (3 * 64)))


class SwiGLU(nn.Module):
    """(act(x W_gate) * x W_up) W_down, act being SiLU by name (Shazeer 2020, "GLU Variants Improve Transformer").

    `hook_pre` is x W_gate before the activation, `hook_pre_linear` is x W_up, `hook_post` their product.
    """

    def __init__(self, d_model: int, d_mlp: int | None = None, bias: bool = False, activation: str = "silu"):
        super().__init__()
        d_mlp = swiglu_width(d_model) if d_mlp is None else d_mlp
        self.activation = activation
        self.gate = Linear(d_model, d_mlp, bias)
        self.up = Linear(d_model, d_mlp, bias)
        self.down = Linear(d_mlp, d_model, bias)
        self.hook_pre = HookPoint("B L F")
        self.hook_pre_linear = HookPoint("B L F")
        self.hook_post = HookPoint("B L F")

    def forward(self, x_BLD: Tensor) -> Tensor:
        if self.hook_pre.hooked:
            gate_BLF = ACTIVATIONS[self.activation](self.hook_pre(self.gate(x_BLD)))
        else:
            gate_BLF = self.gate.activated(x_BLD, self.activation)
        return self.down(self.hook_post(gate_BLF * self.hook_pre_linear(self.up(x_BLD))))


@torch.no_grad()
def init_linear(weight: Tensor, generator: torch.Generator) -> None:
    """Fill W [out, in]: normal of variance 2 / (d_in + d_out) (Glorot and Bengio 2010), cut at 3 sigma."""
    _cut_normal(weight, math.sqrt(2 / sum(weight.shape)), generator)


@torch.no_grad()
def init_embedding(weight: Tensor, generator: torch.Generator) -> None:
    """Fill a table [n, D]: normal of variance 1, cut at 3 sigma."""
    _cut_normal(weight, 1.0, generator)


def _cut_normal(weight: Tensor, sigma: float, generator: torch.Generator) -> None:
    made = torch.empty(weight.shape)  # float32 on the CPU: the seed alone decides
    weight.copy_(nn.init.trunc_normal_(made, 0, sigma, -3 * sigma, 3 * sigma, generator=generator))


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
    """How many tokens before it each may attend to, [B, L], from a mask [B, L] or [B, L, L]."""
    if attention_mask.dim() == 3:
        return attention_mask.bool().tril(-1).sum(-1)
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """exp(x) / sum exp(x), by torch's kernel: less the largest first, so that nothing overflows, in float32 inside.

    A row that is -inf throughout, of a query that may attend to nothing, gives zeros; the kernel alone gives NaN.
    """
    shares = x.softmax(dim)
    if not shares.select(dim, 0).isnan().any():
        return shares
    empty = (x == -math.inf).all(dim, keepdim=True)
    return x.masked_fill(empty, 0).softmax(dim).masked_fill(empty, 0)


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(K)) v, as it is written (Vaswani et al. 2017, equation 1).

    Args:
        q: [..., L, K].
        k: [..., M, K].
        v: [..., M, V].
        mask: boolean [..., L, M], true where L may attend to M; any batch axes that broadcast. None: everywhere.

    Returns:
        [..., L, V]; zeros where a query may attend to nothing.

    Raises:
        UsageError: a mask that is not boolean, or does not fit.
    """
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
    return softmax(scores if mask is None else scores.masked_fill(~_fitting(mask, scores.shape), -math.inf)) @ v


def _fitting(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask, if it is boolean and broadcasts to the shape [..., L, M] without adding to it."""
    sizes = zip(reversed(mask.shape), reversed(shape), strict=False)
    if mask.dtype != torch.bool or mask.dim() > len(shape) or any(m not in (1, n) for m, n in sizes):
        raise UsageError(f"a mask is boolean and broadcasts to {list(shape)}; got {mask.dtype} {list(mask.shape)}")
    return mask


def _for_heads(mask_BLM: Tensor, q_BLHK: Tensor, k_BMGK: Tensor) -> Tensor:
    batch, length, *_ = q_BLHK.shape
    return _fitting(mask_BLM, (batch, length, k_BMGK.shape[1]))[:, None]


def attention(q_BLHK: Tensor, k_BMGK: Tensor, v_BMGK: Tensor, mask_BLM: Tensor | None) -> Tensor:
    """Multi-head attention: softmax(q k^T / sqrt(K)) v by the fused kernel, [B, L, H, K]; without a mask all see all.

    Grouped-query where G < H: each head of keys and values serves H / G neighbouring heads of queries (Ainslie et al.
    2023). A query that may attend to nothing gets zeros.

    Raises:
        UsageError: a mask that is not boolean [B, L, M].
    """
    mask = None if mask_BLM is None else _for_heads(mask_BLM, q_BLHK, k_BMGK)
    return _fused(q_BLHK, k_BMGK, v_BMGK, attn_mask=mask)


def causal_attention(q_BLHK: Tensor, k_BLGK: Tensor, v_BLGK: Tensor) -> Tensor:
    """`attention` where every position sees itself and those before it."""
    return _fused(q_BLHK, k_BLGK, v_BLGK, is_causal=True)


def _fused(q_BLHK: Tensor, k_BMGK: Tensor, v_BMGK: Tensor, **which: Any) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q_BLHK, k_BMGK, v_BMGK))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **which).transpose(1, 2)


def attention_scores(q_BLHK: Tensor, k_BMGK: Tensor, mask_BLM: Tensor | None) -> Tensor:
    """Q k^T / sqrt(K), [B, H, L, M], with -inf where attention is not allowed; without a mask it is everywhere."""
    q_over_root = q_BLHK / math.sqrt(q_BLHK.shape[-1])  # divided before it is summed: fp16 has little room
    scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_over_root, heads_for(q_BLHK, k_BMGK))
    if mask_BLM is None:
        return scores_BHLM
    return scores_BHLM.masked_fill(~_for_heads(mask_BLM, q_BLHK, k_BMGK), -math.inf)


def heads_for(q_BLHK: Tensor, k_BMGK: Tensor) -> Tensor:
    """Keys or values repeated for the query heads that they serve: [B, M, H, K]."""
    return k_BMGK.repeat_interleave(q_BLHK.shape[2] // k_BMGK.shape[2], 2)


def projected(z_BLHK: Tensor, out: Linear, hook_result: HookPoint) -> Tensor:
    """The output projection of all heads, [B, L, D]; head by head where someone listens to the heads' results."""
    if not hook_result.hooked:
        return out(rearrange(z_BLHK, "b l h k -> b l (h k)"))
    weight_DHK = rearrange(out.weight, "d (h k) -> d h k", h=z_BLHK.shape[2])
    summed_BLD = hook_result(torch.einsum("blhk,dhk->blhd", z_BLHK, weight_DHK)).sum(2)
    return summed_BLD if out.bias is None else summed_BLD + out.bias


class MultiHeadAttention(nn.Module):
    """softmax(q k^T / sqrt(K)) v in each head, joined by a projection (Vaswani et al. 2017, 3.2.2).

    Queries are of x, keys and values of x too, or of what a subclass says. Scores and pattern become tensors only where
    someone listens to them.
    """

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.q = Linear(d_model, d_model)
        self.k = Linear(d_model, d_model)
        self.v = Linear(d_model, d_model)
        self.out = Linear(d_model, d_model)
        self.hook_q = HookPoint("B L H K")
        self.hook_k = HookPoint("B L H K")
        self.hook_v = HookPoint("B L H K")
        self.hook_attn_scores = HookPoint("B H L M")
        self.hook_pattern = HookPoint("B H L M")
        self.hook_z = HookPoint("B L H K")
        self.hook_result = HookPoint("B L H D")

    def forward(self, x_BLD: Tensor, mask_BLM: Tensor | None) -> Tensor:
        return self.attend(x_BLD, *self.keys_and_values(x_BLD), mask_BLM)

    def keys_and_values(self, x_BMD: Tensor) -> tuple[Tensor, Tensor]:
        """Of what is attended to, [B, M, H, K] each."""
        return self.hook_k(self.heads(self.k(x_BMD))), self.hook_v(self.heads(self.v(x_BMD)))

    def attend(self, x_BLD: Tensor, k_BMHK: Tensor, v_BMHK: Tensor, mask_BLM: Tensor | None) -> Tensor:
        """What the heads gather for x, [B, L, D]; without a mask, from everywhere."""
        q_BLHK = self.hook_q(self.heads(self.q(x_BLD)))
        if self.hook_attn_scores.hooked or self.hook_pattern.hooked:
            scores_BHLM = self.hook_attn_scores(attention_scores(q_BLHK, k_BMHK, mask_BLM))
            pattern_BHLM = self.hook_pattern(softmax(scores_BHLM))
            z_BLHK = torch.einsum("bhlm,bmhk->blhk", pattern_BHLM, v_BMHK)
        else:
            z_BLHK = attention(q_BLHK, k_BMHK, v_BMHK, mask_BLM)
        return projected(self.hook_z(z_BLHK), self.out, self.hook_result)

    def heads(self, x_BLD: Tensor) -> Tensor:
        """The width cut into heads, [B, L, H, K]."""
        return rearrange(x_BLD, "b l (h k) -> b l h k", h=self.n_heads)
