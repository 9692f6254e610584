import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.activations.activations import ActivationSet
from probekit.activations.layout import Layout
from probekit.errors import DataError, UsageError
from probekit.evaluation import DEFAULT_C, ProbeResults
from probekit.evaluation.fits.choose import certified
from probekit.evaluation.results.wording import metric_name
from probekit.probes import PROBES, LogisticProbe
from probekit.selections import ALL, Selection
from probekit.tasks.base import Task
from probekit.verbs.train_probes import train_probes

QUICK: dict[str, Any] = {"baselines": False, "controls": 0, "codelength": False}


def places(results):
    return [layer.place for layer in results.layers]


@pytest.mark.parametrize("probe", sorted(PROBES))
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_curve_rises_where_the_class_was_planted(world, probe, n_classes):
    results = train_probes(world(n_classes=n_classes), layers="0-2", probe=probe, **QUICK)
    test = [layer.metrics["test"]["accuracy"] for layer in results.layers]
    assert abs(test[0] - 1 / n_classes) < 0.2
    assert test[2] > 0.9
    assert test[0] < test[1] < test[2]
    for layer in results.layers:
        low, high = layer.intervals["accuracy"]
        assert low <= layer.metrics["test"]["accuracy"] <= high
        assert layer.converged


def test_each_choice_is_what_scikit_learn_and_the_validation_rows_say(world):
    acts = world(strength=(0.3, 0.3, 0.3, 0.3, 0.3))
    y, splits = acts.labels["kind"], acts.splits
    for layer in train_probes(acts, **QUICK).layers:
        X = acts[layer.point, layer.layer].double().numpy()
        scores, losses = {}, {}
        for C in DEFAULT_C:
            oracle = make_pipeline(StandardScaler(), LogisticRegression(C=C, solver="newton-cholesky", tol=1e-10))
            oracle.fit(X[splits == "train"], y[splits == "train"])
            scores[C] = {s: oracle.score(X[splits == s], y[splits == s]) for s in ("train", "validation", "test")}
            losses[C] = log_loss(y[splits == "validation"], oracle.predict_proba(X[splits == "validation"]))
        best = max(DEFAULT_C, key=lambda C: (scores[C]["validation"], -losses[C]))
        assert best == layer.C
        assert layer.tried == [(C, pytest.approx(scores[C]["validation"])) for C in DEFAULT_C]
        assert {s: layer.metrics[s]["accuracy"] for s in scores[best]} == pytest.approx(scores[best])


def test_of_equal_layers_the_earlier_and_of_equal_C_the_smaller_is_taken(world):
    acts = world(strength=(0, 9, 9, 9, 9))
    tensors: dict[Any, Any] = {("resid_pre", i): acts["resid_pre", 1] for i in range(3)}
    results = train_probes(ActivationSet(tensors, acts.task), C=[10, 0.1, 1], **QUICK)
    assert [C for C, _ in results.layers[1].tried] == [0.1, 1, 10]
    assert results.best.place == "resid_pre.0"
    nothing = ActivationSet({place: torch.zeros(300, 8) for place in tensors}, acts.task)
    assert {layer.C for layer in train_probes(nothing, C=[10, 0.1, 1], **QUICK).layers} == {0.1}


def test_validation_decides_even_where_test_disagrees(world):
    acts = world(strength=(0, 0, 1.5, 1.5, 0))
    for layer, split in ((2, "test"), (3, "validation")):  # where the layer holds nothing but noise
        rows = torch.from_numpy(acts.splits == split)
        acts["resid_pre", layer][rows] = acts["resid_pre", 0][rows]
    results = train_probes(acts, C=1, **QUICK)
    by_place = {layer.place: layer.metrics["test"]["accuracy"] for layer in results.layers}
    assert results.best.place == "resid_pre.2"
    assert by_place["resid_pre.2"] < 0.8 < by_place["resid_pre.3"]


def test_test_labels_and_test_activations_change_no_choice(world):
    acts = world(strength=(0.3, 0.3, 0.4, 0.3, 0.3))
    one = train_probes(acts, layers="0-2")
    test = acts.splits == "test"
    acts.labels["kind"][test] = 1 - acts.labels["kind"][test]
    for place in acts:
        acts[place][torch.from_numpy(test)] *= -3
    other = train_probes(acts, layers="0-2")
    assert other.best.place == one.best.place
    for a, b in zip(one.layers, other.layers, strict=True):
        assert (a.C, a.tried) == (b.C, b.tried)
        np.testing.assert_array_equal(a.probe.coef_, b.probe.coef_)
        assert a.metrics["validation"] == b.metrics["validation"]
    assert [b.C for b in one.baselines] == [b.C for b in other.baselines]


