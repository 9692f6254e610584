"""`probekit train-probe --point a,b --label c,d`: a table of curves, a folder for each, one CSV."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probekit.activations import load_activations
from probekit.cli.main import run
from probekit.cli.train_probe import several_of
from probekit.evaluation import ProbeCurves
from probekit.options import ProbeOptions

Capture = pytest.CaptureFixture[str]
JOB = ["--probe", "mean-diff", "--controls", "0", "--no-intervals"]


def test_points_with_commas_make_a_folder_of_curves(here: Path, store: Path, capsys: Capture) -> None:
    shutil.copytree(store, "store")
    assert run(["train-probe", "store", "--point", "resid_pre,attn_out", "--out", "curves", *JOB]) == 0
    out = capsys.readouterr().out
    assert "1 label set, 2 points in" in out
    assert out.splitlines()[-1] == "Picture: curves/curves.png"
    own = {"label-resid_pre", "label-attn_out"}
    assert {path.name for path in Path("curves").iterdir()} == {
        "curves.json",
        "curves.png",
        "curves.svg",
        "results.csv",
        *own,
    }
    curves = ProbeCurves.load("curves")
    assert curves.points == ["resid_pre", "attn_out"]
    with Path("curves/results.csv").open() as file:
        assert {row["place"] for row in csv.DictReader(file)} >= {"resid_pre.0", "attn_out.2"}
    assert run(["train-probe", "store", "--point", "all", "--json", *JOB]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [curve["meta"]["point"] for curve in printed["curves"]] == ["resid_pre", "attn_out"]
    assert Path(printed["results"]).parent == Path("store/results")
    assert run(["ls", "."]) == 0
    assert printed["results"] in capsys.readouterr().out


@pytest.mark.usefixtures("blank_pictures")
def test_results_of_another_question_are_kept(
    here: Path, store: Path, refused: Callable[..., str], capsys: Capture
) -> None:
    job = ["train-probe", store, "--point", "all", "--layer", "0", "--out", "mine", "--quiet", *JOB]
    assert run([*map(str, job)]) == 0
    assert run([*map(str, job)]) == 0
    capsys.readouterr()
    assert "results of other settings or data (different: layers)" in refused(5, *job[:4], "--out", "mine", *JOB)
    one = refused(5, "train-probe", store, "--point", "attn_out", "--out", "mine", *JOB)
    assert "holds several curves, and this makes a curve; give another folder (--out)" in one


def test_a_name_that_exists_is_taken_whole(store: Path) -> None:
    acts = load_activations(store)
    acts.task.labels.update({"a,b": acts.labels["label"], "all": acts.labels["label"], "a": acts.labels["label"]})

    def several(**names: Any) -> dict[str, object]:
        return several_of(ProbeOptions(**names), acts)

    assert several(label="a,b") == several(label="all") == several(label="a", point="attn_out") == {}
    assert several(label="label, a") == {"label": None, "labels": ["label", "a"]}
    assert several(point="all") == {"point": None, "points": "all"}


@pytest.mark.usefixtures("blank_pictures")
def test_without_a_selected_layer_the_command_prints_all_of_them(here: Path, store: Path, capsys: Capture) -> None:
    from dataclasses import replace

    import numpy as np

    from probekit.activations.activations import ActivationSet
    from probekit.cli.train_probe import TrainProbeJob, train

    known = load_activations(store)
    task = replace(known.task, splits=np.where(known.splits == "validation", "train", known.splits))
    acts = ActivationSet(dict(known), task, known.meta)
    acts.path = Path("store")  # pyright: ignore[reportAttributeAccessIssue]
    for how in ({"json": True}, {}):
        options = ProbeOptions(C=1, controls=0, codelength=False, intervals=False)
        train(acts, options, TrainProbeJob(out=Path("out"), quiet=False, **how))  # pyright: ignore
    out = capsys.readouterr().out
    assert "Quote: nothing, as no layer was selected: the task has no validation split." in out
    assert '"best": null' in out


@pytest.mark.usefixtures("blank_pictures")
def test_probes_with_commas_make_a_folder_of_curves(
    here: Path, store: Path, refused: Callable[..., str], capsys: Capture
) -> None:
    shutil.copytree(store, "store")
    job = ["train-probe", "store", "--probe", "ridge,mean-diff", "--controls", "0", "--no-intervals"]
    assert run(job) == 0
    assert "1 label set, 1 point, 2 probes in" in capsys.readouterr().out
    (folder,) = Path("store/results").iterdir()
    assert "ridge-mean-diff" in folder.name
    assert ProbeCurves.load(folder).probes == ["ridge", "mean-diff"]
    assert run([*job, "--out", str(folder), "-q"]) == 0  # the same question
    capsys.readouterr()
    other = [*job[:3], "ridge,lda", *job[4:], "--out", str(folder)]
    assert "different: probe" in refused(5, *other)
    assert "several probes take no parameters" in refused(2, *job, "--set", "train-probe.probe.C=4")
    assert "unknown probe 'mean-dif'" in refused(2, "train-probe", "store", "--probe", "lda,mean-dif")
