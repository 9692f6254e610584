"""Counterparts: for each text one with another label, whose activations are swapped in (Geiger et al. 2021).

Axes: N texts, L position.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.options.check import check_whole
from probekit.text import counted

MOST_COMPARED = 256  # candidates of a text that are compared token by token; more are sampled


def choose_counterparts(
    labels: Any,
    lengths: Any,
    groups: Any | None = None,
    seed: int = 0,
    texts: Sequence[Sequence[int]] | None = None,
    splits: Any | None = None,
    answers: Any | None = None,
) -> np.ndarray:
    """The number of each text's counterpart, int64 [N]; -1 for a text without one.

    Of the texts with another label and another answer in the same split, in this order: one of another group, one of
    the nearest length (the same if there is one), one with the most tokens in common at equal positions. Ties are drawn
    with the seed.

    Args:
        labels: class numbers [N].
        lengths: tokens of each text [N].
        groups: [N]; None means that each text is a group of its own. A text of the same group is taken only where no
            other group has another label.
        seed: of the ties.
        texts: token ids, to compare; None draws among the texts of the nearest length.
        splits: [N]; None is one split.
        answers: class numbers of what the model answers [N]; None: the labels decide it, so that every text has a
            counterpart.

    Raises:
        DataError: no text of a split has a counterpart.
        UsageError: lists of different lengths.
    """
    labels_N, lengths_N = np.asarray(labels), np.asarray(lengths)
    answers_N = labels_N if answers is None else np.asarray(answers)
    n = len(labels_N)
    groups_N = _numbers(groups, n)
    splits_N = np.zeros(n, dtype=np.int64) if splits is None else _numbers(splits, n)
    each = (labels_N, lengths_N, groups_N, splits_N, answers_N, *([] if texts is None else [texts]))
    sizes = {len(x) for x in each}
    if sizes != {n}:
        raise UsageError(
            f"labels, lengths, groups, texts, splits and answers must be of the same rows; got {sorted(sizes)} rows"
        )
    if lengths_N.dtype.kind not in "iuf" or not np.isfinite(lengths_N).all():
        raise UsageError("lengths are numbers of tokens; got NaN, infinity or something else")
    rng, chosen = np.random.default_rng(check_whole("seed", seed, 0)), np.empty(n, dtype=np.int64)
    for split in np.unique(splits_N):
        rows = np.flatnonzero(splits_N == split)
        tokens = None if texts is None else _padded([texts[i] for i in rows.tolist()])
        found = _of_split(labels_N[rows], lengths_N[rows], groups_N[rows], tokens, answers_N[rows], rng)
        chosen[rows] = np.where(found < 0, found, rows[found])
    return chosen


def with_counterparts(counterpart_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The texts that have a counterpart, and its number among these, int64 [K] each.

    A counterpart has one itself, as two texts differ both ways.
    """
    has_N = counterpart_N >= 0
    return np.flatnonzero(has_N), (np.cumsum(has_N) - 1)[counterpart_N[has_N]]


def _of_split(
    labels_N: np.ndarray,
    lengths_N: np.ndarray,
    groups_N: np.ndarray,
    tokens_NL: np.ndarray | None,
    answers_N: np.ndarray,
    rng: Any,
) -> np.ndarray:
    classes = {label: np.flatnonzero(labels_N != label) for label in np.unique(labels_N)}
    if len(classes) == 1:
        raise DataError(
            f"no counterparts: all texts of a split ({counted(len(labels_N), 'text')}) have the label "
            f"{next(iter(classes))}; add texts of another class"
        )
    chosen = np.full(len(labels_N), -1, dtype=np.int64)
    for i, label in enumerate(labels_N):
        others = classes[label]
        others = others[answers_N[others] != answers_N[i]]
        if not len(others):
            continue
        elsewhere = others[groups_N[others] != groups_N[i]]
        others = elsewhere if len(elsewhere) else others
        distance = np.abs(lengths_N[others] - lengths_N[i])
        nearest = others[distance == distance.min()]
        if tokens_NL is not None:
            nearest = nearest if len(nearest) <= MOST_COMPARED else rng.choice(nearest, MOST_COMPARED, replace=False)
            differing = (tokens_NL[nearest] != tokens_NL[i]).sum(axis=1)
            nearest = nearest[differing == differing.min()]
        chosen[i] = rng.choice(nearest)
    if (chosen < 0).all():
        raise DataError(
            "no counterparts: in a split no two texts differ in their label and in their answer; add texts that do"
        )
    return chosen


def _numbers(names: Any | None, n: int) -> np.ndarray:
    return np.arange(n) if names is None else np.unique(np.asarray(names), return_inverse=True)[1]


def _padded(texts: Sequence[Sequence[int]]) -> np.ndarray:
    """Token ids [N, L], -1 after the end of a text."""
    tokens_NL = np.full((len(texts), max(map(len, texts))), -1, dtype=np.int64)
    for row, text in zip(tokens_NL, texts, strict=True):
        row[: len(text)] = text
    return tokens_NL
