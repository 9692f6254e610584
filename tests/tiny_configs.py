"""A tiny config of every variant of every family, and a model of each, made once in a run of the tests.

The test of each family, `models/families/test_FILE.py`, offers them as TINY: name -> config. Tests of all families are
parametrised with them, so a new family is tested as soon as it is registered.
"""

import importlib
from functools import cache
from typing import Any

import torch

from probekit.models.families import FILES, family_of

SIZES: dict[str, Any] = {"d_model": 32, "n_heads": 4, "d_mlp": 80, "n_layers": 3, "n_ctx": 24, "d_vocab": 50}

# names of configs that compute what another one does, and differ in the head, in biases or in the names of weights
LIKE_ANOTHER = {"gpt2-untied", "mistral", "qwen2", "bert-untied", "distilbert-headless", "modernbert-headless"}


@cache
def tiny_configs() -> dict[str, Any]:
    """The configs of all families by name."""
    offered = [importlib.import_module(f"models.families.test_{file}").TINY for file in FILES]
    configs = {name: cfg for each in offered for name, cfg in each.items()}
    assert len(configs) == sum(map(len, offered)), "two families offer a config of the same name"
    return configs


def new_model(name: str) -> Any:
    """A model of a tiny config, which the test may change."""
    cfg = tiny_configs()[name]
    model = family_of(cfg).model(cfg).init_weights(1).eval()
    assert sum(p.numel() for p in model.parameters()) < 120_000
    with torch.no_grad():  # so that biases and norms show
        for p in model.state_dict().values():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    model.name = name
    return model


@cache
def tiny_model(name: str) -> Any:
    """The model of a tiny config that all tests read and none changes."""
    return new_model(name)
