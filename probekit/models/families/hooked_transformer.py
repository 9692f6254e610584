"""The plain transformer of toy models and of compiled programs, in the files of TransformerLens's HookedTransformer.

A token plus learned position embedding, pre-norm blocks of attention and an MLP, or of attention alone, and a head of
its own. The norms may be missing, as in programs that Tracr compiled (Lindner et al. 2023), and the attention may see
both sides. A folder holds the class's `state_dict()` and the fields of its config by their own names.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.cache import KeyValueCache, LayerCache
from probekit.models.config_fields import (
    CAUSAL,
    Unimplemented,
    check_fields,
    check_flag,
    check_implemented,
    flag,
    one_of,
    read_fields,
    real,
    size,
    token_id,
    token_ids,
    written_fields,
)
from probekit.models.decoder import DecoderOnly
from probekit.models.family import Family
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    Mask,
    at_read,
    attend,
    projected,
)
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape

# Fields that change the arithmetic, and their value in a plain transformer.
_PLAIN: dict[str, Any] = {
    "positional_embedding_type": "standard",
    "parallel_attn_mlp": False,
    "gated_mlp": False,
    "final_rms": False,
    "post_embedding_ln": False,
    "use_normalization_before_and_after": False,
    "use_local_attn": False,
    "use_qk_norm": False,
    "scale_attn_by_inverse_layer_idx": False,
    "attn_scores_soft_cap": -1.0,
    "output_logits_soft_cap": -1.0,
    "num_experts": None,
    "n_key_value_heads": None,
    "load_in_4bit": False,
    "head_dim": None,  # its name in other files; here it is d_head
}


@dataclass(frozen=True)
class HookedTransformerConfig:
    """The sizes and options of a `HookedTransformer`.

    Attributes:
        d_mlp: None without MLPs; by default 4 d_model.
        activation: None without MLPs.
        attn_only: whether blocks are attention alone.
        attention_dir: "causal", or "bidirectional", where every token sees all others.
        normalization_type: None; "LN", LayerNorm; or "LNPre", which centres and scales without weights.
        attn_scale: scores are divided by it; None means sqrt(d_head).
    """

    d_model: int = size(64, hf="d_model")
    n_heads: int = size(4, hf="n_heads")
    d_head: int = size(16, hf="d_head")
    d_mlp: int | None = size(None, hf="d_mlp", optional=True)
    n_layers: int = size(2, hf="n_layers")
    n_ctx: int = size(128, hf="n_ctx")
    d_vocab: int = size(256, hf="d_vocab")
    activation: str | None = one_of("relu", ACTIVATIONS, hf="act_fn", optional=True)
    attn_only: bool = flag(False, hf="attn_only")
    attention_dir: str = one_of("causal", ("causal", "bidirectional"), hf="attention_dir")
    normalization_type: str | None = one_of("LN", ("LN", "LNPre"), hf="normalization_type", optional=True)
    ln_eps: float = real(1e-5, hf="eps")
    attn_scale: float | None = real(None, formula="attn_scale", optional=True)
    bos_token_id: int | None = token_id(None, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(None, hf="eos_token_id")

    def __post_init__(self):
        check_fields(self)
        settled: dict[str, Any] = {}
        if self.attn_only:
            settled = {"d_mlp": None, "activation": None}
        elif self.d_mlp is None:
            settled = {"d_mlp": 4 * self.d_model}
        if self.attn_scale == math.sqrt(self.d_head):
            settled["attn_scale"] = None
        for name, value in settled.items():
            object.__setattr__(self, name, value)
        if self.activation is None and not self.attn_only:
            raise Unimplemented("activation (act_fn) is null, and attn_only is not true; name the MLPs' activation")

    @property
    def causal(self) -> bool:
        """Whether a token sees only itself and those before it."""
        return self.attention_dir == "causal"

    @property
    def head_bias(self) -> bool:
        """Whether the head has a bias: always."""
        return True

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a `HookedTransformerConfig`; what a file leaves out has that class's default."""
        check_implemented(hf, _PLAIN | CAUSAL, "hooked_transformer")
        given = read_fields(cls, hf, ("d_model", "n_heads", "d_head", "n_layers", "n_ctx", "d_vocab"))
        if hf.get("d_vocab_out") not in (None, -1, given["d_vocab"]):
            raise Unimplemented(
                f"d_vocab_out = {hf['d_vocab_out']!a:.60} is not implemented for model_type hooked_transformer; only "
                f"d_vocab, {given['d_vocab']}, is"
            )
        check_flag(hf.get("use_attn_scale", True), "use_attn_scale")
        if not hf.get("use_attn_scale", True):
            given["attn_scale"] = 1.0
        elif hf.get("attn_scale") != -1:  # -1 means sqrt(d_head)
            given["attn_scale"] = hf.get("attn_scale")
        without: dict[str, Any] = {"activation": None}
        return cls(**without | given)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the `config.json` that describes this model."""
        scale = {"use_attn_scale": True, "attn_scale": -1.0 if self.attn_scale is None else self.attn_scale}
        return {"model_type": "hooked_transformer", **written_fields(self), **scale}


class LayerNormPre(nn.Module):
    """Centre, and divide by the root of (variance + eps), without weights: gain and shift lie in the next product.

    `hook_scale` is that root, [B, L, 1]; `hook_normalized` is the output.
    """

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.width, self.eps = d_model, eps
        self.hook_scale = HookPoint("B L 1")
        self.hook_normalized = HookPoint("B L D")

    def forward(self, x_BLD: Tensor) -> Tensor:
        if not self.hook_scale.hooked:
            return self.hook_normalized(F.layer_norm(x_BLD, (self.width,), eps=self.eps))
        x32_BLD = x_BLD.to(torch.promote_types(x_BLD.dtype, torch.float32))  # squares overflow fp16
        centred_BLD = x32_BLD - x32_BLD.mean(-1, keepdim=True)
        scale_BL1 = self.hook_scale((centred_BLD.square().mean(-1, keepdim=True) + self.eps).sqrt())
        return self.hook_normalized((centred_BLD / scale_BL1).to(x_BLD.dtype))


class NoNorm(nn.Identity):
    """What is after the last block of a model without norms: its input, with the point of a norm's output."""

    def __init__(self):
        super().__init__()
        self.hook_normalized = HookPoint("B L D")

    def forward(self, input: Tensor) -> Tensor:
        return self.hook_normalized(input)


