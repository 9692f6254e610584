"""ModernBERT in `transformers`: its config fields and tensor names, its sizes, and its points.

The model is in `modernbert.py`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from probekit.errors import DataError
from probekit.models.config_checks import (
    check_dimension,
    check_implemented,
    check_layer_types,
    check_positive_number,
    hf_field,
)
from probekit.models.config_fields import hf_values
from probekit.models.families.bert_hf import parts_named
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

OURS = {  # field of config.json -> our field
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_mlp",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "n_ctx",
    "vocab_size": "d_vocab",
    "hidden_activation": "activation",
    "classifier_activation": "head_activation",
    "norm_eps": "norm_eps",
    "attention_bias": "attn_bias",
    "mlp_bias": "mlp_bias",
    "norm_bias": "norm_bias",
    "classifier_bias": "head_bias",
    "decoder_bias": "unembed_bias",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "init_std",
    "initializer_cutoff_factor": "init_cutoff",
    "pad_token_id": "pad_token_id",
    "head_dim": "head_dim",
}
ARCHITECTURES = {"ModernBertModel": (False,), "ModernBertForMaskedLM": (True,)}  # class -> whether it has the head
ROTATIONS = {  # type of layer -> the old field of its base, our field, the base where no field gives one
    "full_attention": ("global_rope_theta", "rope_theta", 160_000.0),
    "sliding_attention": ("local_rope_theta", "local_rope_theta", 10_000.0),
}
_REQUIRED = {"rope_scaling": None, "pruned_heads": {}}
_named = partial(hf_field, OURS)


def fields_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ModernBertConfig` in a Hugging Face `config.json`; errors as in `ModernBertConfig.from_hf`."""
    check_implemented(hf, _REQUIRED, "modernbert")
    for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"):
        check_dimension(OURS[name], hf.get(name), _named(OURS[name]))
    (mlm_head,) = parts_named(hf, ARCHITECTURES, "ModernBertForMaskedLM", "model.model")
    given = {ours: hf[name] for name, ours in OURS.items() if name in hf}
    eps = given.get("norm_eps", 1e-5)
    if hf.get("layer_norm_eps", eps) != eps:  # older files have both; transformers reads norm_eps alone
        raise DataError(f"layer_norm_eps is {hf['layer_norm_eps']!a:.60}, but norm_eps {eps!a:.60}; leave one out")
    if given.get("init_cutoff", 2.0) is None:
        given["init_cutoff"] = 3.0  # what transformers takes null for
    return {**given, **_rotations(hf), **_layers(hf), "mlm_head": mlm_head}


def fields_to_hf(cfg: Any) -> dict[str, Any]:
    """The fields of the Hugging Face `config.json` for a `ModernBertConfig`."""
    return {
        "model_type": "modernbert",
        "architectures": ["ModernBertForMaskedLM" if cfg.mlm_head else "ModernBertModel"],
        **hf_values(cfg, OURS),
        "local_attention": 2 * (cfg.sliding_window - 1),
        "layer_types": list(cfg.layer_types),
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": getattr(cfg, ours)} for kind, (_, ours, _) in ROTATIONS.items()
        },
    }


