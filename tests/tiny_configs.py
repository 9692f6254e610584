"""A tiny config of every variant of every family.

The test of each family, `models/families/test_FILE.py`, offers them as TINY: name -> config. Tests of all families are
parametrised with them, so a new family is tested as soon as it is registered.
"""

import importlib
from typing import Any

from probekit.models.families import FILES

SIZES: dict[str, Any] = {"d_model": 32, "n_heads": 4, "d_mlp": 80, "n_layers": 3, "n_ctx": 24, "d_vocab": 50}


def tiny_configs() -> dict[str, Any]:
    """The configs of all families by name."""
    offered = [importlib.import_module(f"models.families.test_{file}").TINY for file in FILES]
    configs = {name: cfg for each in offered for name, cfg in each.items()}
    assert len(configs) == sum(map(len, offered)), "two families offer a config of the same name"
    return configs
