"""Which texts run together: batches of like length under a token budget, and the shards that they make up.

Everything here is a pure function of the lengths, so that a run that goes on after a crash computes the same batches.

Axes: B rows of a batch, L query position.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ENOUGH_TOKENS = 256  # a batch of so many is about as fast per token as a larger one


def cut_batches(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Row indices of each batch, longest rows first, at most `batch_tokens` tokens with padding in each.

    A batch takes shorter rows too only while it is small, so that next to nothing is computed on padding. Rows of
    equal length stay in their order. A row longer than the budget is a batch of its own.
    """
    order = np.argsort(-lengths, kind="stable")
    ascending = -lengths[order]
    batches, start = [], 0
    while start < len(order):
        longest = int(lengths[order[start]])
        as_long = int(np.searchsorted(ascending, -longest, side="right")) - start
        size = min(max(1, batch_tokens // longest), max(as_long, -(-ENOUGH_TOKENS // longest)))
        batches.append(order[start : start + size])
        start += size
    return batches


def group_batches(batches: list[np.ndarray], shard_rows: int) -> list[list[np.ndarray]]:
    """The batches in order, cut into shards of at most `shard_rows` rows; a larger batch is a shard of its own."""
    shards: list[list[np.ndarray]] = []
    room = 0
    for batch in batches:
        if not shards or len(batch) > room:
            shards.append([])
            room = shard_rows
        shards[-1].append(batch)
        room -= len(batch)
    return shards


def padded_tokens(lengths: np.ndarray, batches: list[np.ndarray]) -> int:
    """How many tokens the batches compute, padding included."""
    return sum(int(lengths[batch].max()) * len(batch) for batch in batches)


def pad_right(sequences: Sequence[list[int]], rows: np.ndarray) -> Tensor:
    """The token ids of these rows, int64 [B, L], filled up with id 0.

    In a causal model no real token sees the filling, so it needs no mask.
    """
    length = max(len(sequences[row]) for row in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[i, : len(sequences[row])] = torch.tensor(sequences[row], dtype=torch.long)
    return tokens
