"""`compiled-names`: who receives? A name mover, after Wang et al. 2023 ("Interpretability in the wild").

    Ann and Bob amber knoll . Bob glade it to Ann

Head 0.0 moves the name of the second clause to the last token: the giver. Head 1.0 attends to the name of the first
clause that is not the giver's, and moves it; the answer is that name. With two names, the giver says who receives.
"""

from itertools import permutations

import numpy as np

from probekit.worlds.compiled.definition import (
    NEITHER,
    READ_AND_USED,
    Compiled,
    Text,
    Truth,
    draw_fillers,
    filler_words,
    read_fillers,
)
from probekit.worlds.compiled.program import SHARP, Block, Compare, Head, Program, move

NAMES = ("Ann", "Bob")

PROGRAM = Program(
    name="compiled-names",
    words={name: {f"name:{name}": 1} for name in NAMES} | filler_words() | {"and": {}, ".": {}, "it": {}, "to": {}},
    positions=[{"first clause": 1}, {}, {"first clause": 1}, {}, {}, {}, {"giver": 1}],
    blocks=[
        Block(heads=[Head(move("name", "giver", NAMES), [Compare(None, "giver")]), read_fillers()]),
        Block(
            heads=[
                Head(
                    move("name", "moved", NAMES),
                    [Compare(None, "first clause")]
                    + [Compare(f"giver:{name}", f"name:{name}", -SHARP) for name in NAMES],
                )
            ]
        ),
    ],
    answers={name: ({f"moved:{name}": 10}, 0.0) for name in NAMES},
    n_ctx=10,
    norm=True,
)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """Four texts: each order of the names with each giver, around the same fillers."""
    one, two, three = draw_fillers(rng, 3, split)
    return [
        Text(
            [first, "and", second, one, two, ".", giver, three, "it", "to"],
            {"recipient": 1 - NAMES.index(giver)},
            NAMES[1 - NAMES.index(giver)],
        )
        for first, second in permutations(NAMES)
        for giver in NAMES
    ]


COMPILED = Compiled(
    PROGRAM,
    {"recipient": NAMES},
    texts,
    [
        Truth(
            "recipient",
            (NEITHER, READ_AND_USED, READ_AND_USED),
            NAMES,
            "Head 0.0 moves the giver, who decides where head 1.0 attends; head 1.0 moves the other name.",
            heads=("0.0", "1.0"),
        )
    ],
)
