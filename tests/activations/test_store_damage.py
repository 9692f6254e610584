"""A store notices every altered byte, and what cannot be."""

import contextlib
import hashlib
import os
import shutil

import numpy as np
import pytest
import torch
from store_cases import Stopped, files, flip, lasting, run, shard_of, stop_after

from probekit.activations import load_activations, verify
from probekit.activations.store.format import read_plan, read_record
from probekit.activations.store.shard import Record, TensorRecord, record_body
from probekit.activations.store.writer import StoreWriter
from probekit.errors import StorageError
from probekit.files.durable import seal, unseal

pytestmark = pytest.mark.usefixtures("small_shards")


def read_all(path):
    load_activations(path).verify()


def test_a_damaged_place_does_not_hide_the_others(model, task, path):
    run(model, task, path)
    record, _ = read_record(path, read_plan(path), 1)
    shard = shard_of(path, 1)
    flip(shard, record.offset("q.1") + 5)
    store = load_activations(path)
    assert torch.equal(store["resid_pre.1"], run(model, task)["resid_pre.1"])
    for read in (store.__getitem__, lambda key: store.read(key, record.rows[:1]), lambda key: list(store.shards(key))):
        read("resid_pre.1")
        with pytest.raises(StorageError, match=rf"{shard.name}.* is damaged: q\.1 .*; run: probekit repair"):
            read("q.1")
    with pytest.raises(StorageError, match=shard.name):
        store.verify()


def test_tensors_do_not_change_with_the_file(model, task, path):
    store = run(model, task, path)
    x = store["resid_pre.1"]
    before = x.clone()
    for shard in (path / "shards").iterdir():
        shard.write_bytes(b"")
    assert torch.equal(x, before)
    with pytest.raises(StorageError, match="0 bytes instead of"):
        store["resid_pre.1"]


@pytest.mark.parametrize("check", ["size", "hash"])
def test_a_damaged_shard_stops_a_run_that_resumes(model, task, path, monkeypatch, check):
    """One that is cut short by its size, one with another bit by its hash alone."""
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            run(model, task, path)
    shard = shard_of(path, 1)
    whole = shard.read_bytes()
    if check == "size":
        shard.write_bytes(whole[:-1])
    else:
        flip(shard)
    with pytest.raises(StorageError, match=f"{shard.name}.*probekit repair"):
        run(model, task, path, check=check)
    if check == "hash":
        run(model, task, path)  # by size it goes unnoticed here, and is found as soon as it is read
        with pytest.raises(StorageError, match=f"{shard.name}.*does not match its checksum.*probekit repair"):
            load_activations(path).verify()


SHA = "0" * 64


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../../etc/passwd"},
        {"file": f"{SHA}.safetensors"},
        {"file": 3},
        {"rows": "abc"},
        {"rows": [2**70]},
        {"rows": [-1]},
        {"rows": [0.5]},
        {"rows": [True]},
        {"rows": [[0]]},
        {"rows": [3, 3]},
        {"rows": []},
        {"n_bytes": 10},
        {"n_bytes": 10**30},
        {"plan": SHA},
        {"tensors": {"q.0": {"dtype": "float32"}}},
        {"tensors": {"q.0": {"dtype": "float32", "shape": [10**12, 10**12], "sha256": SHA}}},
        {"tensors": {"q.0": {"dtype": "float32", "shape": [-1, -16], "sha256": SHA}}},
        {"tensors": {"q.0": {"dtype": "object", "shape": [1, 16], "sha256": SHA}}},
        {"tensors": {"q.0": {"dtype": "float32", "shape": [1, 16], "sha256": "../"}}},
        {"tensors": []},
        {"tensors": {}},
    ],
)
def test_records_that_lie_are_refused(model, task, path, change):
    run(model, task, path)
    record = path / "records" / "00001.json"
    record.write_bytes(seal({**unseal(record)[0], **change})[0])
    with pytest.raises(StorageError, match=r"00001\.json' is not a record of this store"):
        load_activations(path)
    assert [one.file for one in verify(path).broken] == ["records/00001.json"]


def rewritten(path, number, rows, tensors):
    """A record that agrees with itself, with the checksums of a manifest that names it."""
    plan_seal = read_plan(path).seal
    file = path / "records" / f"{number:05d}.json"
    data, checksum = seal({"plan": plan_seal, **record_body(Record(np.array(rows), tensors))})
    file.write_bytes(data)
    manifest, _ = unseal(path / "manifest.json")
    manifest["records"][number:] = [checksum, *manifest["records"][number + 1 :]]
    (path / "manifest.json").write_bytes(seal(manifest)[0])


