"""Models with random weights, made on the device itself: any published shape, without a download."""

from typing import Any

import torch

from probekit.files.published import PUBLISHED
from probekit.models.base import LanguageModel
from probekit.models.families import families

STD = 0.02  # of every matrix
SMALL = {"d_model": 256, "n_heads": 4, "d_mlp": 1024, "n_layers": 4, "d_vocab": 8192}  # for a CPU


def made_up_model(device: torch.device, dtype: torch.dtype, seed: int = 0, cfg: Any = None) -> LanguageModel:
    """A model of these sizes with random weights; by default GPT-2 small's on a GPU, and smaller ones on a CPU.

    Weights are drawn on the device, so that those of 8B take seconds on a GPU; so they differ from device to device.

    Args:
        device: where it is made.
        dtype: of its weights.
        seed: of the weights.
        cfg: a family's config; `published_config` has those of published models.
    """
    if cfg is None:
        sizes = type(published_config("distilgpt2"))  # a config whose defaults are the sizes of GPT-2 small
        cfg = sizes(**SMALL) if device.type == "cpu" else sizes()
    family = next(one for one in families().values() if one.config is type(cfg))
    with torch.device("meta"):
        model: Any = family.model(cfg)
    model = model.to(dtype).to_empty(device=device).eval()
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, STD, generator=generator)
            else:
                weight.fill_(0 if name.endswith("bias") else 1)
    model.name = f"{type(model).__name__} of {cfg.n_layers} layers of {cfg.d_model} with random weights"
    return model


def published_config(name: str) -> Any:
    """The config of a published model by its short name, without a file or a network."""
    fields = PUBLISHED[name].fields
    return families()[fields["model_type"]].config.from_hf(fields)
