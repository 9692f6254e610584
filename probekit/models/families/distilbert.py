"""DistilBERT, written by hand (Sanh et al. 2019): a BERT of half the layers, without segments and pooler.

An encoder: token and position embedding under a norm, then post-norm blocks in which every token attends to every
other, and a head that predicts masked tokens. Every point has its name in TransformerLens; its axes are given where it
is made. Exact against `transformers`.

Identities of these blocks: resid_pre + attn_out = resid_mid; ln1_normalized + mlp_out = resid_post; ln2_normalized is
the next block's resid_pre, and after the last block the model's output.

Axes: B batch, L position, D d_model, V vocab.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.base import stopped
from probekit.models.config_checks import (
    check_choice,
    check_dimension,
    check_flag,
    check_implemented,
    check_positive_number,
    head_width,
    hf_field,
    own_head_dim,
)
from probekit.models.config_fields import hf_values, later
from probekit.models.families import bert_hf
from probekit.models.families.masked_lm import MaskedLM, MLMHead
from probekit.models.family import (
    LOGITS,
    Family,
    HfModel,
    HfPoint,
    HfTensor,
    module_input,
    module_output,
    points_inside,
    second_output,
)
from probekit.models.layers import ACTIVATIONS, Embedding, LayerNorm, PostNormBlock
from probekit.models.positional import sinusoids
from probekit.models.shapes import ModelShape

SIZES = ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab")
LN_EPS = 1e-12  # of every norm; no config has a field for it
OURS = {  # field of config.json -> our field
    "dim": "d_model",
    "n_heads": "n_heads",
    "hidden_dim": "d_mlp",
    "n_layers": "n_layers",
    "max_position_embeddings": "n_ctx",
    "vocab_size": "d_vocab",
    "activation": "activation",
    "sinusoidal_pos_embds": "sinusoidal_init",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "init_std",
    "head_dim": "head_dim",
}
ARCHITECTURES = {"DistilBertModel": (False,), "DistilBertForMaskedLM": (True,)}  # class -> whether it has the head
_named = partial(hf_field, OURS)


@dataclass(frozen=True)
class DistilBertConfig:
    """The sizes of a DistilBERT; the defaults are those of the base model (uncased).

    Attributes:
        sinusoidal_init: whether the position table starts as sinusoids; a checkpoint holds it either way.
        mlm_head: whether there is the head that predicts masked tokens.
        head_dim: width of an attention head where it is not d_model / n_heads; `d_head` is the width in either case.
    """

    d_model: int = 768
    n_heads: int = 12
    d_mlp: int = 3072
    n_layers: int = 6
    n_ctx: int = 512
    d_vocab: int = 30522
    activation: str = "gelu"
    init_std: float = 0.02
    sinusoidal_init: bool = False
    tie_embeddings: bool = True
    mlm_head: bool = True
    head_dim: int | None = later(None)

    def __post_init__(self):
        for field in SIZES:
            check_dimension(field, getattr(self, field), _named(field))
        object.__setattr__(self, "head_dim", own_head_dim(self, _named))
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        check_positive_number(self.init_std, _named("init_std"))
        for field in ("sinusoidal_init", "tie_embeddings", "mlm_head"):
            check_flag(getattr(self, field), _named(field))

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return head_width(self)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "DistilBertConfig":
        """The config in the fields of a Hugging Face `config.json`; its `architectures` says whether there is a head.

        Raises:
            DataError: a size is missing or out of range, the activation is unknown, or a field requires arithmetic that
                is not implemented here; the message names the field.
        """
        check_implemented(hf, {"pruned_heads": {}}, "distilbert")
        for name in ("dim", "n_heads", "n_layers", "vocab_size"):
            check_dimension(OURS[name], hf.get(name), _named(OURS[name]))
        (mlm_head,) = bert_hf.parts_named(hf, ARCHITECTURES, "DistilBertForMaskedLM", "model.distilbert")
        return cls(**{ours: hf[name] for name, ours in OURS.items() if name in hf}, mlm_head=mlm_head)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        architecture = "DistilBertForMaskedLM" if self.mlm_head else "DistilBertModel"
        fields = hf_values(self, OURS)
        return {"model_type": "distilbert", "architectures": [architecture], **fields}


class DistilBert(MaskedLM):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    output_point = "ln2_normalized"

    def __init__(self, cfg: DistilBertConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.pos_embed = Embedding(cfg.n_ctx, cfg.d_model)
        self.hook_embed = HookPoint("B L D")
        self.hook_pos_embed = HookPoint("B L D")
        self.ln_embed = LayerNorm(cfg.d_model, LN_EPS)
        block = cfg.d_model, cfg.n_heads, cfg.d_mlp, cfg.activation, LN_EPS, cfg.d_head
        self.blocks = nn.ModuleList(PostNormBlock(*block) for _ in range(cfg.n_layers))
        self.head = MLMHead(cfg.d_model, cfg.d_vocab, cfg.activation, LN_EPS) if cfg.mlm_head else None
        self.unembed = Embedding(cfg.d_vocab, cfg.d_model) if cfg.mlm_head and not cfg.tie_embeddings else None

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
    ) -> Tensor:
        """The head's logits [B, L, V] of tokens [B, L]; arguments and errors as in `Bert.forward`."""
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids)
        reads = self.reads(tokens, position_ids, mask, stop)
        embed, pos_embed = self.hook_embed(self.embed(tokens)), self.hook_pos_embed(self.pos_embed(position_ids))
        start, resid_BLD = self.started(self.ln_embed(embed + pos_embed))
        for block, read_BR in zip(self.blocks[start:stop], reads[start:], strict=True):
            resid_BLD = block(resid_BLD, mask, read_BR)
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        return self.headed(resid_BLD, return_logits)

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before training; the seed fixes them."""
        self.fill_normal(seed)
        if self.cfg.sinusoidal_init:
            self.pos_embed.weight.copy_(sinusoids(torch.arange(self.cfg.n_ctx), self.cfg.d_model))
        return self


# Translation from and to Hugging Face: names of tensors, sizes, points.

HF_PREFIX = "distilbert."
HF_BUFFERS = r"distilbert\.embeddings\.position_ids"  # in old files
_BLOCK_MODULES = {
    "attn.q": "attention.q_lin",
    "attn.k": "attention.k_lin",
    "attn.v": "attention.v_lin",
    "attn.out": "attention.out_lin",
    "ln1": "sa_layer_norm",
    "mlp.up": "ffn.lin1",
    "mlp.down": "ffn.lin2",
    "ln2": "output_layer_norm",
}
_WORDS = HF_PREFIX + "embeddings.word_embeddings.weight"
_HEAD = {
    "head.dense.weight": "vocab_transform.weight",
    "head.dense.bias": "vocab_transform.bias",
    "head.ln.weight": "vocab_layer_norm.weight",
    "head.ln.bias": "vocab_layer_norm.bias",
    "head.bias": "vocab_projector.bias",
}
_DECODER = "vocab_projector.weight"


def hf_names(cfg: DistilBertConfig) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face file."""
    modules = {"ln_embed": HF_PREFIX + "embeddings.LayerNorm"}
    for i in range(cfg.n_layers):
        layer = f"{HF_PREFIX}transformer.layer.{i}."
        modules |= {f"blocks.{i}.{ours}": layer + path for ours, path in _BLOCK_MODULES.items()}
    names = {"embed.weight": _WORDS, "pos_embed.weight": HF_PREFIX + "embeddings.position_embeddings.weight"}
    names |= {f"{ours}.{p}": f"{path}.{p}" for ours, path in modules.items() for p in ("weight", "bias")}
    if cfg.mlm_head:
        names |= _HEAD | ({} if cfg.tie_embeddings else {"unembed.weight": _DECODER})
    return {ours: HfTensor(name) for ours, name in names.items()}


