"""OLMo 2 (Walsh et al. 2024, "2 OLMo 2 Furious") and OLMo 3 (2025), written by hand.

A decoder like Llama, but for its norms: no block normalises what it reads; the outputs of attention and MLP are
normalised before they are added to the stream, and so are queries and keys, all heads together. OLMo 3 has a sliding
window in most layers, and stretches the rotations of the others alone to longer contexts. Every point has its name in
TransformerLens; its axes are given where it is made. Exact against `transformers`; the translation of its files is at
the end.

Identities: resid_pre + attn_out = resid_mid, resid_mid + mlp_out = resid_post, resid_post.i = resid_pre.{i + 1};
`attn_out` and `mlp_out` are after their norms, so they equal `ln1_post_normalized` and `ln2_post_normalized`.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads,
K d_head, F d_mlp, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from einops import rearrange
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.cache import LayerCache
from probekit.models.config_fields import (
    CAUSAL,
    FULL,
    SLIDING,
    Unimplemented,
    check_choice,
    check_fields,
    check_implemented,
    check_multiple,
    check_pairs,
    flag,
    given_layer_types,
    grouped_heads,
    one_of,
    read_fields,
    real,
    settle_windows,
    size,
    token_id,
    token_ids,
    written_fields,
)
from probekit.models.decoder import LLAMA_BUFFERS, LLAMA_NAMES, DecoderOnly
from probekit.models.family import Family, HfModel, HfTensor, decoder_twin, weight_points
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
from probekit.models.positional import RopeScaling, Rotary, rotate_half
from probekit.models.rope_fields import rope_by_type_from_hf, rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape

CLASSES = {"olmo2": "Olmo2", "olmo3": "Olmo3"}  # model_type -> how class names of transformers begin


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

    d_model: int = size(4096, hf="hidden_size")
    n_heads: int = size(32, hf="num_attention_heads")
    n_kv_heads: int = size(32, hf="num_key_value_heads")
    d_head: int = size(128, hf="head_dim")
    d_mlp: int = size(11008, hf="intermediate_size")
    n_layers: int = size(32, hf="num_hidden_layers")
    n_ctx: int = size(4096, hf="max_position_embeddings")
    d_vocab: int = size(100352, hf="vocab_size")
    activation: str = one_of("silu", ACTIVATIONS, hf="hidden_act")
    norm_eps: float = real(1e-6, hf="rms_norm_eps")
    rope_theta: float = real(500000.0)
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float = real(500000.0)
    attention_bias: bool = flag(False, hf="attention_bias")
    sliding_window: int | None = None
    layer_types: tuple[str, ...] = ()
    tie_embeddings: bool = flag(False, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    bos_token_id: int | None = token_id(None, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(100257, hf="eos_token_id")
    model_type: str = one_of("olmo2", CLASSES)

    def __post_init__(self):
        check_fields(self)
        check_multiple(self, "n_heads", "n_kv_heads")
        check_pairs(self)
        if self.layer_types:
            settle_windows(self)
        else:
            object.__setattr__(self, "layer_types", ())

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier."""
        model_type = hf.get("model_type", "olmo2")
        check_choice(model_type, CLASSES, "model_type")
        check_implemented(hf, CAUSAL, model_type)
        given = read_fields(cls, hf, ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab"))
        fields = {"norm_eps": 1e-5, "eos_token_id": 50279} | given  # transformers' defaults
        # a rope_theta outside of rope_parameters is for layers of full attention alone
        by_type = ("rope_theta", THETA), (None, THETA)
        rope = rope_from_hf(hf) if model_type == "olmo2" else rope_by_type_from_hf(hf, *by_type)
        return cls(**fields | grouped_heads(cls, hf, given) | _layers(hf, model_type) | rope, model_type=model_type)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        fields, rope = written_fields(self), rope_to_hf(self.rope_theta, self.rope_scaling)
        if self.model_type == "olmo3":
            types = [self.type_of(i) for i in range(self.n_layers)]
            fields |= {"sliding_window": self.sliding_window, "layer_types": types}
            rope = {FULL: rope, SLIDING: rope_to_hf(self.local_rope_theta, None)}
        classes = {"model_type": self.model_type, "architectures": [f"{CLASSES[self.model_type]}ForCausalLM"]}
        return classes | fields | {"rope_parameters": rope}

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


class Olmo(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    absent = ABSENT

    def __init__(self, cfg: OlmoConfig):
        super().__init__(cfg)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.rope_theta, cfg.rope_scaling)
        if cfg.rope_scaling is not None or cfg.local_rope_theta != cfg.rope_theta:
            self.local_rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.local_rope_theta)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def window_of(self, layer: int) -> int | None:
        """`sliding_window` in layers of "sliding_attention"."""
        return self.cfg.sliding_window if self.cfg.type_of(layer) == SLIDING else None


# Translation from and to Hugging Face.

THETA = 500000.0  # OLMo 3's, where a file gives none


def _layers(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Without layer_types, every fourth layer of OLMo 3 has full attention."""
    n_layers, types = hf["num_hidden_layers"], hf.get("layer_types")
    if model_type == "olmo2":
        check_implemented(hf, {"sliding_window": None}, model_type)
        if types not in (None, [FULL] * n_layers):
            raise Unimplemented(f"layer_types {types!a:.200} are not implemented for model_type olmo2; leave them out")
        return {"sliding_window": None, "layer_types": ()}
    types = given_layer_types(hf) or tuple(FULL if i % 4 == 3 else SLIDING for i in range(n_layers))
    return {"sliding_window": hf.get("sliding_window", 4096), "layer_types": types}


_NAMES = LLAMA_NAMES | {  # our module -> the file's
    "blocks.{}.ln1_post": "model.layers.{}.post_attention_layernorm",
    "blocks.{}.ln2_post": "model.layers.{}.post_feedforward_layernorm",
}


def shape(cfg: OlmoConfig) -> ModelShape:
    """The sizes of an `OlmoConfig`'s model."""
    biases = {"qkv_bias": cfg.attention_bias, "out_bias": cfg.attention_bias, "mlp_bias": False, "norm_shift": False}
    norms = {"norms": ("ln1_post", "ln2_post"), "qk_norm": "HK"}
    stack = stack_shape(cfg, gated=True, rotary=True, **biases, **norms)
    return decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)


def twin(cfg: OlmoConfig, names: Mapping[str, HfTensor]) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    return decoder_twin(CLASSES[cfg.model_type], weight_points(names, {"resid_mid": "mlp.gate"}))


FAMILY = Family(
    model_types=tuple(CLASSES),
    config=OlmoConfig,
    model=Olmo,
    shape=shape,
    modules=lambda cfg: _NAMES,
    hf_prefix="model.",
    twin=twin,
    hf_buffers=LLAMA_BUFFERS,
    loads="OLMo 2, OLMo 3",
    refused="rope scaling of layers with a window; longrope",
    hub_examples=("allenai/OLMo-2-0425-1B", "allenai/OLMo-2-1124-7B", "allenai/Olmo-3-1025-7B"),
)
