"""GPT-2, written by hand (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

A decoder: token plus learned position embedding, pre-norm blocks of causal attention and a two-layer MLP, a final norm,
and a head that is usually tied to the token embedding. Every point has its name in TransformerLens; its axes are given
where it is made. Exact against `transformers`' GPT-2; the translation of its files is at the end.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from einops import rearrange
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.cache import KeyValueCache, LayerCache
from probekit.models.config_fields import (
    CAUSAL,
    SharedWidth,
    check_fields,
    check_implemented,
    flag,
    one_of,
    read_fields,
    real,
    size,
    token_id,
    token_ids,
    unchecked,
    written_fields,
)
from probekit.models.decoder import PRE_NORM, DecoderOnly
from probekit.models.family import (
    LOGITS,
    Family,
    HfModel,
    HfPoint,
    HfTensor,
    equal_part,
    module_output,
    weight_points,
    with_head_bias,
)
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    Mask,
    at_read,
    attend,
    linear,
    projected,
)
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape


@dataclass(frozen=True)
class GPT2Config(SharedWidth):
    """The sizes and options of a GPT-2; the defaults are those of the 124M model.

    Attributes:
        scale_by_layer: whether scores are also divided by the layer's number, from 1 (Stanford's Mistral GPT-2s).
        upcast_attention: whether scores and pattern are computed in float32 in a half-precision model.
        eos_token_id: an id, or several that each end a text; None means the BOS token, as in GPT-2.
        head_dim: width of an attention head where it is not d_model / n_heads; `d_head` is the width in either case.
        head_bias: whether the head has a bias (lm_head.bias), as in compiled models; GPT-2's has none.
    """

    d_model: int = size(768, hf="n_embd")
    n_heads: int = size(12, hf="n_head")
    d_mlp: int = size(3072, hf="n_inner")
    n_layers: int = size(12, hf="n_layer")
    n_ctx: int = size(1024, hf="n_positions")
    d_vocab: int = size(50257, hf="vocab_size")
    activation: str = one_of("gelu_new", ACTIVATIONS, hf="activation_function")
    ln_eps: float = real(1e-5, hf="layer_norm_epsilon")
    tie_embeddings: bool = flag(True, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    scale_by_layer: bool = flag(False, hf="scale_attn_by_inverse_layer_idx")
    upcast_attention: bool = flag(False, hf="reorder_and_upcast_attn")
    bos_token_id: int | None = token_id(50256, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(None, hf="eos_token_id")
    head_dim: int | None = unchecked(None, hf="head_dim", later=True)
    head_bias: bool = flag(False, hf="head_bias", later=True)

    def __post_init__(self):
        if self.eos_token_id is None:
            object.__setattr__(self, "eos_token_id", self.bos_token_id)
        check_fields(self)
        self.settle_head_dim()

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`."""
        check_implemented(hf, {"scale_attn_weights": True, "add_cross_attention": False} | CAUSAL, "gpt2")
        hf = {**hf, "n_positions": hf.get("n_positions", hf.get("n_ctx"))}
        given = read_fields(cls, hf, ("d_model", "n_heads", "n_layers", "n_ctx", "d_vocab"))
        if given.get("d_mlp") is None:
            given["d_mlp"] = 4 * given["d_model"]
        if hf.get("eos_token_id") == []:
            given["eos_token_id"] = ()  # no token ends a text, where null means the BOS token
        defaults: dict[str, Any] = {"bos_token_id": 50256, "eos_token_id": 50256}
        return cls(**defaults | given)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **written_fields(self)}


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, cfg: GPT2Config, layer: int):
        super().__init__()
        self.n_heads = cfg.n_heads
        self.divisor = layer + 1 if cfg.scale_by_layer else 1  # of the scores, in addition to sqrt(K)
        self.upcast = cfg.upcast_attention
        self.qkv = Linear(cfg.d_model, 3 * cfg.n_heads * cfg.d_head)
        self.out = Linear(cfg.n_heads * cfg.d_head, cfg.d_model)
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
        q, k, v = self._qkv(x_BLD, read_BR)
        q_BLHK, k_BMHK, v_BMHK = self.hook_q(q), self.hook_k(k), self.hook_v(v)
        if cache is not None:
            k_BMHK, v_BMHK = cache.append(k_BMHK, v_BMHK)
        if self.upcast:
            q_BLHK, k_BMHK = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q_BLHK, k_BMHK))
        if self.divisor > 1:
            q_BLHK = q_BLHK / self.divisor
        z_BLHK = self.hook_z(attend(q_BLHK, k_BMHK, v_BMHK, mask, self.hook_attn_scores, self.hook_pattern))
        return projected(z_BLHK, self.out, self.hook_result)

    def _qkv(self, x_BLD: Tensor, read_BR: Tensor | None) -> Iterable[Tensor]:
        """Queries, keys and values, [B, L, H, K] each; queries of the read positions alone, if these are given."""
        if read_BR is None:
            return rearrange(self.qkv(x_BLD), "b l (qkv h k) -> qkv b l h k", qkv=3, h=self.n_heads)
        assert self.qkv.bias is not None
        (w_q, w_k, w_v), (b_q, b_k, b_v) = self.qkv.weight.chunk(3), self.qkv.bias.chunk(3)
        parts = linear(at_read(x_BLD, read_BR), w_q, b_q), linear(x_BLD, w_k, b_k), linear(x_BLD, w_v, b_v)
        return [rearrange(part, "b l (h k) -> b l h k", h=self.n_heads) for part in parts]


