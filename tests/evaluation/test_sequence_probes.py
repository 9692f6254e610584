"""Curves of probes over a sequence: what they find, what they are compared with, and streams from a store."""

# pyright: reportCallIssue=false, reportArgumentType=false

import json
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from planted_sequences import activations_of, marked

from probekit.activations import load_activations
from probekit.activations.activations import ActivationSet
from probekit.activations.layout import Layout
from probekit.activations.plan import build as planning
from probekit.errors import DataError, UsageError
from probekit.evaluation import ProbeResults, transfer
from probekit.evaluation.fits import sequences
from probekit.evaluation.fits.sequences import PooledTokens, tokens_of_texts
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.probes import AttentionProbe
from probekit.probes.sequence.ragged import pooled_rows, take_texts, text_parts
from probekit.selections import ALL
from probekit.tasks.base import Task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

BARE = {"baselines": False}


@cache
def acts() -> ActivationSet:
    """Layer 0 carries nothing, layer 1 a token that one class alone has, layer 2 a key and its value."""
    (noise, _), (_, y) = marked(400, 7, marked_class=2), marked(400, 0)
    lengths = [len(x) for x in noise]
    rng = np.random.default_rng(1)
    one, two = [x.copy() for x in noise], [x.copy() for x in noise]
    for n, label in enumerate(y):
        one[n][rng.integers(lengths[n] - 1), 0] += 7.0 * label
        two[n][:, 1] += 2 * rng.choice([-1, 1], size=lengths[n])
        at = rng.integers(lengths[n] - 1)
        two[n][at, 0] += 5
        two[n][at, 1] = rng.normal() + 2 * (2 * label - 1)
    return activations_of([noise, one, two], y)


@cache
def curve(**options) -> ProbeResults:
    return train_probes(acts(), **options, **BARE)


def scores(results: ProbeResults) -> list[float]:
    return [layer.metrics["test"]["accuracy"] for layer in results.layers]


def test_attention_finds_what_mean_and_last_miss():
    results = curve(probe="attention", C=(0.1, 1.0))
    chance, one, two = scores(results)
    assert chance < 0.65
    assert min(one, two) > 0.9
    for how in ("mean", "last"):
        assert max(layer.metrics["test"]["accuracy"] for layer in results.pooled[how]) < 0.8
        assert results.meta["pooled"][how]["interval"][0] > 0.1
    assert results.best.converged
    assert results.best.gap is None
    assert results.meta["estimator"]["certified"] is False
    assert results.meta["position"] == "all"


def test_validation_may_choose_a_descent_that_was_stopped():
    """At the strong penalty the fit converges at once and predicts the majority."""
    results = train_probes(acts(), probe=AttentionProbe(max_iter=15), C=(1e-5, 1.0), layers=1, quick=True, **BARE)
    (layer,) = results.layers
    assert (layer.C, layer.converged) == (1.0, False)
    assert layer.metrics["test"]["accuracy"] > 0.9
    assert "not converged" in results.summary()


@pytest.mark.parametrize("aggregate", ["max", "softmax"])
def test_extreme_scores_find_the_marked_token_and_not_the_key(aggregate):
    results = curve(aggregate=aggregate, probe="logistic", C=(0.01, 0.1))
    _, one, two = scores(results)
    assert one > 0.9
    assert two < 0.65
    assert results.best.place == "resid_pre.1"
    assert results.best.gap is not None
    assert results.meta["probe"] == f"{aggregate}-over-tokens-logistic"


def test_the_mean_and_last_token_probes_are_those_of_these_positions():
    results = curve(probe="attention", C=(0.1, 1.0))
    for how in ("mean", "last"):
        alone = train_probes(acts(), position=how, probe="logistic", C=(0.1, 1.0), quick=True, **BARE)
        for ours, theirs in zip(results.pooled[how], alone.layers, strict=True):
            assert (ours.place, ours.C) == (theirs.place, theirs.C)
            assert ours.metrics["test"] == pytest.approx(theirs.metrics["test"], rel=1e-4)
            assert ours.intervals["accuracy"] == theirs.intervals["accuracy"]
        record = results.meta["pooled"][how]
        assert record["place"] == alone.best.place
        assert record["value"] == alone.estimate[0]
        assert record["over"] == pytest.approx(results.estimate[0] - alone.estimate[0])


def test_the_saved_probe_gives_the_quoted_score():
    results = curve(aggregate="max", C=0.1)
    per_text = acts().per_text(results.best.place)
    test = np.flatnonzero(acts().splits == "test")
    right = results.best.probe.predict([per_text[i] for i in test]) == acts().labels["kind"][test]
    assert right.mean() == results.estimate[0]
    ends = results.meta["pooled"]["mean"]["interval"]
    assert ends[0] < results.meta["pooled"]["mean"]["over"] < ends[1]


