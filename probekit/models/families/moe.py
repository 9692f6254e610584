"""Mixtures of experts, written by hand: Mixtral, Qwen3-MoE and OLMoE.

A decoder like Llama in which a router gives each token a few of a layer's MLPs, the experts, whose weighted sum is the
token's output (Jiang et al. 2024). Qwen3-MoE (Yang et al. 2025) normalises queries and keys head by head, and may have
dense layers (one MLP, no router) among the sparse ones; OLMoE (Muennighoff et al. 2024) normalises all heads together,
and may clip queries, keys and values. Sparse layers have the points `router_logits` and `expert_weights`; `mlp_pre`,
`mlp_pre_linear` and `mlp_post` exist in dense layers alone, as each token has its own experts. Every point has its name
in TransformerLens; its axes are given where it is made. Exact against `transformers`; `moe_hf.py` translates its files.

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
from types import MappingProxyType
from typing import Any, Self

import torch
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
)
from probekit.models.families import moe_hf
from probekit.models.families.llama import Attention, NormedAttention
from probekit.models.family import Family
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    Linear,
    Mask,
    RMSNorm,
    SwiGLU,
    at_read,
    linear,
)
from probekit.models.positional import RopeScaling, Rotary
from probekit.models.windows import in_window

SIZES = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_mlp", "n_layers", "n_ctx", "d_vocab", "n_experts")


@dataclass(frozen=True)
class MoeConfig:
    """The sizes and options of a Mixtral, Qwen3-MoE or OLMoE; the defaults are those of Mixtral 8x7B.

    Attributes:
        n_kv_heads: heads of keys and values; each serves n_heads / n_kv_heads heads of queries.
        d_mlp: width of one expert.
        n_experts: experts in each sparse layer.
        n_active_experts: how many of them compute a token.
        norm_top_k: whether the weights of a token's experts are divided by their sum.
        dense_layers: layers with one MLP instead of experts.
        d_dense_mlp: the width of that MLP.
        rope_scaling: how rotations are stretched to a longer context; None for no stretching.
        attention_bias: whether queries, keys, values and the attention's output projection have biases.
        clip_qkv: queries, keys (after their norms) and values are cut to this size; None for no limit.
        sliding_window: how many tokens a token sees, itself included; None for all before it.
        init_std: standard deviation of normal initial weights.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = 4096
    n_heads: int = 32
    n_kv_heads: int = 8
    d_head: int = 128
    d_mlp: int = 14336
    n_layers: int = 32
    n_ctx: int = 32768
    d_vocab: int = 32000
    n_experts: int = 8
    n_active_experts: int = 2
    norm_top_k: bool = True
    dense_layers: tuple[int, ...] = ()
    d_dense_mlp: int | None = None
    activation: str = "silu"
    norm_eps: float = 1e-5
    rope_theta: float = 1000000.0
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False
    clip_qkv: float | None = None
    sliding_window: int | None = None
    tie_embeddings: bool = False
    init_std: float = 0.02
    bos_token_id: int | None = 1
    eos_token_id: int | tuple[int, ...] | None = 2
    model_type: str = "mixtral"

    def __post_init__(self):
        check_choice(self.model_type, moe_hf.CLASSES, "model_type")
        named = moe_hf.naming(self.model_type)
        for field in SIZES:
            check_dimension(field, getattr(self, field), named(field))
        check_multiple(self.n_heads, named("n_heads"), self.n_kv_heads, named("n_kv_heads"))
        if self.d_head % 2:
            raise DataError(f"{named('d_head')} must be even, as rotary positions rotate pairs; got {self.d_head}")
        moe_hf.check_experts(self)
        check_choice(self.activation, ACTIVATIONS, named("activation"))
        for field in ("norm_eps", "rope_theta", "init_std"):
            check_positive_number(getattr(self, field), named(field))
        for field in ("norm_top_k", "attention_bias", "tie_embeddings"):
            check_flag(getattr(self, field), named(field))
        if self.clip_qkv is not None:
            check_positive_number(self.clip_qkv, "clip_qkv")
        if self.sliding_window is not None:
            check_dimension("n_ctx", self.sliding_window, "sliding_window")
        check_id(self.bos_token_id, "bos_token_id")
        check_ids(self.eos_token_id, "eos_token_id")

    @property
    def qkv_bias(self) -> bool:
        """Whether queries, keys and values have biases."""
        return self.attention_bias

    @property
    def out_bias(self) -> bool:
        """Whether the attention's output projection has a bias."""
        return self.attention_bias

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "MoeConfig":
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        Fields of the training alone are ignored: `router_aux_loss_coef`, `router_jitter_noise`, `attention_dropout`.

        Raises:
            DataError: a size is missing or out of range, or a field requires arithmetic that is not implemented here;
                the message names the field.
        """
        return cls(**moe_hf.fields_from_hf(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        return moe_hf.fields_to_hf(self)


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


ATTENTION: dict[str, Any] = {"mixtral": Attention, "qwen3_moe": NormedAttention, "olmoe": WideNormAttention}


class Expert(nn.Module):
    """One gated MLP of a mixture; it has no points, as it computes some tokens only."""

    def __init__(self, cfg: MoeConfig):
        super().__init__()
        self.activation = cfg.activation
        self.gate = Linear(cfg.d_model, cfg.d_mlp, bias=False)
        self.up = Linear(cfg.d_model, cfg.d_mlp, bias=False)
        self.down = Linear(cfg.d_mlp, cfg.d_model, bias=False)

    def forward(self, x_ND: Tensor) -> Tensor:
        return self.down(self.gate.activated(x_ND, self.activation) * self.up(x_ND))


class SparseMLP(nn.Module):
    """The weighted sum of the few experts that the router chooses for each token (Shazeer et al. 2017).

    Router and sum are in float32, whatever the type of the weights: logits rounded to bfloat16 are often equal.
    `hook_expert_weights` is what multiplies each expert's output, 0 for those not chosen. The experts compute what this
    point says: a hook that sets a weight to 0 leaves the expert out, and one that sets others calls other experts.
    """

    def __init__(self, cfg: MoeConfig):
        super().__init__()
        self.n_active, self.norm_top_k = cfg.n_active_experts, cfg.norm_top_k
        self.router = Linear(cfg.d_model, cfg.n_experts, bias=False)
        self.experts = nn.ModuleList(Expert(cfg) for _ in range(cfg.n_experts))
        self.hook_router_logits = HookPoint("B L E")
        self.hook_expert_weights = HookPoint("B L E")

    def forward(self, x_BLD: Tensor) -> Tensor:
        wide = torch.promote_types(x_BLD.dtype, torch.float32)
        logits_BLE = self.hook_router_logits(linear(x_BLD.to(wide), self.router.weight.to(wide), None))
        weights_BLE = self.hook_expert_weights(self.weights(logits_BLE))
        return self.mixed(x_BLD.flatten(0, 1), weights_BLE.flatten(0, 1)).view_as(x_BLD)

    def weights(self, logits_BLE: Tensor) -> Tensor:
        """The largest entries of the softmax over all experts, 0 elsewhere; ties are torch's, as in transformers."""
        shares_BLE = logits_BLE.softmax(-1)
        largest, chosen = shares_BLE.topk(self.n_active, -1)
        if self.norm_top_k:
            largest = largest / largest.sum(-1, keepdim=True)
        return torch.zeros_like(shares_BLE).scatter(-1, chosen, largest)

    def mixed(self, x_ND: Tensor, weights_NE: Tensor) -> Tensor:
        """The sum over experts of weight times output, [N, D]; each expert computes its own tokens at once."""
        mixed_ND = torch.zeros_like(x_ND, dtype=weights_NE.dtype)
        of_expert, tokens = weights_NE.T.nonzero(as_tuple=True)  # expert by expert
        counts = of_expert.bincount(minlength=len(self.experts)).tolist()
        for i, (expert, mine) in enumerate(zip(self.experts, tokens.split(counts), strict=True)):
            if len(mine):
                mixed_ND.index_add_(0, mine, weights_NE[mine, i, None] * expert(x_ND[mine]))
        return mixed_ND.to(x_ND.dtype)


