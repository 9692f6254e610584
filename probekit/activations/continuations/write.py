"""Let the model continue the texts of a task, batch after batch, and make a task of the whole texts.

Axes: N examples.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.continuations.files import begin_folder, read_batch, write_batch
from probekit.activations.continuations.plan import SKIP_HINT, ContinuationPlan
from probekit.activations.plan.token_ids import has_texts
from probekit.activations.run.forward import running
from probekit.errors import DataError
from probekit.models.generation import Among, Continuation, continuation_text, continuations
from probekit.progress import progress_bar
from probekit.tasks.base import Task
from probekit.tasks.regions import Region
from probekit.text import counted

Advance = Callable[[int, int], None]  # takes the tokens that were written, and how many texts ended


def write_continuations(
    plan: ContinuationPlan, folder: Path | None = None, progress: bool | None = None, skip: bool = False
) -> Task:
    """The plan's task with the texts as the model continued them.

    Args:
        plan: the plan.
        folder: where finished batches are kept, and found by a run that resumes; None keeps none.
        progress: show a progress bar on stderr; None shows it on a terminal only.
        skip: leave out texts that the model does not continue, instead of refusing them.

    Raises:
        DataError: a text that the model ends at once, unless `skip`; all of them.
        ResumeMismatch: the folder holds continuations with other settings.
        StorageError: the disk refused, or a file in the folder is damaged.
    """
    seal = None if folder is None else begin_folder(folder, plan)
    made: dict[int, Continuation] = {}
    with _progress(len(plan.rows), progress) as advance, _writing(plan):
        for number, rows in enumerate(plan.batches):
            batch = None if folder is None or seal is None else read_batch(folder, seal, number, rows)
            if batch is None:
                batch = write_rows(plan, rows, advance)
                if folder is not None and seal is not None:
                    write_batch(folder, seal, number, rows, batch)
            else:
                advance(0, len(rows))
            found = {int(row): _trimmed(plan, int(row), one) for row, one in zip(rows, batch, strict=True)}
            if not skip:
                _refuse_empty(plan, found)
            made |= found
    return continued_task(plan, made)


@contextmanager
def _writing(plan: ContinuationPlan) -> Iterator[None]:
    """The model on its device, under the plan's edits."""
    edited = nullcontext() if plan.edits is None else plan.model.edited(plan.edits)
    with running(plan.model, plan.device), edited:
        yield


def write_rows(plan: ContinuationPlan, rows: np.ndarray, advance: Advance | None = None) -> list[Continuation]:
    """The continuations of these examples, in one batch, with the stop token; within `running`."""
    prompts = [_prompt(plan, int(row)) for row in rows]
    among = Among(rows.tolist(), len(plan.task))
    return continuations(
        plan.model, prompts, plan.most, plan.sampling, plan.stops, use_cache=True, among=among, advance=advance
    )


def _prompt(plan: ContinuationPlan, row: int) -> list[int]:
    """The ids that the model continues: those of the text after its BOS, without a context token at its end."""
    ids = plan.sequences[row].tolist()
    return ids[: len(ids) - plan.sequences.n_end]


def _trimmed(plan: ContinuationPlan, row: int, made: Continuation) -> Continuation:
    """A continuation without its stop token, and without what the context has no room for."""
    tokens = made.tokens[:-1] if made.ended == "stop token" else made.tokens
    room = plan.model.cfg.n_ctx - int(plan.sequences.lengths[row])
    return Continuation(tokens[:room], "context") if len(tokens) > room else Continuation(tokens, made.ended)


def _refuse_empty(plan: ContinuationPlan, made: dict[int, Continuation]) -> None:
    for row, one in made.items():
        if not one.tokens:
            raise DataError(
                f"example {plan.task.ids[row]!a}: the model ends it at once, with {_stops_in_words(plan)}; "
                f"stop at another token (--stop), {SKIP_HINT}"
            )


def _stops_in_words(plan: ContinuationPlan) -> str:
    tokenizer = plan.model.tokenizer
    names = sorted(plan.stops) if tokenizer is None else tokenizer.tokens(sorted(plan.stops))
    return f"the stop token {' or '.join(map(ascii, names))}"


def continued_task(plan: ContinuationPlan, made: dict[int, Continuation]) -> Task:
    """The task with whole texts: of each example that was continued, prompt and continuation.

    Raises:
        DataError: none was.
    """
    rows = np.array([row for row in plan.rows.tolist() if made[row].tokens], dtype=np.int64)
    if not len(rows):
        raise DataError(f"the model ends every text of {plan.task.name!a} at once, with {_stops_in_words(plan)}")
    written = [made[row] for row in rows.tolist()]
    own = [_prompt(plan, row)[plan.sequences.n_bos :] for row in rows.tolist()]
    ids = [prompt + one.tokens for prompt, one in zip(own, written, strict=True)]
    task = plan.task if len(rows) == len(plan.task) else plan.task.subset(rows)
    fields: dict[str, Any] = {"inputs": ids}
    if has_texts(task):
        texts = [
            str(text) + continuation_text(plan.model, prompt, Continuation(one.tokens, "max_new_tokens"))
            for text, prompt, one in zip(task.inputs, own, written, strict=True)
        ]
        fields = {"inputs": texts, "token_ids": ids, "regions": _regions(task, texts)}
    info = {**task.info, "generate": _record(plan, made)}
    return replace(task, generated=np.array([len(one.tokens) for one in written]), info=info, **fields)


def _regions(task: Task, texts: list[str]) -> list[list[Region]] | None:
    """The parts of each text; what the model wrote in a chat is the content of an assistant's message."""
    if task.regions is None or "chat" not in task.info:
        return task.regions
    return [
        [*own, Region("assistant", len(str(prompt)), len(text))]
        for own, prompt, text in zip(task.regions, task.inputs, texts, strict=True)
    ]


def _record(plan: ContinuationPlan, made: dict[int, Continuation]) -> dict[str, Any]:
    """What is kept of how the texts were continued, JSON-able."""
    kept = [one for one in made.values() if one.tokens]
    ended = Counter(one.ended for one in kept)
    left_out = {"ended at once": len(made) - len(kept), "no room": len(plan.task) - len(plan.rows)}
    names = ("generate", "temperature", "top_k", "top_p", "generate_seed", "stop_tokens")
    return {
        **{name: plan.identity[name] for name in names},
        "tokens": sum(len(one.tokens) for one in kept),
        "ended": {why: ended[why] for why in ("stop token", "max_new_tokens", "context")},
        "left_out": {why: n for why, n in left_out.items() if n},
    }


@contextmanager
def _progress(n: int, show: bool | None) -> Iterator[Advance]:
    """A bar on stderr: texts that have ended and time left, tokens written so far."""
    tokens = 0
    with progress_bar("generate", "texts", n, show) as bar:

        def advance(new: int, ended: int) -> None:
            nonlocal tokens
            tokens += new
            bar.advance(ended, counted(tokens, "token"))

        yield advance
