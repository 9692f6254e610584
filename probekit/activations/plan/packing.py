"""Texts packed into prefix forests: no padding, and what texts share at their beginning is computed once.

In a causal model a token's activations depend on the tokens before it alone, so texts with a common prefix share the
nodes of that prefix. The texts, sorted by their tokens, are cut into blocks of at most N nodes of the prefix tree. A
block is one forest, its nodes in depth-first order: a node's position is its depth, it attends to its ancestors and
itself, and each text reads the nodes of its own path. Without sharing a block is block-diagonal: every text a tree of
its own. So it is for models that look ahead, but that texts which are equal, as those of several words of one sentence,
are one tree.

Everything here is a pure function of the tokens, so that a run that goes on after a crash computes the same blocks.

Axes: B blocks of a batch, N nodes of a block (query), M nodes (key), T tokens of all texts of a batch.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from probekit.activations.plan.token_ids import Sequences

SIZES = (128, 256, 512, 1024, 2048)  # of blocks, to choose from
FILLED = 7 / 8  # of its batch's largest block: a block that is smaller waits for another batch
ATTENTION_COST = 2 / 3  # of one node against all N of its block, times N / d_model; the linear layers' is 1


@dataclass(frozen=True, eq=False)
class Batch:
    """Several blocks that run at once, filled up to the largest one's N with copies of their first node.

    Nobody reads the copies. Being of the block, they bring no NaN into it that its own texts do not (0 * NaN is NaN).

    Attributes:
        rows: the texts, block by block, int64 [texts].
        tokens: ids, int64 [B, N].
        position_ids: depth of each node, int64 [B, N].
        first: the first node that may attend to this one, int64 [B, N].
        end: the node behind the last that may, int64 [B, N]; depth-first order leaves no gap between.
        nodes: the path of each text one after the other, as indices into [B * N], int64 [T].
        lengths: nodes of each path, int64 [texts].
        source: what the encoder reads where these are a decoder's: the same texts' sources, block by block.
    """

    rows: np.ndarray
    tokens: Tensor
    position_ids: Tensor
    first: Tensor
    end: Tensor
    nodes: np.ndarray
    lengths: np.ndarray
    source: "Batch | None" = None

    @property
    def starts(self) -> np.ndarray:
        """Where each text's path begins in `nodes`, int64 [texts]."""
        return np.cumsum(self.lengths) - self.lengths

    def mask(self, device: torch.device) -> Tensor:
        """Who attends to whom, bool [B, N, M]."""
        query_N1 = torch.arange(self.tokens.shape[1], device=device)[:, None]
        first_B1M, end_B1M = self.first.to(device)[:, None], self.end.to(device)[:, None]
        return (first_B1M <= query_N1) & (query_N1 < end_B1M)

    def cross_mask(self, device: torch.device) -> Tensor:
        """Which nodes of the source each node attends to, bool [B, N, S]: those of its own text.

        What fills up a block looks at the source of its first text, and nobody looks at what fills up a source.
        """
        assert self.source is not None
        texts, of_source = self._texts(), self.source._texts()
        texts = torch.where(texts < 0, texts[:, :1], texts)
        return (texts[:, :, None] == of_source[:, None, :]).to(device)

    def _texts(self) -> Tensor:
        """The text of each node, by its place in `rows`, int64 [B, N]; -1 where a block is filled up."""
        texts = torch.full((self.tokens.numel(),), -1)
        texts[torch.from_numpy(self.nodes)] = torch.from_numpy(np.repeat(np.arange(len(self.rows)), self.lengths))
        return texts.view(self.tokens.shape)


