"""OLMo 2 and 3 in `transformers`: their config fields and tensor names, their sizes, and their points.

The model is in `olmo.py`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from probekit.errors import DataError
from probekit.models.config_checks import (
    CAUSAL,
    check_choice,
    check_dimension,
    check_implemented,
    check_multiple,
    hf_field,
)
from probekit.models.config_fields import FULL, SLIDING
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
from probekit.models.rope_fields import rope_by_type_from_hf, rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape

CLASSES = {"olmo2": "Olmo2", "olmo3": "Olmo3"}  # model_type -> how class names begin
THETA = 500000.0  # OLMo 3's, where a file gives none

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
    "attention_bias": "attention_bias",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "init_std",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}
_DEFAULTS = {"norm_eps": 1e-5, "eos_token_id": 50279}  # transformers', for a missing field
_named = partial(hf_field, OURS)


def fields_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `OlmoConfig` in a Hugging Face `config.json`; errors as in `OlmoConfig.from_hf`."""
    model_type = hf.get("model_type", "olmo2")
    check_choice(model_type, CLASSES, "model_type")
    check_implemented(hf, CAUSAL, model_type)
    given = {ours: hf[name] for name, ours in OURS.items() if name in hf}
    for size in ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab"):
        check_dimension(size, given.get(size), _named(size))
    fields = _DEFAULTS | given
    if isinstance(fields["eos_token_id"], list):
        fields["eos_token_id"] = tuple(fields["eos_token_id"]) or None
    # a rope_theta outside of rope_parameters is for layers of full attention alone
    rope = rope_from_hf(hf) if model_type == "olmo2" else rope_by_type_from_hf(hf, THETA, THETA)
    return fields | _heads(hf) | _layers(hf, model_type) | rope | {"model_type": model_type}


def fields_to_hf(cfg: Any) -> dict[str, Any]:
    """The fields of the Hugging Face `config.json` for an `OlmoConfig`."""
    fields = {name: getattr(cfg, ours) for name, ours in OURS.items()}
    if isinstance(cfg.eos_token_id, tuple):
        fields["eos_token_id"] = list(cfg.eos_token_id)
    rope = rope_to_hf(cfg.rope_theta, cfg.rope_scaling)
    if cfg.model_type == "olmo3":
        fields |= {"sliding_window": cfg.sliding_window, "layer_types": [cfg.type_of(i) for i in range(cfg.n_layers)]}
        rope = {FULL: rope, SLIDING: rope_to_hf(cfg.local_rope_theta, None)}
    classes = {"model_type": cfg.model_type, "architectures": [f"{CLASSES[cfg.model_type]}ForCausalLM"]}
    return classes | fields | {"rope_parameters": rope}


def _heads(hf: Mapping[str, Any]) -> dict[str, Any]:
    n_heads, n_kv_heads, d_head = hf["num_attention_heads"], hf.get("num_key_value_heads"), hf.get("head_dim")
    if d_head is None:
        check_multiple(hf["hidden_size"], _named("d_model"), n_heads, _named("n_heads"))
        d_head = hf["hidden_size"] // n_heads
    return {"n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads, "d_head": d_head}


def _layers(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Without layer_types, every fourth layer of OLMo 3 has full attention."""
    n_layers, types = hf["num_hidden_layers"], hf.get("layer_types")
    if model_type == "olmo2":
        check_implemented(hf, {"sliding_window": None}, model_type)
        if types not in (None, [FULL] * n_layers):
            raise DataError(f"layer_types {types!a:.200} are not implemented for model_type olmo2; leave them out")
        return {"sliding_window": None, "layer_types": ()}
    if types is None:
        types = [FULL if i % 4 == 3 else SLIDING for i in range(n_layers)]
    if not isinstance(types, list) or not types:
        raise DataError(f"layer_types must be a list of {n_layers} types; got {types!a:.60}")
    return {"sliding_window": hf.get("sliding_window", 4096), "layer_types": tuple(types)}


_BLOCK_NAMES = {
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.out": "self_attn.o_proj",
    "ln1_post": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "ln2_post": "post_feedforward_layernorm",
}
_WITH_BIAS = ("attn.q", "attn.k", "attn.v", "attn.out")
HF_PREFIX = "model."
HF_BUFFERS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"  # frequencies, in old files


def hf_names(cfg: Any) -> dict[str, HfTensor]:
    """Our name of every weight -> where a Hugging Face file holds it."""
    bare = {"embed.weight": "embed_tokens.weight", "ln_final.weight": "norm.weight"}
    for i in range(cfg.n_layers):
        for ours, name in _BLOCK_NAMES.items():
            for part in ("weight", "bias") if cfg.attention_bias and ours in _WITH_BIAS else ("weight",):
                bare[f"blocks.{i}.{ours}.{part}"] = f"layers.{i}.{name}.{part}"
    names = {ours: HfTensor(HF_PREFIX + name) for ours, name in bare.items()}
    return names if cfg.tie_embeddings else names | {"unembed.weight": HfTensor("lm_head.weight")}


def hf_ties(cfg: Any) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the name of the original."""
    return {"lm_head.weight": HF_PREFIX + "embed_tokens.weight"} if cfg.tie_embeddings else {}


def shape(cfg: Any) -> ModelShape:
    """The sizes of an `OlmoConfig`'s model."""
    biases = {"qkv_bias": cfg.attention_bias, "out_bias": cfg.attention_bias, "mlp_bias": False, "norm_shift": False}
    norms = {"norms": ("ln1_post", "ln2_post"), "qk_norm": "HK"}
    stack = stack_shape(cfg, n_kv_heads=cfg.n_kv_heads, gated=True, rotary=True, **biases, **norms)
    return decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)


_HF_POINTS = {
    "embed": HfPoint("model.embed_tokens", module_output),
    "ln_final": HfPoint("model.norm", module_output),
    LOGITS: HfPoint("lm_head", module_output),
} | points_inside(
    "model.layers.{layer}",
    {
        "resid_pre": ("", module_input),
        "q": ("self_attn.q_proj", module_output),
        "k": ("self_attn.k_proj", module_output),
        "v": ("self_attn.v_proj", module_output),
        "q_norm": ("self_attn.q_norm", module_output),
        "k_norm": ("self_attn.k_norm", module_output),
        "attn_pattern": ("self_attn", second_output),
        "z": ("self_attn.o_proj", module_input),
        "ln1_post_normalized": ("post_attention_layernorm", module_output),
        "attn_out": ("post_attention_layernorm", module_output),
        "resid_mid": ("mlp", module_input),
        "mlp_pre": ("mlp.gate_proj", module_output),
        "mlp_pre_linear": ("mlp.up_proj", module_output),
        "mlp_post": ("mlp.down_proj", module_input),
        "ln2_post_normalized": ("post_feedforward_layernorm", module_output),
        "mlp_out": ("post_feedforward_layernorm", module_output),
        "resid_post": ("", module_output),
    },
)


def hf_model(cfg: Any) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    name = CLASSES[cfg.model_type]
    return HfModel(f"{name}Config", f"{name}ForCausalLM", _HF_POINTS)
