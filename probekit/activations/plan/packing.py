"""Pack texts into prefix forests: no padding, and a prefix that texts share is computed once.

In a causal model the activations of a token depend only on the tokens before it, so texts with a common prefix share
its nodes. The texts are sorted by their tokens and cut into blocks of at most N nodes of the prefix tree. A block is a
forest with its nodes in depth-first order: the position of a node is its depth, it attends to its ancestors and itself,
and a text's activations are those of the nodes on its path. Without sharing, attention in a block is block-diagonal,
each text being a tree of its own. The same holds for bidirectional models, except that equal texts (as for several
words of one sentence) share one tree. In a model with a recurrent state no two tokens may follow one token: a text that
begins with another one whole goes on from its end, and others share nothing.

Everything here is a pure function of the tokens, so that a run resumed after a crash computes the same blocks.

Axes: B blocks of a batch, N nodes of a block (query), M nodes (key), S nodes of the sources, T tokens of all texts.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from probekit.activations.plan.token_ids import Sequences
from probekit.files.scratch import on_disk
from probekit.ragged import ranges

SIZES = (128, 256, 512, 1024, 2048)  # block sizes to choose from
FILLED = 7 / 8  # a block smaller than this share of its batch's largest goes into another batch
ATTENTION_COST = 2 / 3  # attention of one node to all N of its block, times N / d_model; its linear layers cost 1


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Several blocks that run at once, each filled up to the largest one's N with copies of its first node.

    The copies are never read. They are copies, not zeros, because then a block gets no NaN that its own texts do not
    have (0 * NaN is NaN).

    Attributes:
        rows: the texts, block by block, int64 [texts].
        tokens: ids, int64 [B, N].
        position_ids: depth of each node, int64 [B, N].
        first: the first node that may attend to this one, int64 [B, N].
        end: one past the last node that may, int64 [B, N]; depth-first order leaves no gap between them.
        nodes: the path of each text one after the other, as indices into [B * N], int64 [T].
        lengths: nodes of each path, int64 [texts].
        source: for a decoder, the encoder's inputs: the sources of the same texts, block by block.
    """

    rows: np.ndarray
    tokens: Tensor
    position_ids: Tensor
    first: Tensor
    end: Tensor
    nodes: np.ndarray
    lengths: np.ndarray
    source: "PackedBatch | None" = None

    @property
    def starts(self) -> np.ndarray:
        """Where each text's path begins in `nodes`, int64 [texts]."""
        return np.cumsum(self.lengths) - self.lengths

    def mask(self, device: torch.device) -> Tensor:
        """True where a node attends to a node, bool [B, N, M]."""
        query_N1 = torch.arange(self.tokens.shape[1], device=device)[:, None]
        first_B1M, end_B1M = self.first.to(device)[:, None], self.end.to(device)[:, None]
        return (first_B1M <= query_N1) & (query_N1 < end_B1M)

    def cross_mask(self, device: torch.device) -> Tensor:
        """True where a node attends to a node of the source, which must be of its own text: bool [B, N, S].

        Nodes that fill up a block attend to the source of its first text; nodes that fill up a source are never seen.
        """
        assert self.source is not None
        texts, of_source = self.texts(), self.source.texts()
        texts = torch.where(texts < 0, texts[:, :1], texts)
        return (texts[:, :, None] == of_source[:, None, :]).to(device)

    def texts(self) -> Tensor:
        """The text of each node, as an index into `rows`, int64 [B, N]; -1 where a block is filled up."""
        texts = torch.full((self.tokens.numel(),), -1)
        texts[torch.from_numpy(self.nodes)] = torch.from_numpy(np.repeat(np.arange(len(self.rows)), self.lengths))
        return texts.view(self.tokens.shape)


