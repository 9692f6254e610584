"""BERT, written by hand (Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers").

An encoder: token, position and segment embedding under a norm, then blocks in which every token attends to every other
and the norms stand behind the sums (post-norm, as in Vaswani et al. 2017). Above the last block stand the heads of its
training: one that names masked tokens, and one that reads the first token ([CLS]) and answers with one of two classes.
Every point is named as in TransformerLens; its axes stand where it is made. Exact against `transformers`' BERT, whose
fields and tensor names `BertConfig.from_hf` and `hf_names` read.

What holds in these blocks: resid_pre + attn_out = resid_mid; ln1_normalized + mlp_out = resid_post;
ln2_normalized = the next block's resid_pre, and of the last block the model's output. So the stream itself passes
through the norms, and resid_post of a block is not resid_pre of the next.

Axes: B batch, L query position, M key position, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from probekit.errors import DataError, UsageError
from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel, stopped
from probekit.models.checks import (
    check_choice,
    check_flag,
    check_implemented,
    check_multiple,
    check_positive,
    check_size,
    named,
)
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    linear,
)
from probekit.models.weights import HfTensor

# Values of config.json that would change the arithmetic in a way that this file does not implement.
_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "quantization_config": None,
}
OURS = {  # field of a Hugging Face config.json -> ours
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_mlp",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "n_ctx",
    "vocab_size": "d_vocab",
    "type_vocab_size": "n_segments",
    "hidden_act": "activation",
    "layer_norm_eps": "ln_eps",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "init_std",
}
SIZES = ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab", "n_segments")
_named = partial(named, OURS)
PARTS = ("pooler", "mlm_head", "seq_head")
ARCHITECTURES = {  # of a Hugging Face config.json -> which of PARTS it has
    "BertModel": (True, False, False),
    "BertForMaskedLM": (False, True, False),
    "BertForNextSentencePrediction": (True, False, True),
    "BertForPreTraining": (True, True, True),
}


@dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT; the fields of the base model (uncased) are the defaults.

    Attributes:
        n_segments: how many kinds of segment there are (token_type_ids).
        pooler: whether there is a pooler: a layer on the first token's output.
        mlm_head: whether there is the head that names masked tokens.
        seq_head: whether there is the head of two classes, which reads the pooler.
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

    def __post_init__(self):
        for field in SIZES:
            check_size(field, getattr(self, field), _named(field))
        check_multiple(self.d_model, _named("d_model"), self.n_heads, _named("n_heads"))
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        for field in ("ln_eps", "init_std"):
            check_positive(getattr(self, field), _named(field))
        for field in ("tie_embeddings", *PARTS):
            check_flag(getattr(self, field), _named(field))
        if self.seq_head and not self.pooler:
            raise DataError("the head of two classes (seq_head) reads the pooler, and there is none (pooler is false)")

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "BertConfig":
        """From the fields of a Hugging Face `config.json`; which heads there are is what its `architectures` says.

        Raises:
            DataError: a size is missing or impossible, the activation is unknown, or a field asks for arithmetic that
                is not implemented here; the message names the field.
        """
        check_implemented(hf, _REQUIRED, "bert")
        for theirs in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"):
            check_size(OURS[theirs], hf.get(theirs), _named(OURS[theirs]))
        given = {ours: hf[theirs] for theirs, ours in OURS.items() if theirs in hf}
        return cls(**given, **dict(zip(PARTS, _parts(hf), strict=True)))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        heads = self.mlm_head, self.seq_head
        name = next(name for name, (_, *has) in ARCHITECTURES.items() if tuple(has) == heads)
        fields = {theirs: getattr(self, ours) for theirs, ours in OURS.items()}
        return {"model_type": "bert", "architectures": [name], **fields}


def _parts(hf: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Which of PARTS the class has that the file was saved from; without a class, all of them."""
    architectures = hf.get("architectures") or ["BertForPreTraining"]
    for name, parts in ARCHITECTURES.items():
        if architectures == [name]:
            return parts
    raise DataError(
        f"architectures = {architectures!a:.80} is not implemented; {', '.join(ARCHITECTURES)} are: save the model "
        "below the head as BertModel (model.bert.save_pretrained)"
    )


