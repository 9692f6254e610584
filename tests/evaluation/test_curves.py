"""Several points and label sets in one call: each curve is that of a call of its own, and work is shared."""

import dataclasses
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError, StorageError, UsageError
from probekit.evaluation import ProbeCurves, ProbeResults
from probekit.plots.panels import panels_of, save_curves_plot
from probekit.probes import ridge
from probekit.verbs.train_probes import train_probes

QUICK: dict[str, Any] = {"baselines": False, "controls": 0, "codelength": False, "intervals": False}


@pytest.fixture
def acts(world) -> ActivationSet:
    """Three label sets at four points; embed and ln_final belong to no layer."""
    made, n = world(inputs=[f"text {i} is number {i % 19}" for i in range(300)]), 300
    rng = np.random.default_rng(5)
    draw = torch.Generator().manual_seed(5)
    embed, mid = torch.randn(n, 5, generator=draw), torch.randn(n, 8, generator=draw)
    tensors = {("embed", None): embed, **dict(made), ("attn_out", 1): mid, ("attn_out", 2): mid + 1}
    labels = {**made.labels, "a,b": made["resid_pre", 2][:, 0].double().numpy() + rng.normal(size=n)}
    task = dataclasses.replace(made.task, labels=labels, label_names={**made.label_names, "a,b": []})
    return ActivationSet(tensors, task)


def unvalidated(acts: ActivationSet) -> ActivationSet:
    splits = np.where(acts.splits == "test", "test", "train")
    return ActivationSet(dict(acts), dataclasses.replace(acts.task, splits=splits))


def same(one: ProbeResults, other: ProbeResults) -> None:
    """Equal but for rounding: label sets that are solved together share matrix products."""
    for a, b in zip([*one.layers, *one.random_init], [*other.layers, *other.random_init], strict=True):
        assert (a.place, a.C, a.in_best_set, a.converged) == (b.place, b.C, b.in_best_set, b.converged)
        assert a.metrics.keys() == b.metrics.keys()
        for split in a.metrics:
            assert a.metrics[split] == pytest.approx(b.metrics[split], abs=1e-9)
        assert a.intervals.keys() == b.intervals.keys()
        assert (a.p_value, a.control) == pytest.approx((b.p_value, b.control), abs=1e-9)
    assert one.baselines == other.baselines
    pd.testing.assert_frame_equal(one.to_frame(), other.to_frame(), rtol=1e-9, atol=1e-9)  # with lead and procedure
    rounded = {"lead": None, "optimism": None, "procedure": None, "p_max": None, "null_high": None}
    assert one.meta | rounded == other.meta | rounded


@pytest.mark.parametrize("probe", [None, "ridge"])
def test_each_curve_is_that_of_a_call_of_its_own(acts, probe):
    how: dict[str, Any] = {"probe": probe, "C": [0.1, 1], "controls": 1, "codelength": False}
    curves = train_probes(acts, points="all", labels="all", **how)
    assert list(curves) == [(label, point) for label in acts.labels for point in acts.points]
    for label, point in [("kind", "resid_pre"), ("a,b", "resid_pre"), ("other", "embed"), ("kind", "attn_out")]:
        same(curves[label, point], train_probes(acts, point=point, label=label, **how))


def test_folds_random_weights_and_carved_rows_are_those_of_a_call_of_its_own(acts):
    noise = ActivationSet({place: acts[place].flip(0) for place in acts}, acts.task)
    how: dict[str, Any] = {"C": [0.1, 1], "probe": "ridge", "layers": "1-2", **QUICK}
    for more in ({"folds": 3}, {"random_init": noise}):
        curves = train_probes(acts, points=["resid_pre", "attn_out"], labels=["kind", "a,b"], **more, **how)
        same(curves["a,b", "attn_out"], train_probes(acts, point="attn_out", label="a,b", **more, **how))
    bare, how = unvalidated(acts), {**how, "layers": "all"}
    with pytest.warns(UserWarning, match="no validation split"):
        curves = train_probes(bare, labels=["kind", "other"], **how)
    with pytest.warns(UserWarning, match="no validation split"):
        alone = train_probes(bare, label="other", **how)
    same(curves["other", "embed"], alone)


def test_points_without_layers_have_their_one_place_whatever_the_layers(acts):
    curves = train_probes(acts, points=["embed", "resid_pre"], layers="1-2", **QUICK)
    assert [[layer.place for layer in curve.layers] for curve in curves.values()] == [
        ["embed"],
        ["resid_pre.1", "resid_pre.2"],
    ]


def test_a_place_is_on_one_curve_only(acts):
    curves = train_probes(acts, points=["resid_post", "resid_pre"], C=1, **QUICK)
    assert [layer.place for layer in curves["kind", "resid_pre"].layers] == [f"resid_pre.{i}" for i in range(4)]
    assert [layer.place for layer in curves["kind", "resid_post"].layers] == ["resid_post.3"]
    alone = train_probes(acts, points=["resid_pre"], C=1, **QUICK)
    assert len(alone["kind", "resid_pre"].layers) == 5


