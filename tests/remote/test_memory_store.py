"""A store in an object store equals the one on disk file by file, and all that can be done with it works there."""

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from remote_cases import N_SHARDS, N, computed_shards, content, run_to
from store_cases import make_model

from probekit import engines
from probekit.activations import (
    Store,
    label_store,
    list_stores,
    load_activations,
    load_statistics,
    newest_store,
    random_init_of,
    repair,
    verify,
)
from probekit.activations.store import check
from probekit.activations.store.writer import CONTINUATIONS, StoreWriter
from probekit.cli.main import run as run_command
from probekit.errors import DataError, ResumeMismatch, StorageError, UsageError
from probekit.files.remote import attempts
from probekit.files.remote.attempts import NotReached
from probekit.files.remote.filesystems import filesystem
from probekit.files.remote.path import RemotePath, as_path
from probekit.options.engine import EngineOptions


class Stopped(Exception):
    pass


def stop_after(monkeypatch, n):
    write, written = StoreWriter.write, []

    def counted(self, number, *rest):
        if len(written) == n:
            raise Stopped
        written.append(number)
        return write(self, number, *rest)

    monkeypatch.setattr(StoreWriter, "write", counted)
    return written


def test_it_equals_the_store_on_disk_file_by_file(place, usual):
    store = run_to(str(place))
    assert isinstance(store, Store)
    assert content(place) == content(usual)
    assert len(list((place / "records").glob("*.json"))) == N_SHARDS
    local = load_activations(usual)
    for x in local:
        assert torch.equal(store[x], local[x])
    store.verify()
    assert verify(place).files == verify(usual).files
    assert verify(place).bytes == verify(usual).bytes


def test_parts_of_it_equal_those_of_the_store_on_disk(place, usual):
    run_to(place)
    store, local, rows = load_activations(place), load_activations(usual), [3, -1, 7, 7]
    assert torch.equal(store.read("q.1", rows), local.read("q.1", rows))
    for (one, x), (other, y) in zip(store.shards("resid_pre.2"), local.shards("resid_pre.2"), strict=True):
        assert np.array_equal(one, other)
        assert torch.equal(x, y)
    assert store.task.fingerprint() == local.task.fingerprint()


@pytest.mark.parametrize("check", ["hash", "size"])
def test_one_place_is_read_by_its_range(place, usual, monkeypatch, check):
    run_to(place)
    store, local = load_activations(place, check), load_activations(usual)
    read, asked = RemotePath.read_bytes, []

    def read_bytes(self, start=0, end=None):
        asked.append((self.name, start, end))
        return read(self, start, end)

    monkeypatch.setattr(RemotePath, "read_bytes", read_bytes)
    assert torch.equal(store["q.1"], local["q.1"])
    assert sum(end - start for _, start, end in asked) == local["q.1"].nbytes


