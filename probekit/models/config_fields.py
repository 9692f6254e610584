"""Fields of configs: which of them identify a model. Nothing here needs torch."""

from dataclasses import asdict, field, fields
from typing import Any


def later(default: Any) -> Any:
    """A config field that came after stores had been written: see `deciding_fields`."""
    return field(default=default, metadata={"later": True})


def deciding_fields(cfg: Any) -> dict[str, Any]:
    """The fields of a config that decide what its model computes: part of the identity of a store or of a world.

    A field made by `later` is left out while it has its default, so that older stores keep their identity.
    """
    new = [each for each in fields(cfg) if each.metadata.get("later")]
    unset = {each.name for each in new if getattr(cfg, each.name) == each.default}
    return {name: value for name, value in asdict(cfg).items() if name not in unset}
