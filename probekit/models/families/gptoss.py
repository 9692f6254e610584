"""GPT-OSS, written by hand (OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card").

A decoder like a mixture of `moe.py`, with a sink in each head of the attention: a learned logit that enters the
softmax with the scores, and has no value of its own (Xiao et al. 2024). Every other layer has a sliding window.
Experts are clamped gated MLPs with biases, and the router chooses by its logits, whose softmax over the chosen alone
gives the weights.

`attn_pattern` is what weighs the values. Its rows sum to less than 1, as the sink takes the rest: it is the softmax of
`attn_scores` and the head's sink, without the sink. `router_logits`, `expert_weights` and the points that are absent
are those of `moe.py`. Every point has its name in TransformerLens; its axes are given where it is made. Exact against
`transformers`; the translation of its files is at the end.

In every layer resid_pre + attn_out = resid_mid, resid_mid + mlp_out = resid_post, and resid_post is the next resid_pre.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads, K d_head,
E experts, N queries at once or tokens of all texts, V vocab.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Self

import torch
from einops import rearrange
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.config_fields import (
    CAUSAL,
    FULL,
    SLIDING,
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
    unchecked,
    written_fields,
)
from probekit.models.decoder import LLAMA_BUFFERS, LLAMA_NAMES, DecoderOnly
from probekit.models.experts import SparseMLP
from probekit.models.families.llama import Attention
from probekit.models.families.moe import ABSENT, Block, check_experts, sparse_twin
from probekit.models.family import Family, HfModel, HfTensor
from probekit.models.layers import Embedding, Linear, Mask, RMSNorm, attention_scores, causal_mask, heads_for
from probekit.models.positional import RopeScaling, Rotary
from probekit.models.rope_fields import rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape

SCORES = 4_000_000  # held at once where no kernel keeps them to itself and no hook reads them, as in gemma.py


@dataclass(frozen=True)
class GptOssConfig:
    """The sizes and options of a GPT-OSS; the defaults are those of gpt-oss-20b.

    Attributes:
        n_kv_heads: heads of keys and values; each serves n_heads / n_kv_heads heads of queries.
        d_mlp: width of one expert.
        n_experts: experts in each layer.
        n_active_experts: how many of them compute a token.
        gate_factor: of the sigmoid that gates an expert.
        limit: gates are cut above it, and what they multiply beyond it on either side.
        rope_scaling: how rotations are stretched to a longer context; None for no stretching.
        attention_bias: whether queries, keys, values and the attention's output projection have biases.
        sliding_window: how many tokens a token sees, itself included, in layers with a window.
        layer_types: "sliding_attention" (with a window) or "full_attention" for each layer.
        init_std: standard deviation of normal initial weights.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = size(2880, hf="hidden_size")
    n_heads: int = size(64, hf="num_attention_heads")
    n_kv_heads: int = size(8, hf="num_key_value_heads")
    d_head: int = size(64, hf="head_dim")
    d_mlp: int = size(2880, hf="intermediate_size")
    n_layers: int = size(24, hf="num_hidden_layers")
    n_ctx: int = size(131072, hf="max_position_embeddings")
    d_vocab: int = size(201088, hf="vocab_size")
    n_experts: int = size(32, hf="num_local_experts")
    n_active_experts: int = size(4, hf="num_experts_per_tok")
    gate_factor: float = real(1.702, hf="swiglu_alpha")
    limit: float = real(7.0, hf="swiglu_limit")
    norm_eps: float = real(1e-5, hf="rms_norm_eps")
    rope_theta: float = real(150000.0)
    rope_scaling: RopeScaling | None = RopeScaling(
        "yarn", 32.0, 1.0, 32.0, 4096, 0.1 * math.log(32) + 1, truncate=False
    )
    attention_bias: bool = flag(True, hf="attention_bias")
    sliding_window: int | None = size(128, hf="sliding_window", optional=True)
    layer_types: tuple[str, ...] = unchecked(12 * (SLIDING, FULL), hf="layer_types")
    tie_embeddings: bool = flag(False, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    bos_token_id: int | None = token_id(None, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(None, hf="eos_token_id")
    model_type: str = one_of("gpt_oss", ("gpt_oss",))

    def __post_init__(self):
        check_fields(self)
        check_multiple(self, "n_heads", "n_kv_heads")
        check_pairs(self)
        check_experts(self)
        settle_windows(self)

    @property
    def qkv_bias(self) -> bool:
        """Whether queries, keys and values have biases."""
        return self.attention_bias

    @property
    def out_bias(self) -> bool:
        """Whether the attention's output projection has a bias."""
        return self.attention_bias

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        Fields of the training alone are ignored, and so are `initial_context_length` and `experts_per_token`, which say
        again what others do. `hidden_act` has no effect: the experts' gate is this family's own.
        """
        check_implemented(hf, CAUSAL | {"hidden_act": "silu"}, "gpt_oss")
        required = ("d_model", "n_heads", "n_kv_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab", "n_experts")
        given: dict[str, Any] = read_fields(cls, {"num_key_value_heads": 8, **hf}, required)
        if hf.get("rope_parameters") is None and hf.get("rope_scaling") is None:
            hf = {**hf, "rope_parameters": _STRETCHED}
        types = given_layer_types(hf) or tuple((FULL if i % 2 else SLIDING) for i in range(given["n_layers"]))
        heads = grouped_heads(cls, {"head_dim": 64, "num_key_value_heads": 8, **hf}, given)
        rope = rope_from_hf(hf, theta=("rope_theta", 150000.0))
        return cls(**given | heads | rope | {"layer_types": types, "model_type": "gpt_oss"})

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        rope = {"rope_parameters": rope_to_hf(self.rope_theta, self.rope_scaling)}
        return {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]} | written_fields(self) | rope


class SinkAttention(Attention):
    """Grouped-query attention over rotated queries and keys, whose softmax has one more logit, the head's sink."""

    def __init__(self, cfg: Any):
        super().__init__(cfg)
        self.sinks = nn.Parameter(torch.empty(cfg.n_heads))

    def attended(self, q_BLHK: Tensor, k_BMGK: Tensor, v_BMGK: Tensor, mask: Mask) -> Tensor:
        if self.hook_attn_scores.hooked or self.hook_pattern.hooked:
            scores_BHLM = self.hook_attn_scores(attention_scores(q_BLHK, k_BMGK, mask))
            pattern_BHLM = self.hook_pattern(softmax_with_sinks(scores_BHLM, self.sinks[:, None, None]))
            return torch.einsum("bhlm,bmhk->blhk", pattern_BHLM, heads_for(q_BLHK, v_BMGK))
        if q_BLHK.device.type == "cpu" and not torch.is_grad_enabled() and kernel_gives_sums():
            return attended_by_kernel(q_BLHK, k_BMGK, v_BMGK, mask, self.sinks)
        return attended_in_parts(q_BLHK, k_BMGK, v_BMGK, mask, self.sinks)


def softmax_with_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """The softmax of the scores [..., M] and of the sinks [..., 1], which broadcast to them, without the sinks."""
    sinks = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


def attended_by_kernel(q_BLHK: Tensor, k_BMGK: Tensor, v_BMGK: Tensor, mask: Mask, sinks_H: Tensor) -> Tensor:
    """The attention by torch's kernel for CPUs, which also gives the logarithm s of the sum of exp(scores).

    The softmax with a sink is the one without it, times exp(s) / (exp(s) + exp(sink)). A third of the time of
    `attended_in_parts` with 1,024 tokens and 16 heads, a seventh of that of transformers' eager attention.
    """
    q, k, v = (x.transpose(1, 2) for x in (q_BLHK, k_BMGK, v_BMGK))
    added = None
    if isinstance(mask, Tensor):
        added = torch.zeros_like(mask[:, None], dtype=q.dtype).masked_fill_(~mask[:, None], -math.inf)
    z_BHLK, sum_BHL = _KERNEL(q, k, v, is_causal=isinstance(mask, str), attn_mask=added)
    shares_BHL1 = torch.sigmoid(sum_BHL - sinks_H[:, None].to(sum_BHL.dtype))[..., None]
    return (z_BHLK * shares_BHL1).to(v.dtype).transpose(1, 2)


def attended_in_parts(q_BLHK: Tensor, k_BMGK: Tensor, v_BMGK: Tensor, mask: Mask, sinks_H: Tensor) -> Tensor:
    """The same step by step, of so many queries at once that their scores stay few."""
    assert mask is not None, "the model is causal"
    batch, length, n_heads, d_head = q_BLHK.shape
    k_BGKM, v_BGMK = k_BMGK.permute(0, 2, 3, 1), v_BMGK.transpose(1, 2)
    unseen_BLM = ~(mask if isinstance(mask, Tensor) else causal_mask(q_BLHK.new_ones(1, length)))
    sinks_GR11 = sinks_H.view(k_BMGK.shape[2], -1, 1, 1)
    rows = max(1, SCORES // (batch * n_heads * k_BMGK.shape[1]))
    parts = []
    for q_BNHK, unseen_BNM in zip(q_BLHK.split(rows, 1), unseen_BLM.split(rows, 1), strict=True):
        q = rearrange(q_BNHK / math.sqrt(d_head), "b n (g r) k -> b g (r n) k", g=k_BMGK.shape[2])
        scores = (q @ k_BGKM).unflatten(2, (-1, q_BNHK.shape[1]))
        pattern = softmax_with_sinks(scores.masked_fill(unseen_BNM[:, None, None], -math.inf), sinks_GR11)
        z = pattern.flatten(2, 3) @ v_BGMK
        parts.append(rearrange(z, "b g (r n) k -> b n (g r) k", n=q_BNHK.shape[1]))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


_KERNEL: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@cache
def kernel_gives_sums() -> bool:
    """Whether torch has this kernel, which is private to it, and it is right about two tokens of two heads."""
    q = torch.linspace(-1, 2, 16).view(1, 2, 2, 4)
    scores = q @ q[:, :1].mT / 2
    try:
        z, sums = _KERNEL(q, q[:, :1], q[:, :1])
    except (RuntimeError, TypeError, AttributeError):  # another signature, or a torch without it
        return False
    wanted = scores.softmax(-1) @ q[:, :1], scores.logsumexp(-1)
    return all(x.shape == y.shape and torch.allclose(x, y, atol=1e-5) for x, y in zip((z, sums), wanted, strict=True))


class ClampedExpert(nn.Module):
    """down((up(x) + 1) g sigmoid(a g)) with g = gate(x), where g is cut above a limit and up(x) on either side."""

    def __init__(self, cfg: GptOssConfig):
        super().__init__()
        self.gate_factor, self.limit = cfg.gate_factor, cfg.limit
        self.gate = Linear(cfg.d_model, cfg.d_mlp)
        self.up = Linear(cfg.d_model, cfg.d_mlp)
        self.down = Linear(cfg.d_mlp, cfg.d_model)

    def forward(self, x_ND: Tensor) -> Tensor:
        gate, up = self.gate(x_ND).clamp(max=self.limit), self.up(x_ND).clamp(-self.limit, self.limit)
        return self.down((up + 1) * (gate * torch.sigmoid(self.gate_factor * gate)))


class TopLogitsSparse(SparseMLP):
    """The experts with the largest logits; their weights are the softmax of these alone."""

    def __init__(self, cfg: GptOssConfig):
        experts = (ClampedExpert(cfg) for _ in range(cfg.n_experts))
        super().__init__(Linear(cfg.d_model, cfg.n_experts), experts)
        self.n_active = cfg.n_active_experts

    def weights(self, logits_BLE: Tensor) -> Tensor:
        largest, chosen = logits_BLE.topk(self.n_active, -1)
        return torch.zeros_like(logits_BLE).scatter(-1, chosen, largest.softmax(-1))


class GptOss(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    absent = MappingProxyType(dict.fromkeys(("mlp_pre", "mlp_pre_linear", "mlp_post"), ABSENT))

    def __init__(self, cfg: GptOssConfig):
        super().__init__(cfg)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg, SinkAttention(cfg), TopLogitsSparse(cfg)) for _ in range(cfg.n_layers))
        self.ln_final = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def window_of(self, layer: int) -> int | None:
        """`sliding_window` in the layers that have one."""
        return self.cfg.sliding_window if self.cfg.layer_types[layer] == SLIDING else None

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """As in every model; sinks are drawn like matrices, as in `transformers`."""
        super().init_weights(seed)
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if name.endswith(".sinks"):
                weight.copy_(self.drawn(name, weight.shape, generator))
        return self


# Translation from and to Hugging Face. A file holds the experts' weights of a layer in one tensor, [in, out], those of
# the gate and of what it multiplies by turns.

_STRETCHED = {  # where a file has no fields of the rotation
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_EXPERTS = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}
_ONE = "blocks.{}.mlp.experts.{}"
NAMES = LLAMA_NAMES | {
    "blocks.{}.attn.sinks": "model.layers.{}.self_attn.sinks",
    "blocks.{}.mlp.router": "model.layers.{}.mlp.router",
    **{f"{_ONE}.{ours}.weight": f"model.layers.{{}}.mlp.experts.{x}" for ours, x in _EXPERTS.items()},
    **{f"{_ONE}.{ours}.bias": f"model.layers.{{}}.mlp.experts.{x}_bias" for ours, x in _EXPERTS.items()},
}


def shape(cfg: GptOssConfig) -> ModelShape:
    """The sizes of a `GptOssConfig`'s model."""
    stack = stack_shape(
        cfg,
        gated=True,
        rotary=True,
        qkv_bias=cfg.attention_bias,
        out_bias=cfg.attention_bias,
        norm_shift=False,
        sinks=True,
        n_experts=cfg.n_experts,
        n_active_experts=cfg.n_active_experts,
        router_bias=True,
    )
    return decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)


def twin(cfg: GptOssConfig, names: Mapping[str, HfTensor]) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    return sparse_twin("GptOss", names, router="mlp.router")


FAMILY = Family(
    model_types=("gpt_oss",),
    config=GptOssConfig,
    model=GptOss,
    shape=shape,
    modules=lambda cfg: NAMES,
    hf_prefix="model.",
    transposed=tuple(f"{_ONE}.{x}" for x in _EXPERTS),
    by_turns=(f"{_ONE}.gate", f"{_ONE}.up"),
    twin=twin,
    hf_buffers=LLAMA_BUFFERS,
    loads="GPT-OSS",
    refused="rotations other than plain, linear, llama3 and yarn",
    hub_examples=("openai/gpt-oss-20b", "openai/gpt-oss-120b"),
)