@dataclass(frozen=True, eq=False)
class Packing:
    """The texts of each block.

    Attributes:
        sequences: the token ids.
        order: the texts in the order of the blocks, int64 [texts].
        shared: leading tokens that each text of `order` shares with the one before it in its block, int64 [texts].
        starts: where each block begins in `order`, and where the last one ends, int64 [blocks + 1].
        causal: whether a token sees only the tokens before it.
        sources: for a decoder, the packing of the encoder's inputs: the same texts in the same order and blocks.
    """

    sequences: Sequences
    order: np.ndarray
    shared: np.ndarray
    starts: np.ndarray
    causal: bool
    sources: "Packing | None" = None

    @cached_property
    def sizes(self) -> np.ndarray:
        """Nodes of each block, int64 [blocks]."""
        new = self.sequences.lengths[self.order] - self.shared
        return np.add.reduceat(new, self.starts[:-1])

    @cached_property
    def work(self) -> np.ndarray:
        """Nodes of each block and of its sources, int64 [blocks]."""
        return self.sizes if self.sources is None else self.sizes + self.sources.sizes

    @property
    def nodes(self) -> int:
        """Nodes of all blocks: the tokens that are computed, not counting those that fill up batches."""
        return int(self.sizes.sum())

    def rows(self, block: int) -> np.ndarray:
        """The texts of a block."""
        return self.order[self.starts[block] : self.starts[block + 1]]

    def rows_of(self, blocks: np.ndarray) -> np.ndarray:
        """The texts of several blocks, one after the other."""
        return self.order[self._places(blocks)]

    def _places(self, blocks: np.ndarray) -> np.ndarray:
        """Where the texts of several blocks are in `order`."""
        return ranges(self.starts[blocks], self.starts[blocks + 1] - self.starts[blocks])

    @cached_property
    def _ends(self) -> np.ndarray:
        """Nodes of each text's block up to the text, its own included, int64 [texts], in the order of `order`."""
        ends = np.cumsum(self.sequences.lengths[self.order] - self.shared)
        ends -= np.repeat(np.cumsum(self.sizes) - self.sizes, np.diff(self.starts))
        return on_disk(ends)

    def batch(self, blocks: np.ndarray) -> PackedBatch:
        """The blocks as one batch."""
        B, N = len(blocks), int(self.sizes[blocks].max())
        places = self._places(blocks)
        rows = self.order[places]
        lengths = self.sequences.lengths[rows]
        ends = self._ends[places] + np.repeat(np.arange(B) * N, self.starts[blocks + 1] - self.starts[blocks])
        depth = ranges(np.zeros_like(lengths), lengths)
        own = np.repeat(ends - lengths, lengths) + depth  # the node of each token, if no text shared any
        made = np.flatnonzero(depth >= np.repeat(self.shared[places], lengths))
        nodes = _paths(own, made, depth)
        new, beginnings = own[made], self.sequences.offsets[rows]
        fill = self.sequences.flat[self.sequences.offsets[self.order[self.starts[blocks]]]]
        tokens = np.repeat(fill, N).astype(np.int64)
        tokens[new] = self.sequences.flat[(np.repeat(beginnings, lengths) + depth)[made]]
        position_ids, first = np.zeros(B * N, dtype=np.int64), np.arange(B * N)
        position_ids[new] = depth[made]
        end = first + 1
        end[nodes] = np.repeat(ends, lengths)  # assigned in order: the last text through a node is the last to see it
        if not self.causal:
            first[new] -= position_ids[new]
        in_block = np.arange(B)[:, None] * N
        return PackedBatch(
            rows,
            torch.from_numpy(tokens.reshape(B, N)),
            torch.from_numpy(position_ids.reshape(B, N)),
            torch.from_numpy(first.reshape(B, N) - in_block),
            torch.from_numpy(end.reshape(B, N) - in_block),
            nodes,
            lengths,
            None if self.sources is None else self.sources.batch(blocks),
        )


