"""Estimate the time and memory of an extraction before it starts, from the plan and the model's shape.

FLOPs count every node of every batch, including those that fill it up, in the blocks that must run: the products with
weights (`models.accounting.token_flops`), and for a batch of B blocks of N nodes 4 B N^2 H K for scores and weighted
sum, masked or not. In the last block, tokens that are not read need their keys and values only. FLOPs are divided by
a rate that is measured now: one block of the model runs on part of one of the plan's batches, for a fraction of a
second. Work before the first block is timed in the same way, per node. Reading the points and writing the store are not
included.

Memory is the weights, the largest batch at its widest moment, and the values of the shards that are computed or on
their way to the disk; Python and torch need more on top. Points of pairs of tokens materialise their scores,
[B, H, N, N].
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probekit.activations.layout import row_bytes
from probekit.activations.plan.packing import Packing, filled_nodes
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.forward import batch_inputs, nodes_of_last_block, running
from probekit.activations.store.writer import IN_FLIGHT, IN_FLIGHT_BYTES
from probekit.models.accounting import attention_flops, block_width, key_value_products, token_flops
from probekit.models.base import LanguageModel
from probekit.models.families import shape_of
from probekit.models.shapes import StackShape, equal_blocks
from probekit.points import PAIR_POINTS
from probekit.text import metric

TIMED_FLOPS = {"cpu": 1.5e10}  # of the timed batch: a twentieth of a second at 300 GFLOPs a second; elsewhere all of it
REPEATS = 3
ENOUGH = 0.5  # seconds of timing after which no repeat begins


@dataclass(frozen=True)
class Estimate:
    """Predicted time and memory of an extraction.

    Attributes:
        flops: of all batches.
        flops_per_second: the measured rate.
        seconds: computing time.
        weights_bytes: of the weights, and of their copies where the type needs some.
        batch_bytes: of the largest batch at its widest moment.
        kept_bytes: of the activations that wait to be written.
    """

    flops: int
    flops_per_second: float
    seconds: float
    weights_bytes: int
    batch_bytes: int
    kept_bytes: int

    @property
    def memory_bytes(self) -> int:
        """The sum of the three."""
        return self.weights_bytes + self.batch_bytes + self.kept_bytes

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "memory_bytes": self.memory_bytes}


class StackWork(NamedTuple):
    """A stack of the model, its packed texts, and the number of its blocks that run."""

    stack: StackShape
    packing: Packing
    n_blocks: int


def estimate(plan: ExtractionPlan) -> Estimate:
    """Estimate the time and memory of the plan on its device; runs one block of the model for a moment."""
    model, works, batches, flops = plan.model, _works(plan), plan.batches, plan_flops(plan)
    before, rate = _measured(model, plan.device, works[0], batches)
    nodes = sum(filled_nodes(work.packing.sizes, batches) for work in works)
    has_pairs = any(point in PAIR_POINTS for point, _ in plan.places)
    # bfloat16 on a CPU is held a second time in oneDNN's layout (`layers.prepared`)
    copies = 2 if plan.device.type == "cpu" and model.dtype == torch.bfloat16 else 1
    example_bytes = row_bytes(plan.layout, plan.places, plan.widths, plan.dtype)
    shard_bytes = [int(example_bytes[plan.packing.rows_of(np.concatenate(shard))].sum()) for shard in plan.shards]
    largest = max(shard_bytes)
    return Estimate(
        flops=flops,
        flops_per_second=rate,
        seconds=before * nodes + flops / rate,
        weights_bytes=copies * sum(weight.nbytes for weight in model.parameters()),
        batch_bytes=max(
            _batch_bytes(work, batch, model.dtype.itemsize, has_pairs) for work in works for batch in batches
        ),
        # the largest shard as it is computed, and those on their way to the disk
        kept_bytes=largest + max(largest, min(sum(shard_bytes), IN_FLIGHT * largest, IN_FLIGHT_BYTES)),
    )


def plan_flops(plan: ExtractionPlan) -> int:
    """FLOPs of all batches of a plan, including the nodes that fill them up."""
    works = _works(plan)
    flops = sum(work.n_blocks * _batch_flops(work, batch) for work in works for batch in plan.batches)
    return flops - sum(_unread_flops(plan, works[-1], batch) for batch in plan.batches)


def describe_estimate(found: Estimate) -> str:
    """Two aligned lines in the format of the plan's."""
    parts = {"weights": found.weights_bytes, "a batch": found.batch_bytes, "kept": found.kept_bytes}
    memory = ", ".join(f"{metric(n)}B {name}" for name, n in parts.items())
    rate = f"{metric(found.flops)}FLOPs at {metric(found.flops_per_second)}FLOPs/s, measured now"
    return f"{'time':<9}about {duration(found.seconds)}: {rate}\n{'memory':<9}about {memory}; Python's own on top"


