"""A large task, whose texts and arrays are on disk, is the task; and memory does not grow with its texts."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cases import assert_equal, lasting, plan_of, run
from torch import Tensor

from probekit.activations import load_activations
from probekit.activations.plan import token_ids
from probekit.activations.plan.token_ids import Sequences
from probekit.activations.run.loop import empty_rows
from probekit.activations.store import examples as stored_examples
from probekit.files import scratch
from probekit.files.durable import each_of
from probekit.files.remote.path import as_path
from probekit.files.scratch import DiskList
from probekit.tasks import Task, load_task
from probekit.tasks.splitting.splits import carve_missing, components, first_rows, normalised_words, text_numbers

N = 60
TEXTS = ["q" + "".join(chr(97 + (k * j) % 26) for j in range(1, 1 + k % 11)) for k in range(N)]
LABELS: Any = [["no", "yes"][k % 2] for k in range(N)]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, a few rows are many."""

    def switch() -> None:
        monkeypatch.setattr(scratch, "IN_MEMORY", 16)
        monkeypatch.setattr(scratch, "PIECE", 7)
        monkeypatch.setattr(scratch, "LEAST_BYTES", 64)
        monkeypatch.setattr(token_ids, "SORTED_AT_ONCE", 8)

    return switch


def write_table(path: Path, texts: list[str], labels: list[Any]) -> Path:
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": texts, "label": labels}), path, row_group_size=11)
        return path
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    lines = (
        [json.dumps(row) for row in rows]
        if path.suffix == ".jsonl"
        else ["text,label", *map(",".join, zip(texts, labels, strict=True))]
    )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.parquet"])
def test_a_large_file_is_the_task_and_the_store_of_a_small_one(tmp_path, model, large, name):
    file = write_table(tmp_path / name, TEXTS, LABELS)
    small = load_task(file)
    stored = run(model, small, tmp_path / "small")
    large()
    task = load_task(file)
    assert isinstance(task.inputs, DiskList)
    assert isinstance(task.ids, DiskList)
    assert task.fingerprint() == small.fingerprint()
    assert task.info == small.info
    for field in ("splits", "labels", "label_names"):
        np.testing.assert_equal(getattr(task, field), getattr(small, field))
    assert_equal(run(model, task, tmp_path / "large"), stored)
    assert lasting(tmp_path / "large") == lasting(tmp_path / "small")
    loaded = load_activations(tmp_path / "large")
    assert loaded.task.inputs == small.inputs
    assert loaded.ids == small.ids
    assert loaded.task.fingerprint() == small.fingerprint()


def test_a_subset_of_a_large_task_is_that_of_a_small_one(large):
    small = Task("t", TEXTS, LABELS)
    large()
    task = Task("t", cast(Any, DiskList(TEXTS)), LABELS)
    rows = np.arange(N)[::-2]
    assert task.fingerprint() == small.fingerprint()
    assert task.subset(rows).fingerprint() == small.subset(rows).fingerprint()
    assert task.with_validation(0.2, 3) if not (task.splits == "validation").any() else True
    assert task.inputs[3:5] == small.inputs[3:5]


def test_ids_that_repeat_are_found_among_many(large):
    large()
    ids = DiskList([*map(str, range(N - 1)), "7"])
    with pytest.raises(ValueError, match="'7' occurs more than once"):
        Task("t", DiskList(TEXTS), LABELS, ids=ids)  # pyright: ignore[reportArgumentType]


SHORT = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2), max_size=40), st.lists(SHORT, min_size=1, max_size=30), st.sampled_from([1, 5, 99]))
def test_texts_are_sorted_by_their_tokens_however_few_fit(prefix, texts, at_once):
    texts = [prefix + own for own in texts]
    before, token_ids.SORTED_AT_ONCE = token_ids.SORTED_AT_ONCE, at_once
    try:
        sequences = Sequences.of(texts)
        order, shared = sequences.order.tolist(), sequences.shared.tolist()
    finally:
        token_ids.SORTED_AT_ONCE = before
    assert order == sorted(range(len(texts)), key=lambda i: (texts[i], i))
    for n, (one, other) in zip(shared[1:], pairwise(order), strict=True):
        assert texts[one][:n] == texts[other][:n]
        assert texts[one][: n + 1] != texts[other][: n + 1] or n == min(len(texts[one]), len(texts[other]))


