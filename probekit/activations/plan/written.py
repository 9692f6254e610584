"""How a task's texts were continued by the model, in words."""

from collections.abc import Mapping
from typing import Any

from probekit.tasks.base import Task
from probekit.tasks.info import GENERATE
from probekit.text import counted


def how_in_words(n: Mapping[str, Any]) -> str:
    """How the next token was chosen."""
    if not n.get("temperature"):
        return "greedily"
    of = "".join(f", {name} {n[name]}" for name in ("top_k", "top_p") if n.get(name) is not None)
    return f"drawn at temperature {n['temperature']:g}{of}, seed {n.get('generate_seed')}"


def written_in_words(task: Task) -> str:
    """What the model wrote, and where it ended; "" where it wrote nothing."""
    done = task.info.get(GENERATE)
    if task.generated is None or not isinstance(done, dict):
        return ""
    why = {"stop token": "at a stop token", "context": "where the context was full", "stopped": "by a monitor"}
    why["max_new_tokens"] = f"after {done.get('generate')} tokens"
    ends = [f"{n:,} {why.get(name, name)}" for name, n in done.get("ended", {}).items() if n]
    return f"{counted(int(task.generated.sum()), 'token')}, {how_in_words(done)}; ended {', '.join(ends)}"
