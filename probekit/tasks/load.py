"""load_task: a built-in task."""

from probekit.tasks.agreement import agreement
from probekit.tasks.base import Task

BUILTIN_TASKS = ("agreement",)


def load_task(source: str, seed: int = 0) -> Task:
    """The built-in task."""
    return agreement(seed=seed)
