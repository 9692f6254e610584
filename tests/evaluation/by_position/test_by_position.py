"""A curve for each place in the text equals the curve of the texts that have it, extracted and probed alone."""

# pyright: reportCallIssue=false, reportArgumentType=false

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from probekit.activations import Store, load_activations
from probekit.activations.activations import ActivationSet
from probekit.activations.labelled import with_task
from probekit.activations.layout import Layout
from probekit.activations.plan import build
from probekit.errors import DataError, UsageError
from probekit.evaluation import PositionResults
from probekit.evaluation.by_position import train
from probekit.evaluation.scores.bootstrap import groups_note
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.plots import plot_positions
from probekit.selections import Selection
from probekit.tasks.base import Task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

N, LONGEST, VOCAB = 120, 7, 9
HOW: dict[str, Any] = {"C": (0.1, 1.0), "least_texts": 2}
ONE: dict[str, Any] = {**HOW, "layers": [1]}
ALONE: dict[str, Any] = {"C": HOW["C"], "layers": [1], "controls": 0, "codelength": False, "baselines": False}


@pytest.fixture(scope="module")
def model() -> GPT2:
    cfg = GPT2Config(
        d_model=12, n_heads=2, d_mlp=16, n_layers=2, n_ctx=LONGEST + 1, d_vocab=VOCAB, bos_token_id=0, init_std=0.4
    )
    return GPT2(cfg).init_weights(0)


def make_task(**changes: Any) -> Task:
    rng = np.random.default_rng(1)
    inputs = [rng.integers(1, VOCAB, size=rng.integers(2, LONGEST + 1)).tolist() for _ in range(N)]
    given = {
        "name": "walk",
        "inputs": inputs,
        "labels": {"text": np.array([one[1] % 2 for one in inputs])},
        "label_names": {"text": ["even", "odd"]},
        "splits": np.array(["train", "train", "validation", "test"])[np.arange(N) % 4],
        "target": "text",
        "token_labels": {
            "parity": [[t % 2 for t in one] for one in inputs],
            "size": [[t / 3 for t in o] for o in inputs],
        },
    }
    return Task(**{**given, **changes})


@pytest.fixture(scope="module")
def acts(model):
    return extract(model, make_task(), points="resid_pre", position="all", bos=True)


@pytest.fixture(scope="module")
def curves(acts) -> PositionResults:
    return train_probes(acts, by="position", **HOW)


@pytest.fixture(scope="module")
def store(model, tmp_path_factory) -> Store:
    """The same activations in several shards."""
    path = tmp_path_factory.mktemp("positions") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "SHARD_BYTES", 40 * 12 * 4)
        extract(model, make_task(), points="resid_pre", position="all", bos=True, out=path, block_nodes=8)
    return load_activations(path)


def alone(acts, label: str, position: int) -> ActivationSet:
    """The texts that have a token at this index, each with that token alone, by indexing."""
    lengths = [len(one) for one in acts.inputs]
    has = [i for i, n in enumerate(lengths) if -n <= position < n]
    tensors = {place: torch.stack([acts.per_text(place)[i][position] for i in has]) for place in acts}
    task, own = acts.task, acts.task.subset(np.array(has))
    y = task.labels[label] if label in task.labels else np.array([task.token_labels[label][i][position] for i in has])
    y = y[has] if label in task.labels else y
    own = replace(own, labels={label: y}, label_names={label: task.label_names[label]}, token_labels={}, target=label)
    tokens = np.array([acts.inputs[i][position] for i in has])
    return ActivationSet(tensors, own, layout=Layout([Selection("last")], np.ones(len(has), dtype=np.int64), 0, tokens))


def assert_same_curve(one, other) -> None:
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        assert (mine.place, mine.C, mine.control, mine.codelength) == (
            theirs.place, theirs.C, theirs.control, theirs.codelength
        )  # fmt: skip
        assert mine.metrics == theirs.metrics
        assert mine.intervals == theirs.intervals


