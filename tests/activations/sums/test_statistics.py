"""Statistics equal those of all rows, whatever order, interruption or resumption brought them together."""

import os
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from old_store import as_format_2, as_old_sums
from store_cases import plan_of

from probekit.activations import (
    Statistics,
    Store,
    extract_statistics,
    load_activations,
    load_statistics,
    merge_stores,
    statistics_bytes,
    statistics_progress,
)
from probekit.activations.plan import build as planning
from probekit.activations.run import loop
from probekit.activations.store.shard import Record, TensorRecord
from probekit.activations.store.writer import StoreWriter
from probekit.activations.sums import statistics, tally
from probekit.activations.sums.statistics import sum_tensors
from probekit.activations.sums.tally import Tally
from probekit.errors import DataError, StorageError, UsageError
from probekit.files.durable import seal, unseal
from probekit.files.run import question_digest
from probekit.options import ExtractOptions
from probekit.points import UnknownPoint
from probekit.tasks.base import SPLITS
from probekit.verbs.extract import extract

HOW: dict[str, Any] = {"points": ["resid_pre", "mlp_post"], "batch_tokens": 40, "block_nodes": 40}
ROW_BYTES = (4 * 16 + 3 * 24) * 4


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(planning, "SHARD_BYTES", 6 * ROW_BYTES)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "store"


def with_store(model, task, path, **changes):
    store = extract(model, task, out=path, stats=True, **{**HOW, **changes})
    assert isinstance(store, Store)
    return store.statistics


def sums_only(model, task, path=None, progress=None, **changes):
    return extract_statistics(model, task, ExtractOptions(**{**HOW, **changes}), out=path, progress=progress)


