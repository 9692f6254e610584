"""Marian (Junczys-Dowmunt et al. 2018) in `transformers`: its fields and tensor names, its sizes, and its points.

The model is in `transformer.py`.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from probekit.errors import DataError
from probekit.models.config_checks import check_dimension, check_flag, check_implemented, hf_field
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

# Other values of these fields change the arithmetic in ways that transformer.py does not implement.
_REQUIRED = {
    "normalize_before": False,
    "normalize_embedding": False,
    "layernorm_embedding": False,
    "add_final_layer_norm": False,
    "is_encoder_decoder": True,
    "is_decoder": False,
    "head_dim": None,
}

OURS = {  # field of config.json -> our field
    "d_model": "d_model",
    "encoder_attention_heads": "n_heads",
    "decoder_attention_heads": "n_decoder_heads",
    "encoder_ffn_dim": "d_mlp",
    "decoder_ffn_dim": "d_decoder_mlp",
    "encoder_layers": "n_layers",
    "decoder_layers": "n_decoder_layers",
    "max_position_embeddings": "n_ctx",
    "vocab_size": "d_vocab",
    "activation_function": "activation",
    "scale_embedding": "scale_embedding",
    "tie_word_embeddings": "tie_embeddings",
    "init_std": "init_std",
    "pad_token_id": "pad_token_id",
    "eos_token_id": "eos_token_id",
    "bos_token_id": "bos_token_id",
    "decoder_start_token_id": "decoder_start_token_id",
}
SIZES = (
    "d_model",
    "n_heads",
    "n_decoder_heads",
    "d_mlp",
    "d_decoder_mlp",
    "n_layers",
    "n_decoder_layers",
    "n_ctx",
    "d_vocab",
)


def fields_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `TransformerConfig` in a Hugging Face `config.json`; errors as in `TransformerConfig.from_hf`."""
    check_implemented(hf, _REQUIRED, "marian")
    for name, ours in OURS.items():
        if ours in SIZES:
            check_dimension(ours, hf.get(name), hf_field(OURS, ours))
    _check_sharing(hf)
    given = {ours: hf[name] for name, ours in OURS.items() if name in hf}
    given = {"scale_embedding": False, "activation": "gelu"} | given  # transformers' defaults for Marian
    given["activation"] = {"swish": "silu"}.get(str(given["activation"]), given["activation"])
    if given.get("bos_token_id") == given.get("eos_token_id"):
        given["bos_token_id"] = None  # Marian's files name </s> there, which never begins a text
    sinusoidal = hf.get("static_position_embeddings", True)
    check_flag(sinusoidal, "static_position_embeddings")
    return given | {"positions": "sinusoidal" if sinusoidal else "learned"}


def fields_to_hf(cfg: Any) -> dict[str, Any]:
    """The fields of the Hugging Face `config.json` for a `TransformerConfig`."""
    fields = {name: getattr(cfg, ours) for name, ours in OURS.items()}
    fields |= {"share_encoder_decoder_embeddings": cfg.tie_embeddings, "decoder_vocab_size": cfg.d_vocab}
    fields |= {"static_position_embeddings": cfg.positions == "sinusoidal", "is_encoder_decoder": True}
    return {"model_type": "marian", "architectures": ["MarianMTModel"], **fields}


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


def _attention_names(ours: str, module: str) -> dict[str, str]:
    return {f"{ours}.{part}": f"{module}.{part}_proj" for part in ("q", "k", "v", "out")}


_MLP_NAMES = {"mlp.up": "fc1", "mlp.down": "fc2"}
_BLOCK_NAMES = {
    "encoder": {
        **_attention_names("attn", "self_attn"),
        "ln1": "self_attn_layer_norm",
        **_MLP_NAMES,
        "ln2": "final_layer_norm",
    },
    "decoder": {
        **_attention_names("attn", "self_attn"),
        "ln1": "self_attn_layer_norm",
        **_attention_names("cross_attn", "encoder_attn"),
        "ln2": "encoder_attn_layer_norm",
        **_MLP_NAMES,
        "ln3": "final_layer_norm",
    },
}
HF_PREFIX = "model."
_SHARED, _HEAD, _BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"