class Block(nn.Module):
    """Post-norm: x = ln1(x + attn(x)), then ln2(x + mlp(x))."""

    def __init__(self, cfg: BertConfig):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.attn = MultiHeadAttention(cfg.d_model, cfg.n_heads)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln1 = LayerNorm(cfg.d_model, cfg.ln_eps)
        self.mlp = FeedForward(cfg.d_model, cfg.d_mlp, cfg.activation)
        self.hook_mlp_out = HookPoint("B L D")
        self.hook_resid_post = HookPoint("B L D")
        self.ln2 = LayerNorm(cfg.d_model, cfg.ln_eps)

    def forward(self, resid_BLD: Tensor, mask_BLM: Tensor | None) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn_out = self.hook_attn_out(self.attn(resid_pre, mask_BLM))
        normalized = self.ln1(self.hook_resid_mid(resid_pre + attn_out))
        mlp_out = self.hook_mlp_out(self.mlp(normalized))
        return self.ln2(self.hook_resid_post(normalized + mlp_out))


class MLMHead(nn.Module):
    """ln(act(x W + b)), and its product with each token's embedding, plus a bias for each."""

    def __init__(self, cfg: BertConfig):
        super().__init__()
        self.activation = cfg.activation
        self.dense = Linear(cfg.d_model, cfg.d_model)
        self.ln = LayerNorm(cfg.d_model, cfg.ln_eps)
        self.bias = nn.Parameter(torch.empty(cfg.d_vocab))

    def forward(self, x_BLD: Tensor, embedding_VD: Tensor) -> Tensor:
        return linear(self.transform(x_BLD), embedding_VD, self.bias)

    def transform(self, x_BLD: Tensor) -> Tensor:
        """What is compared with the embeddings, [B, L, D]."""
        return self.ln(self.dense.activated(x_BLD, self.activation))

    @property
    def hooked(self) -> bool:
        """Whether anyone listens."""
        return self.ln.hook_scale.hooked or self.ln.hook_normalized.hooked


class Bert(LanguageModel):
    """The whole model; weights are unset until `init_weights` or a checkpoint fills them."""

    causal = False
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
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.head = MLMHead(cfg) if cfg.mlm_head else None
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
            position_ids: [B, L]; by default counted from the mask, so that padding on either side changes nothing.
            attention_mask: [B, L], true at real tokens; or [B, L, M], true where L may attend to M (used as it is).
                None: no padding. With position_ids and a mask [B, L, M], L may be longer than the context: several
                texts in a row.
            stop_at_layer: run the blocks before this one and return its input, `resid_pre`, [B, L, D]; with n_layers,
                the output of the last block.
            return_logits: False leaves out the head and returns the output of the last block, [B, L, D].
            token_type_ids: the segment of each token, int [B, L]; None: all of segment 0.

        Raises:
            UsageError: a shape, an id, a length or a layer that cannot be; logits of a checkpoint without their head.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        segments = self._check_segments(tokens, token_type_ids)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask_BLM, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids)
        embed, pos_embed = self.hook_embed(self.embed(tokens)), self.hook_pos_embed(self.pos_embed(position_ids))
        resid_BLD = self.ln_embed(embed + pos_embed + self.hook_token_type_embed(self.token_type_embed(segments)))
        for block in self.blocks[:stop]:
            resid_BLD = block(resid_BLD, mask_BLM)
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        return self._headed(resid_BLD, return_logits)

    def logits(self, output_BLD: Tensor) -> Tensor:
        """The masked-token head's logits [B, L, V] of the last block's output.

        Raises:
            UsageError: the checkpoint holds no such head.
        """
        if self.head is None:
            raise UsageError(
                f"{self.name} has no head for masked tokens: its checkpoint holds none; ask for return_logits=False"
            )
        return self.head(output_BLD, (self.unembed or self.embed).weight)

    def classify(self, output_BLD: Tensor) -> Tensor:
        """Logits of the two classes, [B, 2], from the first token of the last block's output: pad on the right alone.

        In Devlin et al. class 0 says that the second segment follows the first in its source, class 1 that it does not.

        Raises:
            UsageError: the checkpoint holds no such head.
        """
        if self.pooler is None or self.seq_head is None:
            raise UsageError(f"{self.name} has no head of two classes: its checkpoint holds none")
        return self.seq_head(self.pooler(output_BLD[:, 0]).tanh())

    def _headed(self, output_BLD: Tensor, return_logits: bool) -> Tensor:
        if return_logits:
            return self.logits(output_BLD)
        if self.head is not None and self.head.hooked:
            self.head.transform(output_BLD)
        return output_BLD

    def _check_segments(self, tokens: Tensor, segments: Tensor | None) -> Tensor:
        if segments is None:
            return torch.zeros_like(tokens)
        if not isinstance(segments, Tensor) or segments.shape != tokens.shape or segments.is_floating_point():
            got = (
                f"{segments.dtype} {list(segments.shape)}" if isinstance(segments, Tensor) else type(segments).__name__
            )
            raise UsageError(f"token_type_ids are int64 {list(tokens.shape)}, as the tokens are; got {got}")
        if segments.device.type == "cpu" and not 0 <= int(segments.min()) <= int(segments.max()) < self.cfg.n_segments:
            raise UsageError(
                f"token_type_ids lie in 0..{self.cfg.n_segments - 1}; got {int(segments.min())}..{int(segments.max())}"
            )
        return segments.to(tokens.device).long()

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before BERT's training: normal, cut at two sigma; no bias, norms that change nothing."""
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


