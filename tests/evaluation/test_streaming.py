import math
from typing import Any

import numpy as np
import pytest
import torch

from probekit.activations import load_activations
from probekit.activations.imports.run import import_activations
from probekit.activations.plan import build as planning
from probekit.activations.store.reader import Store
from probekit.errors import DataError, UsageError
from probekit.evaluation.fits.stream import stream_of
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.options.parse import n_bytes
from probekit.probes import LogisticProbe
from probekit.probes.problem import Labels, every_problem
from probekit.probes.stream import bytes_to_fit
from probekit.tasks.base import Task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 6)).astype(np.float32)
    np.save(tmp_path / "resid_pre.0.npy", X)
    np.save(tmp_path / "labels.npy", (X[:, 0] + rng.logistic(size=4000) > 0).astype(np.int64))
    return import_activations(tmp_path / "resid_pre.0.npy", tmp_path / "labels.npy", out=tmp_path / "store")


def test_a_stream_of_a_store_holds_its_rows_in_the_order_it_says(store):
    stream = stream_of(store, ("resid_pre", 0))
    assert stream is not None
    rows = torch.cat(list(stream.read()))
    assert stream.shape == (4000, 6)
    assert stream.order is not None
    torch.testing.assert_close(rows, store["resid_pre", 0][torch.from_numpy(stream.order)], rtol=0, atol=0)


def test_a_probe_of_a_stream_is_that_of_the_rows(store):
    problems = every_problem([Labels(store.labels[store.target], 2)], (0.01, 1.0))
    stream = stream_of(store, ("resid_pre", 0))
    assert stream is not None
    streamed = LogisticProbe().fit_many(stream, problems)
    held = LogisticProbe().fit_many(store["resid_pre", 0], problems)
    for one, other in zip(streamed, held, strict=True):
        assert one.converged_
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-3)


def test_tokens_of_shards_out_of_order_find_their_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "SHARD_BYTES", 20 * 16 * 4)
    model = GPT2(GPT2Config(d_model=16, n_heads=2, d_mlp=24, n_layers=1, n_ctx=12, d_vocab=27)).init_weights(0)
    rng = np.random.default_rng(0)
    task = Task(
        name="ids",
        inputs=[rng.integers(27, size=rng.integers(1, 12)).tolist() for _ in range(60)],
        labels={"odd": np.arange(60) % 2},
        label_names={"odd": ["no", "yes"]},
        splits=np.array(["train", "validation", "test"])[np.arange(60) // 2 % 3],
        target="odd",
    )
    store = extract(model, task, position="all", out=tmp_path / "store", batch_tokens=32, block_nodes=16)
    assert isinstance(store, Store)
    assert len(store.shard_examples()) > 1
    stream = stream_of(store, ("resid_pre", 0))
    assert stream is not None
    assert stream.order is not None
    assert (np.diff(stream.order) < 0).any()
    rows = torch.cat(list(stream.read()))
    torch.testing.assert_close(rows, store["resid_pre", 0][torch.from_numpy(stream.order)], rtol=0, atol=0)


CHECKS = {"controls": 1, "intervals": False, "C": [0.01, 1.0]}
RANKS = ("auroc", "average_precision", "spearman")  # equal tokens have equal scores, and rounding breaks the ties
ROOM = 5000  # of 120 rows of 16 numbers, 11 may be held


def written(tmp_path, name="store", position: Any = "all", n=120, monkeypatch=None):
    """A store of several shards whose labels a probe can learn from the tokens, and a label set that some rows lack."""
    model = GPT2(GPT2Config(d_model=16, n_heads=2, d_mlp=24, n_layers=1, n_ctx=12, d_vocab=27)).init_weights(0)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(27, size=rng.integers(3, 12)).tolist() for _ in range(n)]
    last = np.array([ids[-1] for ids in inputs])
    noise = rng.random(n) < 0.15
    task = Task(
        name="ids",
        inputs=inputs,
        labels={
            "odd": (last + noise) % 2,
            "third": np.where(np.arange(n) % 7 == 0, -1, (last + noise) % 3),
            "size": last + rng.normal(size=n),
        },
        label_names={"odd": ["no", "yes"], "third": ["a", "b", "c"], "size": []},
        splits=np.array(["train", "train", "validation", "test"])[np.arange(n) % 4],
        target="odd",
        info={"unlabelled": {"third": int((np.arange(n) % 7 == 0).sum())}},
    )
    if monkeypatch is not None:
        monkeypatch.setattr(planning, "SHARD_BYTES", 20 * 16 * 4)
    path = tmp_path / name
    extract(model, task, position=position, out=path, batch_tokens=32, block_nodes=16, points="resid_pre")
    return load_activations(path)


def assert_near(one, other, within):
    np.testing.assert_allclose(one, other, rtol=0, atol=within * np.abs(other).max())