class Block(nn.Module):
    """Pre-norm: x + attn(ln1(x)), then x + mlp(ln2(x))."""

    def __init__(self, cfg: GPT2Config, layer: int):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = LayerNorm(cfg.d_model, cfg.ln_eps)
        self.attn = Attention(cfg, layer)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = LayerNorm(cfg.d_model, cfg.ln_eps)
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


class GPT2(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    def __init__(self, cfg: GPT2Config):
        super().__init__(cfg)
        self.pos_embed = Embedding(cfg.n_ctx, cfg.d_model)
        self.hook_embed = HookPoint("B L D")
        self.hook_pos_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg, i) for i in range(cfg.n_layers))
        self.ln_final = LayerNorm(cfg.d_model, cfg.ln_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def entered(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The input of the first block, [B, L, D]."""
        return self.hook_embed(self.embed(tokens)) + self.hook_pos_embed(self.pos_embed(position_ids))

    def seen_by_layer(self, mask: Mask, position_ids: Tensor, cache: KeyValueCache | None) -> list[tuple]:
        """What each block takes besides the stream: the mask."""
        return [(mask,)] * self.cfg.n_layers

    def drawn(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """As GPT-2's training starts: sqrt(2 n_layers) smaller into the stream."""
        writes_to_stream = name.endswith(("attn.out.weight", "mlp.down.weight"))
        std = self.cfg.init_std / (math.sqrt(2 * self.cfg.n_layers) if writes_to_stream else 1)
        return torch.randn(shape, generator=generator) * std


# Translation from and to Hugging Face.


_NAMES = {  # our module -> the file's
    "embed": "transformer.wte",
    "pos_embed": "transformer.wpe",
    "blocks.{}.ln1": "transformer.h.{}.ln_1",
    "blocks.{}.attn.qkv": "transformer.h.{}.attn.c_attn",
    "blocks.{}.attn.out": "transformer.h.{}.attn.c_proj",
    "blocks.{}.ln2": "transformer.h.{}.ln_2",
    "blocks.{}.mlp.up": "transformer.h.{}.mlp.c_fc",
    "blocks.{}.mlp.down": "transformer.h.{}.mlp.c_proj",
    "ln_final": "transformer.ln_f",
    "unembed": "lm_head",
    "unembed_bias": "lm_head.bias",
}


def shape(cfg: GPT2Config) -> ModelShape:
    """The sizes of a `GPT2Config`'s model."""
    return decoder_shape("gpt2", stack_shape(cfg), cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings, cfg.head_bias)


def twin(cfg: GPT2Config, names: Mapping[str, HfTensor]) -> HfModel | None:
    """The classes of transformers, and where they compute our points; heads share d_model, and the head has no bias."""
    if cfg.head_dim is not None or cfg.head_bias:
        return None
    points = weight_points(names, PRE_NORM) | {LOGITS: HfPoint("lm_head", module_output)}
    points |= {x: HfPoint("transformer.h.{layer}.attn.c_attn", equal_part(i, 3)) for i, x in enumerate("qkv")}
    return HfModel("GPT2Config", "GPT2LMHeadModel", points)


FAMILY = Family(
    model_types=("gpt2",),
    config=GPT2Config,
    model=GPT2,
    shape=shape,
    modules=lambda cfg: _NAMES,
    hf_prefix="transformer.",
    transposed={f"blocks.{{}}.{module}" for module in ("attn.qkv", "attn.out", "mlp.up", "mlp.down")},
    twin=twin,
    hf_parts=with_head_bias,
    hf_buffers=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",  # causal masks, in old files
    loads="GPT-2 of any size, DistilGPT-2",
    refused="cross-attention, unscaled attention",
    hub_examples=("openai-community/gpt2", "openai-community/gpt2-xl", "distilbert/distilgpt2"),
)
