"""The model families, by `model_type` or by config; their files, and torch, are imported when a family is needed."""

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

from probekit.errors import UsageError
from probekit.files.published import PUBLISHED
from probekit.models.shapes import ModelShape, StackShape, decoder_shape

if TYPE_CHECKING:
    from probekit.models.family import Family

FILES: dict[str, tuple[str, ...]] = {
    "gpt2": ("gpt2",),
    "llama": ("llama", "mistral", "qwen2", "qwen3", "phi3"),
    "gptneox": ("gpt_neox",),
    "hooked_transformer": ("hooked_transformer",),
    "gemma": ("gemma", "gemma2", "gemma3_text"),
    "gemma4": ("gemma4_text",),
    "olmo": ("olmo2", "olmo3"),
    "bert": ("bert",),
    "roberta": ("roberta", "xlm-roberta", "camembert"),
    "distilbert": ("distilbert",),
    "modernbert": ("modernbert",),
    "transformer": ("marian",),
    "moe": ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe"),
    "gptoss": ("gpt_oss",),
    "deepseek": ("deepseek_v3", "deepseek_v2", "kimi_k2"),
    "glm": ("glm4_moe",),
    "qwen3_next": ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
}
"""Modules of this package that end with a FAMILY, and its `model_types`; to add a family, add its file here."""


# Text models of packaged ones whose rotations take a place in time, height and width: on text the three are equal.
SAME_ON_TEXT = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_moe_text": "glm4_moe",
}


def model_types() -> list[str]:
    """Every `model_type` of config.json that a family means; known without torch."""
    return [each for types in FILES.values() for each in types]


@cache
def families() -> dict[str, "Family"]:
    """Every family, by each `model_type` of config.json that means it."""
    found = [importlib.import_module(f"probekit.models.families.{file}").FAMILY for file in FILES]
    return {model_type: family for family in found for model_type in family.model_types}


def family_of(cfg: Any) -> "Family":
    """The family of a config.

    Raises:
        UsageError: it belongs to none.
    """
    for family in families().values():
        if type(cfg) is family.config:
            return family
    raise UsageError(f"{type(cfg).__name__} belongs to no family; enter its file in models/families/__init__.py")


def shape_of(cfg: Any) -> ModelShape:
    """The sizes of the model with this config; one that transformers computes knows its own."""
    return cfg.shape if isinstance(getattr(cfg, "shape", None), ModelShape) else family_of(cfg).shape(cfg)


def has_shape(cfg: Any) -> bool:
    """Whether `shape_of` knows the sizes: False for the config of a model that people wrote themselves."""
    return isinstance(getattr(cfg, "shape", None), ModelShape) or any(
        type(cfg) is family.config for family in families().values()
    )


def named_shape(name: str) -> ModelShape | None:
    """The sizes of a published model, without a file or a network; None for other names.

    Args:
        name: a short name of `probekit.files.published` or the name on the Hub.
    """
    fields = next((model.fields for short, model in PUBLISHED.items() if name in (short, model.hub_id)), None)
    if fields is None:
        return None
    if fields["model_type"] == "gpt2":  # without torch, which a family's file imports
        D, H = fields["n_embd"], fields["n_head"]
        stack = StackShape(fields["n_layer"], D, H, H, D // H, d_mlp=4 * D)
        return decoder_shape("gpt2", stack, fields["vocab_size"], fields["n_positions"], tied=True)
    family = families()[fields["model_type"]]
    return family.shape(family.config.from_hf(fields))
