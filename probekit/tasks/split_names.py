"""The names of splits, in files, on the Hub and in columns."""

from collections.abc import Mapping
from typing import Any

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "dev", "val", "valid", "development"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
SENTEVAL = {"tr": "train", "va": "validation", "te": "test"}  # in its columns


def split_of_cell(cell: Any) -> str | None:
    """The split that a cell of a split column names; None if it names none."""
    return (SPLIT_NAMES | SENTEVAL).get(cell.strip().lower()) if isinstance(cell, str) else None


def origin_of_splits(info: Mapping[str, Any]) -> str:
    """Where a task's splits come from, by its info, in words; "" where each has a file of its own."""
    carved = info.get("carved_from_train")
    parts = [info.get("splits_from"), f"{' and '.join(carved)} carved from train" if carved else ""]
    return "; ".join(part for part in parts if part)
