"""The store: equal to memory bit for bit, goes on where it stopped, and notices every altered byte."""

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from probekit import durable
from probekit.activations import Store, extract, load_activations, plan, planning
from probekit.activations import store as store_module
from probekit.activations.store import StoreWriter
from probekit.durable import seal, unseal
from probekit.errors import DataError, ResumeMismatch, StorageError

HOW = {"points": ["resid_pre", "q"], "batch_tokens": 30}
ROW_BYTES = 7 * 16 * 4


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(planning, "SHARD_BYTES", 6 * ROW_BYTES)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "store"


def run(model, task, out=None, **changes):
    return extract(model, task, out=out, **{**HOW, **changes})


def files(path):
    return sorted(p for p in path.rglob("*") if p.is_file())


def lasting(path):
    """Every file but the manifest, whose date differs, with its bytes."""
    return {p.relative_to(path): p.read_bytes() for p in files(path) if p.name != "manifest.json"}


def assert_equal(one, other):
    assert list(one) == list(other)
    for place, x in one.items():
        assert x.dtype is other[place].dtype
        assert torch.equal(x.view(torch.uint8), other[place].view(torch.uint8))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("position", ["last", "mean"])
def test_disk_holds_what_memory_holds(model, task, path, dtype, position):
    store = run(model, task, path, dtype=dtype, position=position)
    assert isinstance(store, Store)
    assert len(list((path / "shards").iterdir())) >= 2
    assert_equal(store, run(model, task, dtype=dtype, position=position))
    store.verify()


