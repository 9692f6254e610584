"""Texts and groups that several splits of a task have."""

from typing import Any

import numpy as np

from probekit.tasks.base import SPLITS, Task
from probekit.tasks.splitting.same_text import text_numbers


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
