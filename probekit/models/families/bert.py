"""BERT, written by hand (Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers").

An encoder: token, position and segment embedding under a norm, then post-norm blocks (Vaswani et al. 2017) in which
every token attends to every other. After the last block come the heads of its training: one that predicts masked
tokens, and one that classifies the first token ([CLS]) into two classes. Every point has its name in TransformerLens;
its axes are given where it is made. Exact against `transformers`' BERT; the translation of its files is at the end.

Identities of these blocks: resid_pre + attn_out = resid_mid; ln1_normalized + mlp_out = resid_post; ln2_normalized is
the next block's resid_pre, and after the last block the model's output. The norms are part of the residual stream, so a
block's resid_post is not the next one's resid_pre.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from probekit.errors import DataError, UsageError
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
from probekit.models.layers import ACTIVATIONS, Linear, truncated_normal
from probekit.models.masked_lm import (
    SegmentedLM,
    encoder_twin,
    hf_renamed,
    parts_named,
    pooler_shape,
    post_norm_points,
    post_norm_shape,
)
from probekit.models.shapes import ModelShape


@dataclass(frozen=True)
class BertConfig(SharedWidth):
    """The sizes and parts of a BERT; the defaults are those of the base model (uncased).

    Attributes:
        n_segments: how many segment ids there are (token_type_ids).
        pooler: whether there is a pooler, a layer on the first token's output.
        mlm_head: whether there is the head that predicts masked tokens.
        seq_head: whether there is the two-class head, which reads the pooler.
        head_dim: width of an attention head where it is not d_model / n_heads; `d_head` is the width in either case.
    """

    d_model: int = size(768, hf="hidden_size")
    n_heads: int = size(12, hf="num_attention_heads")
    d_mlp: int = size(3072, hf="intermediate_size")
    n_layers: int = size(12, hf="num_hidden_layers")
    n_ctx: int = size(512, hf="max_position_embeddings")
    d_vocab: int = size(30522, hf="vocab_size")
    n_segments: int = size(2, hf="type_vocab_size")
    activation: str = one_of("gelu", ACTIVATIONS, hf="hidden_act")
    ln_eps: float = real(1e-12, hf="layer_norm_eps")
    init_std: float = real(0.02, hf="initializer_range")
    tie_embeddings: bool = flag(True, hf="tie_word_embeddings")
    pooler: bool = flag(True)
    mlm_head: bool = flag(True)
    seq_head: bool = flag(True)
    head_dim: int | None = unchecked(None, hf="head_dim", later=True)

    def __post_init__(self):
        check_fields(self)
        self.settle_head_dim()
        if self.seq_head and not self.pooler:
            raise DataError(
                "the two-class head (seq_head) reads the pooler, and there is none (pooler is false); give both or "
                "neither"
            )

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`; its `architectures` says which heads there are."""
        check_implemented(hf, REQUIRED, "bert")
        given = read_fields(cls, hf, ("d_model", "n_heads", "n_layers", "d_vocab"))
        parts = parts_named(hf, ARCHITECTURES, "BertForPreTraining", "model.bert")
        return cls(**given, **dict(zip(("pooler", "mlm_head", "seq_head"), parts, strict=True)))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        heads = self.mlm_head, self.seq_head
        architecture = next(name for name, (_, *has) in ARCHITECTURES.items() if tuple(has) == heads)
        return {"model_type": "bert", "architectures": [architecture], **written_fields(self)}


