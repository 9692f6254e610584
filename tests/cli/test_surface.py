"""`extract --keep-columns`, `train-probe --nuisance` and `--shift-column`, from a CSV to tables, files and errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from probekit.cli.main import run
from probekit.evaluation import ProbeResults, TransferResults

Capture = pytest.CaptureFixture[str]
FAST = ["--layer", "0", "--C", "1", "--quick"]
SOURCES = ["=cmd()", "<script>", "web"]


@pytest.fixture(name="store")
def made(here: Path, gpt2_folder: Path) -> Path:
    """A store of 180 texts with a hostile column, a number and a label."""
    rows = [
        f'text {i * i * 31 % 1009} of the {chr(97 + i % 26)}{i} kind,{i // 3 % 2},"{SOURCES[i % 3]}",{i / 7:.2f}'
        for i in range(180)
    ]
    Path("t.csv").write_text("\n".join(["text,label,source,size", *rows]) + "\n")
    job = ["extract", "--model", str(gpt2_folder), "--dataset", "t.csv", "--layers", "0", "--quiet"]
    assert run([*job, "--keep-columns", "source,size", "--out", "s"]) == 0
    assert run([*job, "--out", "plain"]) == 0
    return Path("s")


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
    assert set(told["meta"]["tasks"]) == set(SOURCES)
    loaded = TransferResults.load(told["results"])
    assert loaded.rows[-1] == "all others"
    assert "shift-column-source" in told["results"]
    table = (Path(told["results"]) / "transfer.csv").read_text()
    assert "'=cmd()," in table  # which no spreadsheet takes for a formula
    assert "\n=cmd()" not in table


@pytest.mark.usefixtures("blank_pictures")
def test_the_same_question_goes_to_the_same_folder_and_another_one_does_not(store: Path, capsys: Capture) -> None:
    job = ["train-probe", str(store), *FAST, "--shift-column", "source", "--least-texts", "2", "--out", "r", "--quiet"]
    assert run(job) == 0
    assert run(job) == 0
    assert run([*job, "--seed", "1"]) == 5
    assert "seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "more", "code", "message"),
    [
        ("plain", ["--nuisance", "source"], 2, "keeps none (and length, tokens, position); extract again with --keep"),
        ("s", ["--nuisance", "sorce"], 2, "did you mean 'source', or extract again"),
        ("s", ["--nuisance", "source", "--folds", "3"], 2, "folds=3"),
        ("s", ["--shift-column", "source", "--baseline", "random-init"], 2, "--shift-column has no random-init"),
        ("s", ["--shift-column", "source", "--least-texts", "1000"], 3, "needs two values of 'source'"),
        ("s", ["--shift-column", "size", "--controls", "1"], 2, "controls=1"),
        ("s", ["--shift-column", "source", "--projection"], 2, "--projection needs a curve"),
    ],
)
@pytest.mark.usefixtures("store")
def test_errors_are_one_line(folder: str, more: list[str], code: int, message: str, capsys: Capture) -> None:
    capsys.readouterr()
    assert run(["train-probe", folder, "--layer", "0", *more]) == code
    err = capsys.readouterr().err.strip().split("\n")
    assert message in err[-1]


def test_a_store_without_the_columns_is_not_overwritten(store: Path, gpt2_folder: Path, capsys: Capture) -> None:
    job = ["extract", "--model", str(gpt2_folder), "--dataset", "t.csv", "--layers", "0", "--quiet", "--out", "plain"]
    assert run([*job, "--keep-columns", "source"]) == 5
    assert "task" in capsys.readouterr().err
