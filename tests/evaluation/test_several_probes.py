"""Several probes in one call: each curve is that of a call of its own, on the same rows; shared work is done once."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.naive_bayes import GaussianNB

from probekit.activations.activations import ActivationSet
from probekit.errors import UsageError
from probekit.evaluation import ProbeCurves, ProbeResults, curve, label_sets
from probekit.plots.panels import panels_of, save_curves_plot
from probekit.verbs.train_probes import train_probes

BRIEF: dict[str, Any] = {"controls": 0, "codelength": False, "intervals": False}
PROBES = ["logistic", "mean-diff", "ridge"]


@pytest.fixture
def acts(world: Any) -> ActivationSet:
    made = world(inputs=[f"text {i} is number {i % 19}" for i in range(300)])
    tensors = {**dict(made), ("attn_out", 1): made["resid_pre", 1] * 2 + 1, ("attn_out", 2): made["resid_pre", 3]}
    return ActivationSet(tensors, made.task)


@pytest.fixture
def curves(acts: ActivationSet) -> ProbeCurves:
    return train_probes(acts, points="all", labels=["kind", "other"], probes=PROBES, **BRIEF)


def numbers(results: ProbeResults) -> list[Any]:
    return [(layer.place, layer.C, layer.metrics, layer.intervals, layer.control) for layer in results.layers]


@pytest.mark.parametrize("probe", PROBES)
def test_each_curve_is_that_of_a_call_of_its_own(acts: ActivationSet, probe: str) -> None:
    how: dict[str, Any] = {"controls": 1, "codelength": False}
    curves = train_probes(acts, probes=PROBES, label="kind", point="resid_pre", **how)
    alone = train_probes(acts, probe=probe, label="kind", point="resid_pre", **how)
    assert numbers(curves["kind", "resid_pre", probe]) == numbers(alone)
    assert curves["kind", "resid_pre", probe].baselines == alone.baselines
    assert curves["kind", "resid_pre", probe].meta["lead"] == alone.meta["lead"]


def test_keys_name_the_probe_only_where_there_are_several(acts: ActivationSet, curves: ProbeCurves) -> None:
    expected = [(label, point, probe) for label in ("kind", "other") for point in curves.points for probe in PROBES]
    assert list(curves) == expected
    assert (curves.labels, curves.probes) == (["kind", "other"], PROBES)
    with pytest.raises(UsageError, match="named by label set, point and probe"):
        curves["kind", "resid_pre"]
    one = train_probes(acts, probes=["ridge"], label="kind", **BRIEF)
    assert list(one) == [("kind", "resid_pre")]
    assert one["kind", "resid_pre"] is one["kind", "resid_pre", "ridge"]
    with pytest.raises(UsageError, match="no curve"):
        one["kind", "resid_pre", "lda"]


def test_a_place_is_read_once_and_a_label_set_audited_once(acts: ActivationSet, monkeypatch: Any) -> None:
    read: list[Any] = []
    audits: list[str] = []
    features, audited = curve._Features._read, label_sets.audited_protocol
    monkeypatch.setattr(
        curve._Features,
        "_read",
        lambda self, source, place: (read.append(place), features(self, source, place))[1],
    )
    monkeypatch.setattr(
        label_sets,
        "audited_protocol",
        lambda request, *more: (audits.append(request.label), audited(request, *more))[1],
    )
    train_probes(acts, probes=PROBES, labels=["kind", "other"], **BRIEF)
    assert len(read) == len(set(read)) == 5  # four layers and the output
    assert audits == ["kind", "other"]


@pytest.mark.filterwarnings("ignore:'planted' has no validation split")
def test_all_probes_of_a_label_set_have_the_same_rows(acts: ActivationSet) -> None:
    """Mean difference chooses nothing with one layer, and alone would be fitted on the rows that logistic keeps."""
    splits = np.where(acts.splits == "test", "test", "train")
    rest = ActivationSet(dict(acts), dataclasses.replace(acts.task, splits=splits))
    curves = train_probes(rest, probes=["mean-diff", "logistic"], layers=1, label="kind", **BRIEF)
    first, second = (curve.meta["n"] for curve in curves.values())
    assert first == second
    assert "validation" in first


def test_C_is_for_those_that_have_one(acts: ActivationSet) -> None:
    curves = train_probes(acts, probes=["mean-diff", "ridge"], C=[0.1, 1], label="kind", **BRIEF)
    assert [curve.meta["C"] for curve in curves.values()] == [None, [0.1, 1.0]]
    with pytest.raises(UsageError, match="the probes lda and mean-diff have no C"):
        train_probes(acts, probes=["lda", "mean-diff"], C=1)


def test_table_and_files_name_the_probe(curves: ProbeCurves, tmp_path: Path) -> None:
    lines = curves.summary().splitlines()
    assert lines[0].startswith("2 label sets, 2 points, 3 probes in ")
    assert lines[2].split()[:3] == ["label", "point", "probe"]
    assert [line.split()[2] for line in lines[3:15]] == PROBES * 4
    frame = curves.to_frame()
    assert set(frame[frame.kind == "probe"].probe) == set(PROBES)
    majority = frame[(frame.kind == "baseline") & (frame.name == "majority") & (frame.label == "kind")]
    pairs = list(zip(majority["split"], majority["metric"], strict=True))
    assert len(set(pairs)) == len(pairs) > 0  # once for all probes
    assert majority.probe.isna().all()
    curves.save(tmp_path)
    loaded = ProbeCurves.load(tmp_path)
    assert list(loaded) == list(curves)
    assert (tmp_path / "kind-attn_out-mean-diff").is_dir()
    pd.testing.assert_frame_equal(loaded.to_frame(), frame)


def test_a_row_of_panels_for_each_label_set_and_one_y_axis_in_it(curves: ProbeCurves, tmp_path: Path) -> None:
    panels = panels_of(list(curves.values()))
    assert [[c.meta["probe"] for c in panel] for panel in panels] == [PROBES] * 4
    figure = curves.plot()
    axes = [ax for ax in figure.axes if ax.get_title("left")]
    assert [ax.get_title("left") for ax in axes] == [f"{label}: {x}" for label in curves.labels for x in curves.points]
    for row in (axes[:2], axes[2:]):
        assert row[0].get_ylim() == pytest.approx(row[1].get_ylim())
    one = [curve for curve in curves.values() if curve.meta["point"] == "attn_out"]
    assert [[c.meta["label"] for c in panel] for panel in panels_of(one)] == [["kind"] * 3, ["other"] * 3]
    assert save_curves_plot(one, tmp_path).is_file()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"probes": "logistic"}, "probes= takes a list"),
        ({"probes": []}, "the list of probes is empty"),
        ({"probes": ["logistic", "mean-dif"]}, "unknown probe 'mean-dif'"),
        ({"probes": ["lda"], "probe": "lda"}, "exclude each other: they are two forms of one choice"),
        ({"probe": ["lda", "ridge"]}, "give several as probes="),
        ({"probes": [GaussianNB(), GaussianNB()]}, "two of the probes for 'kind' are"),
        ({"probes": ["attention", "lda"]}, "a probe over a sequence takes all tokens"),
    ],
)
def test_what_cannot_be_is_named(acts: ActivationSet, how: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train_probes(acts, **{"label": "kind", **how}, **BRIEF)


def test_a_name_given_twice_counts_once(acts: ActivationSet) -> None:
    curves = train_probes(acts, probes=["lda", "lda", "ridge"], label="kind", **BRIEF)
    assert curves.probes == ["lda", "ridge"]