def test_table_notebook_frame_and_files(tmp_path):
    results = curve(probe="attention", C=(0.1, 1.0))
    text = results.summary()
    assert "mean token" in text.splitlines()[3]
    assert "last token" in text.splitlines()[3]
    assert "over the mean-token probe at" in text
    assert "converged by the norm of the gradient and not certified" in text
    assert "mean token" in results._repr_html_()
    frame = results.to_frame()
    assert set(frame[frame.kind == "pooled"].name) == {"mean token", "last token"}
    assert len(frame[frame.kind == "lead over pooled"]) == 2
    results.save(tmp_path / "results")
    again = ProbeResults.load(tmp_path / "results")
    assert again.summary() == text
    assert again.pooled == results.pooled
    X = acts().per_text(results.best.place)[:20]
    assert again.best.probe.predict_labels(X).tolist() == results.best.probe.predict_labels(X).tolist()
    record = json.loads((tmp_path / "results" / "results.json").read_text())
    del record["pooled"]  # as results of earlier versions are
    (tmp_path / "results" / "results.json").write_text(json.dumps(record))
    assert ProbeResults.load(tmp_path / "results").pooled == {}


def test_the_exported_arrays_of_a_multimax_are_the_probe(tmp_path):
    results = train_probes(acts(), probe="multimax", C=0.1, layers=1, quick=True, **BARE)
    assert results.best.metrics["test"]["accuracy"] > 0.9
    arrays = np.load(results.export(out=tmp_path / "probe.npz", to="numpy"))
    X = [x.double().numpy() for x in acts().per_text("resid_pre.1")[:20]]
    heads = arrays["coef"][:, 0]
    by_hand = [arrays["side"][0] * (x @ heads.T).max(axis=0).sum() + arrays["intercept"][0] for x in X]
    np.testing.assert_allclose(results.best.probe.decision_function(X), by_hand, rtol=1e-9, atol=1e-9)


def test_folds_groups_and_regularisation_work_as_for_other_probes():
    results = train_probes(acts(), aggregate="max", probe="mean-diff", folds=3, layers=1, **BARE)
    assert results.procedure is not None
    assert results.estimate[0] > 0.85
    assert results.meta["pooled"]["mean"]["place"] is None
    assert results.meta["n"] == {"test": 400}


def test_controls_are_drawn_where_they_are_asked_for():
    assert curve(aggregate="max", C=0.1).layers[0].control is None
    results = train_probes(
        acts(), aggregate="max", probe="ridge", C=0.1, layers=1, controls=2, control_type="text", **BARE
    )
    assert abs(results.best.control - 0.5) < 0.2
    assert results.meta["control"]["draws"] == 2


