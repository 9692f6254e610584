"""The worlds with models of a few thousand weights, trained at once, and a cache of the test's own."""

import importlib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from probekit.options import TrainingSettings
from probekit.worlds import MODELS, world
from probekit.worlds.definition import World, with_config

SIZES = {
    "d_model": 16,
    "n_heads": 2,
    "d_mlp": 32,
    "n_layers": 1,
    "n_decoder_heads": 2,
    "d_decoder_mlp": 32,
    "n_decoder_layers": 1,
}


def shrunk(one: World) -> World:
    """The world with a tiny model and three steps of training."""
    has = asdict(one.make_config())
    small = with_config(one, **{name: size for name, size in SIZES.items() if name in has})
    return replace(small, settings=TrainingSettings(steps=3, batch_size=4, warm_up_steps=1))


def use_small_worlds(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """From now on in this test `load_model` of a world trains the shrunk one, and keeps it in `cache`."""
    monkeypatch.setenv("PROBEKIT_CACHE", str(cache))
    for one in [world(name) for name in MODELS]:
        file = importlib.import_module(f"probekit.worlds.{one.task}")
        monkeypatch.setattr(file, "WORLD", shrunk(one))
