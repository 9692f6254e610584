"""Tasks: texts with labels, from files, from the Hub, or made here with known truth."""

from probekit.registries import TASKS as BUILTIN_TASKS
from probekit.tasks.base import Task
from probekit.tasks.load import load_task

__all__ = ["BUILTIN_TASKS", "Task", "load_task"]
