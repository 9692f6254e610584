"""Every shard is in exactly one part; parts in any order, twice, or killed end in the store of one process."""

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from part_cases import HOW
from store_cases import Stopped, files, of_shards, plan_of, stop_after

from probekit import extract
from probekit.activations import Store, list_stores, load_activations, run_part, run_plan, verify
from probekit.activations.parts.cut import cut_parts, shard_costs
from probekit.activations.plan.packing import ATTENTION_COST
from probekit.errors import StorageError, UsageError

N_PARTS = 3


@pytest.mark.parametrize("order", list(permutations((1, 2, 3)))[::2])
def test_the_last_of_the_parts_in_any_order_completes_the_store(plan, single, tmp_path, order):
    path, left = tmp_path / "store", {1, 2, 3}
    cut = cut_parts(shard_costs(plan), N_PARTS)
    for part in order:
        done = run_part(plan, path, (part, N_PARTS), progress=False)
        left.remove(part)
        assert (done.shards, done.computed) == (len(cut[part - 1]), len(cut[part - 1]))
        assert {one.part: (one.shards, one.done) for one in done.missing} == {n: (len(cut[n - 1]), 0) for n in left}
        assert done.complete == (not left)
        if left:
            with pytest.raises(StorageError, match="unfinished"):
                Store(path)
    assert of_shards(path) == of_shards(single)
    assert verify(path).is_sound
    metas = [{**load_activations(one).meta, "created": 0} for one in (path, single)]
    assert metas[0] == metas[1]


def test_a_part_that_is_run_again_or_stolen_changes_nothing(plan, single, tmp_path):
    path = tmp_path / "store"
    run_part(plan, path, (2, N_PARTS), progress=False)
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files(path)}
    again = run_part(plan, path, (2, N_PARTS), progress=False)
    assert again.computed == 0
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files(path)} == before
    for other in (1, 2):  # another cut: the shards of part 2/3 are there already
        done = run_part(plan, path, (other, 2), progress=False)
    assert done.complete
    assert run_part(plan, path, (3, N_PARTS), progress=False).computed == 0
    assert of_shards(path) == of_shards(single)


def test_a_part_of_a_complete_store_writes_nothing(plan, single):
    """So that it may be read-only."""
    before = {file: file.stat().st_mtime_ns for file in files(single)}
    done = run_part(plan, single, (1, 2), progress=False, sums="also")
    assert (done.computed, done.complete, done.counted) == (0, True, True)
    assert {file: file.stat().st_mtime_ns for file in files(single)} == before


def test_more_parts_than_shards_leave_the_rest_nothing_to_do(plan, single, tmp_path):
    path, n = tmp_path / "store", len(plan.shards) + 2
    done = [run_part(plan, path, (i + 1, n), progress=False, sums="also") for i in range(n)]
    assert sorted(one.shards for one in done) == [0, 0] + [1] * len(plan.shards)
    assert load_activations(path).statistics.n_bytes == load_activations(single).statistics.n_bytes
    assert of_shards(path) == of_shards(single)


def test_a_part_that_stops_resumes_and_its_missing_shards_are_named(plan, single, tmp_path, monkeypatch):
    path = tmp_path / "runs" / "store"
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stopped):
            run_part(plan, path, (1, 2), progress=False)
    n_first, n_second = (len(part) for part in cut_parts(shard_costs(plan), 2))
    words = f"part 1/2 (1 of {n_first} shards), part 2/2 (0 of {n_second} shards)"
    assert [info.missing for info in list_stores(path.parent)] == [words]
    with pytest.raises(StorageError, match="missing in part 1/2"):
        load_activations(path)
    assert run_part(plan, path, (1, 2), progress=False).computed == n_first - 1
    run_plan(plan, path, progress=False)  # the command without --part does the rest
    assert of_shards(path) == of_shards(single)
    assert [info.missing for info in list_stores(path.parent)] == [""]


def test_in_python_a_part_is_a_keyword(plan, tmp_path):
    path = tmp_path / "store"
    first: Any = extract(plan.model, plan.task, out=path, part="1/2", progress=False, **HOW)
    second: Any = extract(plan.model, plan.task, out=path, part=(2, 2), progress=False, **HOW)
    assert [one.complete for one in (first, second)] == [False, True]
    with pytest.raises(UsageError, match="give out=PATH"):
        extract(plan.model, plan.task, part="1/2", **HOW)
    for wrong in ("0/2", "3/2", "2", (1, 2, 3), (True, 2), "1/x"):
        with pytest.raises(UsageError, match="such as 2/4"):
            extract(plan.model, plan.task, out=path, part=wrong, **HOW)
    with pytest.raises(UsageError, match="--generate"):
        extract(plan.model, plan.task, out=path, part="1/2", generate=3)


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


@pytest.mark.usefixtures("small_shards")
def test_the_cost_of_a_shard_counts_what_is_computed_filled_up_nodes_and_attention(model, task):
    plan = plan_of(model, task, points="resid_pre", batch_tokens=16, block_nodes=8)
    assert len(plan.shards) > 2
    costs = []
    for shard in plan.shards:
        shapes = [plan.packing.batch(batch).tokens.shape for batch in shard]
        costs.append(sum(B * N + ATTENTION_COST * B * N * N / model.cfg.d_model for B, N in shapes))
    np.testing.assert_allclose(shard_costs(plan), costs, rtol=1e-12)
