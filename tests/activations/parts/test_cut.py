"""Parts: every shard is in exactly one, the same ones each time, and no part costs much more than another."""

from itertools import product

import numpy as np
import pytest
from store_cases import plan_of

from probekit.activations.parts.cut import cut_parts, shard_costs
from probekit.activations.plan.packing import ATTENTION_COST

pytestmark = pytest.mark.usefixtures("small_shards")


@pytest.mark.parametrize("n", [1, 2, 3, 7, 40])
def test_every_shard_is_in_one_part_and_no_part_exceeds_an_equal_share_and_one_shard(n):
    costs = np.random.default_rng(n).lognormal(sigma=1.5, size=25)
    parts = cut_parts(costs, n)
    assert len(parts) == n
    assert sorted(np.concatenate(parts).tolist()) == list(range(25))
    assert all(np.all(np.diff(part) > 0) for part in parts)
    assert max(costs[part].sum() for part in parts) <= costs.sum() / n + costs.max()
    for part, again in zip(parts, cut_parts(costs.tolist(), n), strict=True):
        assert part.tolist() == again.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_part_is_within_a_third_of_the_best_cut(seed):
    """The bound of the rule, 4/3 - 1/(3n) of the optimum (Graham 1969), against every cut there is."""
    costs, n = np.random.default_rng(seed).integers(1, 30, size=7), 3
    best = min(max(np.bincount(cut, weights=costs, minlength=n)) for cut in product(range(n), repeat=len(costs)))
    assert max(costs[part].sum() for part in cut_parts(costs, n)) <= (4 / 3 - 1 / (3 * n)) * best + 1e-9


def test_the_cost_of_a_shard_counts_what_is_computed_filled_up_nodes_and_attention(model, task):
    plan = plan_of(model, task, points="resid_pre", batch_tokens=16, block_nodes=8)
    assert len(plan.shards) > 2
    costs = []
    for shard in plan.shards:
        shapes = [plan.packing.batch(batch).tokens.shape for batch in shard]
        costs.append(sum(B * N + ATTENTION_COST * B * N * N / model.cfg.d_model for B, N in shapes))
    np.testing.assert_allclose(shard_costs(plan), costs, rtol=1e-12)
