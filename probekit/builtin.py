"""Names of built-in models and tasks.

`load_model` and `load_task` look here before they look for files or on the Hub. The packages that make built-in models
and tasks (`worlds`) enter them when `probekit` is imported, so `models` and `tasks` need not import those packages.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

MODELS: dict[str, Callable[[bool, bool | None], Path]] = {}
"""Model name -> a function of (weights, progress) that returns the model's folder.

Without weights the folder needs only config.json and the tokenizer. Progress is as in `load_model`.
"""

TASKS: dict[str, Callable[..., Any]] = {}
"""Task name -> a function of (seed) that returns the `Task`."""
