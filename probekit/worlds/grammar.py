"""Tools for the worlds' grammars: splits by checksum, draws, and the Task made of the examples."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from probekit.errors import UsageError, nearest
from probekit.tasks.base import SPLITS, Task

EOS = "<eos>"
QUARTERS = ("train", "train", "validation", "test")
"""Half of every world is for training, a quarter each for validation and test."""

Seed = int | Sequence[int]
Drawn = TypeVar("Drawn")


def split_by_checksum(key: str) -> str:
    """The split of everything that has this key; it depends on nothing else, so all seeds agree."""
    return QUARTERS[zlib.crc32(key.encode()) % 4]


def check_split(split: str) -> None:
    """Refuse a name that is not a split.

    Raises:
        UsageError: it is not train, validation or test.
    """
    if split not in SPLITS:
        raise UsageError(f"no split {split!r}; {nearest(split, SPLITS)}")


def draw_splits(draw: Callable[[int, Seed, str], list[Drawn]], n: tuple[int, int, int], seed: int) -> list[Drawn]:
    """`n` examples for training, validation and test; each split has its own random generator."""
    return [one for k, (split, size) in enumerate(zip(SPLITS, n, strict=True)) for one in draw(size, [seed, k], split)]


def make_task(name: str, n: tuple[int, int, int], seed: int, **fields: Any) -> Task:
    """The task of examples that `draw_splits` drew; `fields` are the fields of `Task` that differ between worlds."""
    return Task(
        name=name,
        splits=np.repeat(SPLITS, n),
        ids=[f"{split}:{i}" for split, size in zip(SPLITS, n, strict=True) for i in range(size)],
        info={"source": name, "seed": seed},
        **fields,
    )


def group_numbers(keys: Sequence[Any]) -> np.ndarray:
    """Equal numbers for equal keys: the groups [N] of a task."""
    return np.unique(list(keys), return_inverse=True)[1].astype(np.int64)


def choose(rng: np.random.Generator, choices: Sequence[Drawn]) -> Drawn:
    """One of the choices, all equally likely."""
    return choices[int(rng.integers(len(choices)))]