def test_random_init_and_embedding_are_read_in_the_same_way():
    noise = ActivationSet(
        {place: torch.randn(x.shape, generator=torch.Generator().manual_seed(0)) for place, x in acts().items()},
        acts().task,
        None,
        acts().layout,
    )
    results = train_probes(acts(), aggregate="max", C=0.1, random_init=noise)
    assert all(layer.metrics["test"]["accuracy"] < 0.7 for layer in results.random_init)
    assert [b.name for b in results.baselines] == ["majority", "bag-of-words", "bag-of-bigrams", "length", "embedding"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Some texts have the word 1, at any place; in shards of a few texts."""
    cfg = GPT2Config(d_model=16, n_heads=2, d_mlp=16, n_layers=2, n_ctx=40, d_vocab=23, bos_token_id=0, init_std=0.3)
    rng = np.random.default_rng(0)
    inputs = [rng.integers(2, 23, size=rng.integers(3, 30)).tolist() for _ in range(240)]
    y = rng.integers(2, size=240)
    for ids, label in zip(inputs, y, strict=True):
        if label:
            ids[rng.integers(len(ids))] = 1
    task = Task("one word", inputs, {"has it": y}, label_names={"has it": ["no", "yes"]})
    path = tmp_path_factory.mktemp("stores") / "all"
    with pytest.MonkeyPatch.context() as small:
        small.setattr(planning, "SHARD_BYTES", 20_000)
        extract(GPT2(cfg).init_weights(0), task, points="resid_pre", position="all", out=path)
    return load_activations(path)


def test_a_store_is_streamed_where_it_does_not_fit_with_the_same_results(store, monkeypatch):
    assert len(store.shard_examples()) > 2
    places = list(store)
    options = {"layers": 1, "C": (0.1, 1.0), "quick": True}
    whole = [train_probes(store, **how, **options) for how in ({"probe": "attention"}, {"aggregate": "max"})]
    whole += [train_probes(store, aggregate="max", probe="ridge", **options)]
    kept = tokens_of_texts(store, places[0])
    monkeypatch.setattr(sequences, "_fits", lambda *_: False)
    monkeypatch.setattr(type(store), "_rows", lambda *_: pytest.fail("all rows were read into memory"))
    streamed = tokens_of_texts(store, places[0])
    assert (streamed.values, streamed.nbytes) == (None, 0)
    for how in ("mean", "last"):
        torch.testing.assert_close(pooled_rows(streamed, how), pooled_rows(kept, how))
        torch.testing.assert_close(PooledTokens(store, how)[places[0]], pooled_rows(kept, how))
    some = np.array([5, 200, 17, 3])
    seen = {
        int(text): rows
        for part in text_parts(take_texts(streamed, some))
        for text, rows in zip(part.texts, part.rows.split(part.lengths.tolist()), strict=True)
    }
    again = [train_probes(store, **how, **options) for how in ({"probe": "attention"}, {"aggregate": "max"})]
    again += [train_probes(store, aggregate="max", probe="ridge", **options)]
    monkeypatch.undo()
    for number, text in enumerate(some):
        torch.testing.assert_close(seen[number], store.per_text(places[0])[text])
    for one, other in zip(whole, again, strict=True):
        for a, b in zip(one.layers, other.layers, strict=True):
            assert a.C == b.C
            assert a.metrics["test"]["accuracy"] == pytest.approx(b.metrics["test"]["accuracy"], abs=0.02)
            X = store.per_text(a.place)[:30]
            np.testing.assert_allclose(a.probe.decision_function(X), b.probe.decision_function(X), rtol=5e-3, atol=5e-3)


def test_a_selection_of_the_kept_tokens_is_read(store):
    """Tokens outside it play no part: with the first tokens the word is often missed."""
    whole = train_probes(store, aggregate="max", C=0.1, layers=0, quick=True)
    first = train_probes(store, aggregate="max", C=0.1, layers=0, quick=True, position=":5")
    assert first.meta["position"] == ":5"
    assert first.estimate[0] < whole.estimate[0]
    five = extract_first(store, 5)
    same = train_probes(five, aggregate="max", C=0.1, layers=0, quick=True)
    assert same.layers[0].metrics == first.layers[0].metrics


def extract_first(store, k: int) -> ActivationSet:
    tensors = {place: torch.cat([x[:k] for x in store.per_text(place)]) for place in store}
    lengths = np.minimum(store.layout.own_lengths, k)
    return ActivationSet(tensors, store.task, dict(store.meta), Layout([ALL], lengths, 0))


def test_labels_of_tokens_are_left_aside(store):
    ids = store.task.inputs
    words = {"even": [[i % 2 for i in text] for text in ids]}
    labels = {"has it": store.labels["has it"]}
    both = Task("both", ids, labels, splits=store.splits, target="even", token_labels=words)
    acts = ActivationSet(dict(store), both, None, store.layout)
    options = {"aggregate": "max", "C": 0.1, "layers": 0, "quick": True}
    results = train_probes(acts, label="has it", **options)
    assert results.layers[0].metrics == train_probes(store, **options).layers[0].metrics
    assert train_probes(acts, **options).meta["label"] == "has it"
    with pytest.raises(UsageError, match="no label set 'even'"):
        train_probes(acts, label="even", **options)
    alone = ActivationSet(dict(store), Task("words", ids, splits=store.splits, token_labels=words), None, store.layout)
    with pytest.raises(UsageError, match="this task has labels of tokens alone"):
        train_probes(alone, **options)


@pytest.mark.parametrize("options", [{"probe": "attention"}, {"aggregate": "mean"}])
def test_refused_with_the_way_out(world, options):
    with pytest.raises(UsageError, match="these activations are of last; extract again with position all"):
        train_probes(world(), **options)
    year = np.linspace(0, 1, 400)
    numbers = activations_of([acts().per_text(("resid_pre", 0))], acts().labels["kind"])
    numbers = ActivationSet(
        dict(numbers), Task("year", acts().inputs, {"year": year}, splits=acts().splits), None, numbers.layout
    )
    with pytest.raises(UsageError, match="'year' holds a number for each text"):
        train_probes(numbers, **options)


def test_other_refusals():
    for options, message in (
        ({"aggregate": "maximum"}, "top-k, softmax, fitted-softmax, last; got 'maximum'"),
        ({"aggregate": "max", "probe": "mlp"}, "takes a linear probe of tokens"),
        ({"aggregate": "max", "probe": "attention"}, "attention aggregates by itself"),
        ({"aggregate": "max", "probe": "lda", "C": 1.0}, "has no C"),
        ({"probe": "attention", "C": float("inf")}, "finite C"),
        ({"probe": "attention", "by": "position"}, "leave one of the two out"),
    ):
        with pytest.raises(UsageError, match=message):
            train_probes(acts(), **options, **BARE)
    with pytest.raises(UsageError, match="position last is one; leave position"):
        train_probes(acts(), aggregate="max", position="last")
    with pytest.raises(UsageError, match="takes all of its tokens; take a linear probe"):
        transfer([acts(), acts()], probe="attention")
    broken = ActivationSet({p: x.clone() for p, x in acts().items()}, acts().task, None, acts().layout)
    broken["resid_pre", 1][3] = torch.nan
    with pytest.raises(DataError, match="hold NaN, first in example '0'"):
        train_probes(broken, aggregate="mean")


def test_a_fit_that_has_not_converged_is_marked():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = train_probes(acts(), probe=AttentionProbe(max_iter=1), C=1.0, layers=2, quick=True)
    assert not results.best.converged
    assert "Not converged: resid_pre.2" in results.summary()
