"""Fields of configs: which of them identify a model, and which a config.json has. Nothing here needs torch."""

from collections.abc import Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"  # values of layer_types


def later(default: Any) -> Any:
    """A config field that came after stores had been written: see `deciding_fields`."""
    return field(default=default, metadata={"later": True})


def deciding_fields(cfg: Any) -> dict[str, Any]:
    """The fields of a config that decide what its model computes: part of the identity of a store or of a world.

    A field made by `later` is left out while it has its default, so that older stores keep their identity.
    """
    return dict(_deciding(cfg))


def hf_values(cfg: Any, ours: Mapping[str, str]) -> dict[str, Any]:
    """The fields of config.json that hold fields of ours, by name.

    A field made by `later` is left out while it has its default: transformers does not know those of them that are
    probekit's own, such as `head_dim` of GPT-2.

    Args:
        cfg: the config.
        ours: field of config.json -> our field.
    """
    unset = {
        each.name for each in fields(cfg) if each.metadata.get("later") and getattr(cfg, each.name) == each.default
    }
    return {name: getattr(cfg, field) for name, field in ours.items() if field not in unset}


def _deciding(cfg: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(cfg):
        value = getattr(cfg, each.name)
        if not (each.metadata.get("later") and value == each.default):
            yield each.name, dict(_deciding(value)) if is_dataclass(value) else value
