"""Tell content from formatting: the tokens of a chat template, special tokens and context tokens are no content.

Axes: L tokens of one text.
"""

import numpy as np

from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.reading.offsets import offsets_of
from probekit.activations.plan.token_ids import has_texts, targets_task
from probekit.tasks.base import Task
from probekit.tasks.fields import CHAT

MOST_ROWS = 1000  # that the note of a plan looks at


def task_read(plan: ExtractionPlan) -> Task:
    """The task whose inputs are read: for a decoder, that of the targets."""
    return targets_task(plan.task) if plan.stack == "decoder" else plan.task


def formatting_tokens(plan: ExtractionPlan, n_rows: int) -> list[np.ndarray]:
    """Which tokens of each of the first examples, context included, are no content: bool [L] each."""
    rows = np.arange(min(n_rows, len(plan.task)))
    task, sequences, tokenizer = task_read(plan).subset(rows), plan.sequences.subset(rows), plan.model.tokenizer
    special = [] if tokenizer is None else list(tokenizer.special_ids)
    found = [np.isin(sequences[row], special) for row in range(len(rows))]
    for own in found:
        own[: sequences.n_bos] = True
        own[len(own) - sequences.n_end :] = True
    if task.regions is None or tokenizer is None or not has_texts(task):
        return found
    for own, offsets, regions in zip(found, offsets_of(plan.model, task, sequences), task.regions, strict=True):
        inside = np.zeros(len(offsets), dtype=bool)
        for _, start, end in regions:
            inside |= (offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] < offsets[:, 1])
        own[sequences.n_bos : len(own) - sequences.n_end] |= ~inside
    return found


def formatting_note(plan: ExtractionPlan) -> str:
    """How often a position that reads one token of each text reads no content, in words; empty if it never does."""
    singles = [
        (name, read.index)
        for name, read in zip(plan.reading.positions, plan.reading.reads, strict=True)
        if read.counts is None and read.index is not None
    ]
    found = formatting_tokens(plan, MOST_ROWS) if singles else []
    kind = "special" if plan.task.regions is None else "formatting"
    notes = []
    for name, index in singles:
        n = sum(bool(own[index[row]]) for row, own in enumerate(found))
        rows = f"the first {len(found):,} rows" if len(found) < len(plan.task) else f"{len(found):,} rows"
        if n:
            notes.append(f"{name.in_words} is a {kind} token, not content, in {n:,} of {rows}")
        if n and name == "last":
            notes += _last_content(plan.task)
    return "; ".join(notes)


def _last_content(task: Task) -> list[str]:
    """How to read the last content instead, where all chats end with one role and nothing invites the next message."""
    last = {regions[-1].name if regions else None for regions in task.regions or ()}
    chat = task.info.get(CHAT, {})
    is_invited = chat.get("add_generation_prompt") and not chat.get("has_no_generation_prompt")
    if len(last) != 1 or None in last or is_invited:
        return []
    return [f"last@{last.pop()} reads the last content"]