def test_each_place_is_read_and_decomposed_once_for_all_label_sets(acts, monkeypatch):
    read, decomposed = [], []
    rows, path = ActivationSet._rows, ridge.ridge_path
    monkeypatch.setattr(ActivationSet, "_rows", lambda self, place: read.append(place) or rows(self, place))
    monkeypatch.setattr(ridge, "ridge_path", lambda *a: decomposed.append(1) or path(*a))
    curves = train_probes(acts, points="all", labels=["kind", "other"], probe="ridge", C=1, **QUICK)
    selected = [(curve.best.point, curve.best.layer) for curve in curves.values()]
    assert len(set(read[:8])) == 8
    assert read[8:] == selected  # for the spread of its training activations
    assert len(decomposed) == 8


def test_a_name_that_is_given_twice_is_one_curve(acts, monkeypatch):
    decomposed, path = [], ridge.ridge_path
    monkeypatch.setattr(ridge, "ridge_path", lambda X, y, *a: decomposed.append(y.shape) or path(X, y, *a))
    curves = train_probes(acts, points=["embed", "embed"], labels=["a,b", "a,b"], C=1, **QUICK)
    assert list(curves) == [("a,b", "embed")]
    assert [shape[1] for shape in decomposed] == [1]


def test_texts_are_compared_once_for_all_label_sets(acts, monkeypatch):
    from probekit.tasks.quality import audit

    compared, compare = [], audit.near_pairs
    monkeypatch.setattr(audit, "near_pairs", lambda *a: compared.append(1) or compare(*a))
    train_probes(acts, labels="all", layers="all", C=1, **QUICK)
    assert len(compared) == 1


def test_one_frame_of_all_numbers(acts):
    curves = train_probes(acts, points="all", labels="all", C=1, controls=1, probe="ridge")
    frame = curves.to_frame()
    keys = ["label", "kind", "name", "point", "place", "split", "metric"]
    assert not frame.duplicated(keys).any()
    headlines = frame[
        (frame["kind"] == "probe") & (frame["split"] == "test") & frame["metric"].isin(["accuracy", "r2"])
    ]
    assert len(headlines) == 3 * 8
    for (label, _), curve in curves.items():
        mine = headlines[headlines["label"] == label]
        own = dict(zip(mine["place"].tolist(), mine["value"].tolist(), strict=True))
        for layer in curve.layers:
            assert own[layer.place] == layer.metrics["test"][curve.headline]
    baselines = frame[frame["kind"] == "baseline"]  # the lead over the best one has its name too
    majority = baselines[(baselines["name"] == "majority") & (baselines["label"] == "kind")]
    majority = majority[majority["metric"] == "accuracy"]
    assert majority["split"].tolist() == ["train", "validation", "test"]


@pytest.fixture
def curves(acts) -> ProbeCurves:
    return train_probes(
        acts, points=["resid_pre", "embed"], labels=["kind", "a,b"], C=1, **{**QUICK, "intervals": True}
    )


def test_the_table_has_a_line_for_each_curve(curves):
    lines = curves.summary().splitlines()
    assert lines[0] == "2 label sets, 2 points in unnamed on planted: last token; logistic, ridge probe"
    assert lines[2].split() == ["label", "point", "best", "place", "metric", "C", "test", "95%", "interval"]
    for line, ((label, point), curve) in zip(lines[3:7], curves.items(), strict=True):
        assert line.split()[:3] == [label, point, curve.best.place]
        assert f"{curve.estimate[0]:.3f}" in line
    assert curves._repr_html_().count("<tr") == 5
    assert repr(curves) == "ProbeCurves(4 curves; labels kind, a,b; points resid_pre, embed)"


def test_without_a_selected_layer_the_table_shows_the_range(acts):
    curves = train_probes(unvalidated(acts), points=["resid_pre"], C=1, **QUICK)
    text, tests = curves.summary(), [x.metrics["test"]["accuracy"] for x in curves["kind", "resid_pre"].layers]
    assert "Quote: nothing, as no layer was selected: the task has no validation split." in text
    assert text.splitlines()[3].split() == ["kind", "resid_pre", f"{min(tests):.3f}", f"{max(tests):.3f}"]


