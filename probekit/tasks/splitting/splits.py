"""Splits: their names, how a part is carved off a labelled set, and when two inputs are the same text.

Carving is stratified and seeded, and keeps equal texts (or groups) together. Texts are the same if they are equal apart
from Unicode form (NFKC), case, white space and the spacing of punctuation: if their `normalised_words` are equal. Lists
of token ids are the same if all ids are equal. Folds, control tasks and the audit have the same rule.

Axes: N inputs.
"""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from probekit.files.scratch import IN_MEMORY, ArrayWriter, on_disk, picked, pieces

SPLITS = ("train", "validation", "test")
Task = Any  # `tasks.base.Task`, which imports this module
WHOLE = "all"  # the key of a table that is not split, among tables by split
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "dev", "val", "valid", "development"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
SHORT = {"tr": "train", "va": "validation", "te": "test"}  # of SentEval; they are languages too
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def splits_of_names(names: Iterable[Any]) -> dict[Any, str]:
    """Name -> its split, of those names that are a split's: stems of files, keys, or splits of a dataset.

    The short tr, va and te are splits only where every name is: beside en and de, tr and te are languages.
    """
    found = {name: split_of_cell(name) for name in names}
    may_be_short = None not in found.values()
    return {
        name: split
        for name, split in found.items()
        if split is not None and (may_be_short or name.strip().lower() in SPLIT_NAMES)
    }


def split_of_cell(cell: Any, column: str = "") -> str | None:
    """The split that a cell of a split column names; None if it names none.

    A column called is_test, is_train or is_validation holds truth values: a row is in that split, or in train (of
    is_train: in test).
    """
    own = str(cell).strip().lower()
    column = column.strip().lower()
    of_column = SPLIT_NAMES.get(column.removeprefix("is_")) if column.startswith("is_") else None
    if of_column is not None and own in TRUTHS:
        other = "test" if of_column == "train" else "train"
        return of_column if TRUTHS[own] else other
    return (SPLIT_NAMES | SHORT).get(own) if isinstance(cell, str) else None


CARVED_SHARE = 0.1  # of train, for each missing split
MAX_NAME = 60  # characters of a group's name
BINS = 10  # quantile bins for a regression's values, of ten rows or more each


def carve(labels: np.ndarray, keys: Sequence[Hashable] | np.ndarray, n: int, seed: int | Sequence[int]) -> np.ndarray:
    """Choose about `n` rows, those with equal keys together: a boolean mask [N].

    Each class gets its share of `n`, and at least one row. Where all keys differ, the shares are met exactly. Otherwise
    each size of group gets its share too, as far as whole groups permit: from the largest groups to the smallest, one
    is chosen if that brings the rows chosen of each class closer to their share of the rows seen so far. Rows without a
    group, and then any groups, make up what is missing. Float labels are stratified by `strata`.
    """
    labels = strata(labels)
    missing: dict[int, float] = dict(share(labels, n))
    classes, sizes = np.unique(labels, return_counts=True)
    rates = {k: missing[k] / rows for k, rows in zip(classes.tolist(), sizes.tolist(), strict=True)}
    owed = dict.fromkeys(missing, 0.0)
    chosen = np.zeros(len(labels), dtype=bool)
    single, groups = _in_random_order(keys, seed)

    def take(rows: list[int], wanted: dict[int, float], adds: Counter[int], least: float) -> None:
        """Choose the rows if they lessen the distance of what is wanted by more than `least`."""
        if sum(abs(wanted[k]) - abs(wanted[k] - more) for k, more in adds.items()) > least:
            chosen[rows] = True
            for k, more in adds.items():
                missing[k] -= more
                owed[k] -= more

    for rows in sorted(groups, key=_doublings, reverse=True):
        adds = Counter(labels[rows].tolist())
        for k, more in adds.items():
            owed[k] += rates[k] * more
        take(rows, owed, adds, least=len(rows) / 2)  # so that several small groups go before one large
    for k, rows in _by_class(labels, single).items():
        first = rows[: max(0, int(missing[k]))]
        chosen[first] = True
        missing[k] -= len(first)
    for rows in [rows for rows in groups if not chosen[rows[0]]]:
        take(rows, missing, Counter(labels[rows].tolist()), least=0)
    return chosen


