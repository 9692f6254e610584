"""The one shard loop of every extraction: in memory, to a store, or of statistics only.

What does not fit in memory is refused before anything is computed; a value that cannot be kept (NaN, infinity, an
overflow of the kept type) is refused after its shard, with the first example of the task that has one.

Axes: N examples, R rows of a place, D their width.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from probekit.activations.layout import row_bytes
from probekit.activations.plan.identity import record_of_run
from probekit.activations.plan.packing import PackedBatch, cut_batches, pack
from probekit.activations.plan.plan import ExtractionPlan, shard_rows
from probekit.activations.run.device_copy import Shard, on_host
from probekit.activations.run.forward import compute_batch, running
from probekit.activations.run.gather import masked_pairs
from probekit.activations.store.writer import StoreWriter
from probekit.activations.sums.statistics import statistics_bytes, used_splits
from probekit.activations.sums.tally import Tally, check_countable
from probekit.errors import DataError, UsageError
from probekit.files.scratch import own_memory
from probekit.machine.devices import DTYPES, free_bytes
from probekit.machine.progress import progress_bar
from probekit.models.base import LanguageModel
from probekit.points import Place, base_name
from probekit.text import counted

MAPPED_BYTES = 1 << 20  # of a place in a shard

BatchDone = Callable[[np.ndarray, int], None]  # takes the rows that are done, and the bytes that were computed for them


def run_shards(
    plan: ExtractionPlan,
    progress: bool | None,
    writer: StoreWriter | None = None,
    tally: Tally | None = None,
    keep: bool = True,
    numbers: Sequence[int] | None = None,
) -> Generator[Shard, None, None]:
    """Compute every shard that is missing on disk, and count every shard on the way.

    Args:
        plan: the plan.
        progress: show progress on stderr: None on a terminal and in a notebook, True always, False never.
        writer: the store; shards that it has are read if they must be counted, and not computed.
        tally: adds up the sums of every shard.
        keep: whether shards are wanted at all; False computes only those that the tally has not counted.
        numbers: the shards of a part, ascending, which are the only ones then; None for all.

    Yields:
        (number, rows, values [R, D] on the plan's device) of each computed shard; none without `keep`.

    Raises:
        DataError: NaN, infinity, or a value that the kept type cannot hold.
    """
    own = range(len(plan.shards)) if numbers is None else numbers
    n_texts = len(plan.task) if numbers is None else sum(len(shard_rows(plan, number)) for number in own)
    with running(plan.model, plan.device), extract_bar(plan, n_texts, progress) as advance:
        for at, number in enumerate(own):
            rows = shard_rows(plan, number)
            uncounted = tally is not None and tally.wants(at)
            on_disk = writer is not None and (keep or uncounted) and writer.has(number, rows)
            values: dict[Place, Tensor] = {}
            if not on_disk and (keep or uncounted):
                values = compute_shard(plan, number, advance, own[at:])
            else:
                values = writer.read(number) if writer is not None and uncounted else {}
                advance(rows, 0)
            if tally is not None:
                tally.add(at, rows, values)
            if not on_disk and keep:
                yield number, rows, values


def compute_in_memory(plan: ExtractionPlan, progress: bool | None) -> tuple[ExtractionPlan, dict[Place, Tensor]]:
    """Every place, [R, D] in the order of the task, on the plan's device; and the plan that ran.

    With hooks on the model, that is the plan without blocks, see `unpacked`.

    Raises:
        UsageError: the activations do not fit in memory.
        DataError: NaN, infinity, or a value that the kept type cannot hold.
    """
    layout, n_places = plan.layout, counted(len(plan.places), "place")
    _check_fits(
        int(row_bytes(layout, plan.places, plan.widths, plan.dtype).sum()),
        plan.device,
        f"activations ({counted(len(layout.lengths), 'text')} x {n_places} x {_distinct(plan.widths)}, {plan.dtype})",
        "write them to a store (out=PATH), or keep fewer layers or a smaller type",
    )
    if hooked_points(plan.model):
        plan = unpacked(plan)
        layout = plan.layout
    tensors = {
        place: torch.empty(int(layout.counts(place).sum()), width, dtype=DTYPES[plan.dtype], device=plan.device)
        for place, width in zip(plan.places, plan.widths, strict=True)
    }
    with closing(run_shards(plan, progress)) as shards:
        for _, rows, values in shards:
            for place, x in values.items():
                tensors[place][torch.from_numpy(layout.index(place, rows)).to(plan.device)] = x
    return plan, tensors


def check_sums(plan: ExtractionPlan) -> None:
    """Check, before anything is written, that statistics can be made of a plan and fit in memory.

    Raises:
        UsageError: several positions, attention, or a regression; more than fits, with the arithmetic.
        DataError: labels out of range.
    """
    check_countable(plan)
    _check_fits(
        statistics_bytes(plan.task, plan.widths),
        plan.device if plan.device.type == "cuda" else torch.device("cpu"),
        f"statistics ({len(plan.widths)} places x {len(used_splits(plan.task))} splits x {_distinct(plan.widths)} "
        "squared, float64)",
        "take fewer layers or narrower points",
    )


def _check_fits(n_bytes: int, device: torch.device, what: str, advice: str) -> None:
    free = free_bytes(device)
    if free is not None and n_bytes > free:
        raise UsageError(
            f"{n_bytes / 1e9:,.1f} GB of {what} do not fit the {free / 1e9:,.1f} GB that are free on {device}; {advice}"
        )


def _distinct(widths: list[int]) -> str:
    return "/".join(map(str, dict.fromkeys(widths)))


def write_missing(
    plan: ExtractionPlan,
    progress: bool | None,
    writer: StoreWriter,
    tally: Tally | None = None,
    keep: bool = True,
    numbers: Sequence[int] | None = None,
) -> int:
    """Write every shard that is missing on disk, and finish the tally; arguments and errors as of `run_shards`.

    Returns:
        How many shards this run computed and was the first to write.
    """
    written: list[Future[bool]] = []
    with writer, closing(run_shards(plan, progress, writer, tally, keep, numbers)) as shards:
        for number, rows, tensors in on_host(shards):
            written.append(writer.write(number, rows, tensors))
            del tensors  # so that memory does not hold it while the next one is computed
    if tally is not None:
        tally.finish(record_of_run(plan))
    return sum(one.result() for one in written)


@torch.inference_mode()
def compute_shard(
    plan: ExtractionPlan, number: int, advance: BatchDone | None = None, later: Sequence[int] | None = None
) -> dict[Place, Tensor]:
    """Every place of a shard's rows, [R, D] of the kept type, on the plan's device.

    Args:
        plan: the plan.
        number: of the shard.
        advance: called after each batch.
        later: the shard and those that would be computed after it, among which an error finds the first example that
            cannot be kept; None for all later ones.

    Raises:
        DataError: NaN, infinity, or a value that the kept type cannot hold.
    """
    shard, sound = shard_rows(plan, number), []
    values: dict[Place, Tensor] = {}
    done = dict.fromkeys(plan.places, 0)
    for blocks in plan.shards[number]:
        batch = plan.packing.batch(blocks)
        kept = {place: x.to(DTYPES[plan.dtype]) for place, x in compute_batch(plan, batch).items()}
        for place, x in kept.items():
            if place not in values:  # batches fill them in turn, so that memory holds them once
                values[place] = empty_rows(x, int(plan.layout.counts(place)[shard].sum()))
            values[place][done[place] : done[place] + len(x)] = x
            done[place] += len(x)
        rows = _sound_rows(plan, batch, kept)
        sound.append(torch.stack([of_place.all() for of_place in rows.values()]).all())
        if advance:
            advance(batch.rows, sum(x.nbytes for x in kept.values()))
    if not torch.stack(sound).all():  # looked at once per shard: each look makes a GPU wait
        others = range(number, len(plan.shards)) if later is None else later
        raise _unsound_error(plan, np.concatenate([shard_rows(plan, other) for other in others]))
    return values


def _sound_rows(plan: ExtractionPlan, batch: PackedBatch, kept: Mapping[Place, Tensor]) -> dict[Place, Tensor]:
    """For each row of each place, True if all of its values are finite, bool [R].

    Attention scores that the mask hides are -inf and count as sound.
    """
    sound = {place: x.isfinite().all(1) for place, x in kept.items()}
    for place, x in kept.items():
        if base_name(place.point) == "attn_scores" and place.layer is not None:
            causal = plan.packing.causal or plan.model.causal  # texts that are not packed share no prefix in any case
            masked = masked_pairs(batch, causal, plan.model.window_of(place.layer), x.device)
            sound[place] |= masked & (x == -torch.inf).all(1)
    return sound


def _unsound_error(plan: ExtractionPlan, rows: np.ndarray) -> DataError:
    """The error that names the first example of the task among `rows` that cannot be kept.

    The examples are computed again in the order of the task, because an earlier one may be in a shard that did not run
    yet. Each is a block by itself: within a block NaN and infinity spread, because 0 times infinity is NaN.
    """
    rows = np.sort(rows)
    size = max(1, plan.batch_tokens // int(plan.sequences.lengths.max()))
    for i in range(0, len(rows), size):
        some = rows[i : i + size]
        sources = None if plan.sources is None else plan.sources.subset(some)
        packing = pack(plan.packing.sequences.subset(some), 1, share=False, causal=plan.packing.causal, sources=sources)
        batch = packing.batch(np.arange(len(some)))
        batch = replace(batch, rows=some[batch.rows])
        if error := _first_error(plan, batch):
            return error
    return DataError("NaN or infinity in the activations; check the model's weights, or compute in float32")


def _first_error(plan: ExtractionPlan, batch: PackedBatch) -> DataError | None:
    """The error for the first example of a batch with values that cannot be kept, at its first such place."""
    values = compute_batch(plan, batch)
    sound = _sound_rows(plan, batch, {place: x.to(DTYPES[plan.dtype]) for place, x in values.items()})
    rows_of_text = {}
    for place, x in values.items():
        counts = plan.layout.counts(place)[batch.rows].tolist()
        rows_of_text[place] = list(zip(x.split(counts), sound[place].split(counts), strict=True))
    for i in np.argsort(batch.rows):
        for place, texts in rows_of_text.items():
            x, is_sound = texts[i]
            if not is_sound.all():
                return _unsound(place, plan.task.ids[batch.rows[i]], x[~is_sound], plan)
    return None


def _unsound(place: Place, example: str, bad_RD: Tensor, plan: ExtractionPlan) -> DataError:
    if bad_RD.isfinite().all():
        return DataError(
            f"{place} of example {example!a} is {bad_RD.abs().max():.3g}, more than {plan.dtype} holds "
            f"({torch.finfo(DTYPES[plan.dtype]).max:.3g}); keep float32 or bfloat16"
        )
    kind = "NaN" if bad_RD.isnan().any() else "infinity"
    suspect = "the model's weights" if plan.edits is None else "the edits"
    return DataError(
        f"{kind} in the activations at {place}, first in example {example!a}; check {suspect}, or compute in float32"
    )


def empty_rows(x: Tensor, n: int) -> Tensor:
    """A tensor [n, D] for n rows like those of x, whose memory goes back to the system as soon as it is let go."""
    n_bytes = n * x.shape[1] * x.element_size()
    if x.device.type != "cpu" or n_bytes < MAPPED_BYTES:
        return x.new_empty((n, x.shape[1]))
    return torch.frombuffer(own_memory(n_bytes), dtype=x.dtype).view(n, x.shape[1])


def hooked_points(model: LanguageModel) -> list[str]:
    """Full names of the points with a hook on them."""
    return [name for name, point in model.points.items() if point.hooked]


def refuse_hooks(model: LanguageModel) -> None:
    """Raise a UsageError if the model has hooks, which a store cannot record."""
    if hooked := hooked_points(model):
        more = f" and {len(hooked) - 1} more" if len(hooked) > 1 else ""
        raise UsageError(
            f"the model is hooked at {hooked[0]}{more}, and a store cannot record hooks; "
            "extract outside the hooks, give edits as extract(edits=...), or keep the activations in memory (out=None)"
        )


def unpacked(plan: ExtractionPlan) -> ExtractionPlan:
    """The plan with batches of texts of one length instead of blocks, as hooks that expect [B, L] need them.

    For an encoder-decoder that holds for sources and targets: nothing is filled up, and `x[:, -1]` is a last token.
    """
    packing = pack(plan.sequences, 1, share=False, causal=plan.packing.causal, sources=plan.sources)
    of_sources = np.zeros_like(packing.sizes) if packing.sources is None else packing.sources.sizes
    shards = []
    for length in np.unique(of_sources):
        texts = np.flatnonzero(of_sources == length)
        shards += [[texts[some]] for some in cut_batches(packing.sizes[texts], plan.batch_tokens, filled=1)]
    return replace(plan, packing=packing, shards=shards, share=False, block_nodes=1)


@contextmanager
def extract_bar(plan: ExtractionPlan, n_texts: int, show: bool | None) -> Iterator[BatchDone]:
    """A bar on stderr: texts done and time left, tokens per second, megabytes so far.

    Args:
        plan: whose texts are counted.
        n_texts: texts that will be done.
        show: None shows the bar on a terminal only.
    """
    start, tokens, n_bytes = time.monotonic(), 0, 0
    with progress_bar("extract", "texts", n_texts, show) as bar:

        def advance(rows: np.ndarray, computed_bytes: int) -> None:
            nonlocal tokens, n_bytes
            note = ""
            if computed_bytes:
                tokens, n_bytes = tokens + int(plan.sequences.lengths[rows].sum()), n_bytes + computed_bytes
                rate = tokens / (time.monotonic() - start)
                note = f"{rate:,.0f} tokens/s, {n_bytes / 1e6:,.0f} MB"
            bar.advance(len(rows), note)

        yield advance
