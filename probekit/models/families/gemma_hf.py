"""Gemma 1, 2 and 3 in `transformers`: their config fields and tensor names, their sizes, and their points.

The model is in `gemma.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from probekit.errors import DataError
from probekit.models.config_checks import (
    CAUSAL,
    check_choice,
    check_dimension,
    check_implemented,
    check_layer_types,
    check_positive_number,
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

WITH_VISION = "gemma3"  # model_type of a vision tower and a text model, whose fields are in text_config


class Variant(NamedTuple):
    """What differs between the generations.

    Attributes:
        config: the class of transformers for its config.
        model: and for its model.
        norms: the norms of a block by our name, in the order of its forward -> theirs.
        qk_norm: whether queries and keys have norms.
        pattern: without layer_types, every so many layers one has no window.
        defaults: what a field that a file leaves out means: our field -> value.
    """

    config: str
    model: str
    norms: Mapping[str, str]
    qk_norm: bool
    pattern: int
    defaults: Mapping[str, Any]


_FOUR_NORMS = {
    "ln1": "input_layernorm",
    "ln1_post": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ln2_post": "post_feedforward_layernorm",
}
_DEFAULTS = {
    "n_heads": 8,
    "n_kv_heads": 4,
    "d_head": 256,
    "n_ctx": 8192,
    "d_vocab": 256_000,
    "query_pre_attn_scalar": 256,
    "attn_scores_soft_cap": None,
    "output_logits_soft_cap": None,
    "sliding_window": 4096,
}
VARIANTS = {  # by model_type
    "gemma": Variant(
        "GemmaConfig",
        "GemmaForCausalLM",
        {"ln1": "input_layernorm", "ln2": "post_attention_layernorm"},
        qk_norm=False,
        pattern=1,
        defaults=_DEFAULTS | {"n_heads": 16, "n_kv_heads": 16, "sliding_window": None},
    ),
    "gemma2": Variant(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        _FOUR_NORMS,
        qk_norm=False,
        pattern=2,
        defaults=_DEFAULTS | {"attn_scores_soft_cap": 50.0, "output_logits_soft_cap": 30.0},
    ),
    "gemma3_text": Variant(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        _FOUR_NORMS,
        qk_norm=True,
        pattern=6,
        defaults=_DEFAULTS | {"n_ctx": 131_072, "d_vocab": 262_208},
    ),
}

OURS = {  # field of config.json -> our field
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "d_head",
    "intermediate_size": "d_mlp",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "n_ctx",
    "vocab_size": "d_vocab",
    "hidden_activation": "activation",
    "rms_norm_eps": "norm_eps",
    "query_pre_attn_scalar": "query_pre_attn_scalar",
    "attn_logit_softcapping": "attn_scores_soft_cap",
    "final_logit_softcapping": "output_logits_soft_cap",
    "sliding_window": "sliding_window",
    "rope_local_base_freq": "local_rope_theta",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "init_std",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}
_LATER = (  # fields that Gemma 1 has not
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "sliding_window",
    "layer_types",
)
_named = partial(hf_field, OURS)


def fields_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `GemmaConfig` in a Hugging Face `config.json`; errors as in `GemmaConfig.from_hf`."""
    hf = _of_text(hf)
    model_type = hf.get("model_type", "gemma2")
    check_choice(model_type, VARIANTS, "model_type")
    _check_implemented(hf, model_type)
    given = {ours: hf[name] for name, ours in OURS.items() if name in hf}
    fields = {**VARIANTS[model_type].defaults, **given}
    for size in ("d_model", "d_mlp", "n_layers", "n_ctx"):  # every published file gives all but the last
        check_dimension(size, fields.get(size), _named(size))
    hf = {**hf, "max_position_embeddings": fields["n_ctx"]}
    if model_type == "gemma":
        fields |= _of_first_generation(hf, fields)
    if isinstance(fields.get("eos_token_id"), list):
        fields["eos_token_id"] = tuple(fields["eos_token_id"]) or None
    rope = _rope_by_type(hf) if model_type == "gemma3_text" else rope_from_hf(hf) | {"local_rope_theta": None}
    return fields | rope | {"layer_types": _layer_types(hf, model_type), "model_type": model_type}


