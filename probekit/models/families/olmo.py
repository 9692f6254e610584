"""OLMo 2 (Walsh et al. 2024, "2 OLMo 2 Furious") and OLMo 3 (2025), written by hand.

A decoder like Llama, but for its norms: no block normalises what it reads; the outputs of attention and MLP are
normalised before they are added to the stream, and so are queries and keys, all heads together. OLMo 3 has a sliding
window in most layers, and stretches the rotations of the others alone to longer contexts. Every point has its name in
TransformerLens; its axes are given where it is made. Exact against `transformers`; `olmo_hf.py` translates its files.

Identities: resid_pre + attn_out = resid_mid, resid_mid + mlp_out = resid_post, resid_post.i = resid_pre.{i + 1};
`attn_out` and `mlp_out` are after their norms, so they equal `ln1_post_normalized` and `ln2_post_normalized`.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads,
K d_head, F d_mlp, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from einops import rearrange
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel, fill_normal, stopped
from probekit.models.cache import KeyValueCache, LayerCache
from probekit.models.config_checks import (
    check_choice,
    check_dimension,
    check_flag,
    check_id,
    check_ids,
    check_multiple,
    check_positive_number,
    hf_field,
)
from probekit.models.config_fields import FULL, SLIDING
from probekit.models.families import olmo_hf
from probekit.models.family import Family
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    Linear,
    Mask,
    RMSNorm,
    SwiGLU,
    at_read,
    attend,
    linear,
    projected,
)
from probekit.models.positional import RopeScaling, Rotary, rotate_half
from probekit.models.windows import in_window

SIZES = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_mlp", "n_layers", "n_ctx", "d_vocab")
_named = partial(hf_field, olmo_hf.OURS)


@dataclass(frozen=True)
class OlmoConfig:
    """The sizes and options of an OLMo 2 or 3; the defaults are those of OLMo 2 7B.

    Attributes:
        n_kv_heads: heads of keys and values; each serves n_heads / n_kv_heads heads of queries.
        rope_theta: base of the angles in layers of "full_attention".
        rope_scaling: how rotations of these layers are stretched to a longer context; None for no stretching.
        local_rope_theta: base of the angles in layers of "sliding_attention".
        attention_bias: whether queries, keys, values and the output projection have biases.
        sliding_window: how many tokens a token of a layer of "sliding_attention" sees, itself included.
        layer_types: "full_attention" or "sliding_attention" for each layer; () for full attention in all.
        init_std: standard deviation of normal initial weights.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = 4096
    n_heads: int = 32
    n_kv_heads: int = 32
    d_head: int = 128
    d_mlp: int = 11008
    n_layers: int = 32
    n_ctx: int = 4096
    d_vocab: int = 100352
    activation: str = "silu"
    norm_eps: float = 1e-6
    rope_theta: float = 500000.0
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float = 500000.0
    attention_bias: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] = ()
    tie_embeddings: bool = False
    init_std: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = 100257
    model_type: str = "olmo2"

    def __post_init__(self):
        check_choice(self.model_type, olmo_hf.CLASSES, "model_type")
        for field in SIZES:
            check_dimension(field, getattr(self, field), _named(field))
        check_multiple(self.n_heads, _named("n_heads"), self.n_kv_heads, _named("n_kv_heads"))
        if self.d_head % 2:
            raise DataError(f"{_named('d_head')} must be even, as rotary positions rotate pairs; got {self.d_head}")
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        for field in ("norm_eps", "rope_theta", "local_rope_theta", "init_std"):
            check_positive_number(getattr(self, field), _named(field))
        for field in ("attention_bias", "tie_embeddings"):
            check_flag(getattr(self, field), _named(field))
        for kind in self.layer_types:
            check_choice(kind, (FULL, SLIDING), "layer_types")
        if self.layer_types and len(self.layer_types) != self.n_layers:
            raise DataError(f"layer_types must name {self.n_layers} layers; got {len(self.layer_types)}")
        if SLIDING in self.layer_types:
            check_dimension("n_ctx", self.sliding_window, "sliding_window")
        check_id(self.bos_token_id, "bos_token_id")
        check_ids(self.eos_token_id, "eos_token_id")

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "OlmoConfig":
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        Raises:
            DataError: a size is missing or out of range, or a field requires arithmetic that is not implemented here;
                the message names the field.
        """
        return cls(**olmo_hf.fields_from_hf(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        return olmo_hf.fields_to_hf(self)

    def type_of(self, layer: int) -> str:
        """The layer's attention: "full_attention" or "sliding_attention"."""
        return self.layer_types[layer] if self.layer_types else FULL


