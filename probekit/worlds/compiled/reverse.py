"""`compiled-reverse`: the text backwards. A variable that arrives through one head, and one that the answer ignores.

    b amber knoll glade birch a

Attention is bidirectional. At each token, a head of block 0 attends to the mirrored position and moves its letter; the
answer is that letter. The token that is read is the last, so `mirrored` is the first letter and `own` the last one.
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
from probekit.worlds.compiled.program import Block, Head, Program, move, one_hot, selects

N = 6
LETTERS = ("a", "b")
POSITIONS = range(N)

PROGRAM = Program(
    name="compiled-reverse",
    words={letter: {f"own:{letter}": 1} for letter in LETTERS} | filler_words(),
    positions=[{axis: 1} for axis in one_hot("at", POSITIONS)],
    blocks=[
        Block(
            heads=[
                Head(
                    move("own", "mirrored", LETTERS),
                    selects("at", POSITIONS, "at", POSITIONS, where=lambda q, k: k == N - 1 - q),
                ),
                read_fillers(),
            ]
        ),
        Block(),
    ],
    answers={letter: ({f"mirrored:{letter}": 10}, 0.0) for letter in LETTERS},
    n_ctx=N,
    causal=False,
)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """Four texts: every pair of first and last letter around the same fillers."""
    between = draw_fillers(rng, N - 2, split)
    return [
        Text([LETTERS[first], *between, LETTERS[last]], {"mirrored": first, "own": last}, LETTERS[first])
        for first in range(2)
        for last in range(2)
    ]


COMPILED = Compiled(
    PROGRAM,
    {"mirrored": LETTERS, "own": LETTERS},
    texts,
    [
        Truth(
            "mirrored",
            (NEITHER, READ_AND_USED, READ_AND_USED),
            LETTERS,
            "Moved to the token by head 0.0.",
            heads=("0.0",),
        ),
        Truth(
            "own",
            (READ, READ, READ),
            LETTERS,
            "The token itself, in the stream from the start; the answer does not depend on it.",
            answers_label="mirrored",
        ),
    ],
)