def test_what_stands_beside_the_tensors_comes_back(model, letters, path):
    task = letters(shortest=4)
    task = replace(task, position=np.arange(len(task)) % 4, groups=np.arange(len(task)) // 2)
    made, memory = run(model, task, path), run(model, task)
    store = load_activations(path)
    assert store.task.fingerprint() == task.fingerprint() == store.meta["task_fingerprint"]
    assert store.inputs == task.inputs
    assert store.ids == task.ids
    assert store.label_names == task.label_names
    assert (store.target, store.points, store.n_layers) == ("odd", ["resid_pre", "q"], 3)
    assert np.array_equal(store.labels["third"], task.labels["third"])
    assert store.labels["third"].dtype == np.int64
    assert np.array_equal(store.splits, task.splits)
    assert store.groups is not None
    assert np.array_equal(store.groups, np.arange(len(task)) // 2)
    assert np.array_equal(store.task.position, task.position)
    assert store.curve("resid_pre") == memory.curve("resid_pre")
    assert memory.meta.keys() <= store.meta.keys()
    same = memory.meta.keys() - {"created"}
    assert {key: store.meta[key] for key in same} == json.loads(json.dumps({key: memory.meta[key] for key in same}))
    assert repr(made).startswith("Store(tiny on letters: 23 texts x 7 places, 0.0 MB; resid_pre 0-2, resid_post 2, q")
    assert "resid_pre.1" in store
    assert ("v", 0) not in store


def test_texts_may_hold_anything(tiny, letters, path):
    model, task = tiny(), letters(texts=True)
    task.inputs[:4] = ["\ud800 lone", "\u2028\x00\x1b[31m", "</script>", '"\\u00e9"']
    model.tokenizer.encode_batch = lambda texts, bos: [[ord(c) % 27 for c in text] for text in texts]
    assert run(model, task, path).inputs == task.inputs
    assert load_activations(path).task.fingerprint() == task.fingerprint()


def test_the_layout(model, task, path):
    run(model, task, path)
    made = plan(model, task, **HOW)
    n = len(made.shards)
    names = {"plan.json", "texts.json", "manifest.json", *(f"records/{k:05d}.json" for k in range(n))}
    found = {str(p.relative_to(path)) for p in files(path)}
    assert found - names == {f"shards/{unseal(path / f'records/{k:05d}.json')[0]['file']}" for k in range(n)}
    record = json.loads((path / "records" / "00000.json").read_text())
    assert record["rows"] == np.concatenate(made.shards[0]).tolist()
    assert set(record["tensors"]) == {f"{point}.{layer}" for point, layer in made.places}
    manifest = json.loads((path / "manifest.json").read_text())
    assert len(manifest["examples"]["text_sha256"]) == 23
    assert manifest["examples"]["ids"] == task.ids


def test_no_batch_stands_in_two_shards(model, task):
    made = plan(model, task, **HOW)
    assert len(made.shards) >= 4
    assert sorted(np.concatenate(made.batches).tolist()) == list(range(23))
    assert made.shard_rows == 6


class Stopped(Exception):
    pass


def stop_after(monkeypatch, n, error: type[BaseException] = Stopped):
    """Let n shards be written whole and stop before the next one; count the batches."""
    written = []
    write = StoreWriter.write

    def counted(self, number, rows, tensors):
        if len(written) == n:
            raise error
        write(self, number, rows, tensors)
        written.append(number)

    monkeypatch.setattr(StoreWriter, "write", counted)
    return written


def test_a_run_stopped_at_any_shard_ends_in_the_same_files(model, task, path, tmp_path, monkeypatch):
    whole = run(model, task, tmp_path / "whole")
    shards = plan(model, task, **HOW).shards
    for n in range(len(shards)):
        shutil.rmtree(path, ignore_errors=True)
        with monkeypatch.context() as patch:
            stop_after(patch, n)
            with pytest.raises(Stopped):
                run(model, task, path)
        rows = sum(len(batch) for shard in shards[:n] for batch in shard)
        assert Store.progress(path) == (rows, 23)
        with pytest.raises(StorageError, match=rf"unfinished, {rows} of 23 rows .* same extract command again"):
            load_activations(path)
        with monkeypatch.context() as patch:
            written = stop_after(patch, None)
            store = run(model, task, path)
        assert written == list(range(n, len(shards)))
        assert_equal(store, whole)
        assert lasting(path) == lasting(tmp_path / "whole")


def test_ctrl_c_keeps_what_is_committed(model, task, path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 2, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run(model, task, path)
    kept, total = Store.progress(path)
    assert 0 < kept < total == 23
    assert_equal(run(model, task, path), run(model, task))


def test_a_complete_store_is_returned_without_any_work(model, task, path, monkeypatch):
    first = run(model, task, path)
    parts = [p for p in files(path) if p.name != "manifest.json"]  # whose date says when it was last asked for
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in parts}
    monkeypatch.setattr(model, "forward", lambda *_, **__: pytest.fail("the model ran"))
    assert_equal(run(model, task, path), first)
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in parts} == before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"points": "resid_pre"}, r"points: \['resid_pre', 'q'\] there, \['resid_pre'\] here"),
        ({"layers": "0,1"}, "places: "),
        ({"dtype": "bfloat16"}, "dtype: 'float32' there, 'bfloat16' here"),
        ({"position": "mean"}, "position: 'last' there, 'mean' here"),
        ({"position": np.zeros(23, dtype=int)}, "position: 'last' there, 'sha256:"),
        ({"batch_tokens": 31}, "batch_tokens: 30 there, 31 here"),
        ({"on_long": "error"}, "on_long: 'cut' there, 'error' here"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_other_settings_are_refused_field_by_field(model, task, path, changes, field, complete, monkeypatch):
    with monkeypatch.context() as patch:
        if not complete:
            stop_after(patch, 1)
        with pytest.raises(Stopped) if not complete else monkeypatch.context():
            run(model, task, path)
    before = lasting(path)
    with pytest.raises(ResumeMismatch, match=field) as raised:
        run(model, task, path, **changes)
    assert raised.value.exit_code == 5
    assert "\n" not in str(raised.value)
    assert lasting(path) == before


def test_another_model_or_task_is_refused(tiny, letters, path):
    run(tiny(), letters(longest=11), path)
    with pytest.raises(ResumeMismatch, match=r"\(model_fingerprint: '[0-9a-f]{23}\.\.\."):
        run(tiny(seed=1), letters(longest=11), path)
    with pytest.raises(ResumeMismatch, match=r"config\.ln_eps: 1e-05 there, 0\.1 here"):
        run(tiny(ln_eps=0.1), letters(longest=11), path)
    with pytest.raises(ResumeMismatch, match="task_fingerprint"):
        run(tiny(), letters(longest=11, seed=3), path)
    with pytest.raises(ResumeMismatch, match="bos: False there, True here"):
        run(tiny(), letters(longest=11), path, bos=True)
    renamed = tiny()
    renamed.name = "other"
    assert run(renamed, letters(longest=11), path).meta["model"] == "tiny"
    with pytest.raises(ResumeMismatch, match="model: 'tiny' there, 'other' here; dtype"):
        run(renamed, letters(longest=11), path, dtype="float16")


def read_all(path):
    store = load_activations(path)
    store.verify()
    return {place: x.clone() for place, x in store.items()}, store.task.fingerprint()


def test_every_flipped_bit_is_noticed(model, task, path):
    """Or it changed nothing that is read, such as the case of a letter in `1e-05`."""
    run(model, task, path)
    tensors, fingerprint = read_all(path)
    rng = np.random.default_rng(0)
    noticed = 0
    for k in range(300):
        victim = files(path)[k % len(files(path))]
        good = victim.read_bytes()
        bad = bytearray(good)
        bad[rng.integers(len(bad))] ^= 1 << int(rng.integers(8))
        victim.write_bytes(bad)
        error = None
        try:
            found, same = read_all(path)
        except StorageError as raised:
            error = str(raised)
        else:
            assert victim.suffix == ".json"
            assert same == fingerprint
            assert all(torch.equal(x, tensors[place]) for place, x in found.items())
        noticed += error is not None
        assert error is None or victim.name in error or "belong together" in error
        victim.write_bytes(good)
    assert noticed > 290
    read_all(path)


def test_every_truncated_or_deleted_file_is_noticed(model, task, path):
    run(model, task, path)
    for victim in files(path):
        good = victim.read_bytes()
        for size in (0, 1, len(good) // 2, len(good) - 1):
            victim.write_bytes(good[:size])
            if json_equal(good, good[:size]):
                continue
            with pytest.raises(StorageError, match=victim.name):
                load_activations(path)
        victim.unlink()
        missing = "unfinished, 23 of 23 rows" if victim.name == "manifest.json" else f"{victim.name}|belong together"
        with pytest.raises(StorageError, match=missing):
            load_activations(path)
        victim.write_bytes(good)
    read_all(path)


def json_equal(good, bad):
    """Whether only the newline at the end is gone."""
    return good.rstrip() == bad.rstrip()


def test_a_damaged_place_does_not_hide_the_others(model, task, path):
    run(model, task, path)
    record, _ = unseal(path / "records" / "00001.json")
    shard = path / "shards" / record["file"]
    data = bytearray(shard.read_bytes())
    data[record["tensors"]["q.1"]["offset"] + 5] ^= 4
    shard.write_bytes(data)
    store = load_activations(path)
    assert torch.equal(store["resid_pre.1"], run(model, task)["resid_pre.1"])
    with pytest.raises(StorageError, match=rf"{shard.name}.* is damaged: q\.1"):
        store["q.1"]
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


def test_a_damaged_shard_stops_a_run_that_goes_on(model, task, path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(Stopped):
            run(model, task, path)
    shard = next((path / "shards").iterdir())
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(StorageError, match=shard.name):
        run(model, task, path)


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../../etc/passwd"},
        {"file": "0" * 64 + ".safetensors"},
        {"rows": [0, 1]},
        {"rows": "abc"},
        {"rows": [2**70]},
        {"n_bytes": 10},
        {"plan": "0" * 64},
        {"tensors": {"q.0": {"dtype": "float32"}}},
        {"tensors": []},
    ],
)
def test_records_that_lie_are_refused(model, task, path, change):
    run(model, task, path)
    record = path / "records" / "00001.json"
    record.write_bytes(seal({**unseal(record)[0], **change})[0])
    with pytest.raises(StorageError, match=r"00001\.json' is no record of this store"):
        load_activations(path)


def test_a_record_of_other_rows_does_not_belong(model, task, path):
    run(model, task, path)
    shutil.copy(path / "records" / "00001.json", path / "records" / "00002.json")
    with pytest.raises(StorageError, match="do not belong together"):
        load_activations(path)


def test_a_store_of_another_format_says_so(model, task, path):
    run(model, task, path)
    body, _ = unseal(path / "plan.json")
    (path / "plan.json").write_bytes(seal({**body, "identity": {**body["identity"], "version": 2}})[0])
    with pytest.raises(StorageError, match="format 2, this probekit reads 1; extract again"):
        load_activations(path)


def test_what_is_no_store(model, task, tmp_path):
    with pytest.raises(DataError, match=r"no store at .*nothing"):
        load_activations(tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match="holds something that is no store"):
        run(model, task, tmp_path)
    with pytest.raises(StorageError, match=r"notes\.txt"):
        run(model, task, tmp_path / "notes.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    run(model, task, tmp_path / "empty")


@pytest.mark.parametrize("call", ["fsync", "replace", "link"])
def test_a_disk_that_refuses_leaves_nothing_partial(model, task, path, call, monkeypatch):
    memory, real = run(model, task), getattr(os, call)
    for k in range(40):
        calls = []

        def fail(*args, k=k, calls=calls):
            calls.append(args)
            if len(calls) == k + 1:
                raise OSError(28, "No space left on device")
            return real(*args)

        error = None
        with monkeypatch.context() as patch:
            patch.setattr(durable.os, call, fail)
            try:
                run(model, task, path)
            except StorageError as raised:
                error = raised
        assert not list(path.rglob(".tmp-*"))
        if (path / "plan.json").exists():
            Store.progress(path)
        assert_equal(run(model, task, path), memory)
        shutil.rmtree(path.parent)
        if error is None:
            assert len(calls) == k
            return
        assert "No space left on device" in str(error)
        assert str(path.parent) in str(error)
    pytest.fail("the run never outlived its faults")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads the names of open files from /proc")
def test_each_file_is_synced_before_it_has_a_name_and_its_folder_after(model, task, path, monkeypatch):
    trace = []

    def watch(call):
        real = getattr(os, call)

        def traced(first, *rest):
            target = str(Path(f"/proc/self/fd/{first}").readlink()) if call == "fsync" else str(rest[0])
            trace.append((call, target, str(first)))
            return real(first, *rest)

        monkeypatch.setattr(durable.os, call, traced)

    for call in ("fsync", "replace", "link"):
        watch(call)
    run(model, task, path)
    named = [i for i, (call, *_) in enumerate(trace) if call != "fsync"]
    for i in named:
        call, target, temporary = trace[i]
        assert trace[i - 1][:2] == ("fsync", temporary)
        assert trace[i + 1][:2] == ("fsync", str(Path(target).parent))
        assert (call == "replace") == target.endswith(".safetensors")
    order = [Path(trace[i][1]).name for i in named]
    assert order[:2] == ["plan.json", "texts.json"]
    assert order[-1] == "manifest.json"
    for k in range(len(plan(model, task, **HOW).shards)):
        record = order.index(f"{k:05d}.json")
        assert order[record - 1] == unseal(path / "records" / order[record])[0]["file"]


def test_the_first_of_two_writers_wins(model, task, path):
    made = plan(model, task, **HOW)
    writers = [StoreWriter(path, made.identity, "tiny", task) for _ in range(2)]
    for k, batches in enumerate(made.shards):
        rows = np.concatenate(batches)
        for value, writer in [(k, writers[k % 2]), (-1, writers[1 - k % 2])]:
            writer.write(k, rows, {place: torch.full((len(rows), 16), float(value)) for place in made.places})
    meta = store_meta(model, task)
    for writer in writers:
        assert all(writer.has(k, np.concatenate(batches)) for k, batches in enumerate(made.shards))
        writer.finish(meta)
    store = load_activations(path)
    store.verify()
    for k, batches in enumerate(made.shards):
        assert (store["q.0"][np.concatenate(batches)] == k).all()


def store_meta(model, task):
    return run(model, task).meta


def test_a_file_system_without_hard_links(model, task, path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(durable.os, "link", refuse)
    store = run(model, task, path)
    assert_equal(store, run(model, task))
    assert not durable.write_first(path / "plan.json", b"other")
    assert not list(path.rglob(".tmp-*"))


def test_only_old_temporary_files_are_swept(model, task, path):
    run(model, task, path)
    old, new = path / "shards" / ".tmp-1-a", path / "records" / ".tmp-2-b"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    load_activations(path)
    run(model, task, path)
    assert not old.exists()
    assert new.exists()


def test_sealed_json(tmp_path):
    body = {"a": 1, "e": 1e-5, "text": "\u2028\ud800", "np": np.int64(3), "path": tmp_path, "list": np.arange(2)}
    data, checksum = seal(body)
    (tmp_path / "x.json").write_bytes(data)
    back, same = unseal(tmp_path / "x.json")
    assert same == checksum
    assert back == {**body, "np": 3, "path": str(tmp_path), "list": [0, 1]}
    with pytest.raises(ValueError, match="JSON"):
        seal({"nan": float("nan")})
    with pytest.raises(TypeError, match="no place in JSON"):
        seal({"set": {1}})
    for text in (b"", b"[]", b"{}", b"\xff", b"{" * 100_000, b'{"seal": 3}'):
        (tmp_path / "x.json").write_bytes(text)
        with pytest.raises(StorageError, match=r"x\.json"):
            unseal(tmp_path / "x.json")


def test_memory_of_a_run_to_disk_is_one_shard(model, letters, path, monkeypatch):
    """No more than the shard at work is alive, however many texts there are."""
    alive, packed = [], store_module.pack

    def watch(tensors):
        alive.append(sum(x.numel() * 4 for x in tensors.values()))
        return packed(tensors)

    monkeypatch.setattr(store_module, "pack", watch)
    run(model, letters(200), path)
    assert len(alive) > 30
    assert max(alive) <= 30 * ROW_BYTES
