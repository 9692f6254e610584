"""`compiled-brackets`: is every bracket closed that was opened, and none closed that was not? Two tests together.

    ( ( ) ( ) ) amber knoll glade ? yes

Head 0.0 takes the mean of the brackets so far, +1 for "(" and -1 for ")". At each bracket, units of block 0 ask whether
it is below 0. At the "?", head 1.0 moves the mean of that over the brackets, and units of block 1 compute |mean|, which
is 0 where as many are closed as opened. Block 2 asks whether either is above 0: the word is not balanced.
"""

import numpy as np

from probekit.worlds.compiled.definition import (
    NEITHER,
    READ_AND_USED,
    USED,
    Compiled,
    Text,
    Truth,
    draw_fillers,
    filler_words,
    read_fillers,
)
from probekit.worlds.compiled.program import Block, Compare, Head, Program, Unit, step

N = 6
ANSWERS = ("no", "yes")

PROGRAM = Program(
    name="compiled-brackets",
    words={"(": {"open": 1, "bracket": 1}, ")": {"open": -1, "bracket": 1}}
    | filler_words()
    | {"?": {}, "no": {}, "yes": {}},
    blocks=[
        Block(
            heads=[Head({"open": "mean"}, [Compare(None, "bracket")]), read_fillers()],
            units=step({"bracket": 1, "mean": -1}, 1.1, {"below": 1}, width=0.05),  # 1 + 1/5 is the least
        ),
        Block(
            heads=[Head({"below": "was below"}, [Compare(None, "bracket")])],
            units=[Unit({"mean": sign}, {"unequal": 1}) for sign in (1, -1)],
        ),
        Block(units=step({"unequal": 1, "was below": 1}, 0.1, {"no": 1}, width=0.05)),
    ],
    answers={"no": ({"no": 10}, -5), "yes": ({"no": -10}, 5)},
    n_ctx=N + 4,
)


def _is_balanced(word: list[str]) -> bool:
    """Whether every bracket has its partner."""
    depths = np.cumsum([1 if bracket == "(" else -1 for bracket in word])
    return bool(depths.min() >= 0 and depths[-1] == 0)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """Two texts, one of each class.

    Balanced words are equally likely. The other word is one with a bracket reversed, or as many of each bracket in an
    order that is not balanced, 1/2 each.
    """
    found = []
    for balanced in range(2):
        reverse = bool(rng.integers(2)) and not balanced
        while _is_balanced(word := list(rng.permutation(["(", ")"] * (N // 2)))) != (reverse or bool(balanced)):
            pass
        if reverse:
            place = int(rng.integers(N))
            word[place] = ")" if word[place] == "(" else "("
        words = [*map(str, word), *draw_fillers(rng, 3, split), "?"]
        found.append(Text(words, {"balanced": balanced}, ANSWERS[balanced]))
    return found


COMPILED = Compiled(
    PROGRAM,
    {"balanced": ANSWERS},
    texts,
    [
        Truth(
            "balanced",
            (NEITHER, USED, READ_AND_USED, READ_AND_USED),
            ANSWERS,
            "After block 0 the mean, which is 0 on average in both classes. After block 1 both tests, as numbers.",
            heads=(),
            in_part=("0.0", "1.0"),
        )
    ],
)
