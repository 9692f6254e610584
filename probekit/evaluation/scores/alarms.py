"""Alarms of a running score: whether and when a conversation reaches a threshold, and how early before its end.

A monitor compares a score after each token, and its alarm goes off at the first that reaches the threshold. So the
false-positive rate of alarms is that of the highest running score of a conversation, not of its last. Only where a
running score rises to a new maximum can an alarm go off, so these rises are kept, a few for each conversation.

Axes: N conversations, L tokens of one, R rises of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probekit.ragged import ranges, starts_of


@dataclass(frozen=True, eq=False)
class Rises:
    """Where the running score of each conversation rises to a new maximum.

    Attributes:
        lengths: tokens of each conversation, int64 [N].
        counts: rises of each, int64 [N], 1 or more.
        tokens: of each rise, the number of the token in its conversation, from 0, int64 [R].
        scores: the maximum that it reaches, float64 [R].
    """

    lengths: np.ndarray
    counts: np.ndarray
    tokens: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class Lead:
    """How many tokens before the end of its conversation an alarm went off; 0 is at the last token.

    Attributes:
        low: the lower quartile.
        median: the median.
        high: the upper quartile.
        alarms: conversations that these are of.
    """

    low: float
    median: float
    high: float
    alarms: int


def rises_of(running: Sequence[np.ndarray]) -> Rises:
    """The rises of N running scores [L]."""
    tokens, scores = [], []
    for own in running:
        highest = np.maximum.accumulate(own)
        at = np.flatnonzero(np.diff(highest, prepend=-np.inf) > 0)
        tokens.append(at)
        scores.append(highest[at])
    lengths, counts = (np.array([len(each) for each in every], dtype=np.int64) for every in (running, tokens))
    return Rises(lengths, counts, np.concatenate(tokens), np.concatenate(scores))


def some_rises(rises: Rises, which: np.ndarray) -> Rises:
    """Those of some conversations, by number."""
    index = ranges(starts_of(rises.counts)[which], rises.counts[which])
    return Rises(rises.lengths[which], rises.counts[which], rises.tokens[index], rises.scores[index])


def highest(rises: Rises) -> np.ndarray:
    """The highest running score of each conversation, [N]."""
    return rises.scores[np.cumsum(rises.counts) - 1]


def alarms_at(rises: Rises, threshold: float) -> np.ndarray:
    """The number of the token at which each conversation's alarm goes off, int64 [N]; -1 where none does."""
    below = np.add.reduceat((rises.scores < threshold).astype(np.int64), starts_of(rises.counts))
    first = np.minimum(starts_of(rises.counts) + below, len(rises.tokens) - 1)
    return np.where(below < rises.counts, rises.tokens[first], -1)


def lead_of(rises: Rises, threshold: float) -> Lead | None:
    """How early the alarms of these conversations are; None where there are none."""
    at = alarms_at(rises, threshold)
    rung = at >= 0
    if not rung.any():
        return None
    low, median, high = np.quantile((rises.lengths - 1 - at)[rung], (0.25, 0.5, 0.75))
    return Lead(float(low), float(median), float(high), int(rung.sum()))
