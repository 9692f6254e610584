"""`compiled-copies`: a variable with two copies, an unused one, one that is erased again, and one that no word says.

    red disc big amber knoll glade ? red

All are moved to the "?". The answer is the colour, which has two copies: head 0.0 writes one, head 1.0 another from
the word itself. Block 2 asks whether the first + 1.5 x the second is above 0. So without either copy the answer is the
same, and where they contradict each other the second wins.

    colour   two copies: either is enough for the answer
    shape    moved by head 0.1; nothing reads it
    size     moved by head 0.2; units of block 1 subtract it again
    mood     in no word: drawn so that it agrees with the shape in 3 of 4 texts
"""

from itertools import product

import numpy as np

from probekit.worlds.compiled.definition import (
    IS_READ,
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
from probekit.worlds.compiled.program import Block, Compare, Head, Program, Unit, step

COLOURS, SHAPES, SIZES, MOODS = ("blue", "red"), ("cube", "disc"), ("small", "big"), ("calm", "merry")
CUE = 0.75  # share of the texts whose mood agrees with the shape

PROGRAM = Program(
    name="compiled-copies",
    words={
        word: {axis: 2 * i - 1}
        for axis, words in zip(("colour", "shape", "size"), (COLOURS, SHAPES, SIZES), strict=True)
        for i, word in enumerate(words)
    }
    | filler_words()
    | {"?": {}},
    positions=[{"first": 1}, {"second": 1}, {"third": 1}],
    blocks=[
        Block(
            heads=[
                Head({"colour": "colour here"}, [Compare(None, "first")]),
                Head({"shape": "shape here"}, [Compare(None, "second")]),
                Head({"size": "size here"}, [Compare(None, "third")]),
                read_fillers(),
            ]
        ),
        Block(
            heads=[Head({"colour": "colour again"}, [Compare(None, "first")])],
            units=[Unit({"size here": sign}, {"size here": -sign}) for sign in (1, -1)],
        ),
        Block(units=step({"colour here": 1, "colour again": 1.5}, 0, {"red": 1})),
    ],
    answers={"blue": ({"red": -10}, 5), "red": ({"red": 10}, -5)},
    n_ctx=7,
)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """Eight texts: every colour, shape and size before the same fillers."""
    drawn, found = draw_fillers(rng, 3, split), []
    for colour, shape, size in product(range(2), repeat=3):
        mood = shape if rng.random() < CUE else 1 - shape
        labels = {"colour": colour, "shape": shape, "size": size, "mood": mood}
        found.append(Text([COLOURS[colour], SHAPES[shape], SIZES[size], *drawn, "?"], labels, COLOURS[colour]))
    return found


COMPILED = Compiled(
    PROGRAM,
    {"colour": COLOURS, "shape": SHAPES, "size": SIZES, "mood": MOODS},
    texts,
    [
        Truth(
            "colour",
            (NEITHER, READ, READ_AND_USED, READ_AND_USED),
            COLOURS,
            "One copy after block 0, which the answer does not need; both after block 1, where that of head 1.0 wins.",
            needed=(False, False, True, True),
            heads=("1.0",),
        ),
        Truth(
            "shape",
            (NEITHER, READ, READ, READ),
            COLOURS,
            "Moved to the token by head 0.1; nothing reads it.",
            answers_label="colour",
            cue="mood",
            beyond=IS_READ,
        ),
        Truth(
            "size",
            (NEITHER, READ, NEITHER, NEITHER),
            COLOURS,
            "Moved to the token by head 0.2, and subtracted again by block 1.",
            answers_label="colour",
        ),
        Truth(
            "mood",
            (NEITHER, READ, READ, READ),
            COLOURS,
            "Not in the text: it agrees with the shape in 3 of 4 texts, and the shape explains all that is read.",
            answers_label="colour",
            cue="shape",
        ),
    ],
)
