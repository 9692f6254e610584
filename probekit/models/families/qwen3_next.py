"""Qwen3-Next and the text models of Qwen3.5, written by hand (Qwen Team 2025, 2026).

A decoder in which most layers have gated DeltaNet in place of attention (Yang et al. 2024): queries, keys and values
pass a short causal convolution, and each head keeps a memory that the gated delta rule rewrites token by token
(`delta_rule.py`). Every fourth layer has attention, whose queries and keys are normalised, a part of each head rotated,
and whose heads' outputs are multiplied with a gate. The MLP is dense (Qwen3.5), or experts of which a router gives each
token a few, and a shared expert that computes every token (Qwen3-Next, Qwen3.5-MoE). Norms multiply with 1 + w.

In every layer resid_pre + mixer_out = resid_mid, resid_mid + mlp_out = resid_post, and resid_post is the next
resid_pre. In layers with attention `attn_out` equals `mixer_out`, and comes before it; layers with DeltaNet have no
points of attention. `z` is the heads' output after the gate `attn_gate`, and input of the output projection. Every
point has its name in TransformerLens but for `mixer_out` and `attn_gate`; its axes are given where it is made. Exact
against `transformers`; the translation of its files is at the end.

Position 0 is a text's first token: there the memory is empty and the convolution sees nothing earlier. So texts lie
side by side in a row, but share no prefix: a memory follows one text. Masks act on attention alone.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads, K d_head,
F width of a dense MLP, E experts; of DeltaNet: J key heads, N value heads, C channels of the convolution.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.cache import KeyValueCache, LayerCache, RecurrentCache
from probekit.models.config_fields import (
    CAUSAL,
    FULL,
    LINEAR,
    check_choice,
    check_count,
    check_dimension,
    check_fields,
    check_implemented,
    check_layer_types,
    check_multiple,
    flag,
    given_layer_types,
    named,
    one_of,
    read_fields,
    real,
    size,
    token_id,
    token_ids,
    unchecked,
    written_fields,
)
from probekit.models.decoder import LLAMA_NAMES, DecoderOnly
from probekit.models.delta_rule import CHUNK, FORGOTTEN, delta_rule
from probekit.models.families.gemma import OnePlusRMSNorm
from probekit.models.families.moe import (
    ABSENT,
    FUSED,
    SoftmaxAndShared,
    check_experts,
    dense_layers_from_hf,
    sparse_twin,
)
from probekit.models.family import Family, HfModel, HfPoint, HfTensor, module_output
from probekit.models.layers import ACTIVATIONS, Embedding, Linear, Mask, SwiGLU, at_read, attend, projected
from probekit.models.positional import RopeScaling, Rotary, rotate_first
from probekit.models.rope_fields import rope_from_hf, rope_to_hf
from probekit.models.shapes import DeltaShape, ModelShape, StackShape, decoder_shape, stack_shape

NEXT, DENSE, MOE = "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"
CLASSES = {NEXT: "Qwen3Next", DENSE: "Qwen3_5", MOE: "Qwen3_5Moe"}  # model_type -> how class names begin
CONFIG_CLASSES = {NEXT: "Qwen3NextConfig", DENSE: "Qwen3_5TextConfig", MOE: "Qwen3_5MoeTextConfig"}
OF_LENGTH = 1e-6  # added to the squared length that queries and keys of DeltaNet are divided by


@dataclass(frozen=True)
class Qwen3NextConfig:
    """The sizes and options of a Qwen3-Next or the text model of a Qwen3.5; the defaults are those of Qwen3-Next 80B.

    Attributes:
        n_kv_heads: heads of keys and values in attention; each serves n_heads / n_kv_heads heads of queries.
        d_mlp: width of one expert; without experts, of the MLP.
        layer_types: "full_attention" or "linear_attention" (DeltaNet) for each layer; () for attention in every fourth.
        rotary_factor: how much of each head is rotated; the first coordinates are.
        n_key_heads: heads of queries and keys in DeltaNet; each serves n_value_heads / n_key_heads heads of values.
        d_key_head: width of each.
        n_value_heads: heads of values in DeltaNet.
        d_value_head: width of each.
        conv_width: how many tokens the convolution sees.
        n_experts: experts in each sparse layer; None in the dense Qwen3.5.
        n_active_experts: how many of them compute a token.
        norm_top_k: whether the weights of a token's experts are divided by their sum.
        d_shared_mlp: width of the expert that computes every token.
        dense_layers: layers with one MLP instead of experts.
        d_dense_mlp: the width of that MLP.
        attention_bias: whether queries (with their gates), keys, values and the output projection have biases.
        init_std: standard deviation of normal initial weights.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = size(2048, hf="hidden_size")
    n_heads: int = size(16, hf="num_attention_heads")
    n_kv_heads: int = size(2, hf="num_key_value_heads")
    d_head: int = size(256, hf="head_dim")
    d_mlp: int = size(512, hf={NEXT: "moe_intermediate_size", DENSE: "intermediate_size", MOE: "moe_intermediate_size"})
    n_layers: int = size(48, hf="num_hidden_layers")
    n_ctx: int = size(262144, hf="max_position_embeddings")
    d_vocab: int = size(151936, hf="vocab_size")
    layer_types: tuple[str, ...] = ()
    activation: str = one_of("silu", ACTIVATIONS, hf="hidden_act")
    norm_eps: float = real(1e-6, hf="rms_norm_eps")
    rope_theta: float = real(10000000.0)
    rope_scaling: RopeScaling | None = None
    rotary_factor: float = real(0.25, formula="partial_rotary_factor")
    n_key_heads: int = size(16, hf="linear_num_key_heads")
    d_key_head: int = size(128, hf="linear_key_head_dim")
    n_value_heads: int = size(32, hf="linear_num_value_heads")
    d_value_head: int = size(128, hf="linear_value_head_dim")
    conv_width: int = size(4, hf="linear_conv_kernel_dim")
    n_experts: int | None = size(512, hf={NEXT: "num_experts", MOE: "num_experts"}, optional=True)
    n_active_experts: int | None = size(10, hf={NEXT: "num_experts_per_tok", MOE: "num_experts_per_tok"}, optional=True)
    norm_top_k: bool = flag(True, hf={NEXT: "norm_topk_prob"})
    d_shared_mlp: int | None = size(
        512, hf=dict.fromkeys((NEXT, MOE), "shared_expert_intermediate_size"), optional=True
    )
    dense_layers: tuple[int, ...] = unchecked((), hf={NEXT: "mlp_only_layers"})
    d_dense_mlp: int | None = size(None, hf={NEXT: "intermediate_size"}, optional=True)
    attention_bias: bool = flag(False, hf="attention_bias")
    tie_embeddings: bool = flag(False, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    bos_token_id: int | None = token_id(None, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(None, hf="eos_token_id")
    model_type: str = one_of(NEXT, CLASSES)

    def __post_init__(self):
        check_fields(self)
        check_multiple(self, "n_heads", "n_kv_heads")
        check_multiple(self, "n_value_heads", "n_key_heads")
        name = partial(named, self)
        if self.rotary_factor > 1 or self.n_rotated % 2 or not self.n_rotated:
            raise DataError(
                f"{name('rotary_factor')} must give an even number of coordinates in 2..{self.d_head} to rotate; "
                f"{self.rotary_factor} gives {self.n_rotated}"
            )
        types = self.layer_types or _types_by_interval(self.n_layers, 4)
        check_layer_types(types, self.n_layers)
        for kind in types:
            check_choice(kind, (FULL, LINEAR), "layer_types")
        object.__setattr__(self, "layer_types", tuple(types))
        _check_experts(self)

    @property
    def n_rotated(self) -> int:
        """How many coordinates of each head are rotated."""
        return int(self.d_head * self.rotary_factor)

    @property
    def n_channels(self) -> int:
        """How many channels the convolution has: those of DeltaNet's queries, keys and values."""
        return 2 * self.n_key_heads * self.d_key_head + self.n_value_heads * self.d_value_head

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        Fields of the training and of the extra layers that predict several tokens (`mtp_...`) are ignored.
        """
        model_type = hf.get("model_type", NEXT)
        check_choice(model_type, CLASSES, "model_type")
        check_implemented(hf, CAUSAL | {"attn_output_gate": True, "mlp_bias": False}, model_type)
        required = ["d_model", "n_heads", "n_kv_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab"]
        required += [] if model_type == DENSE else ["n_experts", "n_active_experts"]
        fields: dict[str, Any] = {"d_shared_mlp": None if model_type == DENSE else 512}
        fields |= read_fields(cls, hf, required, model_type)
        if model_type == DENSE:
            fields |= {"n_experts": None, "n_active_experts": None}
        if model_type == NEXT:
            fields |= {"dense_layers": dense_layers_from_hf(hf), "d_dense_mlp": hf.get("intermediate_size", 5632)}
        rope = rope_from_hf(_of_text(hf), share=(_SHARE, 0.25))
        fields |= {"rotary_factor": rope.pop(_SHARE), "layer_types": _layer_types(hf), **rope}
        return cls(**fields, model_type=model_type)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        fields = written_fields(self) | {"layer_types": list(self.layer_types)}
        if self.model_type == NEXT:
            fields["decoder_sparse_step"] = 1
            if self.d_dense_mlp is None:
                del fields["intermediate_size"]
        rope = rope_to_hf(self.rope_theta, self.rope_scaling) | {_SHARE: self.rotary_factor}
        classes = {"model_type": self.model_type, "architectures": [f"{CLASSES[self.model_type]}ForCausalLM"]}
        return classes | fields | {"rope_parameters": rope}


def _check_experts(cfg: Qwen3NextConfig) -> None:
    name = partial(named, cfg)
    experts = ("n_experts", "n_active_experts", "d_shared_mlp")
    if cfg.model_type == DENSE:
        given = next((own for own in (*experts, "d_dense_mlp") if getattr(cfg, own) is not None), None)
        if given is not None or cfg.dense_layers:
            raise DataError(f"{DENSE} has no experts; leave out {given or 'dense_layers'}")
        return
    for own in experts:
        check_dimension(own, getattr(cfg, own), name(own))
    check_experts(cfg)
    for layer in cfg.dense_layers:
        check_count(layer, name("dense_layers"))
        if layer >= cfg.n_layers:
            raise DataError(f"{name('dense_layers')} must lie in 0..{cfg.n_layers - 1}; got {layer}")
    if cfg.dense_layers:
        check_dimension("d_dense_mlp", cfg.d_dense_mlp, name("d_dense_mlp"))


class GatedAttention(nn.Module):
    """Causal grouped-query self-attention over normalised, partly rotated queries and keys, with a gate of its output.

    The query projection gives each head its query, and then its gate.
    """

    def __init__(self, cfg: Qwen3NextConfig):
        super().__init__()
        self.d_head = cfg.d_head
        self.q = Linear(cfg.d_model, 2 * cfg.n_heads * cfg.d_head, cfg.attention_bias)
        self.k = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, cfg.attention_bias)
        self.v = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, cfg.attention_bias)
        self.q_norm = OnePlusRMSNorm(cfg.d_head, cfg.norm_eps, "B L H K")
        self.k_norm = OnePlusRMSNorm(cfg.d_head, cfg.norm_eps, "B L G K")
        self.out = Linear(cfg.n_heads * cfg.d_head, cfg.d_model, cfg.attention_bias)
        self.hook_q = HookPoint("B L H K")
        self.hook_k = HookPoint("B L G K")
        self.hook_v = HookPoint("B L G K")
        self.hook_rot_q = HookPoint("B L H K")
        self.hook_rot_k = HookPoint("B L G K")
        self.hook_attn_scores = HookPoint("B H L M")
        self.hook_pattern = HookPoint("B H L M")
        self.hook_gate = HookPoint("B L H K")
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
        q, gate = rearrange(self.q(at_read(x_BLD, read_BR)), "b l (h two k) -> two b l h k", two=2, k=self.d_head)
        k, v = (rearrange(part, "b l (g k) -> b l g k", k=self.d_head) for part in (self.k(x_BLD), self.v(x_BLD)))
        q_BLHK, k_BMGK, v_BMGK = self.q_norm(self.hook_q(q)), self.k_norm(self.hook_k(k)), self.hook_v(v)
        cos, sin = rotation
        q_BLHK = self.hook_rot_q(rotate_first(q_BLHK, (at_read(cos, read_BR), at_read(sin, read_BR))))
        k_BMGK = self.hook_rot_k(rotate_first(k_BMGK, rotation))
        if cache is not None:
            k_BMGK, v_BMGK = cache.append(k_BMGK, v_BMGK)
        mixed_BLHK = attend(q_BLHK, k_BMGK, v_BMGK, mask, self.hook_attn_scores, self.hook_pattern)
        z_BLHK = self.hook_z(mixed_BLHK * self.hook_gate(gate.sigmoid()))
        return projected(z_BLHK, self.out, self.hook_result)


class SeparateInputs(nn.Module):
    """The inputs of Qwen3.5's DeltaNet: queries, keys and values for the convolution; gates; two numbers a head."""

    def __init__(self, cfg: Qwen3NextConfig):
        super().__init__()
        self.qkv = Linear(cfg.d_model, cfg.n_channels, bias=False)
        self.gate = Linear(cfg.d_model, cfg.n_value_heads * cfg.d_value_head, bias=False)
        self.replace = Linear(cfg.d_model, cfg.n_value_heads, bias=False)
        self.keep = Linear(cfg.d_model, cfg.n_value_heads, bias=False)

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.qkv(x_BLD), self.gate(x_BLD), self.replace(x_BLD), self.keep(x_BLD)


class GroupedInputs(nn.Module):
    """The same of Qwen3-Next, whose files hold the rows of a key head, and of the value heads that it serves, together.

    So one projection gives each key head its query and key, and the values and gates of its value heads.
    """

    def __init__(self, cfg: Qwen3NextConfig):
        super().__init__()
        self.n_key_heads, of_values = cfg.n_key_heads, cfg.n_value_heads // cfg.n_key_heads * cfg.d_value_head
        self.widths = [cfg.d_key_head, cfg.d_key_head, of_values, of_values]
        self.qkv_gate = Linear(cfg.d_model, cfg.n_key_heads * sum(self.widths), bias=False)
        self.replace_keep = Linear(cfg.d_model, 2 * cfg.n_value_heads, bias=False)

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        parts = self.qkv_gate(x_BLD).unflatten(-1, (self.n_key_heads, -1)).split(self.widths, -1)
        q, k, v, gate = (part.flatten(2) for part in parts)
        replace, keep = self.replace_keep(x_BLD).unflatten(-1, (self.n_key_heads, 2, -1)).unbind(-2)
        return torch.cat([q, k, v], -1), gate, replace.flatten(2), keep.flatten(2)


class DeltaNet(nn.Module):
    """The gated delta rule over convolved queries, keys and values; its output is normalised and gated head by head.

    A head keeps exp(-rate softplus(x + bias)) of its memory at each token, and replaces sigmoid(y) of what it holds
    under the token's key; `log_rate` and `keep_bias` are of each head. All but the projections is in float32, whatever
    the type of the weights.
    """

    def __init__(self, cfg: Qwen3NextConfig):
        super().__init__()
        self.eps, self.conv_width, self.activation = cfg.norm_eps, cfg.conv_width, cfg.activation
        self.d_key, self.d_value = cfg.d_key_head, cfg.d_value_head
        of_keys = cfg.n_key_heads * cfg.d_key_head
        self.widths = [of_keys, of_keys, cfg.n_value_heads * cfg.d_value_head]
        self.inputs = (GroupedInputs if cfg.model_type == NEXT else SeparateInputs)(cfg)
        self.conv = nn.Parameter(torch.empty(cfg.n_channels, 1, cfg.conv_width))
        self.log_rate = nn.Parameter(torch.empty(cfg.n_value_heads))
        self.keep_bias = nn.Parameter(torch.empty(cfg.n_value_heads))
        self.norm = nn.Parameter(torch.empty(cfg.d_value_head))
        self.out = Linear(cfg.n_value_heads * cfg.d_value_head, cfg.d_model, bias=False)

    def forward(
        self,
        x_BLD: Tensor,
        position_ids: Tensor,
        cache: RecurrentCache | None = None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        qkv_BLC, gate_BLC, replace_BLN, keep_BLN = self.inputs(x_BLD)
        wide = torch.promote_types(x_BLD.dtype, torch.float32)
        convolved_BLC = ACTIVATIONS[self.activation](self.convolved(qkv_BLC, position_ids, cache)).to(wide)
        q, k, v = convolved_BLC.split(self.widths, -1)
        q_BLJK, k_BLJK = (of_length_one(x.unflatten(-1, (-1, self.d_key))) for x in (q, k))
        keep_BLN = -self.log_rate.to(wide).exp() * F.softplus(keep_BLN.to(wide) + self.keep_bias.to(wide))
        read_BLNV, memory_BNKV = delta_rule(
            q_BLJK / math.sqrt(self.d_key),
            k_BLJK,
            v.unflatten(-1, (-1, self.d_value)),
            keep_BLN.masked_fill((position_ids == 0)[..., None], FORGOTTEN),
            replace_BLN.to(wide).sigmoid(),
            None if cache is None else cache.memory,
        )
        if cache is not None:
            cache.memory, cache.length = memory_BNKV, cache.length + x_BLD.shape[1]
        return self.out(self.gated(at_read(read_BLNV, read_BR), at_read(gate_BLC, read_BR)).to(x_BLD.dtype))

    def convolved(self, x_BLC: Tensor, position_ids: Tensor, cache: RecurrentCache | None) -> Tensor:
        """The sum over the last tokens of a text, each times its weight, [B, L, C]; of each channel by itself."""
        L, earlier = x_BLC.shape[1], self.conv_width - 1
        recent = None if cache is None else cache.recent
        recent = x_BLC.new_zeros(len(x_BLC), earlier, x_BLC.shape[2]) if recent is None else recent
        longer = torch.cat([recent, x_BLC], 1)
        if cache is not None:
            cache.recent = longer[:, longer.shape[1] - earlier :].clone()
        weights = self.conv[:, 0]
        out_BLC = x_BLC * weights[:, -1]
        for back in range(1, self.conv_width):
            is_in_text = (position_ids >= back)[..., None]
            out_BLC = out_BLC.addcmul_(longer[:, earlier - back :][:, :L] * is_in_text, weights[:, -1 - back])
        return out_BLC

    def gated(self, read_BLNV: Tensor, gate_BLC: Tensor) -> Tensor:
        """Each head's output over the root of its mean square, times the norm's gain and silu(gate), [B, L, N * V]."""
        scale = (read_BLNV.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        normalized = read_BLNV * scale * self.norm.to(read_BLNV.dtype)
        return normalized.flatten(2) * F.silu(gate_BLC.to(read_BLNV.dtype))


def of_length_one(x: Tensor) -> Tensor:
    """Vectors divided by their length."""
    return x * (x.square().sum(-1, keepdim=True) + OF_LENGTH).rsqrt()


class Block(nn.Module):
    """Pre-norm: x + mixer(ln1(x)), then x + mlp(ln2(x)), where the mixer is attention or DeltaNet."""

    def __init__(self, cfg: Qwen3NextConfig, layer: int):
        super().__init__()
        self.has_attention = cfg.layer_types[layer] == FULL
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = OnePlusRMSNorm(cfg.d_model, cfg.norm_eps)
        if self.has_attention:
            self.attn = GatedAttention(cfg)
            self.hook_attn_out = HookPoint("B L D")
        else:
            self.delta = DeltaNet(cfg)
        self.hook_mixer_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = OnePlusRMSNorm(cfg.d_model, cfg.norm_eps)
        if cfg.n_experts is None:
            self.mlp = SwiGLU(cfg.d_model, cfg.d_mlp, activation=cfg.activation)
        elif layer in cfg.dense_layers:
            assert cfg.d_dense_mlp is not None, "the config checks it"
            self.mlp = SwiGLU(cfg.d_model, cfg.d_dense_mlp, activation=cfg.activation)
        else:
            self.mlp = SoftmaxAndShared(cfg)
        self.hook_mlp_out = HookPoint("B L D")
        self.hook_resid_post = HookPoint("B L D")

    def forward(
        self,
        resid_BLD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        position_ids: Tensor,
        cache: Any = None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        if self.has_attention:
            attn = self.attn(self.ln1(resid_pre), rotation, at_read(mask, read_BR), cache, read_BR)
            mixed = self.hook_attn_out(attn)
        else:
            mixed = self.delta(self.ln1(resid_pre), position_ids, cache, read_BR)
        resid_mid = self.hook_resid_mid(at_read(resid_pre, read_BR) + self.hook_mixer_out(mixed))
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(resid_mid)))
        return self.hook_resid_post(resid_mid + mlp_out)


NO_ATTENTION = "layers with DeltaNet have no attention; take mixer_out there"
_OF_ATTENTION = ("q", "k", "v", "q_norm", "k_norm", "q_norm_scale", "k_norm_scale", "rot_q", "rot_k", "attn_scores")
_OF_ATTENTION += ("attn_pattern", "attn_gate", "z", "result", "attn_out")


class Qwen3Next(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    initial_gain = 0.0  # norms multiply with 1 + w
    forks = False

    def __init__(self, cfg: Qwen3NextConfig):
        super().__init__(cfg)
        self.absent = dict.fromkeys(_OF_ATTENTION, NO_ATTENTION)
        if cfg.n_experts is not None:
            self.absent |= dict.fromkeys(("mlp_pre", "mlp_pre_linear", "mlp_post"), ABSENT)
        self.rotary = Rotary(cfg.n_ctx, cfg.n_rotated, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg, layer) for layer in range(cfg.n_layers))
        self.ln_final = OnePlusRMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def seen_by_layer(self, mask: Mask, position_ids: Tensor, cache: KeyValueCache | None) -> list[tuple]:
        """What each block takes besides the stream: rotations and mask for attention, positions for DeltaNet."""
        return [(self.rotary(position_ids), mask, position_ids)] * self.cfg.n_layers

    def empty_cache(self) -> KeyValueCache:
        """A cache of keys and values in layers with attention, of memories in the others."""
        return KeyValueCache(LayerCache() if kind == FULL else RecurrentCache() for kind in self.cfg.layer_types)

    def size_of(self, axis: str, short: str, layer: int | None = None) -> int | None:
        """The size of an axis of this point; F, the width of an MLP with points, is that of dense layers."""
        sparse = self.cfg.n_experts is not None
        return self.cfg.d_dense_mlp if axis == "F" and sparse else super().size_of(axis, short)

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """As before training: a head of DeltaNet forgets at a rate drawn from 0.01..16, and its norm has gain 1."""
        super().init_weights(seed)
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, DeltaNet):
                rate = torch.empty(module.log_rate.shape).uniform_(0.01, 16, generator=generator)
                module.log_rate.copy_(rate.log())
                module.keep_bias.fill_(1)
                module.norm.fill_(1)
        return self


# Translation from and to Hugging Face.

_SHARE = "partial_rotary_factor"
# Sections of the rotation by time, height and width of an image; in a text the three positions are one.
_OF_IMAGES = ("mrope_section", "mrope_interleaved")


def _of_text(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without those of the rotation that say something of images alone."""
    ropes = {name: hf[name] for name in ("rope_parameters", "rope_scaling") if isinstance(hf.get(name), Mapping)}
    return {**hf} | {
        name: {field: value for field, value in rope.items() if field not in _OF_IMAGES} for name, rope in ropes.items()
    }


def _types_by_interval(n_layers: int, interval: int) -> tuple[str, ...]:
    return tuple(LINEAR if (layer + 1) % interval else FULL for layer in range(n_layers))


def _layer_types(hf: Mapping[str, Any]) -> tuple[str, ...]:
    given, interval = given_layer_types(hf), hf.get("full_attention_interval", 4)
    if given is None:
        check_count(interval, "full_attention_interval", 1)
    return _types_by_interval(hf["num_hidden_layers"], interval) if given is None else given


_DELTA = {
    "conv": "conv1d.weight",
    "log_rate": "A_log",
    "keep_bias": "dt_bias",
    "norm": "norm.weight",
    "out": "out_proj",
}
_SEPARATE = {"qkv": "in_proj_qkv", "gate": "in_proj_z", "replace": "in_proj_b", "keep": "in_proj_a"}
_GROUPED = {"qkv_gate": "in_proj_qkvz", "replace_keep": "in_proj_ba"}
_MLP = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def modules(cfg: Qwen3NextConfig) -> dict[str, str]:
    """Our modules by their names in a Hugging Face file."""
    layer, inputs = "model.layers.{}", _GROUPED if cfg.model_type == NEXT else _SEPARATE
    delta = {f"blocks.{{}}.delta.{ours}": f"{layer}.linear_attn.{theirs}" for ours, theirs in _DELTA.items()}
    delta |= {f"blocks.{{}}.delta.inputs.{ours}": f"{layer}.linear_attn.{theirs}" for ours, theirs in inputs.items()}
    sparse = {"blocks.{}.mlp.router": f"{layer}.mlp.gate"}
    sparse |= {"blocks.{}.mlp.shared_gate": f"{layer}.mlp.shared_expert_gate"}
    sparse |= {f"blocks.{{}}.mlp.experts.{{}}.{x}": f"{layer}.mlp.experts.{{}}.{_MLP[x]}" for x in _MLP}
    sparse |= {f"blocks.{{}}.mlp.shared.{x}": f"{layer}.mlp.shared_expert.{_MLP[x]}" for x in _MLP}
    return LLAMA_NAMES | delta | sparse


def shape(cfg: Qwen3NextConfig) -> ModelShape:
    """The sizes of a `Qwen3NextConfig`'s model."""
    biases = {"qkv_bias": cfg.attention_bias, "out_bias": cfg.attention_bias, "mlp_bias": False, "norm_shift": False}
    experts = {"n_experts": cfg.n_experts, "n_active_experts": cfg.n_active_experts, "d_shared_mlp": cfg.d_shared_mlp}
    experts = {name: n or 0 for name, n in experts.items()} | {"shared_gate": cfg.n_experts is not None}
    stack = stack_shape(cfg, gated=True, rotary=True, qk_norm="K", output_gate=True, hybrid=True, **biases, **experts)
    heads = cfg.n_key_heads, cfg.n_value_heads, cfg.d_key_head, cfg.d_value_head
    delta = DeltaShape(*heads, conv_width=cfg.conv_width, chunk=CHUNK)

    def kind(n_layers: int, layer_type: str, is_dense: bool) -> StackShape:
        mixer = {} if layer_type == FULL else {"delta": delta, "rotary": False, "qk_norm": ""}
        mlp = {"d_mlp": cfg.d_dense_mlp, **dict.fromkeys(experts, 0)} if is_dense else {}
        return replace(stack, n_layers=n_layers, **mixer, **mlp)

    counts = Counter((layer_type, i in cfg.dense_layers) for i, layer_type in enumerate(cfg.layer_types))
    stack = replace(stack, kinds=tuple(kind(n, *which) for which, n in counts.items()))
    return decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)


def twin(cfg: Qwen3NextConfig, names: Mapping[str, HfTensor]) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    found = sparse_twin(CLASSES[cfg.model_type], names)

    def of_queries(which: int, _: tuple, output: Tensor) -> Tensor:
        return output.unflatten(-1, (cfg.n_heads, 2, cfg.d_head))[..., which, :]

    queries = "model.layers.{layer}.self_attn.q_proj"
    mixers = (("self_attn.o_proj" if kind == FULL else "linear_attn.out_proj") for kind in cfg.layer_types)
    points = {
        **found.points,
        "q": HfPoint(queries, partial(of_queries, 0)),
        "attn_gate": HfPoint(queries, lambda *seen: of_queries(1, *seen).sigmoid()),
        "mixer_out": HfPoint(tuple(f"model.layers.{i}.{mixer}" for i, mixer in enumerate(mixers)), module_output),
    }
    options = {} if cfg.model_type == DENSE else found.options
    return found._replace(config=CONFIG_CLASSES[cfg.model_type], points=points, options=options)


FAMILY = Family(
    model_types=tuple(CLASSES),
    config=Qwen3NextConfig,
    model=Qwen3Next,
    shape=shape,
    modules=modules,
    fused=FUSED,
    hf_prefix="model.",
    twin=twin,
    hf_buffers=r"model\.(.*\.)?rotary_emb\.inv_freq",  # frequencies
    loads="Qwen3-Next, Qwen3.5 (text)",
    refused="attention without a gate of its output",
    hub_examples=("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-Coder-Next"),
)
