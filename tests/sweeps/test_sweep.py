"""`pk.sweep`: rows equal those of extract and train_probes, whatever the tasks are given as; the table and picture."""

import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_configs import tiny_model

import probekit as pk
from probekit.errors import DataError, ResumeMismatch, StorageError, UsageError
from probekit.plots import save_sweep_plot
from probekit.sweeps import SweepResults, files
from probekit.sweeps.data import SweepData, SweepRow, SweepRun
from probekit.sweeps.files import begin, read_body, read_runs, run_file_name, table_rows, write_run, write_table
from probekit.sweeps.sources import model_sources, task_sources
from probekit.tasks import Task

BRIEF: dict[str, Any] = {"quick": True, "intervals": False, "probe": "mean-diff"}
NIGHTLY = os.environ.get("PROBEKIT_FAULTS") == "nightly"
HOSTILE = "=a $x_1$ <i>&\x1b[31m‮\udc80" + "n" * 80


def token_task(name: str, seed: int = 0, numbers: bool = False) -> Task:
    """Lists of token ids whose class is whether the last one is even, or whose number it is."""
    rng = np.random.default_rng(seed)
    inputs = [[int(t) for t in rng.integers(1, 20, size=5)] for _ in range(90)]
    last = np.array([tokens[-1] for tokens in inputs])
    splits = np.array((["train"] * 6 + ["validation"] * 2 + ["test"] * 2) * 9)
    names = {"even": [] if numbers else ["no", "yes"]}
    return Task(name, inputs, {"even": last * 1.5 if numbers else last % 2}, names, splits, "even")


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("gpt2")


def row(value: float | None = 0.8, **more: Any) -> SweepRow:
    usual: dict[str, Any] = {
        "label": "label",
        "point": "resid_pre",
        "probe": "logistic",
        "metric": "accuracy",
        "classes": 2,
        "n_train": 10,
        "n_test": 10,
        "place": "resid_pre.1",
        "layer": 1,
        "depth": 0.5,
        "C": 1.0,
        "value": value,
        "low": None if value is None else value - 0.1,
        "high": None if value is None else value + 0.1,
        "baseline": "majority",
        "baseline_value": 0.5,
        "lead": 0.3,
        "lead_low": 0.1,
        "lead_high": 0.5,
        "flags": ("2 leaks",),
    }
    return SweepRow(**(usual | more))


@pytest.mark.filterwarnings("error")
def test_rows_are_those_of_extract_and_train_probes(model: Any) -> None:
    tasks = {"classes": token_task("t"), "numbers": token_task("u", 1, numbers=True)}
    found = pk.sweep(model, tasks, quick=True, points=["resid_pre", "mlp_out"])
    assert [run.task for run in found.runs] == ["classes", "numbers"]
    for run in found.runs:
        acts = pk.extract(model, tasks[run.task], points=["resid_pre", "mlp_out"])
        alone = pk.train_probes(acts, quick=True, points="all")
        assert [(each.label, each.point) for each in run.rows] == list(alone)
        for each, curve in zip(run.rows, alone.values(), strict=True):
            assert each.value == curve.estimate[0]
            assert (each.low, each.high) == (curve.estimate[1] or (None, None))
            assert (each.place, each.layer, each.C) == (curve.best.place, curve.best.layer, curve.best.C)
            assert each.metric == curve.headline
            lead = curve.meta["lead"]
            named = next(x for x in curve.baselines if x.name == lead["baseline"])
            assert each.baseline_value == pytest.approx(named.metrics["test"][curve.headline])
            assert each.lead == lead["over"]
    frame = found.to_frame()
    rows = [row for run in found.runs for row in run.rows]
    quoted = frame[frame["kind"] == "probe"]
    assert set(quoted["probe"]) == {"logistic", "ridge"}  # by default, what suits the labels
    assert quoted["value"].tolist() == [row.value for row in rows if row.value is not None]
    assert frame[frame["kind"] == "lead"]["value"].tolist() == [row.lead for row in rows if row.lead is not None]


def test_what_fails_is_recorded_and_the_rest_goes_on(model: Any) -> None:
    bad = Task("bad", [[1], [2]], {"even": np.array([0, 1])}, {"even": ["a", "b"]}, np.array(["train"] * 2), "even")
    found = pk.sweep([model, "no such model"], {"bad": bad, "good": token_task("good")}, **BRIEF)
    assert [(run.task, run.model == "no such model", bool(run.error)) for run in found.runs] == [
        ("bad", False, True),
        ("good", False, False),
        ("bad", True, True),
        ("good", True, True),
    ]
    assert "no model 'no such model'" in found.runs[-1].error
    assert found.summary().count("\nFailed: ") == 3


