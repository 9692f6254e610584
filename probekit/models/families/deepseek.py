"""DeepSeek V2 and V3, written by hand (DeepSeek-AI 2024a, 2024b), and Kimi K2 (Kimi Team 2025), which is like V3.

A decoder whose attention goes through latents: keys and values of all heads are products of one narrow vector a token,
`kv_latent`, and queries of another, `q_latent` (V2-Lite has queries from the stream). A part of each query is rotated,
and so is a part of the key that all heads share. The first layers are dense; the others have routed experts
and a shared one, which computes every token. V3 chooses by sigmoids and a correction (`experts.SigmoidSparse`), V2 by
the softmax.

`q` and `k` are before the rotation, `rot_q` and `rot_k` after it; their first coordinates are not rotated. Heads of `v`
and `z` have a width of their own. `kv_latent` and `q_latent` are after their norms. `expert_weights` are of the chosen
experts alone, times a factor; `router_logits` are before softmax, sigmoid and correction. The expert that computes
every token has no points. What else differs in layers with experts is in `moe.py`. All other points have their names in
TransformerLens; axes are given where they are made. Exact against `transformers`; the translation of its files is at
the end. The layer after the last, which files hold to predict one more token, is not read.

In every layer resid_pre + attn_out = resid_mid, resid_mid + mlp_out = resid_post, and resid_post is the next resid_pre.

Axes: B batch, L query position, M key position, D d_model, H heads, K d_head of queries and keys, W of values,
C width of a latent, F width of a dense layer's MLP, E experts, S experts of a group.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.cache import LayerCache
from probekit.models.config_fields import (
    CAUSAL,
    check_choice,
    check_count,
    check_dimension,
    check_fields,
    check_implemented,
    check_multiple,
    flag,
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
from probekit.models.decoder import LLAMA_BUFFERS, LLAMA_NAMES, DecoderOnly
from probekit.models.experts import GroupedSparse, SigmoidSparse
from probekit.models.families.moe import ABSENT, FUSED, Block, check_experts, sparse_twin
from probekit.models.family import (
    Family,
    HfModel,
    HfPoint,
    HfTensor,
)
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
from probekit.models.positional import RopeScaling, Rotary, rotate_half, rotate_interleaved
from probekit.models.rope_fields import mscale_from_hf, rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape

# model_type -> how class names of transformers begin; it has none for Kimi K2, whose files name V3's
CLASSES = {"deepseek_v3": "DeepseekV3", "deepseek_v2": "DeepseekV2"}
LATENT_EPS = 1e-6  # of the latents' norms, whatever that of the others is


class SoftmaxGroups(GroupedSparse):
    """The experts with the largest shares of the softmax, in the groups of the best; times a factor (V2, 2.2)."""

    def weights(self, logits_BLE: Tensor) -> Tensor:
        shares_BLE, chosen = logits_BLE.softmax(-1), self.chosen(logits_BLE)
        return torch.zeros_like(shares_BLE).scatter(-1, chosen, shares_BLE.gather(-1, chosen) * self.factor)

    def deciding(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def of_groups(self, scores_CS: Tensor) -> Tensor:
        return scores_CS.amax(-1)


SPARSE: dict[str, Any] = {"deepseek_v3": SigmoidSparse, "deepseek_v2": SoftmaxGroups, "kimi_k2": SigmoidSparse}


@dataclass(frozen=True)
class DeepseekConfig:
    """The sizes and options of a DeepSeek V2, V3 or Kimi K2; the defaults are those of DeepSeek V3.

    Attributes:
        q_rank: width of the queries' latent; None for queries from the stream.
        kv_rank: width of the latent of keys and values.
        d_nope: width of the part of each query and key that is not rotated.
        d_rope: width of the part that is rotated.
        d_value: width of each value.
        d_mlp: width of one expert.
        d_dense_mlp: width of the MLP of dense layers.
        n_dense_layers: how many of the first layers are dense.
        n_experts: experts in each of the others.
        n_active_experts: how many of them compute a token.
        n_shared_experts: how many times as wide as one of them the expert is that computes every token.
        n_groups: groups of experts.
        n_active_groups: how many of them a token's experts are in.
        routed_factor: what the weights of a token's experts are multiplied with.
        norm_top_k: whether they are divided by their sum before.
        rope_scaling: how rotations are stretched to a longer context; None for no stretching.
        mscale_all_dim: scores are multiplied with (0.1 mscale_all_dim log(factor of the stretching) + 1) squared; None
            for 1.
        interleaved: whether neighbouring coordinates are rotated with one another, or those of the two halves.
        attention_bias: whether the products that make latents, and the attention's output projection, have biases.
        init_std: standard deviation of normal initial weights.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = size(7168, hf="hidden_size")
    n_heads: int = size(128, hf="num_attention_heads")
    q_rank: int | None = size(1536, hf="q_lora_rank", optional=True)
    kv_rank: int = size(512, hf="kv_lora_rank")
    d_nope: int = size(128, hf="qk_nope_head_dim")
    d_rope: int = size(64, hf="qk_rope_head_dim")
    d_value: int = size(128, hf="v_head_dim")
    d_mlp: int = size(2048, hf="moe_intermediate_size")
    d_dense_mlp: int = size(18432, hf="intermediate_size")
    n_layers: int = size(61, hf="num_hidden_layers")
    n_dense_layers: int = unchecked(3, hf="first_k_dense_replace")
    n_ctx: int = size(163840, hf="max_position_embeddings")
    d_vocab: int = size(129280, hf="vocab_size")
    n_experts: int = size(256, hf="n_routed_experts")
    n_active_experts: int = size(8, hf="num_experts_per_tok")
    n_shared_experts: int = size(1, hf="n_shared_experts")
    n_groups: int = size(8, hf="n_group")
    n_active_groups: int = size(4, hf="topk_group")
    routed_factor: float = real(2.5, hf="routed_scaling_factor")
    norm_top_k: bool = flag(True, hf="norm_topk_prob")
    activation: str = one_of("silu", ACTIVATIONS, hf="hidden_act")
    norm_eps: float = real(1e-6, hf="rms_norm_eps")
    rope_theta: float = real(10000.0)
    rope_scaling: RopeScaling | None = None
    mscale_all_dim: float | None = real(None, optional=True)
    interleaved: bool = flag(True, hf={"deepseek_v3": "rope_interleave", "kimi_k2": "rope_interleave"})
    attention_bias: bool = flag(False, hf="attention_bias")
    tie_embeddings: bool = flag(False, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    bos_token_id: int | None = token_id(0, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(1, hf="eos_token_id")
    model_type: str = one_of("deepseek_v3", SPARSE)

    def __post_init__(self):
        check_fields(self)
        check_experts(self)
        check_groups(self, least=1 if self.model_type == "deepseek_v2" else 2)
        check_count(self.n_dense_layers, named(self, "n_dense_layers"))
        if self.d_rope % 2:
            raise DataError(
                f"{named(self, 'd_rope')} must be even, as rotary positions rotate pairs; got {self.d_rope}"
            )

    @property
    def d_head(self) -> int:
        """Width of one query or key."""
        return self.d_nope + self.d_rope

    @property
    def n_rotated(self) -> int:
        """How many coordinates of each query and key are rotated: the last."""
        return self.d_rope

    @property
    def d_shared_mlp(self) -> int:
        """Width of the expert that computes every token."""
        return self.n_shared_experts * self.d_mlp

    @property
    def query_pre_attn_scalar(self) -> float:
        """Scores are divided by its root: the width of a head, less what a stretched rotation takes of it."""
        if self.rope_scaling is None or self.mscale_all_dim is None:
            return self.d_head
        return self.d_head / (0.1 * self.mscale_all_dim * math.log(max(self.rope_scaling.factor, 1)) + 1) ** 4

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        Fields of the training alone are ignored, and so are `ep_size`, `pretraining_tp` and `num_nextn_predict_layers`:
        the layers that predict further tokens are not read, and known by their tensors.
        """
        model_type = hf.get("model_type", "deepseek_v3")
        check_choice(model_type, SPARSE, "model_type")
        is_v2, given = model_type == "deepseek_v2", {name: x for name, x in hf.items() if x is not None}
        required = ("d_model", "n_heads", "d_mlp", "d_dense_mlp", "n_layers", "n_ctx", "d_vocab", "n_experts")
        fields: dict[str, Any] = read_fields(cls, hf, required, model_type)
        of_all = {"head_dim": given.get("qk_rope_head_dim", 64), "num_key_value_heads": fields["n_heads"]}
        check_implemented(
            given, CAUSAL | _REQUIRED | of_all | (_REQUIRED_OF_V2 if is_v2 else _REQUIRED_OF_V3), model_type
        )
        defaults = _DEFAULTS_OF_V2 if is_v2 else {}
        if is_v2 and fields.get("n_active_experts") is None:
            raise DataError(f"{named(cls, 'n_active_experts')} is missing; add it")  # transformers has no default
        if is_v2:
            method = given.get("topk_method", "greedy")
            check_choice(method, ("greedy", "group_limited_greedy"), "topk_method")
            for own in ("n_groups", "n_active_groups") if method == "greedy" else ():  # which then has no effect
                check_dimension(own, fields.get(own) or 1, named(cls, own))
                fields[own] = 1
        fields |= rope_from_hf(hf) | {"mscale_all_dim": mscale_from_hf(hf)}
        return cls(**defaults | fields, model_type=model_type)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        rope = rope_to_hf(self.rope_theta, self.rope_scaling)
        if self.mscale_all_dim is not None and self.rope_scaling is not None:
            rope["mscale_all_dim"] = self.mscale_all_dim
        fields = {"rope_parameters": rope, "num_key_value_heads": self.n_heads}  # as its class repeats keys by these
        if self.model_type == "deepseek_v2":
            fields["topk_method"] = "greedy" if self.n_groups == 1 else "group_limited_greedy"
        classes = {
            "model_type": self.model_type,
            "architectures": [f"{CLASSES.get(self.model_type, 'DeepseekV3')}ForCausalLM"],
        }
        return classes | written_fields(self) | fields


def check_groups(cfg: Any, least: int) -> None:
    """Refuse a config whose groups do not share its experts, have fewer than `least`, or too few for a token."""
    check_multiple(cfg, "n_experts", "n_groups")
    name, n = partial(named, cfg), cfg.n_experts // cfg.n_groups
    if n < least:
        raise DataError(f"{name('n_groups')} {cfg.n_groups} leaves {n} expert in a group; expected {least} or more")
    if cfg.n_active_groups > cfg.n_groups or cfg.n_active_experts > cfg.n_active_groups * n:
        raise DataError(
            f"{name('n_active_groups')} {cfg.n_active_groups} of {name('n_groups')} {cfg.n_groups} must have at least "
            f"{name('n_active_experts')} {cfg.n_active_experts} experts, {n} in each; correct one of them"
        )


class LatentAttention(nn.Module):
    """Causal self-attention whose keys and values come from one narrow vector a token (V2, section 2.1).

    Every key ends with the same rotated vector, which is no part of the latent. The cache holds keys and values, not
    the latents: it is as large as without them, and a step of generation computes no earlier keys again.
    """

    def __init__(self, cfg: DeepseekConfig):
        super().__init__()
        self.n_heads, self.kv_rank = cfg.n_heads, cfg.kv_rank
        self.d_nope, self.d_rope, self.d_value = cfg.d_nope, cfg.d_rope, cfg.d_value
        self.factor = math.sqrt(cfg.d_head / cfg.query_pre_attn_scalar)  # of queries: attention divides them by sqrt(K)
        self.rotated = rotate_interleaved if cfg.interleaved else rotate_half
        d_queries = cfg.n_heads * cfg.d_head
        if cfg.q_rank is None:
            self.q = Linear(cfg.d_model, d_queries, bias=False)
        else:
            self.q_down = Linear(cfg.d_model, cfg.q_rank, cfg.attention_bias)
            self.q_latent = RMSNorm(cfg.q_rank, LATENT_EPS, "B L C")
            self.q = Linear(cfg.q_rank, d_queries, bias=False)
        self.kv_down = Linear(cfg.d_model, cfg.kv_rank + cfg.d_rope, cfg.attention_bias)
        self.kv_latent = RMSNorm(cfg.kv_rank, LATENT_EPS, "B L C")
        self.kv = Linear(cfg.kv_rank, cfg.n_heads * (cfg.d_nope + cfg.d_value), bias=False)
        self.out = Linear(cfg.n_heads * cfg.d_value, cfg.d_model, cfg.attention_bias)
        self.hook_q = HookPoint("B L H K")
        self.hook_k = HookPoint("B L H K")
        self.hook_v = HookPoint("B L H W")
        self.hook_rot_q = HookPoint("B L H K")
        self.hook_rot_k = HookPoint("B L H K")
        self.hook_attn_scores = HookPoint("B H L M")
        self.hook_pattern = HookPoint("B H L M")
        self.hook_z = HookPoint("B L H W")
        self.hook_result = HookPoint("B L H D")

    def forward(
        self,
        x_BLD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        cache: LayerCache | None = None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        cos, sin = rotation
        q_BLHK = self.queries(at_read(x_BLD, read_BR), (at_read(cos, read_BR), at_read(sin, read_BR)))
        k_BMHK, v_BMHW = self.keys_and_values(x_BLD, rotation)
        if cache is not None:
            k_BMHK, v_BMHW = cache.append(k_BMHK, v_BMHW)
        return projected(
            self.hook_z(self.attended(q_BLHK * self.factor, k_BMHK, v_BMHW, mask)), self.out, self.hook_result
        )

    def queries(self, x_BLD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """The rotated queries, [B, L, H, K]."""
        latent = self.q_latent(self.q_down(x_BLD)) if hasattr(self, "q_latent") else x_BLD
        q_BLHK = self.hook_q(self.q(latent).unflatten(-1, (self.n_heads, -1)))
        nope, rope = q_BLHK.split((self.d_nope, self.d_rope), -1)
        return self.hook_rot_q(torch.cat([nope, self.rotated(rope, rotation)], -1))

    def keys_and_values(self, x_BMD: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The rotated keys, [B, M, H, K], and the values, [B, M, H, W].

        The heads' common part is rotated once, unless a hook reads or changes the keys before the rotation.
        """
        latent_BMC, rope = self.kv_down(x_BMD).split((self.kv_rank, self.d_rope), -1)
        kv = self.kv(self.kv_latent(latent_BMC)).unflatten(-1, (self.n_heads, -1))
        nope, v_BMHW = kv.split((self.d_nope, self.d_value), -1)
        rope = rope[:, :, None]
        if self.hook_k.hooked:
            k_BMHK = self.hook_k(torch.cat([nope, rope.expand(*nope.shape[:3], -1)], -1))
            nope, rope = k_BMHK.split((self.d_nope, self.d_rope), -1)
        rope = self.rotated(rope, rotation).expand(*nope.shape[:3], -1)
        return self.hook_rot_k(torch.cat([nope, rope], -1)), self.hook_v(v_BMHW)

    def attended(self, q_BLHK: Tensor, k_BMHK: Tensor, v_BMHW: Tensor, mask: Mask) -> Tensor:
        """The values that each query attends to, weighted and summed, [B, L, H, W].

        torch's kernel for CPUs takes values as wide as keys alone: with zeros it takes 0.4 of the time of the steps.
        """
        if q_BLHK.device.type == "cpu" and not torch.is_grad_enabled() and self.d_value < q_BLHK.shape[-1]:
            v_BMHW = F.pad(v_BMHW, (0, q_BLHK.shape[-1] - self.d_value))
        return attend(q_BLHK, k_BMHK, v_BMHW, mask, self.hook_attn_scores, self.hook_pattern)[..., : self.d_value]


class Deepseek(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    absent = MappingProxyType(dict.fromkeys(("mlp_pre", "mlp_pre_linear", "mlp_post"), ABSENT))
    in_float32 = ("correction_bias",)

    def __init__(self, cfg: DeepseekConfig):
        super().__init__(cfg)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_rope, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(
            Block(cfg, LatentAttention(cfg), SwiGLU(cfg.d_model, cfg.d_dense_mlp, False, cfg.activation))
            if layer < cfg.n_dense_layers
            else Block(cfg, LatentAttention(cfg), SPARSE[cfg.model_type](cfg))
            for layer in range(cfg.n_layers)
        )
        self.ln_final = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def size_of(self, axis: str, short: str, layer: int | None = None) -> int | None:
        """The size of an axis of this point: W of values, C of the latent, F of the MLP of dense layers."""
        cfg = self.cfg
        latent = cfg.q_rank if short == "q_latent" else cfg.kv_rank
        return {"W": cfg.d_value, "C": latent, "F": cfg.d_dense_mlp}.get(axis) or super().size_of(axis, short)


# Translation from and to Hugging Face.

_REQUIRED: dict[str, Any] = {"mlp_bias": False, "moe_layer_freq": 1, "sliding_window": None, "layer_types": None}
_REQUIRED_OF_V3 = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
# DeepSeek's own code divides the weights by their sum with norm_topk_prob, transformers does not
_REQUIRED_OF_V2 = {"scoring_func": "softmax", "norm_topk_prob": False}
_DEFAULTS_OF_V2 = {  # of transformers, where they are not V3's
    "n_shared_experts": 2,
    "n_dense_layers": 0,
    "n_groups": 1,
    "n_active_groups": 1,
    "routed_factor": 1.0,
    "norm_top_k": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MLP = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
SPARSE_NAMES = {
    "blocks.{}.mlp.router": "model.layers.{}.mlp.gate",
    "blocks.{}.mlp.correction_bias": "model.layers.{}.mlp.gate.e_score_correction_bias",
    **{f"blocks.{{}}.mlp.shared.{x}": f"model.layers.{{}}.mlp.shared_experts.{name}" for x, name in _MLP.items()},
    **{f"blocks.{{}}.mlp.experts.{{}}.{x}": f"model.layers.{{}}.mlp.experts.{{}}.{name}" for x, name in _MLP.items()},
}
_LATENT = {
    "q_down": "q_a_proj",
    "q_latent": "q_a_layernorm",
    "q": "q_b_proj",
    "kv_down": "kv_a_proj_with_mqa",
    "kv_latent": "kv_a_layernorm",
    "kv": "kv_b_proj",
}


def modules(cfg: DeepseekConfig) -> dict[str, str]:
    """Our modules by their names in a Hugging Face file."""
    latent = _LATENT if cfg.q_rank is not None else _LATENT | {"q": "q_proj"}
    return (
        LLAMA_NAMES
        | SPARSE_NAMES
        | {f"blocks.{{}}.attn.{x}": f"model.layers.{{}}.self_attn.{latent[x]}" for x in latent}
    )


def shape(cfg: DeepseekConfig) -> ModelShape:
    """The sizes of a `DeepseekConfig`'s model."""
    stack = stack_shape(
        cfg,
        gated=True,
        rotary=True,
        qkv_bias=cfg.attention_bias,
        out_bias=cfg.attention_bias,
        mlp_bias=False,
        norm_shift=False,
        q_rank=cfg.q_rank or 0,
        kv_rank=cfg.kv_rank,
        d_rope=cfg.d_rope,
        d_value=cfg.d_value,
        n_experts=cfg.n_experts,
        n_active_experts=cfg.n_active_experts,
        n_dense_layers=min(cfg.n_dense_layers, cfg.n_layers),
        d_dense_mlp=cfg.d_dense_mlp,
        d_shared_mlp=cfg.d_shared_mlp,
    )
    return decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)


def twin(cfg: DeepseekConfig, names: Mapping[str, HfTensor]) -> HfModel | None:
    """The classes of transformers for this config, and where they compute our points; keys only after the rotation."""
    if cfg.model_type not in CLASSES:
        return None

    def values(_: tuple, output: Tensor) -> Tensor:
        return output.reshape(1, -1, cfg.n_heads, cfg.d_nope + cfg.d_value)[..., cfg.d_nope :]

    found = sparse_twin(CLASSES[cfg.model_type], names)
    values_at = HfPoint("model.layers.{layer}.self_attn.kv_b_proj", values)
    return found._replace(points={**found.points, "v": values_at})


FAMILY = Family(
    model_types=tuple(SPARSE),
    config=DeepseekConfig,
    model=Deepseek,
    shape=shape,
    modules=modules,
    fused=FUSED,
    hf_prefix="model.",
    twin=twin,
    hf_buffers=LLAMA_BUFFERS,
    loads="DeepSeek V2 and V3, Kimi K2",
    refused="DeepSeek V2's norm_topk_prob; the layer that predicts one more token is ignored",
    hub_examples=("deepseek-ai/DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V3", "moonshotai/Moonlight-16B-A3B"),
)
