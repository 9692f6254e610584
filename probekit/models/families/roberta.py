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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from probekit.errors import UsageError
from probekit.models.config_fields import (
    SharedWidth,
    check_choice,
    check_count,
    check_dimension,
    check_fields,
    check_implemented,
    flag,
    named,
    one_of,
    read_fields,
    real,
    size,
    unchecked,
    written_fields,
)
from probekit.models.families.bert import BODY, REQUIRED
from probekit.models.family import Family, HfModel, HfTensor, parts_by_names
from probekit.models.layers import ACTIVATIONS
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

CLASSES = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}  # model_type -> class names


@dataclass(frozen=True)
class RobertaConfig(SharedWidth):
    """The sizes and parts of a RoBERTa; the defaults are those of the base model.

    Attributes:
        n_ctx: how many tokens a text may have.
        first_position: the row of the position table of a text's first token; rows before it are for padding.
        n_segments: how many segment ids there are (token_type_ids).
        pooler: whether there is a pooler, a layer on the first token's output.
        mlm_head: whether there is the head that predicts masked tokens.
        head_dim: width of an attention head where it is not d_model / n_heads; `d_head` is the width in either case.
    """

    d_model: int = size(768, hf="hidden_size")
    n_heads: int = size(12, hf="num_attention_heads")
    d_mlp: int = size(3072, hf="intermediate_size")
    n_layers: int = size(12, hf="num_hidden_layers")
    n_ctx: int = size(512, formula="max_position_embeddings - pad_token_id - 1")
    d_vocab: int = size(50265, hf="vocab_size")
    first_position: int = size(2, formula="pad_token_id + 1")
    n_segments: int = size(1, hf="type_vocab_size")
    activation: str = one_of("gelu", ACTIVATIONS, hf="hidden_act")
    ln_eps: float = real(1e-5, hf="layer_norm_eps")
    init_std: float = real(0.02, hf="initializer_range")
    tie_embeddings: bool = flag(True, hf="tie_word_embeddings")
    pooler: bool = flag(False)
    mlm_head: bool = flag(True)
    model_type: str = one_of("roberta", CLASSES)
    head_dim: int | None = unchecked(None, hf="head_dim", later=True)

    def __post_init__(self):
        check_fields(self)
        self.settle_head_dim()

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`; its `architectures` says which heads there are."""
        model_type = hf.get("model_type", "roberta")
        check_choice(model_type, CLASSES, "model_type")
        check_implemented(hf, REQUIRED, model_type)
        given = read_fields(cls, hf, ("d_model", "n_heads", "n_layers", "d_vocab"))
        n_rows, pad = hf.get("max_position_embeddings", 512), hf.get("pad_token_id", 1)
        check_count(pad, "pad_token_id")  # positions begin after it
        check_dimension("first_position", pad + 1, named(cls, "first_position"))
        check_dimension("n_ctx", n_rows, "max_position_embeddings")
        given |= {"n_ctx": n_rows - pad - 1, "first_position": pad + 1, "model_type": model_type}
        name = CLASSES[model_type]
        architectures = {f"{name}Model": (True, False), f"{name}ForMaskedLM": (False, True)}
        pooler, mlm_head = parts_named(hf, architectures, f"{name}ForMaskedLM", "model.roberta")
        defaults = {"n_segments": 2, "ln_eps": 1e-12}  # transformers', for a missing field
        return cls(**defaults | given, pooler=pooler, mlm_head=mlm_head)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        kind = "ForMaskedLM" if self.mlm_head else "Model"
        return {
            "model_type": self.model_type,
            "architectures": [CLASSES[self.model_type] + kind],
            "max_position_embeddings": self.n_ctx + self.first_position,
            "pad_token_id": self.first_position - 1,
            **written_fields(self),
        }


class Roberta(SegmentedLM):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them.

    position_ids count from 0; `first_position` is added here.
    """

    def __init__(self, cfg: RobertaConfig):
        super().__init__(cfg, cfg.first_position + cfg.n_ctx, "gelu")

    def entered(self, tokens: Tensor, position_ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """The input of the first block, [B, L, D]."""
        return super().entered(tokens, position_ids + self.cfg.first_position, segments)

    def pooled(self, output_BLD: Tensor) -> Tensor:
        """The pooler's output [B, D] for the last block's output at the first token: pad on the right only.

        Raises:
            UsageError: the checkpoint has no pooler.
        """
        if self.pooler is None:
            raise UsageError(f"the checkpoint of {self.name} has no pooler; load one that was saved with it")
        return self.pooler(output_BLD[:, 0]).tanh()


# Translation from and to Hugging Face.


def modules(cfg: RobertaConfig) -> dict[str, str]:
    """Our modules and single weights by their names in a Hugging Face file."""
    head = {
        "head.dense": "lm_head.dense",
        "head.ln": "lm_head.layer_norm",
        "head.bias": "lm_head.bias" if cfg.tie_embeddings else "lm_head.decoder.bias",
        "unembed": "lm_head.decoder",
    }
    return {ours: f"roberta.{theirs}" for ours, theirs in BODY.items()} | head


def shape(cfg: RobertaConfig) -> ModelShape:
    """The sizes of a `RobertaConfig`'s model."""
    n_rows = cfg.first_position + cfg.n_ctx
    tables = {"position embedding": n_rows * cfg.d_model, "segment embedding": cfg.n_segments * cfg.d_model}
    return post_norm_shape(cfg.model_type, cfg, tables, pooler_shape(cfg) if cfg.pooler else {})


def twin(cfg: RobertaConfig, names: Mapping[str, HfTensor]) -> HfModel | None:
    """The classes of transformers for this config, and where they compute our points."""
    points = post_norm_points(cfg, names, "roberta.")
    return encoder_twin(CLASSES[cfg.model_type], cfg, points, "lm_head", first_position=cfg.first_position)


FAMILY = Family(
    model_types=tuple(CLASSES),
    config=RobertaConfig,
    model=Roberta,
    shape=shape,
    modules=modules,
    hf_prefix="roberta.",
    twin=twin,
    # an untied decoder has its own bias, as in BERT
    copies=lambda cfg: {"lm_head.decoder.bias": "lm_head.bias"} if cfg.tie_embeddings else {"lm_head.bias": None},
    hf_buffers=r"roberta\.embeddings\.(position_ids|token_type_ids)",  # in old files
    hf_renamed=hf_renamed,
    hf_parts=parts_by_names(pooler="roberta.pooler.", mlm_head="lm_head."),
    loads="RoBERTa, XLM-RoBERTa, CamemBERT",
    refused="classification heads, decoders, relative positions",
    hub_examples=("FacebookAI/roberta-base", "FacebookAI/xlm-roberta-base", "almanach/camembert-base"),
)