class Attention(nn.Module):
    """Causal grouped-query self-attention; queries and keys are normalised, all heads together, then rotated."""

    def __init__(self, cfg: OlmoConfig):
        super().__init__()
        d_queries, d_keys = cfg.n_heads * cfg.d_head, cfg.n_kv_heads * cfg.d_head
        self.d_head = cfg.d_head
        self.q = Linear(cfg.d_model, d_queries, cfg.attention_bias)
        self.k = Linear(cfg.d_model, d_keys, cfg.attention_bias)
        self.v = Linear(cfg.d_model, d_keys, cfg.attention_bias)
        self.out = Linear(d_queries, cfg.d_model, cfg.attention_bias)
        self.hook_q = HookPoint("B L H K")
        self.hook_k = HookPoint("B L G K")
        self.hook_v = HookPoint("B L G K")
        self.q_norm = RMSNorm(d_queries, cfg.norm_eps, "B L HK")
        self.k_norm = RMSNorm(d_keys, cfg.norm_eps, "B L GK")
        self.hook_rot_q = HookPoint("B L H K")
        self.hook_rot_k = HookPoint("B L G K")
        self.hook_attn_scores = HookPoint("B H L M")
        self.hook_pattern = HookPoint("B H L M")
        self.hook_z = HookPoint("B L H K")
        self.hook_result = HookPoint("B L H D")

    def forward(
        self,
        x_BLD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        cache: LayerCache | None = None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        parts = self.q(at_read(x_BLD, read_BR)), self.k(x_BLD), self.v(x_BLD)
        q, k, v = (rearrange(part, "b l (h k) -> b l h k", k=self.d_head) for part in parts)
        q_BLHK, k_BMGK, v_BMGK = self.hook_q(q), self.hook_k(k), self.hook_v(v)
        q_BLHK = self.q_norm(q_BLHK.flatten(2)).view_as(q_BLHK)
        k_BMGK = self.k_norm(k_BMGK.flatten(2)).view_as(k_BMGK)
        cos, sin = rotation
        q_BLHK = self.hook_rot_q(_rotated(q_BLHK, (at_read(cos, read_BR), at_read(sin, read_BR))))
        k_BMGK = self.hook_rot_k(_rotated(k_BMGK, rotation))
        if cache is not None:
            k_BMGK, v_BMGK = cache.append(k_BMGK, v_BMGK)
        z_BLHK = self.hook_z(attend(q_BLHK, k_BMGK, v_BMGK, mask, self.hook_attn_scores, self.hook_pattern))
        return projected(z_BLHK, self.out, self.hook_result)


def _rotated(x_BLHK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """`rotate_half` in float32, as OLMo computes it in every type."""
    wide = torch.promote_types(x_BLHK.dtype, torch.float32)
    return rotate_half(x_BLHK.to(wide), rotation).to(x_BLHK.dtype)


class Block(nn.Module):
    """Norms after the sublayers: x + ln1_post(attn(x)), then x + ln2_post(mlp(x))."""

    def __init__(self, cfg: OlmoConfig):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.attn = Attention(cfg)
        self.ln1_post = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.mlp = SwiGLU(cfg.d_model, cfg.d_mlp, activation=cfg.activation)
        self.ln2_post = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.hook_mlp_out = HookPoint("B L D")
        self.hook_resid_post = HookPoint("B L D")

    def forward(
        self,
        resid_BLD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        cache: LayerCache | None = None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attended = self.attn(resid_pre, rotation, at_read(mask, read_BR), cache, read_BR)
        attn_out = self.hook_attn_out(self.ln1_post(attended))
        resid_mid = self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out)
        mlp_out = self.hook_mlp_out(self.ln2_post(self.mlp(resid_mid)))
        return self.hook_resid_post(resid_mid + mlp_out)


_WHY = "its attention and MLP read the stream without a norm; take {}, or the norm of the output, {}"
ABSENT: dict[str, str] = {
    f"{norm}_{what}": _WHY.format(stream, f"{norm}_post_normalized")
    for norm, stream in (("ln1", "resid_pre"), ("ln2", "resid_mid"))
    for what in ("scale", "normalized")
}


class Olmo(LanguageModel):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    absent = ABSENT

    def __init__(self, cfg: OlmoConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.rope_theta, cfg.rope_scaling)
        alike = cfg.rope_scaling is None and cfg.local_rope_theta == cfg.rope_theta
        self.local_rotary = self.rotary if alike else Rotary(cfg.n_ctx, cfg.d_head, cfg.local_rope_theta)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Logits [B, L, V] of tokens [B, L]; arguments and errors as in `Llama.forward`."""
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids, cache)
        reads = self.reads(tokens, position_ids, mask, stop)
        windowed = in_window(mask, self.cfg.sliding_window, position_ids, cache)
        seen = {FULL: (self.rotary(position_ids), mask), SLIDING: (self.local_rotary(position_ids), windowed)}
        start, resid_BLD = self.started(self.hook_embed(self.embed(tokens)))
        for i, block in enumerate(self.blocks[start:stop], start):
            rotation, allowed = seen[self.cfg.type_of(i)]
            resid_BLD = block(resid_BLD, rotation, allowed, None if cache is None else cache[i], reads[i])
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        normalized_BLD = self.ln_final(resid_BLD)
        return self.head(normalized_BLD) if return_logits else normalized_BLD

    def window_of(self, layer: int) -> int | None:
        """`sliding_window` in layers of "sliding_attention"."""
        return self.cfg.sliding_window if self.cfg.type_of(layer) == SLIDING else None

    def head(self, normalized_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the final norm's output."""
        return linear(normalized_BLD, (self.unembed or self.embed).weight, None)

    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before training: normal of `init_std`, as `transformers` does."""
        fill_normal(self, self.cfg.init_std, seed)
        return self


FAMILY = Family(
    model_types=tuple(olmo_hf.CLASSES),
    config=OlmoConfig,
    model=Olmo,
    shape=olmo_hf.shape,
    hf_names=olmo_hf.hf_names,
    hf_prefix=olmo_hf.HF_PREFIX,
    hf_model=olmo_hf.hf_model,
    hf_ties=olmo_hf.hf_ties,
    hf_buffers=olmo_hf.HF_BUFFERS,
    loads="OLMo 2, OLMo 3",
    refused="rope scaling of layers with a window; longrope",
    hub_examples=("allenai/OLMo-2-0425-1B", "allenai/OLMo-2-1124-7B", "allenai/Olmo-3-1025-7B"),
)
