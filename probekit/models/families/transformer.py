"""The encoder-decoder, written by hand (Vaswani et al. 2017, "Attention Is All You Need").

The encoder reads the source. The decoder reads the target up to each token and, through cross-attention, the encoder's
output, and predicts the next token of the target. Both are stacks of post-norm blocks, norm(x + sublayer(x)), over
token plus position embedding, so there is no final norm. Every point has its name in TransformerLens, after "encoder."
or "decoder."; its axes are given where it is made. Exact against `transformers`' Marian, which has this architecture;
the translation of its files is at the end.

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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from probekit.errors import DataError, UsageError
from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel, check_mask, stopped
from probekit.models.cache import KeyValueCache, LayerCache
from probekit.models.config_fields import (
    check_fields,
    check_flag,
    check_implemented,
    check_multiple,
    flag,
    one_of,
    read_fields,
    real,
    size,
    token_id,
    written_fields,
)
from probekit.models.family import (
    LOGITS,
    Family,
    HfModel,
    HfPoint,
    HfTensor,
    module_input,
    weight_points,
)
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    FeedForward,
    LayerNorm,
    Mask,
    MultiHeadAttention,
    PostNormBlock,
    at_read,
    causal_mask,
    init_embedding,
    init_linear,
    linear,
)
from probekit.models.positional import ComputedTable, sinusoids, sinusoids_in_halves
from probekit.models.shapes import ModelShape, stack_shape
from probekit.text import counted

LN_EPS = 1e-5  # Marian's config has no field for it

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

    d_model: int = size(512, hf="d_model")
    n_heads: int = size(8, hf="encoder_attention_heads")
    n_decoder_heads: int = size(8, hf="decoder_attention_heads")
    d_mlp: int = size(2048, hf="encoder_ffn_dim")
    d_decoder_mlp: int = size(2048, hf="decoder_ffn_dim")
    n_layers: int = size(6, hf="encoder_layers")
    n_decoder_layers: int = size(6, hf="decoder_layers")
    n_ctx: int = size(512, hf="max_position_embeddings")
    d_vocab: int = size(37000, hf="vocab_size")
    activation: str = one_of("relu", ACTIVATIONS, hf="activation_function")
    positions: str = one_of("sinusoidal", POSITIONS)
    scale_embedding: bool = flag(True, hf="scale_embedding")
    tie_embeddings: bool = flag(True, hf="tie_word_embeddings")
    logits_bias: bool = flag(True)
    init_std: float = real(0.02, hf="init_std")
    pad_token_id: int | None = token_id(None, hf="pad_token_id")
    eos_token_id: int | None = token_id(None, hf="eos_token_id")
    bos_token_id: int | None = token_id(None, hf="bos_token_id")
    decoder_start_token_id: int | None = token_id(None, hf="decoder_start_token_id")

    def __post_init__(self):
        check_fields(self)
        check_multiple(self, "d_model", "n_heads")
        check_multiple(self, "d_model", "n_decoder_heads")
        if self.positions != "learned" and self.d_model % 2:
            raise DataError(f"sinusoidal positions need an even d_model; got {self.d_model}")
        for name in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < self.d_vocab:
                raise DataError(f"{name} must be an id in 0..{self.d_vocab - 1}; got {value}")

    @property
    def d_head(self) -> int:
        """Width of one attention head of the encoder."""
        return self.d_model // self.n_heads

    @property
    def d_decoder_head(self) -> int:
        """Width of one attention head of the decoder."""
        return self.d_model // self.n_decoder_heads

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json` of model_type "marian".

        Raises:
            DataError: a size is missing or out of range, the activation is unknown, or a field requires arithmetic that
                is not implemented here; the message names the field.
        """
        check_implemented(hf, _REQUIRED, "marian")
        sizes = {each.name for each in fields(cls) if each.type is int}
        given = read_fields(cls, hf, sizes)
        _check_sharing(hf)
        given = {"scale_embedding": False, "activation": "gelu"} | given  # transformers' defaults for Marian
        given["activation"] = {"swish": "silu"}.get(str(given["activation"]), given["activation"])
        if given.get("bos_token_id") == given.get("eos_token_id"):
            given["bos_token_id"] = None  # Marian's files name </s> there, which never begins a text
        sinusoidal = hf.get("static_position_embeddings", True)
        check_flag(sinusoidal, "static_position_embeddings")
        return cls(**given, positions="sinusoidal" if sinusoidal else "learned")

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        given = written_fields(self)
        given |= {"share_encoder_decoder_embeddings": self.tie_embeddings, "decoder_vocab_size": self.d_vocab}
        given |= {"static_position_embeddings": self.positions == "sinusoidal", "is_encoder_decoder": True}
        return {"model_type": "marian", "architectures": ["MarianMTModel"], **given}


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


