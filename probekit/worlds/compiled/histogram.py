"""`compiled-histogram`: how often does the last letter occur in the text? A product of two variables.

    amber knoll glade a c b a b a 3

Attention is bidirectional. Block 0 moves the mean of six letters to each token: the share of each of a, b and c. Block
1 takes the share of the token's own letter: relu(6 share + 10 (is this letter - 1)), for each letter. Before that, own
letter and shares are there, but the count is the product of the two: of each letter's share alone, its expectation is
the same by symmetry.
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
COUNTS = tuple(str(k) for k in range(1, N + 1))

PROGRAM = Program(
    name="compiled-histogram",
    words={letter: {f"own:{letter}": 1, "letter": 1} for letter in LETTERS}
    | filler_words()
    | {count: {} for count in COUNTS},
    blocks=[
        Block(heads=[Head(move("own", "share", LETTERS), [Compare(None, "letter")]), read_fillers()]),
        Block(units=[Unit({f"share:{x}": N, f"own:{x}": 10}, {"count": 1}, bias=-10) for x in LETTERS]),
    ],
    answers={count: ({"count": 4.0 * int(count)}, -2.0 * int(count) ** 2) for count in COUNTS},
    n_ctx=N + 3,
    causal=False,
)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """One text of three fillers and six letters; letters are drawn independently, all equally likely."""
    letters = [choose(rng, LETTERS) for _ in range(N)]
    count = letters.count(letters[-1])
    return [Text([*draw_fillers(rng, 3, split), *letters], {"count": float(count)}, str(count))]


COMPILED = Compiled(
    PROGRAM,
    {"count": ()},
    texts,
    [
        Truth(
            "count",
            (NEITHER, USED, READ_AND_USED),
            COUNTS,
            "Not at the token before block 0. Then as own letter and shares, whose product it is. A number after "
            "block 1.",
        )
    ],
)
