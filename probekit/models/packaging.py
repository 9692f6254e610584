"""Checkpoints packaged as multimodal: the config and the tensors of their text model. Nothing here needs torch.

A config.json of this kind has the text model's fields in `text_config`, or, in those of Qwen2-VL, among its own. Files
name the text model's tensors `language_model.model.layers`, `model.language_model.layers`, `model.text_model.layers` or
just `model.layers`, and hold vision or audio towers as well, of which no tensor is read.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from probekit.errors import DataError
from probekit.models.families import SAME_ON_TEXT
from probekit.text import listed, printable

# Tiny models of each equal the complete class of transformers on text alone; docs/model-types.md has the measurements,
# and why others are not among them.
PACKAGED = (
    "aria", "aya_vision", "cohere2_vision", "cohere_compass", "deepseek_vl", "deepseek_vl_hybrid", "exaone4_5",
    "fast_vlm", "fun_asr_nano", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "glm46v", "glm4v",
    "glm4v_moe", "glm_ocr", "glmasr", "glmga", "got_ocr2", "granite_docling", "granite_speech",
    "granite_speech_plus", "hunyuan_vl", "hyperclovax_vision_v2", "idefics2", "idefics3", "internvl", "janus",
    "kimi_k25", "lfm2_vl", "lfm3_vl", "lighton_ocr", "llama4", "llava", "llava_next", "llava_next_video",
    "llava_onevision", "minicpm_ocr", "minicpmv4_6", "minicpmv4_7", "mistral3", "moss_transcribe_diarize",
    "muse_glimmer", "muse_spark", "nemotron_h_omni", "omniasr", "ovis2", "perception_lm", "pp_chart2table",
    "qwen2_5_vl", "qwen2_audio", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_asr", "qwen3_vl", "qwen3_vl_moe",
    "shieldgemma2", "smolvlm", "vibevoice", "vibevoice_asr", "video_llama_3", "video_llava", "vipllava", "voxtral",
)  # fmt: skip
_NOT_ALONE = {"paligemma": "each token of a prompt sees those after it, and its config.json does not say so"}
_FLAT = ("qwen2_vl", "qwen2_5_vl")  # their published files have no text_config
_OF_IMAGES = ("mrope_section", "mrope_interleaved")
TOWERS = re.compile(r"(vision|audio|speech|encoder|vq|qformer|projector|perceiver|adapter|adaptor)_config$")
# What a complete class computes with, whatever these fields of the text class say.
_IN_COMPLETE: dict[str, dict[str, Any]] = {
    "aya_vision": {"logit_scale": 1.0},
    "cohere2_vision": {"logit_scale": 1.0},
    "gemma3": {"final_logit_softcapping": None},
    "shieldgemma2": {"final_logit_softcapping": None},
    "qwen3_vl_moe": {"norm_topk_prob": True},
}
_FROM_OUTSIDE = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "quantization_config")
NEEDED = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}
_SIZES = re.compile(
    r"^((hidden|intermediate|vocab)_size|num_(hidden_layers|attention_heads|key_value_heads)|head_dim|"
    r"max_position_embeddings)$"
)
RENAMED = {  # beginnings of names of the text model's tensors -> those of the text model alone
    r"^(model\.)?(language|text)_model\.lm_head\.": "lm_head.",
    r"^(model\.)?(language|text)_model\.(model\.)?": "model.",
}
_MEASURED: set[str] = set()
FURTHER_HEAD = "a multi-token prediction head"  # Gloeckle et al. 2024; DeepSeek V3 has a layer of its own for it
_MTP, _LAYER = re.compile(r"(?:model\.)?mtp"), re.compile(r"(?:model\.)?layers\.(\d+)\.")
_JOINS = re.compile(r"\.(eh_proj|enorm|hnorm)\.")
_T = TypeVar("_T")


def is_packaged(hf: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a model that reads more than text."""
    return hf.get("model_type") in PACKAGED or isinstance(hf.get("text_config"), Mapping)


@contextmanager
def measured(model_type: str) -> Iterator[None]:
    """Within the context the type counts as one of `PACKAGED`, so that it can be compared with the complete class."""
    _MEASURED.add(model_type)
    try:
        yield
    finally:
        _MEASURED.discard(model_type)


