"""The packer against sets of prefixes: each distinct prefix is one node, seen by exactly what continues it."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.activations.plan.packing import (
    ATTENTION_COST,
    SIZES,
    choose_nodes,
    cut_batches,
    filled_nodes,
    group_batches,
    pack,
)
from probekit.activations.plan.token_ids import Sequences

CPU = torch.device("cpu")
texts_of = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=25)
sizes = st.integers(1, 20)
few = settings(max_examples=30)  # an example has up to 25 texts of three tokens, so most of them share prefixes


def prefixes(texts):
    return {tuple(text[: i + 1]) for text in texts for i in range(len(text))}


def paths_of(batch):
    return np.split(batch.nodes, batch.starts[1:])


@few
@given(texts_of, sizes, st.booleans(), st.booleans())
def test_every_text_is_in_one_block_and_its_path_spells_it(texts, size, share, causal):
    packing = pack(Sequences.of(texts), size, share, causal)
    assert sorted(packing.order.tolist()) == list(range(len(texts)))
    for blocks in cut_batches(packing.sizes, batch_tokens=3 * size):
        batch = packing.batch(blocks)
        tokens, position_ids = batch.tokens.flatten(), batch.position_ids.flatten()
        for row, path in zip(batch.rows, paths_of(batch), strict=True):
            assert tokens[path].tolist() == texts[row]
            assert position_ids[path].tolist() == list(range(len(texts[row])))


@few
@given(texts_of, sizes)
def test_a_block_has_a_node_for_each_distinct_prefix_of_its_texts(texts, size):
    packing = pack(Sequences.of(texts), size, share=True)
    for block, nodes in enumerate(packing.sizes):
        own = [texts[row] for row in packing.rows(block)]
        assert nodes == len(prefixes(own))
        assert nodes <= size or len(prefixes(own)) == max(map(len, own))
    assert len(prefixes(texts)) <= packing.nodes <= sum(map(len, texts))


@few
@given(texts_of, sizes)
def test_a_node_attends_to_its_ancestors_and_itself(texts, size):
    packing = pack(Sequences.of(texts), size, share=True)
    for blocks in cut_batches(packing.sizes, batch_tokens=3 * size):
        batch = packing.batch(blocks)
        N = batch.tokens.shape[1]
        expected = torch.eye(N, dtype=torch.bool).repeat(len(blocks), 1, 1)
        for path in paths_of(batch):
            for depth, node in enumerate(path):
                expected[node // N, node % N, path[: depth + 1] % N] = True
        assert torch.equal(batch.mask(CPU), expected)


@few
@given(texts_of, sizes, st.booleans())
def test_without_sharing_a_block_is_block_diagonal(texts, size, causal):
    """A model that looks ahead shares equal texts, and nothing else."""
    packing = pack(Sequences.of(texts), size, share=causal is False, causal=causal)
    for block, nodes in enumerate(packing.sizes):
        own = [tuple(texts[row]) for row in packing.rows(block)]
        assert nodes == sum(map(len, own if causal else set(own)))
    for blocks in cut_batches(packing.sizes, batch_tokens=3 * size):
        batch = packing.batch(blocks)
        N = batch.tokens.shape[1]
        expected = torch.eye(N, dtype=torch.bool).repeat(len(blocks), 1, 1)
        for path in paths_of(batch):
            whole = torch.ones(len(path), len(path), dtype=torch.bool)
            expected[path[0] // N, path[0] % N : path[-1] % N + 1, path[0] % N : path[-1] % N + 1] = (
                whole.tril() if causal else whole
            )
        assert torch.equal(batch.mask(CPU), expected)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=50), st.integers(1, 100))
def test_batches_hold_every_block_once_within_the_budget(block_sizes, budget):
    block_sizes = np.array(block_sizes)
    batches = cut_batches(block_sizes, budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(block_sizes)))
    for batch in batches:
        assert len(batch) == 1 or block_sizes[batch].max() * len(batch) <= budget
    assert filled_nodes(block_sizes, batches) >= block_sizes.sum()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 20))
def test_shards_hold_the_batches_in_order_within_the_limit(costs, limit):
    batches = [np.array([i]) for i in range(len(costs))]
    shards = group_batches(batches, np.array(costs), limit)
    assert [int(batch[0]) for shard in shards for batch in shard] == list(range(len(costs)))
    totals = [sum(costs[int(batch[0])] for batch in shard) for shard in shards]
    assert all(total <= limit or len(shard) == 1 for total, shard in zip(totals, shards, strict=True))
    assert all(totals[i] + costs[int(shards[i + 1][0][0])] > limit for i in range(len(shards) - 1))


def test_equal_texts_cost_nothing():
    assert pack(Sequences.of([[1, 2, 3]] * 100), 4, share=True).nodes == 3


def test_blocks_of_nearly_equal_size_share_a_batch():
    rng = np.random.default_rng(0)
    block_sizes = rng.integers(100, 129, 500)
    assert filled_nodes(block_sizes, cut_batches(block_sizes, 2048)) < 1.01 * block_sizes.sum()


def test_a_long_common_prefix_makes_blocks_large():
    rng = np.random.default_rng(0)
    short = Sequences.of([rng.integers(0, 50_000, 10).tolist() for _ in range(500)])
    few_shot = Sequences.of([[*range(200), *rng.integers(0, 50_000, 10).tolist()] for _ in range(500)])
    assert choose_nodes(short, share=True, causal=True, d_model=768, least=128) == 128
    chosen = choose_nodes(few_shot, share=True, causal=True, d_model=768, least=128)
    costs = {n: pack(few_shot, n, share=True).nodes * (1 + ATTENTION_COST * n / 768) for n in SIZES}
    assert chosen == min(costs, key=costs.__getitem__) > 256
    assert choose_nodes(few_shot, share=False, causal=True, d_model=768, least=128) < chosen


@few
@given(texts_of, st.data())
def test_the_first_tokens_of_each_text(texts, data):
    lengths = np.array([data.draw(st.integers(1, len(text))) for text in texts])
    cut = Sequences.of(texts).first(lengths)
    assert [cut[i].tolist() for i in range(len(cut))] == [text[:n] for text, n in zip(texts, lengths, strict=True)]
