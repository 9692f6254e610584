"""`probekit sweep`: a folder of tasks in one command, which fails by the line and resumes by the run."""

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probekit as pk
from probekit.cli.main import run
from probekit.sweeps import SweepResults
from probekit.sweeps import run as sweep_run
from probekit.text import from_spreadsheet_cell

Capture = pytest.CaptureFixture[str]
JOB = ["--probe", "mean-diff", "--quick", "--no-intervals", "--out", "out"]


def write_task(path: Path, words: tuple[str, str] = ("good", "bad"), n: int = 60) -> None:
    rows = [f"text number {i} {words[i % 2]},{i % 2}" for i in range(n)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")


@pytest.fixture
def tasks(here: Path) -> Path:
    """Three tasks, one of them with a name that a spreadsheet would run, and one that cannot be read."""
    folder = here / "tasks"
    folder.mkdir()
    write_task(folder / "one.csv")
    write_task(folder / "=two.csv", ("yes", "no"))
    write_task(folder / "three.csv", ("up", "down"))
    (folder / "broken.csv").write_text("text,label\nonly one class,0\n")
    (folder / "README.md").write_text("not a task")
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tasks that are run from here on."""
    done: list[str] = []
    real = sweep_run.run_task
    monkeypatch.setattr(sweep_run, "run_task", lambda task, *more: (done.append(task.name), real(task, *more))[1])
    return done


@pytest.mark.usefixtures("blank_pictures")
def test_a_folder_is_one_command_and_what_fails_is_one_line(
    tasks: Path, gpt2_folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Any] = []
    real = sweep_run.load_model
    monkeypatch.setattr(sweep_run, "load_model", lambda name, **how: (loads.append(name), real(name, **how))[1])
    assert run(["sweep", "--model", str(gpt2_folder), "--dataset", "tasks", *JOB]) == 3
    assert loads == [str(gpt2_folder)]
    out, err = capsys.readouterr()
    assert err.splitlines()[0].startswith("failed: broken: ")
    assert "1 of 4 runs failed (broken)" in err.splitlines()[-1]
    assert "Failed: broken: " in out
    rows = rows_of(Path("out/results.csv"))
    assert [from_spreadsheet_cell(row["task"]) for row in rows] == ["=two", "broken", "one", "three"]
    assert rows[0]["task"] == "'=two"
    assert [bool(row["error"]) for row in rows] == [False, True, False, False]
    results = SweepResults.load("out")
    assert [each.task for each in results.failed] == ["broken"]
    assert repr(results) == "SweepResults(4 runs of 4 tasks, 1 model; 1 failed)"


@pytest.mark.usefixtures("blank_pictures")
def test_a_row_is_what_the_two_commands_give(tasks: Path, gpt2_folder: Path) -> None:
    (tasks / "broken.csv").unlink()
    how = ["--point", "resid_pre,attn_out", "--probe", "ridge,mean-diff", "--quick"]
    assert run(["sweep", "--model", str(gpt2_folder), "--dataset", "tasks", "--out", "out", "-q", *how]) == 0
    points = "resid_pre,attn_out"
    extraction = ["extract", "--model", str(gpt2_folder), "--dataset", "tasks/one.csv", "--out", "st", "-q"]
    assert run([*extraction, "--points", points]) == 0
    assert run(["train-probe", "st", "--out", "alone", "-q", *how]) == 0
    alone = pk.ProbeCurves.load("alone")
    (one,) = [each for each in SweepResults.load("out").runs if each.task == "one"]
    assert len(one.rows) == 4
    for row in one.rows:
        curve = alone[row.label, row.point, row.probe]
        assert row.place == curve.best.place
        assert row.value == pytest.approx(curve.estimate[0], abs=1e-9)
        assert (row.low, row.high) == pytest.approx(curve.estimate[1], abs=1e-9)
        assert row.lead == pytest.approx(curve.meta["lead"]["over"], abs=1e-9)
        assert row.baseline == curve.meta["lead"]["baseline"]
    assert list(pk.ProbeCurves.load(Path("out", one.results))) == list(alone)


@pytest.mark.usefixtures("blank_pictures")
def test_the_command_that_it_prints_makes_it_again(tasks: Path, gpt2_folder: Path, capsys: Capture) -> None:
    (tasks / "broken.csv").unlink()
    how = [
        "--point",
        "attn_out",
        "--layer",
        "1",
        "--probe",
        "ridge,mean-diff",
        "--quick",
        "--C",
        "0.5,2",
        "--seed",
        "3",
    ]
    job = ["sweep", "--model", str(gpt2_folder), "--dataset"]
    for data in ("tasks/one.csv,tasks/three.csv", "tasks/one.csv"):
        assert run([*job, data, *how, "--out", "out"]) == 0
    lines = [line.partition("Make it again: probekit ")[2] for line in capsys.readouterr().out.splitlines()]
    first, second = dict.fromkeys(filter(None, lines))
    assert second == shlex.join([*job, "tasks/one.csv", *how])
    assert run([*shlex.split(first), "--out", "again"]) == 0
    for one, other in zip(SweepResults.load("out").runs, SweepResults.load("again").runs, strict=True):
        assert one.rows == other.rows


@pytest.mark.usefixtures("blank_pictures")
def test_interrupted_it_says_how_to_go_on(
    tasks: Path, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep_run, "run_task", stop)
    assert run(["sweep", "--model", str(gpt2_folder), "--dataset", "tasks", *JOB]) == 130
    assert "the runs that ended are in out; run the same command again to resume" in capsys.readouterr().err


@pytest.mark.usefixtures("blank_pictures")
def test_tasks_may_be_added_and_settings_and_data_may_not_change(
    tasks: Path, gpt2_folder: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tasks / "broken.csv").unlink()
    job = ["sweep", "--model", str(gpt2_folder), *JOB]
    assert run([*job, "--dataset", "tasks/one.csv", "-q"]) == 0
    done = counted(monkeypatch)
    assert run([*job, "--dataset", "tasks", "-q"]) == 0
    assert done == ["=two", "three"]
    assert len(SweepResults.load("out").runs) == 3
    capsys.readouterr()
    assert "(seed: 0 there, 1 here)" in refused(5, *job, "--dataset", "tasks", "--seed", "1")
    write_task(tasks / "one.csv", ("left", "right"))
    assert "the data of one changed since" in refused(5, *job, "--dataset", "tasks")
    Path("other").mkdir()
    Path("other/notes.txt").touch()
    assert "'notes.txt', which is not of a sweep" in refused(4, *job[:-1], "other", "--dataset", "tasks")


@pytest.mark.usefixtures("blank_pictures")
def test_a_run_that_failed_is_tried_again(
    tasks: Path, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    job = ["sweep", "--model", str(gpt2_folder), "--dataset", "tasks", *JOB]
    real = sweep_run.train_curves

    def fail(acts: Any, options: Any) -> Any:
        if acts.task.name == "one":
            raise MemoryError
        return real(acts, options)

    (tasks / "broken.csv").unlink()
    monkeypatch.setattr(sweep_run, "train_curves", fail)
    assert run(job) == 3
    assert "failed: one: MemoryError" in capsys.readouterr().err
    monkeypatch.setattr(sweep_run, "train_curves", real)
    done = counted(monkeypatch)
    assert run(job) == 0
    assert done == ["one"]
    assert all(not row["error"] for row in rows_of(Path("out/results.csv")))


@pytest.mark.usefixtures("blank_pictures")
def test_the_data_of_a_task_that_failed_may_be_corrected(
    tasks: Path, gpt2_folder: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name in ("=two", "three"):
        (tasks / f"{name}.csv").unlink()
    rows = [f"In {1900 + i} there was text {i},{1900 + i}" for i in range(60)]
    (tasks / "years.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    job = ["sweep", "--model", str(gpt2_folder), "--dataset", "tasks", "--quick", "--no-intervals", "--out", "out"]
    assert run(job) == 3
    assert "2 of 3 runs failed (broken, years)" in capsys.readouterr().err
    done = counted(monkeypatch)
    write_task(tasks / "broken.csv")
    assert "--regression (regression=) names 'year', no task of this sweep; did you mean years?" in refused(
        2, *job, "--regression", "year"
    )
    job += ["--regression", "years", "-q"]
    assert run(job) == 0
    assert done == ["broken", "years"]
    (years,) = [each for each in SweepResults.load("out").runs if each.task == "years"]
    assert (years.rows[0].metric, years.rows[0].probe) == ("r2", "ridge")
    capsys.readouterr()
    assert "the data of years changed" in refused(5, *job[:-3])


def test_a_dry_run_reads_the_tasks_and_writes_nothing(tasks: Path, gpt2_folder: Path, capsys: Capture) -> None:
    assert run(["sweep", "--model", str(gpt2_folder), "--dataset", "tasks", *JOB, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["task", "train", "validation", "test", "classes"]
    assert lines[1].split() == ["=two", "48", "6", "6", "2"]
    assert "broken" in lines[2]
    assert "cannot be read: " in lines[2]
    assert lines[-1] == "4 tasks x 1 model: 4 runs, 0 of them done"
    assert not Path("out").exists()


@pytest.mark.usefixtures("blank_pictures")
def test_a_file_of_values_may_come_first_and_json_is_complete(tasks: Path, gpt2_folder: Path, capsys: Capture) -> None:
    Path("c.yaml").write_text(
        f"sweep: {{model: ['{gpt2_folder}'], dataset: [tasks/one.csv, tasks/three.csv], probe: mean-diff, quick: true}}"
    )
    assert run(["sweep", "c.yaml", "--out", "out", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["task"] for row in printed["rows"]] == ["one", "three"]
    assert (printed["sweep"], printed["failed"]) == ("out", [])
    assert printed["meta"]["settings"]["probe"] == "mean-diff"
    assert {path.name for path in Path("out").iterdir()} == {
        "sweep.json",
        "results.csv",
        "runs",
        "results",
        *(path.name for path in Path("out").glob("sweep.*")),
    }