def _paths(own: np.ndarray, made: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """The node of each token, int64 [T]: in depth-first order, the last one that was made at the token's depth so far.

    Args:
        own: the node of each token that its text made, which grow from text to text.
        made: the tokens for which the texts made a node.
        depth: of each token.
    """
    if len(made) == len(own):
        return own
    by_depth = np.argsort(depth.astype(np.uint16) if depth.max() < 2**16 else depth, kind="stable")  # 16 bits: radix
    level = depth * (own.max() + 1)  # more than any node of a smaller depth
    latest = level.copy()
    latest[made] += own[made]
    latest[by_depth] = np.maximum.accumulate(latest[by_depth])
    return latest - level


def pack(
    sequences: Sequences,
    block_nodes: int,
    share: bool,
    causal: bool = True,
    sources: Sequences | None = None,
    forks: bool = True,
) -> Packing:
    """Cut the texts into blocks of at most `block_nodes` nodes; a longer text is a block of its own.

    Args:
        sequences: the token ids.
        block_nodes: N.
        share: whether texts share the nodes of a common prefix; in a bidirectional model only equal texts do.
        causal: whether a token sees only the tokens before it.
        sources: for a decoder, the encoder's inputs. Nothing is shared then, because activations of a target depend on
            its source.
        forks: whether several tokens may follow one node.
    """
    order = sequences.order
    lengths, shared = _shared(sequences, share and sources is None, causal, forks)
    starts = _cut(lengths, shared, block_nodes)
    shared[starts[:-1]] = 0  # a block begins with nothing to share
    of_sources = None if sources is None else Packing(sources, order, np.zeros_like(shared), starts, causal=False)
    return Packing(sequences, order, on_disk(shared), starts, causal, of_sources)


def _shared(sequences: Sequences, share: bool, causal: bool, forks: bool) -> tuple[np.ndarray, np.ndarray]:
    """The lengths of the texts in order, and how many leading tokens each may share with the one before it."""
    lengths = sequences.lengths[sequences.order]
    shared = sequences.shared.copy() if share else np.zeros(len(lengths), dtype=np.int64)
    if not causal:
        shared[(shared < lengths) | (shared < np.roll(lengths, 1))] = 0  # texts that are not equal
    elif not forks:
        shared[shared < np.roll(lengths, 1)] = 0  # texts that do not begin with the one before them
    return lengths, shared


def _cut(lengths: np.ndarray, shared: np.ndarray, block_nodes: int) -> np.ndarray:
    """Where each block begins, and where the last one ends: each takes texts as long as they fit."""
    # as buffers, whose numbers are those of Python: bisect compares them faster than the ones of an array
    nodes, length = np.cumsum(lengths - shared).data, lengths.data
    starts, n = [0], len(lengths)
    while (i := starts[-1]) < n:
        starts.append(bisect_right(nodes, nodes[i] + max(block_nodes - length[i], 0), i + 1))
    return np.array(starts)


def choose_nodes(sequences: Sequences, share: bool, causal: bool, d_model: int, least: int, forks: bool = True) -> int:
    """The block size with the least total work: large blocks share more, and pay more for attention."""
    lengths, shared = _shared(sequences, share, causal, forks)

    def cost(size: int) -> float:
        nodes = (lengths - shared).sum() + shared[_cut(lengths, shared, size)[:-1]].sum()
        return nodes * (1 + ATTENTION_COST * size / d_model)

    total = int(lengths.sum())
    sizes = [size for size in SIZES if size >= least]
    return min((size for size in sizes if size <= max(total, sizes[0])), key=cost)


def cut_batches(sizes: np.ndarray, batch_tokens: int, filled: float = FILLED) -> list[np.ndarray]:
    """The blocks in batches of at most `batch_tokens` nodes, counting those that fill up blocks.

    Large blocks come first, and a batch holds no block much smaller than its largest, so that little is filled up. A
    block larger than `batch_tokens` is a batch by itself.
    """
    order = np.argsort(-sizes, kind="stable")
    smaller = -sizes[order]
    batches, start = [], 0
    while start < len(order):
        largest = -int(smaller[start])
        large_enough = int(np.searchsorted(smaller, -filled * largest, side="right"))
        end = min(start + max(1, batch_tokens // largest), large_enough)
        batches.append(order[start:end])
        start = end
    return batches


def group_batches(batches: list[np.ndarray], costs: np.ndarray, limit: float) -> list[list[np.ndarray]]:
    """The batches in order, cut into shards in which the costs of the blocks sum to at most `limit`.

    A batch that costs more is a shard by itself.
    """
    shards: list[list[np.ndarray]] = []
    room = 0.0
    for batch in batches:
        cost = float(costs[batch].sum())
        if not shards or cost > room:
            shards.append([])
            room = limit
        shards[-1].append(batch)
        room -= cost
    return shards


def filled_nodes(sizes: np.ndarray, batches: list[np.ndarray]) -> int:
    """Nodes that the batches compute, counting those that fill up blocks."""
    return sum(int(sizes[batch].max()) * len(batch) for batch in batches)
