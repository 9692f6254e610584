"""`train-probe --baseline prompted,scores:FILE`: what is kept, what is asked again, and the command that asks it."""

import json
import shutil
from pathlib import Path

import pytest

from probekit.activations import load_activations, verify
from probekit.black_box import prompted
from probekit.cli.main import run
from probekit.evaluation import ProbeResults
from probekit.options.question import words_of
from probekit.side_by_side import compare
from probekit.side_by_side.runs import find_runs

pytestmark = pytest.mark.usefixtures("blank_pictures")
JOB = ["train-probe", "store", "--layer", "0", "--C", "1", "--quick", "--quiet"]


def test_a_prompted_model_another_one_and_a_judge_are_baselines_of_one_curve(
    here: Path, store: Path, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(store, "store")
    shutil.copytree(gpt2_folder, "other")
    ids = load_activations("store").ids
    Path("judge.csv").write_text("id,score,tokens\n" + "".join(f"{own},{i},{3}\n" for i, own in enumerate(ids)))
    names = "prompted,prompted:other,scores:judge.csv"
    job = [*JOB, "--baseline", names, "--prompt", "text", "--answers", "good,very bad"]
    assert run(job) == 0
    (folder,) = Path("store/results").iterdir()
    results = ProbeResults.load(folder)
    boxes = results.meta["black_boxes"]
    assert results.rows is not None
    assert [*boxes] == ["judge.csv", "prompted", "prompted other"]
    assert boxes["judge.csv"]["tokens"] == 3
    assert boxes["prompted"]["record"]["answers"] == ["good", "very bad"]
    assert verify("store").is_sound
    scores = results.rows.baselines
    assert (scores["prompted"] == scores["prompted other"]).all()  # the same weights

    # the same question finds its folder, and no prompt is run again
    monkeypatch.setattr(prompted, "log_probabilities_of", lambda *_: 1 / 0)
    again = words_of(results.meta["asked"], ["store"])[1:]
    assert run([*again, "--quiet"]) == 0
    assert [*Path("store/results").iterdir()] == [folder]

    # another prompt, other scores, or no black box is another question
    Path("judge.csv").write_text(Path("judge.csv").read_text().replace(",0,3", ",9,3"))
    assert run(job) == 0
    assert run(JOB) == 0
    assert len([*Path("store/results").iterdir()]) == 3


def test_examples_are_shown_and_a_template_of_a_file_is_used(here: Path, store: Path) -> None:
    shutil.copytree(store, "store")
    Path("p.jinja").write_text("{% for shot in shots %}{{ shot.answer }} {% endfor %}{{ text }}")
    job = [*JOB, "--baseline", "prompted", "--prompt", "p.jinja", "--shots", "4", "--out", "o"]
    assert run(job) == 0
    record = ProbeResults.load("o").meta["black_boxes"]["prompted"]["record"]
    assert len(record["shots"]) == 4
    asked = json.loads(Path("o/results.json").read_text())["meta"]["asked"]
    assert (asked["prompt"], asked["shots"]) == ("p.jinja", 4)
    Path("p.jinja").write_text("{{ text }}")
    assert run(job) == 5  # the file says something else now


def test_random_weights_and_a_prompted_model_together(here: Path, store: Path) -> None:
    shutil.copytree(store, "store")
    job = [*JOB, "--baseline", "random-init,prompted", "--prompt", "text", "--out", "o"]
    assert run(job) == 0
    results = ProbeResults.load("o")
    assert results.random_init
    assert "prompted" in results.meta["black_boxes"]
    assert words_of(results.meta["asked"], ["store"])[-4:] == ["--baseline", "random-init,prompted", "--prompt", "text"]


def test_a_curve_with_black_boxes_is_compared_with_one_that_asks_the_same_without(here: Path, store: Path) -> None:
    shutil.copytree(store, "store")
    assert run(JOB) == 0
    assert run([*JOB, "--baseline", "prompted", "--prompt", "text", "--ensemble"]) == 0
    (found,) = find_runs(["store"])  # of results that ask the same, those that compute more
    assert "baseline" in str(found.path)
    both = compare([*Path("store/results").iterdir()])
    assert [each.difference for each in both.differences] == [0]
