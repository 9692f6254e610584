"""What an extraction will take, said before it starts: time and memory, from the plan and the model's shape.

FLOPs are those of every node of every batch (what fills batches up, too) in the blocks that must run: the products with
weights (`models.accounting.token_flops`), and for a batch of B blocks of N nodes 4 B N^2 H K for scores and weighted
sum, masked or not. They are divided by a rate that is measured here and now: one block of the model on a piece of one
of the plan's batches, a fraction of a second. What comes before the blocks is timed likewise and goes by nodes. Reading
the points and writing the store are left out.

Memory is the weights, the widest moment of the largest batch, and what is kept of the largest shard until it is
written; Python and torch come on top. Points of pairs of tokens need their scores whole, [B, H, N, N].
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import DTYPES
from probekit.activations.plan.packing import Packing, filled_nodes
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.forward import running, shard_rows
from probekit.models.accounting import attention_flops, block_width, token_flops
from probekit.models.families import shape_of
from probekit.models.shapes import StackShape
from probekit.points import PAIR_POINTS
from probekit.text import metric

PIECE_FLOPS = 1.5e10  # of the piece that is timed: a twentieth of a second where there are 300 GFLOPs a second
REPEATS = 3
ENOUGH = 0.5  # seconds of timing: no repeat begins later


@dataclass(frozen=True)
class Estimate:
    """About what an extraction takes.

    Attributes:
        flops: of all batches.
        flops_per_second: as measured.
        seconds: of computing.
        weights_bytes: of the weights, and of their copies where the type needs some.
        batch_bytes: of the largest batch's widest moment.
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
        """All of it."""
        return self.weights_bytes + self.batch_bytes + self.kept_bytes

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "memory_bytes": self.memory_bytes}

    def describe(self) -> str:
        """Two aligned lines, as the plan's."""
        parts = {"weights": self.weights_bytes, "a batch": self.batch_bytes, "kept": self.kept_bytes}
        memory = ", ".join(f"{metric(n)}B {name}" for name, n in parts.items())
        rate = f"{metric(self.flops)}FLOPs at {metric(self.flops_per_second)}FLOPs/s, measured now"
        return f"{'time':<9}about {_duration(self.seconds)}: {rate}\n{'memory':<9}about {memory}; Python's own on top"


class Part(NamedTuple):
    """Blocks of the model that run, and what they run on."""

    stack: StackShape
    packing: Packing
    n_blocks: int


def estimate(plan: ExtractionPlan) -> Estimate:
    """About the time and memory that the plan takes on its device; runs one block of the model for a moment."""
    parts = _parts(plan)
    flops = sum(part.n_blocks * _batch_flops(part, batch) for part in parts for batch in plan.batches)
    before, rate = _measured(plan, parts[0])
    nodes = sum(filled_nodes(part.packing.sizes, plan.batches) for part in parts)
    return Estimate(
        flops=flops,
        flops_per_second=rate,
        seconds=before * nodes + flops / rate,
        weights_bytes=_weights_bytes(plan),
        batch_bytes=max(_batch_bytes(plan, part, batch) for part in parts for batch in plan.batches),
        kept_bytes=_kept_bytes(plan),
    )


def _parts(plan: ExtractionPlan) -> list[Part]:
    """The stack that is read, as far as needed; for a decoder the whole encoder before it."""
    stacks = shape_of(plan.model.cfg).stacks
    stack = stacks[1] if plan.stack == "decoder" else stacks[0]
    read = Part(stack, plan.packing, stack.n_layers if plan.stop_at_layer is None else plan.stop_at_layer)
    sources = plan.packing.sources
    return [read] if sources is None else [Part(stacks[0], sources, stacks[0].n_layers), read]


def _batch_flops(part: Part, blocks: np.ndarray) -> int:
    """FLOPs of a batch in one block of the model."""
    stack, sources = part.stack, part.packing.sources
    B, N = len(blocks), int(part.packing.sizes[blocks].max())
    flops = N * sum(token_flops(stack).values()) + 2 * attention_flops(stack, N, N)
    if sources is not None:  # queries and output of the nodes, keys and values of the sources
        S = int(sources.sizes[blocks].max())
        flops += 4 * stack.d_model * stack.n_heads * stack.d_head * (N + S) + 2 * attention_flops(stack, N, S)
    return B * flops


def _measured(plan: ExtractionPlan, part: Part) -> tuple[float, float]:
    """Seconds of a node before the first block, and FLOPs a second within."""
    blocks = plan.batches[len(plan.batches) // 2]
    blocks = blocks[: max(1, int(PIECE_FLOPS * len(blocks) / _batch_flops(part, blocks)))]
    batch = part.packing.batch(blocks)
    forward: Callable[..., Tensor] = getattr(plan.model, "encode", plan.model)

    @torch.inference_mode()
    def run(n_blocks: int) -> float:
        start = time.perf_counter()
        inputs = {"position_ids": batch.position_ids.to(plan.device), "attention_mask": batch.mask(plan.device)}
        out = forward(batch.tokens.to(plan.device), stop_at_layer=n_blocks, **inputs)
        out[0, 0, 0].item()  # waits for the device
        return time.perf_counter() - start

    with running(plan):
        run(1)  # the first is slower
        before, within = _median(lambda: run(0)), _median(lambda: run(1))
    of_block = max(within - before, within / 10)  # where noise is larger than the block
    return before / batch.tokens.numel(), _batch_flops(part, blocks) / of_block


def _median(timed: Callable[[], float]) -> float:
    """Of a few times, fewer where one takes long."""
    times = [timed()]
    while len(times) < REPEATS and sum(times) < ENOUGH:
        times.append(timed())
    return statistics.median(times)


def _weights_bytes(plan: ExtractionPlan) -> int:
    """Of the weights; bfloat16 on a CPU stands in oneDNN's layout once more (`layers.prepared`)."""
    of_weights = sum(weight.nbytes for weight in plan.model.parameters())
    return of_weights * (2 if plan.device.type == "cpu" and plan.model.dtype == torch.bfloat16 else 1)


def _batch_bytes(plan: ExtractionPlan, part: Part, blocks: np.ndarray) -> int:
    """The widest moment of a batch; its mask, as bools and as numbers; and the scores of pairs, where they are read."""
    stack, B, N = part.stack, len(blocks), int(part.packing.sizes[blocks].max())
    size = plan.model.dtype.itemsize
    pairs = 3 * stack.n_heads * size if any(point in PAIR_POINTS for point, _ in plan.places) else 0
    return B * N * block_width(stack) * size + B * N * N * (1 + size + pairs)


def _kept_bytes(plan: ExtractionPlan) -> int:
    """Of the largest shard: as it was computed, and as it is written."""
    counts = [plan.layout.counts(place) * width for place, width in zip(plan.places, plan.widths, strict=True)]
    row_bytes = np.sum(counts, axis=0) * DTYPES[plan.dtype].itemsize
    return 2 * max(int(row_bytes[shard_rows(plan, number)].sum()) for number in range(len(plan.shards)))


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(seconds, 0.1):.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"
