"""`compiled-sort`: which of three digits is the middle one? This token ignores what others rank.

    3 amber 0 knoll 4 birch ? 3

Attention is bidirectional. Head 0.0 moves the mean of the digits to every token: which digits there are. Units of block
0 count those below the token's own digit: its rank, a number on a line. Units of block 1 mark rank 1. Head 2.0 attends
from the "?" to the digit with this mark and moves it; the answer is that digit.

Head 0.0 moves the digits to the "?", too. The middle one can be read there, but ranks are used at the digits alone.
"""

import numpy as np

from probekit.worlds.compiled.definition import (
    NEITHER,
    READ,
    READ_AND_USED,
    Compiled,
    Text,
    Truth,
    draw_fillers,
    filler_words,
    read_fillers,
)
from probekit.worlds.compiled.program import Block, Compare, Head, Program, Unit, move

N, DIGITS = 3, range(5)
MIDDLES = ("1", "2", "3")

PROGRAM = Program(
    name="compiled-sort",
    words={str(digit): {f"own:{digit}": 1, "digit": 1} for digit in DIGITS} | filler_words() | {"?": {}},
    blocks=[
        Block(
            heads=[Head(move("own", "there", DIGITS), [Compare(None, "digit")]), read_fillers()],
            units=[
                Unit({f"there:{other}": N for other in range(digit)} | {f"own:{digit}": 10}, {"rank": 1}, bias=-10)
                for digit in DIGITS
            ],
        ),
        Block(
            units=[  # a triangle around 1: 1 at rank 1, 0 at ranks 0 and 2
                Unit({"rank": 1}, {"is middle": 1}),
                Unit({"rank": 1}, {"is middle": -2}, bias=-1),
            ]
        ),
        Block(heads=[Head(move("own", "middle", DIGITS), [Compare(None, "is middle")])]),
    ],
    answers={digit: ({f"middle:{digit}": 10}, 0.0) for digit in MIDDLES},
    n_ctx=2 * N + 1,
    causal=False,
)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """One text of three digits, all different; all choices and orders are equally likely."""
    digits = rng.permutation(len(DIGITS))[:N]
    middle = sorted(digits)[1]
    words = [word for pair in zip(digits, draw_fillers(rng, N, split), strict=True) for word in pair]
    return [Text([*map(str, words), "?"], {"middle": MIDDLES.index(str(middle))}, str(middle))]


COMPILED = Compiled(
    PROGRAM,
    {"middle": MIDDLES},
    texts,
    [
        Truth(
            "middle",
            (NEITHER, READ, READ, READ_AND_USED),
            MIDDLES,
            "After block 0 the digits say it, which nothing reads at this token. Head 2.0 moves the digit itself.",
            heads=("2.0",),
            in_part=("0.0",),
        )
    ],
)
