"""What a dry run shows of continuations: the first texts as the model continues them, and the time of the rest."""

import time
from dataclasses import replace

import numpy as np

from probekit.activations.continuations.plan import ContinuationPlan
from probekit.activations.continuations.write import (
    continued_task,
    prompt_of,
    trimmed,
    write_rows,
    writing,
    written_text,
)
from probekit.activations.plan.token_ids import has_texts
from probekit.models.generation import Among, Continuation, continuations
from probekit.tasks.base import Task
from probekit.tasks.info import GENERATE

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
