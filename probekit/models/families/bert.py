"""BERT, written by hand (Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers").

An encoder: token, position and segment embedding under a norm, then post-norm blocks (Vaswani et al. 2017) in which
every token attends to every other. After the last block come the heads of its training: one that predicts masked
tokens, and one that classifies the first token ([CLS]) into two classes. Every point has its name in TransformerLens;
its axes are given where it is made. Exact against `transformers`' BERT; `bert_hf.py` translates its files.

Identities of these blocks: resid_pre + attn_out = resid_mid; ln1_normalized + mlp_out = resid_post; ln2_normalized is
the next block's resid_pre, and after the last block the model's output. The norms are part of the residual stream, so a
block's resid_post is not the next one's resid_pre.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from probekit.errors import DataError, UsageError
from probekit.hooks import HookPoint
from probekit.models.base import stopped
from probekit.models.config_checks import (
    check_choice,
    check_dimension,
    check_flag,
    check_positive_number,
    head_width,
    hf_field,
    own_head_dim,
)
from probekit.models.config_fields import later
from probekit.models.families import bert_hf
from probekit.models.families.masked_lm import MaskedLM, MLMHead
from probekit.models.family import Family
from probekit.models.layers import ACTIVATIONS, Embedding, LayerNorm, Linear, PostNormBlock

SIZES = ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab", "n_segments")
_named = partial(hf_field, bert_hf.OURS)


@dataclass(frozen=True)
class BertConfig:
    """The sizes and parts of a BERT; the defaults are those of the base model (uncased).

    Attributes:
        n_segments: how many segment ids there are (token_type_ids).
        pooler: whether there is a pooler, a layer on the first token's output.
        mlm_head: whether there is the head that predicts masked tokens.
        seq_head: whether there is the two-class head, which reads the pooler.
        head_dim: width of an attention head where it is not d_model / n_heads; `d_head` is the width in either case.
    """

    d_model: int = 768
    n_heads: int = 12
    d_mlp: int = 3072
    n_layers: int = 12
    n_ctx: int = 512
    d_vocab: int = 30522
    n_segments: int = 2
    activation: str = "gelu"
    ln_eps: float = 1e-12
    init_std: float = 0.02
    tie_embeddings: bool = True
    pooler: bool = True
    mlm_head: bool = True
    seq_head: bool = True
    head_dim: int | None = later(None)

    def __post_init__(self):
        for field in SIZES:
            check_dimension(field, getattr(self, field), _named(field))
        object.__setattr__(self, "head_dim", own_head_dim(self, _named))
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        for field in ("ln_eps", "init_std"):
            check_positive_number(getattr(self, field), _named(field))
        for field in ("tie_embeddings", *bert_hf.PARTS):
            check_flag(getattr(self, field), _named(field))
        if self.seq_head and not self.pooler:
            raise DataError(
                "the two-class head (seq_head) reads the pooler, and there is none (pooler is false); give both or "
                "neither"
            )

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return head_width(self)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "BertConfig":
        """The config in the fields of a Hugging Face `config.json`; its `architectures` says which heads there are.

        Raises:
            DataError: a size is missing or out of range, the activation is unknown, or a field requires arithmetic that
                is not implemented here; the message names the field.
        """
        return cls(**bert_hf.fields_from_hf(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        return bert_hf.fields_to_hf(self)


class Bert(MaskedLM):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    output_point = "ln2_normalized"

    def __init__(self, cfg: BertConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.pos_embed = Embedding(cfg.n_ctx, cfg.d_model)
        self.token_type_embed = Embedding(cfg.n_segments, cfg.d_model)
        self.hook_embed = HookPoint("B L D")
        self.hook_pos_embed = HookPoint("B L D")
        self.hook_token_type_embed = HookPoint("B L D")
        self.ln_embed = LayerNorm(cfg.d_model, cfg.ln_eps)
        block = cfg.d_model, cfg.n_heads, cfg.d_mlp, cfg.activation, cfg.ln_eps, cfg.d_head
        self.blocks = nn.ModuleList(PostNormBlock(*block) for _ in range(cfg.n_layers))
        self.head = MLMHead(cfg.d_model, cfg.d_vocab, cfg.activation, cfg.ln_eps) if cfg.mlm_head else None
        self.unembed = Embedding(cfg.d_vocab, cfg.d_model) if cfg.mlm_head and not cfg.tie_embeddings else None
        self.pooler = Linear(cfg.d_model, cfg.d_model) if cfg.pooler else None
        self.seq_head = Linear(cfg.d_model, 2) if cfg.seq_head else None

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """The masked-token head's logits [B, L, V] of tokens [B, L].

        Args:
            tokens: int ids [B, L].
            position_ids: [B, L]; by default counted from the mask, so padding on either side changes nothing.
            attention_mask: [B, L], true at real tokens; or [B, L, M], true where L may attend to M (used unchanged).
                None: no padding. With position_ids and a mask [B, L, M], L may exceed the context: several texts in
                one row.
            stop_at_layer: run the blocks before this one and return its input, `resid_pre`, [B, L, D]; n_layers gives
                the last block's output.
            return_logits: False skips the head and returns the last block's output, [B, L, D].
            token_type_ids: the segment of each token, int [B, L]; None means segment 0 everywhere.

        Raises:
            UsageError: an invalid shape, id, length or layer; or the checkpoint has no head to give logits.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        segments = self.check_segments(tokens, token_type_ids)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids)
        reads = self.reads(tokens, position_ids, mask, stop)
        embed, pos_embed = self.hook_embed(self.embed(tokens)), self.hook_pos_embed(self.pos_embed(position_ids))
        start, resid_BLD = self.started(
            self.ln_embed(embed + pos_embed + self.hook_token_type_embed(self.token_type_embed(segments)))
        )
        for block, read_BR in zip(self.blocks[start:stop], reads[start:], strict=True):
            resid_BLD = block(resid_BLD, mask, read_BR)
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        return self.headed(resid_BLD, return_logits)

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

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as BERT's training starts: normal, truncated at two sigma; zero biases, norms of gain 1."""
        generator = torch.Generator().manual_seed(seed)
        std = self.cfg.init_std
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
            elif ".ln" in name or name.startswith("ln"):
                weight.fill_(1)
            else:
                drawn = torch.empty(weight.shape)
                weight.copy_(nn.init.trunc_normal_(drawn, std=std, a=-2 * std, b=2 * std, generator=generator))
        return self


FAMILY = Family(
    model_types=("bert",),
    config=BertConfig,
    model=Bert,
    shape=bert_hf.shape,
    hf_names=bert_hf.hf_names,
    hf_prefix=bert_hf.HF_PREFIX,
    hf_model=bert_hf.hf_model,
    hf_ties=bert_hf.hf_ties,
    hf_buffers=bert_hf.HF_BUFFERS,
    hf_renamed=bert_hf.hf_renamed,
    hf_parts=bert_hf.hf_parts,
    loads="BERT with any of its heads, old files included",
    refused="decoders, relative positions, classification heads",
    hub_examples=("google-bert/bert-base-uncased", "google-bert/bert-large-cased"),
)
