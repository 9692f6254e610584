"""When two inputs are the same text: one rule for carved splits, folds, control tasks and the audit.

Texts are the same if they are equal apart from Unicode form (NFKC), case, white space and the spacing of punctuation:
if their `normalised_words` are equal. Lists of token ids are the same if all ids are equal.

Axes: N inputs.
"""

import re
import unicodedata
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from probekit.files.scratch import picked
from probekit.tasks.splitting.splits import SPLITS

Task = Any  # `tasks.base.Task`, which imports this module
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
        known: dict[Hashable, int] = {}
        return np.array([known.setdefault(plain_ids(ids), len(known)) for ids in inputs], dtype=np.int64)
    return _text_numbers(inputs)


def _text_numbers(texts: Sequence[str]) -> np.ndarray:
    """Finding words takes most of the time, and only texts that are equal without any white space need it.

    A number of 64 bits stands for each text, so that memory does not hold the texts. Texts of one number are compared
    themselves.
    """
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
