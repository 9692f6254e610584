"""The built-in world `spans`: consecutive numbers, some of them hidden.

    7 8 [MASK] 10 [MASK] -> 9 and 11 are hidden; the mean, 9, is below the middle

For a masked language model (Devlin et al. 2019) that says the hidden numbers at their places, and of the whole span
whether its mean is below or above the middle of all numbers, 15.5. Numbers are 0 to 31, a span has 4 to 8 of them, and
spans whose mean is the middle itself are left out.

    hidden    the number that is asked for, 0 to 31, all equally likely
    span      of those that hold it, all equally likely
    others    each of the span's other numbers is hidden too with probability 1/4, on its own

Span and others are drawn again while no number would be left to see, and while the text is of another split. Splits
hold apart texts, by a checksum: one half for training, a quarter each for validation and test. So a held-out text is of
a span that was seen, but with other numbers hidden.

The text that is probed is read at the [MASK] of the number that is asked for. Label sets: `hidden` (the target) and
`mean` (below, above).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from probekit.tasks.base import Task
from probekit.tasks.synthetic import Seed, check_split, choose, of_splits, split_of, task_of

PAD, CLS, SEP, MASK = "[PAD]", "[CLS]", "[SEP]", "[MASK]"
LARGEST, SHORTEST, LONGEST = 31, 4, 8
VOCABULARY: list[str] = [PAD, CLS, SEP, MASK, *map(str, range(LARGEST + 1))]
MEANS = ("below", "above")


@dataclass(frozen=True)
class Span:
    """`length` numbers from `first` on, which of them are hidden, and the place of the one that is asked for."""

    first: int
    length: int
    hidden: tuple[bool, ...]
    place: int

    @property
    def numbers(self) -> list[int]:
        """All numbers, hidden or not."""
        return list(range(self.first, self.first + self.length))

    @property
    def text(self) -> str:
        """The words, parted by blanks."""
        return " ".join(
            MASK if hidden else str(number) for number, hidden in zip(self.numbers, self.hidden, strict=True)
        )

    @property
    def above(self) -> bool:
        """Whether the mean is above the middle of all numbers."""
        return 2 * self.first + self.length - 1 > LARGEST


@lru_cache
def spans_with(number: int) -> list[tuple[int, int]]:
    """First number and length of every span that holds the number."""
    return [
        (first, length)
        for length in range(SHORTEST, LONGEST + 1)
        for first in range(max(0, number - length + 1), min(number, LARGEST + 1 - length) + 1)
        if 2 * first + length - 1 != LARGEST
    ]


def masked_spans(n: int, seed: Seed = 0, split: str = "train") -> list[Span]:
    """`n` independent spans of one split, for a model to learn from."""
    check_split(split)
    rng = np.random.default_rng(seed)
    return [_span(rng, split) for _ in range(n)]


def spans(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; equal arguments give equal tasks."""
    drawn = of_splits(masked_spans, n, seed)
    return task_of(
        "spans",
        n,
        seed,
        inputs=[span.text for span in drawn],
        labels={
            "hidden": np.array([span.first + span.place for span in drawn], dtype=np.int64),
            "mean": np.array([span.above for span in drawn], dtype=np.int64),
        },
        label_names={"hidden": [str(number) for number in range(LARGEST + 1)], "mean": list(MEANS)},
        target="hidden",
        position=np.array([span.place for span in drawn], dtype=np.int64),
    )


def _span(rng: np.random.Generator, split: str) -> Span:
    number = int(rng.integers(LARGEST + 1))
    while True:
        first, length = choose(rng, spans_with(number))
        place = number - first
        hidden = tuple(bool(k == place or coin < 0.25) for k, coin in enumerate(rng.random(length)))
        span = Span(first, length, hidden, place)
        if not all(hidden) and split_of(span.text) == split:
            return span