def test_records_that_agree_with_themselves_alone_are_refused(model, task, path):
    run(model, task, path)
    plan_file, other = read_plan(path), read_record(path, read_plan(path), 0)[0]
    record, _ = read_record(path, plan_file, 1)
    huge = {name: TensorRecord(x.dtype, (10**11, 16), x.sha256) for name, x in record.tensors.items()}
    lies = {
        "do not hold every row once": (other.rows[: len(record.rows)], record.tensors),
        "has too many or too few rows for its examples": (record.rows, huge),
        "not hold the rows and places of the plan": (record.rows, {"q.0": record.tensors["q.0"]}),
        "the rows and places of the": ([*record.rows[:-1], 10**9], record.tensors),
    }
    before = lasting(path), (path / "manifest.json").read_bytes()
    for message, (rows, tensors) in lies.items():
        rewritten(path, 1, rows, tensors)
        with pytest.raises(StorageError, match=message):
            load_activations(path)
        assert verify(path).broken
        for name, data in before[0].items():
            (path / name).write_bytes(data)
        (path / "manifest.json").write_bytes(before[1])
    load_activations(path)


@pytest.mark.parametrize("name", ["plan.json", "examples.json", "manifest.json"])
def test_wrong_types_anywhere_are_one_storage_error(model, task, path, name):
    """Each value of each file replaced by each of these, with a checksum that fits."""
    run(model, task, path)
    body, _ = unseal(path / name)
    for value in (None, True, -1, 2**70, "x", [[]], [None], {"a": 1}):
        for change in changed(body, value):
            (path / name).write_bytes(seal(change)[0])
            for read in (load_and_read, verify):
                with contextlib.suppress(StorageError):
                    read(path)


def changed(body, value):
    for key, old in body.items():
        yield {**body, key: value}
        if isinstance(old, dict) and key in ("identity", "layout", "labels", "label_names"):
            yield from ({**body, key: inner} for inner in changed(old, value))


def load_and_read(path):
    repr(load_activations(path)["q.0"])


def test_links_pipes_and_folders_in_a_store_are_refused(model, task, path, tmp_path):
    run(model, task, path)
    for victim in [*files(path), path / "records", path / "shards"]:
        moved = victim.rename(tmp_path / "moved")
        victim.symlink_to(moved)
        with pytest.raises(StorageError, match=rf"{victim.name}.*(: a link| is a link or a file)"):
            read_all(path)
        assert verify(path).broken
        victim.unlink()
        if moved.is_file():
            os.mkfifo(victim)
            with pytest.raises(StorageError, match=rf"{victim.name}.*: a pipe, not a regular file"):
                read_all(path)
            victim.unlink()
        moved.rename(victim)
    read_all(path)


def test_a_shard_with_another_header_is_noticed(model, task, path):
    """Even when every tensor is as it was."""
    run(model, task, path)
    flip(shard_of(path, 2), 20)
    assert [one.file for one in verify(path).broken] == [f"shards/{shard_of(path, 2).name}"]


@pytest.mark.parametrize("name", ["00002.json", "00009.json", "2.json", "../plan.json", "x"])
def test_records_that_do_not_belong(model, task, path, name):
    run(model, task, path)
    file = path / "records" / name
    if file.exists():
        file.unlink()
    shutil.copy(path / "records" / "00001.json", file)
    with pytest.raises(StorageError, match=r"belong together|is not a record|rows and places|has format None"):
        load_activations(path)
    assert verify(path).broken


def test_numbers_of_rows_and_shards_that_no_store_has_are_not_believed(model, task, path):
    """Nothing is counted up to them, and no memory is taken for them, not even where the manifest cannot say better."""
    run(model, task, path)
    body, _ = unseal(path / "plan.json")
    (path / "manifest.json").write_bytes(b"{}")
    for huge in ({"rows": 2**39, "shards": 2**39}, {"rows": 2**24, "shards": 2**24}):
        (path / "plan.json").write_bytes(seal({**body, "identity": {**body["identity"], **huge}})[0])
        assert "is not a plan of a store" in verify(path).broken[0].why


def test_gaps_are_noticed(model, task, path):
    run(model, task, path)
    (path / "records" / "00001.json").unlink()
    with pytest.raises(StorageError, match=r"missing or not its own: 00001\.json"):
        load_activations(path)
    assert [one.file for one in verify(path).broken] == ["records/00001.json"]


def test_a_store_of_another_format_says_so(model, task, path):
    run(model, task, path)
    body, _ = unseal(path / "plan.json")
    (path / "plan.json").write_bytes(seal({**body, "identity": {**body["identity"], "version": 1}})[0])
    with pytest.raises(StorageError, match="format 1, and this probekit reads formats 2 and 3; extract again"):
        load_activations(path)


def test_a_shard_of_other_rows_is_not_taken_for_this_runs(model, task, path):
    run(model, task, path)
    plan = read_plan(path)
    writer, (record, _) = StoreWriter(path, plan), read_record(path, plan, 1)
    assert writer.has(1, record.rows)
    with pytest.raises(StorageError, match="holds rows of another run; name another folder"):
        writer.has(1, record.rows[::-1])


def test_a_checksum_is_of_all_bytes_however_many_are_written_at_once(model, task, path, monkeypatch):
    monkeypatch.setattr("probekit.activations.store.shard.CHUNK", 64)
    run(model, task, path)
    store, (record, _) = load_activations(path), read_record(path, read_plan(path), 1)
    values = store.read("resid_pre.1", record.rows)
    assert values.nbytes > 2 * 64
    assert record.tensors["resid_pre.1"].sha256 == hashlib.sha256(values.numpy().tobytes()).hexdigest()
    store.verify()
