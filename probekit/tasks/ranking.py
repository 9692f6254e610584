"""The built-in world `ranking`: for each item of a list, how many earlier items are not larger.

    5 3 9 3 4 -> 0 0 2 1 2

For an encoder-decoder: the list is the source, the ranks are what the decoder says, one after the other and then
<eos>; its input starts with <bos>. A list of the training material has 5 to 8 items, all lengths equally likely; each
item is 0 to 15, all equally likely and independent, so that items repeat.

Splits hold apart lists, by a checksum: one half for training, a quarter each for validation and test.

The text that is probed is a list, read at one of its items; `targets` holds the decoder's input, "<bos>" and the ranks
of all items but the last, in which the token at the same place is the one whose output is the item's rank. The label
set is `rank`. Length, place and rank are drawn first: the length from 5 to 8, the place (counted from 0) from 4 to the
last, the rank from 0 to 4, each uniform given those before it; then lists of the split are drawn until the item there
has that rank. So the place says nothing of the rank.
"""

from typing import NamedTuple

import numpy as np

from probekit.tasks.base import Task
from probekit.tasks.synthetic import EOS, Seed, check_split, of_splits, split_of, task_of

BOS, PAD = "<bos>", "<pad>"
SHORTEST, LONGEST, LARGEST = 5, 8, 15
HIGHEST = 4  # rank that is asked for
VOCABULARY: list[str] = [PAD, BOS, EOS, *map(str, range(LARGEST + 1))]
"""Items and ranks share their words."""


class Asked(NamedTuple):
    """A list, and the place of the item that is asked for."""

    items: list[int]
    place: int


def ranks(items: list[int]) -> list[int]:
    """For each item the number of earlier items that are not larger."""
    return [sum(earlier <= item for earlier in items[:k]) for k, item in enumerate(items)]


def text_of(items: list[int]) -> str:
    """Items or ranks as words parted by blanks."""
    return " ".join(map(str, items))


def lists(n: int, seed: Seed = 0, split: str = "train") -> list[list[int]]:
    """`n` independent lists of one split, for a model to learn from."""
    check_split(split)
    rng = np.random.default_rng(seed)
    return [_list(rng, int(rng.integers(SHORTEST, LONGEST + 1)), split) for _ in range(n)]


def ranking(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; equal arguments give equal tasks."""
    drawn = of_splits(_draw, n, seed)
    return task_of(
        "ranking",
        n,
        seed,
        inputs=[text_of(one.items) for one in drawn],
        targets=[f"{BOS} {text_of(ranks(one.items)[:-1])}" for one in drawn],
        labels={"rank": np.array([ranks(one.items)[one.place] for one in drawn], dtype=np.int64)},
        label_names={"rank": [str(rank) for rank in range(HIGHEST + 1)]},
        target="rank",
        position=np.array([one.place for one in drawn], dtype=np.int64),
    )


def _draw(n: int, seed: Seed, split: str) -> list[Asked]:
    rng = np.random.default_rng(seed)
    return [_asked(rng, split) for _ in range(n)]


def _asked(rng: np.random.Generator, split: str) -> Asked:
    length = int(rng.integers(SHORTEST, LONGEST + 1))
    place, rank = int(rng.integers(HIGHEST, length)), int(rng.integers(HIGHEST + 1))
    while ranks(items := _list(rng, length, split))[place] != rank:
        pass
    return Asked(items, place)


def _list(rng: np.random.Generator, length: int, split: str) -> list[int]:
    while split_of(text_of(items := rng.integers(0, LARGEST + 1, length).tolist())) != split:
        pass
    return items
