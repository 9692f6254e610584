"""A curve for each head equals the curve of that head's numbers alone; a planted head is found, and only that one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_configs import tiny_model

from probekit.activations import Store, load_activations
from probekit.activations.activations import Activations, ActivationSet
from probekit.activations.layout import Layout
from probekit.activations.plan import build
from probekit.errors import DataError, UsageError
from probekit.evaluation import HeadResults, PositionResults
from probekit.points import Place
from probekit.selections import Selection
from probekit.tasks.base import Task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

N = 160
HOW: dict[str, Any] = {"C": (0.1, 1.0)}
ALONE: dict[str, Any] = {**HOW, "controls": 0, "codelength": False, "baselines": False}
POINTS = ["z", "q", "k", "v", "resid_pre", "attn_pattern"]


def make_task(**changes: Any) -> Task:
    rng = np.random.default_rng(3)
    inputs = [rng.integers(3, 50, size=rng.integers(3, 9)).tolist() for _ in range(N)]
    given: dict[str, Any] = {
        "name": "draws",
        "inputs": inputs,
        "labels": {"odd": np.array([one[-1] % 2 for one in inputs]), "sum": np.array([sum(one) / 9 for one in inputs])},
        "label_names": {"odd": ["even", "odd"], "sum": []},
        "splits": np.array(["train", "train", "validation", "test"])[np.arange(N) % 4],
        "target": "odd",
    }
    return Task(**{**given, **changes})


@pytest.fixture(scope="module")
def acts() -> Activations:
    """Of a Llama with 4 heads and fewer heads of keys and values."""
    return extract(tiny_model("llama-grouped"), make_task(), points=POINTS, position="last")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The same activations of all tokens in several shards."""
    path = tmp_path_factory.mktemp("heads") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "SHARD_BYTES", 200 * 32 * 4)
        extract(tiny_model("llama-grouped"), make_task(), points=["z"], position="all", out=path, block_nodes=8)
    found = load_activations(path)
    assert len(found.shard_examples()) > 2
    return found


def alone(acts: Activations, point: str, head: int, n_heads: int) -> ActivationSet:
    """The numbers of one head, by indexing."""
    tensors = {place: acts[place].chunk(n_heads, dim=1)[head].clone() for place in acts if place[0] == point}
    return ActivationSet(tensors, acts.task, layout=acts.layout)


def assert_same_curve(one: Any, other: Any) -> None:
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        assert (mine.place, mine.C, mine.metrics, mine.intervals) == (
            theirs.place, theirs.C, theirs.metrics, theirs.intervals
        )  # fmt: skip
        assert mine.p_value == theirs.p_value


@pytest.mark.parametrize(("point", "label"), [("z", "odd"), ("q", "sum"), ("k", "odd"), ("v", "odd")])
def test_each_head_is_the_curve_of_its_own_numbers(acts: Activations, point: str, label: str) -> None:
    config = acts.meta["config"]
    n_heads = config["n_kv_heads"] if point in "kv" else config["n_heads"]
    assert config["n_kv_heads"] < config["n_heads"]
    results = train_probes(acts, by="head", point=point, label=label, **HOW)
    assert isinstance(results, HeadResults)
    assert [one.position for one in results.heads] == [str(head) for head in range(n_heads)]
    for head in range(n_heads):
        assert_same_curve(results[head], train_probes(alone(acts, point, head, n_heads), label=label, **ALONE))


def test_a_store_of_all_tokens_gives_the_heads_of_one_token(acts: Activations, store: Store) -> None:
    one, other = (train_probes(each, by="head", position="last", **HOW) for each in (acts, store))
    assert one.meta["point"] == other.meta["point"] == "z"  # the first that has heads
    np.testing.assert_allclose(one.matrix, other.matrix, atol=0.03)  # other batches: sums in another order
    assert [each.n for each in one.positions] == [each.n for each in other.positions]


def test_every_token_may_be_an_example(store: Store) -> None:
    results = train_probes(store, by="head", position="all", quick=True, layers=[1], C=1.0)
    tokens = store.at("all")
    own = alone(tokens, "z", 2, 4)
    expected = train_probes(own, quick=True, layers=[1], C=1.0, baselines=False)
    assert results[2].layers[0].metrics == expected.layers[0].metrics
    assert results[2].n["test"] == sum(
        len(one) for one, s in zip(store.inputs, store.splits, strict=True) if s == "test"
    )