def test_shuffled_labels_are_at_chance(world):
    acts = world(n=800, strength=(1.5,) * 5)
    acts.labels["kind"][:] = np.random.default_rng(1).permutation(acts.labels["kind"])
    results = train_probes(acts, **QUICK)
    assert all(abs(layer.metrics["test"]["accuracy"] - 0.5) < 0.13 for layer in results.layers)


def test_layers_can_be_picked(world):
    acts = world()
    every = ["resid_pre.0", "resid_pre.1", "resid_pre.2", "resid_pre.3", "resid_post.3"]
    assert places(train_probes(acts, C=1, **QUICK)) == every
    assert places(train_probes(acts, layers="1-2", **QUICK)) == ["resid_pre.1", "resid_pre.2"]
    assert places(train_probes(acts, layers=3, **QUICK)) == ["resid_pre.3"]
    assert places(train_probes(acts, layers=[2, 0], **QUICK)) == ["resid_pre.0", "resid_pre.2"]
    with pytest.raises(UsageError, match=r"layer 12 is not in 0\.\.3"):
        train_probes(acts, layers=12)
    for output in (4, "4", "out", "output"):
        with pytest.raises(
            UsageError, match=r"alone give --point resid_post --layer 3 \(in Python, point='resid_post', layers=3\)"
        ):
            train_probes(acts, layers=output)


def test_other_points_and_labels_can_be_asked_for(world):
    embed = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    acts = world(extra={("embed", None): embed, ("attn_out", 1): embed})
    results = train_probes(acts, point="embed", label="other", **QUICK)
    assert places(results) == ["embed"]
    assert results.meta["label"] == "other"
    assert results.meta["classes"] == ["no", "yes"]
    assert places(train_probes(acts, point="attn_out", **QUICK)) == ["attn_out.1"]
    assert places(train_probes(acts, point="resid_post", **QUICK)) == ["resid_post.3"]
    with pytest.raises(UsageError, match="belongs to no layer"):
        train_probes(acts, point="embed", layers=0)
    with pytest.raises(UsageError, match="layer 0 of attn_out was not extracted; there are 1"):
        train_probes(acts, point="attn_out", layers=0)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"probe": "logistik"}, "unknown probe 'logistik'; did you mean logistic"),
        ({"probe": "\x1b[31m"}, r"unknown probe '\\x1b\[31m'"),
        ({"point": "resid_pr"}, "did you mean resid_pre"),
        ({"point": "attn_out"}, "no activations of attn_out here"),
        ({"point": "resid_pre.1"}, "point and layer are given separately"),
        ({"label": "othr"}, "no label set 'othr'; did you mean other"),
        ({"C": 0}, "C must be a positive"),
        ({"C": [1, -1]}, "got -1"),
        ({"C": [float("nan")]}, "got nan"),
        ({"C": float("inf")}, "got inf"),
        ({"C": "1"}, "got '1'"),
        ({"C": []}, "the list of C is empty"),
    ],
)
def test_what_is_not_there_is_named(world, how, message):
    with pytest.raises(UsageError, match=message):
        train_probes(world(), **how)


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_activations_that_are_no_numbers_are_found(world, value, name):
    acts = world()
    acts["resid_pre", 2][[17, 33], 3] = value
    with pytest.raises(DataError, match=rf"resid_pre\.2 hold {name}, first in row 17 \(example '17'; 2 rows"):
        train_probes(acts)


