"""`extract --keep-columns`, `train-probe --nuisance` and `--shift-column`, from a CSV to tables, files and errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from probekit.cli.main import run
from probekit.evaluation import ProbeGrids, ProbeResults, TransferResults

Capture = pytest.CaptureFixture[str]
FAST = ["--layer", "0", "--C", "1", "--quick"]


@pytest.fixture(name="store")
def copied(here: Path, columns: Path) -> Path:
    shutil.copy(columns.parent / "t.csv", "t.csv")
    return Path(shutil.copytree(columns, "s"))


@pytest.mark.usefixtures("blank_pictures")
def test_columns_go_from_a_file_to_the_results(store: Path, capsys: Capture) -> None:
    capsys.readouterr()
    assert run(["train-probe", str(store), *FAST, "--nuisance", "source,length"]) == 0
    assert "Nuisance 'source', 'length': alone" in capsys.readouterr().out
    (folder,) = (store / "results").iterdir()
    assert "nuisance-source-length" in folder.name
    assert len(ProbeResults.load(folder).residual) == 1
    assert run(["train-probe", str(store), *FAST, "--shift-column", "source", "--least-texts", "1", "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(told["meta"]["tasks"]) == {"=cmd()", "<script>", "web"}
    loaded = TransferResults.load(told["results"])
    assert loaded.rows[-1] == "all others"
    assert "shift-column-source" in told["results"]
    table = (Path(told["results"]) / "results.csv").read_text()
    assert "'=cmd()," in table  # which no spreadsheet takes for a formula
    assert "\n=cmd()" not in table


@pytest.mark.usefixtures("blank_pictures")
def test_the_same_question_goes_to_the_same_folder_and_another_one_does_not(store: Path, capsys: Capture) -> None:
    job = ["train-probe", str(store), *FAST, "--shift-column", "source", "--least-texts", "2", "--out", "r", "--quiet"]
    assert run(job) == 0
    assert run(job) == 0
    assert run([*job, "--seed", "1"]) == 5
    assert "seed" in capsys.readouterr().err


def test_a_store_without_the_columns_is_not_overwritten(store: Path, gpt2_folder: Path, capsys: Capture) -> None:
    job = ["extract", "--model", str(gpt2_folder), "--dataset", "t.csv", "--layers", "0", "--quiet", "--out", "s"]
    assert run([*job, "--keep-columns", "source"]) == 5
    assert "task" in capsys.readouterr().err


@pytest.mark.usefixtures("blank_pictures")
def test_several_shifts_have_a_folder_each_and_one_table(store: Path, capsys: Capture) -> None:
    capsys.readouterr()
    several = ["--shift-column", "source", "--least-texts", "1", "--probe", "ridge,mean-diff"]
    assert run(["train-probe", str(store), "--layer", "0", "--quick", *several, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [grid["probe"] for grid in told["grids"]] == ["ridge", "mean-diff"]
    assert all(set(grid["meta"]["tasks"]) == {"=cmd()", "<script>", "web"} for grid in told["grids"])
    assert told["picture"].endswith("grids.png")
    table = (Path(told["results"]) / "results.csv").read_text()
    assert "'=cmd()," in table
    assert ",=cmd()" not in table
    assert len(ProbeGrids.load(told["results"])) == 2
    assert run(["ls", ".", "--json"]) == 0
    assert told["results"] in str(json.loads(capsys.readouterr().out))
    assert run(["report", told["results"], "--out", "page.html", "--quiet"]) == 0
    assert "&lt;script&gt;" in Path("page.html").read_text()
    assert run(["train-probe", str(store), "--layer", "0", "--quick", *several, "--quiet"]) == 0  # in the same folder