def assert_close(one, other) -> None:
    """The same fits of activations that were computed in other batches."""
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        assert mine.C == theirs.C
        assert mine.control == pytest.approx(theirs.control)
        assert mine.metrics["test"] == pytest.approx(theirs.metrics["test"], rel=1e-3)


def majority(acts) -> float:
    """The accuracy of the majority class of train on test or, for a regression, R2 of the mean of train."""
    (y,) = acts.labels.values()
    train, test = (y[acts.splits == split] for split in ("train", "test"))
    if y.dtype == np.float64:
        return 1 - ((test - train.mean()) ** 2).sum() / ((test - test.mean()) ** 2).sum()
    return (test == np.bincount(train).argmax()).mean()


@pytest.mark.parametrize(
    ("label", "by", "more"),
    [
        ("text", "position", {"controls": 1, "codelength": True}),
        ("parity", "position-from-end", {"controls": 1}),
        ("size", "position", {}),
    ],
)
def test_each_position_is_the_curve_of_the_texts_that_have_it(acts, label, by, more):
    results = train_probes(acts, label=label, by=by, **ONE, **more)
    assert len(results.positions) >= 4
    ends = (results.positions[0], results.positions[-1])  # all texts have one of them, few have the other
    assert sum(ends[0].n.values()) != sum(ends[1].n.values())
    for one in ends:
        own = alone(acts, label, int(one.position))
        expected = train_probes(own, metric=results.headline, **{**ALONE, **more})
        assert one.n == expected.meta["n"]
        assert_same_curve(one, expected)
        assert one.chance == pytest.approx(majority(own))
        assert [layer.p_value for layer in one.layers] == [layer.p_value for layer in expected.layers]


def test_a_store_gives_the_numbers_of_memory_in_any_number_of_passes(store, monkeypatch):
    assert len(store.shard_examples()) > 2
    memory = ActivationSet({place: store[place] for place in store}, store.task, store.meta, store.layout)
    known = train_probes(memory, by="position", position="1:4", **ONE)
    for share in (train.MOST_SHARE, 1e-12):
        monkeypatch.setattr(train, "MOST_SHARE", share)
        monkeypatch.setattr(train, "MOST_KEPT", train.MOST_KEPT if share > 1e-12 else 0)  # resamples drawn again
        found = train_probes(store, by="position", position="1:4", **ONE)
        for one, other in zip(found.positions, known.positions, strict=True):
            assert_same_curve(one, other)


def test_a_layer_is_read_once_for_all_positions(store, monkeypatch):
    read = []
    shards = Store.shards
    monkeypatch.setattr(Store, "shards", lambda self, place: read.append(place) or shards(self, place))
    results = train_probes(store, by="position", C=1.0, quick=True, intervals=False, least_texts=2)
    assert len(results.positions) > 3
    assert read == [("resid_pre", 0), ("resid_pre", 1), ("resid_post", 1)]


def test_several_selections_have_a_curve_each(model):
    kept = extract(model, make_task(token_labels={}), points="resid_pre", position=["first", "last", "mean"], bos=True)
    results = train_probes(kept, by="position", **ONE)
    assert [one.position for one in results.positions] == ["first", "last", "mean"]
    for name in ("first", "last", "mean"):
        assert_same_curve(results[name], train_probes(kept, position=name, **ALONE))


@pytest.mark.parametrize("in_store", [False, True])
def test_several_selections_of_all_tokens_are_probed_as_if_they_had_been_extracted(model, acts, store, in_store):
    names = ["last", "mean", 1]
    kept = extract(model, make_task(), points="resid_pre", position=names, bos=True)
    acts = store if in_store else acts
    found, expected = (
        train_probes(one, by="position", position=names, controls=1, codelength=False, **ONE) for one in (acts, kept)
    )
    assert found.meta["kept"] == [one.position for one in found.positions] == ["last", "mean", "1"]
    for one, other in zip(found.positions, expected.positions, strict=True):
        assert one.n == other.n
        assert_close(one, other)


