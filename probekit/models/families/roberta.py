"""RoBERTa, written by hand (Liu et al. 2019), with its relatives XLM-RoBERTa (Conneau et al. 2020) and CamemBERT.

A BERT trained longer and on masked tokens alone. What differs is small: the position table begins with rows for
padding, so that a text's first token has row `first_position`; the head is named otherwise, and its activation is the
exact GELU whatever that of the blocks; there is no two-class head. Every point has its name in TransformerLens; its
axes are given where it is made. Exact against `transformers`, given the same positions: it counts them from the ids and
leaves out `<pad>`, even inside a text, where it is a token like any other here.

Identities of these blocks: resid_pre + attn_out = resid_mid; ln1_normalized + mlp_out = resid_post; ln2_normalized is
the next block's resid_pre, and after the last block the model's output.

Axes: B batch, L position, D d_model, V vocab.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from torch import Tensor, nn

from probekit.errors import DataError, UsageError
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
from probekit.models.family import LOGITS, Family, HfModel, HfPoint, HfTensor, module_output
from probekit.models.layers import ACTIVATIONS, Embedding, LayerNorm, Linear, PostNormBlock
from probekit.models.shapes import ModelShape

CLASSES = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}  # model_type -> class names
SIZES = ("d_model", "n_heads", "d_mlp", "n_layers", "d_vocab", "n_segments")
OURS = {name: ours for name, ours in bert_hf.OURS.items() if ours != "n_ctx"}  # field of config.json -> our field
_named = partial(hf_field, OURS)
_N_CTX, _FIRST = "n_ctx (max_position_embeddings - pad_token_id - 1)", "first_position (pad_token_id + 1)"


@dataclass(frozen=True)
class RobertaConfig:
    """The sizes and parts of a RoBERTa; the defaults are those of the base model.

    Attributes:
        n_ctx: how many tokens a text may have.
        first_position: the row of the position table of a text's first token; rows before it are for padding.
        n_segments: how many segment ids there are (token_type_ids).
        pooler: whether there is a pooler, a layer on the first token's output.
        mlm_head: whether there is the head that predicts masked tokens.
        head_dim: width of an attention head where it is not d_model / n_heads; `d_head` is the width in either case.
    """

    d_model: int = 768
    n_heads: int = 12
    d_mlp: int = 3072
    n_layers: int = 12
    n_ctx: int = 512
    d_vocab: int = 50265
    first_position: int = 2
    n_segments: int = 1
    activation: str = "gelu"
    ln_eps: float = 1e-5
    init_std: float = 0.02
    tie_embeddings: bool = True
    pooler: bool = False
    mlm_head: bool = True
    model_type: str = "roberta"
    head_dim: int | None = later(None)

    def __post_init__(self):
        check_choice(self.model_type, CLASSES, "model_type")
        for field in SIZES:
            check_dimension(field, getattr(self, field), _named(field))
        check_dimension("n_ctx", self.first_position, _FIRST)
        check_dimension("n_ctx", self.n_ctx, _N_CTX)
        object.__setattr__(self, "head_dim", own_head_dim(self, _named))
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        for field in ("ln_eps", "init_std"):
            check_positive_number(getattr(self, field), _named(field))
        for field in ("tie_embeddings", "pooler", "mlm_head"):
            check_flag(getattr(self, field), _named(field))

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return head_width(self)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "RobertaConfig":
        """The config in the fields of a Hugging Face `config.json`; its `architectures` says which heads there are.

        Raises:
            DataError: a size is missing or out of range, the activation is unknown, or a field requires arithmetic that
                is not implemented here; the message names the field.
        """
        return cls(**_fields_from_hf(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        kind = "ForMaskedLM" if self.mlm_head else "Model"
        return {
            "model_type": self.model_type,
            "architectures": [CLASSES[self.model_type] + kind],
            "max_position_embeddings": self.n_ctx + self.first_position,
            "pad_token_id": self.first_position - 1,
            **hf_values(self, OURS),
        }


class Roberta(MaskedLM):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    output_point = "ln2_normalized"

    def __init__(self, cfg: RobertaConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.pos_embed = Embedding(cfg.first_position + cfg.n_ctx, cfg.d_model)
        self.token_type_embed = Embedding(cfg.n_segments, cfg.d_model)
        self.hook_embed = HookPoint("B L D")
        self.hook_pos_embed = HookPoint("B L D")
        self.hook_token_type_embed = HookPoint("B L D")
        self.ln_embed = LayerNorm(cfg.d_model, cfg.ln_eps)
        block = cfg.d_model, cfg.n_heads, cfg.d_mlp, cfg.activation, cfg.ln_eps, cfg.d_head
        self.blocks = nn.ModuleList(PostNormBlock(*block) for _ in range(cfg.n_layers))
        self.head = MLMHead(cfg.d_model, cfg.d_vocab, "gelu", cfg.ln_eps) if cfg.mlm_head else None
        self.unembed = Embedding(cfg.d_vocab, cfg.d_model) if cfg.mlm_head and not cfg.tie_embeddings else None
        self.pooler = Linear(cfg.d_model, cfg.d_model) if cfg.pooler else None

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """The head's logits [B, L, V] of tokens [B, L]; arguments and errors as in `Bert.forward`.

        position_ids count from 0; `first_position` is added here.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        segments = self.check_segments(tokens, token_type_ids)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids)
        reads = self.reads(tokens, position_ids, mask, stop)
        embed = self.hook_embed(self.embed(tokens))
        pos_embed = self.hook_pos_embed(self.pos_embed(position_ids + self.cfg.first_position))
        start, resid_BLD = self.started(
            self.ln_embed(embed + pos_embed + self.hook_token_type_embed(self.token_type_embed(segments)))
        )
        for block, read_BR in zip(self.blocks[start:stop], reads[start:], strict=True):
            resid_BLD = block(resid_BLD, mask, read_BR)
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        return self.headed(resid_BLD, return_logits)

    def pooled(self, output_BLD: Tensor) -> Tensor:
        """The pooler's output [B, D] for the last block's output at the first token: pad on the right only.

        Raises:
            UsageError: the checkpoint has no pooler.
        """
        if self.pooler is None:
            raise UsageError(f"the checkpoint of {self.name} has no pooler; load one that was saved with it")
        return self.pooler(output_BLD[:, 0]).tanh()

    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before training; the seed fixes them."""
        self.fill_normal(seed)
        return self


# Translation from and to Hugging Face: config fields, names of tensors, sizes, points.

HF_PREFIX = "roberta."
HF_BUFFERS = r"roberta\.embeddings\.(position_ids|token_type_ids)"  # in old files
_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
}


def _fields_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    model_type = hf.get("model_type", "roberta")
    check_choice(model_type, CLASSES, "model_type")
    check_implemented(hf, _REQUIRED, model_type)
    for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"):
        check_dimension(OURS[name], hf.get(name), _named(OURS[name]))
    n_rows, pad = hf.get("max_position_embeddings", 512), hf.get("pad_token_id", 1)
    if isinstance(pad, bool) or not isinstance(pad, int) or pad < 0:
        raise DataError(f"pad_token_id must be a whole number from 0, as positions begin after it; got {pad!a:.60}")
    check_dimension("n_ctx", n_rows, "max_position_embeddings")
    given = {ours: hf[name] for name, ours in OURS.items() if name in hf}
    given |= {"n_ctx": n_rows - pad - 1, "first_position": pad + 1, "model_type": model_type}
    name = CLASSES[model_type]
    architectures = {f"{name}Model": (True, False), f"{name}ForMaskedLM": (False, True)}
    pooler, mlm_head = bert_hf.parts_named(hf, architectures, f"{name}ForMaskedLM", "model.roberta")
    defaults = {"n_segments": 2, "ln_eps": 1e-12}  # transformers', for a missing field
    return defaults | given | {"pooler": pooler, "mlm_head": mlm_head}


def hf_names(cfg: RobertaConfig) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face file."""
    names = bert_hf.body_names(cfg, HF_PREFIX)
    if cfg.mlm_head:
        modules = {"head.dense": "lm_head.dense", "head.ln": "lm_head.layer_norm"}
        names |= {f"{ours}.{p}": HfTensor(f"{path}.{p}") for ours, path in modules.items() for p in ("weight", "bias")}
        names["head.bias"] = HfTensor("lm_head.bias" if cfg.tie_embeddings else "lm_head.decoder.bias")
        if not cfg.tie_embeddings:
            names["unembed.weight"] = HfTensor("lm_head.decoder.weight")
    return names


