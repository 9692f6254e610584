"""Llama and its relatives in `transformers`: their config fields and tensor names, their sizes, and their points.

The model is in `llama.py`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from probekit.errors import DataError
from probekit.models.config_checks import (
    CAUSAL,
    check_choice,
    check_dimension,
    check_flag,
    check_implemented,
    check_layer_types,
    check_multiple,
    check_positive_number,
    hf_field,
)
from probekit.models.config_fields import FULL, SLIDING, hf_values
from probekit.models.family import (
    LOGITS,
    HfModel,
    HfPoint,
    HfTensor,
    fused,
    head_names,
    module_input,
    module_output,
    output_part,
    points_inside,
    second_output,
)
from probekit.models.positional import RopeScaling
from probekit.models.rope_fields import rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape

# model_type -> how class names begin
CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}

OURS = {  # field of config.json -> our field
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "d_head",
    "intermediate_size": "d_mlp",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "n_ctx",
    "vocab_size": "d_vocab",
    "hidden_act": "activation",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "init_std",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "head_bias": "head_bias",
}
_named = partial(hf_field, OURS)
_DEFAULTS: dict[str, dict[str, Any]] = {  # transformers' for a missing field, where they are not Llama's
    "qwen2": {"bos_token_id": None, "eos_token_id": None},
    "qwen3": {"bos_token_id": None, "eos_token_id": None},
    "phi3": {"norm_eps": 1e-5, "eos_token_id": 32000},
}


def fields_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `LlamaConfig` in a Hugging Face `config.json`; errors as in `LlamaConfig.from_hf`."""
    model_type = hf.get("model_type", "llama")
    check_choice(model_type, CLASSES, "model_type")
    check_implemented(hf, CAUSAL, model_type)
    given = {ours: hf[name] for name, ours in OURS.items() if name in hf}
    for size in ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab"):
        check_dimension(size, given.get(size), _named(size))
    fields = {"norm_eps": 1e-6, "init_std": None} | _DEFAULTS.get(model_type, {}) | given
    if isinstance(fields.get("eos_token_id"), list):
        fields["eos_token_id"] = tuple(fields["eos_token_id"]) or None
    fields |= _heads(hf, model_type) | _biases(hf, model_type) | _window(hf, model_type)
    return fields | (_partial_rope(hf) if model_type == "phi3" else rope_from_hf(hf)) | {"model_type": model_type}


def fields_to_hf(cfg: Any) -> dict[str, Any]:
    """The fields of the Hugging Face `config.json` for a `LlamaConfig`."""
    fields = hf_values(cfg, OURS)
    if cfg.init_std is None:
        del fields["initializer_range"]
    if isinstance(cfg.eos_token_id, tuple):
        fields["eos_token_id"] = list(cfg.eos_token_id)
    if cfg.model_type in ("llama", "qwen3"):
        fields["attention_bias"] = cfg.qkv_bias
    if cfg.model_type == "llama":
        fields["mlp_bias"] = cfg.mlp_bias
    else:
        fields["sliding_window"] = cfg.sliding_window
    if cfg.model_type in ("qwen2", "qwen3"):
        fields |= {"use_sliding_window": cfg.sliding_window is not None, "max_window_layers": cfg.n_full_layers}
    if cfg.model_type == "phi3":
        fields |= _partial_rope_to_hf(cfg)
    classes = {"model_type": cfg.model_type, "architectures": [f"{CLASSES[cfg.model_type]}ForCausalLM"]}
    return classes | fields | {"rope_parameters": rope_to_hf(cfg.rope_theta, cfg.rope_scaling)}


