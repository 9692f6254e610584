"""The one shard loop of every extraction: in memory, to a store, or of statistics only.

Axes: N examples, R rows of a place, D their width.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from probekit.activations.plan.identity import record_of_run
from probekit.activations.plan.packing import cut_batches, pack
from probekit.activations.plan.plan import ExtractionPlan, shard_rows
from probekit.activations.run.device_copy import Shard, on_host
from probekit.activations.run.forward import compute_batch, running
from probekit.activations.run.soundness import sound_rows, unsound_error
from probekit.activations.store.writer import StoreWriter
from probekit.activations.sums.tally import Tally
from probekit.errors import UsageError
from probekit.files.scratch import own_memory
from probekit.machine.devices import DTYPES
from probekit.machine.progress import progress_bar
from probekit.models.base import LanguageModel
from probekit.points import Place

MAPPED_BYTES = 1 << 20  # of a place in a shard

Advance = Callable[[np.ndarray, int], None]  # takes the rows that are done, and the bytes that were computed for them


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
    plan: ExtractionPlan, number: int, advance: Advance | None = None, later: Sequence[int] | None = None
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
    filled, sound = FilledShard(plan, shard_rows(plan, number)), []
    for blocks in plan.shards[number]:
        batch = plan.packing.batch(blocks)
        kept = {place: x.to(DTYPES[plan.dtype]) for place, x in compute_batch(plan, batch).items()}
        filled.add(kept)
        rows = sound_rows(plan.model, batch, plan.packing.causal, kept)
        sound.append(torch.stack([of_place.all() for of_place in rows.values()]).all())
        if advance:
            advance(batch.rows, sum(x.nbytes for x in kept.values()))
    if not torch.stack(sound).all():  # looked at once per shard: each look makes a GPU wait
        others = range(number, len(plan.shards)) if later is None else later
        raise unsound_error(plan, np.concatenate([shard_rows(plan, other) for other in others]))
    return filled.values


class FilledShard:
    """The values of a shard, which batches fill in turn, so that memory holds them once.

    Args:
        plan: the plan.
        rows: the examples of the shard, in its order.
    """

    def __init__(self, plan: ExtractionPlan, rows: np.ndarray):
        self._n_rows = {place: int(plan.layout.counts(place)[rows].sum()) for place in plan.places}
        self._done = dict.fromkeys(plan.places, 0)
        self.values: dict[Place, Tensor] = {}

    def add(self, batch: dict[Place, Tensor]) -> None:
        """Put the values of the next batch behind those of the batches before."""
        for place, n in self._n_rows.items():
            x, done = batch[place], self._done[place]
            if place not in self.values:
                self.values[place] = empty_rows(x, n)
            self.values[place][done : done + len(x)] = x
            self._done[place] += len(x)


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
def extract_bar(plan: ExtractionPlan, n_texts: int, show: bool | None) -> Iterator[Advance]:
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
