"""GPT-2, written by hand (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

A decoder: token plus learned position embedding, pre-norm blocks of causal attention and a two-layer MLP, a final norm,
and a head that is usually tied to the token embedding. Every point has its name in TransformerLens; its axes are given
where it is made. Exact against `transformers`' GPT-2; the translation of its files is at the end.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from einops import rearrange
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel, stopped
from probekit.models.cache import KeyValueCache, LayerCache
from probekit.models.config_checks import (
    CAUSAL,
    check_choice,
    check_dimension,
    check_flag,
    check_id,
    check_ids,
    check_implemented,
    check_positive_number,
    head_width,
    hf_field,
    own_head_dim,
)
from probekit.models.config_fields import hf_values, later
from probekit.models.family import (
    LOGITS,
    Family,
    HfModel,
    HfPoint,
    HfTensor,
    head_names,
    module_input,
    module_output,
    points_inside,
    second_output,
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

SIZES = ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab")


@dataclass(frozen=True)
class GPT2Config:
    """The sizes and options of a GPT-2; the defaults are those of the 124M model.

    Attributes:
        scale_by_layer: whether scores are also divided by the layer's number, from 1 (Stanford's Mistral GPT-2s).
        upcast_attention: whether scores and pattern are computed in float32 in a half-precision model.
        eos_token_id: an id, or several that each end a text; None means the BOS token, as in GPT-2.
        head_dim: width of an attention head where it is not d_model / n_heads; `d_head` is the width in either case.
        head_bias: whether the head has a bias (lm_head.bias), as in compiled models; GPT-2's has none.
    """

    d_model: int = 768
    n_heads: int = 12
    d_mlp: int = 3072
    n_layers: int = 12
    n_ctx: int = 1024
    d_vocab: int = 50257
    activation: str = "gelu_new"
    ln_eps: float = 1e-5
    tie_embeddings: bool = True
    init_std: float = 0.02
    scale_by_layer: bool = False
    upcast_attention: bool = False
    bos_token_id: int | None = 50256
    eos_token_id: int | tuple[int, ...] | None = None
    head_dim: int | None = later(None)
    head_bias: bool = later(False)

    def __post_init__(self):
        if self.eos_token_id is None:
            object.__setattr__(self, "eos_token_id", self.bos_token_id)
        for field in SIZES:
            check_dimension(field, getattr(self, field), _named(field))
        object.__setattr__(self, "head_dim", own_head_dim(self, _named))
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        for field in ("ln_eps", "init_std"):
            check_positive_number(getattr(self, field), _named(field))
        for field in ("tie_embeddings", "scale_by_layer", "upcast_attention", "head_bias"):
            check_flag(getattr(self, field), _named(field))
        check_id(self.bos_token_id, "bos_token_id")
        check_ids(self.eos_token_id, "eos_token_id")

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return head_width(self)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "GPT2Config":
        """The config in the fields of a Hugging Face `config.json`.

        Raises:
            DataError: a size is missing or out of range, the activation is unknown, or a field requires arithmetic that
                this file does not implement; the message names the field.
        """
        return cls(**_fields_from_hf(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        return _fields_to_hf(self)


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


class GPT2(LanguageModel):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    def __init__(self, cfg: GPT2Config):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.pos_embed = Embedding(cfg.n_ctx, cfg.d_model)
        self.hook_embed = HookPoint("B L D")
        self.hook_pos_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg, i) for i in range(cfg.n_layers))
        self.ln_final = LayerNorm(cfg.d_model, cfg.ln_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)
        self.unembed_bias = nn.Parameter(torch.empty(cfg.d_vocab)) if cfg.head_bias else None

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Logits [B, L, V] of tokens [B, L].

        Args:
            tokens: int ids [B, L].
            position_ids: [B, L]; by default counted from the mask, so padding on either side changes nothing.
            attention_mask: [B, L], true at real tokens; or [B, L, M], true where L may attend to M (used unchanged).
                None: no padding, or right padding whose outputs are ignored. With position_ids and a mask [B, L, M],
                L may exceed the context: several texts in one row.
            stop_at_layer: run the blocks before this one and return its input, `resid_pre`, [B, L, D]; n_layers gives
                the last block's output, before the final norm.
            return_logits: False skips the head and returns the final norm's output, [B, L, D].
            cache: keys and values of earlier tokens; those of `tokens` are added. Requires position_ids and a mask
                [B, L, M] over all M tokens so far.

        Raises:
            UsageError: an invalid shape, id, length or layer.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids, cache)
        reads = self.reads(tokens, position_ids, mask, stop)
        embed, pos_embed = self.hook_embed(self.embed(tokens)), self.hook_pos_embed(self.pos_embed(position_ids))
        start, resid_BLD = self.started(embed + pos_embed)
        for i, block in enumerate(self.blocks[start:stop], start):
            resid_BLD = block(resid_BLD, mask, None if cache is None else cache[i], reads[i])
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        normalized_BLD = self.ln_final(resid_BLD)
        return self.head(normalized_BLD) if return_logits else normalized_BLD

    def head(self, normalized_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the final norm's output."""
        return linear(normalized_BLD, (self.unembed or self.embed).weight, self.unembed_bias)

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as GPT-2's training starts: normal, and sqrt(2 n_layers) smaller into the stream."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
            elif ".ln" in name or name.startswith("ln"):
                weight.fill_(1)
            else:
                writes_to_stream = name.endswith(("attn.out.weight", "mlp.down.weight"))
                std = self.cfg.init_std / (math.sqrt(2 * self.cfg.n_layers) if writes_to_stream else 1)
                weight.copy_(torch.randn(weight.shape, generator=generator) * std)
        return self