def test_warnings_are_kept_with_their_run(model: Any) -> None:
    task = token_task("t")
    rest = Task(
        "t", task.inputs, task.labels, task.label_names, np.where(task.splits == "test", "test", "train"), "even"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pk.sweep(model, [rest], quick=True, intervals=False)
    (run,) = found.runs
    assert "no validation split" in run.warnings[0]
    assert "Warnings in 1 run: t: " in found.summary()


def test_other_weights_of_the_same_name_are_refused(model: Any, tmp_path: Path) -> None:
    pk.sweep(model, {"a": token_task("a")}, out=tmp_path / "s", **BRIEF)
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(other.parameters()).add_(0.1)
    with pytest.raises(ResumeMismatch, match="weights of"):
        pk.sweep(other, {"a": token_task("a"), "b": token_task("b", 1)}, out=tmp_path / "s", **BRIEF)


def test_other_data_of_the_same_name_are_refused(model: Any, tmp_path: Path) -> None:
    pk.sweep(model, {"a": token_task("a")}, out=tmp_path / "s", **BRIEF)
    with pytest.raises(ResumeMismatch, match="the data of a changed"):
        pk.sweep(model, {"a": token_task("a", 1)}, out=tmp_path / "s", **BRIEF)


def test_what_misleads_is_said(model: Any) -> None:
    task = token_task("last")
    found = pk.sweep([model, "no such model"], {"last": task}, quick=True, intervals=False)
    assert found.runs[0].rows[0].place == "resid_pre.0"  # the token's own embedding has it
    assert found.runs[0].rows[0].flags[-1] == "embedding selected"
    text = found.summary()
    assert "Quick look: p-values are left out" in text
    assert model.name in text.splitlines()[3]  # with two models the table has a column of them


def test_stores_are_kept_where_asked_for(model: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'a', which is loaded already; give load_task"):
        pk.sweep(model, [token_task("a")], regression="a")
    with pytest.raises(UsageError, match="stores need a folder"):
        pk.sweep(model, [token_task("a")], stores=True)
    model = pk.load_model("agreement-gpt2")
    found = pk.sweep(model, ["agreement"], limit=40, stores=True, out=tmp_path / "s", **BRIEF)
    name = run_file_name("agreement", found.runs[0].model)
    assert pk.load_activations(tmp_path / "s" / "stores" / name).task.name == "agreement"
    assert pk.ProbeResults.load(tmp_path / "s" / found.runs[0].results).best.place == found.runs[0].rows[0].place


def test_a_folder_of_tables_is_a_task_for_each_and_a_folder_of_splits_is_one(tmp_path: Path) -> None:
    for name in ("many/b.csv", "many/a.csv", "many/c/train.csv", "many/c/test.csv", "many/d/x.csv", "one/train.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text,label\n")
    assert [source.name for source in task_sources(str(tmp_path / "many"))] == ["a", "b", "c"]
    assert [source.name for source in task_sources(tmp_path / "one")] == ["one"]
    both = task_sources([tmp_path / "many/a.csv", tmp_path / "many/d/x.csv", str(tmp_path / "many/a.csv"), "sst2"])
    assert [source.name for source in both] == ["many/a", "x", "many/a (2)", "sst2"]
    assert [source.name for source in task_sources("sst2, agreement")] == ["sst2", "agreement"]
    assert [source.name for source in model_sources(f"{tmp_path / 'one'},gpt2")] == ["one", "gpt2"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no tables of tasks"):
        task_sources(tmp_path / "empty")
    for nothing in ([], "", {}):
        with pytest.raises(UsageError, match="a sweep needs at least one task"):
            task_sources(nothing)


def test_runs_and_table_come_back_from_disk(tmp_path: Path) -> None:
    runs = (
        SweepRun(HOSTILE, "m", 1.5, (row(), row(None, low=None, high=None, place="", layer=None)), results="results/x"),
        SweepRun("two", "m", 0.1, error="no"),
    )
    body = begin(tmp_path, {"seed": 0}, {HOSTILE: "", "two": "ab"}, ["m"])
    for run in runs:
        write_run(tmp_path, body, run)
    assert tuple(read_runs(tmp_path, read_body(tmp_path)).values()) == runs
    data = SweepData(runs, {"tasks": [HOSTILE, "two"], "models": ["m"]})
    write_table(tmp_path, data)
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert len(lines) == 1 + len(table_rows(data)) == 4
    assert lines[1].startswith("'=a ")
    (tmp_path / "runs" / f"{run_file_name('two', 'm')}.json").write_text("{}")
    with pytest.raises(DataError, match="remove it, and the run is done again"):
        SweepResults.load(tmp_path)


def test_a_run_that_ended_well_keeps_its_record(tmp_path: Path) -> None:
    body = begin(tmp_path, {"seed": 0}, {"a": ""}, ["m"])
    for seconds, error in ((1.0, "no memory"), (2.0, ""), (3.0, ""), (4.0, "no memory")):
        write_run(tmp_path, body, SweepRun("a", "m", seconds, error=error))
    assert [run.seconds for run in read_runs(tmp_path, body).values()] == [2.0]


def test_a_sweep_without_checksums_is_read_and_resumed(model: Any, tmp_path: Path) -> None:
    """As sweeps were written before their runs were records: the same names and fields, and nothing is done twice."""
    tasks = {"a": token_task("a"), "b": token_task("b", 1)}
    whole = pk.sweep(model, tasks, out=tmp_path / "s", **BRIEF)
    files = [tmp_path / "s" / "sweep.json", *(tmp_path / "s" / "runs").iterdir()]
    for file in files:
        body = json.loads(file.read_text())
        own = {name: value for name, value in body.items() if name not in ("seal", "data")}
        own |= {"format": "probekit.sweeps/1"} if file.name == "sweep.json" else {}
        own = own if file.name == "sweep.json" else {name: own[name] for name in own if name != "settings"}
        file.write_text(json.dumps(own, indent=1))
    assert SweepResults.load(tmp_path / "s").runs == whole.runs
    with pytest.raises(ResumeMismatch, match="the data of a changed"):
        pk.sweep(model, {"a": token_task("a", 5)}, out=tmp_path / "s", **BRIEF)
    before = [file.read_text() for file in files]
    assert pk.sweep(model, tasks, out=tmp_path / "s", **BRIEF).runs == whole.runs
    assert all(
        '"seal": "' not in old and '"seal": "' in file.read_text() for file, old in zip(files, before, strict=True)
    )
    assert SweepResults.load(tmp_path / "s").runs == whole.runs


def test_pictures_and_tables_hold_hostile_names(tmp_path: Path) -> None:
    runs = tuple(
        SweepRun(f"{HOSTILE}{i}", HOSTILE, 1.0, (row(0.5 + i / 20), row(0.4, probe="lda"), row(-3.0, metric="r2")))
        for i in range(2)
    )
    data = SweepResults(runs, {"tasks": [run.task for run in runs], "models": [HOSTILE]})
    assert "\x1b" not in data.summary()
    assert "<i>" not in data._repr_html_()
    first = save_sweep_plot(data, tmp_path / "a").read_bytes()
    assert first == save_sweep_plot(data, tmp_path / "b").read_bytes()


def test_the_picture_sorts_tasks_and_marks_the_lead() -> None:
    runs = tuple(
        SweepRun(name, "m", 1.0, (row(value, lead_low=low),))
        for name, value, low in (("low", 0.6, -0.1), ("high", 0.9, 0.2))
    )
    figure = SweepResults(runs, {"tasks": ["low", "high"], "models": ["m"]}).plot()
    left = figure.axes[0]
    assert [text.get_text() for text in left.get_yticklabels()] == ["high", "low"]
    dots = [line for line in left.lines if line.get_marker() == "o"]
    filled = {float(np.ravel(line.get_xdata())[0]): line.get_markerfacecolor() != "white" for line in dots}
    assert filled == {0.9: True, 0.6: False}


def test_two_calls_that_add_to_a_sweep_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second writer finds what the first added, whenever it comes."""
    settings, others = {"seed": 0}, iter(["two", "three"])
    begin(tmp_path, settings, {"one": "a"}, ["m"], {"dataset": "one"})
    real = files.write_first

    def write_first(path: Path, data: bytes) -> bool:
        if (other := next(others, None)) is not None:
            begin(tmp_path, settings, {other: "b"}, ["m"], {"dataset": other})
        return real(path, data)

    monkeypatch.setattr(files, "write_first", write_first)
    body = begin(tmp_path, settings, {"four": "c"}, ["n"], {"dataset": "four"})
    assert body == read_body(tmp_path)
    assert body["tasks"] == {"one": "a", "three": "b", "two": "b", "four": "c"}
    assert body["models"] == ["m", "n"]
    assert [one["dataset"] for one in body["asked"]] == ["one", "three", "two", "four"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert begin(tmp_path, settings, {"two": "b"}, ["m"], {"dataset": "two"}) == body  # nothing is new
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before


def test_what_was_added_to_a_sweep_is_whole_or_refused(tmp_path: Path) -> None:
    for name in ("one", "two", "three", "four"):
        body = begin(tmp_path, {"seed": 0}, {name: name}, ["m"])
    assert [*body["tasks"]] == ["one", "two", "three", "four"]
    wider = tmp_path / "wider"
    (wider / "0001 (1).json").write_bytes((wider / "0001.json").read_bytes())  # a copy that a synchroniser made
    assert read_body(tmp_path) == body
    for path, damaged in ((wider / "0003.json", b"{}"), (tmp_path / "sweep.json", b""), (wider / "0001.json", None)):
        before = path.read_bytes()
        path.unlink() if damaged is None else path.write_bytes(damaged)
        for read in (read_body, lambda folder: begin(folder, {"seed": 0}, {"five": ""}, ["m"])):
            with pytest.raises(StorageError, match=path.name):
                read(tmp_path)
        path.write_bytes(before)
    assert read_body(tmp_path) == body
