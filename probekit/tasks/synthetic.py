"""What the built-in worlds share: which split a part of the world belongs to, and how their tasks are put together."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from probekit.errors import UsageError, nearest
from probekit.tasks.base import SPLITS, Task

EOS = "<eos>"
QUARTERS = ("train", "train", "validation", "test")
"""Of every world one half is for training, a quarter each for validation and test."""

Seed = int | Sequence[int]
Drawn = TypeVar("Drawn")


def split_of(key: str) -> str:
    """The split that a part of a world belongs to, by the checksum of its name: whatever the seed, it is the same."""
    return QUARTERS[zlib.crc32(key.encode()) % 4]


def check_split(split: str) -> str:
    """The split, if there is one of this name.

    Raises:
        UsageError: there is none.
    """
    if split not in SPLITS:
        raise UsageError(f"no split {split!r}; {nearest(split, SPLITS)}")
    return split


def of_splits(draw: Callable[[int, Seed, str], list[Drawn]], n: tuple[int, int, int], seed: int) -> list[Drawn]:
    """`n` examples for training, validation and test, each split from a generator of its own."""
    return [one for k, (split, size) in enumerate(zip(SPLITS, n, strict=True)) for one in draw(size, [seed, k], split)]


def task_of(name: str, n: tuple[int, int, int], seed: int, **parts: Any) -> Task:
    """The task of examples that `of_splits` drew; `parts` are the fields of `Task` that the world decides."""
    return Task(
        name=name,
        splits=np.repeat(SPLITS, n),
        ids=[f"{split}:{i}" for split, size in zip(SPLITS, n, strict=True) for i in range(size)],
        info={"source": name, "seed": seed},
        **parts,
    )


def numbers_of(keys: Sequence[Any]) -> np.ndarray:
    """A number for each key, equal for equal keys: the groups [N] of a task."""
    return np.unique(list(keys), return_inverse=True)[1].astype(np.int64)


def choose(rng: np.random.Generator, among: Sequence[Drawn]) -> Drawn:
    """One of them, each as likely as the others."""
    return among[int(rng.integers(len(among)))]