def _of_text(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the text model; those of a model with a vision tower are in its text_config."""
    if hf.get("model_type") != WITH_VISION:
        return hf
    text = hf.get("text_config")
    if not isinstance(text, Mapping):
        raise DataError(f"text_config must be the text model's fields in a config of gemma3; got {text!a:.60}")
    check_choice(text.get("model_type", "gemma3_text"), ("gemma3_text",), "model_type in text_config")
    check_implemented(text, {"final_logit_softcapping": None}, WITH_VISION)  # its class has no such cap
    shared = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config")
    return {**text, "model_type": "gemma3_text", **{name: hf[name] for name in shared if name in hf}}


def _check_implemented(hf: Mapping[str, Any], model_type: str) -> None:
    required: dict[str, Any] = CAUSAL | {"attention_bias": False}
    if hf.get("use_bidirectional_attention"):  # null means false
        required["use_bidirectional_attention"] = False
    if model_type != "gemma2":
        required["attn_logit_softcapping"] = None
    if model_type == "gemma":
        required |= {"final_logit_softcapping": None, "layer_types": None}
    check_implemented(hf, required, model_type)


def _of_first_generation(hf: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Gemma 1 calls its activation hidden_act; in old files "gelu" there means the tanh approximation."""
    activation = hf.get("hidden_act", "gelu_pytorch_tanh")
    return {
        "activation": "gelu_pytorch_tanh" if activation == "gelu" else activation,
        "query_pre_attn_scalar": fields["d_head"],
        "sliding_window": None,
    }


def _layer_types(hf: Mapping[str, Any], model_type: str) -> Any:
    if hf.get("layer_types") is not None:
        check_layer_types(hf["layer_types"], hf["num_hidden_layers"])
        return tuple(hf["layer_types"])
    pattern = VARIANTS[model_type].pattern
    if model_type == "gemma3_text":
        pattern = hf.get("sliding_window_pattern", pattern)
        check_dimension("n_layers", pattern, "sliding_window_pattern")
    return tuple(SLIDING if (layer + 1) % pattern else FULL for layer in range(hf["num_hidden_layers"]))


def _rope_by_type(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Gemma 3's rotations; before transformers 5 the base in layers with a window was rope_local_base_freq."""
    base = hf.get("rope_local_base_freq", 10_000.0)
    rope = rope_by_type_from_hf(hf, 1_000_000.0, base)
    if rope["local_rope_theta"] != hf.get("rope_local_base_freq", rope["local_rope_theta"]):
        check_positive_number(base, "rope_local_base_freq")  # NaN differs from itself
        raise DataError(f"rope_local_base_freq is {base!a:.60}, but {SLIDING} has another rope_theta; leave one out")
    return rope


def fields_to_hf(cfg: Any) -> dict[str, Any]:
    """The fields of the Hugging Face `config.json` for a `GemmaConfig`."""
    variant = VARIANTS[cfg.model_type]
    fields = {name: getattr(cfg, ours) for name, ours in OURS.items() if name != "rope_local_base_freq"}
    if isinstance(cfg.eos_token_id, tuple):
        fields["eos_token_id"] = list(cfg.eos_token_id)
    fields["layer_types"] = list(cfg.layer_types)
    fields["rope_parameters"] = rope_to_hf(cfg.rope_theta, cfg.rope_scaling)
    if cfg.local_rope_theta is not None:
        fields["rope_parameters"] = {FULL: fields["rope_parameters"], SLIDING: rope_to_hf(cfg.local_rope_theta, None)}
    if cfg.model_type == "gemma":
        fields["hidden_act"] = fields.pop("hidden_activation")
        fields = {name: value for name, value in fields.items() if name not in _LATER}
    return {"model_type": cfg.model_type, "architectures": [variant.model]} | fields


HF_PREFIX = "model."
# the vision tower and its projector, which the text model does not use, and frequencies in old files
HF_BUFFERS = r"model\.(vision_tower|multi_modal_projector)\..*|model\.(.*\.)?rotary_emb\.inv_freq"
_INNER = {
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_QK_NORMS = {"attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm"}


def hf_names(cfg: Any) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face file."""
    variant = VARIANTS[cfg.model_type]
    inner = _INNER | dict(variant.norms) | (_QK_NORMS if variant.qk_norm else {})
    bare = {"embed": "embed_tokens", "ln_final": "norm"}
    bare |= {f"blocks.{i}.{ours}": f"layers.{i}.{name}" for i in range(cfg.n_layers) for ours, name in inner.items()}
    names = {f"{ours}.weight": HfTensor(f"{HF_PREFIX}{name}.weight") for ours, name in bare.items()}
    return names | ({} if cfg.tie_embeddings else {"unembed.weight": HfTensor("lm_head.weight")})


def hf_ties(cfg: Any) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the name of the original."""
    return {"lm_head.weight": HF_PREFIX + "embed_tokens.weight"} if cfg.tie_embeddings else {}


_BESIDE_VISION = {
    r"^language_model\.lm_head\.": "lm_head.",
    r"^(model\.)?language_model\.(model\.)?": HF_PREFIX,
}


def hf_renamed(name: str) -> str:
    """A weight's name without `language_model`, where models with a vision tower keep the text model.

    Files of the Hub say `language_model.model.layers`, those of transformers 5 `model.language_model.layers`.
    """
    for beside_vision, alone in _BESIDE_VISION.items():
        name = re.sub(beside_vision, alone, name)
    return name


def shape(cfg: Any) -> ModelShape:
    """The sizes of a `GemmaConfig`'s model."""
    variant = VARIANTS[cfg.model_type]
    none = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "norm_shift"), False)
    stack = stack_shape(
        cfg,
        n_kv_heads=cfg.n_kv_heads,
        gated=True,
        rotary=True,
        norms=tuple(variant.norms),
        qk_norm="K" if variant.qk_norm else "",
        **none,
    )
    decoder = decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)
    return replace(decoder, embedding_sums=1)  # the embedding is multiplied with sqrt(D)


