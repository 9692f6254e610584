"""ModernBERT, written by hand (Warner et al. 2024, "Smarter, Better, Faster, Longer").

An encoder: the token embedding under a norm, then pre-norm blocks of attention with rotary positions and a gated MLP
(GeGLU), a final norm, and a head that predicts masked tokens. Every few layers a token attends to all others; in the
layers between to its neighbours on either side alone, with another base of the rotations. The first block has no
attention norm, because its input is normed already: there is no `ln1_normalized.0`. Every point has its name in
TransformerLens; its axes are given where it is made. Exact against `transformers`; `modernbert_hf.py` translates its
files.

Identities: resid_pre + attn_out = resid_mid; resid_mid + mlp_out = resid_post, which is the next block's resid_pre.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.base import stopped
from probekit.models.config_checks import (
    check_choice,
    check_dimension,
    check_flag,
    check_id,
    check_positive_number,
    head_width,
    hf_field,
    own_head_dim,
)
from probekit.models.config_fields import later
from probekit.models.families import modernbert_hf
from probekit.models.families.masked_lm import MaskedLM
from probekit.models.family import Family
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    LayerNorm,
    Linear,
    Mask,
    at_read,
    attend,
    linear,
    projected,
)
from probekit.models.positional import Rotary, rotate_half
from probekit.models.windows import in_two_sided_window

SIZES = ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab")
BIASES = ("attn_bias", "mlp_bias", "norm_bias", "head_bias", "unembed_bias")
LAYER_TYPES = ("full_attention", "sliding_attention")
Rotation = tuple[Tensor, Tensor]
_named = partial(hf_field, modernbert_hf.OURS)


@dataclass(frozen=True)
class ModernBertConfig:
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

    d_model: int = 768
    n_heads: int = 12
    d_mlp: int = 1152
    n_layers: int = 22
    n_ctx: int = 8192
    d_vocab: int = 50368
    activation: str = "gelu"
    head_activation: str = "gelu"
    norm_eps: float = 1e-5
    rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    sliding_window: int = 65
    layer_types: tuple[str, ...] = tuple(LAYER_TYPES[i % 3 > 0] for i in range(22))
    attn_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    head_bias: bool = False
    unembed_bias: bool = True
    tie_embeddings: bool = True
    init_std: float = 0.02
    init_cutoff: float = 2.0
    pad_token_id: int | None = 50283
    mlm_head: bool = True
    head_dim: int | None = later(None)

    def __post_init__(self):
        for field in SIZES:
            check_dimension(field, getattr(self, field), _named(field))
        object.__setattr__(self, "head_dim", own_head_dim(self, _named))
        if self.d_head % 2:
            raise DataError(f"d_head must be even, as rotary positions rotate pairs; got {self.d_head}")
        for field in ("activation", "head_activation"):
            check_choice(getattr(self, field), ACTIVATIONS, _named(field))
        for field in ("norm_eps", "rope_theta", "local_rope_theta", "init_std", "init_cutoff"):
            check_positive_number(getattr(self, field), _named(field))
        for field in (*BIASES, "tie_embeddings", "mlm_head"):
            check_flag(getattr(self, field), _named(field))
        check_dimension("n_ctx", self.sliding_window, "sliding_window (local_attention // 2 + 1)")
        if len(self.layer_types) != self.n_layers or not set(self.layer_types) <= set(LAYER_TYPES):
            raise DataError(
                f"layer_types must be {' or '.join(LAYER_TYPES)} for each of {self.n_layers} layers; "
                f"got {list(self.layer_types)!a:.200}"
            )
        check_id(self.pad_token_id, "pad_token_id")

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return head_width(self)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "ModernBertConfig":
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        Raises:
            DataError: a size is missing or out of range, the activation is unknown, or a field requires arithmetic that
                is not implemented here; the message names the field.
        """
        return cls(**modernbert_hf.fields_from_hf(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        return modernbert_hf.fields_to_hf(self)


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


class Head(nn.Module):
    """The product of ln(act(x W)) with each token's embedding; biases as the config says."""

    def __init__(self, cfg: ModernBertConfig):
        super().__init__()
        self.activation = cfg.head_activation
        self.dense = Linear(cfg.d_model, cfg.d_model, cfg.head_bias)
        self.ln = norm_of(cfg)
        self.bias = nn.Parameter(torch.empty(cfg.d_vocab)) if cfg.unembed_bias else None

    def forward(self, x_BLD: Tensor, embedding_VD: Tensor) -> Tensor:
        return linear(self.transform(x_BLD), embedding_VD, self.bias)

    def transform(self, x_BLD: Tensor) -> Tensor:
        """ln(act(x W)), [B, L, D]."""
        return self.ln(self.dense.activated(x_BLD, self.activation))

    @property
    def hooked(self) -> bool:
        """True if a hook is attached to a point of the head."""
        return self.ln.hook_scale.hooked or self.ln.hook_normalized.hooked


class ModernBert(MaskedLM):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    absent = dict.fromkeys(("ln1_normalized", "ln1_scale"), "its input is the embedding norm's output, ln_embed")

    def __init__(self, cfg: ModernBertConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.rope_theta)
        self.local_rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.local_rope_theta)
        self.hook_embed = HookPoint("B L D")
        self.ln_embed = norm_of(cfg)
        self.blocks = nn.ModuleList(Block(cfg, i) for i in range(cfg.n_layers))
        self.ln_final = norm_of(cfg)
        self.head = Head(cfg) if cfg.mlm_head else None
        self.unembed = Embedding(cfg.d_vocab, cfg.d_model) if cfg.mlm_head and not cfg.tie_embeddings else None

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
    ) -> Tensor:
        """The head's logits [B, L, V] of tokens [B, L]; arguments and errors as in `Bert.forward`.

        With return_logits=False the final norm's output, [B, L, D]. A mask is narrowed to the window in the layers
        that have one.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids)
        reads = self.reads(tokens, position_ids, mask, stop)
        windowed = in_two_sided_window(mask, self.cfg.sliding_window, position_ids)
        of_type = {
            "full_attention": (self.rotary(position_ids), mask),
            "sliding_attention": (self.local_rotary(position_ids), windowed),
        }
        start, resid_BLD = self.started(self.ln_embed(self.hook_embed(self.embed(tokens))))
        for i, block in enumerate(self.blocks[start:stop], start):
            resid_BLD = block(resid_BLD, *of_type[self.cfg.layer_types[i]], reads[i])
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        return self.headed(self.ln_final(resid_BLD), return_logits)

    def window_of(self, layer: int) -> int | None:
        """`sliding_window` in the layers that have one."""
        return self.cfg.sliding_window if self.cfg.layer_types[layer] == "sliding_attention" else None

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before training: normal, truncated, and narrower by sqrt(2 layers) where they write.

        The projections that write to the residual stream are the attention's and the MLP's last, and those of the head.
        """
        generator, cfg = torch.Generator().manual_seed(seed), self.cfg
        for name, weight in self.named_parameters():
            if weight.dim() == 1:
                weight.fill_(0 if name.endswith("bias") else 1)
                continue
            writes = name.endswith(("attn.out.weight", "mlp.down.weight")) or name.startswith(("head", "unembed"))
            std = cfg.init_std / (2 * cfg.n_layers) ** 0.5 if writes else cfg.init_std
            cut, drawn = cfg.init_cutoff * std, torch.empty(weight.shape)
            weight.copy_(nn.init.trunc_normal_(drawn, std=std, a=-cut, b=cut, generator=generator))
        return self


FAMILY = Family(
    model_types=("modernbert",),
    config=ModernBertConfig,
    model=ModernBert,
    shape=modernbert_hf.shape,
    hf_names=modernbert_hf.hf_names,
    hf_prefix=modernbert_hf.HF_PREFIX,
    hf_model=modernbert_hf.hf_model,
    hf_ties=modernbert_hf.hf_ties,
    hf_parts=modernbert_hf.hf_parts,
    loads="ModernBERT",
    refused="classification heads, rope scaling",
    hub_examples=("answerdotai/ModernBERT-base", "answerdotai/ModernBERT-large"),
)
