"""Options about data on the command line: what the plan says, what is refused before anything is loaded."""

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from probekit.cli.main import run


def write_rows(path: Path, counts: dict[str, int], between: str = ",", header: str = "text,label\n") -> Path:
    rows = [f"{name} number {i}{between}{name}\n" for name, n in counts.items() for i in range(n)]
    path.write_text(header + "".join(rows))
    return path


@pytest.fixture
def planned(gpt2_folder, here, capsys):
    """The plan of a dry run, as lines by their first word."""

    def plan(*args) -> dict[str, str]:
        code = run(["extract", "--model", str(gpt2_folder), "--dry-run", *map(str, args)])
        out, err = capsys.readouterr()
        assert code == 0, err
        return {line[:9].strip(): line[9:] for line in out.splitlines()} | {"stderr": err}

    return plan


def test_the_plan_says_where_splits_limit_and_classes_come_from(planned, here, gpt2_folder, capsys):
    path = write_rows(here / "data.csv", {"a": 40, "b": 30, "x": 2, "y": 1})
    lines = planned("--dataset", path, "--rare-classes", "drop", "--limit", "20")
    assert lines["splits"] == "validation and test carved from train"
    assert lines["limit"] == "at most 20 texts of each split"
    assert lines["rare"] == "3 examples of 2 classes (x=2, y=1): too rare for a split, left out"
    args = ["extract", "--model", str(gpt2_folder), "--dataset", str(path), "--rare-classes", "drop", "--dry-run"]
    assert run([*args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rare_classes"] == {"x": 2, "y": 1}
    lines = planned("--dataset", path, "--rare-classes", "merge")
    assert lines["rare"] == "3 examples of 2 classes (x=2, y=1): too rare for a split, merged into 'other'"


def test_the_plan_says_that_a_column_gives_the_splits(planned, here):
    rows = [f"text {i},{i % 2},{split}\n" for split, n in (("tr", 30), ("va", 8), ("te", 6)) for i in range(n)]
    (here / "task.csv").write_text("".join(rows))
    lines = planned("--dataset", "task.csv", "--columns", "text,label,split")
    assert lines["splits"] == "by column 'split'"
    assert "44 texts (30 train, 8 validation, 6 test)" in lines["task"]


@pytest.mark.filterwarnings("default::UserWarning")
def test_classes_that_look_alike_are_in_the_plan_and_warned_of(planned, here):
    path = write_rows(here / "data.csv", {"True": 20, "true": 20, "no": 20})
    lines = planned("--dataset", path)
    assert lines["audit"].startswith("separate classes look alike: 'True' and 'true'")
    assert lines["stderr"].startswith("probekit: warning: labels 'label': separate classes look alike")


def test_no_header_on_the_command_line(planned, here):
    path = write_rows(here / "data.csv", {"a": 20, "b": 20}, header="")
    args = ["--no-header", "--text-column", "1", "--label-column", "2"]
    assert "40 texts" in planned("--dataset", path, *args)["task"]


def test_stdin_makes_one_store_and_resumes_it(gpt2_folder, here, capsys, monkeypatch):
    data = write_rows(here / "data.csv", {"a": 20, "b": 20}).read_bytes()

    def extract() -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert run(["extract", "--model", str(gpt2_folder), "--dataset", "-", "--quiet"]) == 0
        return capsys.readouterr().out.strip()

    store = extract()
    assert "stdin" in Path(store).name
    before = {path: path.stat().st_mtime_ns for path in (Path(store) / "shards").iterdir()}
    assert extract() == store
    assert {path: path.stat().st_mtime_ns for path in (Path(store) / "shards").iterdir()} == before
    manifest = json.loads((Path(store) / "manifest.json").read_text())
    assert "stdin" in json.dumps(manifest)


def test_a_folder_that_may_not_be_written_is_refused_first(here, gpt2_folder, refused, monkeypatch):
    (here / "locked").mkdir()
    locked = Path("locked")  # root may write everywhere, so the system's answer is replaced
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked)
    args = ["extract", "--model", gpt2_folder, "--dataset", "broken.csv", "--out", "locked/store"]
    assert "may not be written" in refused(4, *args)


def test_import_takes_a_list_of_labels(here, capsys):
    np.save(here / "resid_pre.0.npy", np.zeros((60, 4), dtype=np.float32))
    (here / "y.txt").write_text("a\nb\n" * 30)
    assert run(["import", "resid_pre.0.npy", "--labels", "y.txt", "--columns", "label", "--dry-run"]) == 0
    assert "60 examples" in capsys.readouterr().out


def test_import_says_that_a_column_gives_the_splits(here, capsys):
    np.save(here / "resid_pre.0.npy", np.zeros((30, 4), dtype=np.float32))
    rows = [f"{i % 2},{split}\n" for split in ("tr", "va", "te") for i in range(10)]
    (here / "y.csv").write_text("label,split\n" + "".join(rows))
    assert run(["import", "resid_pre.0.npy", "--labels", "y.csv", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "splits  by column 'split'" in out
    assert "10 train, 10 validation, 10 test" in out
