"""`probekit train-probe --by position`: a line for each position, a heatmap, files, and what it refuses."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from probekit.cli.main import run
from probekit.evaluation import PositionResults

Capture = pytest.CaptureFixture[str]
JOB = ["--probe", "mean-diff", "--by", "position"]


def test_a_line_for_each_position_a_heatmap_and_files(here: Path, all_tokens: Path, capsys: Capture) -> None:
    assert run(["train-probe", str(all_tokens), *JOB, "--position", "14:", "--least-texts", "3", "--out", "mine"]) == 0
    out = capsys.readouterr().out
    assert "mean-diff probe; 3 positions x 4 layers" in out
    assert "test was used once" in out
    assert out.splitlines()[-1] == "Picture: mine/positions.png"
    names = {"positions.json", "positions.png", "positions.svg", "results.csv", "probes"}
    assert {path.name for path in Path("mine").iterdir()} == names
    results = PositionResults.load("mine")
    assert results.meta["few_texts"].keys() == {"3", "4"}  # only texts of class "bad" are shorter
    with Path("mine/results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test" and row["metric"] == "accuracy"]
    assert len(rows) == 3 * 4
    assert all(row["p_corrected"] for row in rows)


def test_json_and_ls_and_the_folder_that_is_the_default(here: Path, all_tokens: Path, capsys: Capture) -> None:
    job = ["train-probe", str(all_tokens), "--probe", "mean-diff", "--by", "position-from-end", "--least-texts", "3"]
    assert run([*job, "--layer", "1", "--quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    name = "label-resid_pre-mean-diff-quick-by-position-from-end-layers-1-least-texts-3"
    assert Path(printed["results"]).name == name
    assert [one["position"] for one in printed["positions"]][-3:] == ["-3", "-2", "-1"]
    assert run(["ls", str(all_tokens.parent)]) == 0
    assert printed["results"] in capsys.readouterr().out


def test_results_of_another_question_are_kept(
    here: Path, all_tokens: Path, refused: Callable[..., str], capsys: Capture
) -> None:
    start = ["train-probe", str(all_tokens), *JOB, "--position", ":2", "--least-texts", "3", "--quick", "--out", "mine"]
    job = [*start, "--layer", "0"]
    assert run(job) == 0
    before = Path("mine/positions.json").read_bytes()
    assert run(job) == 0
    assert Path("mine/positions.json").read_bytes() == before
    capsys.readouterr()
    assert "(different: layers)" in refused(5, *start)
    assert "(different: by)" in refused(5, *job, "--by", "position-from-end")
    assert "holds results by position, and this makes a curve" in refused(
        5, *job[:4], "--position", "last", "--out", "mine"
    )