def test_labels_that_cannot_be_learnt_are_refused_with_their_counts(world):
    n = 40
    splits = np.array(["train", "train", "validation", "test"])[np.arange(n) % 4]
    kinds = np.arange(n) % 2
    for wrong, message in [
        (np.zeros(n, dtype=int), "two classes of 'kind' or more, got train: class 0=20, class 1=0; validation:"),
        (np.where(splits == "test", -1, kinds), r"must be 0\.\.1, .* test: -1=10"),
        (np.where(splits == "test", 1, kinds // 1), "every split needs every class"),
        (np.where(kinds == 1, 2, 0), "must be 0"),
    ]:
        acts = world(n=n, splits=splits, labels={"kind": wrong, "other": np.arange(n) // 4 % 2})
        with pytest.raises(DataError, match=message):
            train_probes(acts)
        train_probes(acts, label="other", probe="mean-diff", layers=0, **QUICK)
    many = world(n=400, n_classes=40)
    many.labels["kind"][:] = np.minimum(many.labels["kind"], 20)
    with pytest.raises(DataError, match="and 37 more classes"):
        train_probes(many)


def test_half_precision_and_progress(world):
    acts = world()
    half = world(extra={place: x.bfloat16() for place, x in acts.items()})
    seen = []
    results = train_probes(half, probe="ridge", **QUICK, on_progress=lambda done, of: seen.append((done, of)))
    assert seen == [(i + 1, 5) for i in range(5)]
    assert results.best.metrics["test"]["accuracy"] > 0.9


def test_one_place_is_read_at_a_time(world, monkeypatch):
    acts, read = world(), []
    plain = type(acts)._rows
    monkeypatch.setattr(type(acts), "_rows", lambda self, place: read.append(place) or plain(self, place))
    results = train_probes(acts, probe="mean-diff", on_progress=lambda done, of: read.append(done))
    *fits, spread = read
    assert fits == [x for i, place in enumerate(acts.curve("resid_pre")) for x in (place, i + 1)]
    assert spread == (results.best.point, results.best.layer)  # its training rows, from which new texts have a distance


def test_baselines_stand_beside_the_probes(world):
    results = train_probes(world(inputs=[f"w{i % 7} kind" for i in range(300)]))
    assert [baseline.name for baseline in results.baselines] == [
        "majority",
        "bag-of-words",
        "bag-of-bigrams",
        "length",
        "embedding",
    ]
    for baseline in results.baselines:
        assert abs(baseline.metrics["test"]["accuracy"] - 0.5) < 0.2
        assert {"accuracy", "balanced_accuracy", "auroc"} <= set(baseline.intervals)
    first = results.layers[0]
    assert results.baselines[-1].metrics == first.metrics
    assert results.baselines[0].metrics["test"]["auroc"] == 0.5


def test_groups_widen_the_interval(world):
    groups = np.arange(300) // 60
    alone, grouped = (
        train_probes(world(groups=g, strength=(0.3,) * 5), layers=1, **QUICK, probe="mean-diff") for g in (None, groups)
    )
    assert alone.meta["interval"]["unit"] == "example"
    assert grouped.meta["interval"]["unit"] == "group"
    assert alone.layers[0].metrics == grouped.layers[0].metrics
    assert alone.layers[0].intervals != grouped.layers[0].intervals


def test_the_record_says_how_it_was_made(world):
    meta = train_probes(world(), C=0.5, seed=3, probe="ridge", **QUICK).meta
    assert (meta["probe"], meta["C"], meta["seed"], meta["position"]) == ("ridge", [0.5], 3, "last")
    assert meta["n"] == {"train": 150, "validation": 75, "test": 75}
    assert meta["counts"]["train"].keys() == {"class 0", "class 1"}
    assert set(meta["versions"]) >= {"probekit", "python", "torch", "scikit-learn"}
    assert json.loads(json.dumps(meta, allow_nan=False)) == meta
    assert meta["interval"]["kind"]["accuracy"] == "Wilson"
    assert meta["interval"]["kind"]["auroc"] == "studentised bootstrap"
    assert (meta["permutations"], meta["code"], meta["random_init"]) == (1000, None, None)
    assert meta["chosen_on"] == "validation accuracy"
    assert train_probes(world(), probe="ridge", folds=3, **QUICK).meta["chosen_on"] == "inner folds: accuracy"
    coded = train_probes(world(), C=0.5, layers=0, random_init=world(), baselines=False).meta
    assert (coded["code"]["C"], coded["code"]["fractions"][-1], coded["control"]["asked"]) == ([0.5], 1.0, 3)
    assert coded["random_init"] == {"seed": None, "fingerprint": None}
    assert train_probes(world(), probe="mean-diff", **QUICK).meta["C"] is None


def test_the_same_seed_gives_the_same_bytes(world, tmp_path):
    one, two = (train_probes(world(), layers="0-1", C=[0.1, 1]) for _ in range(2))
    assert one == two
    for name in ("a", "b"):
        (one if name == "a" else two).save(tmp_path / name)
    for path in sorted(p for p in (tmp_path / "a").rglob("*") if p.is_file()):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    other = train_probes(world(), layers="0-1", C=[0.1, 1], seed=1)
    assert one.layers[0].intervals != other.layers[0].intervals


def test_probes_of_the_results_predict_class_numbers(world):
    acts = world()
    best = train_probes(acts, **QUICK).best
    assert isinstance(best.probe, LogisticProbe)
    test = acts.splits == "test"
    accuracy = best.probe.score(acts[best.point, best.layer][torch.from_numpy(test)], acts.labels["kind"][test])
    assert accuracy == best.metrics["test"]["accuracy"]


def test_a_negative_seed_is_refused(world):
    with pytest.raises(UsageError, match="seed must be a whole number, 0 or more; got -1"):
        train_probes(world(), seed=-1)


def test_attention_beside_it_changes_nothing(world):
    acts = world()
    heads = {("attn_pattern", 0): torch.rand(len(acts.task) * 9, 2)}
    meta = {**acts.meta, "points": ["attn_pattern", *acts.points]}
    beside = ActivationSet(
        {**heads, **acts}, acts.task, meta, Layout([Selection("last")], np.full(len(acts.task), 3), 0)
    )
    alone = train_probes(acts, probe="mean-diff").to_frame()
    assert train_probes(beside, probe="mean-diff").to_frame().equals(alone)
    assert train_probes(beside, probe="mean-diff", position="last").to_frame().equals(alone)
    with pytest.raises(UsageError, match="read it with per_text"):
        train_probes(beside, point="attn_pattern", layers=0)


def test_one_of_several_positions_is_probed_as_if_it_were_alone(world):
    acts = world()
    length = 3
    lengths = np.full(len(acts.task), length)
    noise = np.random.default_rng(0).normal(size=(len(acts.task), 2, 8)).astype(np.float32)
    rows = {p: torch.cat([torch.from_numpy(noise), x[:, None]], 1).flatten(0, 1) for p, x in acts.items()}
    tokens = ActivationSet(rows, acts.task, acts.meta, Layout([ALL], lengths, 0))
    several = ActivationSet(
        rows, acts.task, acts.meta, Layout([Selection(0), Selection("first"), Selection("last")], lengths, 0)
    )
    alone = train_probes(acts, probe="ridge").to_frame()
    for found in (tokens, several):
        with pytest.raises(UsageError, match="one position of each text; name it"):
            train_probes(found)
        assert train_probes(found, probe="ridge", position="last").to_frame().equals(alone)
        assert train_probes(found, probe="ridge", position="last").meta["position"] == "last"


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "auroc", "average_precision", "f1"])
@pytest.mark.parametrize("folds", [None, 3])
def test_any_metric_can_choose(world, metric, folds, tmp_path):
    results = train_probes(world(n=120), metric=metric, folds=folds, controls=0, codelength=False, C=[0.1, 1])
    meta = results.meta
    assert meta["headline"] == meta["metric"] == results.headline == metric
    assert meta["chosen_on"].endswith(metric)
    assert all(layer.metrics["validation"][metric] == dict(layer.tried)[layer.C] for layer in results.layers)
    told = f"Quote: {'test' if folds is None else 'nested cross-validation'} {metric_name(metric)} "
    assert told in results.summary()
    assert f"scored by {metric_name(metric)}, as requested" in results.summary()
    results.save(tmp_path / "results")
    assert ProbeResults.load(tmp_path / "results").headline == metric
    assert results.plot().get_ylabel() == metric_name(metric)


@pytest.mark.parametrize("folds", [None, 3])
def test_ranks_can_choose_among_regressions_and_a_constant_has_none(folds):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3)).astype(np.float32)
    splits = np.array(["train", "train", "validation", "test"])[np.arange(120) % 4]
    labels = np.exp(X[:, 0] + 0.1 * rng.normal(size=120))
    task = Task("t", [f"text {i}" for i in range(120)], {"y": labels}, {"y": []}, splits, "y")
    places = {("resid_pre", 0): np.ones_like(X), ("resid_post", 0): X}
    acts = ActivationSet({place: torch.from_numpy(x) for place, x in places.items()}, task)
    results = train_probes(acts, metric="spearman", folds=folds, controls=0)
    assert results.headline == "spearman"
    assert results.layers[0].metrics["test"]["spearman"] == 0
    assert results.estimate[0] > 0.8
    assert results.plot().get_ylabel() == "Spearman correlation"


def test_a_metric_that_cannot_be_is_named(world):
    with pytest.raises(UsageError, match="unknown metric 'acc'; did you mean accuracy"):
        train_probes(world(), metric="acc")
    assert train_probes(world(n=120), controls=0, codelength=False, C=1).meta["metric"] is None


def test_what_is_no_activations_is_refused():
    with pytest.raises(UsageError, match="expected activations, as extract and load_activations return them; got str"):
        train_probes("runs/gpt2-sst2")  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize(
    ("fits", "found"),
    [
        ([(True, 1e-9), (True, 1e-3)], (True, 1e-3)),  # the worst of the rounds
        ([(True, 1e-9), (False, np.inf)], (False, None)),
        ([(True, 1e-9), (True, None)], (True, None)),
    ],
)
def test_the_certificate_of_several_fits_is_the_worst(fits, found):
    assert certified([SimpleNamespace(converged_=converged, gap_=gap) for converged, gap in fits]) == found
