"""`compiled-histogram`: how often does the first letter occur among the others? A product of two variables.

    b a c b a b a amber knoll glade ? 2

Attention is bidirectional. Block 0 moves two things to the "?": the mean of the six letters, which is the share of each
of a, b and c, and the letter that is asked for. Block 1 takes the share of that letter: relu(6 share + 10 (is asked -
1)), for each letter. Before that, letter and shares are there, but the count is the product of the two: whatever the
share of a letter by itself, the expected count is the same.
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
from probekit.worlds.compiled.program import Block, Compare, Head, Program, Unit, move
from probekit.worlds.grammar import choose

N = 6
LETTERS = ("a", "b", "c")
COUNTS = tuple(str(k) for k in range(N + 1))

PROGRAM = Program(
    name="compiled-histogram",
    words={letter: {f"letter:{letter}": 1} for letter in LETTERS}
    | filler_words()
    | {"?": {}}
    | {count: {} for count in COUNTS},
    positions=[{"asked for": 1}, *[{"counted": 1}] * N],
    blocks=[
        Block(
            heads=[
                Head(move("letter", "share", LETTERS), [Compare(None, "counted")]),
                Head(move("letter", "asked", LETTERS), [Compare(None, "asked for")]),
                read_fillers(),
            ]
        ),
        Block(units=[Unit({f"share:{x}": N, f"asked:{x}": 10}, {"count": 1}, bias=-10) for x in LETTERS]),
    ],
    answers={count: ({"count": 4.0 * int(count)}, 5 - 2.0 * int(count) ** 2) for count in COUNTS},
    n_ctx=N + 5,
    causal=False,
)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """One text; all letters are drawn independently, all equally likely."""
    asked, *letters = (choose(rng, LETTERS) for _ in range(N + 1))
    count = letters.count(asked)
    return [Text([asked, *letters, *draw_fillers(rng, 3, split), "?"], {"count": float(count)}, str(count))]


COMPILED = Compiled(
    PROGRAM,
    {"count": ()},
    texts,
    [
        Truth(
            "count",
            (NEITHER, USED, READ_AND_USED),
            COUNTS,
            "Not at the token before block 0. Then as a letter and shares, whose product it is, at last as a number.",
        )
    ],
)
