"""What is asked of a model: texts with labels, from files, from the Hub, or made here with known truth."""

from probekit.tasks.base import Task
from probekit.tasks.load import BUILTIN_TASKS, load_task

__all__ = ["BUILTIN_TASKS", "Task", "load_task"]
