"""GPT-NeoX in `transformers`: its config fields and tensor names, its sizes, and its points.

The model is in `gptneox.py`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from probekit.errors import DataError
from probekit.models.config_checks import CAUSAL, check_dimension, check_implemented, check_positive_number, hf_field
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
from probekit.models.rope_fields import rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape

OURS = {  # field of config.json -> our field
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_mlp",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "n_ctx",
    "vocab_size": "d_vocab",
    "hidden_act": "activation",
    "layer_norm_eps": "ln_eps",
    "rotary_emb_base": "rope_theta",
    "rotary_pct": "rotary_pct",
    "use_parallel_residual": "parallel_residual",
    "attention_bias": "attention_bias",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "init_std",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}
_named = partial(hf_field, OURS)
_ROTARY = {  # name in rope_parameters -> name in older files, and the default
    "rope_theta": ("rotary_emb_base", 10000.0),
    "partial_rotary_factor": ("rotary_pct", 0.25),
}


def fields_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `GPTNeoXConfig` in a Hugging Face `config.json`; errors as in `GPTNeoXConfig.from_hf`."""
    check_implemented(hf, CAUSAL | {"sliding_window": None, "layer_types": None}, "gpt_neox")
    fields = {ours: hf[name] for name, ours in OURS.items() if name in hf}
    for size in ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab"):
        check_dimension(size, fields.get(size), _named(size))
    if hf.get("head_dim") is not None:  # transformers would rotate so many coordinates, whatever the width of a head
        check_implemented(hf, {"head_dim": fields["d_model"] // fields["n_heads"]}, "gpt_neox")
    fields = {"eos_token_id": 2} | fields  # transformers' default; the released models all have 0
    if isinstance(fields["eos_token_id"], list):
        fields["eos_token_id"] = tuple(fields["eos_token_id"]) or None
    return fields | _rotary(hf)


def _rotary(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Base, share and scaling of the rotations; transformers 5 writes all of them into rope_parameters."""
    rope = {key: hf[key] for key in ("rope_parameters", "rope_scaling") if hf.get(key)}
    inner = next((fields for fields in rope.values() if isinstance(fields, Mapping)), {})
    values = []
    for new, (old, default) in _ROTARY.items():
        value = inner.get(new, hf.get(old, default))
        check_positive_number(value, _named(OURS[old]))  # NaN differs from itself
        for name in (old, new):  # today's name outside rope_parameters is of no effect in transformers
            if hf.get(name, value) != value:
                where = f"{new} in rope_parameters" if new in inner else old
                raise DataError(f"{name} is {hf[name]!a:.60}, but {where} is {value!a:.60}; leave one out")
        values.append(value)
    plain = {**hf, "partial_rotary_factor": None, "rope_theta": values[0]}
    plain |= {key: _without_share(fields) for key, fields in rope.items()}
    return rope_from_hf(plain) | {"rotary_pct": values[1]}


def _without_share(rope: Any) -> Any:
    return {k: v for k, v in rope.items() if k != "partial_rotary_factor"} if isinstance(rope, Mapping) else rope


def fields_to_hf(cfg: Any) -> dict[str, Any]:
    """The fields of the Hugging Face `config.json` for a `GPTNeoXConfig`; rotations under both names."""
    fields = {name: getattr(cfg, ours) for name, ours in OURS.items()}
    if isinstance(cfg.eos_token_id, tuple):
        fields["eos_token_id"] = list(cfg.eos_token_id)
    rope = rope_to_hf(cfg.rope_theta, cfg.rope_scaling) | {"partial_rotary_factor": cfg.rotary_pct}
    classes = {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}
    return classes | fields | {"rope_parameters": rope}


HF_PREFIX = "gpt_neox."
# causal masks and frequencies, in old files
HF_BUFFERS = r"gpt_neox\.(layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)|rotary_emb\.inv_freq)"
_BLOCK_NAMES = {
    "ln1": "input_layernorm",
    "attn.qkv": "attention.query_key_value",
    "attn.out": "attention.dense",
    "ln2": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}


def hf_names(cfg: Any) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face GPT-NeoX file."""
    names = {"embed.weight": HF_PREFIX + "embed_in.weight"}
    names |= {f"ln_final.{part}": f"{HF_PREFIX}final_layer_norm.{part}" for part in ("weight", "bias")}
    for i in range(cfg.n_layers):
        for ours, name in _BLOCK_NAMES.items():
            has_bias = cfg.attention_bias or not ours.startswith("attn")
            for part in ("weight", "bias") if has_bias else ("weight",):
                names[f"blocks.{i}.{ours}.{part}"] = f"{HF_PREFIX}layers.{i}.{name}.{part}"
    if not cfg.tie_embeddings:
        names["unembed.weight"] = "embed_out.weight"
    return {ours: HfTensor(name) for ours, name in names.items()}


def hf_renamed(name: str) -> str:
    """The name in files: since 5.14 transformers calls the head lm_head, and writes embed_out all the same."""
    return "embed_out.weight" if name == "lm_head.weight" else name


def hf_ties(cfg: Any) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the name of the original."""
    return {"embed_out.weight": HF_PREFIX + "embed_in.weight"} if cfg.tie_embeddings else {}


def shape(cfg: Any) -> ModelShape:
    """The sizes of a `GPTNeoXConfig`'s model."""
    biases = {"qkv_bias": cfg.attention_bias, "out_bias": cfg.attention_bias}
    stack = stack_shape(cfg, rotary=True, parallel=cfg.parallel_residual, **biases)
    return decoder_shape("gpt_neox", stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)


def _qkv_part(i: int, n_heads: int) -> HfPoint:
    """Queries, keys or values: each head's three lie side by side."""

    def take(_: tuple, output: Tensor) -> Tensor:
        return output.unflatten(-1, (n_heads, 3, -1))[..., i, :]

    return HfPoint("gpt_neox.layers.{layer}.attention.query_key_value", take)


def _hf_points(cfg: Any) -> dict[str, HfPoint]:
    outside = {
        "embed": HfPoint("gpt_neox.embed_in", module_output),
        "ln_final": HfPoint("gpt_neox.final_layer_norm", module_output),
        LOGITS: HfPoint("lm_head", module_output),
    }
    in_block = {
        "resid_pre": ("input_layernorm", module_input),
        "ln1_normalized": ("input_layernorm", module_output),
        "attn_pattern": ("attention", second_output),
        "z": ("attention.dense", module_input),
        "attn_out": ("attention", module_output),
        "ln2_normalized": ("post_attention_layernorm", module_output),
        "mlp_pre": ("mlp.dense_h_to_4h", module_output),
        "mlp_post": ("mlp.dense_4h_to_h", module_input),
        "mlp_out": ("mlp", module_output),
        "resid_post": ("", module_output),
    }
    if not cfg.parallel_residual:
        in_block["resid_mid"] = ("post_attention_layernorm", module_input)
    qkv = {point: _qkv_part(i, cfg.n_heads) for i, point in enumerate("qkv")}
    return outside | qkv | points_inside("gpt_neox.layers.{layer}", in_block)


def hf_model(cfg: Any) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    return HfModel("GPTNeoXConfig", "GPTNeoXForCausalLM", _hf_points(cfg))
