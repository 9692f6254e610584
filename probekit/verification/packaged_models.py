"""Tiny models of the complete classes that read more than text, by transformers, with every weight changed.

A tower is as small as `tiny_configs` makes it; one of timm, which is not installed here, is left out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from probekit.models.weights import ONE_FILE
from probekit.verification.tiny_configs import tiny_config

_MAPPINGS = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ")
NAMES = {"of the Hub": {}, "in memory": {"save_original_format": False}}  # of tensors, and how transformers saves so
TIMM = "TimmWrapperModel"  # a tower of the package timm
# transformers 5.24 writes other names than those of the published files, which it reads
_PUBLISHED = {"kimi_k25": ("language_model.model.blocks.", "language_model.model.layers.")}


@cache
def multimodal_types() -> dict[str, str]:
    """Every model type of the installed transformers that reads more than text -> its complete class."""
    from transformers.models.auto import modeling_auto

    tables = vars(modeling_auto)
    found: dict[str, str] = {}
    for mapping in _MAPPINGS:
        found |= tables[f"MODEL_FOR_{mapping}_MAPPING_NAMES"]
    return dict(sorted(found.items()))


def config_class(model_type: str) -> Any:
    """The config class of a model type."""
    import transformers
    from transformers.models.auto import configuration_auto

    classes: Any = configuration_auto
    return getattr(transformers, classes.CONFIG_MAPPING_NAMES[model_type])


def complete_model(model_type: str, text_type: str = "") -> Any:
    """A tiny model of the complete class, in eval mode, its weights so large that each of them shows.

    Args:
        model_type: of `multimodal_types`.
        text_type: of its text model; "" for the class's own.

    Raises:
        Exception: whatever the class raises.
    """
    import transformers

    config = tiny_config(config_class(model_type))
    if text_type:
        config.text_config = tiny_config(config_class(text_type))
    with torch.random.fork_rng(devices=[]), _without_timm():
        torch.manual_seed(0)
        made = getattr(transformers, multimodal_types()[model_type])
        model = made._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            for weight in weights_in_file(model).values():
                drawn = torch.randn(weight.shape)
                weight.copy_(drawn * 0.08 if weight.dim() > 1 else weight + drawn * 0.3)
    return model


def save_packaged(complete: Any, folder: Path, names: str = "of the Hub") -> Path:
    """Save a complete model with its tensors under one kind of `NAMES`; the folder."""
    complete.save_pretrained(folder, **NAMES[names])
    written, published = _PUBLISHED.get(complete.config.model_type, ("", ""))
    if written and names == "of the Hub":
        weights = load_file(folder / ONE_FILE)
        renamed = {name.replace(written, published): x for name, x in weights.items()}
        save_file(renamed, folder / ONE_FILE, metadata={"format": "pt"})
    return folder


def weights_in_file(model: Any) -> dict[str, Tensor]:
    """The tensors that a file holds, by name; those that are tied once."""
    stored = model.state_dict()
    held = dict(model.named_parameters()) | {name: x for name, x in model.named_buffers() if name in stored}
    return {name: x for name, x in held.items() if x.is_floating_point()}


@contextmanager
def _without_timm() -> Iterator[None]:
    """Within the context a tower of timm has no weights: no text goes through it."""
    from transformers import PreTrainedModel
    from transformers.models.timm_wrapper import modeling_timm_wrapper

    tower: Any = getattr(modeling_timm_wrapper, TIMM)
    before = tower.__init__, tower.post_init

    def made(self: Any, config: Any) -> None:
        PreTrainedModel.__init__(self, config)
        self.timm_model = nn.Identity()

    tower.__init__, tower.post_init = made, lambda self: None
    try:
        yield
    finally:
        tower.__init__, tower.post_init = before