HF_PREFIX = "bert."
HF_BUFFERS = r"bert\.embeddings\.(position_ids|token_type_ids)"  # that old files carry
_MODULES = {
    "ln_embed": "bert.embeddings.LayerNorm",
    "pooler": "bert.pooler.dense",
    "seq_head": "cls.seq_relationship",
    "head.dense": "cls.predictions.transform.dense",
    "head.ln": "cls.predictions.transform.LayerNorm",
}
_BLOCK_MODULES = {
    "attn.q": "attention.self.query",
    "attn.k": "attention.self.key",
    "attn.v": "attention.self.value",
    "attn.out": "attention.output.dense",
    "ln1": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "ln2": "output.LayerNorm",
}
_WORDS, _DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
_BIAS, _DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"


def hf_names(cfg: BertConfig) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face BERT file."""
    parts = {"pooler": cfg.pooler, "seq_head": cfg.seq_head, "head.dense": cfg.mlm_head, "head.ln": cfg.mlm_head}
    modules = {ours: theirs for ours, theirs in _MODULES.items() if parts.get(ours, True)}
    for i in range(cfg.n_layers):
        modules |= {f"blocks.{i}.{ours}": f"bert.encoder.layer.{i}.{x}" for ours, x in _BLOCK_MODULES.items()}
    names = {
        "embed.weight": HfTensor(_WORDS),
        "pos_embed.weight": HfTensor("bert.embeddings.position_embeddings.weight"),
        "token_type_embed.weight": HfTensor("bert.embeddings.token_type_embeddings.weight"),
    }
    names |= {f"{ours}.{p}": HfTensor(f"{x}.{p}") for ours, x in modules.items() for p in ("weight", "bias")}
    if cfg.mlm_head:
        names["head.bias"] = HfTensor(_BIAS if cfg.tie_embeddings else _DECODER_BIAS)
        if not cfg.tie_embeddings:
            names["unembed.weight"] = HfTensor(_DECODER)
    return names


def hf_ties(cfg: BertConfig) -> dict[str, str | None]:
    """Name in a file -> name of the tensor there that it must be a copy of: the decoder's, which files repeat.

    An untied decoder has a bias of its own, and `transformers` then computes nothing with the other one.
    """
    return {_DECODER: _WORDS, _DECODER_BIAS: _BIAS} if cfg.tie_embeddings else {_BIAS: None}


def hf_renamed(name: str) -> str:
    """An old file's name -> today's: its norms have gamma and beta, as in TensorFlow."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def hf_parts(cfg: BertConfig, names: Collection[str]) -> BertConfig:
    """The config with the heads that a file holds, by its names: they may be others than config.json says."""
    starts = {"pooler": "bert.pooler.", "mlm_head": "cls.predictions.", "seq_head": "cls.seq_relationship."}
    return replace(cfg, **{part: any(n.startswith(start) for n in names) for part, start in starts.items()})
