"""`compiled-xor`: does exactly one of two words mean +1? A variable that is used where no linear probe can read it.

    hot dry amber knoll glade birch ? yes

`heat` is +1 for hot and -1 for cold, `damp` is +1 for wet and -1 for dry. Block 0 moves both to the "?". Block 1
computes |heat - damp|, which is 2 where exactly one of them is +1 and 0 elsewhere, and the answer is read from it.
"""

import numpy as np

from probekit.worlds.compiled.definition import (
    NEITHER,
    READ,
    READ_AND_USED,
    USED,
    Compiled,
    Text,
    Truth,
    draw_fillers,
    filler_words,
    read_fillers,
)
from probekit.worlds.compiled.program import Block, Compare, Head, Program, Unit

HEAT, DAMP, ANSWERS = ("cold", "hot"), ("dry", "wet"), ("no", "yes")

PROGRAM = Program(
    name="compiled-xor",
    words={"cold": {"heat": -1}, "hot": {"heat": 1}, "dry": {"damp": -1}, "wet": {"damp": 1}}
    | filler_words()
    | {"?": {}, "no": {}, "yes": {}},
    positions=[{"first": 1}, {"second": 1}],
    blocks=[
        Block(
            heads=[
                Head({"heat": "heat here"}, [Compare(None, "first")]),
                Head({"damp": "damp here"}, [Compare(None, "second")]),
                read_fillers(),
            ]
        ),
        Block(
            units=[
                Unit({"heat here": 1, "damp here": -1}, {"differ": 1}),
                Unit({"heat here": -1, "damp here": 1}, {"differ": 1}),
            ]
        ),
    ],
    answers={"no": ({"differ": -5}, 5), "yes": ({"differ": 5}, -5)},
    n_ctx=7,
)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """Two texts, one of each class, so that a probe's intercept has nothing to say; the rest is drawn at random."""
    found = []
    for differ in range(2):
        heat = int(rng.integers(2))
        words = [HEAT[heat], DAMP[heat ^ differ], *draw_fillers(rng, 4, split), "?"]
        found.append(Text(words, {"differ": differ, "heat": heat}, ANSWERS[differ]))
    return found


COMPILED = Compiled(
    PROGRAM,
    {"differ": ANSWERS, "heat": HEAT},
    texts,
    [
        Truth(
            "differ",
            (NEITHER, USED, READ_AND_USED),
            ANSWERS,
            "Not at the token before block 0. Then as two signs, whose product has the same mean in both classes. A "
            "number after block 1.",
            heads=(),
            in_part=("0.0", "0.1"),
        ),
        Truth(
            "heat",
            (NEITHER, READ_AND_USED, READ),
            ANSWERS,
            "Moved to the token by head 0.0, and read by block 1. At the output it is there, and nothing reads it.",
            answers_label="differ",
        ),
    ],
)
