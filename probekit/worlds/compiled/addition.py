"""`compiled-addition`: the sum of two digits modulo 7, by phases on a circle.

    3 amber knoll 5 glade birch = 1

The digit k has the phase 2 pi k / 7. Block 0 moves the mean of the two phases, as vectors, to the "=". With phases a
and b that is

    (e^(ia) + e^(ib)) / 2  =  cos((a - b) / 2) e^(i (a + b) / 2)

Its angle is half of the sum's, up to the sign, so that the mean of each class is 0 and no linear probe reads the sum.
Block 1 doubles the angle: units compute |cos(angle - t)| for seven t, which has the period of the sum, and write each
along e^(2it). So the sum is a point on a circle (whose radius is |cos((a - b) / 2)|), and logits are its projections.
This is how some networks learn to add (Zhong et al. 2023, "The clock and the pizza").
"""

from math import cos, pi, sin

import numpy as np

from probekit.worlds.compiled.definition import (
    IS_READ,
    NEITHER,
    NOT_READ,
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

P = 7
DIGITS = tuple(str(k) for k in range(P))
PHASES = [2 * pi * k / P for k in range(P)]
ANGLES = [pi * j / P for j in range(P)]
# What the units' sum is along e^(2i angle), where |cos((a - b) / 2)| is 1.
GAIN = sum(abs(cos(t)) * cos(2 * t) for t in ANGLES)

PROGRAM = Program(
    name="compiled-addition",
    words={digit: {"cos": cos(phase), "sin": sin(phase)} for digit, phase in zip(DIGITS, PHASES, strict=True)}
    | filler_words()
    | {"=": {}},
    positions=[{"digit": 1}, {}, {}, {"digit": 1}],
    blocks=[
        Block(heads=[Head({"cos": "cos here", "sin": "sin here"}, [Compare(None, "digit")]), read_fillers()]),
        Block(
            units=[
                Unit(
                    {"cos here": sign * cos(t), "sin here": sign * sin(t)},
                    {"cos sum": cos(2 * t) / GAIN, "sin sum": sin(2 * t) / GAIN},
                )
                for t in ANGLES
                for sign in (1, -1)
            ]
        ),
    ],
    answers={
        digit: ({"cos sum": 20 * cos(phase), "sin sum": 20 * sin(phase)}, 0.0)
        for digit, phase in zip(DIGITS, PHASES, strict=True)
    },
    n_ctx=7,
    norm=True,
)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """One text; the digits are drawn independently, all equally likely."""
    a, b = (int(k) for k in rng.integers(P, size=2))
    one, two, three, four = draw_fillers(rng, 4, split)
    total = (a + b) % P
    point = [cos(PHASES[total]), sin(PHASES[total])]
    return [Text([DIGITS[a], one, two, DIGITS[b], three, four, "="], {"sum": total, "point": point}, DIGITS[total])]


COMPILED = Compiled(
    PROGRAM,
    {"sum": DIGITS, "point": ()},
    texts,
    [
        Truth(
            "sum",
            (NEITHER, USED, READ_AND_USED),
            DIGITS,
            "Not at the token before block 0. Then as half the angle, whose vectors have mean 0 in each class. After "
            "block 1 as a point on a circle.",
            heads=("0.0",),
        ),
        Truth(
            "point",
            (NOT_READ, NOT_READ, IS_READ),
            (),
            "The same sum as a point on the circle, [cos, sin]: two numbers.",
        ),
    ],
)
