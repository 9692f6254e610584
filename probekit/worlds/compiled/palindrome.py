"""`compiled-palindrome`: do six letters read the same backwards? A conjunction that is computed at other tokens first.

    a b b b b a amber knoll glade birch ? yes

Attention is bidirectional. At each letter, head 0.0 moves the mirrored letter, and units of block 0 compute |own -
mirrored|, 2 where they differ. At the "?", head 1.0 takes the mean of that over the first three letters, and units of
block 1 ask whether it is above 0: one pair that differs makes it 2/3. Tokens after the letters attend to
one another in head 0.0, which moves nothing.
"""

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
from probekit.worlds.compiled.program import Block, Compare, Head, Program, Unit, selects, step
from probekit.worlds.grammar import choose

N = 6
POSITIONS = range(N)
ANSWERS = ("no", "yes")

PROGRAM = Program(
    name="compiled-palindrome",
    words={"a": {"b": -1, "letter": 1}, "b": {"b": 1, "letter": 1}} | filler_words() | {"?": {}, "no": {}, "yes": {}},
    positions=[
        *({f"at:{i}": 1, **({"first half": 1} if i < N // 2 else {})} for i in POSITIONS),
        *[{"after": 1}] * 5,
    ],
    blocks=[
        Block(
            heads=[
                Head(
                    {"b": "mirrored b"},
                    [
                        *selects("at", POSITIONS, "at", POSITIONS, where=lambda q, k: k == N - 1 - q),
                        Compare("after", "after"),
                    ],
                ),
                read_fillers(),
            ],
            units=[Unit({"b": sign, "mirrored b": -sign, "letter": 4}, {"differ": 1}, bias=-4) for sign in (1, -1)],
        ),
        Block(
            heads=[Head({"differ": "pairs that differ"}, [Compare(None, "first half")])],
            units=step({"pairs that differ": 1}, 1 / 3, {"no": 1}),
        ),
    ],
    answers={"no": ({"no": 10}, -5), "yes": ({"no": -10}, 5)},
    n_ctx=N + 5,
    causal=False,
    norm=True,
)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """One text; half are palindromes, all of each kind equally likely."""
    is_palindrome = int(rng.integers(2))
    while (letters := [choose(rng, ("a", "b")) for _ in range(N)]) and (letters == letters[::-1]) != bool(
        is_palindrome
    ):
        pass
    return [Text([*letters, *draw_fillers(rng, 4, split), "?"], {"palindrome": is_palindrome}, ANSWERS[is_palindrome])]


COMPILED = Compiled(
    PROGRAM,
    {"palindrome": ANSWERS},
    texts,
    [
        Truth(
            "palindrome",
            (NEITHER, NEITHER, READ_AND_USED),
            ANSWERS,
            "Letters are compared at the letters (head 0.0), and head 1.0 moves what differs to the token.",
            heads=("1.0",),
            in_part=("0.0",),
        )
    ],
)
