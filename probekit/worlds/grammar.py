"""Tools for the worlds' grammars: draws, splits by checksum, and the Task made of what was drawn.

A grammar is a function (generator, split) -> one text of the split; `draws` calls it n times.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
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


def choose(rng: np.random.Generator, choices: Sequence[Drawn]) -> Drawn:
    """One of the choices, all equally likely."""
    return choices[int(rng.integers(len(choices)))]


def draws(
    one: Callable[[np.random.Generator, str], Drawn], n: int, seed: Seed = 0, split: str = "train"
) -> list[Drawn]:
    """`n` independent draws of one split.

    Raises:
        UsageError: no such split.
    """
    check_split(split)
    rng = np.random.default_rng(seed)
    return [one(rng, split) for _ in range(n)]


def draw_splits(several: Callable[[int, Seed, str], list[Drawn]], n: tuple[int, int, int], seed: int) -> list[Drawn]:
    """`n` draws for training, validation and test; each split has its own random generator."""
    return [
        one for k, (split, size) in enumerate(zip(SPLITS, n, strict=True)) for one in several(size, [seed, k], split)
    ]


def make_task(
    name: str,
    n: tuple[int, int, int],
    seed: int,
    labels: Mapping[str, tuple[Sequence[Any], Sequence[str]]],
    **fields: Any,
) -> Task:
    """The task of what `draw_splits` drew.

    Args:
        name: of the task.
        n: as there.
        seed: as there.
        labels: label set -> the class of each text, and the classes' names; without names, the numbers of a regression.
            The first is the target.
        fields: the other fields of `Task`.
    """
    return Task(
        name=name,
        splits=np.repeat(SPLITS, n),
        ids=[f"{split}:{i}" for split, size in zip(SPLITS, n, strict=True) for i in range(size)],
        info={"source": name, "seed": seed},
        labels={of: np.array(each, dtype=np.int64 if names else np.float64) for of, (each, names) in labels.items()},
        label_names={of: list(names) for of, (_, names) in labels.items()},
        target=next(iter(labels)),
        **fields,
    )


def group_numbers(keys: Sequence[Any]) -> np.ndarray:
    """Equal numbers for equal keys: the groups [N] of a task."""
    return np.unique(list(keys), return_inverse=True)[1].astype(np.int64)
