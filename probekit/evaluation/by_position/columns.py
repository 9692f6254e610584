"""The places in a text at which probes are trained, and the row of each text that has such a place.

A column of a grid is such a place, or a head, whose part of each row is probed.

Axes: N texts, R rows of a point's tensor, n texts that have a place.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probekit.activations.layout import Layout
from probekit.errors import DataError
from probekit.tasks.base import SPLITS
from probekit.text import counted

FOLD = "fold "  # what the name of a fold begins with


@dataclass(frozen=True, eq=False)
class Column:
    """One place in the texts, or one head.

    Attributes:
        name: "0", "1", ... from the first token, "-1", "-2", ... from the last, or the selection that was kept; or the
            number of a head.
        texts: the texts that have it, int64 [n].
        rows: the row of each of them, int64 [n].
        classes: numbers of the classes that are probed there, int64, rising; None is all of them.
        head: number of the head, and how many there are; None for the complete row.
    """

    name: str
    texts: np.ndarray
    rows: np.ndarray
    classes: np.ndarray | None = None
    head: tuple[int, int] | None = None


def fold_names(parts: Sequence[np.ndarray], n: int) -> np.ndarray:
    """The name of the fold of each of `n` rows or texts, empty for those in none; `parts` are those of each fold."""
    names = np.full(n, "", dtype="<U10")
    for number, part in enumerate(parts):
        names[part] = f"{FOLD}{number}"
    return names


def position_columns(layout: Layout, from_end: bool) -> list[Column]:
    """The places of a layout in the order of the text: every index where texts differ in their rows, else selections.

    Args:
        layout: of the activations.
        from_end: count the tokens from the last one; selections are the same either way.
    """
    N, P = len(layout.lengths), len(layout.positions)
    if not layout.is_ragged:
        every = np.arange(N)
        return [Column(name, every, every * P + i) for i, name in enumerate(layout.positions)]
    counts = layout.counts()
    starts = np.cumsum(counts) - counts
    found = []
    for index in range(int(counts.max(initial=0))):
        texts = np.flatnonzero(counts > index)
        at = counts[texts] - 1 - index if from_end else index
        found.append(Column(str(-1 - index if from_end else index), texts, starts[texts] + at))
    return found[::-1] if from_end else found


def token_of(column: Column, layout: Layout, texts: Sequence[object], least: float) -> str | None:
    """The text of the token at a position, if it is the same in this share of the texts; None if unknown.

    Args:
        column: the position.
        layout: with the characters of each token.
        texts: all inputs.
        least: share of the texts.
    """
    if layout.characters is None or not len(column.rows):
        return None
    spans = zip(column.texts.tolist(), layout.characters[column.rows].tolist(), strict=True)
    found = Counter(str(texts[row])[start:end] for row, (start, end) in spans)
    ((token, count),) = found.most_common(1)
    return token if count >= least * len(column.rows) and token else None


def labelled(column: Column, used: np.ndarray) -> Column:
    """The column without the rows that no probe uses; `used` is bool [R]."""
    kept = used[column.rows]
    return Column(column.name, column.texts[kept], column.rows[kept])


def with_common_classes(column: Column, labels: np.ndarray, splits: np.ndarray, n_classes: int, least: int) -> Column:
    """The column without the classes that have fewer than `least` texts there in some split.

    With fewer than two classes left the column is returned as it is, since no probe can be fitted.

    Args:
        column: the place.
        labels: of every row, int64 [R].
        splits: the split of every text, [N].
        n_classes: of all places.
        least: texts that a class needs in each split that the task has.
    """
    counts = [np.bincount(own, minlength=n_classes) for _, own in _by_split(column, labels, splits)]
    common = np.flatnonzero(np.min(counts, axis=0) >= least)
    if not 2 <= len(common) < n_classes:
        return column
    kept = np.isin(labels[column.rows], common)
    return Column(column.name, column.texts[kept], column.rows[kept], common)


def _scarcest(column: Column, labels: np.ndarray, splits: np.ndarray, names: Sequence[str]) -> tuple[int, str]:
    """Texts of the rarest class in any split, and which it is, in words; of a regression, of the smallest split."""
    classes = np.arange(len(names)) if column.classes is None else column.classes
    found = []
    for split, own in _by_split(column, labels, splits):
        counts = np.bincount(own, minlength=len(names))[classes] if names else np.array([len(own)])
        what = f"of class {names[int(classes[counts.argmin()])]!a}" if names else "in all"
        found.append((int(counts.min()), f"{split} has {counted(int(counts.min()), 'text')} {what}"))
    return min(found, key=lambda each: each[0])


def _by_split(column: Column, labels: np.ndarray, splits: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """The labels of the column in each split, or in each fold; a task without validation has none of it."""
    of_split, given, there = splits[column.texts], labels[column.rows], set(splits.tolist())
    names = sorted(one for one in there if one.startswith(FOLD)) or [
        split for split in SPLITS if split != "validation" or split in there
    ]
    return [(name, given[of_split == name]) for name in names]


def lacks(column: Column, labels: np.ndarray, splits: np.ndarray, names: Sequence[str], least: int) -> str:
    """What the column has too little of for a probe: the scarcest split, or class of a split; empty if nothing.

    Args:
        column: the place.
        labels: of every row, int64 [R], or float64 [R] or [R, K] of a regression.
        splits: of every text, [N]: its split or, with folds, the name of its fold.
        names: of the classes; none for a regression, which needs `least` texts in a split, with different values.
        least: texts that each class needs in each split that the task has.
    """
    fewest, where = _scarcest(column, labels, splits, names)
    if fewest < least:
        return where
    for split, own in [] if names else _by_split(column, labels, splits):
        if (np.ptp(own, axis=0) == 0).any():
            return f"all values in {split} are equal"
    return ""


def usable(
    columns: Sequence[Column], labels: np.ndarray, splits: np.ndarray, names: Sequence[str], least: int
) -> tuple[list[Column], dict[str, str]]:
    """The columns that have enough texts, and for each of the others what it has too few of.

    Raises:
        DataError: none has enough.
    """
    why = {column.name: lacks(column, labels, splits, names, least) for column in columns}
    kept = [column for column in columns if not why[column.name]]
    if not kept:
        if not columns:
            raise DataError("no position has a token with a label; add texts, or name another label set")
        part = "fold" if any(one.startswith(FOLD) for one in splits.tolist()) else "split"
        nearest = max(columns, key=lambda column: _scarcest(column, labels, splits, names)[0])  # ties: the first
        raise DataError(
            f"no position has {counted(least, 'text')} {'of each class ' if names else ''}in each {part}: at "
            f"{nearest.name}, which comes nearest, {why[nearest.name]}; take a smaller number (--least-texts, in "
            "Python least_texts=) or add texts"
        )
    return kept, {name: reason for name, reason in why.items() if reason}
