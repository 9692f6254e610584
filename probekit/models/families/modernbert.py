"""ModernBERT, written by hand (Warner et al. 2024, "Smarter, Better, Faster, Longer").

An encoder: the token embedding under a norm, then pre-norm blocks of attention with rotary positions and a gated MLP
(GeGLU), a final norm, and a head that predicts masked tokens. Every few layers a token attends to all others; in the
layers between to its neighbours on either side alone, with another base of the rotations. The first block has no
attention norm, because its input is normed already: there is no `ln1_normalized.0`. Every point has its name in
TransformerLens; its axes are given where it is made. Exact against `transformers`; the translation of its files
is at the end.

Identities: resid_pre + attn_out = resid_mid; resid_mid + mlp_out = resid_post, which is the next block's resid_pre.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.config_fields import (
    FULL,
    SLIDING,
    SharedWidth,
    check_count,
    check_dimension,
    check_fields,
    check_implemented,
    check_pairs,
    flag,
    given_layer_types,
    one_of,
    read_fields,
    real,
    settle_windows,
    size,
    token_id,
    unchecked,
    written_fields,
)
from probekit.models.family import Family, HfModel, HfTensor, equal_part, parts_by_names, points_inside, weight_points
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    LayerNorm,
    Linear,
    Mask,
    at_read,
    attend,
    in_two_sided_window,
    linear,
    projected,
    truncated_normal,
)
from probekit.models.masked_lm import MaskedLM, MLMHead, encoder_twin, parts_named
from probekit.models.positional import Rotary, rotate_half
from probekit.models.rope_fields import rope_by_type_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, stack_shape

Rotation = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ModernBertConfig(SharedWidth):
    """The sizes and options of a ModernBERT; the defaults are those of the base model.

    Attributes:
        head_activation: of the head for masked tokens.
        rope_theta: base of the rotations in layers of full attention.
        local_rope_theta: base of the rotations in layers with a window.
        sliding_window: how many tokens a token sees on either side, itself included.
        layer_types: "full_attention" or "sliding_attention" for each layer.
        attn_bias: whether the attention's projections have biases.
        head_bias: whether the head's first product has a bias.
        unembed_bias: whether the logits have a bias.
        init_cutoff: initial weights are normal, truncated at this many standard deviations.
        pad_token_id: of no effect here; `transformers` needs an id within its vocabulary.
        mlm_head: whether there is the head that predicts masked tokens.
        head_dim: width of an attention head where it is not d_model / n_heads; `d_head` is the width in either case.
    """

    d_model: int = size(768, hf="hidden_size")
    n_heads: int = size(12, hf="num_attention_heads")
    d_mlp: int = size(1152, hf="intermediate_size")
    n_layers: int = size(22, hf="num_hidden_layers")
    n_ctx: int = size(8192, hf="max_position_embeddings")
    d_vocab: int = size(50368, hf="vocab_size")
    activation: str = one_of("gelu", ACTIVATIONS, hf="hidden_activation")
    head_activation: str = one_of("gelu", ACTIVATIONS, hf="classifier_activation")
    norm_eps: float = real(1e-5, hf="norm_eps")
    rope_theta: float = real(160_000.0)
    local_rope_theta: float = real(10_000.0)
    sliding_window: int = size(65, formula="local_attention // 2 + 1")
    layer_types: tuple[str, ...] = unchecked(tuple((FULL, SLIDING)[i % 3 > 0] for i in range(22)), hf="layer_types")
    attn_bias: bool = flag(False, hf="attention_bias")
    mlp_bias: bool = flag(False, hf="mlp_bias")
    norm_bias: bool = flag(False, hf="norm_bias")
    head_bias: bool = flag(False, hf="classifier_bias")
    unembed_bias: bool = flag(True, hf="decoder_bias")
    tie_embeddings: bool = flag(True, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    init_cutoff: float = real(2.0, hf="initializer_cutoff_factor")
    pad_token_id: int | None = token_id(50283, hf="pad_token_id")
    mlm_head: bool = flag(True)
    head_dim: int | None = unchecked(None, hf="head_dim", later=True)

    def __post_init__(self):
        check_fields(self)
        self.settle_head_dim()
        check_pairs(self)
        settle_windows(self)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier."""
        check_implemented(hf, {"rope_scaling": None, "pruned_heads": {}}, "modernbert")
        given = read_fields(cls, hf, ("d_model", "n_heads", "n_layers", "d_vocab"))
        (mlm_head,) = parts_named(hf, ARCHITECTURES, "ModernBertForMaskedLM", "model.model")
        eps = given.get("norm_eps", 1e-5)
        # older files have both; transformers reads norm_eps alone
        if "layer_norm_eps" in hf and hf["layer_norm_eps"] != eps:
            raise DataError(f"layer_norm_eps is {hf['layer_norm_eps']!a:.60}, but norm_eps {eps!a:.60}; leave one out")
        if given.get("init_cutoff", 2.0) is None:
            given["init_cutoff"] = 3.0  # what transformers takes null for
        # rope_theta and partial_rotary_factor outside of rope_parameters have no effect in transformers
        read = {name: hf[name] for name in ("rope_parameters", "global_rope_theta", "local_rope_theta") if name in hf}
        rope = rope_by_type_from_hf(read, ("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0), ())
        del rope["rope_scaling"]
        for each in (hf.get("rope_parameters") or {}).values():
            check_implemented(each or {}, {"rope_type": "default"}, "modernbert")  # transformers fails at null
        return cls(**given | rope | _layers(hf), mlm_head=mlm_head)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        thetas = {FULL: self.rope_theta, SLIDING: self.local_rope_theta}
        return {
            "model_type": "modernbert",
            "architectures": ["ModernBertForMaskedLM" if self.mlm_head else "ModernBertModel"],
            **written_fields(self),
            "local_attention": 2 * (self.sliding_window - 1),
            "rope_parameters": {kind: rope_to_hf(theta, None) for kind, theta in thetas.items()},
        }


class GainNorm(nn.Module):
    """LayerNorm without a shift: centre, divide by the root of (variance + eps), then gain; in float32 inside.

    `hook_scale` is that root, [B, L, 1]; `hook_normalized` is the output, gain included.
    """

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(d_model))
        self.hook_scale = HookPoint("B L 1")
        self.hook_normalized = HookPoint("B L D")

    def forward(self, x_BLD: Tensor) -> Tensor:
        if not self.hook_scale.hooked:
            return self.hook_normalized(F.layer_norm(x_BLD, self.weight.shape, self.weight, None, self.eps))
        x32_BLD = x_BLD.to(torch.promote_types(x_BLD.dtype, torch.float32))
        centred_BLD = x32_BLD - x32_BLD.mean(-1, keepdim=True)
        scale_BL1 = self.hook_scale((centred_BLD.square().mean(-1, keepdim=True) + self.eps).sqrt())
        return self.hook_normalized((centred_BLD / scale_BL1 * self.weight).to(x_BLD.dtype))


def norm_of(cfg: ModernBertConfig) -> LayerNorm | GainNorm:
    """A norm as the config has them all."""
    return (LayerNorm if cfg.norm_bias else GainNorm)(cfg.d_model, cfg.norm_eps)


class Attention(nn.Module):
    """Self-attention over rotated queries and keys, all projected by one matrix."""

    def __init__(self, cfg: ModernBertConfig):
        super().__init__()
        self.n_heads = cfg.n_heads
        self.qkv = Linear(cfg.d_model, 3 * cfg.n_heads * cfg.d_head, cfg.attn_bias)
        self.out = Linear(cfg.n_heads * cfg.d_head, cfg.d_model, cfg.attn_bias)
        self.hook_q = HookPoint("B L H K")
        self.hook_k = HookPoint("B L H K")
        self.hook_v = HookPoint("B L H K")
        self.hook_rot_q = HookPoint("B L H K")
        self.hook_rot_k = HookPoint("B L H K")
        self.hook_attn_scores = HookPoint("B H L M")
        self.hook_pattern = HookPoint("B H L M")
        self.hook_z = HookPoint("B L H K")
        self.hook_result = HookPoint("B L H D")

    def forward(self, x_BLD: Tensor, rotation: Rotation, mask: Mask, read_BR: Tensor | None = None) -> Tensor:
        q, k, v = self._qkv(x_BLD, read_BR)
        q_BLHK, k_BMHK, v_BMHK = self.hook_q(q), self.hook_k(k), self.hook_v(v)
        cos, sin = rotation
        q_BLHK = self.hook_rot_q(rotate_half(q_BLHK, (at_read(cos, read_BR), at_read(sin, read_BR))))
        k_BMHK = self.hook_rot_k(rotate_half(k_BMHK, rotation))
        z_BLHK = self.hook_z(attend(q_BLHK, k_BMHK, v_BMHK, mask, self.hook_attn_scores, self.hook_pattern))
        return projected(z_BLHK, self.out, self.hook_result)

    def _qkv(self, x_BLD: Tensor, read_BR: Tensor | None) -> Iterable[Tensor]:
        """Queries, keys and values, [B, L, H, K] each; queries of the read positions alone, if these are given."""
        if read_BR is None:
            return rearrange(self.qkv(x_BLD), "b l (qkv h k) -> qkv b l h k", qkv=3, h=self.n_heads)
        weights = self.qkv.weight.chunk(3)
        biases = (None, None, None) if self.qkv.bias is None else self.qkv.bias.chunk(3)
        inputs = at_read(x_BLD, read_BR), x_BLD, x_BLD
        parts = (linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))
        return [rearrange(part, "b l (h k) -> b l h k", h=self.n_heads) for part in parts]


