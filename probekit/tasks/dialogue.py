"""The built-in world `dialogue`: small sums, asked and answered in turn, <sep> after every question and every answer.

    3 + 4 - 2 <sep> 5 <sep> 9 - 9 + 1 <sep> 1 <sep> <eos>

A question has three digits and two signs; its result, 0 to 12, is the answer, one word. In the training material

    turns     1, 2 or 3, equally likely
    result    of each question, 0 to 12, all equally likely
    question  of those of the split with that result, all equally likely

and all turns are independent of each other. The model learns the answers and separators; it is not asked to guess
questions. Its answer to a dialogue that ends with a question and <sep> is what it says, greedily, up to the next <sep>.

Splits hold apart *questions*, by a checksum: one half for training, a quarter each for validation and test. All
questions of a dialogue are of one split, so no sum of a held-out dialogue was ever seen with its answer.

The text that is probed ends with the <sep> before the last answer and is read there, before the result is spoken. The
label set is `result`; the last question is the group.
"""

from collections import defaultdict
from functools import lru_cache
from itertools import product

import numpy as np

from probekit.tasks.base import Task
from probekit.tasks.synthetic import EOS, Seed, check_split, choose, numbers_of, of_splits, split_of, task_of

SEP = "<sep>"
LARGEST, TURNS = 12, 3
VOCABULARY: list[str] = [EOS, SEP, "+", "-", *map(str, range(LARGEST + 1))]

Turn = tuple[str, int]  # a question and its result


@lru_cache
def questions(split: str) -> dict[int, list[str]]:
    """Every question of a split, by its result."""
    check_split(split)
    found: dict[int, list[str]] = defaultdict(list)
    for a, b, c in product(range(10), repeat=3):
        for plus, more in product((1, -1), repeat=2):
            question = f"{a} {'+' if plus > 0 else '-'} {b} {'+' if more > 0 else '-'} {c}"
            result = a + plus * b + more * c
            if 0 <= result <= LARGEST and split_of(question) == split:
                found[result].append(question)
    return dict(found)


def dialogues(n: int, seed: Seed = 0, split: str = "train") -> list[list[Turn]]:
    """`n` independent dialogues of one split, for a model to learn from."""
    asked = questions(split)
    rng = np.random.default_rng(seed)
    return [[_turn(rng, asked) for _ in range(int(rng.integers(1, TURNS + 1)))] for _ in range(n)]


def prompt(turns: list[Turn]) -> str:
    """The dialogue up to the <sep> before the last answer."""
    said = [f"{question} {SEP} {result} {SEP}" for question, result in turns[:-1]]
    return " ".join([*said, turns[-1][0], SEP])


def dialogue(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; equal arguments give equal tasks."""
    drawn = of_splits(dialogues, n, seed)
    return task_of(
        "dialogue",
        n,
        seed,
        inputs=[prompt(turns) for turns in drawn],
        labels={"result": np.array([turns[-1][1] for turns in drawn], dtype=np.int64)},
        label_names={"result": [str(result) for result in range(LARGEST + 1)]},
        target="result",
        groups=numbers_of([turns[-1][0] for turns in drawn]),
    )


def _turn(rng: np.random.Generator, asked: dict[int, list[str]]) -> Turn:
    result = int(rng.integers(LARGEST + 1))
    return choose(rng, asked[result]), result
