"""The world `spans`: consecutive numbers, some of them hidden.

    7 8 [MASK] 10 [MASK] -> 9 and 11 are hidden; the mean, 9, is below the middle

For a masked language model (Devlin et al. 2019). It predicts the hidden numbers at their places, and whether the mean
of the span is below or above the middle of all numbers, 15.5. Numbers are 0 to 31; a span has 4 to 8 of them; spans
whose mean is exactly the middle are left out.

    hidden    the number that is probed, 0 to 31, all equally likely
    span      one of those that contain it, all equally likely
    others    each of the span's other numbers is hidden too with probability 1/4, independently

Span and others are drawn again until a number is left visible and the text is of the wanted split. Splits separate
texts by checksum: half for training, a quarter each for validation and test. So the span of a held-out text was seen in
training, but with other numbers hidden.

The probed text is read at the [MASK] of the probed number. Label sets: `hidden` (the target) and `mean` (below, above).
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from probekit.models.examples import IGNORE, Example
from probekit.options import TrainingSettings
from probekit.tasks.base import Task
from probekit.worlds.definition import World, word_ids
from probekit.worlds.grammar import Seed, choose, draw_splits, draws, make_task, split_by_checksum

if TYPE_CHECKING:
    from probekit.models.families.bert import BertConfig

PAD, CLS, SEP, MASK = "[PAD]", "[CLS]", "[SEP]", "[MASK]"
LARGEST, SHORTEST, LONGEST = 31, 4, 8
VOCABULARY: list[str] = [PAD, CLS, SEP, MASK, *map(str, range(LARGEST + 1))]
MEANS = ("below", "above")


@dataclass(frozen=True)
class Span:
    """`length` numbers from `first` on, which of them are hidden, and the place of the one that is probed."""

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
        """The words with blanks between them."""
        return " ".join(
            MASK if hidden else str(number) for number, hidden in zip(self.numbers, self.hidden, strict=True)
        )

    @property
    def above(self) -> bool:
        """Whether the mean is above the middle of all numbers."""
        return 2 * self.first + self.length - 1 > LARGEST


@lru_cache
def spans_with(number: int) -> list[tuple[int, int]]:
    """First number and length of every span that contains the number."""
    return [
        (first, length)
        for length in range(SHORTEST, LONGEST + 1)
        for first in range(max(0, number - length + 1), min(number, LARGEST + 1 - length) + 1)
        if 2 * first + length - 1 != LARGEST
    ]


def masked_span(rng: np.random.Generator, split: str) -> Span:
    """A span of one split."""
    number = int(rng.integers(LARGEST + 1))
    while True:
        first, length = choose(rng, spans_with(number))
        place = number - first
        hidden = tuple(bool(k == place or coin < 0.25) for k, coin in enumerate(rng.random(length)))
        span = Span(first, length, hidden, place)
        if not all(hidden) and split_by_checksum(span.text) == split:
            return span


def spans(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; the same arguments give the same task."""
    drawn = draw_splits(partial(draws, masked_span), n, seed)
    return make_task(
        "spans",
        n,
        seed,
        {
            "hidden": ([span.first + span.place for span in drawn], [str(number) for number in range(LARGEST + 1)]),
            "mean": ([span.above for span in drawn], MEANS),
        },
        inputs=[span.text for span in drawn],
        position=np.array([span.place for span in drawn], dtype=np.int64),
    )


def examples(split: str, n: int, seed: Seed) -> list[Example]:
    """`n` spans of a split; the hidden numbers are the targets, the side of the mean is the label."""
    made = []
    for span in draws(masked_span, n, seed, split):
        numbers = word_ids(VOCABULARY, [*map(str, span.numbers)])
        targets = [number if hidden else IGNORE for number, hidden in zip(numbers, span.hidden, strict=True)]
        tokens = word_ids(VOCABULARY, [CLS, *span.text.split(), SEP])
        made.append(Example(tokens, [IGNORE, *targets, IGNORE], int(span.above)))
    return made


def model_config() -> "BertConfig":
    """A BERT of two layers."""
    from probekit.models.families.bert import BertConfig

    return BertConfig(d_model=64, n_heads=4, d_mlp=256, n_layers=2, n_ctx=16, d_vocab=len(VOCABULARY), init_std=0.05)


WORLD = World(
    name="spans-bert",
    task="spans",
    vocabulary=VOCABULARY,
    make_config=model_config,
    settings=TrainingSettings(steps=1500, batch_size=64, learning_rate=2e-3, warm_up_steps=100),
    examples=examples,
    prompt="7 8 [MASK] 10 [MASK]",
    context=(CLS, SEP),
)
TASKS = {"spans": spans}