class CausalAttention(MultiHeadAttention):
    """The target's self-attention, under a causal mask; a cache adds the keys and values of earlier tokens."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x_BLD: Tensor, mask: Mask, cache: LayerCache | None = None, read_BR: Tensor | None = None
    ) -> Tensor:
        keys, values = self.keys_and_values(x_BLD)
        if cache is not None:
            keys, values = cache.append(keys, values)
        return self.gather(at_read(x_BLD, read_BR), keys, values, mask)


class CrossAttention(MultiHeadAttention):
    """Attention to the source: queries from x, keys and values from the memory, the encoder's output."""

    def __init__(self, d_model: int, n_heads: int):
        super().__init__(d_model, n_heads)
        self.hook_k = HookPoint("B S H K")
        self.hook_v = HookPoint("B S H K")
        self.hook_attn_scores = HookPoint("B H L S")
        self.hook_pattern = HookPoint("B H L S")

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x_BLD: Tensor, memory_BSD: Tensor, mask_BLS: Tensor | None, cache: LayerCache | None = None
    ) -> Tensor:
        if cache is None:
            return self.gather(x_BLD, *self.keys_and_values(memory_BSD), mask_BLS)
        if cache.memory is None:
            cache.memory = self.keys_and_values(memory_BSD)
        return self.gather(x_BLD, *cache.memory, mask_BLS)


class DecoderBlock(nn.Module):
    """Post-norm: x = ln1(x + attn(x)), x = ln2(x + cross_attn(x, memory)), then ln3(x + mlp(x))."""

    def __init__(self, d_model: int, n_heads: int, d_mlp: int, activation: str, ln_eps: float):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.attn = CausalAttention(d_model, n_heads)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln1 = LayerNorm(d_model, ln_eps)
        self.cross_attn = CrossAttention(d_model, n_heads)
        self.hook_cross_attn_out = HookPoint("B L D")
        self.hook_resid_mid_cross = HookPoint("B L D")
        self.ln2 = LayerNorm(d_model, ln_eps)
        self.mlp = FeedForward(d_model, d_mlp, activation)
        self.hook_mlp_out = HookPoint("B L D")
        self.hook_resid_post = HookPoint("B L D")
        self.ln3 = LayerNorm(d_model, ln_eps)

    def forward(
        self,
        resid_BLD: Tensor,
        memory_BSD: Tensor,
        mask: Mask,
        cross_mask_BLS: Tensor | None,
        cache: LayerCache | None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn_out = self.hook_attn_out(self.attn(resid_pre, at_read(mask, read_BR), cache, read_BR))
        x_BLD = self.ln1(self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out))
        cross_mask = at_read(cross_mask_BLS, read_BR)
        cross_attn_out = self.hook_cross_attn_out(self.cross_attn(x_BLD, memory_BSD, cross_mask, cache))
        x_BLD = self.ln2(self.hook_resid_mid_cross(x_BLD + cross_attn_out))
        mlp_out = self.hook_mlp_out(self.mlp(x_BLD))
        return self.ln3(self.hook_resid_post(x_BLD + mlp_out))


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


