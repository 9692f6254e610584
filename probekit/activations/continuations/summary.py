"""What a model is going to write, in words and numbers."""

from typing import Any

from probekit.activations.continuations.plan import ContinuationPlan
from probekit.activations.estimate import duration
from probekit.activations.plan.written import how_in_words
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
    batches = f"{counted(n['batches'], 'batch', 'batches')} of up to {counted(max(map(len, plan.batches)), 'text')}"
    end = f"until {stop_names(plan)}" if plan.stops else "without a stop token"
    left = f", {n['left_out']:,} left out with a full context" if n["left_out"] else ""
    line = (
        f"up to {counted(plan.most, 'token')} after each of {counted(n['texts'], 'text')}{left}, {how_in_words(n)}, "
        f"{end}; {batches}{_answered(plan)}"
    )
    time = "" if seconds is None else f"; at most about {duration(seconds)}"
    return f"{'write':<9}{printable(line + time)}"


def _answered(plan: ContinuationPlan) -> str:
    """How many chats end with an answer already, after which the model begins a second one; "" for none."""
    n = sum(bool(own) and own[-1].name == "assistant" for own in plan.task.regions or ())
    each = f"{n:,} of the chats" if n < len(plan.task) else "the chats"
    return f"; {each} already end with an answer of the assistant, and the model writes another after it" if n else ""


def stop_names(plan: ContinuationPlan) -> str:
    """The tokens that end a continuation; "" for none."""
    tokenizer, stops = plan.model.tokenizer, sorted(plan.stops)
    return " or ".join(map(ascii, stops if tokenizer is None else tokenizer.tokens(stops)))
