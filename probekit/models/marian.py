"""The folders of Marian (Junczys-Dowmunt et al. 2018) in `transformers`: their fields and names, and ours.

The architecture is `transformer.py`'s.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from probekit.errors import DataError
from probekit.models.checks import check_flag, check_implemented, check_size, named
from probekit.models.weights import HfTensor

if TYPE_CHECKING:
    from probekit.models.transformer import TransformerConfig

# Values of config.json that would change the arithmetic in a way that transformer.py does not implement.
_REQUIRED = {
    "normalize_before": False,
    "normalize_embedding": False,
    "layernorm_embedding": False,
    "add_final_layer_norm": False,
    "is_encoder_decoder": True,
    "is_decoder": False,
    "quantization_config": None,
}

OURS = {  # field of a Hugging Face config.json -> ours
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
    """The fields of a `TransformerConfig` that a Hugging Face `config.json` gives; errors as in its `from_hf`."""
    check_implemented(hf, _REQUIRED, "marian")
    for theirs, ours in OURS.items():
        if ours in SIZES:
            check_size(ours, hf.get(theirs), named(OURS, ours))
    _check_sharing(hf)
    given = {ours: hf[theirs] for theirs, ours in OURS.items() if theirs in hf}
    given = {"scale_embedding": False, "activation": "gelu"} | given  # where the file leaves it to Marian's own
    given["activation"] = {"swish": "silu"}.get(str(given["activation"]), given["activation"])
    if given.get("bos_token_id") == given.get("eos_token_id"):
        given["bos_token_id"] = None  # Marian's files call </s> so; it never stands first
    sinusoidal = hf.get("static_position_embeddings", True)
    check_flag(sinusoidal, "static_position_embeddings")
    return given | {"positions": "sinusoidal" if sinusoidal else "learned"}


def fields_to_hf(cfg: "TransformerConfig") -> dict[str, Any]:
    """The fields of the Hugging Face `config.json` that describes a model."""
    fields = {theirs: getattr(cfg, ours) for theirs, ours in OURS.items()}
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
            f"decoder_vocab_size = {hf['decoder_vocab_size']!a:.60} is not implemented; only that of the source is, "
            f"vocab_size = {hf['vocab_size']}"
        )


def _attention_names(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.{part}": f"{theirs}.{part}_proj" for part in ("q", "k", "v", "out")}


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


def hf_names(cfg: "TransformerConfig") -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face Marian file."""
    names = {}
    for stack, n_layers in (("encoder", cfg.n_layers), ("decoder", cfg.n_decoder_layers)):
        for i in range(n_layers):
            for ours, theirs in _BLOCK_NAMES[stack].items():
                for part in ("weight", "bias"):
                    names[f"{stack}.blocks.{i}.{ours}.{part}"] = f"model.{stack}.layers.{i}.{theirs}.{part}"
        if cfg.positions == "learned":
            names[f"{stack}.pos_embed.weight"] = _position_table(stack)
    if cfg.tie_embeddings:
        names["embed.weight"] = _SHARED
    else:
        names |= {"embed.weight": _embedding("encoder"), "target_embed.weight": _embedding("decoder")}
        names["unembed.weight"] = _HEAD
    if cfg.logits_bias:
        names["logits_bias"] = _BIAS
    return {ours: HfTensor(theirs) for ours, theirs in names.items()}


def _embedding(stack: str) -> str:
    return f"model.{stack}.embed_tokens.weight"


def _position_table(stack: str) -> str:
    return f"model.{stack}.embed_positions.weight"


def hf_ties(cfg: "TransformerConfig") -> dict[str, str]:
    """The copies of the one embedding that a file may hold."""
    return dict.fromkeys((_embedding("encoder"), _embedding("decoder"), _HEAD), _SHARED) if cfg.tie_embeddings else {}


def hf_parts(cfg: "TransformerConfig", names: Collection[str]) -> "TransformerConfig":
    """The config of what a file holds.

    Position tables in a file are read as learned ones, whatever they are, since that is how `transformers` uses them:
    old files carry the sinusoids so. A file of the bare model has no bias of the head, which is then none.
    """
    stored = any(_position_table(stack) in names for stack in ("encoder", "decoder"))
    return replace(cfg, positions="learned" if stored else cfg.positions, logits_bias=_BIAS in names)
