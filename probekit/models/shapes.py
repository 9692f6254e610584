"""What a model's config says of its size, alike for every family: enough to count with, and no torch.

A model is some stacks of equal blocks with tables before and a head behind. `shape_of` reads that from a family's
config; `named_shape` knows the four sizes of GPT-2 (Radford et al. 2019) without any file.

Axes: B batch, L query position, M key position, D d_model, H heads, G kv heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

GPT2_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"d_model": 768, "n_heads": 12, "n_layers": 12},
    "gpt2-medium": {"d_model": 1024, "n_heads": 16, "n_layers": 24},
    "gpt2-large": {"d_model": 1280, "n_heads": 20, "n_layers": 36},
    "gpt2-xl": {"d_model": 1600, "n_heads": 25, "n_layers": 48},
}
"""The fields in which the sizes of GPT-2 differ; d_mlp is 4 d_model, the rest are `GPT2Config`'s defaults."""


@dataclass(frozen=True)
class Stack:
    """Equal blocks, one upon the other: (self-)attention and an MLP, each with a norm.

    Attributes:
        name: "" where there is one stack; "encoder" or "decoder".
        n_layers: how many blocks.
        d_model: D.
        n_heads: H.
        n_kv_heads: G; fewer than H in grouped-query attention.
        d_head: K.
        d_mlp: F.
        gated: whether the MLP has a third product, which is multiplied with the activation (SwiGLU).
        rotary: whether queries and keys are rotated by their position.
        qkv_bias: whether queries, keys and values have biases.
        out_bias: whether the attention's output projection has one.
        mlp_bias: whether the MLP's products have biases.
        norm_shift: whether norms have a shift beside the gain (LayerNorm; RMSNorm has none).
        cross: whether a second attention, with a norm of its own, reads the encoder's output.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_mlp: int
    name: str = ""
    gated: bool = False
    rotary: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    norm_shift: bool = True
    cross: bool = False

    @property
    def n_norms(self) -> int:
        """Norms of a block."""
        return 3 if self.cross else 2


@dataclass(frozen=True)
class Shape:
    """A whole model.

    Attributes:
        family: model_type of its config.json.
        stacks: the decoder last.
        d_vocab: V.
        n_ctx: the longest input that it was made for.
        outside: parameters outside the blocks by part: embeddings, norms, head; 0 for a head that is the embedding.
        embedding_sums: vectors [D] that are added to a token's embedding, or multiplied with it.
        outer_norms: norms of a token outside the blocks, in the forward.
        head_products: weights that each (target) token's output is multiplied with for the logits.
        logits: values that a token's logits take: V, twice where a bias makes new ones of them; 0 without a head.
        cached: whether a generated token reads the keys and values of those before it.
    """

    family: str
    stacks: tuple[Stack, ...]
    d_vocab: int
    n_ctx: int
    outside: Mapping[str, int]
    embedding_sums: int
    outer_norms: int
    head_products: int
    logits: int
    cached: bool = True

    @property
    def d_model(self) -> int:
        """D."""
        return self.stacks[-1].d_model


def named_shape(name: str) -> Shape | None:
    """The shape of "gpt2", "gpt2-medium", "gpt2-large" or "gpt2-xl"; None for any other name."""
    return _gpt2(_GPT2Fields(**GPT2_SIZES[name])) if name in GPT2_SIZES else None


def shape_of(cfg: Any) -> Shape:
    """The shape of a model with this config: that of any family."""
    return _FAMILIES[type(cfg).__name__](cfg)


@dataclass(frozen=True)
class _GPT2Fields:
    """The fields of `GPT2Config` that decide sizes; that class stands beside the model, which needs torch."""

    d_model: int
    n_heads: int
    n_layers: int
    n_ctx: int = 1024
    d_vocab: int = 50257
    tie_embeddings: bool = True

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @property
    def d_mlp(self) -> int:
        return 4 * self.d_model


def _stack(cfg: Any, **more: Any) -> Stack:
    fields = ("n_layers", "d_model", "n_heads", "d_head", "d_mlp")
    return Stack(**{"n_kv_heads": cfg.n_heads, **{field: getattr(cfg, field) for field in fields}, **more})


def _gpt2(cfg: Any) -> Shape:
    D, V = cfg.d_model, cfg.d_vocab
    outside = {
        "token embedding": V * D,
        "position embedding": cfg.n_ctx * D,
        "final norm": 2 * D,
        "head": 0 if cfg.tie_embeddings else V * D,
    }
    return Shape("gpt2", (_stack(cfg),), V, cfg.n_ctx, outside, 1, outer_norms=1, head_products=V * D, logits=V)


def _llama(cfg: Any) -> Shape:
    D, V = cfg.d_model, cfg.d_vocab
    biases = {"qkv_bias": cfg.qkv_bias, "out_bias": cfg.out_bias, "mlp_bias": cfg.mlp_bias, "norm_shift": False}
    stack = _stack(cfg, n_kv_heads=cfg.n_kv_heads, gated=True, rotary=True, **biases)
    outside = {"token embedding": V * D, "final norm": D, "head": 0 if cfg.tie_embeddings else V * D}
    return Shape(cfg.model_type, (stack,), V, cfg.n_ctx, outside, 0, outer_norms=1, head_products=V * D, logits=V)


def _bert(cfg: Any) -> Shape:
    D, V = cfg.d_model, cfg.d_vocab
    outside = {
        "token embedding": V * D,
        "position embedding": cfg.n_ctx * D,
        "segment embedding": cfg.n_segments * D,
        "embedding norm": 2 * D,
    }
    if cfg.mlm_head:
        outside |= {"head": D * D + D + 2 * D + V + (0 if cfg.tie_embeddings else V * D)}
    if cfg.pooler:
        outside |= {"pooler": D * D + D}
    if cfg.seq_head:
        outside |= {"sequence head": 2 * D + 2}
    return Shape(
        "bert",
        (_stack(cfg),),
        V,
        cfg.n_ctx,
        outside,
        embedding_sums=2,
        outer_norms=2 if cfg.mlm_head else 1,
        head_products=D * D + V * D if cfg.mlm_head else 0,
        logits=V if cfg.mlm_head else 0,
        cached=False,
    )


def _transformer(cfg: Any) -> Shape:
    D, V = cfg.d_model, cfg.d_vocab
    decoder = {"n_layers": cfg.n_decoder_layers, "n_heads": cfg.n_decoder_heads, "n_kv_heads": cfg.n_decoder_heads}
    decoder |= {"d_head": D // cfg.n_decoder_heads, "d_mlp": cfg.d_decoder_mlp}
    stacks = (
        _stack(cfg, name="encoder"),
        _stack(cfg, **decoder, name="decoder", cross=True),
    )
    tables = 1 if cfg.tie_embeddings else 2  # of source and target
    outside = {"token embedding": tables * V * D}
    if cfg.positions == "learned":
        outside |= {"position embedding": 2 * cfg.n_ctx * D}
    outside |= {"head": (0 if cfg.tie_embeddings else V * D) + (V if cfg.logits_bias else 0)}
    sums = 2 if cfg.scale_embedding else 1
    logits = 2 * V if cfg.logits_bias else V
    return Shape("marian", stacks, V, cfg.n_ctx, outside, sums, outer_norms=0, head_products=V * D, logits=logits)


_FAMILIES: dict[str, Callable[[Any], Shape]] = {  # by name: to count takes no torch
    "GPT2Config": _gpt2,
    "LlamaConfig": _llama,
    "BertConfig": _bert,
    "TransformerConfig": _transformer,
}
