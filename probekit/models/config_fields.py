"""Fields of configs: which of them identify a model. Nothing here needs torch."""

from collections.abc import Iterator
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


def _deciding(cfg: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(cfg):
        value = getattr(cfg, each.name)
        if not (each.metadata.get("later") and value == each.default):
            yield each.name, dict(_deciding(value)) if is_dataclass(value) else value
