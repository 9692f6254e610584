"""Texts and groups that several splits of a task have."""

from collections import Counter
from typing import Any

from probekit.tasks.base import SPLITS, Task


def shared_by_splits(task: Task) -> dict[str, Any]:
    """For a task's info: how many texts of validation and test are also in train, and how many groups span splits.

    The latter is None where the task has no groups.
    """
    rows = task.texts()[0]
    texts = {split: [str(task.inputs[i]).strip() for i in rows[task.splits[rows] == split]] for split in SPLITS}
    train = set(texts["train"])
    across = None
    if task.groups is not None:
        pairs = set(zip(task.groups.tolist(), task.splits.tolist(), strict=True))
        across = sum(n > 1 for n in Counter(group for group, _ in pairs).values())
    return {
        "also_in_train": {split: sum(text in train for text in texts[split]) for split in SPLITS[1:]},
        "groups_across_splits": across,
    }
