"""`probekit compare`, and several revisions of one model from extraction to the picture of layers and steps."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_repos import repos
from hub_server import HubServer
from safetensors.numpy import load, save

from probekit.activations import load_activations
from probekit.cli.main import run
from probekit.side_by_side import Comparison

Capture = pytest.CaptureFixture[str]
FILES = ["comparison.json", "comparison.png", "comparison.svg", "results.csv"]
QUICK = ["--quick", "--C", "1"]


@pytest.fixture(scope="module")
def trained(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two results of one store."""
    folder = tmp_path_factory.mktemp("results")
    for point in ("resid_pre", "attn_out"):
        job = ["train-probe", str(store), "--point", point, "--out", str(folder / point), "--quiet"]
        assert run([*job, *QUICK]) == 0
    return folder


@pytest.fixture
def two(trained: Path, here: Path, capsys: Capture) -> list[str]:
    for name in ("resid_pre", "attn_out"):
        shutil.copytree(trained / name, name)
    capsys.readouterr()
    return ["resid_pre", "attn_out"]


def test_one_table_is_printed_and_everything_is_kept(two: list[str], capsys: Capture) -> None:
    assert run(["compare", *two, "--axis", "depth"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    picture = Path(out.splitlines()[-1].removeprefix("Picture: "))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.parent.parent == Path("runs")
    assert sorted(path.name for path in picture.parent.iterdir()) == FILES
    found = Comparison.load(picture.parent)
    assert found.summary() in out
    assert found.meta["axis"] == "depth"
    with (picture.parent / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["point"] for row in rows if row["kind"] == "run"] == two
    assert [row["note"] for row in rows if row["kind"] == "difference"] == ["paired"]


@pytest.mark.usefixtures("blank_pictures")
def test_a_folder_of_results_json_and_quiet(two: list[str], capsys: Capture) -> None:
    assert run(["compare", ".", "--json", "--out", "there"]) == 0
    out, err = capsys.readouterr()
    body = json.loads(out)
    assert err == ""
    assert (body["results"], body["picture"]) == ("there", "there/comparison.png")
    assert [one["facts"]["point"] for one in body["runs"]] == ["attn_out", "resid_pre"]
    assert run(["compare", *two, "--quiet", "--out", "both"]) == 0
    assert capsys.readouterr() == ("both/comparison.png\n", "")
    assert run(["compare", *two, "resid_pre:resid_pre.0", "--pairs", "all", "--out", "all", "--seed", "3"]) == 0
    assert "corrected over 3 differences (Holm)" in capsys.readouterr().out


def test_a_comparison_of_another_question_is_kept(two: list[str], refused, capsys: Capture) -> None:
    assert run(["compare", *two, "--quiet", "--out", "there"]) == 0
    assert run(["compare", *map(os.path.abspath, two), "--quiet", "--out", "there"]) == 0  # the same runs
    capsys.readouterr()
    before = Path("there/comparison.json").read_bytes()
    assert "(different: seed)" in refused(5, "compare", *two, "--seed", "3", "--out", "there")
    assert "(different: axis, runs)" in refused(5, "compare", *two[::-1], "--axis", "depth", "--out", "there")
    says = "'resid_pre' holds a curve, and this makes a comparison; give another folder (--out)"
    assert says in refused(5, "compare", *two, "--out", "resid_pre")
    assert Path("there/comparison.json").read_bytes() == before


def test_what_cannot_be_is_one_line(two: list[str], refused, store: Path) -> None:
    assert "two runs or more; got 1" in refused(2, "compare", two[0])
    assert "'resid_pre' is given twice" in refused(2, "compare", two[0], two[0])
    assert "no folder 'nothing'" in refused(3, "compare", two[0], "nothing")
    assert "has no place 'x'" in refused(2, "compare", f"{two[0]}:x", two[1])
    assert "is not of a checkpoint" in refused(2, "compare", *two, "--by", "step")
    assert "run probekit train-probe" in refused(3, "compare", two[0], store)
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("mine")
    assert "thesis.tex" in refused(4, "compare", *two, "--out", "mine")
    assert "thesis.tex' is a file" in refused(4, "compare", *two, "--out", "mine/thesis.tex")
    assert "no results in 'mine'" in refused(3, "compare", two[0], "mine")
    Path("resid_pre/predictions.parquet").write_bytes(b"PAR1")
    assert "train again" in refused(3, "compare", *two)


def test_ctrl_c_says_what_is_complete(two: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("probekit.side_by_side.compare", interrupt)
    assert run(["compare", *two]) == 130
    says = "the runs are complete, no comparison was written; run the same command again"
    assert capsys.readouterr() == ("", f"probekit: interrupted: {says}\n")


@pytest.fixture
def checkpoints(here: Path, make_model, capsys: Capture) -> Path:
    """A folder of a model with three checkpoints, of which the last differs."""
    Path("tiny").mkdir()
    for step in (0, 5, 20):
        make_model(Path(f"tiny/step{step}"))
    capsys.readouterr()
    return Path("tiny")


def test_checkpoints_go_from_a_folder_to_a_heatmap(checkpoints: Path, texts: Path, capsys: Capture) -> None:
    job = ["extract", "--model", str(checkpoints), "--dataset", str(texts), "--revision", "step20,step0,step5"]
    assert run(job) == 0
    out, err = capsys.readouterr()
    stores = [Path(line) for line in out.splitlines()]
    assert [path.name for path in stores] == ["step20", "step0", "step5"]
    folder = stores[0].parent
    assert {path.parent for path in stores} == {folder}
    assert "revisions 3: step20, step0, step5" in err
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    assert run(job) == 0  # the same command finds everything done
    assert capsys.readouterr().out == out
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert run(["train-probe", str(folder), *QUICK]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["step0", "step5", "step20"]
    assert err.splitlines()[-1] == f"compare them: probekit compare {folder} --by step"
    assert run(["compare", str(folder), "--by", "step", "--out", "there"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[4:7]] == ["0", "5", "20"]
    found = Comparison.load("there")
    assert (found.steps, found.meta["by"]) == ([0, 5, 20], "step")
    assert Path("there/comparison.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("blank_pictures")
def test_json_of_several_revisions(checkpoints: Path, texts: Path, refused, capsys: Capture) -> None:
    job = ["extract", "--model", str(checkpoints), "--dataset", str(texts), "--out", "there"]
    assert run([*job, "--revision", "step0,step5", "--json", "--quiet"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["folder"] == "there"
    assert [(one["revision"], one["store"]) for one in body["stores"]] == [
        ("step0", "there/step0"),
        ("step5", "there/step5"),
    ]
    assert run(["train-probe", "there", *QUICK, "--json", "--out", "results"]) == 0
    found = json.loads(capsys.readouterr().out)["stores"]
    assert [one["results"] for one in found] == ["results/step0", "results/step5"]
    assert all(one["curves"][0]["metric"] == "accuracy" for one in found)
    assert run(["compare", "results", "--by", "step", "--quiet", "--out", "compared"]) == 0
    assert run([*job, "--revision", "step0,step5", "--dry-run", "--quiet"]) == 0
    assert run([*job[:-1], "one", "--revision", "step5", "--quiet"]) == 0
    assert json.loads(Path("one/manifest.json").read_text())
    capsys.readouterr()
    says = "'one' is a store, and several revisions have a store each; give another folder (--out)"
    assert says in refused(2, *job[:-1], "one", "--revision", "step0,step5")


def test_revisions_that_cannot_be_are_one_line(checkpoints: Path, texts: Path, refused, capsys: Capture) -> None:
    job = ["extract", "--model", checkpoints, "--dataset", texts]
    assert "no checkpoint 'step7' (--revision): it holds 'step0', 'step5', 'step20'" in refused(
        2, *job, "--revision", "step0,step7"
    )
    assert not Path("runs").exists()
    assert "no checkpoint '../tiny/step0'" in refused(2, *job, "--revision", "../tiny/step0")
    assert "'step0' twice" in refused(2, *job, "--revision", "step0,step5,step0")
    assert "no config.json; it holds 'step0', 'step5', 'step20', name one with --revision" in refused(3, *job)
    assert "and several checkpoints (--revision) exclude" in refused(
        2, *job, "--revision", "step0,step5", "--generate", "3"
    )
    assert "'agreement-gpt2' is built in" in refused(
        2, "extract", "--model", "agreement-gpt2", "--dataset", texts, "--revision", "step0,step5"
    )
    Path("tiny/step5/config.json").write_text("{}")
    assert run([*map(str, job), "--revision", "step0,step5", "--quiet"]) == 3
    out, err = capsys.readouterr()
    assert out.endswith("/step0\n")  # the first is complete
    assert err.startswith("probekit: error: 'step5': ")
    assert err.endswith("; 1 of 2 are complete; run the same command again for the rest\n")


def test_revisions_of_the_hub_have_a_store_each(texts: Path, here: Path) -> None:
    main, key = repos()["models/openai-community/gpt2"], "models/openai-community/gpt2"
    later = {**main, "model.safetensors": save({k: 2 * x for k, x in load(main["model.safetensors"]).items()})}
    hub = HubServer({key: main, f"{key}@step1": main, f"{key}@step2": later}, here / "home")
    job = ["extract", "--model", "gpt2", "--dataset", str(texts), "--revision", "step1,step2,step3", "--out", "there"]
    command = [sys.executable, "-m", "probekit", *job, "--quiet", "--device", "cpu"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=hub.env)
    finally:
        hub.close()
    assert (done.returncode, done.stdout) == (2, "there/step1\nthere/step2\n"), done.stderr
    assert "'step3': 'gpt2' has no revision 'step3' on the Hub" in done.stderr
    metas = [load_activations(Path("there") / name).meta for name in ("step1", "step2")]
    assert [meta["revision"] for meta in metas] == ["step1", "step2"]
    assert metas[0]["model_fingerprint"] != metas[1]["model_fingerprint"]


def test_of_quick_and_full_results_of_a_store_the_full_ones_are_taken(
    store: Path, here: Path, capsys: Capture, refused, blank_pictures: None
) -> None:
    stores = [shutil.copytree(store, name) for name in ("a", "b")]
    for path in stores:
        for how in (["--quick"], ["--quick", "--no-intervals"], ["--controls", "0", "--no-codelength"]):
            assert run(["train-probe", str(path), "--point", "attn_out", "--C", "1", "--quiet", *how]) == 0
    capsys.readouterr()
    assert run(["compare", "a", "b", "--out", "found"]) == 0
    out = capsys.readouterr().out
    found = Comparison.load("found")
    names = [Path(str(each.path)).name for each in found.runs]
    there = sorted(path.name for path in Path("a/results").iterdir())
    assert len(there) == 3
    assert not any("quick" in name for name in names)
    for name, path in zip(names, stores, strict=True):
        (note,) = [note for note in found.meta["notes"] if f"'{path}'" in note]
        assert note in out
        assert all(repr(one) in note for one in there)
        assert note.index(name) < note.index("quick")
    job = ["train-probe", "a", "--point", "resid_pre", "--C", "1", "--quick", "--quiet"]
    assert run(job) == 0
    capsys.readouterr()
    assert "'a' has results of several questions, " in refused(2, "compare", "a", "b")
