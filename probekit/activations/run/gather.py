"""Gather the rows to keep of a batch at one point, on the device where the tensor arises.

Axes: B blocks of a batch, N nodes of a block (query), M nodes (key), H heads, R rows to keep, D their width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from probekit.activations.layout import Layout
from probekit.activations.plan.packing import PackedBatch
from probekit.activations.plan.reading.read_positions import Reading
from probekit.activations.plan.token_ids import without_context
from probekit.points import PAIR_POINTS, Place

Pool = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class ReadNodes:
    """The nodes of a batch that are read, where they are few.

    Attributes:
        positions: of each block, as indices into [N], filled up with its first node: int64 [B, R].
        slots: for each node of [B * N], how many nodes of its block are read before it: its index into [R], if it is.
    """

    positions: Tensor
    slots: np.ndarray


def nodes_to_read(batch: PackedBatch, reading: Reading, layout: Layout) -> ReadNodes | None:
    """The nodes that are read; None if in some block they are more than a half, as no time would be saved."""
    is_read = np.zeros(tuple(batch.tokens.shape), dtype=bool)
    for nodes, _ in nodes_of_positions(batch, reading, layout):
        is_read.reshape(-1)[nodes] = True
    counts = is_read.sum(1)
    if 2 * counts.max() > is_read.shape[1]:
        return None
    slots = is_read.cumsum(1) - is_read
    positions = np.zeros((len(counts), counts.max()), dtype=np.int64)
    b, n = np.nonzero(is_read)
    positions[b, slots[b, n]] = n
    return ReadNodes(torch.from_numpy(positions), slots.ravel())


def pools_of(
    places: list[Place],
    reading: Reading,
    layout: Layout,
    batch: PackedBatch,
    device: torch.device,
    read: ReadNodes | None = None,
) -> list[Pool]:
    """For each place, the function from its tensor to the rows of the batch's examples, [R, D], example by example.

    With `read`, tensors hold all nodes, [B, N, ...], or those that are read alone.
    """
    pairs = cache(partial(_pairs, batch, device))
    tokens = cache(partial(_tokens, reading, layout, batch, device, read))
    return [pairs() if point in PAIR_POINTS else tokens() for point, _ in places]


def _tokens(reading: Reading, layout: Layout, batch: PackedBatch, device: torch.device, read: ReadNodes | None) -> Pool:
    """The rows of the positions to read, [B, N, ...] -> [R, D]."""
    pools = []
    for nodes, counts in nodes_of_positions(batch, reading, layout):
        rows = _gather(batch, nodes, device, read)
        pools.append(rows if counts is None else _mean(rows, torch.from_numpy(counts).to(device)))
    return pools[0] if len(pools) == 1 else lambda x: torch.stack([pool(x) for pool in pools], 1).flatten(0, 1)


def nodes_of_positions(
    batch: PackedBatch, reading: Reading, layout: Layout
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """For each position the nodes that are read, and of how many each text's mean is taken; None without a mean."""
    starts = batch.starts
    for read in reading.reads:
        if read.index is None:
            nodes = without_context(batch.nodes, starts, starts + batch.lengths, layout.n_bos, layout.n_end)
            counts = batch.lengths - layout.n_bos - layout.n_end
        else:
            places, counts = read.of_rows(batch.rows)
            nodes = batch.nodes[np.repeat(starts, counts) + read.index[places]]
        yield nodes, counts if read.is_mean else None


def _gather(batch: PackedBatch, nodes: np.ndarray, device: torch.device, read: ReadNodes | None) -> Pool:
    """The rows of some nodes, [B, N, ...] or [B, R, ...] -> [rows, D]."""
    N = batch.tokens.shape[1]
    b, n = (torch.from_numpy(i).to(device) for i in divmod(nodes, N))
    slots = n if read is None else torch.from_numpy(read.slots[nodes]).to(device)
    return lambda x: x[b.to(x.device), (n if x.shape[1] == N else slots).to(x.device)].flatten(1)


def _mean(rows: Pool, lengths: Tensor) -> Pool:
    """The mean over some tokens of each text; in float32 at least."""

    def mean(x: Tensor) -> Tensor:
        own = rows(x)
        wide, there = own.to(torch.promote_types(own.dtype, torch.float32)), lengths.to(x.device)
        if x.device.type == "mps":  # where torch has no segment_reduce
            texts = torch.arange(len(there), device=x.device).repeat_interleave(there, output_size=len(wide))
            return wide.new_zeros(len(there), wide.shape[1]).index_add_(0, texts, wide) / there[:, None]
        return torch.segment_reduce(wide, "mean", lengths=there, axis=0, unsafe=True)  # unchecked: no GPU waits

    return mean


def _pairs(batch: PackedBatch, device: torch.device) -> Pool:
    """The entry of each pair of tokens of a text, [B, H, N, M] -> [R, H]; the query's tokens outermost."""
    N = batch.tokens.shape[1]
    query, key = _pair_nodes(batch)
    b, n, m = (torch.from_numpy(i).to(device) for i in (query // N, query % N, key % N))
    return lambda x: x[b.to(x.device), :, n.to(x.device), m.to(x.device)]


def masked_pairs(batch: PackedBatch, causal: bool, window: int | None, device: torch.device) -> Tensor:
    """For each pair of tokens of a text, True if the mask hides the key from the query, bool [R].

    Args:
        batch: the texts.
        causal: whether a token sees only the tokens before it.
        window: how many tokens a token sees on either side that it sees at all, itself included; None is no limit.
        device: of the result.
    """
    query, key = _pair_nodes(batch)
    depth = batch.position_ids.flatten().numpy()
    masked = (depth[query] < depth[key]) & causal
    if window is not None:
        masked |= np.abs(depth[query] - depth[key]) >= window
    return torch.from_numpy(masked).to(device)


def _pair_nodes(batch: PackedBatch) -> tuple[np.ndarray, np.ndarray]:
    """Query and key of each pair of tokens of each text, as indices into [B * N]."""
    paths = np.split(batch.nodes, batch.starts[1:])
    query = np.concatenate([np.repeat(path, len(path)) for path in paths])
    return query, np.concatenate([np.tile(path, len(path)) for path in paths])
