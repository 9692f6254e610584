"""`probekit report`: which results are found, the commands that make them again, and where the file may go."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probekit.activations import load_activations
from probekit.cli.main import run
from probekit.errors import DataError, StorageError
from probekit.evaluation import ProbeResults
from probekit.report.build import check_report_file, write_report
from probekit.report.runs import ReportRun, load_runs, names_of_causal, titles_of_runs
from probekit.report.sections.provenance import commands_of, provenance_section

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the model that comes with probekit, with curves of two points and results by position."""
    path = tmp_path_factory.mktemp("report") / "store"
    made = "extract --model agreement-gpt2 --dataset agreement --limit 150 --seed 2 --points resid_pre,attn_out"
    assert run([*made.split(), "--position", "all", "--out", str(path), "--quiet"]) == 0
    train = ["train-probe", str(path), "--quick", "--quiet"]
    assert (
        run([*train, "--position", "last", "--probe", "ridge", "--C", "0.1,1", "--layer", "1-2", "--no-intervals"]) == 0
    )
    assert run([*train, "--position", "last", "--point", "resid_pre,attn_out", "--no-intervals"]) == 0
    assert run([*train, "--by", "position", "--no-intervals"]) == 0
    return path


def test_a_store_gives_all_of_its_results(store: Path):
    runs = load_runs([store])
    assert [type(one.results).__name__ for one in runs].count("ProbeResults") == 3
    assert [type(one.results).__name__ for one in runs].count("PositionResults") == 1
    assert all(one.store is not None for one in runs)


def test_the_data_has_its_whole_path_in_commands_where_it_is_found(store: Path):
    about, path = load_activations(store, "size"), store.parent / "texts.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(store.parent)
        path.touch()
        patch.setitem(about.meta["task_info"], "source", "texts.csv")
        made = ReportRun(store, ProbeResults.load(next(store.glob("results/*ridge*"))), store=about, asked={})
        assert f"--dataset {path.resolve()}" in commands_of(made)[0]
        assert "is a path from the folder" not in provenance_section([made]).html
        path.unlink()
        assert "--dataset texts.csv" in commands_of(made)[0]
        assert "is a path from the folder" in provenance_section([made]).html


def test_results_elsewhere_have_the_store_that_is_named(store: Path, tmp_path: Path):
    (folder,) = (path.parent for path in store.glob("results/*/results.json"))
    results = ProbeResults.load(folder)
    elsewhere = results.save(tmp_path / "a" / "b")
    (found,) = load_runs([elsewhere])
    assert found.store is None
    (found,) = load_runs([elsewhere], store)
    assert found.store is not None
    assert found.store.path == store
    results.meta["activations"]["task_fingerprint"] = "of another task"
    with pytest.raises(DataError, match="are not of the store"):
        load_runs([results.save(tmp_path / "a" / "c")], store)
    with pytest.raises(DataError, match="no store at"):
        load_runs([elsewhere], tmp_path)


def test_several_runs_have_their_curves_on_one_axis(store: Path, tmp_path: Path, capsys: Capture):
    out = tmp_path / "all.html"
    assert run(["report", str(store), "--no-tokens", "--title", "<all of them>", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == out.stat().st_size
    html = out.read_text(encoding="utf-8")
    assert 'id="all-runs"' in html
    assert len(re.findall(r'id="run-\d-curve"', html)) == 3
    assert re.findall(r'<section id="([^"]*(?:data|provenance)[^"]*)"', html) == ["data", "provenance"]  # once for all
    assert len(re.findall(r"<code>probekit extract ", html)) == 1
    assert len(re.findall(r"<code>probekit train-probe ", html)) == 3
    assert "<title>&lt;all of them&gt;</title>" in html


def test_what_is_done_is_said(store: Path, tmp_path: Path):
    said, counted = [], []
    write_report(
        store, tmp_path / "r.html", on_part=said.append, on_progress=lambda done, total: counted.append((done, total))
    )
    assert said[0] == "reading the results"
    assert {name.partition(": ")[2] for name in said if name.startswith("run ")} == {"scoring tokens"}
    assert said[-1] == "comparing texts"
    assert all(0 <= done <= total for done, total in counted)
    assert len(counted) > 1


def test_causal_runs_of_one_curve_are_named_by_what_sets_them_apart():
    def of(**asked) -> Any:
        return SimpleNamespace(meta={"asked": {"answers": ["is", "are"], "at": "read", **asked}})

    several = [of(methods=["erase"]), of(methods=["steer"], scales=[-1.0, 1.0]), of(methods=["erase"], rows=50)]
    one = ReportRun(Path("a"), None, {Path(str(i)): causal for i, causal in enumerate(several)})
    names = names_of_causal(one)
    assert names == ["--method erase", "--method steer --scale -1,1", "--method erase --rows 50"]
    assert names_of_causal(ReportRun(Path("a"), None, {Path("0"): several[0]})) == [""]


def test_runs_of_one_curve_are_named_by_the_options_in_which_they_differ():
    meta = {"label": "kind", "point": "resid_pre", "probe": "logistic", "model": "tiny", "task": "texts"}

    def of(**asked) -> ReportRun:
        return ReportRun(Path("a"), SimpleNamespace(meta=meta), asked={"quick": False, "seed": 0, **asked})  # pyright: ignore

    titles = titles_of_runs([of(), of(quick=True), of(seed=3), of(seed=3)])
    start = "kind, resid_pre, logistic in tiny on texts, "
    words = ["the usual options", "--quick", "--seed 3", "--seed 3 (4)"]
    assert titles == [start + one for one in words]
    assert titles_of_runs([of()]) == ["kind, resid_pre, logistic in tiny"]


def test_the_newest_store_is_taken_and_the_file_is_in_it(store: Path, tmp_path: Path, monkeypatch, capsys: Capture):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/link").symlink_to(store)
    monkeypatch.chdir(tmp_path)
    assert run(["report", "--no-tokens", "--quiet"]) == 3  # a link is not searched
    assert "no complete store" in capsys.readouterr().err
    assert run(["report", "--no-tokens", "--quiet", str(store)]) == 0
    assert capsys.readouterr().out == f"{store / 'report.html'}\n"
    assert run(["verify", str(store), "--quiet"]) == 0  # which does not mind


def test_results_are_trained_again_over_a_report_in_their_folder(store: Path):
    (folder,) = (path.parent for path in store.glob("results/*/results.json"))
    results = ProbeResults.load(folder)
    write_report(folder, folder / "report.html", tokens=False)
    results.save(folder)
    assert not (folder / "report.html").exists()


def test_an_earlier_report_is_replaced_and_nothing_else(tmp_path: Path):
    other = tmp_path / "notes.html"
    other.write_text("<!doctype html><p>mine")
    with pytest.raises(StorageError, match="is no report of probekit"):
        check_report_file(other)
    with pytest.raises(StorageError, match="a folder"):
        check_report_file(tmp_path)
    assert check_report_file(tmp_path / "new.html") == tmp_path / "new.html"


def test_places_without_results_are_named(tmp_path: Path):
    with pytest.raises(DataError, match="no results and no store"):
        load_runs([tmp_path])
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(DataError, match="holds no results"):
        load_runs([tmp_path])
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(DataError, match="expected format"):
        load_runs([tmp_path])
