"""What a model is going to write, and what it wrote, in words and numbers."""

from collections.abc import Mapping
from typing import Any

from probekit.activations.continuations.plan import ContinuationPlan
from probekit.activations.estimate import duration
from probekit.tasks.base import Task
from probekit.text import counted, printable


def continuations_as_dict(plan: ContinuationPlan) -> dict[str, Any]:
    """The plan as JSON-able numbers and names."""
    names = ("generate", "temperature", "top_k", "top_p", "generate_seed", "stop_tokens", "batch_tokens")
    n = len(plan.task) - len(plan.full)
    numbers = {"texts": n, "left_out": len(plan.full), "most_tokens": n * plan.most, "batches": len(plan.batches)}
    return {**{name: plan.identity[name] for name in names}, **numbers}


def describe_continuations(plan: ContinuationPlan, seconds: float | None = None) -> str:
    """The plan as one line for the terminal; with the estimated time, if there is one."""
    n = continuations_as_dict(plan)
    largest = max(map(len, plan.batches))
    left = f", {n['left_out']:,} left out with a full context" if n["left_out"] else ""
    line = (
        f"up to {counted(plan.most, 'token')} after each of {counted(n['texts'], 'text')}{left}, {_how(n)}, "
        f"{stops_in_words(plan)}; {counted(n['batches'], 'batch', 'batches')} of up to {counted(largest, 'text')}"
    )
    time = "" if seconds is None else f"; at most about {duration(seconds)}"
    return f"{'write':<9}{printable(line + time)}"


def _how(n: Mapping[str, Any]) -> str:
    if not n["temperature"]:
        return "greedily"
    of = "".join(f", {name} {n[name]}" for name in ("top_k", "top_p") if n[name] is not None)
    return f"drawn at temperature {n['temperature']:g}{of}, seed {n['generate_seed']}"


def stops_in_words(plan: ContinuationPlan) -> str:
    """The tokens that end a continuation."""
    tokenizer, stops = plan.model.tokenizer, sorted(plan.stops)
    names = stops if tokenizer is None else tokenizer.tokens(stops)
    return f"until {' or '.join(map(ascii, names))}" if stops else "without a stop token"


def written_in_words(task: Task) -> str:
    """How a task's texts were continued; "" where they were not."""
    done = task.info.get("generate")
    if task.generated is None or not isinstance(done, dict):
        return ""
    ended = done.get("ended", {})
    whys = {"stop token": "ended at a stop token", "context": "where the context was full"}
    said = [f"{n:,} {whys.get(why, f'at --generate {done.get("generate")}')}" for why, n in ended.items() if n]
    return f"{counted(int(task.generated.sum()), 'token')} by the model, {_how(done)}: {', '.join(said)}"
