"""The world `dialogue`: small sums, asked and answered in turn, with <sep> after every question and every answer.

    3 + 4 - 2 <sep> 5 <sep> 9 - 9 + 1 <sep> 1 <sep> <eos>

A question has three digits and two signs; the answer is its result, 0 to 12, one word. In training

    turns     1, 2 or 3, equally likely
    result    of each question, 0 to 12, all equally likely
    question  one of the split with that result, all equally likely

and turns are independent. The model learns the answers and separators; it does not have to guess questions. Its answer
to a dialogue that ends with a question and <sep> is what it says, greedily, up to the next <sep>.

Splits separate *questions* by checksum: half for training, a quarter each for validation and test. All questions of a
dialogue are of one split, so the model never saw a held-out sum with its answer.

The probed text ends with the <sep> before the last answer and is read there, before the result is spoken. The label set
is `result`; the last question is the group.
"""

from collections import defaultdict
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product

import numpy as np

from probekit.models.examples import IGNORE, Example
from probekit.options import TrainingSettings
from probekit.tasks.base import Task
from probekit.worlds.definition import World, gpt2_config, next_word_example
from probekit.worlds.grammar import (
    EOS,
    Seed,
    check_split,
    choose,
    draw_splits,
    draws,
    group_numbers,
    make_task,
    split_by_checksum,
)

SEP = "<sep>"
LARGEST, TURNS = 12, 3
VOCABULARY: list[str] = [EOS, SEP, "+", "-", *map(str, range(LARGEST + 1))]

Turn = tuple[str, int]  # a question and its result


@lru_cache
def questions(split: str) -> dict[int, list[str]]:
    """All questions of a split, by result."""
    check_split(split)
    by_result: dict[int, list[str]] = defaultdict(list)
    for a, b, c in product(range(10), repeat=3):
        for plus, more in product((1, -1), repeat=2):
            question = f"{a} {'+' if plus > 0 else '-'} {b} {'+' if more > 0 else '-'} {c}"
            result = a + plus * b + more * c
            if 0 <= result <= LARGEST and split_by_checksum(question) == split:
                by_result[result].append(question)
    return dict(by_result)


def turns(rng: np.random.Generator, split: str) -> list[Turn]:
    """The turns of a dialogue of one split."""
    results = (int(rng.integers(LARGEST + 1)) for _ in range(int(rng.integers(1, TURNS + 1))))
    return [(choose(rng, questions(split)[result]), result) for result in results]


def prompt(said: list[Turn]) -> str:
    """The dialogue up to the <sep> before the last answer."""
    answered = [f"{question} {SEP} {result} {SEP}" for question, result in said[:-1]]
    return " ".join([*answered, said[-1][0], SEP])


def dialogue(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; the same arguments give the same task."""
    drawn = draw_splits(partial(draws, turns), n, seed)
    return make_task(
        "dialogue",
        n,
        seed,
        {"result": ([said[-1][1] for said in drawn], [str(result) for result in range(LARGEST + 1)])},
        inputs=[prompt(said) for said in drawn],
        groups=group_numbers([said[-1][0] for said in drawn]),
    )


def examples(split: str, n: int, seed: Seed) -> list[Example]:
    """`n` dialogues of a split; the targets are the answers, the <sep> after each, and <eos>."""
    return [_example(said) for said in draws(turns, n, seed, split)]


def _example(said: list[Turn]) -> Example:
    words: list[str] = []
    is_target: list[bool] = []
    for question, result in said:
        question_words = [*question.split(), SEP]
        words += [*question_words, str(result), SEP]
        is_target += [False] * len(question_words) + [True, True]
    example = next_word_example(VOCABULARY, [*words, EOS])
    targets = zip(example.targets, [*is_target[1:], True], strict=True)
    return replace(example, targets=[target if learned else IGNORE for target, learned in targets])


WORLD = World(
    name="dialogue-gpt",
    task="dialogue",
    vocabulary=VOCABULARY,
    # with init_std 0.02 two trials answered 86% and 98% of the dialogues after the same 1,800 steps
    make_config=lambda: gpt2_config(VOCABULARY, d_model=64, n_heads=4, n_layers=3, n_ctx=32, init_std=0.1),
    settings=TrainingSettings(steps=1800, batch_size=64, learning_rate=3e-3, warm_up_steps=50),
    examples=examples,
    prompt="3 + 4 - 2 <sep>",
)
TASKS = {"dialogue": dialogue}