def _heads(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    n_heads, n_kv_heads, d_head = hf["num_attention_heads"], hf.get("num_key_value_heads"), hf.get("head_dim")
    if "num_key_value_heads" not in hf and model_type not in ("llama", "phi3"):
        raise DataError(
            f"{_named('n_kv_heads')} is missing; add it"
        )  # transformers' default depends on the family: 8 or 32
    if d_head is None and model_type == "qwen3":
        d_head = 128
    if d_head is None:
        check_multiple(hf["hidden_size"], _named("d_model"), n_heads, _named("n_heads"))
    return {
        "n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads,
        "d_head": hf["hidden_size"] // n_heads if d_head is None else d_head,
    }


def _biases(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    qkv_bias = out_bias = mlp_bias = False
    if model_type in ("llama", "qwen3"):
        qkv_bias = out_bias = hf.get("attention_bias", False)
    else:
        qkv_bias = model_type == "qwen2"
        check_implemented(hf, {"attention_bias": qkv_bias}, model_type)
    if model_type == "llama":
        mlp_bias = hf.get("mlp_bias", False)
    else:
        check_implemented(hf, {"mlp_bias": False}, model_type)
    return {"qkv_bias": qkv_bias, "out_bias": out_bias, "mlp_bias": mlp_bias}


def _window(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Mistral and Phi-3 have a window in every layer; Qwen, with use_sliding_window, after the first few."""
    n_layers, n_full, window = hf["num_hidden_layers"], 0, None
    if model_type == "llama":
        check_implemented(hf, {"sliding_window": None}, model_type)
    elif model_type in ("mistral", "phi3"):
        window = hf.get("sliding_window", 4096 if model_type == "mistral" else None)
    else:
        check_flag(hf.get("use_sliding_window", False), "use_sliding_window")
        window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None
        n_full = 0 if window is None else _n_full_layers(hf)
    full = n_layers if window is None else min(n_full, n_layers)
    types = [FULL] * full + [SLIDING] * (n_layers - full)
    if hf.get("layer_types") not in (None, types):
        check_layer_types(hf["layer_types"], len(types))
        raise DataError(f"layer_types {hf['layer_types']!a:.200} are not implemented; only {types!a:.200} are")
    return {"sliding_window": window, "n_full_layers": n_full}


def _n_full_layers(hf: Mapping[str, Any]) -> int:
    """How many layers come before those with a window: max_window_layers, unless layer_types says otherwise."""
    types, n_full = hf.get("layer_types"), hf.get("max_window_layers", 28)
    if isinstance(n_full, bool) or not isinstance(n_full, int) or n_full < 0:
        raise DataError(f"max_window_layers must be a whole number from 0; got {n_full!a:.60}")
    if not isinstance(types, list):
        return n_full
    listed = next((i for i, kind in enumerate(types) if kind != FULL), len(types))
    return n_full if min(n_full, len(types)) == listed else listed


_BLOCK_NAMES = {
    "ln1": "input_layernorm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj",
    "ln2": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm"}  # Qwen3's
HF_PREFIX = "model."
HF_BUFFERS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"  # frequencies, in old files


def _has_bias(cfg: Any, part: str) -> bool:
    kind = "mlp" if part.startswith("mlp") else "out" if part == "attn.out" else "qkv"
    return not part.startswith("ln") and not part.endswith("norm") and getattr(cfg, f"{kind}_bias")


def hf_names(cfg: Any) -> dict[str, HfTensor]:
    """Our name of every weight -> where a Hugging Face file holds it."""
    inside = _BLOCK_NAMES | (_HEAD_NORMS if cfg.model_type == "qwen3" else {})
    bare = {"embed.weight": "embed_tokens.weight", "ln_final.weight": "norm.weight"}
    for i in range(cfg.n_layers):
        for ours, name in inside.items():
            for part in ("weight", "bias") if _has_bias(cfg, ours) else ("weight",):
                bare[f"blocks.{i}.{ours}.{part}"] = f"layers.{i}.{name}.{part}"
    names = {ours: HfTensor(HF_PREFIX + name) for ours, name in bare.items()}
    for i in range(cfg.n_layers):
        if cfg.model_type == "phi3":
            names |= _fused_names(cfg, i)
    return names | head_names(cfg)


def hf_ties(cfg: Any) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the name of the original."""
    return {"lm_head.weight": HF_PREFIX + "embed_tokens.weight"} if cfg.tie_embeddings else {}


def shape(cfg: Any) -> ModelShape:
    """The sizes of a `LlamaConfig`'s model."""
    biases = {"qkv_bias": cfg.qkv_bias, "out_bias": cfg.out_bias, "mlp_bias": cfg.mlp_bias, "norm_shift": False}
    biases |= {"qk_norm": "K" if cfg.model_type == "qwen3" else ""}
    stack = stack_shape(cfg, n_kv_heads=cfg.n_kv_heads, gated=True, rotary=True, **biases)
    return decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings, cfg.head_bias)


_HF_POINTS = {
    "embed": HfPoint("model.embed_tokens", module_output),
    "ln_final": HfPoint("model.norm", module_output),
    LOGITS: HfPoint("lm_head", module_output),
} | points_inside(
    "model.layers.{layer}",
    {
        "resid_pre": ("input_layernorm", module_input),
        "ln1_normalized": ("input_layernorm", module_output),
        "q": ("self_attn.q_proj", module_output),
        "k": ("self_attn.k_proj", module_output),
        "v": ("self_attn.v_proj", module_output),
        "attn_pattern": ("self_attn", second_output),
        "z": ("self_attn.o_proj", module_input),
        "attn_out": ("self_attn", module_output),
        "resid_mid": ("post_attention_layernorm", module_input),
        "ln2_normalized": ("post_attention_layernorm", module_output),
        "mlp_pre": ("mlp.gate_proj", module_output),
        "mlp_pre_linear": ("mlp.up_proj", module_output),
        "mlp_post": ("mlp.down_proj", module_input),
        "mlp_out": ("mlp", module_output),
        "resid_post": ("", module_output),
    },
)


def hf_model(cfg: Any) -> HfModel | None:
    """The classes of transformers for this config, and where they compute our points; they have no bias in the head."""
    if cfg.head_bias:
        return None
    name, points = CLASSES[cfg.model_type], dict(_HF_POINTS)
    if cfg.model_type == "qwen3":
        norms = {f"{x}_norm": (f"self_attn.{x}_norm", module_output) for x in "qk"}
        points |= points_inside("model.layers.{layer}", norms)
    if cfg.model_type == "phi3":
        points |= _fused_points(cfg)
    return HfModel(f"{name}Config", f"{name}ForCausalLM", points)


# Phi-3 alone: its rotation, and tensors of several weights.

_PARTIAL, _ORIGINAL = "partial_rotary_factor", "original_max_position_embeddings"
_FUSED_POINTS = {"attn.q": "q", "attn.k": "k", "attn.v": "v", "mlp.gate": "mlp_pre", "mlp.up": "mlp_pre_linear"}


def _partial_rope(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The rotation in a config.json; with longrope, of a context in which a text's length does not change it."""
    plain, factors = {_ORIGINAL: 4096, **hf}, []
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(rope := plain.get(name), Mapping):
            factors.append(rope.get(_PARTIAL))
            plain[name] = {field: value for field, value in rope.items() if field != _PARTIAL}
    given = [factor for factor in (*factors, plain.pop(_PARTIAL, None)) if factor is not None] or [1.0]
    for factor in given:
        check_positive_number(factor, _PARTIAL)  # NaN differs from itself
    if given[0] != given[-1]:
        raise DataError(f"{_PARTIAL} is {given[-1]!a:.60}, but {given[0]!a:.60} in rope_parameters; leave one out")
    fields = rope_from_hf(plain, kinds=("longrope",)) | {"rotary_factor": given[0]}
    scaling: RopeScaling | None = fields["rope_scaling"]
    n_ctx = hf["max_position_embeddings"]
    return fields | {"n_ctx": n_ctx if scaling is None else min(n_ctx, scaling.original_n_ctx)}


def _partial_rope_to_hf(cfg: Any) -> dict[str, Any]:
    # no padding: transformers' default id of it may lie outside the vocabulary, which its embedding refuses
    fields = {_PARTIAL: cfg.rotary_factor, "pad_token_id": None}
    if cfg.rope_scaling is None:
        return fields
    original = cfg.rope_scaling.original_n_ctx
    return fields | {_ORIGINAL: original, "max_position_embeddings": round(original * cfg.rope_scaling.factor)}


def _fused_rows(cfg: Any) -> dict[str, dict[str, int]]:
    """Tensors of several weights -> our names of these, and how many rows each has."""
    queries, keys = cfg.n_heads * cfg.d_head, cfg.n_kv_heads * cfg.d_head
    return {
        "self_attn.qkv_proj": {"attn.q": queries, "attn.k": keys, "attn.v": keys},
        "mlp.gate_up_proj": {"mlp.gate": cfg.d_mlp, "mlp.up": cfg.d_mlp},
    }


def _fused_names(cfg: Any, i: int) -> dict[str, HfTensor]:
    names: dict[str, HfTensor] = {}
    for module, rows in _fused_rows(cfg).items():
        ours = {f"blocks.{i}.{name}.weight": n for name, n in rows.items()}
        names |= fused(f"{HF_PREFIX}layers.{i}.{module}.weight", ours)
    return names


def _fused_points(cfg: Any) -> dict[str, HfPoint]:
    points: dict[str, HfPoint] = {}
    for module, rows in _fused_rows(cfg).items():
        taken = {_FUSED_POINTS[ours]: (module, output_part(part)) for ours, part in fused(module, rows).items()}
        points |= points_inside("model.layers.{layer}", taken)
    return points