def hf_names(cfg: Any) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face Marian file."""
    names = {}
    for stack, n_layers in (("encoder", cfg.n_layers), ("decoder", cfg.n_decoder_layers)):
        for i in range(n_layers):
            for ours, module in _BLOCK_NAMES[stack].items():
                for part in ("weight", "bias"):
                    names[f"{stack}.blocks.{i}.{ours}.{part}"] = f"model.{stack}.layers.{i}.{module}.{part}"
        if cfg.positions != "sinusoidal":
            names[f"{stack}.pos_embed.weight"] = _position_table(stack)
    if cfg.tie_embeddings:
        names["embed.weight"] = _SHARED
    else:
        names |= {"embed.weight": _embedding("encoder"), "target_embed.weight": _embedding("decoder")}
        names["unembed.weight"] = _HEAD
    if cfg.logits_bias:
        names["logits_bias"] = _BIAS
    return {ours: HfTensor(name) for ours, name in names.items()}


def _embedding(stack: str) -> str:
    return f"model.{stack}.embed_tokens.weight"


def _position_table(stack: str) -> str:
    return f"model.{stack}.embed_positions.weight"


def hf_ties(cfg: Any) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the name of the original: the shared embedding, if all are tied."""
    return dict.fromkeys((_embedding("encoder"), _embedding("decoder"), _HEAD), _SHARED) if cfg.tie_embeddings else {}


def hf_parts(cfg: Any, names: Collection[str]) -> Any:
    """The config of what a file holds.

    Position tables in a file are always loaded as learned ones, as `transformers` does: old files store the sinusoids
    as tables. A file of a bare model has no bias for the head, and the model then has none.
    """
    stored = any(_position_table(stack) in names for stack in ("encoder", "decoder"))
    return replace(cfg, positions="learned" if stored else cfg.positions, logits_bias=_BIAS in names)


def shape(cfg: Any) -> ModelShape:
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


_BLOCK_POINTS = {
    "q": ("self_attn.q_proj", module_output),
    "k": ("self_attn.k_proj", module_output),
    "v": ("self_attn.v_proj", module_output),
    "attn_pattern": ("self_attn", second_output),
    "z": ("self_attn.out_proj", module_input),
    "attn_out": ("self_attn", module_output),
    "resid_pre": ("", module_input),
    "resid_mid": ("self_attn_layer_norm", module_input),
    "ln1_normalized": ("self_attn_layer_norm", module_output),
    "mlp_pre": ("fc1", module_output),
    "mlp_post": ("fc2", module_input),
    "mlp_out": ("fc2", module_output),
    "resid_post": ("final_layer_norm", module_input),
}
_CROSS_POINTS = {
    "cross_q": ("encoder_attn.q_proj", module_output),
    "cross_k": ("encoder_attn.k_proj", module_output),
    "cross_v": ("encoder_attn.v_proj", module_output),
    "cross_attn_pattern": ("encoder_attn", second_output),
    "cross_z": ("encoder_attn.out_proj", module_input),
    "cross_attn_out": ("encoder_attn", module_output),
    "resid_mid_cross": ("encoder_attn_layer_norm", module_input),
    "ln2_normalized": ("encoder_attn_layer_norm", module_output),
    "ln3_normalized": ("final_layer_norm", module_output),
}


def _position_rows(_: tuple, output: Any) -> Any:
    """Rows of a position table, with the batch axis that they may lack."""
    return output if output.dim() == 3 else output[None]


def _stack_points(stack: str, block: Mapping[str, tuple[str, Any]]) -> dict[str, HfPoint]:
    points = points_inside(f"model.{stack}.layers.{{layer}}", block)
    points |= points_inside(f"model.{stack}", {"pos_embed": ("embed_positions", _position_rows)})
    return {f"{stack}.{point}": place for point, place in points.items()}


_HF_POINTS = (
    _stack_points("encoder", _BLOCK_POINTS | {"ln2_normalized": ("final_layer_norm", module_output)})
    | _stack_points("decoder", _BLOCK_POINTS | _CROSS_POINTS)
    | {LOGITS: HfPoint("", lambda _, output: output.logits)}
)


def hf_model(cfg: Any) -> HfModel:
    """The classes of transformers, and where they compute our points."""
    return HfModel("MarianConfig", "MarianMTModel", _HF_POINTS)
