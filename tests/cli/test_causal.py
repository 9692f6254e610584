"""`probekit causal`: what is printed, what is written where, what is resumed, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from probekit.activations import list_stores
from probekit.causal.results.results import CausalResults
from probekit.cli.main import run
from probekit.errors import UsageError

Capture = pytest.CaptureFixture[str]
QUICK = ["--rows", "10", "--placebos", "1", "--no-das", "--no-completeness", "--scale", "-1,1"]


@pytest.fixture
def job(here: Path, probed: Path, capsys: Capture) -> list[str]:
    shutil.copytree(probed, "store")
    capsys.readouterr()
    return ["causal", "store", "--answers", "g,b", *QUICK]


def folder_of(out: str) -> Path:
    return Path(out.splitlines()[-1].removeprefix("Picture: ")).parent


def test_the_curve_is_printed_and_kept_in_the_store(job: list[str], capsys: Capture) -> None:
    assert run([*job, "--method", "interchange,steer"]) == 0
    out = capsys.readouterr().out
    folder = folder_of(out)
    assert folder.parts[:2] == ("store", "results")
    assert (folder / "causal_by_layer.png").read_bytes().startswith(b"\x89PNG")
    assert "Reviewer's checklist" in out
    assert "0 -> 'b'" not in out  # the classes are in the order of their names
    results = CausalResults.load(folder)
    assert [layer.place for layer in results.layers] == ["resid_pre.0", "resid_pre.1", "resid_pre.2", "resid_post.2"]
    assert results.meta["asked"]["answers"] == ["g", "b"]
    assert not (folder / ".parts").exists()
    assert run(["ls", "store", "--json"]) == 0
    assert str(folder) in json.loads(capsys.readouterr().out)["stores"][0]["results"]
    assert len(list_stores("store")) == 1


@pytest.mark.usefixtures("blank_pictures")
def test_json_and_quiet(job: list[str], capsys: Capture) -> None:
    erase = [*job, "--method", "erase", "--layer", "1"]
    assert run([*erase, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["layers"][0]["layer"] == 1
    assert {effect["method"] for effect in body["effects"]} == {"erase"}
    assert run([*erase, "--quiet"]) == 0
    captured = capsys.readouterr()
    assert Path(captured.out.strip()).is_file()
    assert captured.err == ""


def test_a_dry_run_writes_nothing(job: list[str], capsys: Capture) -> None:
    assert run([*job, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["runs"] > 0
    assert plan["seconds"] > 0
    assert run([*job, "--dry-run"]) == 0
    assert "time     about" in capsys.readouterr().out
    assert not list(Path("store/results").glob("causal-*"))


@pytest.mark.usefixtures("blank_pictures")
def test_a_run_that_was_stopped_resumes(job: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from probekit.causal.curve import causal_curve as module

    measure, calls = module.measure_place, []

    def stopped(*args):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(args[1].place)
        return measure(*args)

    erase = [*job, "--method", "erase"]
    monkeypatch.setattr(module, "measure_place", stopped)
    assert run(erase) == 130
    assert "saved 2 of 4 places" in capsys.readouterr().err
    calls.clear()
    assert run(erase) == 0
    assert calls == ["resid_pre.2", "resid_post.2"]
    resumed = CausalResults.load(folder_of(capsys.readouterr().out))
    monkeypatch.setattr(module, "measure_place", measure)
    assert run([*erase, "--out", "anew"]) == 0
    assert CausalResults.load("anew").effects == resumed.effects


@pytest.mark.usefixtures("blank_pictures")
def test_results_of_another_question_are_not_replaced(job: list[str], capsys: Capture) -> None:
    erase = [*job, "--method", "erase", "--layer", "0"]
    assert run([*erase, "--out", "there"]) == 0
    assert run([*erase, "--out", "there"]) == 0
    capsys.readouterr()
    assert run([*erase, "--out", "there", "--seed", "1"]) == 5
    assert "different: seed" in capsys.readouterr().err
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    assert run([*erase, "--out", "mine"]) == 4
    assert "notes.txt" in capsys.readouterr().err


@pytest.mark.usefixtures("blank_pictures")
def test_results_may_be_named(job: list[str], capsys: Capture) -> None:
    (folder,) = Path("store/results").glob("*logistic*")
    shutil.copytree(folder, "elsewhere")
    rest = [*job[2:], "--method", "erase", "--layer", "0", "--quiet"]
    assert run(["causal", str(folder), *rest]) == 0
    assert run(["causal", "elsewhere", *rest]) == 2
    assert "--store" in capsys.readouterr().err
    assert run(["causal", "elsewhere", "--store", "store", *rest]) == 0


@pytest.mark.usefixtures("blank_pictures")
def test_at_all_tokens_the_methods_are_those_that_can_edit_them(job: list[str], capsys: Capture) -> None:
    assert run([*job, "--at", "all", "--layer", "1", "--json"]) == 0
    captured = capsys.readouterr()
    assert "erase and steer" in captured.err
    assert {effect["method"] for effect in json.loads(captured.out)["effects"]} == {"erase", "steer"}


@pytest.mark.usefixtures("blank_pictures")
def test_every_picture_is_named(job: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from probekit.causal.patching import patching

    monkeypatch.setattr(patching, "POINTS", ("resid_pre",))
    both = [*job, "--layer", "1", "--method", "erase,patch"]
    assert run([*both, "--json"]) == 0
    named = json.loads(capsys.readouterr().out)["pictures"]
    assert [Path(path).name for path in named] == ["causal_by_layer.png", "patching.png"]
    assert run([*both, "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines() == named
    assert all(Path(path).is_file() for path in named)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"model_fingerprint": "0", "edits": {}}, None),
        ({"model_fingerprint": "0", "edits": {"resid_pre.1": []}, "edited": "add at resid_pre.1"}, "add at resid_pre"),
        ({"source_fingerprint": "0"}, "imported"),
    ],
)
def test_activations_that_the_model_does_not_have_are_refused(record, says) -> None:
    from probekit.causal.curve.refusals import check_curve

    meta = {"label": "y", "classes": ["a", "b"], "n_classes": 2, "n": {"validation": 1}, "position": "last"}
    meta |= {"point": "resid_pre", "probe": "logistic", "seed": 0, "activations": record}
    if says is None:
        check_curve(meta)
        return
    with pytest.raises(UsageError, match=says):
        check_curve(meta)


def test_probes_without_a_direction_are_refused(job: list[str], capsys: Capture) -> None:
    (folder,) = Path("store/results").glob("*mlp*")
    assert run(["causal", str(folder), *job[2:]]) == 2
    assert "has no direction" in capsys.readouterr().err


def test_a_file_of_the_question_counts_by_its_content(tmp_path):
    from probekit.options.causal import CausalOptions
    from probekit.options.question import asked_by

    def asked(content):
        (tmp_path / "neutral.txt").write_text(content)
        options = CausalOptions(answers="is,are", neutral=tmp_path / "neutral.txt")
        return asked_by(options)

    assert asked("the key") == asked("the key")
    assert asked("the key") != asked("the keys")


PATCH = ["causal", "store", "--method", "patch", "--pairs", "pairs.csv", "--placebos", "1"]


def test_pairs_of_a_file_need_neither_answers_nor_probes(here: Path, probed: Path, capsys: Capture) -> None:
    shutil.copytree(probed, "store", ignore=shutil.ignore_patterns("results"))
    text = Path("pairs.csv").write_text
    text("clean,corrupted,clean_answer,corrupted_answer\na b c,a d c,g,b\na b,d a b,g,b\n")
    assert run(PATCH) == 3
    error = capsys.readouterr().err
    assert "pairs.csv, line 3: the clean text has 3 tokens" in error
    assert "--align last" in error
    assert run([*PATCH, "--dry-run", "--json"]) == 3
    capsys.readouterr()
    assert run([*PATCH, "--align", "last", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exact"]["z"] == 2
    assert run([*PATCH, "--align", "last", "--layer", "1", "--quiet"]) == 0
    picture = Path(capsys.readouterr().out.strip())
    assert picture.name == "patching.png"
    grids = CausalResults.load(picture.parent).grids
    assert (grids[0].point, grids[0].layers, grids[0].columns) == ("resid_pre", [1], ["answer token"])
    assert [grid.n_exact for grid in grids] == [2, 2, 2, 2]


def test_pairs_of_a_file_compose_with_answers_at_a_token(job: list[str]) -> None:
    """The texts of the pairs end before their answers, whatever token of the task's texts is answered after."""
    Path("pairs.csv").write_text("clean,corrupted,clean_answer,corrupted_answer\na b c,a d c,g,b\na b c,d b c,b,g\n")
    at, pairs = [*job, "--answer-at", "last", "--layer", "1", "--quiet"], ["--pairs", "pairs.csv"]
    assert run([*at, *pairs, "--method", "erase,patch", "--out", "both"]) == 0
    assert run([*at, "--method", "erase", "--out", "erase"]) == 0
    alone = ["--method", "patch", "--placebos", "1", "--layer", "1", "--quiet", "--out", "pairs"]
    assert run(["causal", "store", *pairs, *alone]) == 0
    both, erase, patch = (CausalResults.load(name) for name in ("both", "erase", "pairs"))
    assert both.effects == erase.effects
    for one, other in zip(both.grids, patch.grids, strict=True):
        np.testing.assert_array_equal(one.recovery, other.recovery)
