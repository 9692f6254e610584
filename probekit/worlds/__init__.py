"""Synthetic worlds: small languages with known truth, and the tiny models that learn them.

Each file holds one world: its grammar, its task, the shape and training settings of its model, and its exam. To add a
world, write such a file, one line in `registry.py`, and one YAML file in `configs/`.

Importing this package enters the worlds' models and tasks in `probekit.registries`. It costs no torch.
"""

from functools import partial
from pathlib import Path

from probekit import registries
from probekit.worlds.registry import MODELS, TASKS, built_in_task, world


def _model_folder(name: str, weights: bool, progress: bool | None) -> Path:
    from probekit.worlds.train import trained_folder  # imports torch

    return trained_folder(world(name), weights, progress)


registries.MODELS.update({name: partial(_model_folder, name) for name in MODELS})
registries.TASKS.update({name: partial(built_in_task, name) for name in TASKS})

__all__ = ["MODELS", "TASKS", "world"]
