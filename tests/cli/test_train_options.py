"""What `probekit train-probe` makes of its options, of a folder that is not its own, and of labels of every kind."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from terminal import Terminal

from probekit.cli.main import run
from probekit.evaluation import ProbeResults

Capture = pytest.CaptureFixture[str]
FAST = ["--layer", "0", "--C", "0.01,1"]


def make_store(gpt2_folder: Path, labels: list[str], *more: str) -> None:
    """A store of `len(labels)` texts of words that differ, with these labels."""
    rows = [f"text {i * i * 31 % 1009} of the {chr(97 + i % 26)}{i} kind,{label}" for i, label in enumerate(labels)]
    Path("t.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    job = ["extract", "--model", str(gpt2_folder), "--dataset", "t.csv", "--out", "s", "--layers", "0", "--quiet"]
    assert run([*job, *more]) == 0


@pytest.mark.usefixtures("blank_pictures")
def test_the_full_answer_needs_no_options(here: Path, store: Path, capsys: Capture) -> None:
    shutil.copytree(store, "store")
    assert run(["train-probe", "store", "--layer", "0-1"]) == 0
    text = capsys.readouterr().out
    selecting = "Selecting the layer on test"
    for part in ("selectivity", " bits (uniform code", "statistically tied with the best", "p = ", selecting, "length"):
        assert part in text
    assert [path.name for path in Path("store/results").iterdir()] == ["label-resid_pre-logistic-layers-0-1"]


@pytest.mark.usefixtures("blank_pictures")
def test_each_option_has_its_own_results_and_its_effect(here: Path, store: Path, capsys: Capture) -> None:
    shutil.copytree(store, "store")
    job = ["train-probe", "store", *FAST, "--quiet"]
    few = [["--controls", "0", "--no-codelength"], ["--controls", "1", "--metric", "f1"]]
    for more in (["--folds", "3"], ["--drop-leaks"], *few):
        assert run([*job, *more]) == 0
    name = "label-resid_pre-logistic-layers-0-C-0.01-1"
    tags = ("-folds-3", "-drop-leaks", "-controls-0-no-codelength", "-controls-1-f1")
    assert {path.name for path in Path("store/results").iterdir()} == {name + tag for tag in tags}
    folds, drop, bare, one = (ProbeResults.load(f"store/results/{name}{tag}") for tag in tags)
    assert (folds.meta["folds"], drop.meta["drop_leaks"], bare.meta["control"]) == (3, True, None)
    assert bare.layers[0].codelength is None
    assert one.meta["control"]["draws"] == 1
    assert (one.headline, one.meta["metric"], bare.meta["metric"]) == ("f1", "f1", None)


@pytest.mark.usefixtures("blank_pictures")
def test_random_weights_are_a_baseline(here: Path, store: Path, gpt2_folder: Path, capsys: Capture) -> None:
    shutil.copytree(store, "store")
    assert run(["train-probe", "store", *FAST, "--baseline", "random-init"]) == 0
    assert "random init" in capsys.readouterr().out
    (folder,) = Path("store/results").iterdir()
    assert folder.name == "label-resid_pre-logistic-layers-0-C-0.01-1-random-init"
    results = ProbeResults.load(folder)
    assert [layer.place for layer in results.random_init] == ["resid_pre.0"]
    assert results.meta["random_init"]["seed"] == 0
    assert len(results.meta["random_init"]["fingerprint"]) > 9


def test_a_run_that_fails_leaves_no_mixture(here: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in Path("o").rglob("*") if path.is_file()}

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    job = ["train-probe", str(store), "--probe", "mean-diff", "--quick", "--quiet", "--out", "o"]
    assert run([*job, "--layer", "0-1"]) == 0
    first = files()
    assert run([*job, "--layer", "2"]) == 5  # refused before anything is touched
    assert files() == first
    with monkeypatch.context() as patch:
        patch.setattr("probekit.plots.save_plot", fail)
        assert run([*job, "--layer", "0-1"]) != 0
    left = {Path(path).name for path in files()}
    assert not {"accuracy_by_layer.png", "accuracy_by_layer.svg"} & left
    assert run([*job, "--layer", "0-1"]) == 0
    assert files() == first


def test_the_picture_has_the_width_the_format_and_the_title_that_were_given(here: Path, store: Path) -> None:
    job = ["train-probe", str(store), *FAST, "--quick", "--quiet", "--out", "o"]
    assert run([*job, "--width", "3.25", "--format", "pdf", "--no-title"]) == 0
    assert [path.name for path in Path("o").glob("accuracy_by_layer.*")] == ["accuracy_by_layer.pdf"]
    box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ", Path("o/accuracy_by_layer.pdf").read_bytes())
    assert box is not None
    assert float(box[1]) == 72 * 3.25
    for title in ("Number of the subject: $x_1$", "a\x1b[31mb", ""):
        assert run([*job, "--title", title]) == 0  # the same question; other pictures replace it
        assert sorted(path.suffix for path in Path("o").glob("accuracy_by_layer.*")) == [".png", ".svg"]
        svg = Path("o/accuracy_by_layer.svg").read_text()
        texts = [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
        assert not title or title.replace("\x1b", "\\x1b") in texts
        assert not any("Decoding" in (text or "") or " from gpt2" in (text or "") for text in texts)


def test_two_runs_write_the_same_bytes(here: Path, store: Path) -> None:
    for folder in ("a", "b"):
        assert run(["train-probe", str(store), *FAST, "--quiet", "--out", folder]) == 0
    for path in (path for path in Path("a").rglob("*") if path.is_file()):
        assert path.read_bytes() == (Path("b") / path.relative_to("a")).read_bytes()


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize("labels", [["yes", "no"], ["true", "false"], ["1", "0"], ["0.0", "1.0"]])
def test_classes_may_be_texts_booleans_and_whole_numbers(
    here: Path, gpt2_folder: Path, capsys: Capture, labels: list[str]
) -> None:
    make_store(gpt2_folder, labels * 30)
    assert run(["train-probe", "s", *FAST, "--json"]) == 0
    meta = json.loads(capsys.readouterr().out.partition("\n")[2])["meta"]
    assert (meta["n_classes"], meta["headline"], meta["probe"]) == (2, "accuracy", "logistic")


@pytest.mark.usefixtures("blank_pictures")
def test_numbers_are_a_regression(here: Path, gpt2_folder: Path, capsys: Capture, refused: Callable[..., str]) -> None:
    make_store(gpt2_folder, [f"{x:.3f}" for x in np.linspace(-1, 1, 60)])
    capsys.readouterr()
    assert run(["train-probe", "s", *FAST]) == 0
    assert "test R2" in capsys.readouterr().out
    assert Path("s/results/label-resid_pre-ridge-layers-0-C-0.01-1/results.json").exists()
    assert "holds a number for each example; take ridge" in refused(2, "train-probe", "s", "--probe", "logistic")


@pytest.mark.usefixtures("blank_pictures")
def test_results_of_another_question_are_not_replaced(
    here: Path, store: Path, refused: Callable[..., str], capsys: Capture
) -> None:
    assert run(["train-probe", str(store), *FAST, "--quiet", "--out", "one"]) == 0
    capsys.readouterr()
    before = Path("one/results.json").read_bytes()
    line = refused(5, "train-probe", store, *FAST, "--quiet", "--seed", "1", "--out", "one")
    assert "results of other settings or data (different: seed)" in line
    assert Path("one/results.json").read_bytes() == before
    assert run(["train-probe", str(store), *FAST, "--quiet", "--out", "one"]) == 0
    assert Path("one/results.json").read_bytes() == before


@pytest.mark.usefixtures("blank_pictures")
def test_every_question_has_a_folder_of_its_own(here: Path, store: Path) -> None:
    shutil.copytree(store, "store")
    for layers in ("0-1", "0,1"):
        assert run(["train-probe", "store", "--probe", "mean-diff", "--quiet", "--layer", layers]) == 0
    assert len(list(Path("store/results").iterdir())) == 2


@pytest.mark.usefixtures("blank_pictures")
def test_results_by_another_metric_are_another_question(
    here: Path, store: Path, refused: Callable[..., str], capsys: Capture
) -> None:
    job = ["train-probe", str(store), *FAST, "--out", "one"]
    assert run([*job, "--quiet", "--metric", "accuracy"]) == 0
    capsys.readouterr()
    assert "other settings or data (different: metric)" in refused(5, *job)


@pytest.mark.usefixtures("blank_pictures")
def test_a_quick_look_has_its_own_folder_and_a_number_of_controls_wins(
    here: Path, store: Path, capsys: Capture
) -> None:
    shutil.copytree(store, "store")
    job = ["train-probe", "store", *FAST, "--quick"]
    for more in ([], ["--controls", "3"]):
        assert run([*job, *more]) == 0
    out = capsys.readouterr().out
    assert out.count("run again without --quick (quick=True) for them.") == 2
    name = "label-resid_pre-logistic-quick-layers-0-C-0.01-1"
    assert {path.name for path in Path("store/results").iterdir()} == {name, f"{name}-controls-3"}
    assert ProbeResults.load(f"store/results/{name}").meta["control"] is None
    control = ProbeResults.load(f"store/results/{name}-controls-3").meta["control"]
    assert control is not None
    assert control["draws"] == 3


@pytest.mark.usefixtures("blank_pictures")
def test_results_of_bytes_that_were_not_compared_say_so(here: Path, store: Path) -> None:
    job = ["train-probe", str(store), *FAST, "--quick", "--out", "o", "--quiet"]
    assert run([*job, "--check", "size"]) == 0
    assert ProbeResults.load("o").meta["activations"]["check"] == "size"
    assert run(job) == 0  # the same question, better checked
    assert "check" not in ProbeResults.load("o").meta["activations"]


@pytest.mark.usefixtures("blank_pictures")
def test_a_terminal_shows_the_part_that_runs_and_stdout_the_results(
    here: Path, store: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ["train-probe", str(store), *FAST, "--controls", "1", "--no-codelength", "--out", "o"]
    terminal = Terminal(monkeypatch)
    assert run(job) == 0
    shown = [row.rstrip() for row in terminal.read().split("\r")]
    before = ["reading the store", "loading libraries", "comparing texts", "drawing control tasks", "fitting baselines"]
    parts = [*before, "fitting probes", "fitting probes: 1 of 1", "comparing layers"]
    assert [row for row in shown if row] == parts
    assert "selected on validation" in capsys.readouterr().out
    terminal = Terminal(monkeypatch)
    assert run([*job, "--quiet"]) == 0
    assert terminal.read() == ""
