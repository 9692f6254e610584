"""The model families, by `model_type` or by config; their files, and torch, are imported when a family is needed."""

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

from probekit.errors import UsageError
from probekit.models.shapes import ModelShape, StackShape, decoder_shape

if TYPE_CHECKING:
    from probekit.models.family import Family

FILES = (
    "gpt2",
    "llama",
    "olmo",
    "bert",
    "transformer",
)
"""Modules of this package that end with a FAMILY; to add a family, add its file here."""

GPT2_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"d_model": 768, "n_heads": 12, "n_layers": 12},
    "gpt2-medium": {"d_model": 1024, "n_heads": 16, "n_layers": 24},
    "gpt2-large": {"d_model": 1280, "n_heads": 20, "n_layers": 36},
    "gpt2-xl": {"d_model": 1600, "n_heads": 25, "n_layers": 48},
}
"""The config fields in which the sizes of GPT-2 differ (Radford et al. 2019); d_mlp is 4 d_model."""


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
    """The sizes of the model with this config."""
    return family_of(cfg).shape(cfg)


def named_shape(name: str) -> ModelShape | None:
    """The sizes of "gpt2", "gpt2-medium", "gpt2-large" or "gpt2-xl", without a file or torch; None for other names."""
    if name not in GPT2_SIZES:
        return None
    d_model, n_heads, n_layers = GPT2_SIZES[name].values()
    stack = StackShape(n_layers, d_model, n_heads, n_heads, d_model // n_heads, d_mlp=4 * d_model)
    return decoder_shape("gpt2", stack, d_vocab=50257, n_ctx=1024, tied=True)
