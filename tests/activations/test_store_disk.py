"""What is on disk when: order of the writes, disks that refuse, two writers, the thread that writes."""

import gc
import os
import shutil
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from store_cases import HOW, plan_of, rows_of, run

from probekit.activations import Store, load_activations
from probekit.activations.store import examples as stored_examples
from probekit.activations.store import writer as writer_module
from probekit.activations.store.writer import StoreWriter
from probekit.errors import StorageError
from probekit.files import durable
from probekit.files.durable import seal, unseal

pytestmark = pytest.mark.usefixtures("small_shards")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads the names of open files from /proc")
def test_each_file_is_synced_before_it_has_a_name_and_its_folder_after(model, task, path, monkeypatch):
    monkeypatch.setattr(stored_examples, "PIECE_ROWS", 6)
    trace = []

    def watch(call):
        real = getattr(os, call)

        def traced(first, *rest):
            target = str(Path(f"/proc/self/fd/{first}").readlink()) if call == "fsync" else str(rest[0])
            trace.append((call, target, str(first), threading.get_ident()))
            return real(first, *rest)

        monkeypatch.setattr(durable.os, call, traced)

    for call in ("fsync", "replace", "link"):
        watch(call)
    run(model, task, path)
    named = [(i, thread) for i, (call, *_, thread) in enumerate(trace) if call != "fsync"]
    order = [Path(trace[i][1]).name for i, _ in named]
    for i, thread in named:  # several shards may be on their way at once, each in a thread of its own
        call, target, temporary, _ = trace[i]
        own = [j for j, step in enumerate(trace) if step[3] == thread]
        before, after = own[own.index(i) - 1], own[own.index(i) + 1]
        assert trace[before][:2] == ("fsync", temporary)
        assert trace[after][:2] == ("fsync", str(Path(target).parent))
        assert (call == "replace") == (Path(target).parent.name in ("shards", "examples"))
    n_pieces = len(unseal(path / "examples.json")[0]["pieces"])
    assert n_pieces > 3
    assert order[0] == "plan.json"
    assert set(order[1 : n_pieces + 1]) == {p.name for p in (path / "examples").iterdir()}
    assert order[n_pieces + 1] == "examples.json"
    assert order[-1] == "manifest.json"
    records = [name for name in order if len(name) == len("00000.json")]
    assert records == sorted(records)
    assert len(records) == len(plan_of(model, task, **HOW).shards)
    for name in records:
        assert order.index(unseal(path / "records" / name)[0]["file"]) < order.index(name)


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
    with pytest.raises(TypeError, match="JSON cannot hold a set"):
        seal({"set": {1}})
    for text in (b"", b"[]", b"{}", b"\xff", b"{" * 100_000, b'{"seal": 3}'):
        (tmp_path / "x.json").write_bytes(text)
        with pytest.raises(StorageError, match=r"x\.json"):
            unseal(tmp_path / "x.json")


def test_memory_of_a_run_to_disk_is_a_few_shards(model, letters, path, monkeypatch):
    """One at work and `IN_FLIGHT` on their way to the disk, however many texts there are; one, where they are large."""
    alive: list[weakref.ref] = []
    most = []
    write = StoreWriter.write

    def watch(self, number, rows, tensors):
        gc.collect()
        alive.append(weakref.ref(next(iter(tensors.values()))))
        written = write(self, number, rows, tensors)
        most.append(sum(x() is not None for x in alive))
        return written

    monkeypatch.setattr(StoreWriter, "write", watch)
    gc.freeze()  # what was there before is not looked at again by each collection
    try:
        run(model, letters(100), path)
        assert len(alive) > 15
        assert max(most) <= writer_module.IN_FLIGHT + 1
        monkeypatch.setattr(writer_module, "IN_FLIGHT_BYTES", 1)
        alive.clear()
        most.clear()
        run(model, letters(100), path.parent / "other")
        assert max(most) <= 2
    finally:
        gc.unfreeze()


def test_what_the_background_meets_is_raised_and_nothing_more_is_written(model, task, path, monkeypatch):
    for k in range(4):
        shutil.rmtree(path, ignore_errors=True)
        calls, real = [], writer_module.write_named

        def fail(*args, k=k, calls=calls, real=real):
            calls.append(args)
            if len(calls) > k:
                raise StorageError("no room")
            return real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(writer_module, "write_named", fail)
            with pytest.raises(StorageError, match="no room"):
                run(model, task, path)
        assert len(calls) <= k + writer_module.IN_FLIGHT  # those that were on their way, none of them with a record
        assert Store.progress(path)[0] == rows_of(plan_of(model, task, **HOW), range(k))
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("probekit-store")]
