"""The random-init baseline is what extracting with random weights gives, kept in the store and read again."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from store_cases import Stopped, assert_equal, files, lasting, stop_after

from probekit.activations import Store, import_activations, list_stores, newest_store, repair, verify
from probekit.activations.plan import build as planning
from probekit.activations.plan import identity
from probekit.activations.random_init import random_init_of
from probekit.activations.store.format import read_plan
from probekit.errors import ResumeMismatch, UsageError
from probekit.models import load_model
from probekit.tasks import Task, load_task
from probekit.verbs.extract import extract

HOW = {"points": ["resid_pre", "attn_out"], "layers": [0, 2], "position": ["last", "mean"], "dtype": "float16"}
HOW |= {"batch_tokens": 64, "block_nodes": 32, "bos": True, "progress": False}


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task("agreement", limit=20, seed=1)


@pytest.fixture(scope="module")
def made(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "store"
    extract(load_model("agreement-gpt2", device="cpu", dtype="bfloat16"), task, out=path, **HOW)
    return path


@pytest.fixture
def store(made: Path, path: Path) -> Path:
    shutil.copytree(made, path)
    return path


def test_it_is_what_the_same_extraction_with_random_weights_gives(store: Path, task: Task) -> None:
    before = lasting(store)
    found = random_init_of(store, seed=3, progress=False)
    assert isinstance(found, Store)
    assert found.path == store / "random-init-3"
    random = load_model("agreement-gpt2", device="cpu", dtype="bfloat16", random_init=True, seed=3)
    assert_equal(found, extract(random, task, **HOW))
    assert found.task.fingerprint() == task.fingerprint()
    assert not np.array_equal(found["resid_pre.0"], Store(store)["resid_pre.0"])
    own, other = read_plan(store).identity, read_plan(found.path).identity
    assert {key for key in own if own[key] != other[key]} == {"model_fingerprint"}
    assert {p: data for p, data in lasting(store).items() if p.parts[0] != "random-init-3"} == before


def test_a_finished_one_is_read_without_a_model_and_an_unfinished_one_resumes(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SHARD_FLOPS", {"cpu": 3e7})
    monkeypatch.setattr(identity, "ARITHMETIC", 3)  # the store is an older version's
    with monkeypatch.context() as patch:
        written = stop_after(patch, 1)
        with pytest.raises(Stopped):
            random_init_of(store, progress=False)
        assert written == [0]
    kept = {p: p.stat().st_mtime_ns for p in files(store / "random-init-0")}
    with monkeypatch.context() as patch:
        written = stop_after(patch, None)
        random_init_of(store, progress=False)
        assert 0 not in written
        assert written
    assert {p: p.stat().st_mtime_ns for p in kept if p.exists()}.items() <= kept.items()
    monkeypatch.setattr("probekit.models.load_model", lambda *_, **__: 1 / 0)
    assert random_init_of(Store(store)).meta["model"] == "agreement-gpt2-random0"


def test_it_is_separate_from_its_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_init_of(store, progress=False)
    assert verify(store).is_sound
    assert verify(store / "random-init-0").is_sound
    assert not repair(store).shards
    assert newest_store(store.parent) == store
    monkeypatch.chdir(store)
    assert newest_store(".") == Path()
    assert [one.state for one in list_stores(store.parent)] == ["complete", "complete"]
    (shard, *_) = (store / "random-init-0" / "shards").iterdir()
    shard.unlink()
    assert verify(store).is_sound
    assert repair(store / "random-init-0").complete


def test_another_store_in_its_place_is_refused(store: Path, tmp_path: Path, task: Task) -> None:
    random = load_model("agreement-gpt2", device="cpu", dtype="bfloat16", random_init=True, seed=5)
    extract(random, task, out=tmp_path / "there", **HOW)
    with pytest.raises(ResumeMismatch, match="model_fingerprint"):
        random_init_of(store, seed=6, out=tmp_path / "there", progress=False)


def test_what_names_no_model_is_refused_in_one_line(store: Path, task: Task, tmp_path: Path, tiny, letters) -> None:
    extract(tiny(), letters(), out=tmp_path / "code", progress=False)
    with pytest.raises(UsageError, match="does not record where its model was loaded from"):
        random_init_of(tmp_path / "code")
    with pytest.raises(UsageError, match="are in memory"):
        random_init_of(extract(tiny(), letters(), progress=False))  # pyright: ignore[reportArgumentType]
    random = random_init_of(store, progress=False)
    with pytest.raises(UsageError, match="holds random weights of seed 0 already; give the baseline another seed"):
        random_init_of(random)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="0 or more"):
        random_init_of(store, seed=-1)


def test_imports_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "resid_post.0.npy", np.random.default_rng(0).normal(size=(60, 4)).astype("f4"))
    rows = "".join(f"text {i},{i % 2}\n" for i in range(60))
    (tmp_path / "labels.csv").write_text(f"text,label\n{rows}")
    out = tmp_path / "store"
    import_activations(tmp_path, tmp_path / "labels.csv", out=out)
    with pytest.raises(UsageError, match="imported activations, which name no model"):
        random_init_of(out)