# Translation from and to Hugging Face.

OURS = {  # field of config.json -> our field
    "n_embd": "d_model",
    "n_head": "n_heads",
    "n_inner": "d_mlp",
    "n_layer": "n_layers",
    "n_positions": "n_ctx",
    "vocab_size": "d_vocab",
    "activation_function": "activation",
    "layer_norm_epsilon": "ln_eps",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "init_std",
    "scale_attn_by_inverse_layer_idx": "scale_by_layer",
    "reorder_and_upcast_attn": "upcast_attention",
    "head_dim": "head_dim",
    "head_bias": "head_bias",
}
_named = partial(hf_field, OURS)
# Other values of these fields change the arithmetic in ways that this file does not implement.
_REQUIRED = {"scale_attn_weights": True, "add_cross_attention": False} | CAUSAL


def _fields_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    check_implemented(hf, _REQUIRED, "gpt2")
    fields = {**hf, "n_positions": hf.get("n_positions", hf.get("n_ctx"))}
    for size in ("n_embd", "n_head", "n_layer", "n_positions", "vocab_size"):
        check_dimension(OURS[size], fields.get(size), _named(OURS[size]))
    if fields.get("n_inner") is None:
        fields["n_inner"] = 4 * fields["n_embd"]
    eos = hf.get("eos_token_id", 50256)
    return {ours: fields[name] for name, ours in OURS.items() if name in fields} | {
        "bos_token_id": hf.get("bos_token_id", 50256),
        "eos_token_id": tuple(eos) if isinstance(eos, list) else eos,
    }


def _fields_to_hf(cfg: GPT2Config) -> dict[str, Any]:
    fields = hf_values(cfg, OURS)
    eos = list(cfg.eos_token_id) if isinstance(cfg.eos_token_id, tuple) else cfg.eos_token_id
    ids = {"bos_token_id": cfg.bos_token_id, "eos_token_id": eos}
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **fields, **ids}


HF_PREFIX = "transformer."
_BLOCK_NAMES = {
    "ln1": ("ln_1", False),
    "attn.qkv": ("attn.c_attn", True),
    "attn.out": ("attn.c_proj", True),
    "ln2": ("ln_2", False),
    "mlp.up": ("mlp.c_fc", True),
    "mlp.down": ("mlp.c_proj", True),
}


def hf_names(cfg: GPT2Config) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face GPT-2 file."""
    bare = {"embed.weight": HfTensor("wte.weight"), "pos_embed.weight": HfTensor("wpe.weight")}
    for i in range(cfg.n_layers):
        for ours, (name, transposed) in _BLOCK_NAMES.items():
            bare[f"blocks.{i}.{ours}.weight"] = HfTensor(f"h.{i}.{name}.weight", transposed)
            bare[f"blocks.{i}.{ours}.bias"] = HfTensor(f"h.{i}.{name}.bias")
    bare |= {f"ln_final.{part}": HfTensor(f"ln_f.{part}") for part in ("weight", "bias")}
    names = {ours: where._replace(name=HF_PREFIX + where.name) for ours, where in bare.items()}
    return names | head_names(cfg)


def hf_ties(cfg: GPT2Config) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the name of the original."""
    return {"lm_head.weight": HF_PREFIX + "wte.weight"} if cfg.tie_embeddings else {}


def _shape(cfg: GPT2Config) -> ModelShape:
    return decoder_shape("gpt2", stack_shape(cfg), cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings, cfg.head_bias)


def _qkv_part(i: int) -> HfPoint:
    return HfPoint("transformer.h.{layer}.attn.c_attn", lambda _, output: output.chunk(3, -1)[i])


_HF_POINTS = {
    "embed": HfPoint("transformer.wte", module_output),
    "pos_embed": HfPoint("transformer.wpe", module_output),
    "q": _qkv_part(0),
    "k": _qkv_part(1),
    "v": _qkv_part(2),
    "ln_final": HfPoint("transformer.ln_f", module_output),
    LOGITS: HfPoint("lm_head", module_output),
} | points_inside(
    "transformer.h.{layer}",
    {
        "resid_pre": ("ln_1", module_input),
        "ln1_normalized": ("ln_1", module_output),
        "attn_pattern": ("attn", second_output),
        "z": ("attn.c_proj", module_input),
        "attn_out": ("attn", module_output),
        "resid_mid": ("ln_2", module_input),
        "ln2_normalized": ("ln_2", module_output),
        "mlp_pre": ("mlp.c_fc", module_output),
        "mlp_post": ("mlp.c_proj", module_input),
        "mlp_out": ("mlp", module_output),
        "resid_post": ("", module_output),
    },
)


def _hf_model(cfg: GPT2Config) -> HfModel | None:
    has_twin = cfg.head_dim is None and not cfg.head_bias
    return HfModel("GPT2Config", "GPT2LMHeadModel", _HF_POINTS) if has_twin else None


FAMILY = Family(
    model_types=("gpt2",),
    config=GPT2Config,
    model=GPT2,
    shape=_shape,
    hf_names=hf_names,
    hf_prefix=HF_PREFIX,
    hf_model=_hf_model,
    hf_ties=hf_ties,
    hf_parts=with_head_bias,
    hf_buffers=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",  # causal masks, in old files
    loads="GPT-2 of any size, DistilGPT-2",
    refused="cross-attention, unscaled attention",
    hub_examples=("openai-community/gpt2", "openai-community/gpt2-xl", "distilbert/distilgpt2"),
)