def hf_ties(cfg: RobertaConfig) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the original; an untied decoder has its own bias, as in BERT."""
    if not cfg.tie_embeddings:
        return {"lm_head.bias": None}
    words = HF_PREFIX + "embeddings.word_embeddings.weight"
    return {"lm_head.decoder.weight": words, "lm_head.decoder.bias": "lm_head.bias"}


def hf_parts(cfg: RobertaConfig, names: Collection[str]) -> RobertaConfig:
    """The config with the parts that a file holds, judged by its names; config.json may say otherwise."""
    starts = {"pooler": HF_PREFIX + "pooler.", "mlm_head": "lm_head."}
    return replace(cfg, **{part: any(n.startswith(start) for n in names) for part, start in starts.items()})


def shape(cfg: RobertaConfig) -> ModelShape:
    """The sizes of a `RobertaConfig`'s model."""
    n_rows = cfg.first_position + cfg.n_ctx
    tables = {"position embedding": n_rows * cfg.d_model, "segment embedding": cfg.n_segments * cfg.d_model}
    return bert_hf.post_norm_shape(cfg.model_type, cfg, tables, bert_hf.pooler_shape(cfg) if cfg.pooler else {})


def hf_model(cfg: RobertaConfig) -> HfModel | None:
    """The classes of transformers for this config, and where they compute our points; its heads share d_model."""
    if cfg.head_dim is not None:
        return None
    name = CLASSES[cfg.model_type]
    if not cfg.mlm_head:
        return HfModel(f"{name}Config", f"{name}Model", bert_hf.BODY_POINTS, first_position=cfg.first_position)
    points = {point: HfPoint(HF_PREFIX + module, take) for point, (module, take) in bert_hf.BODY_POINTS.items()}
    points |= {"head_ln": HfPoint("lm_head.layer_norm", module_output), LOGITS: HfPoint("lm_head", module_output)}
    return HfModel(f"{name}Config", f"{name}ForMaskedLM", points, first_position=cfg.first_position)


FAMILY = Family(
    model_types=tuple(CLASSES),
    config=RobertaConfig,
    model=Roberta,
    shape=shape,
    hf_names=hf_names,
    hf_prefix=HF_PREFIX,
    hf_model=hf_model,
    hf_ties=hf_ties,
    hf_buffers=HF_BUFFERS,
    hf_renamed=bert_hf.hf_renamed,
    hf_parts=hf_parts,
    loads="RoBERTa, XLM-RoBERTa, CamemBERT",
    refused="classification heads, decoders, relative positions",
    hub_examples=("FacebookAI/roberta-base", "FacebookAI/xlm-roberta-base", "almanach/camembert-base"),
)
