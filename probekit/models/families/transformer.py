"""The encoder-decoder, written by hand (Vaswani et al. 2017, "Attention Is All You Need").

The encoder reads the source. The decoder reads the target up to each token and, through cross-attention, the encoder's
output, and predicts the next token of the target. Both are stacks of post-norm blocks, norm(x + sublayer(x)), over
token plus position embedding, so there is no final norm. Every point has its name in TransformerLens, after "encoder."
or "decoder."; its axes are given where it is made. Exact against `transformers`' Marian, which has this architecture;
`transformer_hf.py` translates its files.

Sinusoids come in halves, sines before cosines, as in Marian, or interleaved, as in the paper: a permutation of the
stream's axes.

Identities of each block (each reads the output of the one before):
    encoder: resid_pre + attn_out = resid_mid; ln1_normalized + mlp_out = resid_post; ln2_normalized = resid_pre.{i+1}
    decoder: resid_pre + attn_out = resid_mid; ln1_normalized + cross_attn_out = resid_mid_cross;
             ln2_normalized + mlp_out = resid_post; ln3_normalized = resid_pre.{i+1}

Axes: B batch, S source position, L query position, M key position, R position to read, D d_model, H heads,
K d_head, F d_mlp, V vocab.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from probekit.errors import DataError, UsageError
from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel, stopped
from probekit.models.cache import KeyValueCache
from probekit.models.config_checks import (
    check_choice,
    check_dimension,
    check_flag,
    check_id,
    check_multiple,
    check_positive_number,
    hf_field,
)
from probekit.models.families import transformer_hf
from probekit.models.families.cross_attention import DecoderBlock, source_mask_for
from probekit.models.family import Family
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    Mask,
    PostNormBlock,
    causal_mask,
    init_embedding,
    init_linear,
    linear,
)
from probekit.models.positional import ComputedTable, sinusoids, sinusoids_in_halves
from probekit.text import counted

LN_EPS = 1e-5  # Marian's config has no field for it

IDS = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id")
_named = partial(hf_field, transformer_hf.OURS)
POSITIONS = ("sinusoidal", "interleaved", "learned")


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes and options of an encoder-decoder; the defaults are those of the paper's base model.

    Attributes:
        n_heads, d_mlp, n_layers: the encoder's; the decoder has its own.
        n_ctx: the longest source and the longest target.
        d_vocab: size of the vocabulary, which source and target share.
        positions: "sinusoidal" (all sines first, then all cosines, as in Marian), "interleaved" (the paper's sinusoids:
            sines in even places, cosines in odd ones) or "learned". A saved model keeps interleaved ones as a table,
            which is read as learned.
        scale_embedding: whether token embeddings are multiplied by sqrt(d_model) before positions are added.
        tie_embeddings: whether source embedding, target embedding and head are one matrix; otherwise three.
        logits_bias: whether the head has a bias.
        init_std: standard deviation of the embeddings before training.
    """

    d_model: int = 512
    n_heads: int = 8
    n_decoder_heads: int = 8
    d_mlp: int = 2048
    d_decoder_mlp: int = 2048
    n_layers: int = 6
    n_decoder_layers: int = 6
    n_ctx: int = 512
    d_vocab: int = 37000
    activation: str = "relu"
    positions: str = "sinusoidal"
    scale_embedding: bool = True
    tie_embeddings: bool = True
    logits_bias: bool = True
    init_std: float = 0.02
    pad_token_id: int | None = None
    eos_token_id: int | None = None
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = None

    def __post_init__(self):
        for field in transformer_hf.SIZES:
            check_dimension(field, getattr(self, field), _named(field))
        for field in ("n_heads", "n_decoder_heads"):
            check_multiple(self.d_model, "d_model", getattr(self, field), _named(field))
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        check_choice(self.positions, POSITIONS, "positions")
        if self.positions != "learned" and self.d_model % 2:
            raise DataError(f"sinusoidal positions need an even d_model; got {self.d_model}")
        for field in ("scale_embedding", "tie_embeddings", "logits_bias"):
            check_flag(getattr(self, field), _named(field))
        check_positive_number(self.init_std, "init_std")
        for field in IDS:
            _check_id(field, getattr(self, field), self.d_vocab)

    @property
    def d_head(self) -> int:
        """Width of one attention head of the encoder."""
        return self.d_model // self.n_heads

    @property
    def d_decoder_head(self) -> int:
        """Width of one attention head of the decoder."""
        return self.d_model // self.n_decoder_heads

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "TransformerConfig":
        """The config in the fields of a Hugging Face `config.json` of model_type "marian".

        Raises:
            DataError: a size is missing or out of range, the activation is unknown, or a field requires arithmetic that
                is not implemented here; the message names the field.
        """
        return cls(**transformer_hf.fields_from_hf(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        return transformer_hf.fields_to_hf(self)


def _check_id(field: str, value: Any, d_vocab: int) -> None:
    check_id(value, field)
    if value is not None and not 0 <= value < d_vocab:
        raise DataError(f"{field} must be an id in 0..{d_vocab - 1}; got {value}")


class TokenStack(nn.Module):
    """The base of encoder and decoder: positions added to token embeddings, and a list of blocks."""

    def __init__(self, cfg: TransformerConfig, blocks: Iterable[nn.Module]):
        super().__init__()
        self.hook_embed = HookPoint("B L D")
        table = partial(sinusoids_in_halves, d_model=cfg.d_model)
        computed = cfg.positions == "sinusoidal"
        self.pos_embed = ComputedTable(table, cfg.n_ctx) if computed else Embedding(cfg.n_ctx, cfg.d_model)
        if cfg.positions == "interleaved":  # a weight that is not trained: config.json has no field for this order
            self.pos_embed.requires_grad_(False)
        self.hook_pos_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(blocks)

    def enter(self, embed_BLD: Tensor, position_ids: Tensor) -> Tensor:
        """The input of the first block, [B, L, D]."""
        pos_embed_BLD = self.pos_embed(position_ids).to(embed_BLD.dtype).expand_as(embed_BLD)
        return self.hook_embed(embed_BLD) + self.hook_pos_embed(pos_embed_BLD)


class Encoder(TokenStack):
    """The stack that reads the source."""

    def __init__(self, cfg: TransformerConfig):
        block = cfg.d_model, cfg.n_heads, cfg.d_mlp, cfg.activation, LN_EPS
        super().__init__(cfg, (PostNormBlock(*block) for _ in range(cfg.n_layers)))

    def forward(self, embed_BSD: Tensor, position_ids: Tensor, mask: Mask, reads: list[Tensor | None]) -> Tensor:
        resid_BSD = self.enter(embed_BSD, position_ids)
        for block, read_BR in zip(self.blocks, reads, strict=False):
            resid_BSD = block(resid_BSD, mask, read_BR)
        return stopped(self.blocks, resid_BSD, len(reads))


class Decoder(TokenStack):
    """The stack that reads the target so far, and the encoder's output."""

    def __init__(self, cfg: TransformerConfig):
        block = cfg.d_model, cfg.n_decoder_heads, cfg.d_decoder_mlp, cfg.activation, LN_EPS
        super().__init__(cfg, (DecoderBlock(*block) for _ in range(cfg.n_decoder_layers)))

    def forward(
        self,
        embed_BLD: Tensor,
        position_ids: Tensor,
        memory_BSD: Tensor,
        mask_BLM: Tensor,
        cross_mask_BLS: Tensor | None,
        reads: list[Tensor | None],
        cache: KeyValueCache | None,
    ) -> Tensor:
        resid_BLD = self.enter(embed_BLD, position_ids)
        for i, (block, read_BR) in enumerate(zip(self.blocks, reads, strict=False)):
            of_layer = None if cache is None else cache[i]
            resid_BLD = block(resid_BLD, memory_BSD, mask_BLM, cross_mask_BLS, of_layer, read_BR)
        return stopped(self.blocks, resid_BLD, len(reads))


class Transformer(LanguageModel):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    causal = False  # the encoder; the decoder is causal
    output_point = "ln2_normalized"  # the encoder's; the decoder's is ln3_normalized
    stack = "encoder."

    def __init__(self, cfg: TransformerConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.encoder = Encoder(cfg)
        self.target_embed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)
        self.decoder = Decoder(cfg)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)
        self.logits_bias = nn.Parameter(torch.empty(1, cfg.d_vocab)) if cfg.logits_bias else None

    def forward(
        self,
        source: Tensor,
        tokens: Tensor,
        source_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
    ) -> Tensor:
        """Logits [B, L, V] of a target [B, L], given its source [B, S]: `decode` after `encode`.

        Args:
            source: int ids [B, S].
            tokens: int ids [B, L] of the target, starting with the decoder's start token.
            source_mask: [B, S], true at real tokens of the source.
            attention_mask: the target's, as in `decode`.
            stop_at_layer: the decoder's, as in `decode`.
            return_logits: as in `decode`.

        Raises:
            UsageError: an invalid shape, id, length or layer.
        """
        if source_mask is not None and source_mask.dim() != 2:
            raise UsageError(
                f"source_mask is [B, S], true at real tokens; got {list(source_mask.shape)}: "
                f"several sources in one row go through encode(...) and decode(...)"
            )
        memory_BSD = self.encode(source, attention_mask=source_mask)
        return self.decode(
            tokens,
            memory_BSD,
            attention_mask=attention_mask,
            cross_mask=source_mask,
            stop_at_layer=stop_at_layer,
            return_logits=return_logits,
        )

    def encode(
        self,
        source: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
    ) -> Tensor:
        """The encoder's output [B, S, D] for a source [B, S]: the decoder's memory.

        Args:
            source: int ids [B, S].
            position_ids: [B, S]; by default counted from the mask, so padding on either side changes nothing.
            attention_mask: [B, S], true at real tokens; or [B, S, M], true where S may attend to M (used unchanged).
                None: no padding. With position_ids and a mask [B, S, M], S may exceed the context: several sources in
                one row.
            stop_at_layer: run the blocks before this one and return its input, `encoder.resid_pre`, [B, S, D].

        Raises:
            UsageError: an invalid shape, id, length or layer.
        """
        source = self.check_tokens(source, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(source, attention_mask, position_ids)
        reads = self.reads(source, position_ids, mask, stop)
        return self.encoder(self._scaled(self.embed(source)), position_ids, mask, reads)

    def decode(
        self,
        tokens: Tensor,
        memory: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cross_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Logits [B, L, V] of a target [B, L], given the encoder's output for its source.

        Args:
            tokens: int ids [B, L] of the target, starting with the decoder's start token.
            memory: [B, S, D], from `encode`.
            position_ids: [B, L]; by default counted from the mask.
            attention_mask: [B, L], true at real tokens; or [B, L, M], true where L may attend to M (used unchanged, so
                it must be causal). None: no padding, or right padding whose outputs are ignored. With position_ids and
                a mask [B, L, M], L may exceed the context: several targets in one row.
            cross_mask: [B, S], true at real tokens of the source; or [B, L, S], true where L may attend to S.
            stop_at_layer: run the blocks before this one and return its input, `decoder.resid_pre`, [B, L, D].
            return_logits: False skips the head and returns the last block's output, [B, L, D].
            cache: keys and values of earlier tokens; those of `tokens` are added. Requires position_ids and a mask
                [B, L, M] over all M tokens so far. The first call also stores the keys and values of the memory, so a
                cache belongs to one memory.

        Raises:
            UsageError: an invalid shape, id, length or layer.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_decoder_layers)
        mask_BLM, position_ids = self._target_mask_and_positions(tokens, attention_mask, position_ids, cache)
        memory_BSD = self._check_memory(tokens, memory)
        if cache is not None and len(cache) < self.cfg.n_decoder_layers:
            raise UsageError(
                f"the cache has {counted(len(cache), 'layer')}, and the decoder {self.cfg.n_decoder_layers}; give it "
                "its own cache"
            )
        cross_mask_BLS = source_mask_for(tokens, memory_BSD, cross_mask)
        embed_BLD = self._scaled((self.target_embed or self.embed)(tokens))
        reads = self.reads(tokens, position_ids, mask_BLM, stop)
        out_BLD = self.decoder(embed_BLD, position_ids, memory_BSD, mask_BLM, cross_mask_BLS, reads, cache)
        return self.head(out_BLD) if return_logits and stop_at_layer is None else out_BLD

    def head(self, out_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the output of the decoder's last block."""
        logits_BLV = linear(out_BLD, (self.unembed or self.embed).weight, None)
        return logits_BLV if self.logits_bias is None else logits_BLV + self.logits_bias

    def output_of(self, short: str) -> str:
        """The point of the last block's output; the decoder's blocks end with a third norm."""
        return "decoder.ln3_normalized" if short.startswith("decoder.") else "encoder.ln2_normalized"

    def size_of(self, axis: str, short: str) -> int | None:
        """The size of an axis; decoder and encoder may differ in their heads and their feed-forward layers' width."""
        cfg = self.cfg
        sizes = {"H": cfg.n_decoder_heads, "K": cfg.d_decoder_head, "F": cfg.d_decoder_mlp}
        return sizes[axis] if axis in sizes and short.startswith("decoder.") else super().size_of(axis, short)

    def _scaled(self, embed_BLD: Tensor) -> Tensor:
        return embed_BLD * math.sqrt(self.cfg.d_model) if self.cfg.scale_embedding else embed_BLD

    def _target_mask_and_positions(
        self, tokens: Tensor, mask: Tensor | None, position_ids: Tensor | None, cache: KeyValueCache | None
    ) -> tuple[Tensor, Tensor]:
        """`mask_and_positions` with a causal mask where the given one is [B, L] or None."""
        mask_BLM, position_ids = self.mask_and_positions(tokens, mask, position_ids, cache)
        if not isinstance(mask_BLM, Tensor) or mask is None or mask.dim() == 2:
            mask_BLM = causal_mask(torch.ones_like(tokens) if mask is None else mask.to(tokens.device))
        return mask_BLM, position_ids

    def _check_memory(self, tokens: Tensor, memory: Tensor) -> Tensor:
        if memory.dim() != 3 or (len(memory), memory.shape[2]) != (len(tokens), self.cfg.d_model):
            raise UsageError(
                f"memory is the output of encode(source), [{len(tokens)}, S, {self.cfg.d_model}]; "
                f"got {list(memory.shape)}"
            )
        return memory.to(self.device)

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before training: linear maps by `init_linear`, embeddings with sigma cfg.init_std."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
            elif ".ln" in name:
                weight.fill_(1)
            elif "pos_embed" in name and self.cfg.positions == "interleaved":
                weight.copy_(sinusoids(torch.arange(self.cfg.n_ctx), self.cfg.d_model))
            elif "embed" in name:
                init_embedding(weight, generator)
                weight.mul_(self.cfg.init_std)
            else:
                init_linear(weight, generator)
        return self


FAMILY = Family(
    model_types=("marian",),
    config=TransformerConfig,
    model=Transformer,
    shape=transformer_hf.shape,
    hf_names=transformer_hf.hf_names,
    hf_prefix=transformer_hf.HF_PREFIX,
    hf_model=transformer_hf.hf_model,
    hf_ties=transformer_hf.hf_ties,
    hf_parts=transformer_hf.hf_parts,
    loads="Marian, the original encoder-decoder",
    refused="pre-norm blocks, a norm of the embeddings",
    hub_examples=("Helsinki-NLP/opus-mt-en-de",),
)
