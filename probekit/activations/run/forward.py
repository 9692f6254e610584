"""A plan's shards, computed: packed batches through the model, and every value looked at before it is kept.

Axes: N examples, R rows of a place, D their width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import DTYPES
from probekit.activations.plan.packing import Batch, cut_batches, pack
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.gather import masked_pairs, pooling
from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.layers import prepared
from probekit.points import Place, base_name, place_name

Advance = Callable[[np.ndarray, int], None]  # the rows that are done, and the bytes that they came to


@contextmanager
def running(plan: ExtractionPlan) -> Iterator[None]:
    """The model on the plan's device, its weights prepared; as it was and where it was afterwards."""
    home = plan.model.device
    try:
        plan.model.to(plan.device)  # inside: where the memory ends half-way, all of it goes back
        with prepared(plan.model):
            yield
    finally:
        plan.model.to(home)


def alone(plan: ExtractionPlan) -> ExtractionPlan:
    """The plan with whole texts instead of blocks, those of one length together: what hooks at [B, L] expect.

    So it is on both sides of an encoder-decoder: nothing is filled up, and `x[:, -1]` is a last token.
    """
    packing = pack(plan.sequences, 1, share=False, causal=plan.causal, sources=plan.sources)
    of_sources = np.zeros_like(packing.sizes) if packing.sources is None else packing.sources.sizes
    shards = []
    for length in np.unique(of_sources):
        texts = np.flatnonzero(of_sources == length)
        shards += [[texts[some]] for some in cut_batches(packing.sizes[texts], plan.batch_tokens, filled=1)]
    return replace(plan, packing=packing, shards=shards, share=False, block_nodes=1)


def shard_rows(plan: ExtractionPlan, number: int) -> np.ndarray:
    """The examples of a shard, in its order."""
    return np.concatenate([plan.packing.rows_of(blocks) for blocks in plan.shards[number]])


@torch.inference_mode()
def compute_shard(plan: ExtractionPlan, number: int, advance: Advance | None = None) -> dict[Place, Tensor]:
    """Every place of a shard's rows, [R, D] of the type that is kept, on the plan's device.

    Raises:
        DataError: NaN, infinity, or a value that the kept type cannot hold.
    """
    parts, sound = [], []
    for blocks in plan.shards[number]:
        batch = plan.packing.batch(blocks)
        values = run_batch(plan, batch)
        parts.append({place: x.to(DTYPES[plan.dtype]) for place, x in values.items()})
        sound.append(torch.stack([rows.all() for rows in _sound_rows(plan, batch, parts[-1]).values()]).all())
        if advance:
            advance(batch.rows, sum(x.nbytes for x in parts[-1].values()))
    if not torch.stack(sound).all():  # asked once a shard: every question makes a GPU wait
        raise _not_sound(plan, number)
    return {place: torch.cat([part[place] for part in parts]) for place in plan.places}


def run_batch(plan: ExtractionPlan, batch: Batch) -> dict[Place, Tensor]:
    """Every place of the plan for the rows of a batch: [R, D], of the type in which they were computed."""
    pooled: dict[str, Tensor] = {}
    pools = dict(zip(plan.names, pooling(plan, batch), strict=True))

    def keep(x: Tensor, hook: HookPoint) -> None:
        pooled[hook.name] = pools[hook.name](x)

    with plan.model.hooks([(plan.names, keep)]):
        _forward(plan, batch)
    assert pooled.keys() == set(plan.names), f"silent: {set(plan.names) - pooled.keys()}"
    return {place: pooled[name] for place, name in zip(plan.places, plan.names, strict=True)}


def _forward(plan: ExtractionPlan, batch: Batch) -> None:
    """The batch through the model, or through the stack that is read, as far as is needed."""
    model: Any = plan.model
    tokens, packed = _inputs(plan, batch)
    if plan.stack == "encoder":
        model.encode(tokens, **packed, stop_at_layer=plan.stop_at_layer)
        return
    packed |= {"stop_at_layer": plan.stop_at_layer, "return_logits": False}
    if batch.source is None:
        model(tokens, **packed)
        return
    source, of_source = _inputs(plan, batch.source)
    memory = model.encode(source, **of_source)
    model.decode(tokens, memory, cross_mask=batch.cross_mask(plan.device), **packed)


def _inputs(plan: ExtractionPlan, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
    mask = batch.mask(plan.device)
    return batch.tokens.to(plan.device), {"position_ids": batch.position_ids.to(plan.device), "attention_mask": mask}


def _sound_rows(plan: ExtractionPlan, batch: Batch, kept: dict[Place, Tensor]) -> dict[Place, Tensor]:
    """Of each row of each place, whether all its values are numbers; scores that the mask hides are -inf."""
    sound = {place: x.isfinite().all(1) for place, x in kept.items()}
    for place, x in kept.items():
        if base_name(place[0]) == "attn_scores" and place[1] is not None:
            sound[place] |= masked_pairs(plan, batch, place[1]) & (x == -torch.inf).all(1)
    return sound


def _not_sound(plan: ExtractionPlan, number: int) -> DataError:
    """The error for the first row of the task that cannot be kept, where some row of this shard cannot.

    Rows that come sooner may be in shards that did not run yet, so those run now, in the order of the task. Each is a
    block of its own: in a common one NaN and infinity spread, for 0 times infinity is NaN.
    """
    rows = np.sort(np.concatenate([shard_rows(plan, later) for later in range(number, len(plan.shards))]))
    size = max(1, plan.batch_tokens // int(plan.sequences.lengths.max()))
    for i in range(0, len(rows), size):
        some = rows[i : i + size]
        sources = None if plan.sources is None else plan.sources.subset(some)
        packing = pack(plan.packing.sequences.subset(some), 1, share=False, causal=plan.causal, sources=sources)
        batch = packing.batch(np.arange(len(some)))
        batch = replace(batch, rows=some[batch.rows])
        if found := _first_bad(plan, batch, run_batch(plan, batch)):
            return _why(plan, *found)
    return DataError("NaN or infinity in the activations; check the model's weights, or compute in float32")


def _first_bad(plan: ExtractionPlan, batch: Batch, values: dict[Place, Tensor]) -> tuple[int, Place, Tensor] | None:
    """The first example of a batch with a row that cannot be kept; its first such place, and the rows there."""
    sound = _sound_rows(plan, batch, {place: x.to(DTYPES[plan.dtype]) for place, x in values.items()})
    counts = {place: plan.layout.counts(place)[batch.rows].tolist() for place in values}
    texts = {
        place: list(zip(values[place].split(n), sound[place].split(n), strict=True)) for place, n in counts.items()
    }
    for i in np.argsort(batch.rows):
        for place, of_text in texts.items():
            x, fine = of_text[i]
            if not fine.all():
                return int(batch.rows[i]), place, x[~fine]
    return None


def _why(plan: ExtractionPlan, row: int, place: Place, bad: Tensor) -> DataError:
    """What is wrong with an example at a place; `bad` are its rows there that cannot be kept, [R, D]."""
    name, example = place_name(place), plan.task.ids[row]
    if bad.isfinite().all():
        return DataError(
            f"{name} of example {example!a} is {bad.abs().max():.3g}, more than {plan.dtype} holds "
            f"({torch.finfo(DTYPES[plan.dtype]).max:.3g}); keep float32 or bfloat16"
        )
    what = "NaN" if bad.isnan().any() else "infinity"
    return DataError(
        f"{what} in the activations at {name}, first in example {example!a}; "
        "check the model's weights, or compute in float32"
    )