class MLP(nn.Module):
    """GeGLU (Shazeer 2020): (act(x W_gate) * x W_up) W_down, with gate and up in one matrix.

    `hook_pre` is x W_gate, `hook_pre_linear` is x W_up, and `hook_post` is act(x W_gate) * x W_up.
    """

    def __init__(self, cfg: ModernBertConfig):
        super().__init__()
        self.activation = ACTIVATIONS[cfg.activation]
        self.gate_up = Linear(cfg.d_model, 2 * cfg.d_mlp, cfg.mlp_bias)
        self.down = Linear(cfg.d_mlp, cfg.d_model, cfg.mlp_bias)
        self.hook_pre = HookPoint("B L F")
        self.hook_pre_linear = HookPoint("B L F")
        self.hook_post = HookPoint("B L F")

    def forward(self, x_BLD: Tensor) -> Tensor:
        gate_BLF, up_BLF = self.gate_up(x_BLD).chunk(2, -1)
        return self.down(self.hook_post(self.activation(self.hook_pre(gate_BLF)) * self.hook_pre_linear(up_BLF)))


class Block(nn.Module):
    """Pre-norm: x + attn(ln1(x)), then x + mlp(ln2(x)); the first block has no ln1."""

    def __init__(self, cfg: ModernBertConfig, layer: int):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = norm_of(cfg) if layer else nn.Identity()
        self.attn = Attention(cfg)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = norm_of(cfg)
        self.mlp = MLP(cfg)
        self.hook_mlp_out = HookPoint("B L D")
        self.hook_resid_post = HookPoint("B L D")

    def forward(self, resid_BLD: Tensor, rotation: Rotation, mask: Mask, read_BR: Tensor | None = None) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn_out = self.hook_attn_out(self.attn(self.ln1(resid_pre), rotation, at_read(mask, read_BR), read_BR))
        resid_mid = self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out)
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(resid_mid)))
        return self.hook_resid_post(resid_mid + mlp_out)


