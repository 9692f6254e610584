"""Let the model continue the texts of a task, batch after batch, and make a task of the whole texts.

On disk the batches are a run: one record for each that is finished. A dry run writes the first texts, and times the
rest.

Axes: N examples.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np

from probekit.activations.continuations.plan import AT_ONCE, FORMAT, NO_ROOM, ContinuationPlan, stop_names
from probekit.activations.estimate import duration
from probekit.activations.plan.summary import how_in_words
from probekit.activations.plan.token_ids import has_texts
from probekit.activations.run.forward import running
from probekit.activations.store.writer import CONTINUATIONS, check_free
from probekit.errors import ResumeMismatch, StorageError
from probekit.files.durable import is_there, unseal
from probekit.files.records import has_form
from probekit.files.remote.path import AnyPath, as_path
from probekit.files.run import ELSEWHERE, PLAN, Run, begin_run, differing, folder_name, refuse_others
from probekit.machine.progress import progress_bar
from probekit.models.generation import Among, Continuation, continuation_text, continuations
from probekit.tasks.base import Task, without_bad_rows
from probekit.tasks.fields import CHAT, GENERATE, PROMPT_CHARACTERS, Region
from probekit.text import counted, printable

SHOWN = 3  # texts that a dry run continues
STEPS = 3  # tokens of each row that are timed, after one that is not
Advance = Callable[[int, int], None]  # takes the tokens that were written, and how many texts ended
_EXPLAINED = {
    "prompts": " (the texts, their order, or how they become tokens)",
    "model_fingerprint": " (the weights, in the type that computes)",
}


class _Plan(TypedDict):
    format: str
    identity: dict[str, Any]


class _Batch(TypedDict):
    rows: list[int]
    tokens: list[list[int]]
    ended: list[str]


def write_continuations(plan: ContinuationPlan, folder: AnyPath | None = None, progress: bool | None = None) -> Task:
    """The plan's task with the texts as the model continued them.

    Args:
        plan: the plan.
        folder: where finished batches are kept, and found by a run that resumes; None keeps none.
        progress: show progress on stderr: None on a terminal and in a notebook, True always, False never.

    Raises:
        DataError: a text that the model ends at once, unless such rows are skipped; all of them.
        ResumeMismatch: the folder holds continuations with other settings.
        StorageError: the disk refused, or a file in the folder is damaged.
    """
    run = None if folder is None else begin_folder(folder, plan)
    made: dict[int, Continuation] = {}
    with _progress(len(plan.task) - len(plan.full), progress) as advance, writing(plan):
        for number, rows in enumerate(plan.batches):
            batch = None if run is None else batch_on_disk(run, number, rows)
            if batch is None:
                batch = write_rows(plan, rows, advance)
                if run is not None:
                    write_batch(run, number, rows, batch)
            else:
                advance(0, len(rows))
            found = {int(row): trimmed(plan, int(row), one) for row, one in zip(rows, batch, strict=True)}
            made |= found
            if plan.on_bad_row == "error":  # sooner than after the last batch
                _without_bad_rows(plan, found)
    return continued_task(plan, made)


@contextmanager
def writing(plan: ContinuationPlan) -> Iterator[None]:
    """The model on its device, under the plan's edits."""
    edited = nullcontext() if plan.edits is None else plan.model.edited(plan.edits)
    with running(plan.model, plan.device), edited:
        yield


def write_rows(plan: ContinuationPlan, rows: np.ndarray, advance: Advance | None = None) -> list[Continuation]:
    """The continuations of these examples, in one batch, with the stop token; within `running`."""
    prompts = [prompt_of(plan, int(row)) for row in rows]
    among = Among(rows.tolist(), len(plan.task))
    return continuations(
        plan.model, prompts, plan.most, plan.sampling, plan.stops, use_cache=True, among=among, advance=advance
    )


def prompt_of(plan: ContinuationPlan, row: int) -> list[int]:
    """The ids that the model continues: those of the text after its BOS, without a context token at its end."""
    ids = plan.sequences[row].tolist()
    return ids[: len(ids) - plan.sequences.n_end]


def trimmed(plan: ContinuationPlan, row: int, made: Continuation) -> Continuation:
    """A continuation without its stop token, and without what the context has no room for."""
    tokens = made.tokens[:-1] if made.ended == "stop token" else made.tokens
    room = plan.model.cfg.n_ctx - int(plan.sequences.lengths[row])
    return Continuation(tokens[:room], "context") if len(tokens) > room else Continuation(tokens, made.ended)


def _without_bad_rows(plan: ContinuationPlan, made: dict[int, Continuation]) -> tuple[Task, np.ndarray]:
    """The task without the texts that were not continued, and the rows that are left."""
    why = (
        f"the model ends it at once, with the stop token {stop_names(plan)}; stop at another token (--stop), or leave "
        "it out (--on-bad-row skip)"
    )
    task, rows = without_bad_rows(plan.task, plan.full, NO_ROOM, plan.on_bad_row)
    at_once = {i: why for i, row in enumerate(rows.tolist()) if row in made and not made[row].tokens}
    task, left = without_bad_rows(task, at_once, AT_ONCE, plan.on_bad_row)
    return task, rows[left]