class Bert(SegmentedLM):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    def __init__(self, cfg: BertConfig):
        super().__init__(cfg, cfg.n_ctx, cfg.activation)
        self.seq_head = Linear(cfg.d_model, 2) if cfg.seq_head else None

    def classify(self, output_BLD: Tensor) -> Tensor:
        """Logits of the two classes, [B, 2], from the last block's output at the first token: pad on the right only.

        In Devlin et al., class 0 means that the second segment follows the first in its source, class 1 that it does
        not.

        Raises:
            UsageError: the checkpoint has no such head.
        """
        if self.pooler is None or self.seq_head is None:
            raise UsageError(f"the checkpoint of {self.name} has no two-class head; load one that was saved with it")
        return self.seq_head(self.pooler(output_BLD[:, 0]).tanh())

    def drawn(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """As BERT's training starts: normal, truncated at two sigma."""
        return truncated_normal(shape, self.cfg.init_std, 2, generator)


# Translation from and to Hugging Face.

ARCHITECTURES = {  # class in config.json -> which it has of pooler, mlm_head, seq_head
    "BertModel": (True, False, False),
    "BertForMaskedLM": (False, True, False),
    "BertForNextSentencePrediction": (True, False, True),
    "BertForPreTraining": (True, True, True),
}
# Other values of these fields change the arithmetic in ways that this file does not implement.
REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
}


BODY = {  # our module -> the file's, below the heads and without the prefix
    "embed": "embeddings.word_embeddings",
    "pos_embed": "embeddings.position_embeddings",
    "token_type_embed": "embeddings.token_type_embeddings",
    "ln_embed": "embeddings.LayerNorm",
    "blocks.{}.attn.q": "encoder.layer.{}.attention.self.query",
    "blocks.{}.attn.k": "encoder.layer.{}.attention.self.key",
    "blocks.{}.attn.v": "encoder.layer.{}.attention.self.value",
    "blocks.{}.attn.out": "encoder.layer.{}.attention.output.dense",
    "blocks.{}.ln1": "encoder.layer.{}.attention.output.LayerNorm",
    "blocks.{}.mlp.up": "encoder.layer.{}.intermediate.dense",
    "blocks.{}.mlp.down": "encoder.layer.{}.output.dense",
    "blocks.{}.ln2": "encoder.layer.{}.output.LayerNorm",
    "pooler": "pooler.dense",
}
_BIAS, _DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"


def modules(cfg: BertConfig) -> dict[str, str]:
    """Our modules and single weights by their names in a Hugging Face file."""
    heads = {
        "seq_head": "cls.seq_relationship",
        "head.dense": "cls.predictions.transform.dense",
        "head.ln": "cls.predictions.transform.LayerNorm",
        "head.bias": _BIAS if cfg.tie_embeddings else _DECODER_BIAS,
        "unembed": "cls.predictions.decoder",
    }
    return {ours: f"bert.{theirs}" for ours, theirs in BODY.items()} | heads


def shape(cfg: BertConfig) -> ModelShape:
    """The sizes of a `BertConfig`'s model."""
    D = cfg.d_model
    tables = {"position embedding": cfg.n_ctx * D, "segment embedding": cfg.n_segments * D}
    heads = {"sequence head": 2 * D + 2} if cfg.seq_head else {}
    return post_norm_shape("bert", cfg, tables, (pooler_shape(cfg) if cfg.pooler else {}) | heads)


FAMILY = Family(
    model_types=("bert",),
    config=BertConfig,
    model=Bert,
    shape=shape,
    modules=modules,
    hf_prefix="bert.",
    twin=lambda cfg, names: encoder_twin(
        "Bert", cfg, post_norm_points(cfg, names, "bert."), "cls.predictions", "ForPreTraining"
    ),
    # an untied decoder has its own bias, and `transformers` then does not use the other one
    copies=lambda cfg: {_DECODER_BIAS: _BIAS} if cfg.tie_embeddings else {_BIAS: None},
    hf_buffers=r"bert\.embeddings\.(position_ids|token_type_ids)",  # in old files
    hf_renamed=hf_renamed,
    hf_parts=parts_by_names(pooler="bert.pooler.", mlm_head="cls.predictions.", seq_head="cls.seq_relationship."),
    loads="BERT with any of its heads, old files included",
    refused="decoders, relative positions, classification heads",
    hub_examples=("google-bert/bert-base-uncased", "google-bert/bert-large-cased"),
)