def _works(plan: ExtractionPlan) -> list[StackWork]:
    """The stack whose points are read, as far as needed; for a decoder, all of the encoder before it.

    Of a stack whose blocks differ, all count as blocks of the commonest kind.
    """
    stacks = []
    for stack in shape_of(plan.model.cfg).stacks:
        commonest = max(equal_blocks(stack), key=lambda part: part.n_layers)
        stacks.append(replace(commonest, n_layers=stack.n_layers))
    shape, sources = stacks[plan.stack == "decoder"], plan.packing.sources
    n_blocks = shape.n_layers if plan.stop_at_layer is None else plan.stop_at_layer
    before = [] if sources is None else [StackWork(stacks[0], sources, stacks[0].n_layers)]
    return [*before, StackWork(shape, plan.packing, n_blocks)]


def _batch_flops(work: StackWork, blocks: np.ndarray) -> int:
    """FLOPs of a batch in one block of the model."""
    stack, sources = work.stack, work.packing.sources
    B, N = len(blocks), int(work.packing.sizes[blocks].max())
    flops = N * sum(token_flops(stack).values()) + sum(attention_flops(stack, N, N).values())
    if sources is not None:  # cross-attention: queries and output of the nodes, keys and values of the sources
        S = int(sources.sizes[blocks].max())
        flops += 4 * stack.d_model * stack.n_heads * stack.d_head * (N + S)
        flops += sum(attention_flops(stack, N, S).values())
    return B * flops


def _unread_flops(plan: ExtractionPlan, work: StackWork, blocks: np.ndarray) -> int:
    """FLOPs of a batch that the last block leaves out: of nodes that are not read, all but what others need of them."""
    read = nodes_of_last_block(plan, work.packing.batch(blocks)) if work.n_blocks else None
    if read is None:
        return 0
    stack, sources, (B, R) = work.stack, work.packing.sources, read.positions.shape
    N, of_token = int(work.packing.sizes[blocks].max()), token_flops(stack)
    needed = sum(2 * each.d_in * each.d_out for each in key_value_products(stack)) + of_token["recurrence"]
    each = sum(of_token.values()) - needed + sum(attention_flops(stack, 1, N).values())
    if sources is not None:
        S = int(sources.sizes[blocks].max())
        each += 4 * stack.d_model * stack.n_heads * stack.d_head + sum(attention_flops(stack, 1, S).values())
    return B * (N - R) * each


def _measured(
    model: LanguageModel, device: torch.device, work: StackWork, batches: list[np.ndarray]
) -> tuple[float, float]:
    """Seconds per node before the first block, and FLOPs per second within a block."""
    blocks = batches[len(batches) // 2]
    if device.type in TIMED_FLOPS:  # on a GPU a part would time the launching of kernels
        blocks = blocks[: max(1, int(TIMED_FLOPS[device.type] * len(blocks) / _batch_flops(work, blocks)))]
    batch = work.packing.batch(blocks)
    forward: Callable[..., Tensor] = getattr(model, "encode", model)

    @torch.inference_mode()
    def run(n_blocks: int) -> float:
        start = time.perf_counter()
        tokens, packed = batch_inputs(model, batch)
        out = forward(tokens, stop_at_layer=n_blocks, **packed)
        out[0, 0, 0].item()  # waits for the device
        return time.perf_counter() - start

    with running(model, device):
        run(1)  # the first run is slower
        before, within = _median(lambda: run(0)), _median(lambda: run(1))
    block_seconds = max(within - before, within / 10)  # where noise is larger than the block
    return before / batch.tokens.numel(), _batch_flops(work, blocks) / block_seconds


def _median(timed: Callable[[], float]) -> float:
    """The median of a few runs; fewer if one takes long."""
    times = [timed()]
    while len(times) < REPEATS and sum(times) < ENOUGH:
        times.append(timed())
    return statistics.median(times)


def _batch_bytes(work: StackWork, blocks: np.ndarray, size: int, has_pairs: bool) -> int:
    """Bytes of a batch, with `size` for a number: its widest moment, its mask as bools and numbers, scores of pairs."""
    stack, B, N = work.stack, len(blocks), int(work.packing.sizes[blocks].max())
    pairs = 3 * stack.n_heads * size if has_pairs else 0
    return B * N * block_width(stack, N) * size + B * N * N * (1 + size + pairs)


def duration(seconds: float) -> str:
    """8.04 -> "8.0 s", 600 -> "10 min", 36_000 -> "10.0 h"."""
    if seconds < 100:
        return f"{max(seconds, 0.1):.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"