def assert_same_bits(one: Statistics, other: Statistics):
    assert list(one) == list(other)
    assert one.label_names == other.label_names
    ours, theirs = sum_tensors(one), sum_tensors(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for key, moments in one.items():
        assert moments.count == other[key].count
        assert str(moments.class_counts) == str(other[key].class_counts)


def assert_closed_form(moments, X, labels, n_classes, tolerance=1e-12):
    """Against plain float64 numpy on all rows at once."""
    X = X.double().numpy()
    close: Any = {"rtol": tolerance, "atol": tolerance * max(1, np.abs(X).max() ** 2 * len(X))}
    assert moments.count == len(X)
    np.testing.assert_allclose(moments.sum, X.sum(axis=0), **close)
    np.testing.assert_allclose(moments.gram, X.T @ X, **close)
    np.testing.assert_allclose(moments.mean, X.mean(axis=0), **close)
    np.testing.assert_allclose(moments.covariance, np.cov(X.T, bias=True), **close)
    for name, y in labels.items():
        Y = np.eye(n_classes[name])[y]
        np.testing.assert_array_equal(moments.class_counts[name], Y.sum(axis=0))
        np.testing.assert_allclose(moments.xty(name), X.T @ Y, **close)


@pytest.mark.parametrize("position", ["last", "mean", 0, "all"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_statistics_are_the_closed_form_on_all_rows(model, task, path, position, dtype):
    how = {**HOW, "position": position, "dtype": dtype}
    sums, rows = sums_only(model, task, path, **how), extract(model, task, **how)
    assert len(plan_of(model, task, **how).shards) >= 3 or position == 0
    assert sums.places == list(rows)
    assert sums.splits == list(SPLITS)
    assert len(sums) == 7 * 3
    n_classes = {"odd": 2, "third": 3}
    for place, X in rows.items():
        examples = np.repeat(np.arange(len(task)), rows.layout.counts(place))
        for split in SPLITS:
            own = np.flatnonzero(task.splits[examples] == split)
            labels = {name: given[examples[own]] for name, given in task.labels.items()}
            assert_closed_form(sums[place, split], X[own], labels, n_classes)
        whole = sums[place, "train"] + sums[place, "validation"] + sums[place, "test"]
        assert_closed_form(whole, X, {name: given[examples] for name, given in task.labels.items()}, n_classes)


def test_with_a_store_without_one_and_in_memory_they_are_the_same_bits(model, task, path, tmp_path):
    memory = sums_only(model, task)
    assert memory.n_bytes == statistics_bytes(task, plan_of(model, task, **HOW).widths)
    assert_same_bits(memory, with_store(model, task, path))
    assert_same_bits(memory, sums_only(model, task, tmp_path / "alone"))
    assert_same_bits(memory, load_statistics(tmp_path / "alone"))
    assert_same_bits(memory, load_statistics(memory.save(tmp_path / "saved")))
    with pytest.raises(StorageError, match=r"saved' already holds statistics"):
        memory.save(tmp_path / "saved")
    store = load_activations(path)
    assert_same_bits(memory, store.statistics)
    for place, x in extract(model, task, **HOW).items():
        assert torch.equal(store[place], x)


def test_their_source_is_recorded_with_them(model, task, path):
    made = sums_only(model, task, path)
    found = load_statistics(path)
    assert found.meta["task_fingerprint"] == task.fingerprint()
    assert found.meta["model"] == "tiny"
    assert made.meta.keys() == found.meta.keys()
    assert found.label_names == task.label_names
    assert repr(found).startswith("Statistics(tiny on letters: 7 places x train, validation, test, 0.")
    assert found["resid_pre.1", "train"] is found[("resid_pre", 1), "train"]
    for strange in (("resid_pre.1", "trian"), ("q.0", "train")):
        with pytest.raises(UnknownPoint, match=r"there are resid_pre\.0, .*; train, validation, test"):
            found[strange]
        assert strange not in found


def test_label_sets_of_any_name_and_splits_without_examples(model, task, path):
    task.labels["../\ud800 x"], task.label_names["../\ud800 x"] = task.labels.pop("third"), ["a", "b", "c"]
    task = replace(task, label_names={name: task.label_names[name] for name in task.labels})
    task = replace(task, splits=np.where(task.splits == "test", "train", task.splits))
    assert_same_bits(sums_only(model, task, path), load_statistics(path))
    found = load_statistics(path)
    assert found.splits == ["train", "validation"]
    assert found["resid_pre.1", "train"].class_counts["../\ud800 x"].sum() == (task.splits == "train").sum()


@pytest.mark.parametrize("other", [{"block_nodes": 128}, {"batch_tokens": 1000}, {"share": False}])
def test_the_order_of_work_changes_nothing(model, task, other):
    """In float64, where the order of the model's own sums is below the rounding of what is kept."""
    model.double()
    one, two = sums_only(model, task), sums_only(model, task, **other)
    for key in one:
        for a, b in zip((one[key].gram, one[key].covariance), (two[key].gram, two[key].covariance), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12 * float(one[key].gram.abs().max()))
        assert torch.equal(one[key].class_counts["odd"], two[key].class_counts["odd"])


class Stopped(BaseException):
    pass


def stop_at(monkeypatch, shard):
    """Stop when this shard is about to be computed; the shards that are computed."""
    compute, computed = loop.compute_shard, []

    def counted(plan, number, *args):
        if number == shard:
            raise Stopped
        computed.append(number)
        return compute(plan, number, *args)

    monkeypatch.setattr(loop, "compute_shard", counted)
    return computed


@pytest.mark.parametrize(("make", "often"), [(with_store, True), (sums_only, True), (sums_only, False)])
def test_stopped_at_any_shard_it_ends_in_the_same_bits(model, task, tmp_path, monkeypatch, make, often):
    whole, n = sums_only(model, task), len(plan_of(model, task, **HOW).shards)
    assert n >= 4
    for k in range(n):
        path = tmp_path / str(k)
        with monkeypatch.context() as patch:
            patch.setattr(Tally, "_is_due", lambda _: often)
            stop_at(patch, k)
            with pytest.raises(Stopped):
                make(model, task, path)
        counted = (statistics_progress(path) or (0,))[0]
        assert (counted > 0) == (k > 0 and often)
        with pytest.raises((StorageError, DataError), match=r"unfinished|no statistics at"):
            load_statistics(path)
        with monkeypatch.context() as patch:
            computed = stop_at(patch, None)
            assert_same_bits(make(model, task, path), whole)
        assert_same_bits(load_statistics(path), whole)
        # shards on disk are read, counted ones are skipped
        assert computed == list(range(k if often or make is with_store else 0, n))
        assert_nothing_old(path)


def assert_nothing_old(path):
    (record,) = (path / "statistics").glob("*.json")
    assert {p.name for p in (path / "statistics").iterdir()} == {unseal(record)[0]["file"], record.name}


def test_a_complete_store_gets_its_statistics_without_the_model(model, task, path, monkeypatch):
    extract(model, task, out=path, **HOW)
    with pytest.raises(DataError, match=r"no statistics at .*--stats"):
        _ = load_activations(path).statistics
    computed = stop_at(monkeypatch, None)
    sums = with_store(model, task, path)
    assert computed == []
    assert_same_bits(sums, sums_only(model, task))
    assert len(computed) > 0
    computed.clear()
    monkeypatch.setattr(StoreWriter, "read", lambda *_: pytest.fail("read again"))
    assert_same_bits(with_store(model, task, path), sums_only(model, task, path))
    assert computed == []


def test_statistics_without_activations_can_become_a_store(model, task, path):
    made = sums_only(model, task, path)
    assert list((path / "shards").iterdir()) == []
    with pytest.raises(DataError, match=r"holds statistics and no activations: .*without --stats-only"):
        load_activations(path)
    extract(model, task, out=path, **HOW)
    assert_same_bits(load_activations(path).statistics, made)


def test_checkpoints_are_seldom(model, task, path, monkeypatch):
    times, writes = iter(range(0, 10_000, 10)), []
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    write = tally.write_sums
    monkeypatch.setattr(tally, "write_sums", lambda *args: (writes.append(1), write(*args))[1])
    sums_only(model, task, path, progress=False)
    assert 2 <= len(writes) < len(plan_of(model, task, **HOW).shards)


def test_a_checkpoint_that_a_newer_one_replaces_while_it_is_read_is_no_damage(model, task, path, monkeypatch):
    half_done(model, task, path, monkeypatch)
    counted, list_them = statistics_progress(path), statistics.list_sums
    stale = [{(1, 1): [(1, "1-of-1-00001")]}]  # listed, and gone when it is opened
    monkeypatch.setattr(statistics, "list_sums", lambda run: stale.pop() if stale else list_them(run))
    assert counted is not None
    assert statistics_progress(path) == counted
    assert stale == []


@pytest.mark.parametrize("read", ["resume", "check", "merge"])
def test_sums_whose_shard_a_faster_run_removes_meanwhile_are_read_anew(model, task, path, tmp_path, monkeypatch, read):
    """Another worker writes the last record, and removes the one that this one has just read, with its shard."""
    folder, check_header = half_done(model, task, path, monkeypatch), statistics.check_header
    counted, before = statistics_progress(path), {file: file.read_bytes() for file in folder.iterdir()}
    (record,) = folder.glob("*.json")
    if read == "merge":  # which takes complete ones
        before[record] = seal({**unseal(record)[0], "shards": 3})[0]
    whole = sums_only(model, task, path)
    after = {file: file.read_bytes() for file in folder.iterdir()}

    def replace_files(old, new):
        for file in old:
            file.unlink()
        for file, data in new.items():
            file.write_bytes(data)

    def overtaken(*args):
        monkeypatch.setattr(statistics, "check_header", check_header)
        replace_files(before, after)
        return check_header(*args)

    replace_files(after, before)
    monkeypatch.setattr(statistics, "check_header", overtaken)
    if read == "check":
        assert statistics_progress(path, check=True) == counted, "as it was when the records were listed"
    elif read == "resume":
        assert_same_bits(sums_only(model, task, path), whole)
    else:
        assert merge_stores([path], tmp_path / "merged").counted
        assert_same_bits(load_statistics(tmp_path / "merged"), whole)


def test_only_old_shards_that_no_record_names_are_removed(model, task, path, monkeypatch):
    """Of damaged records and those of older versions too, since what they name can be read by those."""
    folder, names = half_done(model, task, path, monkeypatch), [f"{i:064x}.safetensors" for i in range(4)]
    for name in names:
        (folder / name).write_bytes(b"sums")
        os.utime(folder / name, (0, 0))
    os.utime(folder / names[3])
    (folder / "00012.json").write_bytes(seal({"files": {"a": {"file": names[0]}}})[0])
    (folder / "2-of-3-00001.json").write_bytes(b"damaged" + seal({"file": names[1]})[0])
    statistics.remove_orphans(statistics.sums_at(path))
    assert [name for name in names if (folder / name).exists()] == [names[0], names[1], names[3]]


def half_done(model, task, path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Tally, "_is_due", lambda _: True)
        stop_at(patch, 3)
        with pytest.raises(Stopped):
            sums_only(model, task, path)
    return path / "statistics"


def test_a_checkpoint_of_other_shards_is_noticed(model, task, path, monkeypatch):
    folder = half_done(model, task, path, monkeypatch)
    (record,) = folder.glob("*.json")
    body, _ = unseal(record)
    changes = ({"order": "0" * 64}, {"rows": [0, 1, 3]}, {"shards": 99}, {"plan": "0" * 64})
    for change, said in zip(
        changes, [*["counted other shards than this run has"] * 3, "is of another run"], strict=True
    ):
        record.write_bytes(seal(body | change)[0])
        with pytest.raises(StorageError, match=said):
            sums_only(model, task, path)


def rename(body, old, new, place, last=False):
    """Give a place another name, with all that agrees; `last` moves its tensors behind those of the others."""
    ours = {name: x for name, x in body["tensors"].items() if name.startswith(f"{old}.")}
    others = {name: x for name, x in body["tensors"].items() if name not in ours}
    ours = {name.replace(old, new): x for name, x in ours.items()}
    body["tensors"] = {**others, **ours} if last else {**ours, **others}
    body["counts"] = {name.replace(f"{old}.", f"{new}."): x for name, x in body["counts"].items()}
    body["places"] = [place if f"{one[0]}.{one[1]}" == old else one for one in body["places"]]
    tensors = {name: TensorRecord(**{**x, "shape": tuple(x["shape"])}) for name, x in body["tensors"].items()}
    record = Record(np.array(body["rows"]), tensors)
    body.update(file=record.file, n_bytes=record.n_bytes)


HOSTILE = [
    lambda body: body.update(file="../../plan.json"),
    lambda body: body.update(file=None),
    lambda body: body["tensors"].pop("resid_pre.0.train.gram"),
    lambda body: body["tensors"]["resid_pre.0.train.gram"].update(shape=[10**9, 10**9]),
    lambda body: body["tensors"]["resid_pre.0.shift"].update(dtype="float32"),
    lambda body: body.update(places=[["resid_pre", 10**30]] * 7),
    lambda body: body.update(places=[["resid_mad", 1]]),
    lambda body: body.update(places=[]),
    lambda body: body.update(splits=["train", "tset"]),
    lambda body: body.update(splits=[["train"]]),
    lambda body: body.update(splits=["train", "train", "validation", "test"]),
    lambda body: body.update(label_names=[["odd", ["no", "yes", "more"]], ["third", ["0", "1", "2"]]]),
    lambda body: body.update(label_names="odd"),
    lambda body: body["counts"].pop("resid_pre.0.train"),
    lambda body: body["counts"].update({"resid_pre.0.train": [3, [[1, 2]]]}),
    lambda body: body.update(meta=None),
    lambda body: body.update(part=[2, 1]),
    lambda body: body.update(rows=[]),
    lambda body: body.update(rows=[0, 0]),
    lambda body: body.update(shards=1),
    lambda body: body.update(texts=["1", 2]),
    lambda body: body.update(format="probekit sums 3"),
    lambda body: body["counts"].update({"resid_pre.0.train": [1, [[1, 0], [10**30, 0, 0]]]}),
    lambda body: body["counts"].update({"resid_pre.0.train": [10**30, [[1, 0], [1, 0, 0]]]}),
    lambda body: body["counts"].update({"resid_pre.0.train": [-1, [[1, 0], [1, 0, 0]]]}),
    lambda body: body["places"].append(body["places"][0]),
    lambda body: body.update(part=[1, 2]),
    lambda body: body.update(rows=body["rows"][1:]),
    lambda body: rename(body, "resid_pre.0", "attn_pattern.0", ["pattern", 0]),
    lambda body: rename(body, "resid_pre.0", "resid_pre.0", ["resid_pre", 0], last=True),
]


def test_a_false_record_is_refused(model, task, path):
    sums_only(model, task, path)
    (record,) = (path / "statistics").glob("*.json")
    for lie in HOSTILE:
        body, whole = unseal(record)[0], record.read_bytes()
        lie(body)
        record.write_bytes(seal(body)[0])
        with pytest.raises(StorageError):
            load_statistics(path)
        record.write_bytes(whole)


def test_nan_is_refused_even_where_the_record_agrees(model, task, path, tmp_path):
    moments = {key: one.around(one.shift / 0) for key, one in sums_only(model, task).items()}
    Statistics(moments, task.label_names, {}).save(path)
    with pytest.raises(StorageError, match=r"1-of-1-00001.json' holds NaN or infinity; remove it"):
        load_statistics(path)


def test_sums_of_older_versions_are_read(model, task, path, tmp_path):
    """Those of a store of format 2, and saved ones, whatever happens to a file."""
    made = with_store(model, task, path)
    as_old_sums(path, question_digest(unseal(path / "plan.json")[0]["identity"] | {"version": 2}))
    as_format_2(path)
    made.save(tmp_path / "saved")
    as_old_sums(tmp_path / "saved")
    for place in (path, tmp_path / "saved"):
        assert_same_bits(load_statistics(place), made)
        assert statistics_progress(place, check=True) == statistics_progress(place) == (23, 23)
    with pytest.raises(StorageError, match="already holds statistics"):
        made.save(tmp_path / "saved")
    for file in sorted((path / "statistics").iterdir()):
        whole = file.read_bytes()
        for damaged in (whole[: len(whole) // 2], whole[:-9] + b"~" + whole[-8:]):
            file.write_bytes(damaged)
            with pytest.raises(StorageError, match=rf"{file.name}.*remove (it|'.*statistics/00004.json'), and run"):
                load_statistics(path)
        file.write_bytes(whole)
    body = unseal(record := path / "statistics" / "00004.json")[0]
    lies = [{"widths": [-1] * 7}, {"places": [["resid_mad", 1]] * 7}, {"splits": ["tset"]}, {"files": {}}]
    for lie in [*lies, {"progress": body["progress"] | {"plan": ""}}, {"splits": ["train"]}]:
        record.write_bytes(seal(body | lie)[0])
        with pytest.raises(StorageError):
            load_statistics(path)


def test_statistics_of_another_store_are_noticed(model, tiny, task, path, tmp_path):
    sums_only(model, task, path)
    extract(tiny(seed=1), task, out=tmp_path / "other", **HOW)
    (path / "statistics").rename(tmp_path / "other" / "statistics")
    with pytest.raises(StorageError, match="is of another run than the store"):
        _ = load_activations(tmp_path / "other").statistics


def test_what_cannot_be_counted_is_refused_before_anything_runs(model, task, path, monkeypatch):
    computed = stop_at(monkeypatch, None)
    with pytest.raises(UsageError, match="statistics need one position, or all; got first, last"):
        sums_only(model, task, path, position=["first", "last"])
    with pytest.raises(UsageError, match=r"attn_pattern\.0 belongs to pairs"):
        sums_only(model, task, points=["resid_pre", "attn_pattern"])
    with pytest.raises(UsageError, match="writes to a store, and none is named"):
        extract(model, task, stats=True, **HOW)
    with pytest.raises(DataError, match=r"labels of 'odd' must be 0\.\.1 to be counted, example 'train:100' has -1"):
        sums_only(model, replace(task, labels={**task.labels, "odd": task.labels["odd"] - 1}))
    monkeypatch.setattr("probekit.activations.run.loop.free_bytes", lambda device: 50_000)
    with pytest.raises(UsageError, match=r"\(7 places x 3 splits x 16/24 squared, float64\) .* take fewer layers"):
        sums_only(model, task, path)
    assert computed == []
