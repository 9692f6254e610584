"""A worker that knows only a store's path writes the shards that one process would have written, bit for bit."""

import pytest
import torch
from part_cases import HOW
from store_cases import flip, of_shards, shard_of
from user_files import write_model

from probekit.activations import load_activations, plan_extraction, run_plan
from probekit.activations.parts.cut import read_cuts, write_cut
from probekit.activations.parts.work import ShardDone, begin_work, finish_store, open_work, write_shards
from probekit.activations.store.format import read_plan
from probekit.errors import DataError, ResumeMismatch, StorageError, UsageError
from probekit.interventions import add
from probekit.models import load_model
from probekit.options import EngineOptions, ExtractOptions


def test_workers_that_share_shards_in_any_order_make_the_store_of_one_process(plan, single, tmp_path):
    path = tmp_path / "store"
    missing = begin_work(plan, path)
    assert missing == list(range(len(plan.shards)))
    assert len(missing) >= 5
    first, second = open_work(path), open_work(path)
    done = list(write_shards(first, path, [4, 0, 2]))
    assert [one.number for one in done] == [4, 0, 2]
    assert all(one.computed and one.n_bytes > 0 for one in done)
    assert not finish_store(path)
    assert begin_work(plan, path) == [number for number in missing if number not in (0, 2, 4)]
    rest = {one.number: one for one in write_shards(second, path, missing[::-1])}
    assert rest.keys() == set(missing)
    assert {number for number, one in rest.items() if not one.computed} == {0, 2, 4}
    assert sum(one.rows for one in rest.values()) == 60
    assert sum(one.tokens for one in rest.values()) == plan.sequences.lengths.sum()
    assert finish_store(path)
    assert finish_store(path)
    assert of_shards(path) == of_shards(single)
    metas = [{**load_activations(one).meta, "created": 0} for one in (path, single)]
    assert metas[0] == metas[1]


def test_a_shard_is_on_disk_when_it_is_yielded_and_the_first_writer_wins(plan, single, tmp_path):
    path = tmp_path / "store"
    missing = begin_work(plan, path)
    slow, fast = open_work(path), open_work(path)
    told: list[ShardDone] = []
    for done in write_shards(slow, path, overtaken(missing, fast, path)):
        assert (path / "records" / f"{done.number:05d}.json").exists()
        told.append(done)
    assert [one.number for one in told if not one.computed] == [1]
    assert finish_store(path)
    assert of_shards(path) == of_shards(single)


def overtaken(numbers, plan, path):
    """The numbers; another worker writes shard 1 just before it is taken."""
    for number in numbers:
        if number == 1:
            assert [one.computed for one in write_shards(plan, path, [1])] == [True]
        yield number


def test_a_worker_refuses_what_it_cannot_make_again(plan, tmp_path):
    with pytest.raises(DataError, match="no store at"):
        open_work(tmp_path)
    path, folder = tmp_path / "store", write_model(tmp_path / "model")
    model = load_model(str(folder))
    begin_work(plan_extraction(model, plan.task, ExtractOptions(**HOW)), path)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="cannot be loaded from where it was"):
        open_work(path)
    write_model(folder, n_layers=2)
    with pytest.raises(ResumeMismatch, match="model_fingerprint"):
        open_work(path)
    edited = ExtractOptions(**HOW, edits={("resid_pre", 1): add(torch.ones(16))})
    begin_work(plan_extraction(model, plan.task, edited), tmp_path / "edited")
    with pytest.raises(UsageError, match="does not hold their tensors"):
        open_work(tmp_path / "edited")


def test_shards_that_are_there_are_checked_as_requested(plan, tmp_path):
    path = tmp_path / "store"
    begin_work(plan, path)
    list(write_shards(plan, path, [0, 1]))
    flip(shard_of(path, 1))
    assert 1 not in begin_work(plan, path)
    with pytest.raises(StorageError, match="probekit repair"):
        begin_work(plan, path, check="hash")
    with pytest.raises(StorageError, match="probekit repair"):  # so does a worker
        list(write_shards(plan, path, [1], check="hash"))
    list(write_shards(plan, path, begin_work(plan, path)))
    assert finish_store(path)
    run_plan(plan, path)
    for resume in (begin_work, hashed):
        with pytest.raises(StorageError, match="probekit repair"):  # so does a complete store
            resume(plan, path, check="hash")


def hashed(plan, path, check):
    run_plan(plan, path, engine=EngineOptions(check=check))


def test_a_cut_that_leaves_shards_out_is_not_followed(plan, tmp_path):
    path = tmp_path / "store"
    begin_work(plan, path)
    stored, every = read_plan(path), list(range(len(plan.shards)))
    write_cut(path, stored, [every[::2], every[1::2]])
    write_cut(path, stored, [every[:1], every[1:2], every[2:-1]])
    assert read_cuts(path, stored) == {2: [every[::2], every[1::2]]}
