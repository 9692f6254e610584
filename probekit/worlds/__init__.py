"""Synthetic worlds: small languages with known truth, and the tiny models that learn them.

In `compiled` are models that learn nothing: their weights are set by construction.

Each file holds one world: its grammar, its task, the shape and training settings of its model, and its exam. To add a
world, write such a file, one line in `WORLDS`, and one YAML file in `configs/`.

Importing this package enters the worlds' models and tasks in `probekit.registries`. It costs no torch.
"""

import importlib
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from probekit import registries
from probekit.errors import UsageError, nearest
from probekit.worlds.compiled import NAMES as COMPILED
from probekit.worlds.compiled import compiled_folder, compiled_task

if TYPE_CHECKING:
    from probekit.tasks.base import Task
    from probekit.worlds.definition import World

__all__ = ["MODELS", "TASKS", "WORLDS", "world"]


class Names(NamedTuple):
    """What a world's file defines.

    Attributes:
        tasks: the keys of its TASKS.
        model: the name of its WORLD; None where the model comes with the package and is not trained here.
    """

    tasks: tuple[str, ...]
    model: str | None = None


WORLDS = {
    "agreement": Names(("agreement",)),
    "counting": Names(("counting",), "counting-gpt"),
    "ranking": Names(("ranking",), "ranking-transformer"),
    "spans": Names(("spans",), "spans-bert"),
    "dialogue": Names(("dialogue",), "dialogue-gpt"),
    "brackets": Names(("brackets", "brackets-depth"), "brackets-gpt"),
    "ballots": Names(("ballots",), "ballots-gpt"),
    "honesty": Names(("honesty", "honesty-answered"), "honesty-gpt"),
}
"""File in this package -> what it defines. A world's file is imported when it is first needed."""

MODELS = tuple(names.model for names in WORLDS.values() if names.model)
TASKS = tuple(task for names in WORLDS.values() for task in names.tasks)


def world(name: str) -> "World":
    """The world of a model or a task: "counting-gpt" and "counting" give the same one.

    Raises:
        UsageError: no world has this name.
    """
    files = {name: file for file, names in WORLDS.items() if names.model for name in (names.model, *names.tasks)}
    if name not in files:
        raise UsageError(f"no world {name!a}; {nearest(str(name), files)}")
    return _module(files[name]).WORLD


def built_in_task(name: str, **options: Any) -> "Task":
    """The task with this name; options are those of its function, such as `seed`."""
    file = next(file for file, names in WORLDS.items() if name in names.tasks)
    return _module(file).TASKS[name](**options)


def _module(file: str) -> ModuleType:
    return importlib.import_module(f"probekit.worlds.{file}")


def _model_folder(name: str, weights: bool, progress: bool | None) -> Path:
    from probekit.worlds.train import trained_folder  # imports torch

    return trained_folder(world(name), weights, progress)


registries.MODELS.update({name: partial(_model_folder, name) for name in MODELS})
registries.TASKS.update({name: partial(built_in_task, name) for name in TASKS})
registries.MODELS.update({name: partial(compiled_folder, name) for name in COMPILED})
registries.TASKS.update({name: partial(compiled_task, name) for name in COMPILED})
