"""`probekit train-probe --by head` and `--projection`: lines, pictures and files, and what they refuse."""

import csv
import json
from pathlib import Path

import pytest

from probekit.cli.main import run
from probekit.evaluation import HeadResults, ProbeResults

Capture = pytest.CaptureFixture[str]


def test_a_line_for_each_head_a_heatmap_and_files(here: Path, heads: Path, capsys: Capture) -> None:
    job = ["train-probe", str(heads), "--by", "head", "--probe", "mean-diff", "--out", "mine"]
    assert run(job) == 0
    out = capsys.readouterr().out
    results = HeadResults.load("mine")
    assert f"mean-diff probe; {len(results.heads)} heads x {len(results.places)} layers" in out
    assert "above chance (permutation test" in out
    assert out.splitlines()[-1] == "Picture: mine/heads.png"
    names = {"heads.json", "heads.png", "heads.svg", "results.csv", "probes"}
    assert {path.name for path in Path("mine").iterdir()} == names
    with Path("mine/results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test" and row["metric"] == "accuracy"]
    assert [row["at"] for row in rows] == [one.position for one in results.heads for _ in one.layers]
    before = Path("mine/heads.json").read_bytes()
    assert run(job) == 0
    assert Path("mine/heads.json").read_bytes() == before


def test_json_and_ls(here: Path, heads: Path, capsys: Capture) -> None:
    assert run(["train-probe", str(heads), "--by", "head", "--quick", "--layer", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert Path(printed["results"]).name == "label-z-logistic-quick-by-head-layers-1"
    assert [one["position"] for one in printed["heads"]] == [str(i) for i in range(len(printed["heads"]))]
    assert run(["ls", str(heads.parent)]) == 0
    assert printed["results"] in capsys.readouterr().out


def test_a_projection_is_drawn_and_replaced(here: Path, heads: Path, capsys: Capture) -> None:
    job = ["train-probe", str(heads), "--point", "z", "--quick", "--out", "mine"]
    assert run([*job, "--projection"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Picture: mine/projection.png"
    assert {"projection.png", "projection.svg"} <= {path.name for path in Path("mine").iterdir()}
    assert run(job) == 0
    assert not Path("mine/projection.png").exists()  # a picture of earlier results would mislead
    ProbeResults.load("mine")