def source_mask_for(tokens: Tensor, memory_BSD: Tensor, mask: Tensor | None) -> Tensor | None:
    """The mask [B, L, S] from target to source, from one of [B, S] or [B, L, S]; None if every source token is real.

    Raises:
        UsageError: another shape, or a target that may attend to no source token.
    """
    if mask is None:
        return None
    (batch, length), n_source = tokens.shape, memory_BSD.shape[1]
    if tuple(mask.shape) not in {(batch, n_source), (batch, length, n_source)}:
        expected = f"{[batch, n_source]} or {[batch, length, n_source]}"
        raise UsageError(f"cross_mask is {expected}; got {list(mask.shape)}")
    mask = check_mask(mask).to(tokens.device)
    if mask.dim() == 2 and not bool(mask.any(1).all()):
        raise UsageError(
            "cross_mask must let each target see a source token, and one of its rows is all false; correct it"
        )
    return mask if mask.dim() == 3 else mask[:, None].expand(batch, length, n_source)


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

    def empty_cache(self) -> KeyValueCache:
        """A cache for the tokens of the decoder."""
        return KeyValueCache(self.cfg.n_decoder_layers)

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

    def size_of(self, axis: str, short: str, layer: int | None = None) -> int | None:
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

    def drawn(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Linear maps of `init_linear`, embeddings of sigma cfg.init_std, interleaved positions by their formula."""
        if "pos_embed" in name and self.cfg.positions == "interleaved":
            return sinusoids(torch.arange(self.cfg.n_ctx), self.cfg.d_model)
        if "embed" in name:
            rounded = init_embedding(shape, generator).to(self.get_parameter(name).dtype)  # first, as it always was
            return rounded.mul_(self.cfg.init_std)
        return init_linear(shape, generator)


# Translation from and to Hugging Face.

# Other values of these fields change the arithmetic in ways that this file does not implement.
_REQUIRED = {
    "normalize_before": False,
    "normalize_embedding": False,
    "layernorm_embedding": False,
    "add_final_layer_norm": False,
    "is_encoder_decoder": True,
    "is_decoder": False,
    "head_dim": None,
}


def _check_sharing(hf: Mapping[str, Any]) -> None:
    shared, tied = hf.get("share_encoder_decoder_embeddings", True), hf.get("tie_word_embeddings", True)
    if shared != tied:
        raise DataError(
            f"share_encoder_decoder_embeddings = {shared!a:.60} with tie_word_embeddings = {tied!a:.60} is not "
            f"implemented: source embedding, target embedding and head are one matrix (both true) or three (both false)"
        )
    if hf.get("decoder_vocab_size", hf["vocab_size"]) not in (hf["vocab_size"], None):
        raise DataError(
            f"decoder_vocab_size = {hf['decoder_vocab_size']!a:.60} is not implemented; it must equal that of the "
            f"source, vocab_size = {hf['vocab_size']}"
        )


_COPIES = [f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")]  # of the shared embedding


def _attention_names(stack: str, ours: str, theirs: str) -> dict[str, str]:
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}
    return {f"{stack}.blocks.{{}}.{ours}.{x}": f"model.{stack}.layers.{{}}.{theirs}.{names[x]}" for x in names}


def modules(cfg: TransformerConfig) -> dict[str, str]:
    """Our modules and single weights by their names in a Hugging Face Marian file."""
    modules = {"logits_bias": "final_logits_bias", "unembed": "lm_head", "target_embed": "model.decoder.embed_tokens"}
    modules["embed"] = "model.shared" if cfg.tie_embeddings else "model.encoder.embed_tokens"
    norms = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}
    for stack in norms:
        inside = {"mlp.up": "fc1", "mlp.down": "fc2"}
        inside |= {f"ln{i}": f"{name}_layer_norm" for i, name in enumerate(norms[stack], 1)}
        modules |= {f"{stack}.blocks.{{}}.{ours}": f"model.{stack}.layers.{{}}.{x}" for ours, x in inside.items()}
        modules |= _attention_names(stack, "attn", "self_attn")
        modules[f"{stack}.pos_embed"] = f"model.{stack}.embed_positions"
    modules |= _attention_names("decoder", "cross_attn", "encoder_attn")
    return modules


def hf_parts(cfg: TransformerConfig, names: Collection[str]) -> TransformerConfig:
    """The config of what a file holds.

    Position tables in a file are always loaded as learned ones, as `transformers` does: old files store the sinusoids
    as tables. A file of a bare model has no bias for the head, and the model then has none.
    """
    stored = any(f"model.{stack}.embed_positions.weight" in names for stack in ("encoder", "decoder"))
    return replace(cfg, positions="learned" if stored else cfg.positions, logits_bias="final_logits_bias" in names)


def shape(cfg: TransformerConfig) -> ModelShape:
    """The sizes of a `TransformerConfig`'s model."""
    D, V = cfg.d_model, cfg.d_vocab
    decoder = {"n_layers": cfg.n_decoder_layers, "n_heads": cfg.n_decoder_heads, "n_kv_heads": cfg.n_decoder_heads}
    decoder |= {"d_head": D // cfg.n_decoder_heads, "d_mlp": cfg.d_decoder_mlp, "norms": ("ln1", "ln2", "ln3")}
    stacks = stack_shape(cfg, name="encoder"), stack_shape(cfg, **decoder, name="decoder", cross=True)
    tables = 1 if cfg.tie_embeddings else 2  # of source and target
    outside = {"token embedding": tables * V * D}
    if cfg.positions != "sinusoidal":
        outside |= {"position embedding": 2 * cfg.n_ctx * D}
    outside |= {"head": (0 if cfg.tie_embeddings else V * D) + (V if cfg.logits_bias else 0)}
    sums = 2 if cfg.scale_embedding else 1
    logits = 2 * V if cfg.logits_bias else V
    return ModelShape("marian", stacks, V, cfg.n_ctx, outside, sums, outer_norms=0, head_products=V * D, logits=logits)


def _position_rows(_: tuple, output: Any) -> Any:
    """Rows of a position table, with the batch axis that they may lack."""
    return output if output.dim() == 3 else output[None]


def twin(cfg: TransformerConfig, names: Mapping[str, HfTensor]) -> HfModel:
    """The classes of transformers, and where they compute our points."""
    points = weight_points(names, {"resid_mid": "ln1", "resid_mid_cross": "ln2"})
    for stack in ("encoder", "decoder"):
        points[f"{stack}.resid_post"] = HfPoint(f"model.{stack}.layers.{{layer}}.final_layer_norm", module_input)
        points[f"{stack}.pos_embed"] = HfPoint(f"model.{stack}.embed_positions", _position_rows)
    points[LOGITS] = HfPoint("", lambda _, output: output.logits)
    own = {"embed", "encoder.resid_mid_cross"}  # the table is read twice; an encoder has no cross-attention
    return HfModel("MarianConfig", "MarianMTModel", {x: place for x, place in points.items() if x not in own})


FAMILY = Family(
    model_types=("marian",),
    config=TransformerConfig,
    model=Transformer,
    shape=shape,
    modules=modules,
    hf_prefix="model.",
    twin=twin,
    copies=lambda cfg: dict.fromkeys(_COPIES, "model.shared.weight") if cfg.tie_embeddings else {},
    hf_parts=hf_parts,
    loads="Marian, the original encoder-decoder",
    refused="pre-norm blocks, a norm of the embeddings",
    hub_examples=("Helsinki-NLP/opus-mt-en-de",),
)