WORDS = st.lists(st.sampled_from(["a", "A", "b.", "b .", "ab", "a b", "é", "e\u0301", "\ud800", " "]), max_size=3)


@settings(max_examples=100)
@given(st.lists(WORDS.map(" ".join), max_size=20))
def test_texts_have_one_number_if_their_words_are_equal(texts):
    known: dict[Any, int] = {}
    expected = [known.setdefault(tuple(normalised_words(text)), len(known)) for text in texts]
    assert text_numbers(texts).tolist() == expected


@settings(max_examples=60)
@given(st.lists(st.integers(-3, 9) | st.just(10**9), min_size=1, max_size=30))
def test_keys_as_an_array_and_as_a_list_are_carved_alike(keys):
    first, number = first_rows(np.array(keys))
    assert [keys[i] for i in first] == [*dict.fromkeys(keys)]
    assert [keys[first[k]] for k in number] == keys
    assert components(np.array(keys)).tolist() == components([*map(str, keys)]).tolist()
    labels, given = np.arange(len(keys)) % 2, ["train"] * len(keys)
    one = carve_missing(labels, given, keys, ["test"], 3)
    assert one.tolist() == carve_missing(labels, np.array(given), np.array(keys), ["test"], 3).tolist()


def test_few_pieces_of_an_object_store_are_held_however_many_there_are():
    begun = list[int]()
    results = each_of(as_path("memory://store"), begun.append, range(50), most=3)
    for taken, _ in enumerate(results, start=1):
        assert len(begun) <= taken + 3
    assert sorted(begun) == [*range(50)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_memory_of_a_shard_goes_back_although_later_ones_are_in_use():
    def own_megabytes() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon"))

    def filled() -> Tensor:
        x = torch.ones(1, 1000, dtype=torch.bfloat16)
        room = empty_rows(x, 4000)  # 8 MB
        assert (room.shape, room.dtype) == ((4000, 1000), x.dtype)
        return room.copy_(x.expand(4000, -1))

    del (first := [filled()])[0]  # from the first large block that is freed, malloc keeps such blocks
    shards = [filled() for _ in range(4)]
    before = own_megabytes()
    del shards[1:3], first
    assert before - own_megabytes() > 12
    assert all((x == 1).all() for x in shards)


def made_texts(n: int) -> Iterator[str]:
    rng = np.random.default_rng(0)
    return ("".join(map(chr, rng.integers(97, 123, 12))) for _ in range(n))


def test_python_memory_does_not_grow_with_the_texts(tmp_path, model, monkeypatch):
    """Of 100 bytes of text, label, id, splits, tokens and orders, a few numbers for each are held at one time."""
    monkeypatch.setattr(scratch, "IN_MEMORY", 512)
    monkeypatch.setattr(scratch, "PIECE", 256)
    monkeypatch.setattr(scratch, "LEAST_BYTES", 4096)
    monkeypatch.setattr(token_ids, "CHUNK", 256)
    monkeypatch.setattr(token_ids, "SORTED_AT_ONCE", 512)
    monkeypatch.setattr(stored_examples, "PIECE_ROWS", 256)
    peaks = []
    sizes = 600, 3600
    for n in sizes:
        file = tmp_path / f"{n}.jsonl"
        file.write_text(
            "".join(json.dumps({"text": one, "label": k % 2}) + "\n" for k, one in enumerate(made_texts(n)))
        )
        tracemalloc.start()
        try:
            plan = plan_of(model, load_task(file), points=["resid_pre"], layers=[0])
            plan.task.fingerprint()
            assert plan.packing.nodes > n
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]) < 130  # bytes for each text; 1,900 as lists of Python
