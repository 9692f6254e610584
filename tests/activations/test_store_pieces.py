"""The examples of a large task go into pieces: they read as one file does, whatever happens to a piece is noticed."""

import shutil
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from old_store import as_format_2, rows_in_json
from store_cases import Stopped, assert_equal, flip, lasting, run, shard_of, stop_after

from probekit.activations import Store, label_store, list_stores, load_activations, repair
from probekit.activations import verify as verify_store
from probekit.activations.layout import Layout
from probekit.activations.store import examples as writing
from probekit.activations.store.examples import check_examples, read_examples
from probekit.errors import ResumeMismatch, StorageError
from probekit.files.durable import seal
from probekit.selections import ALL, Selection
from probekit.tasks import Task

RNG = np.random.default_rng(0)
N = 40
IDS = [RNG.integers(0, 99, 1 + k % 5).tolist() for k in range(N)]
TEXTS = [f"text {k} of some words, é\u2028 \ud800 {'x' * (k % 9)}" for k in range(N)]
SPLITS = np.array(["train", "validation", "test"])[np.arange(N) % 3]
CLASSES = {"labels": {"a": np.arange(N) % 2}, "label_names": {"a": ["no", "yes"]}, "splits": SPLITS, "target": "a"}


def task_of(inputs, **changes):
    return Task("t", inputs, **{**CLASSES, "info": {"seed": 3}, **changes})