class ModernBert(MaskedLM):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    absent = dict.fromkeys(("ln1_normalized", "ln1_scale"), "its input is the embedding norm's output, ln_embed")

    def __init__(self, cfg: ModernBertConfig):
        super().__init__(cfg)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.rope_theta)
        self.local_rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.local_rope_theta)
        self.hook_embed = HookPoint("B L D")
        self.ln_embed = norm_of(cfg)
        self.blocks = nn.ModuleList(Block(cfg, i) for i in range(cfg.n_layers))
        self.ln_final = norm_of(cfg)
        self.head = None
        if cfg.mlm_head:
            dense = Linear(cfg.d_model, cfg.d_model, cfg.head_bias)
            self.head = MLMHead(dense, cfg.head_activation, norm_of(cfg), cfg.d_vocab if cfg.unembed_bias else 0)
        self.unembed = Embedding(cfg.d_vocab, cfg.d_model) if cfg.mlm_head and not cfg.tie_embeddings else None

    def entered(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The input of the first block, [B, L, D]."""
        return self.ln_embed(self.hook_embed(self.embed(tokens)))

    def seen_by_layer(self, mask: Mask, position_ids: Tensor) -> list[tuple]:
        """What each block takes besides the stream: the rotations, and the mask narrowed to its window."""
        windowed = in_two_sided_window(mask, self.cfg.sliding_window, position_ids)
        of_type = {FULL: (self.rotary(position_ids), mask), SLIDING: (self.local_rotary(position_ids), windowed)}
        return [of_type[kind] for kind in self.cfg.layer_types]

    def left(self, resid_BLD: Tensor) -> Tensor:
        """The final norm's output, [B, L, D]."""
        return self.ln_final(resid_BLD)

    def window_of(self, layer: int) -> int | None:
        """`sliding_window` in the layers that have one."""
        return self.cfg.sliding_window if self.cfg.layer_types[layer] == SLIDING else None

    def drawn(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Normal, truncated, and narrower by sqrt(2 layers) where a matrix writes to the stream, or is the head's."""
        cfg = self.cfg
        writes = name.endswith(("attn.out.weight", "mlp.down.weight")) or name.startswith(("head", "unembed"))
        std = cfg.init_std / (2 * cfg.n_layers) ** 0.5 if writes else cfg.init_std
        return truncated_normal(shape, std, cfg.init_cutoff, generator)


# Translation from and to Hugging Face.

ARCHITECTURES = {"ModernBertModel": (False,), "ModernBertForMaskedLM": (True,)}  # class -> whether it has the head


def _layers(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The window and the layers that have it: a token sees itself and local_attention / 2 tokens on either side."""
    both, every = hf.get("local_attention", 128), hf.get("global_attn_every_n_layers", 3)
    check_count(both, "local_attention")
    check_dimension("n_layers", every, "global_attn_every_n_layers")
    types = tuple(SLIDING if i % every else FULL for i in range(hf["num_hidden_layers"]))
    given = given_layer_types(hf) or types
    if "global_attn_every_n_layers" in hf and given != types:
        raise DataError(
            f"layer_types must be those of global_attn_every_n_layers {every}; leave one out, or correct {given!a:.200}"
        )
    return {"sliding_window": both // 2 + 1, "layer_types": given}


_NAMES = {  # our module -> the file's
    "embed": "model.embeddings.tok_embeddings",
    "ln_embed": "model.embeddings.norm",
    "blocks.{}.ln1": "model.layers.{}.attn_norm",
    "blocks.{}.attn.qkv": "model.layers.{}.attn.Wqkv",
    "blocks.{}.attn.out": "model.layers.{}.attn.Wo",
    "blocks.{}.ln2": "model.layers.{}.mlp_norm",
    "blocks.{}.mlp.gate_up": "model.layers.{}.mlp.Wi",
    "blocks.{}.mlp.down": "model.layers.{}.mlp.Wo",
    "ln_final": "model.final_norm",
    "head.dense": "head.dense",
    "head.ln": "head.norm",
    "head": "decoder",
    "unembed": "decoder",
}


def shape(cfg: ModernBertConfig) -> ModelShape:
    """The sizes of a `ModernBertConfig`'s model."""
    D, V, norm = cfg.d_model, cfg.d_vocab, cfg.d_model * (1 + cfg.norm_bias)
    outside = {"token embedding": V * D, "embedding norm": norm, "final norm": norm}
    if cfg.mlm_head:
        own = 0 if cfg.tie_embeddings else V * D
        outside |= {"head": D * D + D * cfg.head_bias + norm + V * cfg.unembed_bias + own}
    biases = {"qkv_bias": cfg.attn_bias, "out_bias": cfg.attn_bias, "mlp_bias": cfg.mlp_bias}
    norms = {"norm_shift": cfg.norm_bias, "norm_centred": True, "n_left_out": 1}
    return ModelShape(
        "modernbert",
        (stack_shape(cfg, gated=True, rotary=True, **biases, **norms),),
        V,
        cfg.n_ctx,
        outside,
        embedding_sums=0,
        outer_norms=3 if cfg.mlm_head else 2,
        head_products=D * D + V * D if cfg.mlm_head else 0,
        logits=V if cfg.mlm_head else 0,
        last_norms=("ln_final", "head_ln") if cfg.mlm_head else ("ln_final",),
        cached=False,
    )


def twin(cfg: ModernBertConfig, names: Mapping[str, HfTensor]) -> HfModel | None:
    """The classes of transformers for this config, and where they compute our points."""
    prefix, headless = ("model.", "") if cfg.mlm_head else ("", "model.")
    points = weight_points(names, {"resid_mid": "ln2"}, headless)
    parts = {point: ("attn.Wqkv", equal_part(i, 3)) for i, point in enumerate("qkv")}
    parts |= {point: ("mlp.Wi", equal_part(i, 2)) for i, point in enumerate(("mlp_pre", "mlp_pre_linear"))}
    return encoder_twin("ModernBert", cfg, points | points_inside(f"{prefix}layers.{{layer}}", parts), "decoder")


FAMILY = Family(
    model_types=("modernbert",),
    config=ModernBertConfig,
    model=ModernBert,
    shape=shape,
    modules=lambda cfg: _NAMES,
    hf_prefix="model.",
    twin=twin,
    hf_parts=parts_by_names(mlm_head=("head.", "decoder.")),
    loads="ModernBERT",
    refused="classification heads, rope scaling",
    hub_examples=("answerdotai/ModernBERT-base", "answerdotai/ModernBERT-large"),
)
