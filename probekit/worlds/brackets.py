"""The world `brackets`: is every bracket closed that was opened, and none closed that was not opened?

    ( ( ) ( ) ) ? yes <eos>
    ( ) ) ( ( ) ? no <eos>

The Dyck language, with the verdict after the "?". A training word is drawn as follows:

    balanced   yes or no, 1/2 each
    pairs      4, 5, 6, 7 or 8, equally likely; the word has twice as many brackets
    yes        all balanced words with so many pairs equally likely
    no         one of two kinds, 1/2 each: as many opening as closing brackets, all unbalanced arrangements equally
               likely; or a balanced word, drawn as above, with one bracket, any of them, reversed

So the length is independent of the verdict, and the numbers of opening and closing brackets differ in only half of the
unbalanced words. Splits separate words by checksum: half for training, a quarter each for validation and test.

Two tasks. `brackets`: the text is a word and "?", read at the "?"; the label set is `balanced` (no, yes), with the
probabilities above. `brackets-depth`: the same texts, read at one of their brackets; the label set is `depth`, opening
less closing brackets up to and including that one, 0 to 4, all equally likely. The depth is drawn first, then words
until one has a place of that depth, then one of those places.
"""

from functools import lru_cache, partial
from itertools import accumulate
from math import comb

import numpy as np

from probekit.models.examples import Example
from probekit.options import TrainingSettings
from probekit.tasks.base import Task
from probekit.worlds.definition import World, gpt2_config, next_word_example
from probekit.worlds.grammar import EOS, Seed, choose, draw_splits, draws, make_task, split_by_checksum

OPEN, CLOSE, QUESTION = "(", ")", "?"
VERDICTS = ("no", "yes")
FEWEST, MOST = 4, 8  # pairs
DEEPEST = 4  # of the probed depths
VOCABULARY: list[str] = [EOS, OPEN, CLOSE, QUESTION, *VERDICTS]


def depths(word: str) -> list[int]:
    """After each bracket, opening less closing brackets so far."""
    return list(accumulate(1 if bracket == OPEN else -1 for bracket in word))


def is_balanced(word: str) -> bool:
    """Whether every bracket has its partner."""
    return min(depths(word)) >= 0 and depths(word)[-1] == 0


def bracket_word(rng: np.random.Generator, split: str) -> str:
    """A word of one split, without blanks."""
    balanced, pairs, reversed_ = rng.random() < 0.5, int(rng.integers(FEWEST, MOST + 1)), rng.random() < 0.5
    drawn = _balanced if balanced else _with_one_reversed if reversed_ else _shuffled
    while split_by_checksum(word := drawn(rng, pairs)) != split:
        pass
    return word


def probed_text(word: str) -> str:
    """The brackets and the "?" with blanks between them."""
    return " ".join([*word, QUESTION])


def brackets(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; the same arguments give the same task."""
    drawn = draw_splits(partial(draws, bracket_word), n, seed)
    return make_task(
        "brackets",
        n,
        seed,
        {"balanced": ([is_balanced(word) for word in drawn], VERDICTS)},
        inputs=[probed_text(word) for word in drawn],
    )


def brackets_depth(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The depth task with `n` texts for training, validation and test; the same arguments give the same task."""
    drawn = draw_splits(partial(draws, _word_and_place), n, seed)
    return make_task(
        "brackets-depth",
        n,
        seed,
        {"depth": ([depths(word)[place] for word, place in drawn], [str(depth) for depth in range(DEEPEST + 1)])},
        inputs=[probed_text(word) for word, _ in drawn],
        position=np.array([place for _, place in drawn], dtype=np.int64),
    )


def _word_and_place(rng: np.random.Generator, split: str) -> tuple[str, int]:
    depth = int(rng.integers(DEEPEST + 1))
    while depth not in (reached := depths(word := bracket_word(rng, split))):
        pass
    return word, choose(rng, [place for place, at_place in enumerate(reached) if at_place == depth])


def _balanced(rng: np.random.Generator, pairs: int) -> str:
    """Bracket by bracket, each with probability proportional to the number of balanced words that continue with it."""
    word, to_open, to_close = "", pairs, pairs
    while to_close:
        if rng.random() * _endings(to_open, to_close) < _endings(to_open - 1, to_close):
            word, to_open = word + OPEN, to_open - 1
        else:
            word, to_close = word + CLOSE, to_close - 1
    return word


@lru_cache
def _endings(to_open: int, to_close: int) -> int:
    """How many ways there are to complete a balanced word (Bertrand's ballot theorem)."""
    if to_open < 0 or to_open > to_close:
        return 0
    total = to_open + to_close
    return comb(total, to_open) - (comb(total, to_open - 1) if to_open else 0)


def _shuffled(rng: np.random.Generator, pairs: int) -> str:
    while is_balanced(word := "".join(rng.permutation(list(OPEN * pairs + CLOSE * pairs)))):
        pass
    return word


def _with_one_reversed(rng: np.random.Generator, pairs: int) -> str:
    word = _balanced(rng, pairs)
    place = int(rng.integers(len(word)))
    return word[:place] + (CLOSE if word[place] == OPEN else OPEN) + word[place + 1 :]


def examples(split: str, n: int, seed: Seed) -> list[Example]:
    """`n` words with their verdicts; outside training only the verdict is a target, as brackets cannot be predicted."""
    made = []
    for word in draws(bracket_word, n, seed, split):
        words = [*word, QUESTION, VERDICTS[is_balanced(word)], EOS]
        made.append(next_word_example(VOCABULARY, words, 0 if split == "train" else len(word)))
    return made


WORLD = World(
    name="brackets-gpt",
    task="brackets",
    vocabulary=VOCABULARY,
    make_config=lambda: gpt2_config(VOCABULARY, d_model=64, n_heads=2, n_layers=2, n_ctx=32, init_std=0.1),
    settings=TrainingSettings(steps=600, batch_size=64, learning_rate=3e-3, warm_up_steps=50),
    examples=examples,
    prompt="( ( ) ( ( ) ) ) ?",
)
TASKS = {"brackets": brackets, "brackets-depth": brackets_depth}