class Block(nn.Module):
    """Pre-norm: x + attn(ln1(x)), then x + mlp(ln2(x)), where mlp is dense or sparse."""

    def __init__(self, cfg: MoeConfig, layer: int):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.attn = ATTENTION[cfg.model_type](cfg)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = RMSNorm(cfg.d_model, cfg.norm_eps)
        is_dense = layer in cfg.dense_layers
        self.mlp = SwiGLU(cfg.d_model, cfg.d_dense_mlp, False, cfg.activation) if is_dense else SparseMLP(cfg)
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


class Moe(LanguageModel):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    absent = MappingProxyType(dict.fromkeys(("mlp_pre", "mlp_pre_linear", "mlp_post"), ABSENT))

    def __init__(self, cfg: MoeConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg, layer) for layer in range(cfg.n_layers))
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
        mask = in_window(mask, self.cfg.sliding_window, position_ids, cache)
        rotation = self.rotary(position_ids)
        start, resid_BLD = self.started(self.hook_embed(self.embed(tokens)))
        for i, block in enumerate(self.blocks[start:stop], start):
            resid_BLD = block(resid_BLD, rotation, mask, None if cache is None else cache[i], reads[i])
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        normalized_BLD = self.ln_final(resid_BLD)
        return self.head(normalized_BLD) if return_logits else normalized_BLD

    def window_of(self, layer: int) -> int | None:
        """`sliding_window`, in every layer."""
        return self.cfg.sliding_window

    def size_of(self, axis: str, short: str) -> int | None:
        """The size of an axis of this point; F, the width of an MLP with points, is that of dense layers."""
        return self.cfg.d_dense_mlp if axis == "F" else super().size_of(axis, short)

    def head(self, normalized_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the final norm's output."""
        return linear(normalized_BLD, (self.unembed or self.embed).weight, None)

    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as `transformers` does before training: normal of `init_std`."""
        fill_normal(self, self.cfg.init_std, seed)
        return self


FAMILY = Family(
    model_types=tuple(moe_hf.CLASSES),
    config=MoeConfig,
    model=Moe,
    shape=moe_hf.shape,
    hf_names=moe_hf.hf_names,
    hf_prefix=moe_hf.HF_PREFIX,
    hf_model=moe_hf.hf_model,
    hf_ties=moe_hf.hf_ties,
    hf_buffers=moe_hf.HF_BUFFERS,
    loads="Mixtral, Qwen3-MoE, OLMoE",
    refused="shared experts",
    hub_examples=("mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B", "allenai/OLMoE-1B-7B-0924"),
)
