"""Gemma 4, written by hand (Gemma Team 2026): the text model, without the towers for images and sound.

A decoder: token embedding times sqrt(D), blocks with norms before and after either sublayer, causal attention whose
scores are not divided by a root, a gated MLP (GeGLU), a final norm, and a head tied to the token embedding. Most layers
have a window; the others (full attention) have wider heads, fewer of keys and values, and rotate a part of each head by
the frequencies of the whole. Queries and keys are normalised with a gain, values without. Some sizes have what others
lack: full layers whose values are their keys before norm and rotation; last layers that attend to the keys and values
of an earlier layer of their type, with an MLP of twice the width; in every layer an embedding of the token, of that
layer alone, that a gate of the stream lets in; experts as well as an MLP, whose two outputs are summed; a soft cap of
the logits.

`embed` is the embedding after its factor, so it equals `resid_pre.0`. `attn_out`, `mlp_out` and `per_layer_out` are
after their norms. A block's sum is scaled by one number: resid_pre + attn_out = resid_mid, scale * (resid_mid + mlp_out
+ per_layer_out) = resid_post, which is the next resid_pre. `q` and `k` are before their norms, `v` after it. Layers
that attend to another's keys and values have no points of their own for these. Every point has its name in
TransformerLens but for `per_layer_out`; its axes are given where it is made. Exact against `transformers`; the
translation of its files is at the end.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads, K d_head,
F d_mlp, E experts, N tokens of all texts, P width of a layer's own embedding, V vocab.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from einops import rearrange
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.cache import KeyValueCache, LayerCache
from probekit.models.config_fields import (
    CAUSAL,
    FULL,
    SLIDING,
    check_choice,
    check_count,
    check_fields,
    check_implemented,
    flag,
    given_layer_types,
    named,
    one_of,
    read_fields,
    real,
    settle_windows,
    size,
    token_id,
    token_ids,
    unchecked,
    written_fields,
)
from probekit.models.decoder import LLAMA_NAMES, PRE_NORM, DecoderOnly
from probekit.models.experts import Expert, Mixture
from probekit.models.families.gemma import soft_cap
from probekit.models.families.moe import SPARSE_POINTS, check_experts
from probekit.models.family import LOGITS, Family, HfModel, HfPoint, HfTensor, module_output, weight_points
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    Linear,
    Mask,
    RMSNorm,
    SwiGLU,
    at_read,
    attend,
    projected,
)
from probekit.models.positional import ComputedTable, Rotary, frequencies, rotate_half
from probekit.models.rope_fields import rope_from_hf
from probekit.models.shapes import ModelShape, StackShape, decoder_shape, stack_shape

TYPE = "gemma4_text"


@dataclass(frozen=True)
class Gemma4Config:
    """The sizes and options of a Gemma 4; the defaults are those of Gemma 4 31B.

    Attributes:
        n_kv_heads: heads of keys and values in layers with a window.
        d_head: width of a head there.
        n_global_kv_heads: heads of keys and values in layers of full attention.
        d_global_head: width of a head there.
        values_are_keys: whether the values of layers of full attention are their keys, before norm and rotation.
        n_borrowing_layers: how many of the last layers attend to keys and values of an earlier layer of their type.
        double_wide_mlp: whether the MLPs of these layers are twice as wide.
        d_per_layer: P; None where layers have no embedding of their own.
        n_experts: experts in each layer, which also has an MLP; None for none.
        n_active_experts: how many of them compute a token.
        d_expert: width of one.
        rope_theta: base of the rotations in layers of full attention.
        rotary_factor: how much of each head is rotated there.
        local_rope_theta: base of the rotations in layers with a window.
        sliding_window: how many tokens a token of a layer with a window sees, itself included.
        layer_types: "full_attention" or "sliding_attention" for each layer; () for full attention in every sixth and in
            the last.
        output_logits_soft_cap: cap of the logits; None for none.
        init_std: standard deviation of normal initial weights.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = size(5376, hf="hidden_size")
    n_heads: int = size(32, hf="num_attention_heads")
    n_kv_heads: int = size(16, hf="num_key_value_heads")
    d_head: int = size(256, hf="head_dim")
    n_global_kv_heads: int = size(4)
    d_global_head: int = size(512)
    values_are_keys: bool = flag(True, hf="attention_k_eq_v")
    n_borrowing_layers: int = unchecked(0, hf="num_kv_shared_layers")
    double_wide_mlp: bool = flag(False, hf="use_double_wide_mlp")
    d_mlp: int = size(21504, hf="intermediate_size")
    n_layers: int = size(60, hf="num_hidden_layers")
    n_ctx: int = size(262144, hf="max_position_embeddings")
    d_vocab: int = size(262144, hf="vocab_size")
    d_per_layer: int | None = size(None, optional=True)
    n_experts: int | None = size(None, hf="num_experts", optional=True)
    n_active_experts: int | None = size(None, hf="top_k_experts", optional=True)
    d_expert: int | None = size(None, hf="moe_intermediate_size", optional=True)
    activation: str = one_of("gelu_pytorch_tanh", ACTIVATIONS, hf="hidden_activation")
    norm_eps: float = real(1e-6, hf="rms_norm_eps")
    rope_theta: float = real(1000000.0)
    rotary_factor: float = real(0.25, formula="partial_rotary_factor")
    local_rope_theta: float = real(10000.0)
    sliding_window: int | None = unchecked(1024, hf="sliding_window")
    layer_types: tuple[str, ...] = unchecked((), hf="layer_types")
    output_logits_soft_cap: float | None = real(None, hf="final_logit_softcapping", optional=True)
    tie_embeddings: bool = flag(True, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    bos_token_id: int | None = token_id(2, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(1, hf="eos_token_id")

    def __post_init__(self):
        check_fields(self)
        if not self.layer_types:
            object.__setattr__(self, "layer_types", _types(self.n_layers))
        settle_windows(self)
        name = partial(named, self)
        for own in ("n_kv_heads", "n_global_kv_heads"):
            if self.n_heads % getattr(self, own):
                raise DataError(
                    f"{name('n_heads')} {self.n_heads} must be a multiple of {name(own)} {getattr(self, own)}; correct "
                    "one of them"
                )
        for own in ("d_head", "d_global_head"):
            if getattr(self, own) % 2:
                raise DataError(f"{name(own)} must be even, as rotary positions rotate pairs; got {getattr(self, own)}")
        if self.rotary_factor > 1:
            raise DataError(f"{name('rotary_factor')} must be at most 1; got {self.rotary_factor}")
        check_count(self.n_borrowing_layers, name("n_borrowing_layers"))
        lending = {*self.layer_types[: max(0, self.n_layers - self.n_borrowing_layers)]}
        if not {*self.layer_types} <= lending:
            raise DataError(
                f"{name('n_borrowing_layers')} {self.n_borrowing_layers} leaves layers without an earlier one of their "
                "type, whose keys and values they could attend to; correct it, or layer_types"
            )
        lacking = [own for own in ("n_experts", "n_active_experts", "d_expert") if getattr(self, own) is None]
        if len(lacking) in (1, 2):
            raise DataError(f"experts need n_experts, n_active_experts and d_expert; add {name(lacking[0])}")
        if not lacking:
            check_experts(self)

    @property
    def query_pre_attn_scalar(self) -> int:
        """What scores are divided by the root of: 1."""
        return 1

    def borrows(self, layer: int) -> bool:
        """Whether a layer attends to the keys and values of an earlier one."""
        return layer >= self.n_layers - self.n_borrowing_layers

    def lender(self, layer: int) -> int:
        """The layer whose keys and values a layer attends to: itself, or the last of its type that has any."""
        if not self.borrows(layer):
            return layer
        own = self.layer_types[: self.n_layers - self.n_borrowing_layers]
        return max(i for i, kind in enumerate(own) if kind == self.layer_types[layer])

    def heads(self, layer: int) -> tuple[int, int]:
        """How many heads of keys and values a layer has, and how wide they are."""
        is_full = self.layer_types[layer] == FULL
        return (self.n_global_kv_heads, self.d_global_head) if is_full else (self.n_kv_heads, self.d_head)

    def mlp_width(self, layer: int) -> int:
        """F of a layer."""
        return self.d_mlp * (2 if self.double_wide_mlp and self.borrows(layer) else 1)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`."""
        return cls(**_fields(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        fields = written_fields(self) | {
            "global_head_dim": self.d_global_head,
            "num_global_key_value_heads": self.n_global_kv_heads if self.values_are_keys else None,
            "hidden_size_per_layer_input": self.d_per_layer or 0,
            "vocab_size_per_layer_input": self.d_vocab,
            "enable_moe_block": self.n_experts is not None,
            "rope_parameters": {
                FULL: {"rope_type": "proportional", "rope_theta": self.rope_theta, _SHARE: self.rotary_factor},
                SLIDING: {"rope_type": "default", "rope_theta": self.local_rope_theta},
            },
        }
        if self.n_experts is None:
            fields = {name: value for name, value in fields.items() if name not in _OF_EXPERTS}
        return {"model_type": TYPE, "architectures": ["Gemma4ForCausalLM"]} | fields


class ProportionalRotary(Rotary):
    """Rotations of the first pairs of coordinates alone, by the frequencies that they have among all pairs."""

    def __init__(self, cfg: Gemma4Config):
        super().__init__(cfg.n_ctx, cfg.d_global_head, cfg.rope_theta)
        n_pairs = int(cfg.rotary_factor * cfg.d_global_head // 2)

        def rows(positions: Tensor) -> Tensor:
            turned = frequencies(cfg.d_global_head, cfg.rope_theta)
            turned[n_pairs:] = 0
            angles = positions.float()[:, None] * turned
            return torch.cat([angles.cos(), angles.sin()], -1)

        self.table = ComputedTable(rows, cfg.n_ctx)


class Lent:
    """In one forward, keys and values that later layers attend to as well, by the layer that has them."""

    def __init__(self) -> None:
        self.of_layer: dict[int, tuple[Tensor, Tensor]] = {}


class UnhookedNorm(nn.Module):
    """RMSNorm without points, whose gain may be left out; in float32 inside."""

    def __init__(self, width: int | None, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = None if width is None else nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.to(torch.promote_types(x.dtype, torch.float32))
        normalized = x32 * (x32.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (normalized if self.weight is None else normalized * self.weight).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query self-attention over normalised, rotated queries and keys and normalised values."""

    def __init__(self, cfg: Gemma4Config, layer: int):
        super().__init__()
        n_kv_heads, self.d_head = cfg.heads(layer)
        self.borrows, self.lender = cfg.borrows(layer), cfg.lender(layer)
        self.q = Linear(cfg.d_model, cfg.n_heads * self.d_head, bias=False)
        self.q_norm = RMSNorm(self.d_head, cfg.norm_eps, "B L H K")
        self.hook_q = HookPoint("B L H K")
        self.hook_rot_q = HookPoint("B L H K")
        if not self.borrows:
            self.k = Linear(cfg.d_model, n_kv_heads * self.d_head, bias=False)
            of_keys = cfg.values_are_keys and cfg.layer_types[layer] == FULL
            self.v = None if of_keys else Linear(cfg.d_model, n_kv_heads * self.d_head, bias=False)
            self.k_norm = RMSNorm(self.d_head, cfg.norm_eps, "B L G K")
            self.v_norm = UnhookedNorm(None, cfg.norm_eps)
            self.hook_k = HookPoint("B L G K")
            self.hook_v = HookPoint("B L G K")
            self.hook_rot_k = HookPoint("B L G K")
        self.out = Linear(cfg.n_heads * self.d_head, cfg.d_model, bias=False)
        self.hook_attn_scores = HookPoint("B H L M")
        self.hook_pattern = HookPoint("B H L M")
        self.hook_z = HookPoint("B L H K")
        self.hook_result = HookPoint("B L H D")

    def forward(
        self,
        x_BLD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        lent: Lent,
        cache: LayerCache | None = None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        q_BLHK = self.q_norm(self.hook_q(self.split(self.q(at_read(x_BLD, read_BR)))))
        cos, sin = rotation
        q_BLHK = self.hook_rot_q(rotate_half(q_BLHK, (at_read(cos, read_BR), at_read(sin, read_BR))))
        if not self.borrows:
            lent.of_layer[self.lender] = self.keys_and_values(x_BLD, rotation, cache)
        k_BMGK, v_BMGK = (x.to(q_BLHK.device) for x in lent.of_layer[self.lender])
        q_BLHK = q_BLHK * math.sqrt(self.d_head)  # which attention divides scores by
        z_BLHK = self.hook_z(attend(q_BLHK, k_BMGK, v_BMGK, mask, self.hook_attn_scores, self.hook_pattern))
        return projected(z_BLHK, self.out, self.hook_result)

    def keys_and_values(
        self, x_BLD: Tensor, rotation: tuple[Tensor, Tensor], cache: LayerCache | None
    ) -> tuple[Tensor, Tensor]:
        """Those of all tokens so far, [B, M, G, K] each."""
        k_BLGK = self.hook_k(self.split(self.k(x_BLD)))
        v_BLGK = self.hook_v(self.v_norm(k_BLGK if self.v is None else self.split(self.v(x_BLD))))
        k_BLGK = self.hook_rot_k(rotate_half(self.k_norm(k_BLGK), rotation))
        return (k_BLGK, v_BLGK) if cache is None else cache.append(k_BLGK, v_BLGK)

    def split(self, x_BLD: Tensor) -> Tensor:
        """The width split into heads, [B, L, H, K]."""
        return rearrange(x_BLD, "b l (h k) -> b l h k", k=self.d_head)


class MLPWithExperts(SwiGLU, Mixture):
    """A gated MLP, and experts that read the stream itself; the sum of both outputs, each normalised.

    The router sees the stream over the root of its mean square; the weights of a token's experts sum to 1, and are then
    multiplied with a factor of each expert.
    """

    def __init__(self, cfg: Gemma4Config, width: int):
        super().__init__(cfg.d_model, width, activation=cfg.activation)
        n_experts, d_expert, self.n_active = cfg.n_experts or 0, cfg.d_expert or 0, cfg.n_active_experts or 0
        self.norm = UnhookedNorm(cfg.d_model, cfg.norm_eps)
        self.router_norm = UnhookedNorm(None, cfg.norm_eps)
        self.router_scale = nn.Parameter(torch.empty(cfg.d_model))
        experts = (Expert(cfg.d_model, d_expert, cfg.activation) for _ in range(n_experts))
        self.add_experts(Linear(cfg.d_model, n_experts, bias=False), experts)
        self.expert_scale = nn.Parameter(torch.empty(n_experts))
        self.experts_pre = UnhookedNorm(cfg.d_model, cfg.norm_eps)
        self.experts_post = UnhookedNorm(cfg.d_model, cfg.norm_eps)

    def forward(self, x_BLD: Tensor, resid_BLD: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        wide = torch.promote_types(resid_BLD.dtype, torch.float32)
        scaled_BLD = self.router_norm(resid_BLD.to(wide)) * self.router_scale.to(wide) * resid_BLD.shape[-1] ** -0.5
        mixed_BLD = self.mixed(self.experts_pre(resid_BLD), self.routed(scaled_BLD))
        return self.norm(super().forward(x_BLD)) + self.experts_post(mixed_BLD)

    def weights(self, logits_BLE: Tensor) -> Tensor:
        """The largest entries of the softmax over their sum, times their experts' factors; 0 elsewhere."""
        largest, chosen = logits_BLE.softmax(-1).topk(self.n_active, -1)
        shares = largest / largest.sum(-1, keepdim=True) * self.expert_scale.to(logits_BLE.dtype)[chosen]
        return torch.zeros_like(logits_BLE).scatter(-1, chosen, shares)


class PerLayer(nn.Module):
    """What a layer's own embedding of the token adds to the stream: W_out (act(x W_gate) * embedding), normalised."""

    def __init__(self, cfg: Gemma4Config, width: int):
        super().__init__()
        self.activation = cfg.activation
        self.gate = Linear(cfg.d_model, width, bias=False)
        self.out = Linear(width, cfg.d_model, bias=False)
        self.norm = UnhookedNorm(cfg.d_model, cfg.norm_eps)

    def forward(self, x_BLD: Tensor, own_BLP: Tensor) -> Tensor:
        return self.norm(self.out(self.gate.activated(x_BLD, self.activation) * own_BLP))


class Block(nn.Module):
    """x + ln1_post(attn(ln1(x))), plus ln2_post(mlp(ln2(x))), plus what the layer's own embedding adds; then scaled."""

    def __init__(self, cfg: Gemma4Config, layer: int):
        super().__init__()
        D, eps, width = cfg.d_model, cfg.norm_eps, cfg.mlp_width(layer)
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = RMSNorm(D, eps)
        self.attn = Attention(cfg, layer)
        self.ln1_post = RMSNorm(D, eps)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = RMSNorm(D, eps)
        self.has_experts = cfg.n_experts is not None
        self.mlp = MLPWithExperts(cfg, width) if self.has_experts else SwiGLU(D, width, activation=cfg.activation)
        self.ln2_post = RMSNorm(D, eps)
        self.hook_mlp_out = HookPoint("B L D")
        self.per_layer = None
        if cfg.d_per_layer is not None:
            self.per_layer = PerLayer(cfg, cfg.d_per_layer)
            self.hook_per_layer_out = HookPoint("B L D")
        self.scale = nn.Parameter(torch.empty(1))
        self.hook_resid_post = HookPoint("B L D")

    def forward(
        self,
        resid_BLD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        own_BLP: Tensor | None,
        lent: Lent,
        cache: LayerCache | None = None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn = self.attn(self.ln1(resid_pre), rotation, at_read(mask, read_BR), lent, cache, read_BR)
        attn_out = self.hook_attn_out(self.ln1_post(attn))
        resid_mid = self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out)
        stream = (resid_mid,) if self.has_experts else ()
        mlp_out = self.hook_mlp_out(self.ln2_post(self.mlp(self.ln2(resid_mid), *stream)))
        summed_BLD = resid_mid + mlp_out
        if self.per_layer is not None:
            summed_BLD = summed_BLD + self.hook_per_layer_out(self.per_layer(summed_BLD, at_read(own_BLP, read_BR)))
        return self.hook_resid_post(summed_BLD * self.scale)


class TokenEmbeddings(nn.Module):
    """The embedding that each layer has of a token, [B, L, P]: from a table, and from the stream's first state.

    One table and one projection hold those of all layers side by side.
    """

    def __init__(self, cfg: Gemma4Config, width: int):
        super().__init__()
        self.n_layers, self.width = cfg.n_layers, width
        self.embed = Embedding(cfg.d_vocab, cfg.n_layers * width)
        self.project = Linear(cfg.d_model, cfg.n_layers * width, bias=False)
        self.norm = UnhookedNorm(width, cfg.norm_eps)

    def forward(self, tokens: Tensor, embedded_BLD: Tensor) -> list[Tensor]:
        looked_up = self.embed(tokens) * rounded(self.width**0.5, self.embed.weight.dtype)
        projected = self.project(embedded_BLD) * embedded_BLD.shape[-1] ** -0.5
        shape = (*tokens.shape, self.n_layers, self.width)
        return [*((self.norm(projected.view(shape)) + looked_up.view(shape)) * 2**-0.5).unbind(-2)]


def rounded(factor: float, dtype: torch.dtype) -> Tensor:
    """A factor in the type of the weights, as in the training; in bfloat16 sqrt(3072) becomes 55.5."""
    return torch.tensor(factor, dtype=torch.float32).to(dtype)


BORROWED = "layers that attend to keys and values of an earlier one have none of their own"
OF_KEYS = ("k", "v", "rot_k", "k_norm", "k_norm_scale")


class Gemma4(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    def __init__(self, cfg: Gemma4Config):
        super().__init__(cfg)
        self.starts = not cfg.n_borrowing_layers and cfg.d_per_layer is None  # these need what came before a block
        self.absent = dict.fromkeys(OF_KEYS, BORROWED) if cfg.n_borrowing_layers else {}
        self.rotary = ProportionalRotary(cfg)
        self.local_rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.local_rope_theta)
        self.per_layer = None if cfg.d_per_layer is None else TokenEmbeddings(cfg, cfg.d_per_layer)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg, layer) for layer in range(cfg.n_layers))
        self.ln_final = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def entered(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The tokens' rows of the table times sqrt(D), [B, L, D]."""
        return self.hook_embed(self.embed(tokens) * rounded(self.cfg.d_model**0.5, self.embed.weight.dtype))

    def told_by_layer(self, tokens: Tensor, embedded_BLD: Tensor) -> list[tuple]:
        """The layer's own embedding of the tokens, and the keys and values that layers lend to later ones."""
        own = [None] * self.cfg.n_layers if self.per_layer is None else self.per_layer(tokens, embedded_BLD)
        lent = Lent()
        return [(each, lent) for each in own]

    def window_of(self, layer: int) -> int | None:
        """`sliding_window` in the layers that have one."""
        return self.cfg.sliding_window if self.cfg.layer_types[layer] == SLIDING else None

    def empty_cache(self) -> KeyValueCache:
        """A cache for each layer, which several layers share where they share keys and values."""
        layers = [LayerCache() for _ in range(self.cfg.n_layers)]
        return KeyValueCache(layers[self.cfg.lender(i)] for i in range(self.cfg.n_layers))

    def size_of(self, axis: str, short: str, layer: int | None = None) -> int | None:
        """The size of an axis of this point in a layer: heads and MLPs are not of one size in all."""
        if layer is None:
            return super().size_of(axis, short)
        n_kv_heads, d_head = self.cfg.heads(layer)
        sizes = {"G": n_kv_heads, "K": d_head, "GK": n_kv_heads * d_head, "HK": self.cfg.n_heads * d_head}
        sizes |= {"F": self.cfg.mlp_width(layer)}
        return sizes.get(axis) or super().size_of(axis, short)

    def head(self, normalized_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the final norm's output, soft-capped where the config says so."""
        return soft_cap(super().head(normalized_BLD), self.cfg.output_logits_soft_cap)


# Translation from and to Hugging Face.

_OF_EXPERTS = ("num_experts", "top_k_experts", "moe_intermediate_size")
_SHARE, _LAYERS = "partial_rotary_factor", "per_layer_config"


def _types(n_layers: int) -> tuple[str, ...]:
    return tuple(FULL if (layer + 1) % 6 == 0 or layer + 1 == n_layers else SLIDING for layer in range(n_layers))


def _fields(hf: Mapping[str, Any]) -> dict[str, Any]:
    check_choice(hf.get("model_type", TYPE), (TYPE,), "model_type")
    # every published file gives the required sizes
    given = read_fields(Gemma4Config, hf, ("d_model", "d_mlp", "n_layers", "n_heads", "n_kv_heads"))
    given["layer_types"] = given_layer_types(hf) or _types(given["n_layers"])
    given |= _global_heads(hf, given["layer_types"])
    has_experts, has_own = hf.get("enable_moe_block", False), hf.get("hidden_size_per_layer_input", 256) or 0
    required: dict[str, Any] = CAUSAL | {"attention_bias": False}
    if hf.get("use_bidirectional_attention") not in (None, "vision"):  # of the tokens of an image among themselves
        required["use_bidirectional_attention"] = None
    if has_own:
        required["vocab_size_per_layer_input"] = hf.get("vocab_size", 262_144)
        hf = {"vocab_size_per_layer_input": 262_144, **hf}
    check_implemented({name: x for name, x in hf.items() if name != _LAYERS or not _is_ours(hf)}, required, TYPE)
    defaults = {"n_ctx": 131_072, "d_head": 256, "values_are_keys": False, "sliding_window": 512}
    experts = {} if has_experts else dict.fromkeys(("n_experts", "n_active_experts", "d_expert"))
    return defaults | given | experts | _rope(hf) | {"d_per_layer": has_own or None}


def _is_ours(hf: Mapping[str, Any]) -> bool:
    """Whether per_layer_config says of layers of full attention alone how many heads they have, of which width."""
    by_layer, types = hf.get(_LAYERS), given_layer_types(hf) or _types(hf["num_hidden_layers"])
    if not isinstance(by_layer, Mapping) or not by_layer:
        return False
    each = list(by_layer.values())
    return (
        {*map(str, by_layer)} == {str(i) for i, kind in enumerate(types) if kind == FULL}
        and all(one == each[0] for one in each)
        and isinstance(each[0], Mapping)
        and {"head_dim"} <= each[0].keys() <= {"head_dim", "num_key_value_heads"}
    )


def _global_heads(hf: Mapping[str, Any], layer_types: tuple[str, ...]) -> dict[str, Any]:
    """Heads of layers of full attention; transformers 5 writes them into per_layer_config, layer by layer."""
    if _is_ours(hf):
        own = next(iter(hf[_LAYERS].values()))
        width, n_kv_heads = own["head_dim"], own.get("num_key_value_heads")
    else:
        width, n_kv_heads = hf.get("global_head_dim", 512), hf.get("num_global_key_value_heads")
        n_kv_heads = n_kv_heads if hf.get("attention_k_eq_v", False) else None  # without effect otherwise
    return {
        "d_global_head": width,
        "n_global_kv_heads": hf["num_key_value_heads"] if n_kv_heads is None else n_kv_heads,
    }


def _rope(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The rotations of either type of layer; those of full attention turn a part of each head."""
    by_type = hf.get("rope_parameters")
    if by_type is None:
        by_type = {FULL: {"rope_type": "proportional", "rope_theta": 1e6, _SHARE: 0.25}, SLIDING: {"rope_theta": 1e4}}
    if not isinstance(by_type, Mapping) or not by_type.keys() <= {FULL, SLIDING}:
        raise DataError(f"rope_parameters must be an object with {FULL} and {SLIDING}; got {by_type!a:.120}")
    full, local = (by_type.get(kind) or {} for kind in (FULL, SLIDING))
    if isinstance(full, Mapping):
        is_ours = full.get("rope_type") == "proportional"
        check_implemented({"factor": full["factor"]} if is_ours and "factor" in full else {}, {"factor": 1.0}, TYPE)
        full = {name: value for name, value in full.items() if is_ours or name != _SHARE}  # others read no share
        full |= {"rope_type": "default"} if is_ours else {}
    read = partial(rope_from_hf, theta=(None, 10000.0), kinds=())
    found = read({"rope_parameters": full}, share=(_SHARE, 1.0))
    local_theta = read({"rope_parameters": local}, own="local_rope_theta")["local_rope_theta"]
    return {"rope_theta": found["rope_theta"], "rotary_factor": found[_SHARE], "local_rope_theta": local_theta}


_LAYER = "model.layers.{}"
_NAMES = LLAMA_NAMES | {
    "blocks.{}.ln1_post": f"{_LAYER}.post_attention_layernorm",
    "blocks.{}.ln2": f"{_LAYER}.pre_feedforward_layernorm",
    "blocks.{}.ln2_post": f"{_LAYER}.post_feedforward_layernorm",
    "blocks.{}.scale": f"{_LAYER}.layer_scalar",
    "blocks.{}.mlp.norm": f"{_LAYER}.post_feedforward_layernorm_1",
    "blocks.{}.mlp.router_scale": f"{_LAYER}.router.scale",
    "blocks.{}.mlp.router": f"{_LAYER}.router.proj",
    "blocks.{}.mlp.expert_scale": f"{_LAYER}.router.per_expert_scale",
    "blocks.{}.mlp.experts_pre": f"{_LAYER}.pre_feedforward_layernorm_2",
    "blocks.{}.mlp.experts.{}.gate.weight": f"{_LAYER}.experts.gate_up_proj",
    "blocks.{}.mlp.experts.{}.up.weight": f"{_LAYER}.experts.gate_up_proj",
    "blocks.{}.mlp.experts.{}.down.weight": f"{_LAYER}.experts.down_proj",
    "blocks.{}.mlp.experts_post": f"{_LAYER}.post_feedforward_layernorm_2",
    "blocks.{}.per_layer.gate": f"{_LAYER}.per_layer_input_gate",
    "blocks.{}.per_layer.out": f"{_LAYER}.per_layer_projection",
    "blocks.{}.per_layer.norm": f"{_LAYER}.post_per_layer_input_norm",
    "per_layer.embed": "model.embed_tokens_per_layer",
    "per_layer.project": "model.per_layer_model_projection",
    "per_layer.norm": "model.per_layer_projection_norm",
}


def copies(cfg: Gemma4Config) -> dict[str, None]:
    """Keys and values of layers that attend to those of another, which files may hold and no model reads."""
    parts = ("k_proj", "v_proj", "k_norm", "v_norm")
    borrowing = [layer for layer in range(cfg.n_layers) if cfg.borrows(layer)]
    return {f"model.layers.{layer}.self_attn.{part}.weight": None for layer in borrowing for part in parts}


def shape(cfg: Gemma4Config) -> ModelShape:
    """The sizes of a `Gemma4Config`'s model."""
    none = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "norm_shift"), False)
    norms, D, P = ("ln1", "ln1_post", "ln2", "ln2_post"), cfg.d_model, cfg.d_per_layer or 0
    experts = {} if cfg.n_experts is None else {"n_experts": cfg.n_experts, "n_active_experts": cfg.n_active_experts}
    # three norms of the experts and one of the layer's embedding have no points; nor have scales
    gains = 1 + (D if P else 0) + (4 * D + cfg.n_experts if cfg.n_experts else 0)
    stack = stack_shape(
        cfg, gated=True, rotary=True, norms=norms, qk_norm="K", d_per_layer=P, n_scales=gains, **none, **experts
    )

    def kind(layer: int) -> StackShape:
        n_kv_heads, d_head = cfg.heads(layer)
        mlp = {"d_mlp": cfg.mlp_width(layer)}
        if cfg.n_experts is not None:
            mlp = {"d_mlp": cfg.d_expert, "d_dense_beside": cfg.mlp_width(layer)}
        keys = "keys" if cfg.values_are_keys and cfg.layer_types[layer] == FULL else "own"
        keys = "lent" if cfg.borrows(layer) else keys
        return replace(stack, n_layers=1, n_kv_heads=n_kv_heads, d_head=d_head, keys=keys, **mlp)

    counts = Counter(map(kind, range(cfg.n_layers)))
    stack = replace(stack, kinds=tuple(replace(each, n_layers=n) for each, n in counts.items()))
    decoder = decoder_shape(TYPE, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)
    own = {"embeddings of the layers": cfg.d_vocab * cfg.n_layers * P, "their norm": P} if P else {}
    return replace(decoder, embedding_sums=1, outside={**decoder.outside, **own})


def twin(cfg: Gemma4Config, names: Mapping[str, HfTensor]) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    points = weight_points(names, PRE_NORM)
    layer = "model.layers.{layer}"
    points |= {
        "v": HfPoint(f"{layer}.self_attn.v_norm", module_output),
        "per_layer_out": HfPoint(f"{layer}.post_per_layer_input_norm", module_output),
        "router_logits": HfPoint(f"{layer}.router.proj", lambda _, output: output[None]),
        "expert_weights": HfPoint(f"{layer}.router", SPARSE_POINTS["expert_weights"]),
        LOGITS: HfPoint("", lambda _, output: output.logits),  # after the soft cap, which is not in lm_head
    }
    # eager, as the grouped product of all experts does not take float64
    options = {} if cfg.n_experts is None else {"experts_implementation": "eager"}
    return HfModel("Gemma4TextConfig", "Gemma4ForCausalLM", points, options=options)


FAMILY = Family(
    model_types=(TYPE,),
    config=Gemma4Config,
    model=Gemma4,
    shape=shape,
    modules=lambda cfg: _NAMES,
    hf_prefix="model.",
    twin=twin,
    copies=copies,
    hf_buffers=r"model\.(.*\.)?rotary_emb\..*inv_freq",
    loads="Gemma 4 (text)",
    refused="bidirectional attention among all tokens; scaling of rotations; a vocabulary of the layers' own",
    hub_examples=("google/gemma-4-E2B", "google/gemma-4-26B-A4B-it", "google/gemma-4-31B-it"),
)
