"""What a sweep would run: each task with its rows and classes, or why it cannot be read."""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from probekit.sweeps.files import read_body, read_runs
from probekit.sweeps.run import SweepPlan, read_task, reason_of
from probekit.sweeps.sources import SweepSource
from probekit.tables import text_table
from probekit.text import counted, printable


@dataclass(frozen=True)
class TaskPreview:
    """A task: its rows by split, its classes (0 for numbers), or why it cannot be read."""

    name: str
    rows: dict[str, int]
    classes: int
    error: str = ""


@dataclass(frozen=True)
class SweepPreview:
    """What a sweep would run.

    Attributes:
        models: names.
        tasks: each with its rows, or why it cannot be read.
        done: how many runs an earlier call has finished.
    """

    models: list[str]
    tasks: list[TaskPreview]
    done: int

    @property
    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)

    def __str__(self) -> str:
        splits = ("train", "validation", "test")
        rows = [["task", *splits, "classes", ""]]
        for task in self.tasks:
            kind = "" if task.error else str(task.classes) if task.classes else "numbers"
            counts = [f"{task.rows[split]:,}" if task.rows.get(split) else "" for split in splits]
            rows.append([task.name, *counts, kind, f"cannot be read: {task.error}" if task.error else ""])
        total = len(self.tasks) * len(self.models)
        lines = text_table([row[:5] for row in rows]).split("\n")
        table = [f"{line}  {printable(row[5])}".rstrip() for line, row in zip(lines, rows, strict=True)]
        what = f"{counted(len(self.tasks), 'task')} x {counted(len(self.models), 'model')}: {counted(total, 'run')}"
        return "\n".join([*table, "", f"{what}, {self.done} of them done"])


def preview(plan: SweepPlan, on_progress: Callable[[int, int], None] | None = None) -> SweepPreview:
    """Read the tasks of a plan; no model is loaded, and nothing is written.

    Args:
        plan: of the sweep.
        on_progress: called with (tasks read, tasks) after each task.
    """
    done = 0
    if plan.folder is not None and (plan.folder / "sweep.json").exists():
        known = read_runs(plan.folder, read_body(plan.folder))
        wanted = {(task.name, model.name) for task in plan.tasks for model in plan.models}
        done = sum(not run.error for key, run in known.items() if key in wanted)
    tasks = []
    for source in plan.tasks:
        tasks.append(_task(plan, source))
        if on_progress is not None:
            on_progress(len(tasks), len(plan.tasks))
    return SweepPreview([model.name for model in plan.models], tasks, done)


def _task(plan: SweepPlan, source: SweepSource) -> TaskPreview:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            task = read_task(source, plan.options)
    except Exception as error:
        return TaskPreview(source.name, {}, 0, reason_of(error))
    counts = {split: int((task.splits == split).sum()) for split in ("train", "validation", "test")}
    return TaskPreview(source.name, counts, len(task.label_names[task.target]))
