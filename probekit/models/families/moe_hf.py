"""Mixtral, Qwen3-MoE and OLMoE in `transformers`: their config fields and tensor names, their sizes, and their points.

The model is in `moe.py`. A file holds each expert's matrices as tensors of their own; in memory, transformers 5 keeps
those of a layer in two tensors.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.models.config_checks import (
    CAUSAL,
    check_choice,
    check_dimension,
    check_flag,
    check_implemented,
    check_layer_types,
    hf_field,
)
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

CLASSES = {"mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe", "olmoe": "Olmoe"}  # model_type -> how class names begin

# Kimi K2 has 23,040. Each has matrices of its own, so a damaged file with more would hang before it is checked.
MOST_EXPERTS = 1 << 16

_IN_ALL = {  # field of config.json -> our field
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "d_head",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "n_ctx",
    "vocab_size": "d_vocab",
    "num_experts_per_tok": "n_active_experts",
    "hidden_act": "activation",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "init_std",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}
_OF_OLMOE = {"num_experts": "n_experts", "norm_topk_prob": "norm_top_k", "attention_bias": "attention_bias"}
OURS = {
    "mixtral": _IN_ALL | {"num_local_experts": "n_experts", "intermediate_size": "d_mlp"},
    "qwen3_moe": _IN_ALL
    | _OF_OLMOE
    | {"moe_intermediate_size": "d_mlp", "intermediate_size": "d_dense_mlp", "mlp_only_layers": "dense_layers"},
    "olmoe": _IN_ALL | _OF_OLMOE | {"intermediate_size": "d_mlp", "clip_qkv": "clip_qkv"},
}
_DEFAULTS = {  # of transformers, for fields that a file lacks
    "mixtral": {"norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2},
    "qwen3_moe": {"norm_eps": 1e-6, "bos_token_id": None, "eos_token_id": None},
    "olmoe": {"norm_eps": 1e-5, "bos_token_id": None, "eos_token_id": 50279},
}
_REQUIRED: dict[str, dict[str, Any]] = {  # fields that change the arithmetic, and their only value that is implemented
    "mixtral": {"attention_bias": False, "norm_topk_prob": True, "clip_qkv": None},
    "qwen3_moe": {"clip_qkv": None},
    "olmoe": {"sliding_window": None},
}
_REQUIRED_OF_ALL = CAUSAL | {"mlp_bias": False, "shared_expert_intermediate_size": None}


def naming(model_type: str) -> Callable[[str], str]:
    """The function from our field to its name in errors: "n_layers (num_hidden_layers)"."""
    return partial(hf_field, OURS[model_type])


def check_experts(cfg: Any) -> None:
    """Refuse a `MoeConfig` with a choice of experts, or dense layers, that cannot be."""
    named = naming(cfg.model_type)
    check_dimension("n_experts", cfg.n_active_experts, named("n_active_experts"))
    if cfg.n_active_experts > cfg.n_experts:
        raise DataError(
            f"{named('n_active_experts')} {cfg.n_active_experts} is more than {named('n_experts')} {cfg.n_experts}; "
            "correct one of them"
        )
    if cfg.n_experts * cfg.n_layers > MOST_EXPERTS:
        raise DataError(
            f"{named('n_experts')} {cfg.n_experts} in each of {named('n_layers')} {cfg.n_layers} are more than "
            f"{MOST_EXPERTS} experts; correct one of them"
        )
    for layer in cfg.dense_layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < cfg.n_layers:
            raise DataError(f"{named('dense_layers')} must lie in 0..{cfg.n_layers - 1}; got {layer!a:.60}")
    if cfg.dense_layers or cfg.d_dense_mlp is not None:
        check_dimension("d_mlp", cfg.d_dense_mlp, named("d_dense_mlp"))


def fields_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `MoeConfig` in a Hugging Face `config.json`; errors as in `MoeConfig.from_hf`."""
    model_type = hf.get("model_type", "mixtral")
    check_choice(model_type, CLASSES, "model_type")
    check_implemented(hf, _REQUIRED_OF_ALL | _REQUIRED[model_type], model_type)
    hf = _with_one_name_of_experts(hf, model_type)
    rope = rope_from_hf(hf, 1e6 if model_type == "mixtral" else 1e4)
    given = {ours: hf[name] for name, ours in OURS[model_type].items() if name in hf}
    named = naming(model_type)
    for size in ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab", "n_experts"):
        check_dimension(size, given.get(size), named(size))
    fields = _DEFAULTS[model_type] | {"norm_top_k": model_type == "mixtral"} | given | rope
    fields |= _heads(hf, given, model_type) | _window(hf, model_type)
    if model_type == "qwen3_moe":
        fields["dense_layers"] = _dense_layers(hf)
    if isinstance(fields["eos_token_id"], list):
        fields["eos_token_id"] = tuple(fields["eos_token_id"]) or None
    return fields | {"model_type": model_type}


