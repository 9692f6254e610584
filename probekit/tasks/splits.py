"""Carving one part off a labelled set: stratified, seeded, and with equal texts (or groups) on one side."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

Counts = dict[int, int]
LONGEST = 60  # letters of a group's name
BINS = 10  # of a regression's values, each of ten rows or more


def carve(labels: np.ndarray, keys: Sequence[Hashable], n: int, seed: int | Sequence[int]) -> np.ndarray:
    """Choose about `n` rows such that rows with equal keys are chosen together: a boolean mask [N].

    Each class gets its share of n, and at least one row. Where every key stands once, the counts are met exactly;
    otherwise a key is taken where that brings the counts of the classes nearer to their shares. The classes of float
    labels are their `strata`.
    """
    labels = strata(labels)
    members: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        members.setdefault(key, []).append(row)
    together = list(members.values())
    missing = share(labels, n)
    chosen = np.zeros(len(labels), dtype=bool)
    classes = labels.tolist()
    for i in np.random.default_rng(seed).permutation(len(together)):
        adds = Counter(classes[row] for row in together[i])
        if sum(abs(missing[k] - more) - abs(missing[k]) for k, more in adds.items()) < 0:
            chosen[together[i]] = True
            for k, more in adds.items():
                missing[k] -= more
    return chosen


def strata(labels: np.ndarray) -> np.ndarray:
    """Float labels as the numbers of their quantile bins, int64 [N]; classes as they are."""
    if labels.dtype.kind != "f" or not len(labels):
        return labels
    bins = max(1, min(BINS, len(labels) // BINS))
    edges = np.quantile(labels, np.arange(1, bins) / bins)
    return np.searchsorted(edges, labels, side="right")


def components(*columns: Sequence[Hashable]) -> np.ndarray:
    """The component of each row, where rows with equal keys in any of the columns hang together: int64 [N].

    Numbered from 0 in the order of their first rows.
    """
    parent = list(range(len(columns[0])))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    for column in columns:
        first: dict[Hashable, int] = {}
        for row, key in enumerate(column):
            one, other = root(row), root(first.setdefault(key, row))
            parent[max(one, other)] = min(one, other)
    return np.unique([root(row) for row in range(len(parent))], return_inverse=True)[1].ravel().astype(np.int64)


def named(numbers: np.ndarray, groups: Sequence[str]) -> np.ndarray:
    """Components by the group of their first row, so that two tasks can tell that they share one: str [N].

    Args:
        numbers: as `components` gives them, int64 [N].
        groups: the name of each row's group, one of the columns that made the components; a hash stands for a long one.
    """
    names = [groups[int(row)] for row in np.unique(numbers, return_index=True)[1]]
    return np.array([_short(name) for name in names])[numbers]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def sample(labels: np.ndarray, n: int, seed: int) -> np.ndarray:
    """The indices, in order, of `n` rows (or all, if there are fewer), each class with its share."""
    return np.flatnonzero(carve(labels, range(len(labels)), min(n, len(labels)), seed))


def share(labels: np.ndarray, n: int) -> Counts:
    """How `n` rows fall on the classes: within one of n x frequency, but none empty where n allows it; sums to n.

    Largest remainders (Hamilton's rule of apportionment).
    """
    values, counts = np.unique(labels, return_counts=True)
    quotas = n * counts / max(1, len(labels))
    given = np.maximum(np.floor(quotas), 1) if n >= len(values) else np.floor(quotas)
    while given.sum() > n:
        given[np.argmax(np.where(given > 1, given - quotas, -np.inf))] -= 1
    while given.sum() < n:
        given[np.argmax(np.where(given < counts, quotas - given, -np.inf))] += 1
    return dict(zip(values.tolist(), given.astype(int).tolist(), strict=True))