def _layers(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The window and the layers that have it: a token sees itself and local_attention / 2 tokens on either side."""
    both, every = hf.get("local_attention", 128), hf.get("global_attn_every_n_layers", 3)
    if isinstance(both, bool) or not isinstance(both, int) or both < 0:
        raise DataError(f"local_attention must be a whole number from 0; got {both!a:.60}")
    check_dimension("n_layers", every, "global_attn_every_n_layers")
    types = ["sliding_attention" if i % every else "full_attention" for i in range(hf["num_hidden_layers"])]
    given = types if hf.get("layer_types") is None else hf["layer_types"]
    check_layer_types(given, len(types))
    if "global_attn_every_n_layers" in hf and given != types:
        raise DataError(
            f"layer_types must be those of global_attn_every_n_layers {every}; leave one out, or correct {given!a:.200}"
        )
    return {"sliding_window": both // 2 + 1, "layer_types": tuple(map(str, given))}


def _rotations(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The bases of the rotations: transformers 5 writes rope_parameters for each type of layer, earlier ones fields."""
    new = hf.get("rope_parameters") or {}
    if not isinstance(new, Mapping) or not new.keys() <= ROTATIONS.keys():
        raise DataError(f"rope_parameters must be given for {' and '.join(ROTATIONS)}; got {new!a:.200}")
    thetas = {}
    for kind, (old, ours, default) in ROTATIONS.items():
        rope = new.get(kind) or {}
        if not isinstance(rope, Mapping) or not rope.keys() <= {"rope_type", "rope_theta"}:
            raise DataError(f"rope_parameters of {kind} are rope_type and rope_theta here; got {rope!a:.200}")
        check_implemented(rope, {"rope_type": "default"}, "modernbert")
        thetas[ours] = rope.get("rope_theta", hf.get(old, default))
        check_positive_number(thetas[ours], ours)  # NaN differs from itself
        if hf.get(old, thetas[ours]) != thetas[ours]:
            raise DataError(f"{old} is {hf[old]!a:.60}, but {thetas[ours]!a:.60} in rope_parameters; leave one out")
    return thetas


HF_PREFIX = "model."
_WORDS, _DECODER = "model.embeddings.tok_embeddings.weight", "decoder.weight"
_HEAD = {  # our weight -> its name in a file, and the field that says whether there is one
    "head.dense.weight": ("head.dense.weight", "mlm_head"),
    "head.dense.bias": ("head.dense.bias", "head_bias"),
    "head.ln.weight": ("head.norm.weight", "mlm_head"),
    "head.ln.bias": ("head.norm.bias", "norm_bias"),
    "head.bias": ("decoder.bias", "unembed_bias"),
}
_BLOCK_MODULES = {  # our module -> its name in a file, and the field that says whether it has a bias
    "ln1": ("attn_norm", "norm_bias"),
    "attn.qkv": ("attn.Wqkv", "attn_bias"),
    "attn.out": ("attn.Wo", "attn_bias"),
    "ln2": ("mlp_norm", "norm_bias"),
    "mlp.gate_up": ("mlp.Wi", "mlp_bias"),
    "mlp.down": ("mlp.Wo", "mlp_bias"),
}


def hf_names(cfg: Any) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face file."""
    modules = {"ln_embed": ("embeddings.norm", "norm_bias"), "ln_final": ("final_norm", "norm_bias")}
    for i in range(cfg.n_layers):
        modules |= {f"blocks.{i}.{ours}": (f"layers.{i}.{name}", bias) for ours, (name, bias) in _BLOCK_MODULES.items()}
    del modules["blocks.0.ln1"]
    names = {"embed.weight": _WORDS}
    for ours, (name, bias) in modules.items():
        for part in ("weight", "bias") if getattr(cfg, bias) else ("weight",):
            names[f"{ours}.{part}"] = f"{HF_PREFIX}{name}.{part}"
    if cfg.mlm_head:
        names |= {ours: name for ours, (name, field) in _HEAD.items() if getattr(cfg, field)}
        names |= {} if cfg.tie_embeddings else {"unembed.weight": _DECODER}
    return {ours: HfTensor(name) for ours, name in names.items()}


def hf_ties(cfg: Any) -> dict[str, str | None]:
    """The name of a copy that a file may hold -> the name of the original; None for a head that config.json lacks."""
    unused = {} if cfg.mlm_head else dict.fromkeys([*(name for name, _ in _HEAD.values()), _DECODER])
    return unused | ({_DECODER: _WORDS} if cfg.tie_embeddings else {})


def hf_parts(cfg: Any, names: Collection[str]) -> Any:
    """The config with the head if the file holds one; config.json may say otherwise."""
    return replace(cfg, mlm_head=any(name.startswith(("head.", "decoder.")) for name in names))


def shape(cfg: Any) -> ModelShape:
    """The sizes of a `ModernBertConfig`'s model."""
    D, V, norm = cfg.d_model, cfg.d_vocab, cfg.d_model * (1 + cfg.norm_bias)
    outside = {"token embedding": V * D, "embedding norm": norm, "final norm": norm}
    if cfg.mlm_head:
        own = 0 if cfg.tie_embeddings else V * D
        outside |= {"head": D * D + D * cfg.head_bias + norm + V * cfg.unembed_bias + own}
    biases = {"qkv_bias": cfg.attn_bias, "out_bias": cfg.attn_bias, "mlp_bias": cfg.mlp_bias}
    norms = {"norm_shift": cfg.norm_bias, "norm_centred": True, "n_left_out": 1}
    return ModelShape(
        "modernbert",
        (stack_shape(cfg, gated=True, rotary=True, **biases, **norms),),
        V,
        cfg.n_ctx,
        outside,
        embedding_sums=0,
        outer_norms=3 if cfg.mlm_head else 2,
        head_products=D * D + V * D if cfg.mlm_head else 0,
        logits=V if cfg.mlm_head else 0,
        last_norms=("ln_final", "head_ln") if cfg.mlm_head else ("ln_final",),
        cached=False,
    )


def _part(i: int, n: int) -> Callable[[tuple, Any], Tensor]:
    """The i-th of n equal parts of what the module returns."""
    return lambda _, output: output.chunk(n, -1)[i]


_HF_BODY_POINTS = {
    "embed": HfPoint("embeddings.tok_embeddings", module_output),
    "ln_embed": HfPoint("embeddings.norm", module_output),
    "ln_final": HfPoint("final_norm", module_output),
} | points_inside(
    "layers.{layer}",
    {
        "resid_pre": ("", module_input),
        "ln1_normalized": ("attn_norm", module_output),
        "q": ("attn.Wqkv", _part(0, 3)),
        "k": ("attn.Wqkv", _part(1, 3)),
        "v": ("attn.Wqkv", _part(2, 3)),
        "attn_pattern": ("attn", second_output),
        "z": ("attn.Wo", module_input),
        "attn_out": ("attn.Wo", module_output),
        "resid_mid": ("mlp_norm", module_input),
        "ln2_normalized": ("mlp_norm", module_output),
        "mlp_pre": ("mlp.Wi", _part(0, 2)),
        "mlp_pre_linear": ("mlp.Wi", _part(1, 2)),
        "mlp_post": ("mlp.Wo", module_input),
        "mlp_out": ("mlp.Wo", module_output),
        "resid_post": ("", module_output),
    },
)
_HF_POINTS = {point: HfPoint(HF_PREFIX + module, take) for point, (module, take) in _HF_BODY_POINTS.items()} | {
    "head_ln": HfPoint("head.norm", module_output),
    LOGITS: HfPoint("decoder", module_output),
}


def hf_model(cfg: Any) -> HfModel | None:
    """The classes of transformers for this config, and where they compute our points; its heads share d_model."""
    if cfg.head_dim is not None:
        return None
    if not cfg.mlm_head:
        return HfModel("ModernBertConfig", "ModernBertModel", _HF_BODY_POINTS)
    return HfModel("ModernBertConfig", "ModernBertForMaskedLM", _HF_POINTS)