def test_several_selections_take_the_labels_of_their_tokens(acts):
    found = train_probes(acts, label="parity", by="position", position=["last", "first"], **ONE)
    last = train_probes(acts, label="parity", by="position-from-end", position="-1:", **ONE)["-1"]
    first = train_probes(acts, label="parity", by="position", position=":1", **ONE)["0"]
    for one, other in zip(found.positions, (last, first), strict=True):
        assert_same_curve(one, other)


def test_selections_with_labels_of_tokens(model, acts):
    kept = extract(model, make_task(), points="resid_pre", position=["first", "last"], bos=True)
    results = train_probes(kept, label="parity", by="position", **ONE)
    for name, index in (("first", 0), ("last", -1)):
        expected = train_probes(alone(acts, "parity", index), **ALONE)
        assert [each.C for each in results[name].layers] == [each.C for each in expected.layers]
        for mine, theirs in zip(results[name].layers, expected.layers, strict=True):
            assert mine.metrics["test"]["accuracy"] == pytest.approx(theirs.metrics["test"]["accuracy"])


@pytest.mark.parametrize("in_store", [False, True])
def test_a_selection_of_several_tokens_is_probed_at_each_of_them(acts, store, curves, in_store):
    some = train_probes(store if in_store else acts, by="position", position="1:3", **HOW)
    assert [one.position for one in some.positions] == ["0", "1"]
    for one, other in zip(some.positions, curves.positions[1:3], strict=True):
        assert_close(one, other)
    assert "token of 1:3, counted from the start" in plot_positions(some).get_xlabel()


@pytest.mark.parametrize("least", [1, 3, 8, 11])
def test_positions_with_few_texts_are_left_out_and_named(acts, least):
    results = train_probes(acts, by="position", probe="mean-diff", quick=True, layers=[1], least_texts=least)
    task = acts.task
    for index in range(LONGEST):
        counts = {
            (split, k): sum(
                len(one) > index and task.splits[i] == split and task.labels["text"][i] == k
                for i, one in enumerate(task.inputs)
            )
            for split in ("train", "validation", "test")
            for k in (0, 1)
        }
        has_enough = min(counts.values()) >= least
        assert (str(index) in [one.position for one in results.positions]) == has_enough
        assert (str(index) in results.meta["few_texts"]) != has_enough
    assert ("Left out" in results.summary()) == bool(results.meta["few_texts"])


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_first_line_says_that_the_best_cell_is_not_above_chance(acts, shuffled):
    labels = acts.task.labels["text"]
    labels = np.random.default_rng(0).permutation(labels) if shuffled else labels
    task = replace(acts.task, labels={"text": labels})
    found = train_probes(with_task(acts, task), by="position", position="1:3", quick=True, **ONE)
    ends = found.estimate[1]
    assert (ends[0] <= found.best[0].chance) == shuffled
    assert found.summary().startswith("Not above chance (chance level: accuracy ") == shuffled
    assert ("Not above chance" in found._repr_html_().partition("<table")[0]) == shuffled


