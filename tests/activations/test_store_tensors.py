"""A tensor is compared with its checksum once in a process, as long as its file has the same size, dates and inode."""

import os

import pytest
import torch
from store_cases import assert_equal, flip, run, shard_of

from probekit.activations import Store, load_activations
from probekit.activations.store import tensors
from probekit.errors import StorageError, UsageError
from probekit.files import durable

pytestmark = pytest.mark.usefixtures("small_shards")


@pytest.fixture
def hashed(monkeypatch):
    """Bytes that were hashed while tensors were read."""
    counts, real = [0], tensors.hashlib.sha256

    class Counting:
        def __init__(self):
            self.digest = real()
            self.hexdigest = self.digest.hexdigest

        def update(self, data):
            counts[0] += memoryview(data).nbytes
            self.digest.update(data)

    class Module:
        sha256 = Counting

    monkeypatch.setattr(tensors, "hashlib", Module)
    monkeypatch.setattr(tensors, "_intact", set())

    def since():
        n, counts[0] = counts[0], 0
        return n

    return since


@pytest.fixture
def settled(monkeypatch):
    """Every file counts as one that was last changed long ago."""
    monkeypatch.setattr(durable, "SETTLED", 0)


def altered(file):
    """Alter one bit, at another date: a clock may not have moved on."""
    before = file.stat().st_mtime_ns
    flip(file)
    os.utime(file, ns=(before + 10**6, before + 10**6))


@pytest.mark.usefixtures("settled")
def test_each_byte_is_hashed_once(model, task, path, hashed):
    memory = run(model, task)
    run(model, task, path)
    n_bytes, store = memory["q.0"].nbytes, load_activations(path)
    hashed()
    for place in store:
        assert torch.equal(store[place], memory[place])
        assert hashed() == n_bytes
        assert torch.equal(store[place], load_activations(path)[place])
        assert torch.equal(store.read(place, slice(3, 9)), memory[place][3:9])
        assert sum(len(rows) for rows, _ in store.shards(place)) == len(task)
        assert hashed() == 0
    store.verify()
    assert hashed() == n_bytes * len(store)


@pytest.mark.usefixtures("settled", "hashed")
def test_what_changes_after_it_was_read_is_noticed(model, task, path):
    store = run(model, task, path)
    last = list(store)[-1]
    assert store[last].isfinite().all()
    altered(shard_of(path, 1))
    for again in (store, load_activations(path)):
        with pytest.raises(StorageError, match=r"does not match its checksum"):
            again[last]


def test_a_file_that_has_just_changed_is_hashed_each_time(model, task, path, hashed):
    """Its date may stay the same when it changes again."""
    store = run(model, task, path)
    hashed()
    for _ in range(2):
        n_bytes = store["q.0"].nbytes
        assert hashed() == n_bytes


def test_checks_of_size_only(model, task, path, hashed):
    memory = run(model, task)
    run(model, task, path)
    hashed()
    store = load_activations(path, check="size")
    assert_equal(store, memory)
    assert hashed() == 0
    flip(shard_of(path, 1))
    assert not torch.equal(store[list(store)[-1]], memory[list(store)[-1]])
    with pytest.raises(StorageError, match="does not match its checksum"):
        store.verify()
    with shard_of(path, 2).open("ab") as file:
        file.write(b"x")
    for read in (lambda: store["q.0"], lambda: Store(path, "size")):
        with pytest.raises(StorageError, match=r"bytes instead of"):
            read()
    with pytest.raises(UsageError, match="check \\(--check\\) is one of hash, size; got 'crc'"):
        load_activations(path, check="crc")
