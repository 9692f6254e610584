"""DistilBERT, written by hand (Sanh et al. 2019): a BERT of half the layers, without segments and pooler.

An encoder: token and position embedding under a norm, then post-norm blocks in which every token attends to every
other, and a head that predicts masked tokens. Every point has its name in TransformerLens; its axes are given where it
is made. Exact against `transformers`.

Identities of these blocks: resid_pre + attn_out = resid_mid; ln1_normalized + mlp_out = resid_post; ln2_normalized is
the next block's resid_pre, and after the last block the model's output.

Axes: B batch, L position, D d_model, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.config_fields import (
    SharedWidth,
    check_fields,
    check_implemented,
    flag,
    one_of,
    read_fields,
    real,
    size,
    unchecked,
    written_fields,
)
from probekit.models.family import Family, parts_by_names
from probekit.models.layers import ACTIVATIONS, Embedding, LayerNorm, Linear, PostNormBlock
from probekit.models.masked_lm import (
    MaskedLM,
    MLMHead,
    encoder_twin,
    hf_renamed,
    parts_named,
    post_norm_points,
    post_norm_shape,
)
from probekit.models.positional import sinusoids
from probekit.models.shapes import ModelShape

LN_EPS = 1e-12  # of every norm; no config has a field for it


@dataclass(frozen=True)
class DistilBertConfig(SharedWidth):
    """The sizes of a DistilBERT; the defaults are those of the base model (uncased).

    Attributes:
        sinusoidal_init: whether the position table starts as sinusoids; a checkpoint holds it either way.
        mlm_head: whether there is the head that predicts masked tokens.
        head_dim: width of an attention head where it is not d_model / n_heads; `d_head` is the width in either case.
    """

    d_model: int = size(768, hf="dim")
    n_heads: int = size(12, hf="n_heads")
    d_mlp: int = size(3072, hf="hidden_dim")
    n_layers: int = size(6, hf="n_layers")
    n_ctx: int = size(512, hf="max_position_embeddings")
    d_vocab: int = size(30522, hf="vocab_size")
    activation: str = one_of("gelu", ACTIVATIONS, hf="activation")
    init_std: float = real(0.02, hf="initializer_range")
    sinusoidal_init: bool = flag(False, hf="sinusoidal_pos_embds")
    tie_embeddings: bool = flag(True, hf="tie_word_embeddings")
    mlm_head: bool = flag(True)
    head_dim: int | None = unchecked(None, hf="head_dim", later=True)

    def __post_init__(self):
        check_fields(self)
        self.settle_head_dim()

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`; `architectures` says whether there is a head."""
        check_implemented(hf, {"pruned_heads": {}}, "distilbert")
        given = read_fields(cls, hf, ("d_model", "n_heads", "n_layers", "d_vocab"))
        (mlm_head,) = parts_named(hf, ARCHITECTURES, "DistilBertForMaskedLM", "model.distilbert")
        return cls(**given, mlm_head=mlm_head)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        architecture = "DistilBertForMaskedLM" if self.mlm_head else "DistilBertModel"
        return {"model_type": "distilbert", "architectures": [architecture], **written_fields(self)}


class DistilBert(MaskedLM):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    output_point = "ln2_normalized"

    def __init__(self, cfg: DistilBertConfig):
        super().__init__(cfg)
        self.pos_embed = Embedding(cfg.n_ctx, cfg.d_model)
        self.hook_embed = HookPoint("B L D")
        self.hook_pos_embed = HookPoint("B L D")
        self.ln_embed = LayerNorm(cfg.d_model, LN_EPS)
        block = cfg.d_model, cfg.n_heads, cfg.d_mlp, cfg.activation, LN_EPS, cfg.d_head
        self.blocks = nn.ModuleList(PostNormBlock(*block) for _ in range(cfg.n_layers))
        self.head = None
        if cfg.mlm_head:
            dense, ln = Linear(cfg.d_model, cfg.d_model), LayerNorm(cfg.d_model, LN_EPS)
            self.head = MLMHead(dense, cfg.activation, ln, cfg.d_vocab)
        self.unembed = Embedding(cfg.d_vocab, cfg.d_model) if cfg.mlm_head and not cfg.tie_embeddings else None

    def entered(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The input of the first block, [B, L, D]."""
        embed, pos_embed = self.hook_embed(self.embed(tokens)), self.hook_pos_embed(self.pos_embed(position_ids))
        return self.ln_embed(embed + pos_embed)

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before training; the seed fixes them."""
        super().init_weights(seed)
        if self.cfg.sinusoidal_init:
            self.pos_embed.weight.copy_(sinusoids(torch.arange(self.cfg.n_ctx), self.cfg.d_model))
        return self


# Translation from and to Hugging Face.

ARCHITECTURES = {"DistilBertModel": (False,), "DistilBertForMaskedLM": (True,)}  # class -> whether it has the head
_NAMES = {  # our module -> the file's
    "embed": "distilbert.embeddings.word_embeddings",
    "pos_embed": "distilbert.embeddings.position_embeddings",
    "ln_embed": "distilbert.embeddings.LayerNorm",
    "blocks.{}.attn.q": "distilbert.transformer.layer.{}.attention.q_lin",
    "blocks.{}.attn.k": "distilbert.transformer.layer.{}.attention.k_lin",
    "blocks.{}.attn.v": "distilbert.transformer.layer.{}.attention.v_lin",
    "blocks.{}.attn.out": "distilbert.transformer.layer.{}.attention.out_lin",
    "blocks.{}.ln1": "distilbert.transformer.layer.{}.sa_layer_norm",
    "blocks.{}.mlp.up": "distilbert.transformer.layer.{}.ffn.lin1",
    "blocks.{}.mlp.down": "distilbert.transformer.layer.{}.ffn.lin2",
    "blocks.{}.ln2": "distilbert.transformer.layer.{}.output_layer_norm",
    "head.dense": "vocab_transform",
    "head.ln": "vocab_layer_norm",
    "head": "vocab_projector",
    "unembed": "vocab_projector",
}


def shape(cfg: DistilBertConfig) -> ModelShape:
    """The sizes of a `DistilBertConfig`'s model."""
    return post_norm_shape("distilbert", cfg, {"position embedding": cfg.n_ctx * cfg.d_model})


FAMILY = Family(
    model_types=("distilbert",),
    config=DistilBertConfig,
    model=DistilBert,
    shape=shape,
    modules=lambda cfg: _NAMES,
    hf_prefix="distilbert.",
    twin=lambda cfg, names: encoder_twin(
        "DistilBert", cfg, post_norm_points(cfg, names, "distilbert."), "vocab_projector"
    ),
    hf_buffers=r"distilbert\.embeddings\.position_ids",  # in old files
    hf_renamed=hf_renamed,
    hf_parts=parts_by_names(mlm_head="vocab_"),
    loads="DistilBERT",
    refused="classification heads",
    hub_examples=("distilbert/distilbert-base-uncased", "distilbert/distilbert-base-multilingual-cased"),
)
