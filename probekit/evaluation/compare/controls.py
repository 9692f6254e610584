"""Control tasks: how much of a probe's accuracy could be memory.

Each type is given one label at random, the same wherever it stands. A probe can only learn that by heart; what it does
better on the real labels is its *selectivity* (Hewitt and Liang 2019, "Designing and Interpreting Probes with Control
Tasks"). The type is the token that is read: a control task that test can be good at. Or it is the whole text, which
test has never seen: that must come out at chance, and says that nothing leaks. Where the examples are words of texts,
the type is the word, as it is written.

Axes: N examples, T types, C classes.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.activations.plan.read_positions import PER_EXAMPLE
from probekit.tasks.quality.duplicates import words_of

MOST_COMMON = 0.5  # share of the examples; above it a type tells them apart too little
TRIES = 100


def control_types(acts: Activations, kind: str = "token") -> list[Any] | None:
    """The type of each example: the id of the token that is read (an int), or else the last word of its text (a str).

    Of the kind "text" it is the whole input instead. Where the examples are words of their texts it is that word (a
    str), as Hewitt and Liang have it.

    The last word stands in where the tokens were not written down (imports, older stores), where a mean is read, and
    where half of the examples end in one token, such as a full stop; marks are no words then. The first word stands in
    where the first token is read. Nothing stands in where each example has a position of its own.

    Args:
        acts: activations of one position (`acts.at`).
        kind: "token" or "text".

    Returns:
        N types, or None: no texts, or more than half of them are of one type.
    """
    if kind == "text":
        whole = None if acts.task.info.get("no_texts") else [_whole(given) for given in acts.inputs]
        return whole if whole and _varied(whole) else None
    words = acts.task.words
    if words is not None:
        return words if _varied(words) else None
    tokens = acts.layout.tokens
    if tokens is not None and len(tokens) == acts.n_examples and (tokens >= 0).all() and _varied(tokens.tolist()):
        return tokens.tolist()
    if acts.task.info.get("no_texts") or acts.layout.positions == [PER_EXAMPLE]:
        return None
    first = acts.layout.positions == ["first"]
    types = [_word(given, 0 if first else -1) for given in acts.inputs]
    return types if _varied(types) else None


def _whole(given: Any) -> Hashable:
    return given if isinstance(given, str) else tuple(given)


def _word(given: Any, at: int) -> Hashable:
    if not isinstance(given, str):
        return int(given[at])
    words = words_of(given)
    return ([word for word in words if word[0].isalnum()] or words)[at]


def _varied(types: Sequence[Hashable]) -> bool:
    return Counter(types).most_common(1)[0][1] <= MOST_COMMON * len(types)


def control_labels(
    labels: np.ndarray,
    types: Sequence[Hashable],
    n_classes: int,
    draws: int,
    seed: int,
    train: np.ndarray | None = None,
) -> np.ndarray:
    """Random labels that depend on the type alone: [draws, N], int64, or float64 for a regression.

    Each type gets a label with the chance that it has among the training labels, independently of all others. A draw
    by which a class would have no training row is made again, `TRIES` times at most; fewer draws come back where that
    does not help, none where there are fewer types than classes.

    Args:
        labels: the training labels, whose distribution is drawn from; with `train` those of all N.
        types: N types.
        n_classes: C, or 0 for a regression, whose control must have two values.
        draws: how many.
        seed: of the draws; draw i is the same whatever their number.
        train: training rows, int64; None is all of them.
    """
    rows = np.arange(len(types)) if train is None else train
    given = labels if train is None else labels[train]
    known: dict[Hashable, int] = {}
    number = np.array([known.setdefault(one, len(known)) for one in types])
    drawn = [_draw(given, number, rows, n_classes, np.random.default_rng([seed, i])) for i in range(draws)]
    kind = np.int64 if n_classes else np.float64
    return np.array([one for one in drawn if one is not None], dtype=kind).reshape(-1, len(types))


def _draw(
    given: np.ndarray, number: np.ndarray, rows: np.ndarray, n_classes: int, rng: np.random.Generator
) -> np.ndarray | None:
    wanted = len(np.unique(given)) if n_classes else 2
    for _ in range(TRIES):
        control = rng.choice(given, size=number.max() + 1)[number]
        if len(np.unique(control[rows])) >= wanted:
            return control
    return None