def assert_same_results(streamed, held):
    """The same choices, and scores, predictions, controls and code lengths within what the certificates leave open.

    Closed forms are equal but for rounding. A gap of 1e-6 leaves weights free by about its square root.
    """
    within = 1e-9 if held.layers[0].gap is None else 3e-3
    assert [one.place for one in streamed.layers] == [one.place for one in held.layers]
    for one, other in zip(streamed.layers, held.layers, strict=True):
        assert (one.C, one.converged, one.late) == (other.C, other.converged, other.late)
        assert [C for C, _ in one.tried] == [C for C, _ in other.tried]
        assert_near(one.probe.coef_, other.probe.coef_, within)
        for split, scores in other.metrics.items():
            for name, value in scores.items():
                close = max(within, 1e-3) if name in RANKS else within
                assert one.metrics[split][name] == pytest.approx(value, rel=close, abs=close), (split, name)
        assert (one.control is None) == (other.control is None)
        assert one.control == pytest.approx(other.control, abs=1e-9) or one.control is None
        for name, value in (other.codelength or {}).items():
            assert one.codelength[name] == pytest.approx(value, rel=1e-3), name
        if one.gap is not None:
            assert one.gap <= 1e-6
        for name in held.rows.scores:
            assert_near(streamed.rows.scores[name], held.rows.scores[name], within)
            if name in held.rows.predicted:
                np.testing.assert_array_equal(streamed.rows.predicted[name], held.rows.predicted[name])
    for one, other in zip(streamed.baselines, held.baselines, strict=True):  # one of them is the probe of the embedding
        for split, scores in other.metrics.items():
            assert one.metrics[split] == pytest.approx(scores, rel=3e-3, abs=3e-3)
    np.testing.assert_allclose(streamed.spread.mean, held.spread.mean)


@pytest.fixture
def never_held(monkeypatch):
    """Fails where a complete place is read into memory."""

    def refuse(*_):
        raise AssertionError("a complete place was read into memory")

    return lambda: monkeypatch.setattr(Store, "_rows", refuse)


@pytest.mark.parametrize(
    ("label", "probe", "more"),
    [
        ("odd", "logistic", {}),
        ("third", "logistic", {"codelength": False}),
        ("odd", "ridge", {"C": [0.1, math.inf], "control_C": "own"}),
        ("third", "lda", {"C": None}),
        ("odd", "mean-diff", {"C": None}),
        ("size", "ridge", {}),
        ("odd", "ridge", {"folds": 3, "controls": 0}),
    ],
)
def test_a_place_that_memory_cannot_hold_gives_the_same_results(tmp_path, monkeypatch, never_held, label, probe, more):
    store = written(tmp_path, position="last", monkeypatch=monkeypatch)
    assert len(store.shard_examples()) > 2
    how = {"label": label, "probe": probe, **CHECKS, **more}
    held = train_probes(store, **how)
    never_held()
    said: list[str] = []
    streamed = train_probes(store, **how, memory=ROOM, on_part=said.append)
    assert_same_results(streamed, held)
    assert "fitting probes, resid_pre.0 from disk (pass 2)" in said


@pytest.mark.parametrize("position", ["mean", "last", "all", "-3:"])
def test_any_selection_of_tokens_is_streamed(tmp_path, monkeypatch, never_held, position):
    store = written(tmp_path, monkeypatch=monkeypatch)
    monkeypatch.setattr("probekit.evaluation.fits.stream.BLOCK_BYTES", 7 * 16 * 4)  # 7 rows: texts go over their ends
    how = {"label": "third", "position": position, "C": 0.1, "probe": "ridge", "controls": 0, "intervals": False}
    held = train_probes(store, **how)
    never_held()
    assert_same_results(train_probes(store, **how, memory=ROOM), held)


def test_parts_that_fit_are_held_and_the_rest_is_streamed(tmp_path, monkeypatch):
    store = written(tmp_path, position="last", monkeypatch=monkeypatch)
    how = {"label": "odd", **CHECKS, "C": 1.0, "controls": 0}
    held = train_probes(store, **how)
    for rows in (35, 70):  # of 120: first blocks of the code, training rows
        assert_same_results(train_probes(store, **how, memory=bytes_to_fit(rows, 16)), held)


def test_a_probe_that_needs_its_rows_in_memory_is_refused_with_the_arithmetic(tmp_path, monkeypatch):
    store = written(tmp_path, position="last", monkeypatch=monkeypatch)
    how = {"probe": "mlp", **CHECKS, "C": None, "controls": 0}
    least = 2 * 4 * 120 * 16
    with pytest.raises(DataError, match=r"the 120 rows x 16 of resid_pre\.0 take 0\.0 GB .*--memory.*--probe logistic"):
        train_probes(store, **how, memory=least - 1)
    assert train_probes(store, **how, memory=least).best.metrics


def test_not_a_number_on_disk_is_named_by_its_example(tmp_path, monkeypatch):
    store, bad = written(tmp_path, position="last", monkeypatch=monkeypatch), 77
    rows_of = store.shards

    def spoilt(place):
        for examples, rows in rows_of(place):
            rows[torch.from_numpy(examples == bad)] = torch.nan
            yield examples, rows

    monkeypatch.setattr(store, "shards", spoilt)
    with pytest.raises(DataError, match=rf"resid_pre\.0 hold NaN, first in row 77 \(example '{store.ids[bad]}'"):
        train_probes(store, memory=ROOM, C=1.0, controls=0, codelength=False)


@pytest.mark.parametrize("memory", ["none", "-1GB", 0, True, "8 apples", ""])
def test_a_memory_that_is_no_size_is_refused(store, memory):
    with pytest.raises(UsageError, match="memory"):
        train_probes(store, memory=memory)


def test_sizes_as_people_write_them():
    written_as = {"8GB": 8e9, "500 mb": 5e8, "1.5GiB": 1.5 * 2**30, "2G": 2e9, "1024": 1024, 77: 77, "3k": 3000}
    assert {text: n_bytes(text) for text in written_as} == written_as