def _in_random_order(
    keys: Sequence[Hashable] | np.ndarray, seed: int | Sequence[int]
) -> tuple[np.ndarray, list[list[int]]]:
    """The rows whose keys nobody shares, int64, and the groups of those that share one, both in random order."""
    first, number = first_rows(keys)
    order = np.random.default_rng(seed).permutation(len(first))
    if len(first) == len(keys):
        return first[order], []
    sizes = np.bincount(number, minlength=len(first))
    members: dict[int, list[int]] = {}
    for row in np.flatnonzero(sizes[number] > 1).tolist():
        members.setdefault(int(number[row]), []).append(row)
    del number
    return first[order[sizes[order] == 1]], [members[i] for i in order[sizes[order] > 1].tolist()]


def first_rows(keys: Sequence[Hashable] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each key, int64 [U], and the number of each row's key, 0..U-1 in this order, int32 [N]."""
    is_dense = isinstance(keys, np.ndarray) and (not len(keys) or 0 <= keys.min() <= keys.max() < 2 * len(keys))
    if not is_dense:
        known: dict[Hashable, int] = {}
        plain = keys.tolist() if isinstance(keys, np.ndarray) else keys
        keys = np.array([known.setdefault(key, len(known)) for key in plain], dtype=np.int32)
    assert isinstance(keys, np.ndarray)
    rows = np.arange(len(keys), dtype=np.int32)
    first = np.zeros(int(keys.max(initial=-1)) + 1, dtype=np.int32)
    first[keys[::-1]] = rows[::-1]  # assigned in order: the first row of a key is the last to be written
    is_first = first[keys] == rows
    number = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    first[keys[is_first]] = number[is_first]
    return np.flatnonzero(is_first), first[keys]


def _by_class(labels: np.ndarray, rows: np.ndarray) -> dict[int, np.ndarray]:
    """The rows of each class that has any, in their order."""
    order = rows[np.argsort(labels[rows], kind="stable")]
    own = labels[order]
    starts = np.flatnonzero(own[1:] != own[:-1]) + 1
    parts = np.split(order, starts) if len(rows) else []
    return {int(labels[part[0]]): part for part in parts}


def _doublings(rows: list[int]) -> int:
    """2 for two or three rows, 3 for four to seven: within a factor of two the seed decides."""
    return len(rows).bit_length()


def missing_splits(given: Sequence[str] | np.ndarray, validation: bool = True) -> list[str]:
    """The splits that no row is in; validation only if it is wanted."""
    return [split for split in SPLITS if split not in given and (validation or split != "validation")]


def carve_missing(
    labels: np.ndarray,
    given: Sequence[str] | np.ndarray,
    keys: Sequence[Hashable] | np.ndarray,
    missing: Sequence[str],
    seed: int,
) -> np.ndarray:
    """The splits [N] after a tenth of train was moved to each missing one; rows with equal keys move together."""
    least = 2 if labels.dtype.kind == "f" else len(np.unique(labels))
    names, codes = ["train"], np.empty(len(given), dtype=np.int8)
    for rows in pieces(len(given)):
        own = np.asarray(given[rows])
        names += [name for name in dict.fromkeys(own.tolist()) if name not in names]
        codes[rows] = np.argmax(own[:, None] == np.array(names), axis=1)
    size = max(least, round(CARVED_SHARE * int((codes == 0).sum())))
    for k, split in enumerate(reversed(missing)):
        names = [*names, split]
        train = np.flatnonzero(codes == 0)
        own = keys[train] if isinstance(keys, np.ndarray) else [keys[i] for i in train.tolist()]
        chosen = carve(labels[train], own, min(size, len(train)), [seed, k])
        codes[train[chosen]] = len(names) - 1
    return split_names(codes, names)


def split_array(splits: Sequence[str] | np.ndarray) -> np.ndarray:
    """The names of splits as an array, on disk if they are many."""
    if isinstance(splits, np.ndarray):
        return on_disk(splits)
    if len(splits) <= IN_MEMORY:
        return np.array(splits)
    made = ArrayWriter()
    for rows in pieces(len(splits)):
        made.add(np.array(splits[rows], dtype="<U10"))
    return made.array()


def split_names(codes: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """names[codes], str [N]; on disk if there are many."""
    made = ArrayWriter()
    for rows in pieces(len(codes)):
        made.add(np.array(names, dtype="<U10")[codes[rows]])
    return made.array()


def strata(labels: np.ndarray) -> np.ndarray:
    """Float labels as numbers of their quantile bins, int64 [N]; classes unchanged. Of several numbers, the first's."""
    labels = labels[:, 0] if labels.ndim == 2 else labels
    if labels.dtype.kind != "f" or not len(labels):
        return labels
    known = ~np.isnan(labels)  # rows without a label are a stratum of their own
    bins = max(1, min(BINS, int(known.sum()) // BINS))
    edges = np.quantile(labels[known], np.arange(1, bins) / bins)
    return np.where(known, np.searchsorted(edges, labels, side="right"), -1)


def components(*columns: Sequence[Hashable] | np.ndarray) -> np.ndarray:
    """Connected components of rows, where equal keys in any of the columns connect: int64 [N].

    They are numbered from 0 in the order of their first rows.
    """
    if len(columns) == 1:
        return first_rows(columns[0])[1].astype(np.int64)
    parent = list(range(len(columns[0])))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = row = parent[parent[row]]
        return row

    for column in columns:
        first: dict[Hashable, int] = {}
        for row, key in enumerate(column.tolist() if isinstance(column, np.ndarray) else column):
            one, other = root(row), root(first.setdefault(key, row))
            parent[max(one, other)] = min(one, other)
    return np.unique([root(row) for row in range(len(parent))], return_inverse=True)[1].ravel().astype(np.int64)


def kept_together(texts: np.ndarray, groups: Sequence[str] | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Keys [N], equal for rows that must share a split; and the names of their groups, None without groups.

    Args:
        texts: the number of each row's text (`text_numbers`), int64 [N].
        groups: the name of each row's group, if there are groups. Those that share a text are merged.
    """
    if groups is None:
        return texts, None
    together = components(texts, groups)
    return together, name_groups(together, groups)


def name_groups(numbers: np.ndarray, groups: Sequence[str]) -> np.ndarray:
    """Name each component after its first row's group, so that two tasks can recognise a shared group: str [N].

    Args:
        numbers: from `components`, int64 [N].
        groups: the name of each row's group, one of the columns of the components; a long one is replaced by its hash.
    """
    names = [groups[int(row)] for row in np.unique(numbers, return_index=True)[1]]
    long = {name: name.encode("utf-8", "surrogatepass") for name in names if len(name) > MAX_NAME}
    return np.array([hashlib.sha256(long[name]).hexdigest() if name in long else name for name in names])[numbers]


def sample(labels: np.ndarray, n: int, seed: int) -> np.ndarray:
    """The indices, in order, of `n` stratified rows (or all, if there are fewer)."""
    return np.flatnonzero(carve(labels, np.arange(len(labels)), min(n, len(labels)), seed))


def share(labels: np.ndarray, n: int) -> dict[int, int]:
    """How many of `n` rows each class gets: n x frequency to within one, at least one where `n` allows; sums to `n`.

    The method of largest remainders (Hamilton's apportionment).
    """
    values, counts = np.unique(labels, return_counts=True)
    quotas = n * counts / max(1, len(labels))
    given = np.maximum(np.floor(quotas), 1) if n >= len(values) else np.floor(quotas)
    while given.sum() > n:
        given[np.argmax(np.where(given > 1, given - quotas, -np.inf))] -= 1
    while given.sum() < n:
        given[np.argmax(np.where(given < counts, quotas - given, -np.inf))] += 1
    return dict(zip(values.tolist(), given.astype(int).tolist(), strict=True))


# equal texts ----------------------------------------------------------------------------------------------------------


MANY = 64  # rows of equal texts, from which on they are read together

_WRITTEN_WITHOUT_SPACES = "぀-ヿ㐀-䶿一-鿿豈-﫿"
_WORD = re.compile(rf"[{_WRITTEN_WITHOUT_SPACES}]|[^\W{_WRITTEN_WITHOUT_SPACES}]+|[^\w\s]")

_SPACES = bytes(code for code in range(128) if chr(code).isspace())


def normalised_words(text: str) -> list[str]:
    """The words and punctuation marks of a text, with case, Unicode form and spacing normalised."""
    return _WORD.findall(folded(text))


def text_numbers(inputs: Sequence[Any]) -> np.ndarray:
    """Equal numbers for the same texts, 0..U-1 in the order of first occurrence: int64 [N].

    All inputs are texts, or all are lists of token ids.
    """
    if not len(inputs) or not isinstance(inputs[0], str):
        return first_rows([plain_ids(ids) for ids in inputs])[1].astype(np.int64)
    return _text_numbers(inputs)


def _text_numbers(texts: Sequence[str]) -> np.ndarray:
    # Finding words takes most of the time, and only texts that are equal without any white space need it. Memory holds
    # a hash of 64 bits for each text, not the text; texts with equal hashes are compared themselves.
    rough = np.fromiter((hash(_without_spaces(text)) for text in texts), np.int64, len(texts))
    order = np.argsort(rough, kind="stable")
    rough = rough[order]
    again = np.flatnonzero(rough[1:] == rough[:-1])  # the next one has the same number
    del rough
    starts, ends = again[np.diff(again, prepend=-2) != 1], again[np.diff(again, append=-2) != 1] + 2
    first = np.arange(len(texts), dtype=np.int32)  # the first row of each row's text
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = order[start:end].tolist()
        given = map(texts.__getitem__, rows) if len(rows) < MANY else picked(texts, order[start:end])
        distinct: dict[str, str] = {}
        plain = [distinct.setdefault(text, text) for text in given]  # one object for each distinct text
        words = {text: tuple(normalised_words(text)) for text in distinct} if len(distinct) > 1 else {}
        known: dict[Hashable, int] = {}
        for row, text in zip(rows, plain, strict=True):
            first[row] = known.setdefault(words.get(text), row)
    del order
    return (np.cumsum(first == np.arange(len(texts), dtype=np.int32)) - 1)[first]


def _without_spaces(text: str) -> str:
    if text.isascii():  # several times as fast as splitting and joining
        return text.encode().lower().translate(None, _SPACES).decode()
    return "".join(folded(text).split())


def folded(text: str) -> str:
    """A text in one case and one Unicode form (NFKC)."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def plain_ids(given: Any) -> tuple[int, ...]:
    """Token ids as numbers that compare and hash as integers do, which those of a tensor do not."""
    return tuple(given.tolist() if hasattr(given, "tolist") else given)


def shared_by_splits(task: Task) -> dict[str, Any]:
    """For a task's info: how many texts of validation and test are also in train, and how many groups span splits.

    The latter is None where the task has no groups.
    """
    rows = task.texts()[0]
    inputs = task.inputs if len(rows) == len(task) else [task.inputs[i] for i in rows]
    texts = text_numbers(inputs) if task.has_texts else np.arange(len(rows))
    of = {split: texts[task.splits[rows] == split] for split in SPLITS}
    return {
        "also_in_train": {split: int(np.isin(of[split], of["train"]).sum()) for split in SPLITS[1:]},
        "groups_across_splits": groups_across_splits(task),
    }


def groups_across_splits(task: Task) -> int | None:
    """How many groups have rows in several splits; None where the task has no groups."""
    if task.groups is None:
        return None
    groups = np.unique(task.groups, return_inverse=True)[1].ravel()
    splits = np.unique(task.splits, return_inverse=True)[1].ravel()
    return int((np.bincount(np.unique(np.stack([groups, splits]), axis=1)[0]) > 1).sum())
