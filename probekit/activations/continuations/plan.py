"""Plan how a model continues the texts of a task: which prompts, in which batches, to which end.

Prompts of similar lengths are continued together, the longest first. A batch holds as many as its keys and values have
room for, so that memory does not grow with the number of texts.

Axes: N examples.
"""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from probekit.activations.plan.build import check_planned
from probekit.activations.plan.identity import identity_of_model
from probekit.activations.plan.prepare import rendered_task
from probekit.activations.plan.reading.select_tokens import check_characters
from probekit.activations.plan.token_ids import Sequences, has_texts, tokenise_inputs
from probekit.errors import UsageError
from probekit.interventions import Edits, check_edits, record_of_edits
from probekit.models.accounting import cache_values
from probekit.models.base import LanguageModel
from probekit.models.families import has_shape, shape_of
from probekit.models.generation import stop_ids
from probekit.options import ExtractArguments, Sampling
from probekit.options.generate import sampling_of
from probekit.options.task import OnBadRow
from probekit.selections import Selection
from probekit.tasks.base import Task, without_bad_rows

# Keys and values of a batch; their buffers double when they are full, and may take twice as much.
CACHE_BYTES = {"cpu": 512 << 20}
CACHE_BYTES_ELSEWHERE = 2 << 30  # a guess, not measured
TOKENS_OF_TEXT = 128  # among which the memory of a recurrent layer, of one size for any text, is shared out; a guess
# Texts of a batch. A step costs a text less the more there are. CPU time of one core in ms, for 8, 32, 64, 128 and 256
# texts: 0.43, 0.15, 0.11, 0.08, 0.07 with 4 layers of width 64; GPT-2 small 14.8, 6.4, 5.2 for 8, 32, 64.
MOST_ROWS = {"cpu": 128}
MOST_ROWS_ELSEWHERE = 256  # a guess, not measured
FORMAT = "probekit continuations 1"
NO_ROOM, AT_ONCE = "full context", "ended at once"  # why texts are not continued


@dataclass(frozen=True, eq=False)
class ContinuationPlan:
    """The continuations of a task's texts, ready to be written. Data only.

    Attributes:
        model: the model that writes.
        task: the examples, their chats rendered.
        sequences: the prompts' token ids, with their context tokens.
        full: the examples that fill the context already, and are left out, with the reason.
        most: tokens of each continuation at most.
        sampling: how the next token is chosen.
        stops: the ids that end a continuation.
        edits: what the model writes under; None for none.
        device: where the model runs.
        batch_tokens: prompts and continuations of a batch have at most so many tokens, unless one text has more.
        batches: the examples of each batch, in the order of work.
        on_bad_row: what happens to texts that the model does not continue: "error" or "skip".
        identity: what decides the tokens, JSON-able.
    """

    model: LanguageModel = field(repr=False)
    task: Task = field(repr=False)
    sequences: Sequences = field(repr=False)
    full: dict[int, str] = field(repr=False)
    most: int
    sampling: Sampling
    stops: frozenset[int]
    edits: Edits | None = field(repr=False)
    device: torch.device
    batch_tokens: int
    batches: list[np.ndarray] = field(repr=False)
    on_bad_row: OnBadRow
    identity: dict[str, Any] = field(repr=False)


def plan_continuations(model: LanguageModel, task: Task, options: ExtractArguments) -> ContinuationPlan:
    """Plan the continuations of each text of the task, with the options of `extract`.

    Raises:
        UsageError: a model that cannot continue texts, points that cannot be kept, or labels, words or edits that do
            not go with continuations.
        DataError: a text that fills the context, unless such rows are skipped; inputs that the model cannot take.
    """
    if options.generate is None:
        raise UsageError("how many tokens the model may write is not said; give generate=64 (--generate 64)")
    stack, device = check_planned(model, options, len(task))
    _check_model(model, stack)
    _check_task(model, task, options)
    task = rendered_task(model, task, options if task.chats is None else replace(options, add_generation_prompt=True))
    _check_selections(task, options)
    sequences = tokenise_inputs(model, task, options.bos, "cut")
    full = _full(model, task, sequences, options)
    rows = np.delete(np.arange(len(task)), list(full))
    stops = stop_ids(model, options.stop_tokens)
    batch_tokens = _batch_tokens(model, options, device)
    lengths = sequences.lengths + options.generate
    batches = _batches(rows, lengths, batch_tokens, MOST_ROWS.get(device.type, MOST_ROWS_ELSEWHERE))
    return ContinuationPlan(
        model=model,
        task=task,
        sequences=sequences,
        full=full,
        most=options.generate,
        sampling=sampling_of(options),
        stops=stops,
        edits=options.edits,
        device=device,
        batch_tokens=batch_tokens,
        batches=batches,
        on_bad_row=options.on_bad_row,
        identity=_identity(model, options, sequences, stops, batch_tokens, device),
    )


