"""A worker that knows only a store's path writes the shards that one process would have written, bit for bit."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from store_cases import flip, lasting, shard_of
from user_files import write_model, write_texts

from probekit.activations import load_activations, plan_extraction, run_plan
from probekit.activations.parts.work import ShardDone, begin_work, finish_store, open_work, write_shards
from probekit.activations.plan.plan import ExtractionPlan
from probekit.errors import DataError, ResumeMismatch, StorageError, UsageError
from probekit.interventions import add
from probekit.models import load_model
from probekit.options import ExtractOptions
from probekit.tasks import load_task

HOW: dict[str, Any] = {
    "points": "resid_pre,q",
    "batch_tokens": 128,
    "block_nodes": 64,
    "share": False,
    "shard_bytes": 6_000,
}
OPEN = "import sys; from probekit.activations.parts.work import *; plan = open_work(sys.argv[1]); "


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("given")
    return write_model(folder / "model"), write_texts(folder / "texts.csv", 60)


@pytest.fixture(scope="module")
def plan(files: tuple[Path, Path]) -> ExtractionPlan:
    model, texts = files
    return plan_extraction(load_model(str(model)), load_task(str(texts)), ExtractOptions(**HOW))


@pytest.fixture(scope="module")
def single(plan: ExtractionPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of one process."""
    path = tmp_path_factory.mktemp("single") / "store"
    run_plan(plan, path, progress=False)
    return path


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
    assert lasting(path) == lasting(single)
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
    assert lasting(path) == lasting(single)


def overtaken(numbers, plan, path):
    """The numbers; another worker writes shard 1 just before it is taken."""
    for number in numbers:
        if number == 1:
            assert [one.computed for one in write_shards(plan, path, [1])] == [True]
        yield number


def test_a_process_that_is_given_only_the_path_writes_the_same_bits(plan, single, tmp_path):
    path = tmp_path / "store"
    begin_work(plan, path)
    code = f"{OPEN}print(*[one.number for one in write_shards(plan, sys.argv[1], [3, 1])])"
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["3", "1"], ran.stderr
    for number in (1, 3):
        assert shard_of(path, number).read_bytes() == shard_of(single, number).read_bytes()


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
