"""Leaves that the model families share. None has a flag: a leaf that would need one forks into its family's file.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads, K d_head.
Weights of linear maps are [out, in].
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from probekit.errors import UsageError
from probekit.hooks import HookPoint
from probekit.models.cache import KeyValueCache
from probekit.models.kernels import gelu_linear, kernel_for, linear, reordered

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),  # GPT-NeoX 20B's name for it
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}
_GELUS = dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "tanh") | {"gelu": "none"}  # `approximate`

Mask = Tensor | Literal["causal"] | None
"""Who may attend to whom: boolean [B, L, M], "causal" (each to itself and those before it), or None (all to all)."""


class Linear(nn.Module):
    """y = x W^T + b, with W [out, in]; b is None without a bias."""

    def __init__(self, d_in: int, d_out: int, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out)) if bias else None
        self._prepared: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self._weight_for(x), self.bias)

    def activated(self, x: Tensor, activation: str) -> Tensor:
        """ACTIVATIONS[activation](y), in one kernel where there is one."""
        if activation in _GELUS:
            return gelu_linear(x, self._weight_for(x), self.bias, _GELUS[activation])
        if activation == "relu" and not self._forward_hooks:  # a hook of torch may keep y, which must then stay
            return F.relu_(self(x))
        return ACTIVATIONS[activation](self(x))

    def _weight_for(self, x: Tensor) -> Tensor:
        """The prepared weight if there is one and oneDNN's kernel takes x (no other kernel can read it)."""
        ready = self._prepared
        return self.weight if ready is None or kernel_for(x, ready) is None else ready


@contextmanager
def prepared(model: nn.Module) -> Iterator[None]:
    """Within the context, linear maps also hold `kernels.reordered` weights, which must not change meanwhile."""
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    try:
        for module in linears:
            module._prepared = reordered(module.weight.detach())
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
        # squares overflow fp16, so compute in float32, as the fused kernel does
        x32_BLD = x_BLD.to(torch.promote_types(x_BLD.dtype, torch.float32))
        centred_BLD = x32_BLD - x32_BLD.mean(-1, keepdim=True)
        scale_BL1 = self.hook_scale((centred_BLD.square().mean(-1, keepdim=True) + self.eps).sqrt())
        return self.hook_normalized((centred_BLD / scale_BL1 * self.weight + self.bias).to(x_BLD.dtype))


class RMSNorm(nn.Module):
    """Divide by the root of (mean square + eps), then gain (Zhang and Sennrich 2019); in float32 inside.

    The last of the input's `axes` is normalised. `hook_scale` is that root, [..., 1]; `hook_normalized` is the output,
    gain included.
    """

    def __init__(self, width: int, eps: float, axes: str = "B L D"):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.hook_scale = HookPoint(f"{axes.rpartition(' ')[0]} 1")
        self.hook_normalized = HookPoint(axes)

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = self.hook_scale((x32.square().mean(-1, keepdim=True) + self.eps).sqrt())
        return self.hook_normalized((x32 / scale * self.weight).to(x.dtype))


class FeedForward(nn.Module):
    """act(x W_up + b) W_down + b, at each position separately (Vaswani et al. 2017, 3.3)."""

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


class SwiGLU(nn.Module):
    """(act(x W_gate) * x W_up) W_down, with SiLU as act by default (Shazeer 2020, "GLU Variants Improve Transformer").

    `hook_pre` is x W_gate, `hook_pre_linear` is x W_up, and `hook_post` is act(x W_gate) * x W_up.
    """

    def __init__(self, d_model: int, d_mlp: int, bias: bool = False, activation: str = "silu"):
        super().__init__()
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


def at_read(x: Any, read_BR: Tensor | None) -> Any:
    """The positions of x [B, L, ...] that are read, [B, R, ...]; all of x if none are given, and None of no mask."""
    return x if x is None or read_BR is None else x[torch.arange(len(read_BR), device=x.device)[:, None], read_BR]