def text_fields(
    hf: Mapping[str, Any], defaults: Callable[[str], Mapping[str, Any]] = lambda model_type: {}
) -> dict[str, Any]:
    """The fields of the text model alone, where config.json describes a model packaged as multimodal.

    The outer fields say whether the head is tied, which ids are special, and how weights are quantized.

    Args:
        hf: the fields of config.json.
        defaults: the fields that transformers takes for a model type; published text_configs leave out such sizes.

    Raises:
        DataError: a model whose text model alone does not compute what the complete one computes on text, or of which
            that is not known; sizes that the two contradict.
    """
    kind = str(hf.get("model_type"))
    if kind in _NOT_ALONE:
        raise DataError(f"model_type {kind} is not implemented: {_NOT_ALONE[kind]}; take another model")
    if kind not in PACKAGED and kind not in _MEASURED:
        raise DataError(
            f"model_type {kind!a:.80} reads more than text, and its text model by itself is not known to compute what "
            f"the complete model does on text; known are {listed(PACKAGED)}: docs/model-types.md has all, and why"
        )
    text = hf.get("text_config")
    if text is None and kind in _FLAT:
        text = {name: value for name, value in hf.items() if not TOWERS.search(name)}
    if not isinstance(text, Mapping):
        raise DataError(f"text_config must be the text model's fields in a config of {kind}; got {text!a:.60}")
    contradicted = [name for name in text if _SIZES.search(name) and name in hf and hf[name] != text[name]]
    if contradicted:
        name = contradicted[0]
        raise DataError(f"{name!a:.60} is {hf[name]!a:.60}, but {text[name]!a:.60} in text_config; correct one of them")
    inner = text.get("model_type")
    if not isinstance(inner, str | None):
        raise DataError(f"model_type in text_config must be a name; got {inner!a:.60}")
    if inner in (None, kind):
        inner = f"{kind}_text"
    usual = {} if text.keys() >= NEEDED else defaults(inner)
    sizes = {name: value for name, value in usual.items() if _SIZES.search(name) and value is not None}
    fields = {**sizes, **text, **{name: hf[name] for name in _FROM_OUTSIDE if name in hf}}
    fields |= _IN_COMPLETE.get(kind, {})
    fields["model_type"] = inner
    fields.pop("architectures", None)
    if inner in SAME_ON_TEXT:
        fields["model_type"] = SAME_ON_TEXT[inner]
        for name in ("rope_scaling", "rope_parameters"):
            fields |= {name: _on_text(fields[name])} if isinstance(fields.get(name), Mapping) else {}
    return fields


def _on_text(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fields of rotations without what is for images alone."""
    kept = {name: value for name, value in rope.items() if name not in _OF_IMAGES}
    return {name: "default" if value == "mrope" else value for name, value in kept.items()}


def parts_left_out(hf: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of a packaged model that are not loaded: vision_config, audio_config."""
    towers = tuple(printable(name) for name in hf if TOWERS.search(name) and hf[name] is not None)
    return towers or ("what is not text",)


def later_layers(names: Iterable[str], n_layers: int) -> dict[str, int]:
    """The tensors of layers after the last -> their layer."""
    found = {name: _LAYER.match(text_name(name)) for name in names}
    return {name: int(match[1]) for name, match in found.items() if match and int(match[1]) >= n_layers}


def of_further_heads(names: Collection[str], n_layers: int) -> set[str]:
    """The tensors of heads that predict tokens after the next one: `mtp...`, or a layer after the last.

    Such a layer holds `eh_proj`, `enorm` or `hnorm`, which join the stream to the embedding of the next token. Others
    are layers that config.json does not count.
    """
    later = later_layers(names, n_layers)
    joining = {layer for name, layer in later.items() if _JOINS.search(name)}
    return {name for name in names if later.get(name) in joining or _MTP.match(text_name(name))}


def all_left_out(outside: tuple[str, ...], names: Collection[str], n_layers: int) -> tuple[str, ...]:
    """The parts of a checkpoint that are not loaded.

    Args:
        outside: those of a packaged model, from `parts_left_out`.
        names: of the tensors in its files.
        n_layers: of the model.
    """
    return (*outside, FURTHER_HEAD) if of_further_heads(names, n_layers) else outside


def without(left_out: Collection[str]) -> str:
    """What a plan and a self-test say of these parts: "; without vision_config, a multi-token prediction head"."""
    return f"; without {listed(left_out)}" if left_out else ""


def text_tensors(stored: Mapping[str, _T]) -> dict[str, _T]:
    """The tensors of the text model by the names that it has alone, among those of a packaged model.

    Raises:
        DataError: two of them have one name.
    """
    within = {name: text_name(name) for name in stored}
    inside = any(name != alone for name, alone in within.items())
    found: dict[str, _T] = {}
    for name, alone in within.items():
        if name != alone or name.startswith("lm_head.") or (not inside and name.startswith("model.")):
            if alone in found:
                raise DataError(f"the weights hold {alone!a:.200} twice, one of them as {name!a:.200}; remove one")
            found[alone] = stored[name]
    return found


def text_name(name: str) -> str:
    """The name that a tensor of a packaged model has in the text model alone; others stay."""
    for packaged, alone in RENAMED.items():
        name = re.sub(packaged, alone, name)
    return name
