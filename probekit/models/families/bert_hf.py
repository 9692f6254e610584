"""BERT in `transformers`: its config fields and tensor names, its sizes, and its points. The model is in `bert.py`."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from probekit.errors import DataError
from probekit.models.config_checks import check_dimension, check_implemented, hf_field
from probekit.models.config_fields import hf_values
from probekit.models.family import (
    LOGITS,
    HfModel,
    HfPoint,
    HfTensor,
    module_input,
    module_output,
    points_inside,
    second_output,
)
from probekit.models.shapes import ModelShape, stack_shape
from probekit.text import listed

PARTS = ("pooler", "mlm_head", "seq_head")
OURS = {  # field of config.json -> our field
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
    "head_dim": "head_dim",
}
ARCHITECTURES = {  # class in config.json -> which of PARTS it has
    "BertModel": (True, False, False),
    "BertForMaskedLM": (False, True, False),
    "BertForNextSentencePrediction": (True, False, True),
    "BertForPreTraining": (True, True, True),
}


_named = partial(hf_field, OURS)
# Other values of these fields change the arithmetic in ways that this file does not implement.
_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
}


def fields_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `BertConfig` in a Hugging Face `config.json`; errors as in `BertConfig.from_hf`."""
    check_implemented(hf, _REQUIRED, "bert")
    for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"):
        check_dimension(OURS[name], hf.get(name), _named(OURS[name]))
    given = {ours: hf[name] for name, ours in OURS.items() if name in hf}
    parts = parts_named(hf, ARCHITECTURES, "BertForPreTraining", "model.bert")
    return given | dict(zip(PARTS, parts, strict=True))


def fields_to_hf(cfg: Any) -> dict[str, Any]:
    """The fields of the Hugging Face `config.json` for a `BertConfig`."""
    heads = cfg.mlm_head, cfg.seq_head
    architecture = next(name for name, (_, *has) in ARCHITECTURES.items() if tuple(has) == heads)
    fields = hf_values(cfg, OURS)
    return {"model_type": "bert", "architectures": [architecture], **fields}


def parts_named(
    hf: Mapping[str, Any], architectures: Mapping[str, tuple[bool, ...]], default: str, below: str
) -> tuple[bool, ...]:
    """Which parts the class named in config.json has.

    Args:
        hf: the fields of config.json.
        architectures: class -> which parts it has.
        default: the class if config.json names none.
        below: the model below the head of such a class, for the error: "model.bert".

    Raises:
        DataError: another class, such as one with a head for classification.
    """
    named = hf.get("architectures") or [default]
    for name, parts in architectures.items():
        if named == [name]:
            return parts
    bare = next(iter(architectures))
    raise DataError(
        f"architectures = {named!a:.80} is not implemented, only {listed(architectures)}; save the model "
        f"below the head as {bare} ({below}.save_pretrained)"
    )