def _norm(cfg: HookedTransformerConfig) -> nn.Module:
    """The norm before a sublayer; nothing in a model without norms."""
    if cfg.normalization_type is None:
        return nn.Identity()
    return (LayerNorm if cfg.normalization_type == "LN" else LayerNormPre)(cfg.d_model, cfg.ln_eps)


class Attention(nn.Module):
    """Multi-head self-attention, whose heads together may be wider or narrower than the stream."""

    def __init__(self, cfg: HookedTransformerConfig):
        super().__init__()
        self.n_heads = cfg.n_heads
        # of queries: attention divides them by sqrt(K)
        self.factor = 1.0 if cfg.attn_scale is None else math.sqrt(cfg.d_head) / cfg.attn_scale
        width = cfg.n_heads * cfg.d_head
        self.q = Linear(cfg.d_model, width)
        self.k = Linear(cfg.d_model, width)
        self.v = Linear(cfg.d_model, width)
        self.out = Linear(width, cfg.d_model)
        self.hook_q = HookPoint("B L H K")
        self.hook_k = HookPoint("B L H K")
        self.hook_v = HookPoint("B L H K")
        self.hook_attn_scores = HookPoint("B H L M")
        self.hook_pattern = HookPoint("B H L M")
        self.hook_z = HookPoint("B L H K")
        self.hook_result = HookPoint("B L H D")

    def forward(
        self, x_BLD: Tensor, mask: Mask, cache: LayerCache | None = None, read_BR: Tensor | None = None
    ) -> Tensor:
        q, k, v = self.q(at_read(x_BLD, read_BR)), self.k(x_BLD), self.v(x_BLD)
        q_BLHK, k_BMHK, v_BMHK = (rearrange(x, "b l (h k) -> b l h k", h=self.n_heads) for x in (q, k, v))
        q_BLHK, k_BMHK, v_BMHK = self.hook_q(q_BLHK), self.hook_k(k_BMHK), self.hook_v(v_BMHK)
        if cache is not None:
            k_BMHK, v_BMHK = cache.append(k_BMHK, v_BMHK)
        if self.factor != 1:
            q_BLHK = q_BLHK * self.factor
        z_BLHK = self.hook_z(attend(q_BLHK, k_BMHK, v_BMHK, mask, self.hook_attn_scores, self.hook_pattern))
        return projected(z_BLHK, self.out, self.hook_result)


