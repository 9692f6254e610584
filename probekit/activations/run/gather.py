"""Gather the rows to keep of a batch at one point, on the device where the tensor arises.

Axes: B blocks of a batch, N nodes of a block (query), M nodes (key), H heads, R rows to keep, D their width.
"""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from probekit.activations.layout import Layout
from probekit.activations.plan.packing import PackedBatch
from probekit.activations.plan.read_positions import Reading
from probekit.activations.plan.token_ids import without_context
from probekit.points import PAIR_POINTS, Place

Pool = Callable[[Tensor], Tensor]


def pools_of(
    places: list[Place], reading: Reading, layout: Layout, batch: PackedBatch, device: torch.device
) -> list[Pool]:
    """For each place, the function from its tensor to the rows of the batch's examples, [R, D], example by example."""
    pairs, tokens = cache(partial(_pairs, batch, device)), cache(partial(_tokens, reading, layout, batch, device))
    return [pairs() if point in PAIR_POINTS else tokens() for point, _ in places]


def _tokens(reading: Reading, layout: Layout, batch: PackedBatch, device: torch.device) -> Pool:
    """The rows of the positions to read, [B, N, ...] -> [R, D]."""
    if layout.is_ragged:
        return _gather(batch, _own_nodes(batch, layout), device)
    pools = [
        _mean(batch, reading.words, layout, device)
        if index is None
        else _gather(batch, batch.nodes[batch.starts + index[batch.rows]], device)
        for index in reading.index
    ]
    return pools[0] if len(pools) == 1 else lambda x: torch.stack([pool(x) for pool in pools], 1).flatten(0, 1)


def _gather(batch: PackedBatch, nodes: np.ndarray, device: torch.device) -> Pool:
    """The rows of some nodes, [B, N, ...] -> [R, D]."""
    b, n = (torch.from_numpy(i).to(device) for i in divmod(nodes, batch.tokens.shape[1]))
    return lambda x: x[b, n].flatten(1)


def _mean(batch: PackedBatch, words: np.ndarray | None, layout: Layout, device: torch.device) -> Pool:
    """The mean over the tokens of each word, or of each text without its context; in float32 at least."""
    if words is None:
        nodes, counts = _own_nodes(batch, layout), batch.lengths - layout.n_bos - layout.n_end
    else:
        nodes, counts = _word_nodes(batch, words[batch.rows])
    own, lengths = _gather(batch, nodes, device), torch.from_numpy(counts).to(device)

    def mean(x: Tensor) -> Tensor:
        rows = own(x)
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return torch.segment_reduce(wide, "mean", lengths=lengths, axis=0, unsafe=True)  # unchecked: no GPU waits

    return mean


def _word_nodes(batch: PackedBatch, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of each text's word, one after the other, and their number in each; `words` int64 [texts, 2]."""
    counts = words[:, 1] - words[:, 0]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return batch.nodes[np.repeat(batch.starts + words[:, 0], counts) + within], counts


def _own_nodes(batch: PackedBatch, layout: Layout) -> np.ndarray:
    starts = batch.starts
    return without_context(batch.nodes, starts, starts + batch.lengths, layout.n_bos, layout.n_end)


def _pairs(batch: PackedBatch, device: torch.device) -> Pool:
    """The entry of each pair of tokens of a text, [B, H, N, M] -> [R, H]; the query's tokens outermost."""
    N = batch.tokens.shape[1]
    query, key = _pair_nodes(batch)
    b, n, m = (torch.from_numpy(i).to(device) for i in (query // N, query % N, key % N))
    return lambda x: x[b, :, n, m]


def masked_pairs(batch: PackedBatch, causal: bool, window: int | None, device: torch.device) -> Tensor:
    """For each pair of tokens of a text, True if the mask hides the key from the query, bool [R].

    Args:
        batch: the texts.
        causal: whether a token sees only the tokens before it.
        window: how many tokens a token sees, itself included; None is no limit.
        device: of the result.
    """
    query, key = _pair_nodes(batch)
    depth = batch.position_ids.flatten().numpy()
    masked = (depth[query] < depth[key]) & causal
    if window is not None:
        masked |= depth[query] - depth[key] >= window
    return torch.from_numpy(masked).to(device)


def _pair_nodes(batch: PackedBatch) -> tuple[np.ndarray, np.ndarray]:
    """Query and key of each pair of tokens of each text, as indices into [B * N]."""
    paths = np.split(batch.nodes, batch.starts[1:])
    query = np.concatenate([np.repeat(path, len(path)) for path in paths])
    return query, np.concatenate([np.tile(path, len(path)) for path in paths])