TASKS = {
    "texts": task_of(TEXTS, groups=[f"g{k // 2}" for k in range(N)]),
    "texts that repeat": task_of([TEXTS[k // 7] for k in range(N)], groups=np.arange(N) // 7),
    "without labels": Task("t", TEXTS),
    "several label sets": task_of(
        TEXTS,
        labels={"a": np.arange(N) % 2, "x": RNG.normal(size=N), "xy": RNG.normal(size=(N, 2))},
        label_names={"a": ["no", "yes"], "x": [], "xy": []},
    ),
    "token ids at indices": task_of(IDS, position=np.array([k % len(row) for k, row in enumerate(IDS)])),
    "a list for each of its tokens": task_of([IDS[k // 10] for k in range(N)], ids=list(range(N))),
    "words": task_of([TEXTS[k // 7] for k in range(N)], spans=np.array([[k % 4, 5] for k in range(N)])),
    "labels of tokens": Task(
        "t",
        IDS,
        token_labels={"s": [np.array(row) % 3 for row in IDS], "d": [np.array(row)[:, None] / 7.0 for row in IDS]},
        label_names={"s": ["0", "1", "2"], "d": []},
        splits=SPLITS,
        target="s",
    ),
    "pairs": task_of(TEXTS, targets=IDS),
}
ONE = Layout([Selection("last")], np.arange(N) % 4 + 2, 1, np.arange(N), 1)
EACH = Layout([ALL], np.arange(N) % 4 + 2, 1, np.arange((np.arange(N) % 4 + 1).sum()))
LAYOUTS = {
    "one": (ONE, [Selection("last")]),
    "each": (EACH, [ALL]),
    "two": (
        Layout([Selection.named("a"), Selection.named("per example")], ONE.lengths, 0),
        [Selection.named("a"), Selection.of(np.arange(N) - 3)],
    ),
}
PLAN: Any = SimpleNamespace(rows=N)


def round_trip(path, monkeypatch, rows, task, layout, positions):
    monkeypatch.setattr(writing, "PIECE_ROWS", rows)
    path.mkdir()
    writing.write_examples(path, task, layout, positions)
    check_examples(path, PLAN)
    return read_examples(path, PLAN)


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Selection):
        return one == other and same(one.each, other.each)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype.kind == other.dtype.kind and np.array_equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TASKS)
def test_pieces_read_as_one_file_does(tmp_path, monkeypatch, name, layout):
    task, (layout, positions) = TASKS[name], LAYOUTS[layout]
    whole = round_trip(tmp_path / "whole", monkeypatch, N, task, layout, positions)
    assert len(list((tmp_path / "whole" / "examples").iterdir())) == 1
    for rows in (7, N - 1):
        path = tmp_path / str(rows)
        read = round_trip(path, monkeypatch, rows, task, layout, positions)
        assert len(list((path / "examples").iterdir())) == -(-N // rows)
        for one, other in ((read, whole), (read.layout, whole.layout), (read.task, task)):
            known = {key: value for key, value in vars(one).items() if key not in ("task", "layout", "seal")}
            assert same(known, {key: vars(other)[key] for key in known})
        assert read.task.fingerprint() == whole.task.fingerprint() == task.fingerprint()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TASKS)
def test_examples_of_format_2_read_as_todays_do(tmp_path, monkeypatch, name, layout):
    task, (layout, positions) = TASKS[name], LAYOUTS[layout]
    today = round_trip(tmp_path / "today", monkeypatch, N, task, layout, positions)
    head = {"name": task.name, "target": task.target, "info": task.info, "label_names": task.label_names}
    for rows in (7, N):
        path = tmp_path / str(rows)
        (path / "examples").mkdir(parents=True)
        parts = [slice(k, min(k + rows, N)) for k in range(0, N, rows)]
        sealed = [seal(rows_in_json(task, layout, positions, one)) for one in parts]
        for data, checksum in sealed:
            (path / "examples" / f"{checksum}.json").write_bytes(data)
        rest = {"pieces": [one for _, one in sealed]} if rows < N else rows_in_json(task, layout, positions, parts[0])
        (path / "examples.json").write_bytes(seal(head | rest)[0])
        check_examples(path, PLAN)
        read = read_examples(path, PLAN)
        for one, other in ((read, today), (read.layout, today.layout), (read.task, task)):
            known = {key: value for key, value in vars(one).items() if key not in ("task", "layout", "seal")}
            assert same(known, {key: vars(other)[key] for key in known})


def test_a_piece_holds_a_text_once_and_is_not_much_larger_than_it_should_be(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "PIECE_BYTES", 1000)
    texts = [letter * 900 for letter in "abc" for _ in range(5)]
    task = Task("t", texts, {"a": np.arange(15) % 2}, {"a": ["x", "y"]}, spans=np.array([[0, 3]] * 15))
    writing.write_examples(
        tmp_path, task, Layout([Selection("last")], np.ones(15, dtype=np.int64), 0), [Selection("last")]
    )
    tables = [pq.read_table(p) for p in (tmp_path / "examples").iterdir()]
    assert len(tables) > 3
    for table in tables:
        there = [text for text in table["inputs"].to_pylist() if text is not None]
        assert len(there) == len(set(there)) == 1
    assert read_examples(tmp_path, SimpleNamespace(rows=15)).task.fingerprint() == task.fingerprint()  # type: ignore[arg-type]


def test_memory_of_writing_is_that_of_a_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "PIECE_ROWS", 50)
    texts = [f"{k} " + "word " * 200 for k in range(3000)]
    task = Task("t", texts)
    tracemalloc.start()
    writing.write_examples(
        tmp_path, task, Layout([Selection("last")], np.ones(3000, dtype=np.int64), 0), [Selection("last")]
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < sum(map(len, texts)) / 3


@pytest.mark.usefixtures("small_shards")
class TestAStore:
    @pytest.fixture(autouse=True)
    def small_pieces(self, monkeypatch):
        monkeypatch.setattr(writing, "PIECE_ROWS", 6)

    def test_what_happens_to_a_piece_is_noticed_and_named(self, model, task, path):
        run(model, task, path)
        pieces = sorted((path / "examples").iterdir())
        assert len(pieces) == 4
        good = {piece: piece.read_bytes() for piece in pieces}
        for change in (flip, lambda piece: piece.unlink(), lambda piece: piece.write_bytes(good[pieces[0]])):
            change(pieces[1])
            with pytest.raises(StorageError, match=pieces[1].name):
                load_activations(path)
            found = verify_store(path)
            assert [one.file for one in found.broken] == [f"examples/{pieces[1].name}"]
            assert "extract again" in found.advice
            with pytest.raises(StorageError, match=rf"{pieces[1].name}.* cannot be made again"):
                repair(path, model)
            with pytest.raises(StorageError, match=pieces[1].name):
                run(model, task, path)
            pieces[1].write_bytes(good[pieces[1]])
        assert verify_store(path).is_sound

    def test_a_run_stopped_between_pieces_ends_in_the_same_files(self, model, task, path, tmp_path, monkeypatch):
        run(model, task, tmp_path / "whole")
        write = writing.write_named
        for n in range(4):
            shutil.rmtree(path, ignore_errors=True)
            calls = []

            def stopped(*args, n=n, calls=calls):
                calls.append(args)
                if len(calls) > n:
                    raise Stopped
                return write(*args)

            with monkeypatch.context() as patch:
                patch.setattr(writing, "write_named", stopped)
                with pytest.raises(Stopped):
                    run(model, task, path)
            assert not (path / "examples.json").exists()
            assert Store.progress(path) == (0, 23)
            run(model, task, path)
            assert lasting(path) == lasting(tmp_path / "whole")

    @pytest.mark.parametrize("rows", [None, 6])
    def test_one_of_format_2_is_read_and_labelled_and_not_resumed(self, model, task, path, rows):
        made = run(model, task, path)
        tensors, fingerprint = {place: made[place] for place in made}, made.task.fingerprint()
        as_format_2(path, rows)
        read = load_activations(path)
        assert_equal(read, tensors)
        assert read.task.fingerprint() == fingerprint
        assert verify_store(path).is_sound
        assert [one.state for one in list_stores(path)] == ["complete"]
        label_store(path, {one: k % 2 for k, one in enumerate(task.ids)}, name="later")
        assert [*load_activations(path).labels] == [*task.labels, "later"]
        for again in (lambda: run(model, task, path), lambda: repair(path, model)):
            flip(shard_of(path, 0))
            with pytest.raises(ResumeMismatch, match=r"format 2.*can still be loaded; to go on, extract to another"):
                again()
            flip(shard_of(path, 0))

    def test_an_unfinished_one_of_format_2_is_not_resumed(self, model, task, path, monkeypatch):
        with monkeypatch.context() as patch:
            stop_after(patch, 2)
            with pytest.raises(Stopped):
                run(model, task, path)
        as_format_2(path)
        before = lasting(path)
        with pytest.raises(ResumeMismatch, match="format 2"):
            run(model, task, path)
        assert lasting(path) == before
