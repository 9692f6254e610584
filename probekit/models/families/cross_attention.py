"""The decoder's side of an encoder-decoder: causal attention, cross-attention, and the block that joins them.

Axes: B batch, S source position, L query position, M key position, R position to read, D d_model, H heads, K d_head.
"""

from torch import Tensor, nn

from probekit.errors import UsageError
from probekit.hooks import HookPoint
from probekit.models.base import check_mask
from probekit.models.cache import LayerCache
from probekit.models.layers import FeedForward, LayerNorm, Mask, MultiHeadAttention, at_read


class CausalAttention(MultiHeadAttention):
    """The target's self-attention, under a causal mask; a cache adds the keys and values of earlier tokens."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x_BLD: Tensor, mask: Mask, cache: LayerCache | None = None, read_BR: Tensor | None = None
    ) -> Tensor:
        keys, values = self.keys_and_values(x_BLD)
        if cache is not None:
            keys, values = cache.append(keys, values)
        return self.gather(at_read(x_BLD, read_BR), keys, values, mask)


class CrossAttention(MultiHeadAttention):
    """Attention to the source: queries from x, keys and values from the memory, the encoder's output."""

    def __init__(self, d_model: int, n_heads: int):
        super().__init__(d_model, n_heads)
        self.hook_k = HookPoint("B S H K")
        self.hook_v = HookPoint("B S H K")
        self.hook_attn_scores = HookPoint("B H L S")
        self.hook_pattern = HookPoint("B H L S")

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x_BLD: Tensor, memory_BSD: Tensor, mask_BLS: Tensor | None, cache: LayerCache | None = None
    ) -> Tensor:
        if cache is None:
            return self.gather(x_BLD, *self.keys_and_values(memory_BSD), mask_BLS)
        if cache.memory is None:
            cache.memory = self.keys_and_values(memory_BSD)
        return self.gather(x_BLD, *cache.memory, mask_BLS)


class DecoderBlock(nn.Module):
    """Post-norm: x = ln1(x + attn(x)), x = ln2(x + cross_attn(x, memory)), then ln3(x + mlp(x))."""

    def __init__(self, d_model: int, n_heads: int, d_mlp: int, activation: str, ln_eps: float):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.attn = CausalAttention(d_model, n_heads)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln1 = LayerNorm(d_model, ln_eps)
        self.cross_attn = CrossAttention(d_model, n_heads)
        self.hook_cross_attn_out = HookPoint("B L D")
        self.hook_resid_mid_cross = HookPoint("B L D")
        self.ln2 = LayerNorm(d_model, ln_eps)
        self.mlp = FeedForward(d_model, d_mlp, activation)
        self.hook_mlp_out = HookPoint("B L D")
        self.hook_resid_post = HookPoint("B L D")
        self.ln3 = LayerNorm(d_model, ln_eps)

    def forward(
        self,
        resid_BLD: Tensor,
        memory_BSD: Tensor,
        mask: Mask,
        cross_mask_BLS: Tensor | None,
        cache: LayerCache | None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn_out = self.hook_attn_out(self.attn(resid_pre, at_read(mask, read_BR), cache, read_BR))
        x_BLD = self.ln1(self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out))
        cross_mask = at_read(cross_mask_BLS, read_BR)
        cross_attn_out = self.hook_cross_attn_out(self.cross_attn(x_BLD, memory_BSD, cross_mask, cache))
        x_BLD = self.ln2(self.hook_resid_mid_cross(x_BLD + cross_attn_out))
        mlp_out = self.hook_mlp_out(self.mlp(x_BLD))
        return self.ln3(self.hook_resid_post(x_BLD + mlp_out))


def source_mask_for(tokens: Tensor, memory_BSD: Tensor, mask: Tensor | None) -> Tensor | None:
    """The mask [B, L, S] from target to source, from one of [B, S] or [B, L, S]; None if every source token is real.

    Raises:
        UsageError: another shape, or a target that may attend to no source token.
    """
    if mask is None:
        return None
    (batch, length), n_source = tokens.shape, memory_BSD.shape[1]
    if tuple(mask.shape) not in {(batch, n_source), (batch, length, n_source)}:
        expected = f"{[batch, n_source]} or {[batch, length, n_source]}"
        raise UsageError(f"cross_mask is {expected}; got {list(mask.shape)}")
    mask = check_mask(mask).to(tokens.device)
    if mask.dim() == 2 and not bool(mask.any(1).all()):
        raise UsageError(
            "cross_mask must let each target see a source token, and one of its rows is all false; correct it"
        )
    return mask if mask.dim() == 3 else mask[:, None].expand(batch, length, n_source)
