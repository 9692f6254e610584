"""The world `counting`: count from a start number up to 42, then stop.

    34 -> 34 35 36 37 38 39 40 41 42 <eos>
    45 -> 45 <eos>

Each number from 0 to 99 is one word, so the model must learn which number follows which, and where to stop. A training
count starts at 42 or below with probability 3/4 and above 42 with 1/4; within each kind all starts are equally likely.

Splits separate *starts*: start mod 4 is 0 or 1 for training, 2 for validation, 3 for test. So a model has never seen a
held-out number of at most 42 at the beginning of a count, but has seen it later in counts that start lower. A number
above 42 occurs only as a start. A model that does not see it there never sees it, so models are trained on all of
these; only the probe's splits separate them.

The probed text is a count cut after any of its numbers and read at its last number. Label sets: `stops` (the target:
does <eos> come next?) and `number` (a regression: the number that is read). Half of a split's texts stop, half go on;
within each half no text occurs twice, and all are equally likely. The start is the group.
"""

import numpy as np

from probekit.errors import UsageError
from probekit.models.examples import Example
from probekit.options import TrainingSettings
from probekit.tasks.base import Task
from probekit.worlds.definition import World, gpt2_config, next_word_example
from probekit.worlds.grammar import EOS, QUARTERS, Seed, check_split, choose, draw_splits, make_task

LAST, LARGEST = 42, 99
VOCABULARY: list[str] = [EOS, *map(str, range(LARGEST + 1))]
"""All words. `<eos>` (id 0) follows the last number of a count."""


def numbers(start: int) -> list[int]:
    """The numbers of the count from `start`: up to 42, or only the start."""
    return list(range(start, max(start, LAST) + 1))


def words(start: int) -> list[str]:
    """The words of the count from `start`, <eos> included."""
    return [*map(str, numbers(start)), EOS]


def split_of_start(start: int) -> str:
    """The split of all texts with this start."""
    return QUARTERS[start % 4]


def starts(split: str) -> list[int]:
    """The starts of one split, 42 and below."""
    check_split(split)
    return [start for start in range(LAST + 1) if split_of_start(start) == split]


def counts(n: int, seed: Seed = 0) -> list[list[str]]:
    """`n` independent training counts, each with its <eos>."""
    rng = np.random.default_rng(seed)
    low, high = starts("train"), range(LAST + 1, LARGEST + 1)
    return [words(choose(rng, low if rng.random() < 0.75 else high)) for _ in range(n)]


def texts(split: str) -> tuple[list[list[int]], list[list[int]]]:
    """All texts of a split: those that go on, and those that stop."""
    check_split(split)
    complete = [numbers(start) for start in range(LARGEST + 1) if split_of_start(start) == split]
    return [count[:length] for count in complete for length in range(1, len(count))], complete


def counting(n: tuple[int, int, int] = (90, 48, 48), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; the same arguments give the same task.

    Raises:
        UsageError: an odd number of texts, or more than a split has.
    """
    drawn = draw_splits(_draw, n, seed)
    return make_task(
        "counting",
        n,
        seed,
        {
            "stops": ([text[-1] >= LAST for text in drawn], ("goes on", "stops")),
            "number": ([text[-1] for text in drawn], ()),
        },
        inputs=[" ".join(map(str, text)) for text in drawn],
        groups=np.array([text[0] for text in drawn], dtype=np.int64),
    )


def _draw(n: int, seed: Seed, split: str) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    kinds = texts(split)
    most = 2 * min(map(len, kinds))
    if n % 2 or not 0 <= n <= most:
        raise UsageError(f"counting needs an even number of texts, at most {most} for {split}; got {n}")
    chosen = [kind[i] for kind in kinds for i in rng.permutation(len(kind))[: n // 2]]
    return [chosen[i] for i in rng.permutation(n)]


def examples(split: str, n: int, seed: Seed) -> list[Example]:
    """`n` training counts, every next word a target; or those from all 21 held-out starts, whatever `n` and `seed`."""
    held_out = map(words, (*starts("validation"), *starts("test")))
    return [next_word_example(VOCABULARY, count) for count in (counts(n, seed) if split == "train" else held_out)]


WORLD = World(
    name="counting-gpt",
    task="counting",
    vocabulary=VOCABULARY,
    # init_std 0.1 memorises which starts go on, and stops too soon at one or two of the held-out ones with most seeds
    make_config=lambda: gpt2_config(VOCABULARY, d_model=32, n_heads=2, n_layers=2, n_ctx=64, init_std=0.02),
    settings=TrainingSettings(steps=400, batch_size=64, learning_rate=3e-3, warm_up_steps=50),
    examples=examples,
    prompt="34",
)
TASKS = {"counting": counting}
