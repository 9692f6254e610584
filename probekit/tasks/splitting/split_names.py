"""The names of splits, in files, on the Hub and in columns."""

from collections.abc import Iterable
from typing import Any

SPLITS = ("train", "validation", "test")
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
    of_column = SPLIT_NAMES.get(column.strip().lower().removeprefix("is_")) if is_flag(column) else None
    if of_column is not None and own in TRUTHS:
        other = "test" if of_column == "train" else "train"
        return of_column if TRUTHS[own] else other
    return (SPLIT_NAMES | SHORT).get(own) if isinstance(cell, str) else None


def is_flag(column: str) -> bool:
    """Whether a column is named as one of truth values: is_test."""
    return column.strip().lower().startswith("is_")
