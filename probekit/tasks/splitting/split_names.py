"""The names of splits, in files, on the Hub and in columns."""

from typing import Any

SPLITS = ("train", "validation", "test")
WHOLE = "all"  # the key of a table that is not split, among tables by split
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "dev", "val", "valid", "development"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
SENTEVAL = {"tr": "train", "va": "validation", "te": "test"}  # in its columns


def split_of_name(name: Any) -> str | None:
    """The split that a file's stem, a key or a split of a dataset is called; None if it is no split's name."""
    return SPLIT_NAMES.get(name.strip().lower()) if isinstance(name, str) else None


def split_of_cell(cell: Any) -> str | None:
    """The split that a cell of a split column names; None if it names none."""
    return split_of_name(cell) or (SENTEVAL.get(cell.strip().lower()) if isinstance(cell, str) else None)