class Block(nn.Module):
    """Pre-norm: x + attn(ln1(x)), then x + mlp(ln2(x)); without norms, ln1 and ln2 are their input."""

    def __init__(self, cfg: HookedTransformerConfig):
        super().__init__()
        assert cfg.d_mlp is not None
        assert cfg.activation is not None
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = _norm(cfg)
        self.attn = Attention(cfg)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = _norm(cfg)
        self.mlp = FeedForward(cfg.d_model, cfg.d_mlp, cfg.activation)
        self.hook_mlp_out = HookPoint("B L D")
        self.hook_resid_post = HookPoint("B L D")

    def forward(
        self, resid_BLD: Tensor, mask: Mask, cache: LayerCache | None = None, read_BR: Tensor | None = None
    ) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn_out = self.hook_attn_out(self.attn(self.ln1(resid_pre), at_read(mask, read_BR), cache, read_BR))
        resid_mid = self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out)
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(resid_mid)))
        return self.hook_resid_post(resid_mid + mlp_out)


class AttentionBlock(nn.Module):
    """Attention alone: x + attn(ln1(x))."""

    def __init__(self, cfg: HookedTransformerConfig):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = _norm(cfg)
        self.attn = Attention(cfg)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_post = HookPoint("B L D")

    def forward(
        self, resid_BLD: Tensor, mask: Mask, cache: LayerCache | None = None, read_BR: Tensor | None = None
    ) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn_out = self.hook_attn_out(self.attn(self.ln1(resid_pre), at_read(mask, read_BR), cache, read_BR))
        return self.hook_resid_post(at_read(resid_pre, read_BR) + attn_out)


_NO_MLP = "its blocks are attention alone, so that resid_pre + attn_out = resid_post; take one of these"
_NO_NORM = "it has no norms; take the stream that one would read, resid_pre or resid_post"