def init_linear(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """W [out, in]: normal of variance 2 / (d_in + d_out) (Glorot and Bengio 2010), truncated at 3 sigma."""
    return truncated_normal(shape, math.sqrt(2 / sum(shape)), 3, generator)


def init_embedding(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A table [n, D]: normal of variance 1, truncated at 3 sigma."""
    return truncated_normal(shape, 1.0, 3, generator)


def truncated_normal(shape: torch.Size, sigma: float, cutoff: float, generator: torch.Generator) -> Tensor:
    """Normal numbers, truncated at `cutoff` sigma; in float32 on the CPU, so that the seed fixes the result."""
    cut = cutoff * sigma
    return nn.init.trunc_normal_(torch.empty(shape), 0, sigma, -cut, cut, generator=generator)


def causal_mask(mask_BL: Tensor) -> Tensor:
    """The mask [B, L, M] of a causal model, from a mask of real tokens (True or 1).

    Every position sees itself, padding too, so that no row of the softmax is empty.
    """
    length = mask_BL.shape[1]
    return padding_mask(mask_BL) & torch.ones(length, length, dtype=torch.bool, device=mask_BL.device).tril()


def padding_mask(mask_BL: Tensor) -> Tensor:
    """The mask [B, L, M] of a bidirectional model, from a mask of real tokens; every position sees itself."""
    return mask_BL.bool()[:, None, :] | torch.eye(mask_BL.shape[1], dtype=torch.bool, device=mask_BL.device)


def positions_from_mask(attention_mask: Tensor) -> Tensor:
    """The position of each token, [B, L], from a mask [B, L] or [B, L, L]: how many tokens before it it sees."""
    if attention_mask.dim() == 3:
        return attention_mask.bool().tril(-1).sum(-1)
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


# Sliding windows: which tokens near it a token may attend to. A window counts positions, not places in a row, so it is
# right in packed blocks and in forests of shared prefixes. A causal window of W holds the token itself and the W - 1
# before it; a two-sided one the W - 1 after it as well.


def within(window: int, queries_BL: Tensor, keys_BM: Tensor) -> Tensor:
    """True where a key is one of the last `window` positions up to the query, or after it: [B, L, M]."""
    return queries_BL[:, :, None] - keys_BM[:, None, :] < window


def in_window(mask: Mask, window: int | None, position_ids: Tensor, cache: KeyValueCache | None) -> Mask:
    """A causal mask narrowed to the window; unchanged without a window, or if every token is within it.

    Args:
        mask: as the blocks take it.
        window: how many tokens a token sees, itself included.
        position_ids: [B, L].
        cache: holds the earlier tokens; without positions of their own, places in the cache count as positions.
    """
    length = position_ids.shape[1]
    is_tensor = isinstance(mask, Tensor)
    if window is None or (not is_tensor and length <= window):
        return mask
    mask_BLM = mask if is_tensor else causal_mask(position_ids.new_ones(1, length))
    if cache is None:
        return mask_BLM & within(window, position_ids, position_ids)
    if cache.positions_BM is not None:
        return mask_BLM & within(window, position_ids, torch.cat([cache.positions_BM, position_ids], 1))
    places = torch.arange(mask_BLM.shape[2], device=mask_BLM.device)[None]
    return mask_BLM & within(window, places[:, -length:], places)


def in_two_sided_window(mask: Mask, window: int, position_ids: Tensor) -> Mask:
    """A bidirectional model's mask narrowed to the window on either side; unchanged if every token is within it.

    Args:
        mask: as the blocks take it; None lets every token see all of its row.
        window: how many tokens a token sees on either side, itself included.
        position_ids: [B, L].
    """
    is_tensor = isinstance(mask, Tensor)
    if not is_tensor and position_ids.shape[1] <= window:
        return mask
    places = position_ids.int()  # half the memory of int64, of which 8,192 tokens need 0.5 GB
    near_BLM = (places[:, :, None] - places[:, None, :]).abs_() < window
    return mask & near_BLM if is_tensor else near_BLM


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """exp(x) / sum exp(x) by torch's kernel, which subtracts the largest entry against overflow and works in float32.

    A row of nothing but -inf (a query that may attend to nothing) gives zeros; torch's kernel gives NaN.
    """
    shares = x.softmax(dim)
    if shares.is_meta or not shares.select(dim, 0).isnan().any():
        return shares
    empty = (x == -math.inf).all(dim, keepdim=True)
    return x.masked_fill(empty, 0).softmax(dim).masked_fill(empty, 0)


def _for_heads(mask_BLM: Tensor, q_BLHK: Tensor, k_BMGK: Tensor) -> Tensor:
    """The mask [B, 1, L, M], if it is boolean and broadcasts to the scores without enlarging them."""
    shape = len(q_BLHK), q_BLHK.shape[1], k_BMGK.shape[1]
    sizes = zip(reversed(mask_BLM.shape), reversed(shape), strict=False)
    if mask_BLM.dtype != torch.bool or mask_BLM.dim() > 3 or any(m not in (1, n) for m, n in sizes):
        got = f"{mask_BLM.dtype} {list(mask_BLM.shape)}"
        raise UsageError(f"a mask is boolean and broadcasts to {list(shape)}; got {got}")
    return mask_BLM[:, None]


def attend(
    q_BLHK: Tensor,
    k_BMGK: Tensor,
    v_BMGK: Tensor,
    mask: Mask,
    hook_scores: HookPoint,
    hook_pattern: HookPoint,
) -> Tensor:
    """The attention of every family, [B, L, H, K]: `attention`, or step by step where a hook reads scores or pattern.

    Queries and keys may be wider than the values (scores upcast to float32): these go step by step too, since the fused
    kernel takes one type.
    """
    if hook_scores.hooked or hook_pattern.hooked or q_BLHK.dtype != v_BMGK.dtype:
        scores_BHLM = hook_scores(attention_scores(q_BLHK, k_BMGK, mask))
        pattern_BHLM = hook_pattern(softmax(scores_BHLM).to(v_BMGK.dtype))
        return torch.einsum("bhlm,bmhk->blhk", pattern_BHLM, heads_for(q_BLHK, v_BMGK))
    return attention(q_BLHK, k_BMGK, v_BMGK, mask)


def attention(q_BLHK: Tensor, k_BMGK: Tensor, v_BMGK: Tensor, mask: Mask) -> Tensor:
    """Multi-head attention, softmax(q k^T / sqrt(K)) v, by the fused kernel: [B, L, H, K].

    Grouped-query attention where G < H: each head of keys and values serves H / G neighbouring heads of queries
    (Ainslie et al. 2023). A query that may attend to nothing gets zeros.

    Raises:
        UsageError: a mask that is not boolean [B, L, M].
    """
    mask_B1LM = _for_heads(mask, q_BLHK, k_BMGK) if isinstance(mask, Tensor) else None
    # torch 2.13 on CUDA: for G < H only flash attention is fused, and it takes no mask and no float32
    if q_BLHK.device.type == "cuda" and (mask_B1LM is not None or q_BLHK.dtype == torch.float32):
        k_BMGK, v_BMGK = heads_for(q_BLHK, k_BMGK), heads_for(q_BLHK, v_BMGK)
    q, k, v = (x.transpose(1, 2) for x in (q_BLHK, k_BMGK, v_BMGK))
    grouped = q.shape[1] != k.shape[1]
    z_BHLK = F.scaled_dot_product_attention(q, k, v, mask_B1LM, is_causal=isinstance(mask, str), enable_gqa=grouped)
    return z_BHLK.transpose(1, 2)


def attention_scores(q_BLHK: Tensor, k_BMGK: Tensor, mask: Mask) -> Tensor:
    """Q k^T / sqrt(K), [B, H, L, M], with -inf where the mask forbids attention."""
    q_over_root = q_BLHK / math.sqrt(q_BLHK.shape[-1])  # divided before the sum, which can overflow fp16
    scores_BHLM = torch.einsum("blhk,bmhk->bhlm", q_over_root, heads_for(q_BLHK, k_BMGK))
    if mask is None:
        return scores_BHLM
    mask_BLM = causal_mask(q_BLHK.new_ones(1, q_BLHK.shape[1])) if isinstance(mask, str) else mask
    return scores_BHLM.masked_fill(~_for_heads(mask_BLM, q_BLHK, k_BMGK), -math.inf)


def heads_for(q_BLHK: Tensor, k_BMGK: Tensor) -> Tensor:
    """Keys or values repeated for the query heads that they serve: [B, M, H, K]."""
    repeats = q_BLHK.shape[2] // k_BMGK.shape[2]
    return k_BMGK if repeats == 1 else k_BMGK.repeat_interleave(repeats, 2)


def projected(z_BLHK: Tensor, out: Linear, hook_result: HookPoint) -> Tensor:
    """The output projection of all heads, [B, L, D]; computed head by head where a hook reads the heads' results."""
    if not hook_result.hooked:
        return out(rearrange(z_BLHK, "b l h k -> b l (h k)"))
    weight_DHK = rearrange(out.weight, "d (h k) -> d h k", h=z_BLHK.shape[2])
    summed_BLD = hook_result(torch.einsum("blhk,dhk->blhd", z_BLHK, weight_DHK)).sum(2)
    return summed_BLD if out.bias is None else summed_BLD + out.bias


class MultiHeadAttention(nn.Module):
    """softmax(q k^T / sqrt(K)) v in each head, joined by a projection (Vaswani et al. 2017, 3.2.2).

    Queries, keys and values come from x; a subclass may take keys and values from elsewhere.
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None):
        super().__init__()
        width = d_model if d_head is None else n_heads * d_head
        self.n_heads = n_heads
        self.q = Linear(d_model, width)
        self.k = Linear(d_model, width)
        self.v = Linear(d_model, width)
        self.out = Linear(width, d_model)
        self.hook_q = HookPoint("B L H K")
        self.hook_k = HookPoint("B L H K")
        self.hook_v = HookPoint("B L H K")
        self.hook_attn_scores = HookPoint("B H L M")
        self.hook_pattern = HookPoint("B H L M")
        self.hook_z = HookPoint("B L H K")
        self.hook_result = HookPoint("B L H D")

    def forward(self, x_BLD: Tensor, mask: Mask, read_BR: Tensor | None = None) -> Tensor:
        return self.gather(at_read(x_BLD, read_BR), *self.keys_and_values(x_BLD), mask)

    def keys_and_values(self, x_BMD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the attended sequence, [B, M, H, K] each."""
        return self.hook_k(self.heads(self.k(x_BMD))), self.hook_v(self.heads(self.v(x_BMD)))

    def gather(self, x_BLD: Tensor, k_BMHK: Tensor, v_BMHK: Tensor, mask: Mask) -> Tensor:
        """The attention's output for x, [B, L, D], from these keys and values."""
        q_BLHK = self.hook_q(self.heads(self.q(x_BLD)))
        z_BLHK = self.hook_z(attend(q_BLHK, k_BMHK, v_BMHK, mask, self.hook_attn_scores, self.hook_pattern))
        return projected(z_BLHK, self.out, self.hook_result)

    def heads(self, x_BLD: Tensor) -> Tensor:
        """The width split into heads, [B, L, H, K]."""
        return rearrange(x_BLD, "b l (h k) -> b l h k", h=self.n_heads)


class PostNormBlock(nn.Module):
    """Post-norm: x = ln1(x + attn(x)), then ln2(x + mlp(x)) (Vaswani et al. 2017, 3.1)."""

    def __init__(
        self, d_model: int, n_heads: int, d_mlp: int, activation: str, ln_eps: float, d_head: int | None = None
    ):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.attn = MultiHeadAttention(d_model, n_heads, d_head)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln1 = LayerNorm(d_model, ln_eps)
        self.mlp = FeedForward(d_model, d_mlp, activation)
        self.hook_mlp_out = HookPoint("B L D")
        self.hook_resid_post = HookPoint("B L D")
        self.ln2 = LayerNorm(d_model, ln_eps)

    def forward(self, resid_BLD: Tensor, mask: Mask, read_BR: Tensor | None = None) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn_out = self.hook_attn_out(self.attn(resid_pre, at_read(mask, read_BR), read_BR))
        x_BLD = self.ln1(self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out))
        mlp_out = self.hook_mlp_out(self.mlp(x_BLD))
        return self.ln2(self.hook_resid_post(x_BLD + mlp_out))