def _logits(_: tuple, output: Any) -> Tensor:
    return output.logits  # after the soft cap, which is not in lm_head


def _by_position(_: tuple, output: Any) -> Tensor:
    return output.transpose(1, 2)  # [B, H, L, K]


_HF_POINTS = {
    "embed": HfPoint("model.embed_tokens", module_output),
    "ln_final": HfPoint("model.norm", module_output),
    LOGITS: HfPoint("", _logits),
} | points_inside(
    "model.layers.{layer}",
    {
        "resid_pre": ("input_layernorm", module_input),
        "q": ("self_attn.q_proj", module_output),
        "k": ("self_attn.k_proj", module_output),
        "v": ("self_attn.v_proj", module_output),
        "attn_pattern": ("self_attn", second_output),
        "z": ("self_attn.o_proj", module_input),
        "mlp_pre": ("mlp.gate_proj", module_output),
        "mlp_pre_linear": ("mlp.up_proj", module_output),
        "mlp_post": ("mlp.down_proj", module_input),
        "resid_post": ("", module_output),
    },
)


def hf_model(cfg: Any) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    variant = VARIANTS[cfg.model_type]
    norms = dict(variant.norms)
    inside: dict[str, tuple[str, Any]] = {f"{ours}_normalized": (norms[ours], module_output) for ours in norms}
    inside["resid_mid"] = (norms["ln2"], module_input)
    inside["attn_out"] = (norms.get("ln1_post", "self_attn"), module_output)
    inside["mlp_out"] = (norms.get("ln2_post", "mlp"), module_output)
    if variant.qk_norm:
        inside |= {norm: (f"self_attn.{norm}", _by_position) for norm in ("q_norm", "k_norm")}
    points = _HF_POINTS | points_inside("model.layers.{layer}", inside)
    beside_vision = _BESIDE_VISION if cfg.model_type == "gemma3_text" else {}
    return HfModel(variant.config, variant.model, points, renamed=beside_vision)
