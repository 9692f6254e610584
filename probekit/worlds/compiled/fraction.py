"""`compiled-fraction`: how many of eight words are an x? A number on a line.

    x amber x x knoll glade x birch ? 4

A head attends to the eight words alike and moves the mean of "is an x" to the "?": the fraction of previous tokens of a
kind, the first program of Lindner et al. 2023. The logit of k is -2 (8 fraction - k)^2, up to what all k share.
"""

import numpy as np

from probekit.worlds.compiled.definition import (
    FILLERS,
    NEITHER,
    READ_AND_USED,
    Compiled,
    Text,
    Truth,
    filler_words,
    read_fillers,
)
from probekit.worlds.compiled.program import Block, Compare, Head, Program
from probekit.worlds.grammar import choose, split_by_checksum

N = 8
COUNTS = tuple(str(k) for k in range(N + 1))

PROGRAM = Program(
    name="compiled-fraction",
    words={"x": {"x": 1}} | filler_words() | {"?": {}} | {count: {} for count in COUNTS},
    positions=[{"word": 1}] * N,
    blocks=[Block(heads=[Head({"x": "fraction"}, [Compare(None, "word")]), read_fillers()]), Block()],
    answers={count: ({"fraction": 4 * N * k}, 5 - 2.0 * k**2) for k, count in enumerate(COUNTS)},
    n_ctx=N + 1,
)


def texts(rng: np.random.Generator, split: str) -> list[Text]:
    """One text; each word is an x with probability 1/2, else a filler."""
    words = []
    while split_by_checksum(" ".join(words)) != split or not words:
        words = ["x" if rng.integers(2) else choose(rng, FILLERS) for _ in range(N)]
    count = words.count("x")
    return [Text([*words, "?"], {"count": float(count)}, COUNTS[count])]


COMPILED = Compiled(
    PROGRAM,
    {"count": ()},
    texts,
    [
        Truth(
            "count",
            (NEITHER, READ_AND_USED, READ_AND_USED),
            COUNTS,
            "Not at the token before block 0, then a number on a line, from which the answer is read.",
        )
    ],
)