def _identity(
    model: LanguageModel,
    options: ExtractArguments,
    prompts: Sequences,
    stops: frozenset[int],
    batch_tokens: int,
    device: torch.device,
) -> dict[str, Any]:
    """What decides every token, JSON-able; of the task it is the prompts alone, which may get other labels."""
    chosen = ("generate", "temperature", "top_k", "top_p", "generate_seed")
    return {
        **identity_of_model(model),
        "device": device.type,
        "prompts": _fingerprint(prompts),
        "texts": len(prompts),
        **{name: getattr(options, name) for name in chosen},
        "stop_tokens": sorted(stops),
        "batch_tokens": batch_tokens,
        **({} if options.edits is None else {"edits": record_of_edits(model, options.edits)}),
    }


def of_continued(options: ExtractArguments) -> ExtractArguments:
    """The options for a task whose texts the model has continued: its chats are texts already."""
    return replace(options, chat_template=None, add_generation_prompt=False)


def _check_model(model: LanguageModel, stack: str) -> None:
    if stack:
        raise UsageError(
            f"generate continues the texts of decoders, and {model.name} writes a target for each source; write them "
            "with model.generate (probekit generate), and give them as Task(targets=...)"
        )
    if not model.causal:
        raise UsageError(
            f"{model.name} reads texts in both directions and cannot continue them; leave out generate, or take a "
            "decoder, such as gpt2"
        )


def _check_task(model: LanguageModel, task: Task, options: ExtractArguments) -> None:
    if task.generated is not None:
        raise UsageError(f"the texts of {task.name!a} have continuations already; leave out generate")
    if task.spans is not None:
        raise UsageError(f"the examples of {task.name!a} are words of texts; give a task of texts to be continued")
    if task.token_labels:
        raise UsageError(
            f"{task.name!a} has labels of tokens, and what the model writes has none; leave out generate, or the labels"
        )
    some = [] if options.edits is None else [edit for _, edit in check_edits(model, options.edits)]
    if any(edit.positions is not None for edit in some):
        raise UsageError(
            "positions of an edit count in the prompt while the model writes, and in the whole text afterwards; edit "
            "all tokens, or write with model.generate first"
        )
    if options.edits is not None and options.edit_positions == "read":
        raise UsageError(
            "the tokens that are read are not known while the model writes; edit all tokens (edit_positions='all')"
        )


def _check_selections(task: Task, options: ExtractArguments) -> None:
    """Refuse, before the model writes, selections that no text can have."""
    position: Any = Selection.of(task.position) if options.position is None else options.position
    for one in position if isinstance(position, list) else [position]:
        check_characters(one, has_texts(task), task.regions)


def _full(model: LanguageModel, task: Task, sequences: Sequences, options: ExtractArguments) -> dict[int, str]:
    """The examples that leave no room for a token, and what to do about them."""
    n_ctx = model.cfg.n_ctx
    why = (
        f"it fills the context of {n_ctx:,} tokens, and the model can write nothing after it; shorten it, or leave it "
        "out (--on-bad-row skip)"
    )
    full = dict.fromkeys(np.flatnonzero(sequences.lengths >= n_ctx).tolist(), why)
    without_bad_rows(task, full, NO_ROOM, options.on_bad_row)  # raises the error
    return full


def _batch_tokens(model: LanguageModel, options: ExtractArguments, device: torch.device) -> int:
    """Tokens of a batch whose keys and values fit, at most those that the options allow."""
    most = int(CACHE_BYTES.get(device.type, CACHE_BYTES_ELSEWHERE) / _cache_bytes(model))
    return max(1, most if options.batch_tokens is None else min(most, options.batch_tokens))


def _cache_bytes(model: LanguageModel) -> float:
    """Bytes of a token's keys and values in all layers; its share of a memory is that in a text of TOKENS_OF_TEXT."""
    size = model.dtype.itemsize
    if not has_shape(model.cfg):  # a model of no family: as if no heads shared keys
        return 2 * model.cfg.n_layers * model.cfg.d_model * size
    return cache_values(shape_of(model.cfg), TOKENS_OF_TEXT) / TOKENS_OF_TEXT * size


def _batches(rows: np.ndarray, lengths: np.ndarray, most_tokens: int, most_rows: int) -> list[np.ndarray]:
    """The rows in batches of similar lengths, the longest first."""
    order = rows[np.argsort(-lengths[rows], kind="stable")]
    batches, start = [], 0
    while start < len(order):
        size = min(most_rows, max(1, most_tokens // int(lengths[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches


def _fingerprint(sequences: Sequences) -> str:
    """The sha256 of the token ids of all prompts; it changes with any of them."""
    digest = hashlib.sha256(sequences.offsets.astype("<i8").tobytes())
    digest.update(sequences.flat.astype("<i4").tobytes())
    return f"sha256:{digest.hexdigest()}"


def stop_names(plan: ContinuationPlan) -> str:
    """The tokens that end a continuation; "" for none."""
    tokenizer, stops = plan.model.tokenizer, sorted(plan.stops)
    return " or ".join(map(ascii, stops if tokenizer is None else tokenizer.tokens(stops)))