def planted(seed: int, strength: float) -> ActivationSet:
    """Noise in 3 layers of 4 heads; head 2 of layer 1 holds the label."""
    rng, n = np.random.default_rng(seed), 400
    y = rng.integers(0, 2, n)
    x = rng.standard_normal((3, n, 4, 5)).astype(np.float32)
    x[1, :, 2, 0] += strength * (2 * y - 1)
    splits = np.array(["train", "train", "validation", "test"])[np.arange(n) % 4]
    task = Task(
        name="noise", inputs=[[i] for i in range(n)], labels={"y": y}, label_names={"y": ["no", "yes"]}, splits=splits,
        target="y",
    )  # fmt: skip
    tensors = {Place("z", layer): torch.from_numpy(x[layer].reshape(n, -1)) for layer in range(3)}
    meta = {"model": "noise", "task": "noise", "points": ["z"], "n_layers": 3, "config": {"n_heads": 4}}
    return ActivationSet(tensors, task, meta, Layout([Selection("last")], np.ones(n, dtype=np.int64), 0))


def test_a_planted_head_is_selected_and_the_only_one_above_chance() -> None:
    results = train_probes(planted(0, 1.5), by="head", **HOW)
    head, layer = results.best
    assert (head.position, layer.layer) == ("2", 1)
    assert [(one.position, i) for one in results.heads for i, p in enumerate(one.corrected) if (p or 0) <= 0.05] == [
        ("2", 1)
    ]
    assert ", at head 2, z.1 (*)" in results.summary()
    assert "1 of 12 cells are above chance" in results.summary()


def test_with_no_information_a_cell_is_called_above_chance_in_one_world_of_twenty() -> None:
    found = [train_probes(planted(seed, 0.0), by="head", C=1.0, intervals=True).positions for seed in range(12)]
    false = sum(any((p or 0) <= 0.05 for one in heads for p in one.corrected) for heads in found)
    assert false <= 3  # a binomial of 12 draws at 5% is above 3 in 0.2% of cases


def test_save_and_load(acts: Activations, tmp_path: Path) -> None:
    results = train_probes(acts, by="head", **HOW)
    folder = results.save(tmp_path / "r")
    loaded = HeadResults.load(folder)
    assert loaded.summary() == results.summary()
    assert repr(loaded) == repr(results)
    assert repr(loaded).startswith("HeadResults(4 heads x ")
    frame = loaded.to_frame()
    assert frame.equals(results.to_frame())
    assert set(frame["by"]) == {"head"}
    assert not frame.duplicated(["at", "place", "split", "metric"]).any()
    with pytest.raises(DataError, match="no results by position here"):
        PositionResults.load(folder)
    best = results.best[1]
    same = loaded[int(results.best[0].position)].layers[results.places.index(best.place)]
    part = acts[best.point, best.layer].chunk(4, dim=1)[int(results.best[0].position)]
    assert np.array_equal(same.probe.predict(part), best.probe.predict(part))
    with pytest.raises(UsageError, match="head 9 was not probed"):
        loaded[9]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"point": "resid_pre"}, "resid_pre has no heads"),
        ({"point": "attn_pattern"}, "attn_pattern"),
        ({"probe": "attention"}, "by='head'"),
        ({"points": ["z", "resid_pre"]}, "resid_pre has no heads"),
    ],
)
def test_what_has_no_heads_is_refused(acts: Activations, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train_probes(acts, by="head", **options)


def test_activations_that_do_not_record_heads_are_refused(acts: Activations) -> None:
    without = replace_meta(acts, {key: value for key, value in acts.meta.items() if key != "config"})
    with pytest.raises(UsageError, match="do not record how many heads"):
        train_probes(without, by="head")
    odd = replace_meta(acts, {**acts.meta, "config": {"n_heads": 5}})
    with pytest.raises(UsageError, match="not those of 5 heads"):
        train_probes(odd, by="head", point="z")


def replace_meta(acts: Activations, meta: dict[str, Any]) -> ActivationSet:
    places = [place for place in acts if place[0] == "z"]
    tensors = {place: acts[place] for place in places}
    return ActivationSet(tensors, acts.task, meta | {"points": ["z"]}, acts.layout)
