"""Batches: every row once, within the budget, of like length, whatever the lengths."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from probekit.activations.batching import ENOUGH_TOKENS, cut_batches, group_batches, pad_right, padded_tokens

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(np.array)


@given(LENGTHS, st.integers(1, 100))
def test_every_row_is_in_exactly_one_batch_within_the_budget(lengths, budget):
    batches = cut_batches(lengths, budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or lengths[batch].max() * len(batch) <= budget


@given(LENGTHS, st.integers(1, 100))
def test_rows_run_by_length_and_then_in_their_order(lengths, budget):
    order = np.concatenate(cut_batches(lengths, budget))
    assert order.tolist() == sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


@given(LENGTHS, st.integers(1, 100), st.integers(1, 30))
def test_shards_hold_whole_batches_in_order(lengths, budget, shard_rows):
    batches = cut_batches(lengths, budget)
    shards = group_batches(batches, shard_rows)
    assert [b.tolist() for shard in shards for b in shard] == [b.tolist() for b in batches]
    for shard in shards:
        assert shard
        assert len(shard) == 1 or sum(map(len, shard)) <= shard_rows


@given(LENGTHS, st.integers(1, 2000))
def test_a_batch_with_padding_is_small(lengths, budget):
    for batch in cut_batches(lengths, budget):
        long = lengths[batch].max()
        assert lengths[batch].min() == long or len(batch) * long < ENOUGH_TOKENS + long


def test_padding_is_counted():
    lengths = np.array([3, 2, 1])
    assert padded_tokens(lengths, cut_batches(lengths, 100)) == 9
    assert padded_tokens(lengths, cut_batches(lengths, 1)) == 6


def test_padding_stands_on_the_right():
    tokens = pad_right([[5, 6], [7], [8, 9, 4]], np.array([2, 1]))
    assert torch.equal(tokens, torch.tensor([[8, 9, 4], [7, 0, 0]]))