def continued_task(
    plan: ContinuationPlan, made: dict[int, Continuation], texts: Mapping[int, str] | None = None
) -> Task:
    """The task with whole texts: of each example that was continued, prompt and continuation (no stop token).

    Without `texts`, the characters of each continuation, its tokens are decoded.

    Raises:
        DataError: a text was not continued, unless such rows are skipped; or none was.
    """
    task, rows = _without_bad_rows(plan, made)
    written = [made[row] for row in rows.tolist()]
    own = [prompt_of(plan, row)[plan.sequences.n_bos :] for row in rows.tolist()]
    ids = [prompt + one.tokens for prompt, one in zip(own, written, strict=True)]
    fields: dict[str, Any] = {"inputs": ids}
    if has_texts(task):
        whole = [
            str(text) + (written_text(plan, row, one) if texts is None else texts[row])
            for row, text, one in zip(rows.tolist(), task.inputs, written, strict=True)
        ]
        fields = {"inputs": whole, "token_ids": ids, "regions": _regions(task, whole)}
        fields["columns"] = {**task.columns, PROMPT_CHARACTERS: np.array([float(len(text)) for text in task.inputs])}
    fields["groups"] = _groups(task)
    info = {**task.info, GENERATE: _record(plan, made)}
    return replace(task, generated=np.array([len(one.tokens) for one in written]), info=info, **fields)


def _groups(task: Task) -> np.ndarray | None:
    """The groups; continuations of one prompt belong in one split, as equal texts do, and become a group."""
    keys = task.split_keys()
    given = len(task) if task.groups is None else len(np.unique(task.groups))
    return keys if len(np.unique(keys)) < given else task.groups


def written_text(plan: ContinuationPlan, row: int, made: Continuation) -> str:
    """The characters of an example's continuation, which has no stop token."""
    prompt = prompt_of(plan, row)[plan.sequences.n_bos :]
    return continuation_text(plan.model, prompt, Continuation(made.tokens, "max_new_tokens"))


def _regions(task: Task, texts: list[str]) -> list[list[Region]] | None:
    """The parts of each text; what the model wrote in a chat is the content of an assistant's message."""
    if task.regions is None or CHAT not in task.info:
        return task.regions
    return [
        [*own, Region("assistant", len(str(prompt)), len(text))]
        for own, prompt, text in zip(task.regions, task.inputs, texts, strict=True)
    ]


def _record(plan: ContinuationPlan, made: dict[int, Continuation]) -> dict[str, Any]:
    """The record of how the texts were continued, JSON-able."""
    kept = [one for one in made.values() if one.tokens]
    ended = Counter(one.ended for one in kept)
    names = ("generate", "temperature", "top_k", "top_p", "generate_seed", "stop_tokens")
    return {
        **{name: plan.identity[name] for name in names},
        "tokens": sum(len(one.tokens) for one in kept),
        "ended": {**dict.fromkeys(("stop token", "max_new_tokens", "context"), 0), **ended},
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


def folder_of(plan: ContinuationPlan, out: str | AnyPath | None, root: str | AnyPath = "runs") -> AnyPath:
    """Where the continuations of a plan are kept: in the store at `out`.

    Without `out` they have a folder under `root`, which stores of other points and layers share.
    """
    if out is not None:
        return as_path(out) / CONTINUATIONS
    return as_path(root) / CONTINUATIONS / folder_name([plan.model.name, plan.task.name], plan.identity)


def begin_folder(folder: AnyPath, plan: ContinuationPlan) -> Run:
    """Make the folder of these continuations, or find it; its batches.

    Raises:
        ResumeMismatch: it holds continuations with other settings, or lies in a store of texts that were not continued.
        StorageError: the disk refused, or files that are not of a store are there.
    """
    store = folder.parent
    if folder.name == CONTINUATIONS and not folder.exists():  # nothing is written into a store that cannot take them
        check_free(store)
        if is_there(store / PLAN):
            raise ResumeMismatch(f"{str(store)!a} was made with other settings (generate: nothing there); {ELSEWHERE}")

    def check(found: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        if not has_form(_Plan, found) or found["format"] != FORMAT:
            raise StorageError(f"{str(folder / PLAN)!a} is not a plan of continuations; {ELSEWHERE}")
        stored, wanted = found["identity"], ours["identity"]
        if fields := differing(stored, wanted):
            what = f"the texts in {str(folder)!a} were written with other settings"
            raise refuse_others(what, fields, stored, wanted, _EXPLAINED)

    return begin_run(folder, {"format": FORMAT, "identity": plan.identity}, "holds continuations of other texts", check)


def batch_on_disk(run: Run, number: int, rows: np.ndarray) -> list[Continuation] | None:
    """The continuations of a batch that is finished; None if it is not.

    Raises:
        StorageError: its file is damaged, or of other texts.
    """
    if not run.has(_piece(number)):
        return None

    def fits(body: Mapping[str, Any]) -> bool:
        return body["rows"] == rows.tolist() and len(body["tokens"]) == len(body["ended"]) == len(rows)

    body = run.read(_piece(number), _Batch, fits)
    return [Continuation(tokens, why) for tokens, why in zip(body["tokens"], body["ended"], strict=True)]


def write_batch(run: Run, number: int, rows: np.ndarray, made: list[Continuation]) -> None:
    """Put the continuations of a batch on disk, unless another writer was faster.

    Raises:
        StorageError: the disk refused.
    """
    run.write(_piece(number), {"rows": rows, "tokens": [x.tokens for x in made], "ended": [x.ended for x in made]})


def texts_written(folder: AnyPath) -> int:
    """How many texts of an interrupted run are on disk."""
    return sum(len(unseal(file)[0]["rows"]) for file in folder.glob("[0-9]*.json"))


def _piece(number: int) -> str:
    return f"{number:06d}"


# before it runs ---------------------------------------------------------------------------------------------------


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