HF_PREFIX = "bert."
HF_BUFFERS = r"bert\.embeddings\.(position_ids|token_type_ids)"  # in old files
_TABLES = {
    "embed": "word_embeddings",
    "pos_embed": "position_embeddings",
    "token_type_embed": "token_type_embeddings",
}
_HEAD_MODULES = {
    "seq_head": "cls.seq_relationship",
    "head.dense": "cls.predictions.transform.dense",
    "head.ln": "cls.predictions.transform.LayerNorm",
}
BLOCK_MODULES = {
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


def body_names(cfg: Any, prefix: str) -> dict[str, HfTensor]:
    """Our name of every weight below the heads, pooler included -> its name in a file, under this prefix."""
    modules = {"ln_embed": "embeddings.LayerNorm"} | ({"pooler": "pooler.dense"} if cfg.pooler else {})
    for i in range(cfg.n_layers):
        modules |= {f"blocks.{i}.{ours}": f"encoder.layer.{i}.{path}" for ours, path in BLOCK_MODULES.items()}
    names = {f"{table}.weight": f"embeddings.{there}.weight" for table, there in _TABLES.items()}
    names |= {f"{ours}.{p}": f"{path}.{p}" for ours, path in modules.items() for p in ("weight", "bias")}
    return {ours: HfTensor(prefix + name) for ours, name in names.items()}


def hf_names(cfg: Any) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face BERT file."""
    names = body_names(cfg, HF_PREFIX)
    has = {"seq_head": cfg.seq_head, "head.dense": cfg.mlm_head, "head.ln": cfg.mlm_head}
    modules = {ours: path for ours, path in _HEAD_MODULES.items() if has[ours]}
    names |= {f"{ours}.{p}": HfTensor(f"{path}.{p}") for ours, path in modules.items() for p in ("weight", "bias")}
    if cfg.mlm_head:
        names["head.bias"] = HfTensor(_BIAS if cfg.tie_embeddings else _DECODER_BIAS)
        if not cfg.tie_embeddings:
            names["unembed.weight"] = HfTensor(_DECODER)
    return names


def hf_ties(cfg: Any) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the name of the original: weights of the decoder, if it is tied.

    An untied decoder has its own bias, and `transformers` then does not use the other one: None.
    """
    return {_DECODER: _WORDS, _DECODER_BIAS: _BIAS} if cfg.tie_embeddings else {_BIAS: None}


def hf_renamed(name: str) -> str:
    """An old file's name -> today's; old norms have gamma and beta, as in TensorFlow."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def hf_parts(cfg: Any, names: Collection[str]) -> Any:
    """The config with the heads that a file holds, judged by its names; config.json may say otherwise."""
    starts = {"pooler": "bert.pooler.", "mlm_head": "cls.predictions.", "seq_head": "cls.seq_relationship."}
    return replace(cfg, **{part: any(n.startswith(start) for n in names) for part, start in starts.items()})


def shape(cfg: Any) -> ModelShape:
    """The sizes of a `BertConfig`'s model."""
    D = cfg.d_model
    tables = {"position embedding": cfg.n_ctx * D, "segment embedding": cfg.n_segments * D}
    heads = {"sequence head": 2 * D + 2} if cfg.seq_head else {}
    return post_norm_shape("bert", cfg, tables, (pooler_shape(cfg) if cfg.pooler else {}) | heads)


def post_norm_shape(
    family: str, cfg: Any, tables: Mapping[str, int], heads: Mapping[str, int] = MappingProxyType({})
) -> ModelShape:
    """The sizes of an encoder of post-norm blocks, with or without a head for masked tokens.

    Args:
        family: model_type in its config.json.
        cfg: its config.
        tables: parameters of what is added to the token embedding.
        heads: parameters of its other heads.
    """
    D, V = cfg.d_model, cfg.d_vocab
    outside = {"token embedding": V * D, **tables, "embedding norm": 2 * D}
    if cfg.mlm_head:
        outside |= {"head": D * D + D + 2 * D + V + (0 if cfg.tie_embeddings else V * D)}
    return ModelShape(
        family,
        (stack_shape(cfg),),
        V,
        cfg.n_ctx,
        {**outside, **heads},
        embedding_sums=len(tables),
        outer_norms=2 if cfg.mlm_head else 1,
        head_products=D * D + V * D if cfg.mlm_head else 0,
        logits=V if cfg.mlm_head else 0,
        last_norms=("head_ln",) if cfg.mlm_head else (),
        cached=False,
    )


def pooler_shape(cfg: Any) -> dict[str, int]:
    """The parameters of a pooler, a layer on the first token's output."""
    return {"pooler": cfg.d_model * (cfg.d_model + 1)}


BODY_POINTS = {
    "embed": HfPoint("embeddings.word_embeddings", module_output),
    "pos_embed": HfPoint("embeddings.position_embeddings", module_output),
    "token_type_embed": HfPoint("embeddings.token_type_embeddings", module_output),
    "ln_embed": HfPoint("embeddings.LayerNorm", module_output),
} | points_inside(
    "encoder.layer.{layer}",
    {
        "resid_pre": ("", module_input),
        "q": ("attention.self.query", module_output),
        "k": ("attention.self.key", module_output),
        "v": ("attention.self.value", module_output),
        "attn_pattern": ("attention.self", second_output),
        "z": ("attention.output.dense", module_input),
        "attn_out": ("attention.output.dense", module_output),
        "resid_mid": ("attention.output.LayerNorm", module_input),
        "ln1_normalized": ("attention.output.LayerNorm", module_output),
        "mlp_pre": ("intermediate.dense", module_output),
        "mlp_post": ("output.dense", module_input),
        "mlp_out": ("output.dense", module_output),
        "resid_post": ("output.LayerNorm", module_input),
        "ln2_normalized": ("output.LayerNorm", module_output),
    },
)
_HF_POINTS = {point: HfPoint(HF_PREFIX + module, take) for point, (module, take) in BODY_POINTS.items()} | {
    "head_ln": HfPoint("cls.predictions.transform.LayerNorm", module_output),
    LOGITS: HfPoint("cls.predictions", module_output),
}


def hf_model(cfg: Any) -> HfModel | None:
    """The classes of transformers for this config, and where they compute our points; its heads share d_model."""
    if cfg.head_dim is not None:
        return None
    if not cfg.mlm_head:
        return HfModel("BertConfig", "BertModel", BODY_POINTS)
    return HfModel("BertConfig", "BertForPreTraining", _HF_POINTS)
