"""`probekit train-probe` and `probekit demo`: what is printed, and what is written where."""

import csv
import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

import probekit
from probekit.activations import load_activations
from probekit.cli import demo
from probekit.cli.main import run
from probekit.evaluation import ProbeResults
from probekit.options import TaskOptions

Capture = pytest.CaptureFixture[str]
FILES = ("accuracy_by_layer.png", "accuracy_by_layer.svg", "results.json", "results.csv", "probes")
FILES += ("predictions.parquet", "training_activations.safetensors")


def test_results_are_in_a_folder_named_after_the_question(here: Path, store: Path, capsys: Capture) -> None:
    shutil.copytree(store, "store")
    assert run(["train-probe", "store", "--layer", "0-1", "--probe", "mean-diff"]) == 0
    out = capsys.readouterr().out
    results = Path("store/results/label-resid_pre-mean-diff-layers-0-1")
    assert sorted(p.name for p in results.iterdir()) == sorted(FILES)
    assert str(results / "accuracy_by_layer.png") in out.splitlines()[-1]
    assert "selected on validation" in out
    assert len(ProbeResults.load(results).layers) == 2
    with (results / "results.csv").open() as file:
        assert {row["layer"] for row in csv.DictReader(file)} >= {"0", "1"}
    assert load_activations("store").n_examples == 90


@pytest.mark.usefixtures("blank_pictures")
def test_other_strengths_and_seeds_have_results_of_their_own(here: Path, store: Path) -> None:
    shutil.copytree(store, "store")
    job = ["train-probe", "store", "--layer", "0", "--probe", "ridge", "--quiet"]
    for more in ([], ["--seed", "0"], ["--C", "0.01,1"], ["--seed", "3"], ["--C", "2", "--seed", "3"]):
        assert run([*job, *more]) == 0
    name = "label-resid_pre-ridge-layers-0"
    assert {path.name for path in Path("store/results").iterdir()} == {
        name + tag for tag in ("", "-C-0.01-1", "-seed-3", "-C-2-seed-3")
    }
    assert run([*job, "--C", ",".join(f"1e-{i}" for i in range(1, 80))]) == 0


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("probekit.verbs.train_probes.train_probes", "no results were written"),
        ("probekit.plots.save_plot", "the results in store/results/label-resid_pre-mean-diff-layers-0 are incomplete"),
    ],
)
def test_ctrl_c_says_what_was_saved_and_how_to_resume(
    here: Path, store: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, where: str, says: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    shutil.copytree(store, "store")
    monkeypatch.setattr(where, interrupt)
    assert run(["train-probe", "store", "--layer", "0", "--probe", "mean-diff"]) == 130
    line = f"probekit: interrupted: the store store is complete, {says}; run the same command again\n"
    assert capsys.readouterr() == ("", line)


@pytest.mark.usefixtures("blank_pictures")
def test_every_option_reaches_the_probes(here: Path, store: Path, capsys: Capture) -> None:
    job = ["train-probe", str(store), "--point", "attn_out", "--layer", "0,2", "--label", "label", "--probe", "ridge"]
    assert run([*job, "--C", "0.5,2", "--seed", "3", "--out", "there", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["store"] == str(store)
    assert found["results"] == "there"
    assert found["picture"] == "there/accuracy_by_layer.png"
    results = ProbeResults.load("there")
    assert {layer.C for layer in results.layers} <= {0.5, 2.0}
    assert [place.layer for place in results.layers] == [0, 2]
    assert not (store / "results").exists()


@pytest.mark.usefixtures("blank_pictures")
def test_quiet_prints_where_the_results_are_and_nothing_else(here: Path, store: Path, capsys: Capture) -> None:
    assert run(["train-probe", str(store), "--layer", "1", "--probe", "mean-diff", "--out", "o", "--quiet"]) == 0
    assert capsys.readouterr() == ("o/accuracy_by_layer.png\n", "")


@pytest.mark.usefixtures("blank_pictures")
def test_the_newest_complete_store_is_taken_and_named(here: Path, store: Path, capsys: Capture) -> None:
    for name in ("runs/a", "runs/b", "runs/deep/c"):
        shutil.copytree(store, name)
    manifest = Path("runs/deep/c/manifest.json")
    manifest.unlink()
    os.utime("runs/a")
    assert run(["train-probe", "--layer", "0", "--probe", "mean-diff"]) == 0
    out, err = capsys.readouterr()
    assert "runs/b" in err
    assert "runs/b/results/" in out


@pytest.mark.usefixtures("blank_pictures")
def test_names_from_data_make_safe_paths(here: Path, gpt2_folder: Path, capsys: Capture) -> None:
    rows = "".join(f"t {i} {'x' * (i % 2)},{i % 2}\n" for i in range(40))
    Path("t.csv").write_text(f"text,../../\x1b[1mup\n{rows}")
    job = ["extract", "--model", str(gpt2_folder), "--dataset", "t.csv", "--label-column", "../../\x1b[1mup"]
    assert run([*job, "--out", "s", "--layers", "0"]) == 0
    assert run(["train-probe", "s", "--layer", "0", "--probe", "mean-diff"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    (results,) = Path("s/results").iterdir()
    assert (results / "results.json").exists()


def test_the_demo_is_the_two_commands_in_one(here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TaskOptions", partial(TaskOptions, limit=80))
    assert run(["demo"]) == 0
    out, err = capsys.readouterr()
    assert "agreement-gpt2" in err
    assert "selected on validation" in out
    page = (Path(probekit.__file__).parents[1] / "docs/read-a-result.md").read_text(encoding="utf-8")
    documented = page.split("<!-- figures: table -->")[1].split("<!-- end -->")[0]
    assert _columns_and_rows(documented) == _columns_and_rows(out.split("\n\n")[1].split("Marks")[0])
    picture, report = (Path(line.split(": ")[1].split(" (")[0]) for line in out.splitlines()[-2:])
    assert report.read_bytes().startswith(b"<!doctype html>")
    assert picture.read_bytes().startswith(b"\x89PNG")
    store = picture.parents[2]
    config = Path(probekit.__file__).parents[1] / "configs/demo.yaml"
    assert run(["extract", "--config", str(config), "--set", "extract.limit=80"]) == 0
    assert capsys.readouterr().out == f"{store}\n"
    assert run(["train-probe", "--config", str(config), "--probe", "mean-diff", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["store"] == str(store)
    assert found["meta"]["probe"] == "mean-diff"
    assert [place["layer"] for place in found["layers"]] == [0, 1, 2, 3, 3]


def _columns_and_rows(table: str) -> tuple[str, list[str]]:
    """The header of a table without its spacing, and the names of its rows without their marks."""
    header, *rows = [line for line in table.splitlines() if line.strip()]
    return " ".join(header.split()), [row.lstrip("*= ").split()[0] for row in rows]
