"""Gemma 1, 2 and 3, written by hand (Gemma Team 2024a, 2024b, 2025): the text model, without the vision tower.

A decoder: token embedding times sqrt(D), pre-norm blocks of causal attention with rotary positions and fewer key/value
heads than query heads, a gated MLP (GeGLU), a final norm, and a head tied to the token embedding. Norms multiply with
1 + w. Gemma 2 adds norms after either sublayer, a window in every other layer, and soft caps of scores and logits.
Gemma 3 has norms of queries and keys in place of the caps, and another base of rotations in the layers with a window.

`embed` is the embedding after its factor, so it equals `resid_pre.0`. `attn_out` and `mlp_out` are after the
sublayer's norm, so `resid_pre + attn_out = resid_mid`, `resid_mid + mlp_out = resid_post` and
`resid_post.i = resid_pre.{i+1}` hold; the heads' `result`s sum to the input of that norm. `q` and `k` are before their
norms. `attn_scores` are after the soft cap: their softmax is `attn_pattern`. Every point has its name in
TransformerLens; its axes are given where it is made. Exact against `transformers`; the translation of its files is at
the end.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads,
K d_head, F d_mlp, V vocab.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

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
    check_dimension,
    check_fields,
    check_implemented,
    check_multiple,
    check_pairs,
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
from probekit.models.decoder import LLAMA_BUFFERS, LLAMA_NAMES, PRE_NORM, DecoderOnly
from probekit.models.family import (
    LOGITS,
    Family,
    HfModel,
    HfPoint,
    HfTensor,
    weight_points,
)
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    Linear,
    Mask,
    SwiGLU,
    at_read,
    attend,
    causal_mask,
    projected,
    softmax,
)
from probekit.models.positional import RopeScaling, Rotary, rotate_half
from probekit.models.rope_fields import rope_by_type_from_hf, rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape

# How many scores capped attention holds at once (16 MB) where no hook reads them. With 2,048 tokens and 8 heads of 256:
# 0.53 of the time of transformers' eager attention; 0.64 without a limit, 1.24 with a limit of 100,000.
SCORES = 4_000_000


class Variant(NamedTuple):
    """What differs between the generations.

    Attributes:
        config: the class of transformers for its config.
        model: and for its model.
        norms: the norms of a block by our name, in the order of its forward -> theirs.
        qk_norm: whether queries and keys have norms.
        pattern: without layer_types, every so many layers one has no window.
        defaults: what a field that a file leaves out means: our field -> value.
    """

    config: str
    model: str
    norms: Mapping[str, str]
    qk_norm: bool
    pattern: int
    defaults: Mapping[str, Any]


_FOUR_NORMS = {
    "ln1": "input_layernorm",
    "ln1_post": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ln2_post": "post_feedforward_layernorm",
}
_DEFAULTS = {
    "n_heads": 8,
    "n_kv_heads": 4,
    "d_head": 256,
    "n_ctx": 8192,
    "d_vocab": 256_000,
    "query_pre_attn_scalar": 256,
    "attn_scores_soft_cap": None,
    "output_logits_soft_cap": None,
    "sliding_window": 4096,
}
VARIANTS = {  # by model_type
    "gemma": Variant(
        "GemmaConfig",
        "GemmaForCausalLM",
        {"ln1": "input_layernorm", "ln2": "post_attention_layernorm"},
        qk_norm=False,
        pattern=1,
        defaults=_DEFAULTS | {"n_heads": 16, "n_kv_heads": 16, "sliding_window": None},
    ),
    "gemma2": Variant(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        _FOUR_NORMS,
        qk_norm=False,
        pattern=2,
        defaults=_DEFAULTS | {"attn_scores_soft_cap": 50.0, "output_logits_soft_cap": 30.0},
    ),
    "gemma3_text": Variant(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        _FOUR_NORMS,
        qk_norm=True,
        pattern=6,
        defaults=_DEFAULTS | {"n_ctx": 131_072, "d_vocab": 262_208},
    ),
}


@dataclass(frozen=True)
class GemmaConfig:
    """The sizes and options of a Gemma; the defaults are those of Gemma 2 2B.

    Attributes:
        n_kv_heads: heads of keys and values; each serves n_heads / n_kv_heads heads of queries.
        rope_theta: base of the rotations, in layers without a window alone if there is a `local_rope_theta`.
        rope_scaling: how rotations are stretched to a longer context, in the same layers; None for no stretching.
        local_rope_theta: base of the rotations in layers with a window; None for that of the others.
        query_pre_attn_scalar: scores are divided by its root, whatever the width of a head.
        attn_scores_soft_cap: scores approach plus and minus this number; None for no cap.
        output_logits_soft_cap: logits do; None for no cap.
        sliding_window: how many tokens a token sees, itself included, in layers with a window.
        layer_types: "sliding_attention" (with a window) or "full_attention" for each layer.
        init_std: standard deviation of normal initial weights.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = size(2304, hf="hidden_size")
    n_heads: int = size(8, hf="num_attention_heads")
    n_kv_heads: int = size(4, hf="num_key_value_heads")
    d_head: int = size(256, hf="head_dim")
    d_mlp: int = size(9216, hf="intermediate_size")
    n_layers: int = size(26, hf="num_hidden_layers")
    n_ctx: int = size(8192, hf="max_position_embeddings")
    d_vocab: int = size(256000, hf="vocab_size")
    activation: str = one_of("gelu_pytorch_tanh", ACTIVATIONS, hf="hidden_activation")
    norm_eps: float = real(1e-6, hf="rms_norm_eps")
    rope_theta: float = real(10000.0)
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float | None = real(None, formula="rope_local_base_freq", optional=True)
    query_pre_attn_scalar: float = real(256, hf="query_pre_attn_scalar")
    attn_scores_soft_cap: float | None = real(50.0, hf="attn_logit_softcapping", optional=True)
    output_logits_soft_cap: float | None = real(30.0, hf="final_logit_softcapping", optional=True)
    sliding_window: int | None = size(4096, hf="sliding_window", optional=True)
    layer_types: tuple[str, ...] = unchecked(13 * (SLIDING, FULL), hf="layer_types")
    tie_embeddings: bool = flag(True, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    bos_token_id: int | None = token_id(2, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(1, hf="eos_token_id")
    model_type: str = one_of("gemma2", VARIANTS)

    def __post_init__(self):
        check_fields(self)
        check_multiple(self, "n_heads", "n_kv_heads")
        check_pairs(self)
        settle_windows(self)
        # what a generation has not, such as soft caps of scores in Gemma 3, its config.json cannot say
        said = _fields(self.to_hf())
        if wrong := [name for name, value in vars(self).items() if said[name] != value]:
            got = f"{getattr(self, wrong[0])!a:.60}"
            raise DataError(
                f"{named(self, wrong[0])} of {self.model_type} can only be {said[wrong[0]]!a:.60}; got {got}"
            )

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        Of a model with a vision tower (gemma3) it is that of the text model, gemma3_text.
        """
        return cls(**_fields(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        fields = written_fields(self)
        fields["rope_parameters"] = rope_to_hf(self.rope_theta, self.rope_scaling)
        if self.local_rope_theta is not None:
            fields["rope_parameters"] = {
                FULL: fields["rope_parameters"],
                SLIDING: rope_to_hf(self.local_rope_theta, None),
            }
        if self.model_type == "gemma":
            fields["hidden_act"] = fields.pop("hidden_activation")
            fields = {name: value for name, value in fields.items() if name not in _NOT_IN_GEMMA_1}
        return {"model_type": self.model_type, "architectures": [VARIANTS[self.model_type].model]} | fields


class OnePlusRMSNorm(nn.Module):
    """Divide by the root of (mean square + eps), then multiply with 1 + w; in float32 inside.

    `hook_scale` is that root; `hook_normalized` is the output, gain included.
    """

    def __init__(self, width: int, eps: float, axes: str = "B L D"):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.hook_scale = HookPoint(f"{axes[:-1]}1")
        self.hook_normalized = HookPoint(axes)

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = self.hook_scale((x32.square().mean(-1, keepdim=True) + self.eps).sqrt())
        return self.hook_normalized((x32 / scale * (1 + self.weight.to(x32.dtype))).to(x.dtype))


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """The soft cap, cap tanh(x / cap), which overwrites x where no gradient needs it; x itself without a cap."""
    if cap is None:
        return x
    return cap * torch.tanh(x / cap) if torch.is_grad_enabled() else x.div_(cap).tanh_().mul_(cap)


def capped_attend(
    q_BLHK: Tensor,
    k_BMGK: Tensor,
    v_BMGK: Tensor,
    mask: Mask,
    hook_scores: HookPoint,
    hook_pattern: HookPoint,
    cap: float,
) -> Tensor:
    """`layers.attend` with a soft cap of the scores before the mask, [B, L, H, K]: no fused kernel has one.

    Heads of queries that share keys are one product, so keys and values are not repeated. Without hooks on scores and
    pattern, only those of some queries are in memory at once.
    """
    assert mask is not None, "every model with a cap is causal"
    batch, length, n_heads, d_head = q_BLHK.shape
    k_BGKM, v_BGMK = k_BMGK.permute(0, 2, 3, 1), v_BMGK.transpose(1, 2)
    unseen_BLM = ~(mask if isinstance(mask, Tensor) else causal_mask(q_BLHK.new_ones(1, length)))
    hooked = hook_scores.hooked or hook_pattern.hooked
    rows = length if hooked else max(1, SCORES // (batch * n_heads * k_BMGK.shape[1]))
    parts = []
    for q_BNHK, unseen_BNM in zip(q_BLHK.split(rows, 1), unseen_BLM.split(rows, 1), strict=True):
        q = rearrange(q_BNHK / math.sqrt(d_head), "b n (g r) k -> b g (r n) k", g=k_BMGK.shape[2])
        scores = rearrange(q @ k_BGKM, "b g (r n) m -> b (g r) n m", n=q_BNHK.shape[1])
        scores_BHNM = hook_scores(soft_cap(scores, cap).masked_fill_(unseen_BNM[:, None], -math.inf))
        pattern_BHNM = hook_pattern(softmax(scores_BHNM).to(v_BMGK.dtype))
        z = rearrange(pattern_BHNM, "b (g r) n m -> b g (r n) m", g=k_BMGK.shape[2]) @ v_BGMK
        parts.append(rearrange(z, "b g (r n) k -> b n (g r) k", n=q_BNHK.shape[1]))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class Attention(nn.Module):
    """Causal grouped-query self-attention over rotated queries and keys, normalised before in Gemma 3."""

    def __init__(self, cfg: GemmaConfig):
        super().__init__()
        self.d_head = cfg.d_head
        self.q = Linear(cfg.d_model, cfg.n_heads * cfg.d_head, bias=False)
        self.k = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, bias=False)
        self.v = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, bias=False)
        self.out = Linear(cfg.n_heads * cfg.d_head, cfg.d_model, bias=False)
        normed = VARIANTS[cfg.model_type].qk_norm
        self.q_norm = OnePlusRMSNorm(cfg.d_head, cfg.norm_eps, "B L H K") if normed else nn.Identity()
        self.k_norm = OnePlusRMSNorm(cfg.d_head, cfg.norm_eps, "B L G K") if normed else nn.Identity()
        self.factor = math.sqrt(cfg.d_head / cfg.query_pre_attn_scalar)  # of queries: attention divides them by sqrt(K)
        cap = cfg.attn_scores_soft_cap
        self.attend = attend if cap is None else partial(capped_attend, cap=cap)
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
        parts = self.q(at_read(x_BLD, read_BR)), self.k(x_BLD), self.v(x_BLD)
        q, k, v = (rearrange(part, "b l (h k) -> b l h k", k=self.d_head) for part in parts)
        q_BLHK, k_BMGK, v_BMGK = self.q_norm(self.hook_q(q)), self.k_norm(self.hook_k(k)), self.hook_v(v)
        cos, sin = rotation
        q_BLHK = self.hook_rot_q(rotate_half(q_BLHK, (at_read(cos, read_BR), at_read(sin, read_BR))))
        k_BMGK = self.hook_rot_k(rotate_half(k_BMGK, rotation))
        if cache is not None:
            k_BMGK, v_BMGK = cache.append(k_BMGK, v_BMGK)
        q_BLHK = q_BLHK * self.factor
        z_BLHK = self.hook_z(self.attend(q_BLHK, k_BMGK, v_BMGK, mask, self.hook_attn_scores, self.hook_pattern))
        return projected(z_BLHK, self.out, self.hook_result)


class Block(nn.Module):
    """x + ln1_post(attn(ln1(x))), then x + ln2_post(mlp(ln2(x))); Gemma 1 has no norms after the sublayers."""

    def __init__(self, cfg: GemmaConfig):
        super().__init__()
        norms = VARIANTS[cfg.model_type].norms

        def norm(name: str) -> nn.Module:
            return OnePlusRMSNorm(cfg.d_model, cfg.norm_eps) if name in norms else nn.Identity()

        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = norm("ln1")
        self.attn = Attention(cfg)
        self.ln1_post = norm("ln1_post")
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = norm("ln2")
        self.mlp = SwiGLU(cfg.d_model, cfg.d_mlp, activation=cfg.activation)
        self.ln2_post = norm("ln2_post")
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
        attn = self.attn(self.ln1(resid_pre), rotation, at_read(mask, read_BR), cache, read_BR)
        attn_out = self.hook_attn_out(self.ln1_post(attn))
        resid_mid = self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out)
        mlp_out = self.hook_mlp_out(self.ln2_post(self.mlp(self.ln2(resid_mid))))
        return self.hook_resid_post(resid_mid + mlp_out)


class Gemma(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    initial_gain = 0.0  # norms multiply with 1 + w

    def __init__(self, cfg: GemmaConfig):
        super().__init__(cfg)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.rope_theta, cfg.rope_scaling)
        if cfg.local_rope_theta is not None:
            self.local_rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.local_rope_theta)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = OnePlusRMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def entered(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The tokens' rows of the table times sqrt(D), a factor first rounded to the weights' type, [B, L, D]."""
        factor = torch.tensor(self.cfg.d_model**0.5, dtype=torch.float32)  # in bfloat16 sqrt(3072) becomes 55.5
        return self.hook_embed(self.embed(tokens) * factor.to(self.embed.weight.dtype))

    def window_of(self, layer: int) -> int | None:
        """`sliding_window` in the layers that have one."""
        return self.cfg.sliding_window if self.cfg.layer_types[layer] == SLIDING else None

    def head(self, normalized_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the final norm's output, soft-capped where the config says so."""
        return soft_cap(super().head(normalized_BLD), self.cfg.output_logits_soft_cap)


# Translation from and to Hugging Face.

_NOT_IN_GEMMA_1 = (
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "sliding_window",
    "layer_types",
)


def _fields(hf: Mapping[str, Any]) -> dict[str, Any]:
    model_type = hf.get("model_type", "gemma2")
    check_choice(model_type, VARIANTS, "model_type")
    _check_implemented(hf, model_type)
    # every published file gives the required sizes but n_ctx
    hf = {"max_position_embeddings": VARIANTS[model_type].defaults["n_ctx"], **hf}
    given = read_fields(GemmaConfig, hf, ("d_model", "d_mlp", "n_layers", "n_ctx"))
    fields = {**VARIANTS[model_type].defaults, **given}
    if model_type == "gemma":
        fields |= _of_first_generation(hf, fields)
    if model_type == "gemma3_text":  # before transformers 5 its layers with a window had a base of their own
        rope = rope_by_type_from_hf(hf, ("rope_theta", 1_000_000.0), ("rope_local_base_freq", 10_000.0))
    else:
        rope = rope_from_hf(hf) | {"local_rope_theta": None}
    return fields | rope | {"layer_types": _layer_types(hf, model_type), "model_type": model_type}


def _check_implemented(hf: Mapping[str, Any], model_type: str) -> None:
    required: dict[str, Any] = CAUSAL | {"attention_bias": False}
    if hf.get("use_bidirectional_attention"):  # null means false
        required["use_bidirectional_attention"] = False
    if model_type != "gemma2":
        required["attn_logit_softcapping"] = None
    if model_type == "gemma":
        required |= {"final_logit_softcapping": None, "layer_types": None}
    check_implemented(hf, required, model_type)


def _of_first_generation(hf: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Gemma 1 calls its activation hidden_act; in old files "gelu" there means the tanh approximation."""
    activation = hf.get("hidden_act", "gelu_pytorch_tanh")
    return {
        "activation": "gelu_pytorch_tanh" if activation == "gelu" else activation,
        "query_pre_attn_scalar": fields["d_head"],
        "sliding_window": None,
    }


def _layer_types(hf: Mapping[str, Any], model_type: str) -> tuple[str, ...]:
    given, pattern = given_layer_types(hf), VARIANTS[model_type].pattern
    if given is not None:  # transformers then does not look at the pattern
        return given
    if model_type == "gemma3_text":
        pattern = hf.get("sliding_window_pattern", pattern)
        check_dimension("n_layers", pattern, "sliding_window_pattern")
    return tuple(SLIDING if (layer + 1) % pattern else FULL for layer in range(hf["num_hidden_layers"]))


def modules(cfg: GemmaConfig) -> dict[str, str]:
    """Our modules by their names in a Hugging Face file."""
    norms = VARIANTS[cfg.model_type].norms
    return LLAMA_NAMES | {f"blocks.{{}}.{ours}": f"model.layers.{{}}.{theirs}" for ours, theirs in norms.items()}


def shape(cfg: GemmaConfig) -> ModelShape:
    """The sizes of a `GemmaConfig`'s model."""
    variant = VARIANTS[cfg.model_type]
    none = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "norm_shift"), False)
    stack = stack_shape(
        cfg,
        gated=True,
        rotary=True,
        norms=tuple(variant.norms),
        qk_norm="K" if variant.qk_norm else "",
        **none,
    )
    decoder = decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)
    return replace(decoder, embedding_sums=1)  # the embedding is multiplied with sqrt(D)


def _by_position(_: tuple, output: Any) -> Tensor:
    return output.transpose(1, 2)  # [B, H, L, K]


def twin(cfg: GemmaConfig, names: Mapping[str, HfTensor]) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    points = weight_points(names, PRE_NORM)
    points |= {x: points[x]._replace(take=_by_position) for x in ("q_norm", "k_norm") if x in points}
    points[LOGITS] = HfPoint("", lambda _, output: output.logits)  # after the soft cap, which is not in lm_head
    variant = VARIANTS[cfg.model_type]
    return HfModel(variant.config, variant.model, points)


FAMILY = Family(
    model_types=tuple(VARIANTS),
    config=GemmaConfig,
    model=Gemma,
    shape=shape,
    modules=modules,
    hf_prefix="model.",
    twin=twin,
    hf_buffers=LLAMA_BUFFERS,
    loads="Gemma, Gemma 2, Gemma 3 (text)",
    refused="bidirectional attention (EmbeddingGemma)",
    hub_examples=("google/gemma-2-2b", "google/gemma-2-9b", "google/gemma-3-1b-pt", "google/gemma-3-4b-it"),
)