@dataclass(frozen=True, eq=False)
class Packing:
    """Which texts make up which block.

    Attributes:
        sequences: the token ids.
        order: the texts in the order of the blocks, int64 [texts].
        shared: leading tokens that a text shares with the one before it in its block, int64 [texts], by `order`.
        starts: where each block begins in `order`, and where the last one ends, int64 [blocks + 1].
        causal: whether a token sees only the tokens before it.
        sources: of a decoder's texts, what the encoder reads: its blocks hold the same texts in the same order.
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
        """Nodes of each block, with those of its sources, int64 [blocks]."""
        return self.sizes if self.sources is None else self.sizes + self.sources.sizes

    @property
    def nodes(self) -> int:
        """Nodes of all blocks: the tokens that are computed, but for what fills up batches."""
        return int(self.sizes.sum())

    def rows(self, block: int) -> np.ndarray:
        """The texts of a block."""
        return self.order[self.starts[block] : self.starts[block + 1]]

    def rows_of(self, blocks: np.ndarray) -> np.ndarray:
        """The texts of several blocks, one after the other."""
        return np.concatenate([self.rows(block) for block in blocks])

    def batch(self, blocks: np.ndarray) -> Batch:
        """The blocks as one batch."""
        B, N = len(blocks), int(self.sizes[blocks].max())
        tokens, depth = np.zeros((B, N), dtype=np.int64), np.zeros((B, N), dtype=np.int64)
        first = np.tile(np.arange(N), (B, 1))
        end = first + 1
        nodes: list[np.ndarray] = []
        for b, block in enumerate(blocks):
            n = self.sizes[block]
            paths = self._fill(block, tokens[b, :n], depth[b, :n], first[b, :n], end[b, :n])
            tokens[b, n:] = tokens[b, 0]
            nodes += [path + b * N for path in paths]
        rows = self.rows_of(blocks)
        inputs = (torch.from_numpy(tokens), torch.from_numpy(depth))
        return Batch(
            rows,
            *inputs,
            torch.from_numpy(first),
            torch.from_numpy(end),
            np.concatenate(nodes),
            self.sequences.lengths[rows],
            None if self.sources is None else self.sources.batch(blocks),
        )

    def _fill(
        self, block: int, tokens: np.ndarray, depth: np.ndarray, first: np.ndarray, end: np.ndarray
    ) -> list[np.ndarray]:
        """Write a block's nodes into views of [N], and return the path of each of its texts."""
        paths, path, n = [], np.empty(0, dtype=np.int64), 0
        for at in range(self.starts[block], self.starts[block + 1]):
            text, shared = self.sequences[self.order[at]], self.shared[at]
            end[path[shared:]] = n  # nobody after this one descends from them
            new = np.arange(n, n + len(text) - shared)
            tokens[new], depth[new] = text[shared:], np.arange(shared, len(text))
            if not self.causal:
                first[new] = n
            path = np.concatenate([path[:shared], new])
            paths.append(path)
            n += len(new)
        end[path] = n
        return paths


def pack(
    sequences: Sequences, block_nodes: int, share: bool, causal: bool = True, sources: Sequences | None = None
) -> Packing:
    """Cut the texts into blocks of at most `block_nodes` nodes; a longer text is a block of its own.

    Args:
        sequences: the token ids.
        block_nodes: N.
        share: whether texts share the nodes of a common prefix; where a token sees what comes after it, too, equal
            texts alone do.
        causal: whether a token sees only the tokens before it.
        sources: what the encoder reads of the same texts, where these are a decoder's; then nothing is shared, for what
            a target's beginning comes to depends on its source.
    """
    share = share and sources is None
    order = sequences.order
    lengths = sequences.lengths[order]
    shared = sequences.shared.copy() if share else np.zeros(len(order), dtype=np.int64)
    if not causal:
        shared[(shared < lengths) | (shared < np.roll(lengths, 1))] = 0  # of texts that differ
    starts = _cut(lengths, shared, block_nodes)
    shared[starts[:-1]] = 0  # a block begins with nothing
    of_sources = None if sources is None else Packing(sources, order, np.zeros_like(shared), starts, causal=False)
    return Packing(sequences, order, shared, starts, causal, of_sources)


def _cut(lengths: np.ndarray, shared: np.ndarray, block_nodes: int) -> np.ndarray:
    starts, room = [], 0
    for i, (length, new) in enumerate(zip(lengths.tolist(), (lengths - shared).tolist(), strict=True)):
        if not starts or new > max(room, 0):
            starts.append(i)
            new, room = length, block_nodes
        room -= new
    return np.array([*starts, len(lengths)])


def choose_nodes(sequences: Sequences, share: bool, causal: bool, d_model: int, least: int) -> int:
    """The N of blocks at which the whole work is least: large ones share more, and pay more for attention."""

    def cost(size: int) -> float:
        return pack(sequences, size, share, causal).nodes * (1 + ATTENTION_COST * size / d_model)

    total = int(sequences.lengths.sum())
    sizes = [size for size in SIZES if size >= least]
    return min((size for size in sizes if size <= max(total, sizes[0])), key=cost)


def cut_batches(sizes: np.ndarray, batch_tokens: int, filled: float = FILLED) -> list[np.ndarray]:
    """The blocks in batches of at most `batch_tokens` nodes, filling included.

    Large blocks come first, and a batch holds no block much smaller than its largest, so that little is filled up. A
    larger block is a batch of its own.
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
    """The batches in order, cut into shards in which the blocks' costs add up to `limit` at most.

    A batch that costs more is a shard of its own.
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
    """How many nodes the batches compute, filling included."""
    return sum(int(sizes[batch].max()) * len(batch) for batch in batches)
