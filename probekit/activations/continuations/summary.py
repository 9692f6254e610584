"""What a model is going to write, in words and numbers; a dry run shows the first texts, and the time of the rest."""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.activations.continuations.plan import ContinuationPlan, stop_names
from probekit.activations.continuations.write import (
    continued_task,
    prompt_of,
    trimmed,
    write_rows,
    writing,
    written_text,
)
from probekit.activations.estimate import duration
from probekit.activations.plan.summary import how_in_words
from probekit.activations.plan.token_ids import has_texts
from probekit.models.generation import Among, Continuation, continuations
from probekit.tasks.base import Task
from probekit.tasks.fields import GENERATE
from probekit.text import counted, printable

SHOWN = 3  # texts that a dry run continues
STEPS = 3  # tokens of each row that are timed, after one that is not


def sketched_task(plan: ContinuationPlan) -> Task:
    """The plan's task with its first texts continued, and the others as long as they can get, by one token."""
    rows = np.concatenate(plan.batches)
    first = np.sort(rows)[:SHOWN]
    with writing(plan):
        written = write_rows(plan, first)
    made = {int(row): trimmed(plan, int(row), one) for row, one in zip(first, written, strict=True)}
    has_text, of_length = has_texts(plan.task), dict[int, str]()
    texts = {row: written_text(plan, row, one) for row, one in made.items()} if has_text else {}
    longest = Continuation([_filler(plan, int(first[0]))] * plan.most, "max_new_tokens")
    for row in rows.tolist():
        if row not in made:
            made[row] = one = trimmed(plan, row, longest)
            if has_text and len(one.tokens) not in of_length:  # decoded once, not once a text
                of_length[len(one.tokens)] = written_text(plan, row, one)
            texts[row] = of_length.get(len(one.tokens), "")
    task = continued_task(plan, made, texts if has_text else None)
    return replace(task, info={key: value for key, value in task.info.items() if key != GENERATE})


def _filler(plan: ContinuationPlan, row: int) -> int:
    """A token of a prompt that has a letter or a digit, if there is one."""
    ids, tokenizer = prompt_of(plan, row), plan.model.tokenizer
    names = [""] * len(ids) if tokenizer is None else tokenizer.tokens(ids)
    return next((i for i, name in zip(ids, names, strict=True) if name.strip().isalnum()), ids[-1])


def writing_seconds(plan: ContinuationPlan) -> float:
    """The time that the continuations take at most, from a few steps of a batch of one-token prompts.

    Reading the prompts is counted as if each token cost as much as a step's; attention over them is left out.
    """
    rows, ends = max(plan.batches, key=len), list[float]()
    prompts, steps = [prompt_of(plan, int(row))[-1:] for row in rows], min(STEPS + 1, plan.model.cfg.n_ctx)
    among = Among(rows.tolist(), len(plan.task))
    with writing(plan):
        start = time.perf_counter()
        continuations(plan.model, prompts, steps, among=among, advance=lambda *_: ends.append(time.perf_counter()))
    step = (ends[-1] - ends[0]) / (steps - 1) if steps > 1 else ends[0] - start
    read = int(plan.sequences.lengths[np.concatenate(plan.batches)].sum())
    return step * (plan.most * len(plan.batches) + read / len(rows))


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