def test_few_groups_of_test_texts_are_said_and_have_no_intervals(model):
    row = np.arange(N)
    found = train_probes(
        extract(model, make_task(groups=row % 4 * 4 + row // 4 % 4), points="resid_pre", position=":2", bos=True),
        by="position",
        quick=True,
        **ONE,
    )
    assert groups_note(4) in found.summary().splitlines()
    assert not any(layer.intervals for one in found.positions for layer in one.layers)


def test_no_position_with_enough_texts_is_an_error_that_names_the_nearest(acts):
    def fewest(index):
        task = acts.task
        has = [len(one) > index for one in task.inputs]
        kinds = [(split, k) for split in ("train", "validation", "test") for k in (0, 1)]
        of = list(zip(task.splits, task.labels["text"], strict=True))
        return min(sum(here and one == kind for here, one in zip(has, of, strict=True)) for kind in kinds)

    nearest = max(range(LONGEST), key=fewest)
    what = rf"each split: at {nearest}, which comes nearest, \w+ has {fewest(nearest)} texts of class"
    with pytest.raises(DataError, match=what):
        train_probes(acts, by="position", least_texts=50)


def test_texts_and_tokens_without_a_label_are_no_rows(model):
    task = make_task()
    labels = [list(one) for one in task.token_labels["parity"]]
    for i in range(0, N, 5):
        labels[i][0] = None  # pyright: ignore
    acts = extract(model, make_task(token_labels={"parity": labels}), points="resid_pre", position="all", bos=True)
    results = train_probes(acts, label="parity", by="position", position=":2", quick=True, **ONE)
    assert sum(results["0"].n.values()) == N - len(range(0, N, 5))
    assert sum(results["1"].n.values()) == N


def test_classes_that_hardly_occur_at_a_position_are_left_out_there(model, tmp_path):
    """The first tokens are of two of three classes, as a sentence may not begin with a verb; one text is an exception.

    The curve is that of the texts of these two classes alone.
    """
    task = make_task()
    kinds = [["ade"[t % 3] if k else "ae"[t % 2] for k, t in enumerate(one)] for one in task.inputs]
    kinds[1][0] = "d"
    numbers = [["ade".index(one) for one in own] for own in kinds]
    names = {"text": ["even", "odd"], "kind": ["a", "d", "e"]}
    task = make_task(token_labels={"kind": numbers}, label_names=names)
    acts = extract(model, task, points="resid_pre", position=":2", bos=True)
    results = train_probes(acts, label="kind", by="position", layers=[1], controls=1, codelength=True, **HOW)
    assert [one.left_out for one in results.positions] == [("d",), ()]
    two = np.delete(np.arange(N), 1)
    first, own = acts.at(0), acts.task.subset(two)
    y = np.array([numbers[i][0] // 2 for i in two])
    own = replace(own, labels={"kind": y}, label_names={"kind": ["a", "e"]}, token_labels={}, target="kind")
    tokens = np.array([acts.inputs[i][0] for i in two])
    layout = Layout([Selection("last")], np.ones(len(two), dtype=np.int64), 0, tokens)
    alone = ActivationSet({place: first[place][two] for place in first}, own, layout=layout)
    assert_same_curve(results["0"], train_probes(alone, **{**ALONE, "controls": 1, "codelength": True}))
    assert results["0"].layers[0].probe.classes_.tolist() == [0, 1]
    assert "fewer than 2 texts at a position in some split are left out there: 'd' at 0." in results.summary()
    assert PositionResults.load(results.save(tmp_path / "r")).summary() == results.summary()


def test_leaks_are_left_out_at_every_position(model):
    task = make_task(token_labels={})
    task.inputs[3] = list(task.inputs[0])  # pyright: ignore  # of test, also in train
    task.labels["text"][3] = task.labels["text"][0]
    acts = extract(model, task, points="resid_pre", position="all", bos=True)
    kept, dropped = (train_probes(acts, by="position", position=":1", drop_leaks=each, **ONE) for each in (False, True))
    assert kept["0"].n["train"] > dropped["0"].n["train"]
    assert kept["0"].n["test"] == dropped["0"].n["test"]


def test_the_best_cell_is_the_highest_on_validation_and_test_plays_no_part(curves):
    results = curves
    one, layer = results.best
    best = max(each.metrics["validation"]["accuracy"] for curve in results.positions for each in curve.layers)
    assert layer.metrics["validation"]["accuracy"] == best
    ties = [c for c in results.positions if any(e.metrics["validation"]["accuracy"] == best for e in c.layers)]
    assert one.n["validation"] == max(each.n["validation"] for each in ties)
    assert results.estimate == (layer.metrics["test"]["accuracy"], layer.intervals["accuracy"])


def test_without_validation_nothing_is_selected(model):
    splits = np.array(["train", "train", "train", "test"])[np.arange(N) % 4]
    acts = extract(model, make_task(splits=splits), points="resid_pre", position="all")
    results = train_probes(acts, by="position", C=1.0, least_texts=2, quick=True)
    assert results.selected is None
    with pytest.raises(UsageError, match="no position and layer were selected"):
        results.best  # noqa: B018
    assert "lowest" in results.summary()
    with pytest.warns(UserWarning, match="no validation split"):
        carved = train_probes(acts, by="position", position=":1", quick=True, **ONE)
    assert carved["0"].n["validation"] > 0


def test_a_quick_look_has_no_p_values_and_the_same_scores(acts):
    quick, full = (train_probes(acts, by="position", position=":2", quick=each, **ONE) for each in (True, False))
    assert "No p-values" in quick.summary()
    assert np.array_equal(quick.matrix, full.matrix)
    assert {p for one in quick.positions for p in one.corrected} == {None}
    plain = train_probes(acts, by="position", position=":2", intervals=False, **ONE)
    assert np.array_equal(plain.matrix, full.matrix)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concatenate": True}, "and concatenate"),
        ({"position": "last"}, "leave position"),
        ({"position": ["last", "1:3"]}, "'1:3' keeps several tokens of a text; give it alone"),
        ({"position": ["last", "last"]}, "must all differ"),
        ({"position": []}, "got none"),
        ({"position": ["last", "lst"]}, "lst"),
        ({"aggregate": "mean"}, "over a sequence"),
        ({"probe": "attention"}, "over a sequence"),
        ({"least_texts": 0}, "1 or more"),
    ],
)
def test_what_does_not_go_with_it_is_refused(acts, given, words):
    with pytest.raises(UsageError, match=words):
        train_probes(acts, by="position", **given)


def test_several_positions_need_a_curve_for_each(acts):
    alone, named = (train_probes(acts, position=each, C=1.0, layers=[1], quick=True) for each in (["last"], "last"))
    assert [layer.metrics for layer in alone.layers] == [layer.metrics for layer in named.layers]
    with pytest.raises(UsageError, match=r"several positions \(--position\) needs by='position'"):
        train_probes(acts, position=["last", "first"])


def test_an_unknown_way_is_refused(acts):
    with pytest.raises(UsageError, match="position-from-end"):
        train_probes(acts, by="layer")


def test_save_and_load(acts, curves, tmp_path):
    results = curves
    loaded = PositionResults.load(results.save(tmp_path / "r"))
    assert loaded.summary() == results.summary()
    assert loaded._repr_html_() == results._repr_html_()
    assert repr(loaded) == repr(results)
    assert loaded.to_frame().equals(results.to_frame())
    x = acts.at("first")[results.places[0]]
    for one, other in zip(loaded.positions, results.positions, strict=True):
        kept = [i for i, layer in enumerate(one.layers) if layer.probe is not None]
        assert len(kept) == 1
        mine, theirs = (each.layers[kept[0]].probe for each in (one, other))
        assert np.array_equal(mine.decision_function(x), theirs.decision_function(x))
    file = tmp_path / "r" / "positions.json"
    text = file.read_text()
    for broken in (text[:-20], text.replace('"corrected"', '"other"'), text.replace("positions/1", "positions/9")):
        file.write_text(broken)
        with pytest.raises(DataError, match="train again"):
            PositionResults.load(tmp_path / "r")


def test_the_frame_has_every_number_once(curves):
    results = curves
    frame = results.to_frame()
    assert not frame.duplicated(["at", "place", "split", "metric"]).any()
    test = frame[(frame.split == "test") & (frame.metric == "accuracy")]
    assert np.array_equal(test.value.to_numpy().reshape(len(results.positions), -1).T, results.matrix)
    for one in results.positions:
        own = test[test["at"] == one.position]
        assert own.p_corrected.tolist() == one.corrected
        assert own.p_value.tolist() == [layer.p_value for layer in one.layers]
        assert own.chance.tolist() == [one.chance] * len(own)
    assert len({tuple(one.corrected) for one in results.positions}) > 1
    assert frame[frame.metric == "auroc"].p_value.isna().all()
    assert (
        frame.selected.sum() == (frame["at"].eq(results.best[0].position) & frame.place.eq(results.best[1].place)).sum()
    )
    assert results[0] is results["0"] is results.positions[0]
    with pytest.raises(UsageError, match="position 99 was not probed"):
        results[99]
