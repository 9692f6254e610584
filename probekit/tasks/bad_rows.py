"""Leave rows out of a task, and count them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from probekit.errors import DataError
from probekit.options.task import OnBadRow
from probekit.tasks.base import Task
from probekit.text import counted


def without_bad_rows(task: Task, bad: Mapping[int, str], flaw: str, on_bad_row: OnBadRow) -> tuple[Task, np.ndarray]:
    """The task without the bad rows, counted in `info["skipped"]`, and the rows that are left, int64.

    Args:
        task: the examples.
        bad: row -> what is wrong with it and what to do, as the message of an error.
        flaw: the kind of flaw, under which the rows are counted.
        on_bad_row: "error" raises for the first bad row.

    Raises:
        DataError: there is a bad row, or none is left.
    """
    rows = np.delete(np.arange(len(task)), list(bad))
    if not bad:
        return task, rows
    first = min(bad)
    if on_bad_row == "error":
        more = f" ({len(bad):,} such rows in all; --on-bad-row skip leaves them out)" if len(bad) > 1 else ""
        raise DataError(f"example {task.ids[first]!a}: {bad[first]}{more}")
    if not len(rows):
        raise DataError(f"all {counted(len(task), 'row')} are left out; example {task.ids[first]!a}: {bad[first]}")
    skipped = dict(task.info.get("skipped", {}))
    skipped[flaw] = skipped.get(flaw, 0) + len(bad)
    total = int(task.info.get("skipped_rows", 0)) + len(bad)
    left = replace(task.subset(rows), info={**task.info, "skipped": skipped, "skipped_rows": total})
    return left, rows
