"""Llama, written by hand (Touvron et al. 2023; Grattafiori et al. 2024); its relatives Mistral, Qwen2, Qwen3 and Phi-3.

A decoder: token embedding, pre-norm blocks (RMSNorm) of causal attention with rotary positions and fewer key/value
heads than query heads, a gated MLP (SwiGLU), a final norm, and a head that may be tied to the token embedding. In
Mistral (Jiang et al. 2023) each token sees a sliding window only; Qwen2 (Yang et al. 2024) has biases on queries, keys
and values; Qwen3 (Yang et al. 2025) normalises queries and keys instead; Phi-3 (Abdin et al. 2024) may rotate a part of
each head only. Every point has its name in TransformerLens; its axes are given where it is made. Exact against
`transformers`; the translation of its files is at the end.

Identities: resid_pre + attn_out = resid_mid, resid_mid + mlp_out = resid_post, resid_post.i = resid_pre.{i + 1}.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads,
K d_head, F d_mlp, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from einops import rearrange
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.cache import LayerCache
from probekit.models.config_fields import (
    CAUSAL,
    FULL,
    SLIDING,
    check_choice,
    check_count,
    check_fields,
    check_flag,
    check_implemented,
    check_multiple,
    check_only_layer_types,
    check_pairs,
    flag,
    grouped_heads,
    named,
    one_of,
    read_fields,
    real,
    size,
    token_id,
    token_ids,
    written_fields,
)
from probekit.models.decoder import LLAMA_BUFFERS, LLAMA_NAMES, PRE_NORM, DecoderOnly
from probekit.models.family import Family, HfModel, HfTensor, decoder_twin, weight_points, with_head_bias
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    Linear,
    Mask,
    RMSNorm,
    SwiGLU,
    at_read,
    attend,
    init_embedding,
    init_linear,
    projected,
)
from probekit.models.positional import RopeScaling, Rotary, rotate_first
from probekit.models.rope_fields import rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape

# model_type -> how class names of transformers begin
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes and options of a Llama or one of its relatives; the defaults are those of Llama 2 7B.

    Attributes:
        n_kv_heads: heads of keys and values; each serves n_heads / n_kv_heads heads of queries.
        rope_scaling: how rotations are stretched to a longer context; None for no stretching.
        out_bias: whether the attention's output projection has a bias.
        sliding_window: how many tokens a token sees, itself included; None for all before it.
        n_full_layers: how many of the first layers ignore the window.
        init_std: standard deviation of normal initial weights; None for the truncated normal of `layers.init_linear`.
        eos_token_id: an id, or several that each end a text.
        head_bias: whether the head has a bias (lm_head.bias), as in compiled models and files of some other programs.
        rotary_factor: how much of each head is rotated; the first coordinates are.
    """

    d_model: int = size(4096, hf="hidden_size")
    n_heads: int = size(32, hf="num_attention_heads")
    n_kv_heads: int = size(32, hf="num_key_value_heads")
    d_head: int = size(128, hf="head_dim")
    d_mlp: int = size(11008, hf="intermediate_size")
    n_layers: int = size(32, hf="num_hidden_layers")
    n_ctx: int = size(4096, hf="max_position_embeddings")
    d_vocab: int = size(32000, hf="vocab_size")
    activation: str = one_of("silu", ACTIVATIONS, hf="hidden_act")
    norm_eps: float = real(1e-5, hf="rms_norm_eps")
    rope_theta: float = real(10000.0)
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = flag(False)
    out_bias: bool = flag(False)
    mlp_bias: bool = flag(False)
    sliding_window: int | None = size(None, optional=True)
    n_full_layers: int = 0
    tie_embeddings: bool = flag(False, hf="tie_word_embeddings")
    init_std: float | None = real(None, hf="initializer_range", optional=True)
    bos_token_id: int | None = token_id(1, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(2, hf="eos_token_id")
    head_bias: bool = flag(False, hf="head_bias", later=True)
    rotary_factor: float = real(1.0, formula="partial_rotary_factor", later=True)
    model_type: str = one_of("llama", CLASSES)

    def __post_init__(self):
        check_fields(self)
        check_multiple(self, "n_heads", "n_kv_heads")
        if self.rotary_factor == 1:
            check_pairs(self)
        if self.rotary_factor > 1 or self.n_rotated % 2 or not self.n_rotated:
            raise DataError(
                f"rotary_factor (partial_rotary_factor) must give an even number of coordinates in 2..{self.d_head} to "
                f"rotate; {self.rotary_factor} gives {self.n_rotated}"
            )

    @property
    def n_rotated(self) -> int:
        """How many coordinates of each head are rotated."""
        return int(self.d_head * self.rotary_factor)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        `pretraining_tp` is ignored: it splits sums without changing their values.
        """
        model_type = hf.get("model_type", "llama")
        check_choice(model_type, CLASSES, "model_type")
        check_implemented(hf, CAUSAL, model_type)
        given = read_fields(cls, hf, ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab"))
        if "num_key_value_heads" not in hf and model_type not in ("llama", "phi3"):
            # transformers' default depends on the family: 8 or 32
            raise DataError(f"{named(cls, 'n_kv_heads')} is missing; add it")
        if model_type == "qwen3" and hf.get("head_dim") is None:
            hf = {**hf, "head_dim": 128}
        fields = {"norm_eps": 1e-6, "init_std": None} | _DEFAULTS.get(model_type, {}) | given
        fields |= grouped_heads(cls, hf, given) | _biases(hf, model_type) | _window(hf, model_type)
        fields |= _partial_rope(hf) if model_type == "phi3" else rope_from_hf(hf)
        return cls(**fields, model_type=model_type)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        fields = written_fields(self)
        if self.init_std is None:
            del fields["initializer_range"]
        if self.model_type in ("llama", "qwen3"):
            fields["attention_bias"] = self.qkv_bias
        if self.model_type == "llama":
            fields["mlp_bias"] = self.mlp_bias
        else:
            fields["sliding_window"] = self.sliding_window
        if self.model_type in ("qwen2", "qwen3"):
            fields |= {"use_sliding_window": self.sliding_window is not None, "max_window_layers": self.n_full_layers}
        if self.model_type == "phi3":
            # no padding: transformers' default id of it may lie outside the vocabulary, which its embedding refuses
            fields |= {_PARTIAL: self.rotary_factor, "pad_token_id": None}
            if self.rope_scaling is not None:
                original = self.rope_scaling.original_n_ctx
                fields |= {_ORIGINAL: original, "max_position_embeddings": round(original * self.rope_scaling.factor)}
        classes = {"model_type": self.model_type, "architectures": [f"{CLASSES[self.model_type]}ForCausalLM"]}
        return classes | fields | {"rope_parameters": rope_to_hf(self.rope_theta, self.rope_scaling)}


class Attention(nn.Module):
    """Causal grouped-query self-attention over rotated queries and keys (Ainslie et al. 2023; Su et al. 2021)."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        self.n_heads, self.d_head = cfg.n_heads, cfg.d_head
        self.q = Linear(cfg.d_model, cfg.n_heads * cfg.d_head, cfg.qkv_bias)
        self.k = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, cfg.qkv_bias)
        self.v = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, cfg.qkv_bias)
        self.out = Linear(cfg.n_heads * cfg.d_head, cfg.d_model, cfg.out_bias)
        self.hook_q = HookPoint("B L H K")
        self.hook_k = HookPoint("B L G K")
        self.hook_v = HookPoint("B L G K")
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
        q_BLHK, k_BMGK, v_BMGK = self.heads(x_BLD, read_BR)
        cos, sin = rotation
        q_BLHK = self.hook_rot_q(rotate_first(q_BLHK, (at_read(cos, read_BR), at_read(sin, read_BR))))
        k_BMGK = self.hook_rot_k(rotate_first(k_BMGK, rotation))
        if cache is not None:
            k_BMGK, v_BMGK = cache.append(k_BMGK, v_BMGK)
        return projected(self.hook_z(self.attended(q_BLHK, k_BMGK, v_BMGK, mask)), self.out, self.hook_result)

    def attended(self, q_BLHK: Tensor, k_BMGK: Tensor, v_BMGK: Tensor, mask: Mask) -> Tensor:
        """The values that each query attends to, weighted and summed, [B, L, H, K]."""
        return attend(q_BLHK, k_BMGK, v_BMGK, mask, self.hook_attn_scores, self.hook_pattern)

    def heads(self, x_BLD: Tensor, read_BR: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries at the positions to read, keys and values at all; before the rotation."""
        parts = self.q(at_read(x_BLD, read_BR)), self.k(x_BLD), self.v(x_BLD)
        q, k, v = (rearrange(part, "b l (h k) -> b l h k", k=self.d_head) for part in parts)
        return self.hook_q(q), self.hook_k(k), self.hook_v(v)


class NormedAttention(Attention):
    """Qwen3's: queries and keys are normalised in each head, then rotated."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__(cfg)
        self.q_norm = RMSNorm(cfg.d_head, cfg.norm_eps, "B L H K")
        self.k_norm = RMSNorm(cfg.d_head, cfg.norm_eps, "B L G K")

    def heads(self, x_BLD: Tensor, read_BR: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q_BLHK, k_BMGK, v_BMGK = super().heads(x_BLD, read_BR)
        return self.q_norm(q_BLHK), self.k_norm(k_BMGK), v_BMGK


class Block(nn.Module):
    """Pre-norm: x + attn(ln1(x)), then x + mlp(ln2(x))."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.attn = (NormedAttention if cfg.model_type == "qwen3" else Attention)(cfg)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.mlp = SwiGLU(cfg.d_model, cfg.d_mlp, cfg.mlp_bias, cfg.activation)
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
        attn_out = self.hook_attn_out(self.attn(self.ln1(resid_pre), rotation, at_read(mask, read_BR), cache, read_BR))
        resid_mid = self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out)
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(resid_mid)))
        return self.hook_resid_post(resid_mid + mlp_out)


class Llama(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__(cfg)
        self.rotary = Rotary(cfg.n_ctx, cfg.n_rotated, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def window_of(self, layer: int) -> int | None:
        """`sliding_window` in the layers that have one."""
        return None if layer < self.cfg.n_full_layers else self.cfg.sliding_window

    def drawn(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Normal of `init_std`, as in `transformers`; without it, since the papers publish none, truncated normal.

        Then matrices are those of `layers.init_linear`, a tied embedding too, since it is also the head; an untied
        embedding is that of `layers.init_embedding`.
        """
        if self.cfg.init_std is not None:
            return super().drawn(name, shape, generator)
        is_table = name == "embed.weight" and not self.cfg.tie_embeddings
        return (init_embedding if is_table else init_linear)(shape, generator)


# Translation from and to Hugging Face.

_DEFAULTS: dict[str, dict[str, Any]] = {  # transformers' for a missing field, where they are not Llama's
    "qwen2": {"bos_token_id": None, "eos_token_id": None},
    "qwen3": {"bos_token_id": None, "eos_token_id": None},
    "phi3": {"norm_eps": 1e-5, "eos_token_id": 32000},
}
_PARTIAL, _ORIGINAL = "partial_rotary_factor", "original_max_position_embeddings"


def _biases(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    qkv_bias, out_bias, mlp_bias = model_type == "qwen2", False, False
    if model_type in ("llama", "qwen3"):
        qkv_bias = out_bias = hf.get("attention_bias", False)
    else:
        check_implemented(hf, {"attention_bias": qkv_bias}, model_type)
    if model_type == "llama":
        mlp_bias = hf.get("mlp_bias", False)
    else:
        check_implemented(hf, {"mlp_bias": False}, model_type)
    return {"qkv_bias": qkv_bias, "out_bias": out_bias, "mlp_bias": mlp_bias}


def _window(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Mistral and Phi-3 have a window in every layer; Qwen, with use_sliding_window, after the first few."""
    n_layers, n_full, window = hf["num_hidden_layers"], 0, None
    if model_type == "llama":
        check_implemented(hf, {"sliding_window": None}, model_type)
    elif model_type in ("mistral", "phi3"):
        window = hf.get("sliding_window", 4096 if model_type == "mistral" else None)
    else:
        check_flag(hf.get("use_sliding_window", False), "use_sliding_window")
        window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None
        n_full = 0 if window is None else _n_full_layers(hf)
    full = n_layers if window is None else min(n_full, n_layers)
    check_only_layer_types(hf, [FULL] * full + [SLIDING] * (n_layers - full))
    return {"sliding_window": window, "n_full_layers": n_full}


def _n_full_layers(hf: Mapping[str, Any]) -> int:
    """How many layers come before those with a window: max_window_layers, unless layer_types says otherwise."""
    types, n_full = hf.get("layer_types"), hf.get("max_window_layers", 28)
    check_count(n_full, "max_window_layers")
    if not isinstance(types, list):
        return n_full
    listed = next((i for i, kind in enumerate(types) if kind != FULL), len(types))
    return n_full if min(n_full, len(types)) == listed else listed


def _partial_rope(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Phi-3's rotation in a config.json; with longrope, of a context in which a text's length does not change it."""
    rope = rope_from_hf({_ORIGINAL: 4096, **hf}, share=(_PARTIAL, 1.0), kinds=("longrope",))
    scaling, n_ctx = rope["rope_scaling"], hf["max_position_embeddings"]
    n_ctx = n_ctx if scaling is None else min(n_ctx, scaling.original_n_ctx)
    return {"rotary_factor": rope.pop(_PARTIAL), "n_ctx": n_ctx, **rope}


_FUSED = {f"blocks.{{}}.attn.{x}": "model.layers.{}.self_attn.qkv_proj" for x in "qkv"} | {
    f"blocks.{{}}.mlp.{x}": "model.layers.{}.mlp.gate_up_proj" for x in ("gate", "up")
}  # Phi-3's


def modules(cfg: LlamaConfig) -> dict[str, str]:
    """Our modules by their names in a Hugging Face file."""
    return LLAMA_NAMES | (_FUSED if cfg.model_type == "phi3" else {})


def shape(cfg: LlamaConfig) -> ModelShape:
    """The sizes of a `LlamaConfig`'s model."""
    biases = {"qkv_bias": cfg.qkv_bias, "out_bias": cfg.out_bias, "mlp_bias": cfg.mlp_bias, "norm_shift": False}
    biases |= {"qk_norm": "K" if cfg.model_type == "qwen3" else ""}
    stack = stack_shape(cfg, gated=True, rotary=True, **biases)
    return decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings, cfg.head_bias)


def twin(cfg: LlamaConfig, names: Mapping[str, HfTensor]) -> HfModel | None:
    """The classes of transformers for this config, and where they compute our points; they have no bias in the head."""
    return None if cfg.head_bias else decoder_twin(CLASSES[cfg.model_type], weight_points(names, PRE_NORM))


FAMILY = Family(
    model_types=tuple(CLASSES),
    config=LlamaConfig,
    model=Llama,
    shape=shape,
    modules=modules,
    hf_prefix="model.",
    twin=twin,
    hf_parts=with_head_bias,
    hf_buffers=LLAMA_BUFFERS,
    loads="Llama, Mistral, Qwen2, Qwen3, Phi-3",
    refused="longrope above the original context; layers with a window before layers without",
    hub_examples=(
        "meta-llama/Llama-3.2-1B",
        "mistralai/Mistral-7B-v0.1",
        "Qwen/Qwen2.5-0.5B",
        "Qwen/Qwen3-0.6B",
        "microsoft/Phi-3-mini-4k-instruct",
    ),
)
