"""What upper rooms enter for lower ones when `probekit` is imported: built-in models and tasks, and methods of results.

`load_model` and `load_task` look here before they look for files or on the Hub, so `models` and `tasks` need not import
the packages that make built-in ones (`worlds`). Results draw, export and score themselves with functions of rooms above
theirs, which `probekit.methods` enters.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

MODELS: dict[str, Callable[[bool, bool | None], Path]] = {}
"""Model name -> a function of (weights, progress) that returns the model's folder.

Without weights the folder needs only config.json and the tokenizer. Progress is as in `load_model`.
"""

COMPILED = "compiled-"  # how the names of compiled models and their tasks begin

TASKS: dict[str, Callable[..., Any]] = {}
"""Task name -> a function of (seed) that returns the `Task`."""

METHODS: dict[str, Callable[..., Any]] = {}
"""Function name -> the function, which imports its room when it is called."""