def _with_one_name_of_experts(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """The fields with the number of experts as the Hub's files name it; transformers 5 writes Qwen3-MoE's otherwise."""
    ours, other = "num_experts", "num_local_experts"
    if model_type == "mixtral":
        ours, other = other, ours
    if ours in hf and other in hf and hf[ours] != hf[other]:
        raise DataError(f"{ours} is {hf[ours]!a:.60}, but {other} is {hf[other]!a:.60}; leave one out")
    return {**hf, ours: hf[other]} if other in hf else dict(hf)


def _heads(hf: Mapping[str, Any], given: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    named = naming(model_type)
    n_heads, n_kv_heads, d_head = given["n_heads"], given.get("n_kv_heads"), given.get("d_head")
    if n_kv_heads is None and "num_key_value_heads" not in hf and model_type != "olmoe":
        raise DataError(f"{named('n_kv_heads')} is missing; add it")  # transformers' default is 8 or 4
    if d_head is None or model_type == "olmoe":
        if given["d_model"] % n_heads:
            raise DataError(
                f"{named('d_model')} {given['d_model']} must be a multiple of {named('n_heads')} {n_heads}; correct "
                "one of them"
            )
        check_implemented({"head_dim": d_head} if d_head else {}, {"head_dim": given["d_model"] // n_heads}, model_type)
        d_head = given["d_model"] // n_heads
    return {"n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads, "d_head": d_head}


def _window(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """The window of all layers; Qwen3-MoE's is off without use_sliding_window, and `max_window_layers` is not read."""
    window = hf.get("sliding_window")
    if model_type == "qwen3_moe":
        is_on = hf.get("use_sliding_window", False)
        check_flag(is_on, "use_sliding_window")
        window = hf.get("sliding_window", 4096) if is_on else None
    types = ["full_attention" if window is None else "sliding_attention"] * hf["num_hidden_layers"]
    if hf.get("layer_types") not in (None, types):
        check_layer_types(hf["layer_types"], len(types))
        raise DataError(f"layer_types {hf['layer_types']!a:.200} are not implemented; only {types!a:.200} are")
    return {"sliding_window": window}


def _dense_layers(hf: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers without experts: those of mlp_only_layers, and all but every decoder_sparse_step-th."""
    n_layers, step, listed = hf["num_hidden_layers"], hf.get("decoder_sparse_step", 1), hf.get("mlp_only_layers") or []
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise DataError(f"decoder_sparse_step must be a whole number from 1; got {step!a:.60}")
    if not isinstance(listed, list):
        raise DataError(f"mlp_only_layers must be a list of layers; got {listed!a:.60}")
    if wrong := [i for i in listed if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < n_layers]:
        raise DataError(f"mlp_only_layers must lie in 0..{n_layers - 1}; got {wrong[0]!a:.60}")
    return tuple(layer for layer in range(n_layers) if layer in listed or (layer + 1) % step)


def fields_to_hf(cfg: Any) -> dict[str, Any]:
    """The fields of the Hugging Face `config.json` for a `MoeConfig`."""
    fields = {name: getattr(cfg, ours) for name, ours in OURS[cfg.model_type].items()}
    if isinstance(cfg.eos_token_id, tuple):
        fields["eos_token_id"] = list(cfg.eos_token_id)
    if cfg.model_type == "mixtral":
        fields["sliding_window"] = cfg.sliding_window
    if cfg.model_type == "qwen3_moe":
        fields |= {"use_sliding_window": cfg.sliding_window is not None, "sliding_window": cfg.sliding_window}
        fields |= {"decoder_sparse_step": 1, "mlp_only_layers": list(cfg.dense_layers)}
        if cfg.d_dense_mlp is None:
            del fields["intermediate_size"]
    classes = {"model_type": cfg.model_type, "architectures": [f"{CLASSES[cfg.model_type]}ForCausalLM"]}
    return classes | fields | {"rope_parameters": rope_to_hf(cfg.rope_theta, cfg.rope_scaling)}


HF_PREFIX = "model."
HF_BUFFERS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"  # frequencies, in old files
_ATTENTION_NAMES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj"}
_MLP_NAMES = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_MIXTRAL_NAMES = {"gate": "w1", "up": "w3", "down": "w2"}


def hf_names(cfg: Any) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face file."""
    bare = {"embed.weight": "embed_tokens.weight", "ln_final.weight": "norm.weight"}
    for i in range(cfg.n_layers):
        ours, theirs = f"blocks.{i}.", f"layers.{i}."
        bare |= {
            f"{ours}ln1.weight": f"{theirs}input_layernorm.weight",
            f"{ours}ln2.weight": f"{theirs}post_attention_layernorm.weight",
        }
        for mine, name in _ATTENTION_NAMES.items():
            for part in ("weight", "bias") if cfg.attention_bias else ("weight",):
                bare[f"{ours}attn.{mine}.{part}"] = f"{theirs}self_attn.{name}.{part}"
        for norm in () if cfg.model_type == "mixtral" else ("q_norm", "k_norm"):
            bare[f"{ours}attn.{norm}.weight"] = f"{theirs}self_attn.{norm}.weight"
        bare |= _mlp_names(cfg, i)
    names = {ours: HfTensor(HF_PREFIX + name) for ours, name in bare.items()}
    return names | ({} if cfg.tie_embeddings else {"unembed.weight": HfTensor("lm_head.weight")})


def _mlp_names(cfg: Any, layer: int) -> dict[str, str]:
    ours = f"blocks.{layer}.mlp"
    if layer in cfg.dense_layers:
        return {f"{ours}.{mine}.weight": f"layers.{layer}.mlp.{name}.weight" for mine, name in _MLP_NAMES.items()}
    mlp, names = ("block_sparse_moe", _MIXTRAL_NAMES) if cfg.model_type == "mixtral" else ("mlp", _MLP_NAMES)
    theirs = f"layers.{layer}.{mlp}"
    return {f"{ours}.router.weight": f"{theirs}.gate.weight"} | {
        f"{ours}.experts.{expert}.{mine}.weight": f"{theirs}.experts.{expert}.{name}.weight"
        for expert in range(cfg.n_experts)
        for mine, name in names.items()
    }


def hf_ties(cfg: Any) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the name of the original."""
    return {"lm_head.weight": HF_PREFIX + "embed_tokens.weight"} if cfg.tie_embeddings else {}


def shape(cfg: Any) -> ModelShape:
    """The sizes of a `MoeConfig`'s model."""
    stack = stack_shape(
        cfg,
        n_kv_heads=cfg.n_kv_heads,
        gated=True,
        rotary=True,
        qkv_bias=cfg.attention_bias,
        out_bias=cfg.attention_bias,
        mlp_bias=False,
        norm_shift=False,
        qk_norm={"mixtral": "", "qwen3_moe": "K", "olmoe": "HK"}[cfg.model_type],
        n_experts=cfg.n_experts,
        n_active_experts=cfg.n_active_experts,
        n_dense_layers=len(cfg.dense_layers),
        d_dense_mlp=cfg.d_dense_mlp if cfg.dense_layers else 0,
    )
    return decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)


def slots(model_type: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of transformers' model in memory by their names in a file; each expert's are views."""
    names = _MIXTRAL_NAMES if model_type == "mixtral" else _MLP_NAMES
    found: dict[str, Tensor] = {}
    for name, weight in state.items():
        if model_type == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        stem, is_experts, matrix = name.rpartition(".experts.")
        if not is_experts:
            found[name] = weight
            continue
        for i, expert in enumerate(weight):
            parts = (
                {"down": expert} if matrix == "down_proj" else dict(zip(("gate", "up"), expert.chunk(2), strict=True))
            )
            found |= {f"{stem}.experts.{i}.{names[part]}.weight": matrix for part, matrix in parts.items()}
    return found


def _router_logits(_: tuple, routed: Any) -> Tensor:
    """[1, L, E], from the router's output for a batch of one."""
    return routed[0][None]


def _expert_weights(_: tuple, routed: Any) -> Tensor:
    """[1, L, E]; the router gives the weights of the chosen experts, and who they are."""
    logits, weights, chosen = routed
    return torch.zeros_like(logits, dtype=weights.dtype).scatter(-1, chosen, weights)[None]


def _copied_output(_: tuple, output: Any) -> Tensor:
    """The output of a norm, which transformers clips in place."""
    return output.clone()


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
        "q_norm": ("self_attn.q_norm", _copied_output),
        "k_norm": ("self_attn.k_norm", _copied_output),
        "attn_pattern": ("self_attn", second_output),
        "z": ("self_attn.o_proj", module_input),
        "attn_out": ("self_attn", module_output),
        "resid_mid": ("post_attention_layernorm", module_input),
        "ln2_normalized": ("post_attention_layernorm", module_output),
        "router_logits": ("mlp.gate", _router_logits),
        "expert_weights": ("mlp.gate", _expert_weights),
        "mlp_pre": ("mlp.gate_proj", module_output),
        "mlp_pre_linear": ("mlp.up_proj", module_output),
        "mlp_post": ("mlp.down_proj", module_input),
        "mlp_out": ("mlp", module_output),
        "resid_post": ("", module_output),
    },
)


def hf_model(cfg: Any) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    points = dict(_HF_POINTS)
    if (limit := cfg.clip_qkv) is not None:
        points["v"] = points["v"]._replace(take=lambda _, output: output.clamp(-limit, limit))
    name = CLASSES[cfg.model_type]
    # its grouped product of all experts does not take float64
    options = {"experts_implementation": "eager"}
    return HfModel(f"{name}Config", f"{name}ForCausalLM", points, options, partial(slots, cfg.model_type))