class HookedTransformer(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    def __init__(self, cfg: HookedTransformerConfig):
        super().__init__(cfg)
        self.causal = cfg.causal
        self.pos_embed = Embedding(cfg.n_ctx, cfg.d_model)
        self.hook_embed = HookPoint("B L D")
        self.hook_pos_embed = HookPoint("B L D")
        block = AttentionBlock if cfg.attn_only else Block
        self.blocks = nn.ModuleList(block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = NoNorm() if cfg.normalization_type is None else _norm(cfg)
        self.unembed = Embedding(cfg.d_vocab, cfg.d_model)
        mlp, of_ln2 = ("resid_mid", "mlp_pre", "mlp_post", "mlp_out"), ("ln2_scale", "ln2_normalized")
        self.absent = dict.fromkeys((*mlp, *of_ln2) if cfg.attn_only else (), _NO_MLP)
        if cfg.normalization_type is None:
            self.absent |= dict.fromkeys(("ln1_scale", "ln1_normalized", *of_ln2), _NO_NORM)

    @property
    def fills_masks(self) -> bool:
        """False: it answers after each token, in either direction of attention."""
        return False

    def entered(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The input of the first block, [B, L, D]."""
        return self.hook_embed(self.embed(tokens)) + self.hook_pos_embed(self.pos_embed(position_ids))

    def seen_by_layer(self, mask: Mask, position_ids: Tensor, cache: KeyValueCache | None) -> list[tuple]:
        """What each block takes besides the stream: the mask."""
        return [(mask,)] * self.cfg.n_layers

    def drawn(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Normal of 0.8 / sqrt(d_model), the default of TransformerLens."""
        return torch.randn(shape, generator=generator) * (0.8 / math.sqrt(self.cfg.d_model))


# The files: each head's matrices lie side by side, and products are [in, out].


_NAMES = {  # our weight -> the file's
    "embed.weight": "embed.W_E",
    "pos_embed.weight": "pos_embed.W_pos",
    "blocks.{}.ln1.weight": "blocks.{}.ln1.w",
    "blocks.{}.ln1.bias": "blocks.{}.ln1.b",
    **{
        f"blocks.{{}}.attn.{ours}.{part}": f"blocks.{{}}.attn.{letter}_{theirs}"
        for ours, theirs in {"q": "Q", "k": "K", "v": "V", "out": "O"}.items()
        for part, letter in {"weight": "W", "bias": "b"}.items()
    },
    "blocks.{}.ln2.weight": "blocks.{}.ln2.w",
    "blocks.{}.ln2.bias": "blocks.{}.ln2.b",
    "blocks.{}.mlp.up.weight": "blocks.{}.mlp.W_in",
    "blocks.{}.mlp.up.bias": "blocks.{}.mlp.b_in",
    "blocks.{}.mlp.down.weight": "blocks.{}.mlp.W_out",
    "blocks.{}.mlp.down.bias": "blocks.{}.mlp.b_out",
    "ln_final.weight": "ln_final.w",
    "ln_final.bias": "ln_final.b",
    "unembed.weight": "unembed.W_U",
    "unembed_bias": "unembed.b_U",
}
_LAYOUTS = {
    **{f"blocks.{{}}.attn.{part}.weight": "h d k -> (h k) d" for part in "qkv"},
    **{f"blocks.{{}}.attn.{part}.bias": "h k -> (h k)" for part in "qkv"},
    "blocks.{}.attn.out.weight": "h k d -> d (h k)",
}


def shape(cfg: HookedTransformerConfig) -> ModelShape:
    """The sizes of a `HookedTransformerConfig`'s model."""
    has_mlp, norm = not cfg.attn_only, cfg.normalization_type
    stack = stack_shape(
        cfg,
        d_mlp=cfg.d_mlp or 0,
        norms=() if norm is None else ("ln1", "ln2") if has_mlp else ("ln1",),
        norm_gain=norm == "LN",
        norm_shift=norm == "LN",
        norm_centred=True,
    )
    counted = decoder_shape("hooked_transformer", stack, cfg.d_vocab, cfg.n_ctx, tied=False, head_bias=True)
    return replace(counted, outer_norms=0 if norm is None else 1, cached=cfg.causal)


FAMILY = Family(
    model_types=("hooked_transformer",),
    config=HookedTransformerConfig,
    model=HookedTransformer,
    shape=shape,
    modules=lambda cfg: _NAMES,
    hf_prefix="",
    transposed=("blocks.{}.mlp.up", "blocks.{}.mlp.down", "unembed"),
    layouts=_LAYOUTS,
    hf_buffers=r"blocks\.\d+\.attn\.(mask|IGNORE)",  # who sees whom, and the score of the others
    loads="toy models and compiled programs (HookedTransformer's files)",
    refused="rotary positions, parallel blocks, gated MLPs, RMSNorm, d_vocab_out other than d_vocab",
    how_to="[from a state dict](how-to/toy-models.md)",
)
