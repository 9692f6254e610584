"""Mixtures of experts, written by hand: Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE.

A decoder like Llama in which a router gives each token a few of a layer's MLPs, the experts, whose weighted sum is the
token's output (Jiang et al. 2024). Qwen3-MoE (Yang et al. 2025) normalises queries and keys head by head, and may have
dense layers (one MLP, no router) among the sparse ones; OLMoE (Muennighoff et al. 2024) normalises all heads together,
and may clip queries, keys and values. Qwen2-MoE (Yang et al. 2024) has biases on queries, keys and values, and a
shared expert that computes every token, times the sigmoid of a gate; it has no points, and `expert_weights` are of the
routed experts alone. Sparse layers have the points `router_logits` and `expert_weights`; `mlp_pre`,
`mlp_pre_linear` and `mlp_post` exist in dense layers alone, as each token has its own experts. Every point has its name
in TransformerLens; its axes are given where it is made. Exact against `transformers`; the translation of its files is
at the end.

In every layer resid_pre + attn_out = resid_mid, resid_mid + mlp_out = resid_post, and resid_post is the next resid_pre.

Where two experts are about as likely, rounding decides between them, and what follows differs. With logits drawn from
a standard normal distribution, the last chosen expert and the next are within 1e-6, about the rounding of float32, at 2
tokens in a million (2 of 8 experts) to 15 (8 of 128), in each layer; within bfloat16's 8e-3 at 2 in 100 to 12. So in
bfloat16 some tokens' experts, and all that depends on them, change with the batch.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads, K d_head,
F width of a dense layer's MLP, E experts, N tokens of all texts, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Self

import torch
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
    check_dimension,
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
    unchecked,
    written_fields,
)
from probekit.models.decoder import LLAMA_BUFFERS, LLAMA_NAMES, PRE_NORM, DecoderOnly
from probekit.models.experts import Expert, SparseMLP, experts_of
from probekit.models.families.llama import Attention, NormedAttention
from probekit.models.family import Family, HfModel, HfTensor, decoder_twin, module_output, points_inside, weight_points
from probekit.models.layers import ACTIVATIONS, Embedding, Linear, Mask, RMSNorm, SwiGLU, at_read
from probekit.models.positional import RopeScaling, Rotary
from probekit.models.rope_fields import rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape

# model_type -> how class names of transformers begin
CLASSES = {"mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe", "olmoe": "Olmoe"}

QWEN = ("qwen2_moe", "qwen3_moe")

# Kimi K2 has 23,040. Each has matrices of its own, so a damaged file with more would hang before it is checked.
MOST_EXPERTS = 1 << 16


@dataclass(frozen=True)
class MoeConfig:
    """The sizes and options of a Mixtral, Qwen2-MoE, Qwen3-MoE or OLMoE; the defaults are those of Mixtral 8x7B.

    Attributes:
        n_kv_heads: heads of keys and values; each serves n_heads / n_kv_heads heads of queries.
        d_mlp: width of one expert.
        n_experts: experts in each sparse layer.
        n_active_experts: how many of them compute a token.
        norm_top_k: whether the weights of a token's experts are divided by their sum.
        dense_layers: layers with one MLP instead of experts.
        d_dense_mlp: the width of that MLP.
        d_shared_mlp: the width of the expert that computes every token, in Qwen2-MoE.
        rope_scaling: how rotations are stretched to a longer context; None for no stretching.
        attention_bias: whether queries, keys, values and the attention's output projection have biases; in Qwen2-MoE
            not the latter.
        clip_qkv: queries, keys (after their norms) and values are cut to this size; None for no limit.
        sliding_window: how many tokens a token sees, itself included; None for all before it.
        init_std: standard deviation of normal initial weights.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = size(4096, hf="hidden_size")
    n_heads: int = size(32, hf="num_attention_heads")
    n_kv_heads: int = size(8, hf="num_key_value_heads")
    d_head: int = size(128, hf="head_dim")
    d_mlp: int = size(
        14336,
        hf={
            "mixtral": "intermediate_size",
            "qwen2_moe": "moe_intermediate_size",
            "qwen3_moe": "moe_intermediate_size",
            "olmoe": "intermediate_size",
        },
    )
    n_layers: int = size(32, hf="num_hidden_layers")
    n_ctx: int = size(32768, hf="max_position_embeddings")
    d_vocab: int = size(32000, hf="vocab_size")
    n_experts: int = size(8, hf=dict.fromkeys(CLASSES, "num_experts") | {"mixtral": "num_local_experts"})
    n_active_experts: int = size(2, hf="num_experts_per_tok")
    norm_top_k: bool = flag(True, hf=dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe"), "norm_topk_prob"))
    dense_layers: tuple[int, ...] = unchecked((), hf=dict.fromkeys(QWEN, "mlp_only_layers"))
    d_dense_mlp: int | None = size(None, hf=dict.fromkeys(QWEN, "intermediate_size"), optional=True)
    d_shared_mlp: int | None = size(None, hf={"qwen2_moe": "shared_expert_intermediate_size"}, optional=True)
    activation: str = one_of("silu", ACTIVATIONS, hf="hidden_act")
    norm_eps: float = real(1e-5, hf="rms_norm_eps")
    rope_theta: float = real(1000000.0)
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = flag(
        False, hf={"qwen2_moe": "qkv_bias", "qwen3_moe": "attention_bias", "olmoe": "attention_bias"}
    )
    clip_qkv: float | None = real(None, hf={"olmoe": "clip_qkv"}, optional=True)
    sliding_window: int | None = size(None, optional=True)
    tie_embeddings: bool = flag(False, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    bos_token_id: int | None = token_id(1, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(2, hf="eos_token_id")
    model_type: str = one_of("mixtral", CLASSES)

    def __post_init__(self):
        check_fields(self)
        check_multiple(self, "n_heads", "n_kv_heads")
        check_pairs(self)
        check_experts(self)
        name = partial(named, self)
        for layer in self.dense_layers:
            if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self.n_layers:
                raise DataError(f"{name('dense_layers')} must lie in 0..{self.n_layers - 1}; got {layer!a:.60}")
        if self.dense_layers:
            check_dimension("d_dense_mlp", self.d_dense_mlp, name("d_dense_mlp"))
        if self.model_type == "qwen2_moe":
            check_dimension("d_shared_mlp", self.d_shared_mlp, name("d_shared_mlp"))

    @property
    def qkv_bias(self) -> bool:
        """Whether queries, keys and values have biases."""
        return self.attention_bias

    @property
    def out_bias(self) -> bool:
        """Whether the attention's output projection has a bias."""
        return self.attention_bias and self.model_type != "qwen2_moe"

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        Fields of the training alone are ignored: `router_aux_loss_coef`, `router_jitter_noise`, `attention_dropout`.
        """
        model_type = hf.get("model_type", "mixtral")
        check_choice(model_type, CLASSES, "model_type")
        check_implemented(hf, _REQUIRED_OF_ALL | _REQUIRED[model_type], model_type)
        hf = _with_one_name_of_experts(hf, model_type)
        rope = rope_from_hf(hf, theta=("rope_theta", 1e6 if model_type == "mixtral" else 1e4))
        required = ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab", "n_experts")
        given = read_fields(cls, hf, required, model_type)
        fields: dict[str, Any] = _DEFAULTS[model_type] | {"norm_top_k": model_type == "mixtral"} | given | rope
        fields |= _heads(hf, given, model_type) | _window(hf, model_type)
        if model_type in QWEN:
            fields["dense_layers"] = dense_layers_from_hf(hf)
        return cls(**fields, model_type=model_type)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        fields = written_fields(self)
        if self.model_type == "mixtral":
            fields["sliding_window"] = self.sliding_window
        if self.model_type in QWEN:
            fields |= {"use_sliding_window": self.sliding_window is not None, "sliding_window": self.sliding_window}
            fields["decoder_sparse_step"] = 1
            if self.d_dense_mlp is None:
                del fields["intermediate_size"]
        classes = {"model_type": self.model_type, "architectures": [f"{CLASSES[self.model_type]}ForCausalLM"]}
        return classes | fields | {"rope_parameters": rope_to_hf(self.rope_theta, self.rope_scaling)}


def check_experts(cfg: Any) -> None:
    """Refuse a config with fewer experts than a token needs, or with more than a model has."""
    name = partial(named, cfg)
    if cfg.n_active_experts > cfg.n_experts:
        raise DataError(
            f"{name('n_active_experts')} {cfg.n_active_experts} is more than {name('n_experts')} {cfg.n_experts}; "
            "correct one of them"
        )
    if cfg.n_experts * cfg.n_layers > MOST_EXPERTS:
        raise DataError(
            f"{name('n_experts')} {cfg.n_experts} in each of {name('n_layers')} {cfg.n_layers} are more than "
            f"{MOST_EXPERTS} experts; correct one of them"
        )


class WideNormAttention(Attention):
    """Queries and keys are normalised before the rotation, all heads together; then all are clipped (OLMoE).

    `q`, `k`, `q_norm` and `k_norm` are before the clipping, `rot_q`, `rot_k` and `v` after it.
    """

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.limit = cfg.clip_qkv
        self.q_norm = RMSNorm(cfg.n_heads * cfg.d_head, cfg.norm_eps, "B L HK")
        self.k_norm = RMSNorm(cfg.n_kv_heads * cfg.d_head, cfg.norm_eps, "B L GK")

    def heads(self, x_BLD: Tensor, read_BR: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q_BLHK, k_BLGK = (
            self.hook_q(self.split(self.q(at_read(x_BLD, read_BR)))),
            self.hook_k(self.split(self.k(x_BLD))),
        )
        q_BLHK = self.clipped(self.q_norm(q_BLHK.flatten(2)).view_as(q_BLHK))
        k_BLGK = self.clipped(self.k_norm(k_BLGK.flatten(2)).view_as(k_BLGK))
        return q_BLHK, k_BLGK, self.hook_v(self.clipped(self.split(self.v(x_BLD))))

    def split(self, x_BLD: Tensor) -> Tensor:
        """The width split into heads, [B, L, H, K]."""
        return x_BLD.unflatten(-1, (-1, self.d_head))

    def clipped(self, x: Tensor) -> Tensor:
        """x, with what exceeds the limit cut off."""
        return x if self.limit is None else x.clamp(-self.limit, self.limit)


ATTENTION: dict[str, Any] = {
    "mixtral": Attention,
    "qwen2_moe": Attention,
    "qwen3_moe": NormedAttention,
    "olmoe": WideNormAttention,
}


class SoftmaxSparse(SparseMLP):
    """The experts with the largest shares in the softmax over all; the shares are the weights, or sum to 1 divided."""

    def __init__(self, cfg: Any):
        super().__init__(*experts_of(cfg))
        self.n_active, self.norm_top_k = cfg.n_active_experts, cfg.norm_top_k

    def weights(self, logits_BLE: Tensor) -> Tensor:
        """The largest entries of the softmax over all experts, 0 elsewhere; ties are torch's, as in transformers."""
        shares_BLE = logits_BLE.softmax(-1)
        largest, chosen = shares_BLE.topk(self.n_active, -1)
        if self.norm_top_k:
            largest = largest / largest.sum(-1, keepdim=True)
        return torch.zeros_like(shares_BLE).scatter(-1, chosen, largest)


class SoftmaxAndShared(SoftmaxSparse):
    """The same, and an expert that computes every token, times the sigmoid of a gate (Qwen2-MoE, Qwen3-Next)."""

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.shared = Expert(cfg.d_model, cfg.d_shared_mlp, cfg.activation)
        self.shared_gate = Linear(cfg.d_model, 1, bias=False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return super().forward(x_BLD) + self.shared_gate(x_BLD).sigmoid() * self.shared(x_BLD)


class Block(nn.Module):
    """Pre-norm: x + attn(ln1(x)), then x + mlp(ln2(x)), where mlp is dense or sparse."""

    def __init__(self, cfg: Any, attn: nn.Module, mlp: nn.Module):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.attn = attn
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.mlp = mlp
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


ABSENT = "in layers with experts each token has its own; take mlp_out, router_logits or expert_weights there"


class Moe(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    absent = MappingProxyType(dict.fromkeys(("mlp_pre", "mlp_pre_linear", "mlp_post"), ABSENT))

    def __init__(self, cfg: MoeConfig):
        super().__init__(cfg)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(self.block(cfg, layer) for layer in range(cfg.n_layers))
        self.ln_final = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def block(self, cfg: MoeConfig, layer: int) -> Block:
        """The block of a layer, dense or sparse."""
        attn = ATTENTION[cfg.model_type](cfg)
        if layer not in cfg.dense_layers:
            return Block(cfg, attn, (SoftmaxSparse if cfg.d_shared_mlp is None else SoftmaxAndShared)(cfg))
        assert cfg.d_dense_mlp is not None, "the config checks it"
        return Block(cfg, attn, SwiGLU(cfg.d_model, cfg.d_dense_mlp, False, cfg.activation))

    def window_of(self, layer: int) -> int | None:
        """`sliding_window`, in every layer."""
        return self.cfg.sliding_window

    def size_of(self, axis: str, short: str, layer: int | None = None) -> int | None:
        """The size of an axis of this point; F, the width of an MLP with points, is that of dense layers."""
        return self.cfg.d_dense_mlp if axis == "F" else super().size_of(axis, short)


# Translation from and to Hugging Face. A published file holds each expert's matrices as tensors of their own; in
# memory, and in files that it does not write back as published, transformers 5 keeps those of a layer in two tensors.

_DEFAULTS = {  # of transformers, for fields that a file lacks
    "mixtral": {"norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "n_active_experts": 2},
    "qwen2_moe": {
        "norm_eps": 1e-6,
        "bos_token_id": None,
        "eos_token_id": None,
        "attention_bias": True,
        "d_shared_mlp": 5632,
        "n_active_experts": 4,
    },
    "qwen3_moe": {"norm_eps": 1e-6, "bos_token_id": None, "eos_token_id": None, "n_active_experts": 8},
    "olmoe": {"norm_eps": 1e-5, "bos_token_id": None, "eos_token_id": 50279, "n_active_experts": 8},
}
_NOT_SHARED = {"shared_expert_intermediate_size": None}
_REQUIRED: dict[str, dict[str, Any]] = {  # fields that change the arithmetic, and their only value that is implemented
    "mixtral": {"attention_bias": False, "norm_topk_prob": True, "clip_qkv": None} | _NOT_SHARED,
    # with a window transformers gives one to every other layer below max_window_layers; no published model has any
    "qwen2_moe": {"use_sliding_window": False, "clip_qkv": None, "attention_bias": False},
    "qwen3_moe": {"clip_qkv": None} | _NOT_SHARED,
    "olmoe": {"sliding_window": None} | _NOT_SHARED,
}
_REQUIRED_OF_ALL = CAUSAL | {"mlp_bias": False}


def _with_one_name_of_experts(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """The fields with the number of experts as the Hub's files name it; transformers 5 writes some types' otherwise."""
    ours, other = "num_experts", "num_local_experts"
    if model_type == "mixtral":
        ours, other = other, ours
    if ours in hf and other in hf and hf[ours] != hf[other]:
        raise DataError(f"{ours} is {hf[ours]!a:.60}, but {other} is {hf[other]!a:.60}; leave one out")
    return {**hf, ours: hf[other]} if other in hf else dict(hf)


def _heads(hf: Mapping[str, Any], given: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    if "num_key_value_heads" not in hf and model_type != "olmoe":
        raise DataError(f"{named(MoeConfig, 'n_kv_heads')} is missing; add it")  # transformers' default is 8 or 4
    if model_type != "olmoe":
        return grouped_heads(MoeConfig, hf, given)
    heads = grouped_heads(MoeConfig, {**hf, "head_dim": None}, given)  # OLMoE's always share d_model
    check_implemented(
        {"head_dim": hf["head_dim"]} if hf.get("head_dim") else {}, {"head_dim": heads["d_head"]}, "olmoe"
    )
    return heads


def _window(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """The window of all layers; Qwen3-MoE's is off without use_sliding_window, and `max_window_layers` is not read."""
    window = hf.get("sliding_window")
    if model_type in QWEN:
        is_on = hf.get("use_sliding_window", False)
        check_flag(is_on, "use_sliding_window")
        window = hf.get("sliding_window", 4096) if is_on else None
    check_only_layer_types(hf, [FULL if window is None else SLIDING] * hf["num_hidden_layers"])
    return {"sliding_window": window}


def dense_layers_from_hf(hf: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers without experts: those of mlp_only_layers, and all but every decoder_sparse_step-th."""
    n_layers, step, listed = hf["num_hidden_layers"], hf.get("decoder_sparse_step", 1), hf.get("mlp_only_layers") or []
    check_count(step, "decoder_sparse_step", 1)
    if not isinstance(listed, list):
        raise DataError(f"mlp_only_layers must be a list of layers; got {listed!a:.60}")
    if wrong := [i for i in listed if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < n_layers]:
        raise DataError(f"mlp_only_layers must lie in 0..{n_layers - 1}; got {wrong[0]!a:.60}")
    return tuple(layer for layer in range(n_layers) if layer in listed or (layer + 1) % step)


_MLP = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_MIXTRAL_MLP = {"gate": "w1", "up": "w3", "down": "w2"}


def modules(cfg: MoeConfig) -> dict[str, str]:
    """Our modules by their names in a Hugging Face file."""
    mlp, names = ("block_sparse_moe", _MIXTRAL_MLP) if cfg.model_type == "mixtral" else ("mlp", _MLP)
    sparse = {"blocks.{}.mlp.router": f"model.layers.{{}}.{mlp}.gate"}
    sparse |= {f"blocks.{{}}.mlp.shared.{x}": f"model.layers.{{}}.mlp.shared_expert.{name}" for x, name in _MLP.items()}
    sparse |= {"blocks.{}.mlp.shared_gate": "model.layers.{}.mlp.shared_expert_gate"}
    sparse |= {f"blocks.{{}}.mlp.experts.{{}}.{x}": f"model.layers.{{}}.{mlp}.experts.{{}}.{names[x]}" for x in names}
    return LLAMA_NAMES | sparse


_EXPERT, _ALL = "blocks.{}.mlp.experts.{}", "model.layers.{}.mlp.experts"
FUSED = {
    f"{_EXPERT}.gate.weight": f"{_ALL}.gate_up_proj",
    f"{_EXPERT}.up.weight": f"{_ALL}.gate_up_proj",
    f"{_EXPERT}.down.weight": f"{_ALL}.down_proj",
    "blocks.{}.mlp.router": "model.layers.{}.mlp.gate",
}
"""Where the experts of a layer share tensors, in this family and in those that take its experts."""


def shape(cfg: MoeConfig) -> ModelShape:
    """The sizes of a `MoeConfig`'s model."""
    stack = stack_shape(
        cfg,
        gated=True,
        rotary=True,
        qkv_bias=cfg.attention_bias,
        out_bias=cfg.out_bias,
        mlp_bias=False,
        norm_shift=False,
        qk_norm={"qwen3_moe": "K", "olmoe": "HK"}.get(cfg.model_type, ""),
        n_experts=cfg.n_experts,
        n_active_experts=cfg.n_active_experts,
        n_dense_layers=len(cfg.dense_layers),
        d_dense_mlp=cfg.d_dense_mlp if cfg.dense_layers else 0,
        d_shared_mlp=cfg.d_shared_mlp or 0,
        shared_gate=cfg.d_shared_mlp is not None,
    )
    return decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)


def _router_logits(_: tuple, routed: Any) -> Tensor:
    """[1, L, E], from the router's output for a batch of one."""
    return routed[0][None]


def _expert_weights(_: tuple, routed: Any) -> Tensor:
    """[1, L, E]; the router gives the weights of the chosen experts, and who they are."""
    logits, weights, chosen = routed
    return torch.zeros_like(logits, dtype=weights.dtype).scatter(-1, chosen, weights)[None]


SPARSE_POINTS = {"router_logits": _router_logits, "expert_weights": _expert_weights}
"""Points of sparse layers, and what takes them from the arguments and the output of transformers' router."""


def sparse_twin(name: str, names: Mapping[str, HfTensor], router: str = "mlp.gate") -> HfModel:
    """The classes of transformers whose names begin so, of a decoder with experts in some layers.

    Args:
        name: how the names of both classes begin.
        names: those of `Family.hf_names`.
        router: path of the router in a layer.
    """
    sparse = {point: (router, take) for point, take in SPARSE_POINTS.items()}
    points = weight_points(names, PRE_NORM)
    points |= points_inside("model.layers.{layer}", sparse | {"mlp_out": ("mlp", module_output)})
    eager = {"experts_implementation": "eager"}  # as its grouped product of all experts does not take float64
    return decoder_twin(name, points)._replace(options=eager)


def _copied_output(_: tuple, output: Any) -> Tensor:
    """The output of a norm, which transformers clips in place."""
    return output.clone()


def twin(cfg: MoeConfig, names: Mapping[str, HfTensor]) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    found = sparse_twin(CLASSES[cfg.model_type], names)
    points = dict(found.points)
    points |= {x: points[x]._replace(take=_copied_output) for x in ("q_norm", "k_norm") if x in points}
    if (limit := cfg.clip_qkv) is not None:
        points["v"] = points["v"]._replace(take=lambda _, output: output.clamp(-limit, limit))
    return found._replace(points=points)


FAMILY = Family(
    model_types=tuple(CLASSES),
    config=MoeConfig,
    model=Moe,
    shape=shape,
    modules=modules,
    fused=FUSED,
    hf_prefix="model.",
    twin=twin,
    hf_buffers=LLAMA_BUFFERS,
    loads="Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE",
    refused="windows in Qwen2-MoE, shared experts in the others",
    hub_examples=(
        "mistralai/Mixtral-8x7B-v0.1",
        "Qwen/Qwen1.5-MoE-A2.7B",
        "Qwen/Qwen3-30B-A3B",
        "allenai/OLMoE-1B-7B-0924",
    ),
)
