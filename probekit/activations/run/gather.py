"""What is kept of a batch at one point: the rows that were asked for, gathered where the tensor arises.

Axes: B blocks of a batch, N nodes of a block (query), M nodes (key), H heads, R rows that are kept, D their width.
"""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from probekit.activations.plan.packing import Batch
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.token_ids import without_context
from probekit.points import PAIR_POINTS

Pool = Callable[[Tensor], Tensor]


def pooling(plan: ExtractionPlan, batch: Batch) -> list[Pool]:
    """What takes each place's tensor to the rows of the batch's examples, [R, D], one example after the other."""
    pairs, tokens = cache(partial(_pairs, batch, plan.device)), cache(partial(_tokens, plan, batch))
    return [pairs() if point in PAIR_POINTS else tokens() for point, _ in plan.places]


def _tokens(plan: ExtractionPlan, batch: Batch) -> Pool:
    """The rows of the positions that are read, [B, N, ...] -> [R, D]."""
    if plan.layout.is_ragged:
        return _gather(batch, _own_nodes(batch, plan), plan.device)
    pools = [
        _mean(batch, plan)
        if index is None
        else _gather(batch, batch.nodes[batch.starts + index[batch.rows]], plan.device)
        for index in plan.reading.index
    ]
    return pools[0] if len(pools) == 1 else lambda x: torch.stack([pool(x) for pool in pools], 1).flatten(0, 1)


def _gather(batch: Batch, nodes: np.ndarray, device: torch.device) -> Pool:
    """The rows of some nodes, [B, N, ...] -> [R, D]."""
    b, n = (torch.from_numpy(i).to(device) for i in divmod(nodes, batch.tokens.shape[1]))
    return lambda x: x[b, n].flatten(1)


def _mean(batch: Batch, plan: ExtractionPlan) -> Pool:
    """The mean over the tokens of each word, or of each text, context left out; in float32 at least."""
    words = plan.reading.words
    if words is None:
        nodes, counts = _own_nodes(batch, plan), batch.lengths - plan.sequences.n_bos - plan.sequences.n_end
    else:
        nodes, counts = _nodes_of(batch, words[batch.rows])
    own, lengths = _gather(batch, nodes, plan.device), torch.from_numpy(counts).to(plan.device)

    def mean(x: Tensor) -> Tensor:
        rows = own(x)
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return torch.segment_reduce(wide, "mean", lengths=lengths, axis=0, unsafe=True)  # unchecked: no GPU waits

    return mean


def _nodes_of(batch: Batch, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of each text's word, one after the other, and how many each has; `words` int64 [texts, 2]."""
    counts = words[:, 1] - words[:, 0]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return batch.nodes[np.repeat(batch.starts + words[:, 0], counts) + within], counts


def _own_nodes(batch: Batch, plan: ExtractionPlan) -> np.ndarray:
    starts, sequences = batch.starts, plan.sequences
    return without_context(batch.nodes, starts, starts + batch.lengths, sequences.n_bos, sequences.n_end)


def _pairs(batch: Batch, device: torch.device) -> Pool:
    """The entry of each two tokens of a text, [B, H, N, M] -> [R, H]; the query's tokens outermost."""
    N = batch.tokens.shape[1]
    query, key = _pair_nodes(batch)
    b, n, m = (torch.from_numpy(i).to(device) for i in (query // N, query % N, key % N))
    return lambda x: x[b, :, n, m]


def masked_pairs(plan: ExtractionPlan, batch: Batch, layer: int) -> Tensor:
    """Of each two tokens of a text, whether the query may not see the key in this layer, bool [R]."""
    query, key = _pair_nodes(batch)
    depth, window = batch.position_ids.flatten().numpy(), plan.model.window_of(layer)
    masked = (depth[query] < depth[key]) & plan.causal
    if window is not None:
        masked |= depth[query] - depth[key] >= window
    return torch.from_numpy(masked).to(plan.device)


def _pair_nodes(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Query and key of each two tokens of each text, as indices into [B * N]."""
    paths = np.split(batch.nodes, batch.starts[1:])
    query = np.concatenate([np.repeat(path, len(path)) for path in paths])
    return query, np.concatenate([np.tile(path, len(path)) for path in paths])