def test_curves_come_back_from_their_folder(curves, tmp_path):
    curves.meta["asked"] = {"label": "all"}
    (tmp_path / ".DS_Store").touch()
    save_curves_plot([curves[label, "resid_pre"] for label in curves.labels], curves.save(tmp_path), title="a $ title")
    (digested,) = [path.name for path in tmp_path.iterdir() if path.name.startswith("a-b-embed-")]
    assert (tmp_path / "kind-resid_pre" / "probes").is_dir()
    assert ProbeResults.load(tmp_path / digested).layers == curves["a,b", "embed"].layers
    loaded = ProbeCurves.load(tmp_path)
    assert (list(loaded), loaded.meta) == (list(curves), curves.meta)
    assert all(loaded[key].layers == curves[key].layers for key in curves)
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "results.csv")["value"], curves.to_frame()["value"])
    fewer = ProbeCurves([curves["kind", "embed"]])
    fewer.save(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {".DS_Store", "curves.json", "results.csv", "kind-embed"}


def test_other_files_are_never_touched_and_mixed_folders_are_refused(curves, tmp_path):
    curves.save(tmp_path)
    good = (tmp_path / "curves.json").read_text()
    for name, text in [("notes.txt", "mine"), ("kind-embed/notes.txt", "mine")]:
        (tmp_path / name).write_text(text)
        with pytest.raises(StorageError, match="which is not a file of results"):
            curves.save(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "curves.json").write_text(good.replace("kind-embed", "../x"))
    with pytest.raises(DataError, match="expected the name of a folder inside"):
        ProbeCurves.load(tmp_path)
    (tmp_path / "curves.json").write_text(json.dumps({"format": "probekit.curves/9"}))
    with pytest.raises(DataError, match=r"curves\.json"):
        ProbeCurves.load(tmp_path)
    (tmp_path / "curves.json").write_text(good)
    curves["kind", "resid_pre"].save(tmp_path / "kind-embed")
    with pytest.raises(DataError, match="not those of these curves"):
        ProbeCurves.load(tmp_path)


def test_names_of_folders_never_collide(world):
    from probekit.evaluation.results.several import curve_folders

    names = [("a", "x"), ("A", "x"), ("a/b", "x"), ("a b", "x"), ("..", "x"), ("", "x"), ("é" * 300, "x")]
    folders = curve_folders(names)
    assert folders[0] == "a-x"
    assert len({name.casefold() for name in folders}) == len(names)
    assert all(len(name) < 100 and not name.startswith((".", "-")) and "/" not in name for name in folders)


def test_comparable_curves_share_axes(curves, acts):
    assert [[c.meta["point"] for c in panel] for panel in panels_of(list(curves.values()))] == [
        ["resid_pre", "embed"]
    ] * 2
    one_point = train_probes(acts, points=["embed"], labels="all", C=1, **QUICK)
    shown = panels_of(list(one_point.values()))
    assert [[c.meta["label"] for c in panel] for panel in shown] == [["kind", "other"], ["a,b"]]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"points": ["resid_pre"], "point": "embed"}, "exclude each other: they are two forms of one choice"),
        ({"labels": ["kind"], "label": "kind"}, "exclude each other: they are two forms of one choice"),
        ({"labels": []}, "labels takes a list of names"),
        ({"points": [("resid_pre", 3)]}, "points takes a list of names"),
        ({"points": ["resid_pre.1"]}, "point and layer are given separately"),
        ({"labels": ["othr"]}, "no label set 'othr'; did you mean other"),
        ({"points": ["resid_mid"]}, "no activations of resid_mid here"),
    ],
)
def test_what_cannot_be_is_named(acts, how, message):
    with pytest.raises(UsageError, match=message):
        train_probes(acts, **how, **QUICK)


def test_an_unknown_curve_is_named_and_a_key_error(curves):
    with pytest.raises(KeyError, match=r"no curve \('kind', 'x'\)"):
        curves["kind", "x"]
    assert ("kind", "x") not in curves
    assert curves.get(("kind", "x")) is None


def test_what_an_audit_finds_is_said_once_for_all_curves_or_with_the_names_of_those_it_holds_for(acts):
    curves = train_probes(acts, points=["embed", "resid_pre"], labels=["kind", "other"], **QUICK)
    said = {
        ("kind", "embed"): ["two near-duplicates", "imbalanced", "a leak"],
        ("kind", "resid_pre"): ["two near-duplicates", "imbalanced"],
        ("other", "embed"): ["two near-duplicates", "a leak"],
        ("other", "resid_pre"): ["two near-duplicates"],
    }
    leak = {
        "texts": 9,
        "near": 0,
        "of_texts": 10,
        "also_in": ["train"],
        "group_rows": 0,
        "of_rows": 1,
        "removed": False,
    }
    for key, findings in said.items():
        curves[key].meta["audit"] = {"findings": findings}
        curves[key].meta["test_leak"] = leak if key[0] == "other" else None
    lines = curves.summary().splitlines()
    assert [line for line in lines if line.startswith(("Audit", "Caution"))] == [
        "Caution of other: 90% of test texts are also in train (--drop-leaks removes them).",
        "Audit: two near-duplicates.",
        "Audit of kind: imbalanced.",
        "Audit of kind, embed; other, embed: a leak.",
    ]


@pytest.mark.parametrize("folds", [None, 3])
def test_one_line_says_which_scores_to_quote_of_several_curves(acts, folds):
    curves = train_probes(acts, points=["embed", "resid_pre"], labels=["kind"], folds=folds, C=[0.1, 1], **QUICK)
    of, how = ("test", "its place was selected on validation where there was a choice, and test selected nothing")
    if folds is not None:
        of, how = "nested cross-validation", "layer and C are selected inside each fold"
    (line,) = [line for line in curves.summary().splitlines() if line.startswith("Quote: ")]
    assert line == f"Quote: the {of} accuracy of each curve with its interval; {how}."
