"""The built-in world `brackets`: is every bracket that is opened closed again, and none closed that was not opened?

    ( ( ) ( ) ) ? yes <eos>
    ( ) ) ( ( ) ? no <eos>

The language of Dyck, with the verdict spoken after the "?". A word of the training material is drawn as follows:

    balanced   yes or no, 1/2 each
    pairs      4, 5, 6, 7 or 8, equally likely; the word has twice as many brackets
    yes        all balanced words of so many pairs equally likely
    no         of two kinds, 1/2 each: as many opening as closing brackets, all unbalanced arrangements equally likely;
               or a balanced word, drawn as above, in which one bracket, any, is turned round

so that the length says nothing of the verdict, and the numbers of the brackets only of half of the unbalanced words.
Splits hold apart words, by a checksum: one half for training, a quarter each for validation and test.

Two tasks. `brackets`: the text is a word and "?", read at the "?"; the label set is `balanced` (no, yes), with the
above probabilities. `brackets-depth`: the same texts read at one of their brackets; the label set is `depth`, the
opening less the closing brackets up to that one and with it, 0 to 4, all equally likely; it is drawn first, then words
until one has such a place, then one of these places.
"""

from functools import lru_cache
from itertools import accumulate
from math import comb

import numpy as np

from probekit.tasks.base import Task
from probekit.tasks.synthetic import EOS, Seed, check_split, choose, of_splits, split_of, task_of

OPEN, CLOSE, ASKED = "(", ")", "?"
VERDICTS = ("no", "yes")
FEWEST, MOST = 4, 8  # pairs
DEEPEST = 4  # that is asked for
VOCABULARY: list[str] = [EOS, OPEN, CLOSE, ASKED, *VERDICTS]


def depths(word: str) -> list[int]:
    """After each bracket, how many more were opened than closed."""
    return list(accumulate(1 if bracket == OPEN else -1 for bracket in word))


def is_balanced(word: str) -> bool:
    """Whether every bracket has its partner."""
    return min(depths(word)) >= 0 and depths(word)[-1] == 0


def bracket_words(n: int, seed: Seed = 0, split: str = "train") -> list[str]:
    """`n` independent words of one split, without blanks, for a model to learn from."""
    check_split(split)
    rng = np.random.default_rng(seed)
    return [_word(rng, split) for _ in range(n)]


def text_of(word: str) -> str:
    """The text that is probed: the brackets and the question, parted by blanks."""
    return " ".join([*word, ASKED])


def brackets(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task with `n` texts for training, validation and test; equal arguments give equal tasks."""
    drawn = of_splits(bracket_words, n, seed)
    return task_of(
        "brackets",
        n,
        seed,
        inputs=[text_of(word) for word in drawn],
        labels={"balanced": np.array([is_balanced(word) for word in drawn], dtype=np.int64)},
        label_names={"balanced": list(VERDICTS)},
        target="balanced",
    )


def brackets_depth(n: tuple[int, int, int] = (4000, 1000, 2000), seed: int = 0) -> Task:
    """The task of the depth with `n` texts for training, validation and test; equal arguments give equal tasks."""
    drawn = of_splits(_draw_places, n, seed)
    return task_of(
        "brackets-depth",
        n,
        seed,
        inputs=[text_of(word) for word, _ in drawn],
        labels={"depth": np.array([depths(word)[place] for word, place in drawn], dtype=np.int64)},
        label_names={"depth": [str(depth) for depth in range(DEEPEST + 1)]},
        target="depth",
        position=np.array([place for _, place in drawn], dtype=np.int64),
    )


def _draw_places(n: int, seed: Seed, split: str) -> list[tuple[str, int]]:
    rng = np.random.default_rng(seed)
    return [_word_and_place(rng, split) for _ in range(n)]


def _word_and_place(rng: np.random.Generator, split: str) -> tuple[str, int]:
    depth = int(rng.integers(DEEPEST + 1))
    while depth not in (found := depths(word := _word(rng, split))):
        pass
    return word, choose(rng, [place for place, there in enumerate(found) if there == depth])


def _word(rng: np.random.Generator, split: str) -> str:
    balanced, pairs, turned = rng.random() < 0.5, int(rng.integers(FEWEST, MOST + 1)), rng.random() < 0.5
    draw = _balanced if balanced else _turned if turned else _shuffled
    while split_of(word := draw(rng, pairs)) != split:
        pass
    return word


def _balanced(rng: np.random.Generator, pairs: int) -> str:
    """Bracket by bracket, each in proportion to how many balanced words go on with it."""
    word, to_open, to_close = "", pairs, pairs
    while to_close:
        if rng.random() * _endings(to_open, to_close) < _endings(to_open - 1, to_close):
            word, to_open = word + OPEN, to_open - 1
        else:
            word, to_close = word + CLOSE, to_close - 1
    return word


@lru_cache
def _endings(to_open: int, to_close: int) -> int:
    """How many ways there are to end a balanced word (Bertrand's ballots)."""
    if to_open < 0 or to_open > to_close:
        return 0
    total = to_open + to_close
    return comb(total, to_open) - (comb(total, to_open - 1) if to_open else 0)


def _shuffled(rng: np.random.Generator, pairs: int) -> str:
    while is_balanced(word := "".join(rng.permutation(list(OPEN * pairs + CLOSE * pairs)))):
        pass
    return word


def _turned(rng: np.random.Generator, pairs: int) -> str:
    word = _balanced(rng, pairs)
    place = int(rng.integers(len(word)))
    return word[:place] + (CLOSE if word[place] == OPEN else OPEN) + word[place + 1 :]
