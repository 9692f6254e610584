"""The built-in world `counting`: from a start number count up until 42, then stop.

    34 -> 34 35 36 37 38 39 40 41 42 <eos>
    45 -> 45 <eos>

Every number from 0 to 99 is one word, so a model has to learn which number follows which, and where to stop. A count
of the training material starts at a number of at most 42 with probability 3/4 and at a larger one with 1/4; within each
kind all starts are equally likely.

Splits hold apart *starts*: start mod 4 is 0 or 1 for training, 2 for validation, 3 for test. So a model has never seen
a held-out number of at most 42 as the first one of a count, but has seen it later in counts that start lower. A number
above 42 stands nowhere but at a start: a model that has not seen it there has not seen it at all, so that models are
trained on all of these, and only the probe's splits hold them apart.

The text that is probed is a count that was cut after any of its numbers, and is read at its last number. Label sets:
`stops` (the target: does <eos> come next?) and `number` (a regression: the number that is read). Half of the texts of
a split stop, half go on; within each kind no text stands there twice, and all are equally likely. The start is the
group.
"""

import numpy as np

from probekit.errors import UsageError
from probekit.tasks.base import Task
from probekit.tasks.synthetic import EOS, QUARTERS, Seed, check_split, choose, of_splits, task_of

LAST, LARGEST = 42, 99
VOCABULARY: list[str] = [EOS, *map(str, range(LARGEST + 1))]
"""Every word of the language. `<eos>` (id 0) stands after the last number of a count."""


def numbers(start: int) -> list[int]:
    """The numbers of the count from `start`: up to 42, or the start alone."""
    return list(range(start, max(start, LAST) + 1))


def words(start: int) -> list[str]:
    """The words of the count from `start`, with the <eos> after it."""
    return [*map(str, numbers(start)), EOS]


def split_of(start: int) -> str:
    """The split that every text of this start belongs to."""
    return QUARTERS[start % 4]


def starts(split: str) -> list[int]:
    """The starts of one split that are at most 42."""
    check_split(split)
    return [start for start in range(LAST + 1) if split_of(start) == split]


def counts(n: int, seed: Seed = 0) -> list[list[str]]:
    """`n` independent counts for a language model to learn from, each ending in <eos>."""
    rng = np.random.default_rng(seed)
    low, high = starts("train"), range(LAST + 1, LARGEST + 1)
    return [words(choose(rng, low if rng.random() < 0.75 else high)) for _ in range(n)]


def texts(split: str) -> tuple[list[list[int]], list[list[int]]]:
    """Every text of a split: those that go on, and those that stop."""
    check_split(split)
    whole = [numbers(start) for start in range(LARGEST + 1) if split_of(start) == split]
    return [count[:length] for count in whole for length in range(1, len(count))], whole


def counting(n: tuple[int, int, int] = (90, 48, 48), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; equal arguments give equal tasks.

    Raises:
        UsageError: more texts than a split has, or not an even number of them.
    """
    drawn = of_splits(_draw, n, seed)
    return task_of(
        "counting",
        n,
        seed,
        inputs=[" ".join(map(str, text)) for text in drawn],
        labels={
            "stops": np.array([text[-1] >= LAST for text in drawn], dtype=np.int64),
            "number": np.array([text[-1] for text in drawn], dtype=np.float64),
        },
        label_names={"stops": ["goes on", "stops"], "number": []},
        target="stops",
        groups=np.array([text[0] for text in drawn], dtype=np.int64),
    )


def _draw(n: int, seed: Seed, split: str) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    kinds = texts(split)
    most = 2 * min(map(len, kinds))
    if n % 2 or not 0 <= n <= most:
        raise UsageError(f"counting has an even number of texts in {split}, {most} at most; got {n}")
    chosen = [kind[i] for kind in kinds for i in rng.permutation(len(kind))[: n // 2]]
    return [chosen[i] for i in rng.permutation(n)]