def hf_ties(cfg: DistilBertConfig) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the name of the original; None for a head that config.json lacks."""
    unused = {} if cfg.mlm_head else dict.fromkeys((*_HEAD.values(), _DECODER))
    return unused | ({_DECODER: _WORDS} if cfg.tie_embeddings else {})


def hf_parts(cfg: DistilBertConfig, names: Collection[str]) -> DistilBertConfig:
    """The config with the head if the file holds one; config.json may say otherwise."""
    return replace(cfg, mlm_head=any(name.startswith("vocab_") for name in names))


def shape(cfg: DistilBertConfig) -> ModelShape:
    """The sizes of a `DistilBertConfig`'s model."""
    return bert_hf.post_norm_shape("distilbert", cfg, {"position embedding": cfg.n_ctx * cfg.d_model})


_HF_BODY_POINTS = {
    "embed": HfPoint("embeddings.word_embeddings", module_output),
    "pos_embed": HfPoint("embeddings.position_embeddings", module_output),
    "ln_embed": HfPoint("embeddings.LayerNorm", module_output),
} | points_inside(
    "transformer.layer.{layer}",
    {
        "resid_pre": ("", module_input),
        "q": ("attention.q_lin", module_output),
        "k": ("attention.k_lin", module_output),
        "v": ("attention.v_lin", module_output),
        "attn_pattern": ("attention", second_output),
        "z": ("attention.out_lin", module_input),
        "attn_out": ("attention.out_lin", module_output),
        "resid_mid": ("sa_layer_norm", module_input),
        "ln1_normalized": ("sa_layer_norm", module_output),
        "mlp_pre": ("ffn.lin1", module_output),
        "mlp_post": ("ffn.lin2", module_input),
        "mlp_out": ("ffn.lin2", module_output),
        "resid_post": ("output_layer_norm", module_input),
        "ln2_normalized": ("output_layer_norm", module_output),
    },
)
_HF_POINTS = {point: HfPoint(HF_PREFIX + module, take) for point, (module, take) in _HF_BODY_POINTS.items()} | {
    "head_ln": HfPoint("vocab_layer_norm", module_output),
    LOGITS: HfPoint("vocab_projector", module_output),
}


def hf_model(cfg: DistilBertConfig) -> HfModel | None:
    """The classes of transformers for this config, and where they compute our points; its heads share d_model."""
    if cfg.head_dim is not None:
        return None
    if not cfg.mlm_head:
        return HfModel("DistilBertConfig", "DistilBertModel", _HF_BODY_POINTS)
    return HfModel("DistilBertConfig", "DistilBertForMaskedLM", _HF_POINTS)


FAMILY = Family(
    model_types=("distilbert",),
    config=DistilBertConfig,
    model=DistilBert,
    shape=shape,
    hf_names=hf_names,
    hf_prefix=HF_PREFIX,
    hf_model=hf_model,
    hf_ties=hf_ties,
    hf_buffers=HF_BUFFERS,
    hf_renamed=bert_hf.hf_renamed,
    hf_parts=hf_parts,
    loads="DistilBERT",
    refused="classification heads",
    hub_examples=("distilbert/distilbert-base-uncased", "distilbert/distilbert-base-multilingual-cased"),
)