def test_it_resumes_and_computes_what_is_missing(place, usual, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            run_to(place)
    with pytest.raises(StorageError, match="unfinished"):
        load_activations(place)
    there = list((place / "records").glob("*.json"))
    assert 0 < len(there) < N_SHARDS
    assert 0 < Store.progress(str(place))[0] < N
    computed = computed_shards(monkeypatch)
    run_to(place)
    assert computed == list(range(len(there), N_SHARDS))
    assert content(place) == content(usual)
    with pytest.raises(ResumeMismatch, match="dtype"):
        run_to(place, dtype="float16")


@pytest.mark.parametrize("where", ["shards/*", "records/*", "manifest.json"])
@pytest.mark.parametrize("how", ["alter", "cut", "remove"])
def test_damage_is_found_and_repaired(place, usual, where, how):
    run_to(place)
    file = random.Random(0).choice(sorted(place.glob(where)))
    data = file.read_bytes()
    if how == "remove":
        file.unlink()
    else:
        file.write_bytes(data[:-9] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    found = verify(place)
    assert found.broken or not found.finished
    with pytest.raises(StorageError):
        run_all(place)
    repair(place, make_model())
    assert verify(place).is_sound
    assert content(place) == content(usual)
    run_all(place)


@pytest.mark.parametrize("folder", ["records", "shards", "labels", "examples", "statistics"])
def test_a_connection_that_drops_is_no_damage(place, monkeypatch, folder):
    """Nothing is known of a file that could not be read, and repairing the store would not help."""
    run_to(place, stats=True)
    label_store(place, {f"train:{i + 100}": f"class{i % 2}" for i in range(N)}, name="new")
    files = filesystem("memory")
    cat, listing = files.cat_file, files.ls

    def drop(verb):
        def dropping(path, *rest, **how):
            if f"/{folder}" in path:
                raise ConnectionResetError("reset")
            return verb(path, *rest, **how)

        return dropping

    with monkeypatch.context() as patch:
        patch.setattr(attempts, "LONGEST_WAIT", 0.001)
        patch.setattr(files, "cat_file", drop(cat))
        patch.setattr(files, "ls", drop(listing))
        for verb in verify, list_stores:
            with pytest.raises(StorageError, match="no answer after 9 attempts"):
                verb(place)


def run_all(place) -> None:
    store = load_activations(place)
    for x in store:
        store[x]


def test_statistics_are_those_of_the_disk(place, tmp_path):
    run_to(place, stats=True)
    run_to(tmp_path / "local", stats=True)
    one, other = content(place), content(tmp_path / "local")
    assert one.keys() == other.keys()  # the sums have the names of their content
    assert any(name.startswith("statistics/") for name in one)
    assert load_statistics(place).places == load_statistics(tmp_path / "local").places
    assert verify(place).counted == N


def test_labels_join(place):
    run_to(place)
    label_store(place, {f"train:{i + 100}": f"class{i % 2}" for i in range(N)}, name="new")
    assert "new" in load_activations(place).labels
    assert verify(place).is_sound


def test_stores_are_listed_and_the_newest_found(place):
    for name in ("a", "examples/b"):  # a folder of this name is left out inside a store alone
        run_to(place / name)
    (place / "other" / "plan.txt").write_bytes(b"")
    (place / CONTINUATIONS / "x" / "plan.json").write_bytes(b"{}")
    found = list_stores(str(place))
    assert [str(one.path) for one in found] == [str(place / "a"), str(place / "examples" / "b")]
    assert all(one.is_complete and one.bytes > 0 for one in found)
    assert newest_store(place) in (place / "a", place / "examples" / "b")
    with pytest.raises(DataError, match="no complete store"):
        newest_store(place / "none")


def test_files_of_others_are_refused(place):
    (place / "notes.txt").write_bytes(b"mine")
    with pytest.raises(StorageError, match="not of a store"):
        run_to(place)


def test_the_commands_take_an_address(place, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_to(place)
    assert run_command(["verify", str(place), "--quiet"]) == 0
    assert run_command(["ls", str(place)]) == 0
    assert "complete: tiny on letters" in capsys.readouterr().out
    assert run_command(["train-probe", str(place), "--quick", "--layer", "1", "--probe", "mean-diff", "--json"]) == 0
    folder = json.loads(capsys.readouterr().out)["results"]
    assert folder.startswith("runs/memory-")
    assert (tmp_path / folder / "results.json").exists()
    assert run_command(["train-probe", str(place), "--out", "s3://b/x"]) == 2
    capsys.readouterr()
    for command in (["report"], ["compare", folder], ["export", "--to", "numpy"]):
        assert run_command([*command, str(place)]) == 2
        assert str(Path(folder).parent) in capsys.readouterr().err
    assert run_command(["verify", f"{place}/none"]) == 3
    assert run_command(["extract", "--model", "none/such", "--dataset", "agreement", "--out", str(place)]) == 2
    assert run_command(["extract", "--model", "none/such", "--dataset", "agreement", "--out", "abfs://b/x"]) == 2


def test_a_place_that_is_an_object_is_refused(place):
    (place / "notes.txt").write_bytes(b"mine")
    with pytest.raises(StorageError, match="is an object"):
        run_to(place / "notes.txt")


def test_workers_cannot_write_into_the_memory_of_this_process(place):
    plan: Any = None  # is not looked at
    with pytest.raises(UsageError, match="for workers"):
        engines.run(plan, place, EngineOptions(devices=["cpu", "cpu"]))


def test_a_baseline_needs_a_model_that_can_be_loaded(place):
    run_to(place)
    with pytest.raises(Exception, match="does not record where its model"):
        random_init_of(str(place))
    assert as_path(str(place)) == place


def test_a_check_ends_when_the_store_is_not_reached(place, monkeypatch):
    run_to(place)
    asked = []

    def gone(*_):
        asked.append(1)
        time.sleep(0.05)
        raise NotReached("the store does not answer")

    monkeypatch.setattr(check, "check_shard", gone)
    monkeypatch.setattr(check, "THREADS", 1)
    with pytest.raises(NotReached):
        verify(place)
    assert len(asked) <= 2 < N_SHARDS  # another may have begun meanwhile
