"""`probekit label`: texts that were extracted without labels, and what follows from labels that are joined later."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from probekit.cli.main import run

Capture = pytest.CaptureFixture[str]
N = 90
KEYS = [f"q{i:02d}" for i in range(N)]
LABELS = ["good" if i % 2 else "bad" for i in range(N)]


def write(path: Path, **columns: Any) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return str(path)


@pytest.fixture(scope="module")
def made(gpt2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, with ids and without labels, in a store."""
    folder = tmp_path_factory.mktemp("unlabelled")
    texts = write(folder / "prompts.csv", key=KEYS, text=[f"text number {i} {one}" for i, one in enumerate(LABELS)])
    args = ["extract", "--model", str(gpt2_folder), "--dataset", texts, "--id-column", "key"]
    assert run([*args, "--points", "resid_pre", "--out", str(folder / "store"), "--quiet"]) == 0
    return folder / "store"


@pytest.fixture
def store(made: Path, here: Path) -> str:
    return str(shutil.copytree(made, here / "runs" / "store").relative_to(here))


@pytest.fixture
def labels(here: Path) -> str:
    return write(here / "labels.csv", id=KEYS[::-1], label=LABELS[::-1])


@pytest.mark.filterwarnings("default")
def test_the_plan_of_texts_without_labels_shows_their_ids(gpt2_folder: Path, here: Path, capsys: Capture) -> None:
    texts = write(here / "prompts.csv", key=KEYS, text=[f"text number {i}" for i in range(N)])
    args = ["extract", "--model", str(gpt2_folder), "--dataset", texts, "--dry-run"]
    assert run(args) == 0
    out, err = capsys.readouterr()
    assert "labels   none; join them later by id ('prompts:0', 'prompts:1' and 88 more): probekit label" in out
    assert "prompts.csv has no column named label or target" in err
    assert "if they are in 'key', name the column with --label-column" in err
    assert run([*args, "--id-column", "key"]) == 0
    out, err = capsys.readouterr()
    assert "('q00', 'q01' and 88 more)" in out
    assert err == ""
    assert run([*args, "--label-column", "truth"]) == 2
    assert "has no column 'truth'" in capsys.readouterr().err


def test_label_then_train(store: str, labels: str, capsys: Capture, blank_pictures: None) -> None:
    assert run(["train-probe", store, "--quick"]) == 2
    assert "has no labels to train on; join some with probekit label" in capsys.readouterr().err
    assert run(["label", store, labels]) == 0
    out, err = capsys.readouterr()
    assert out == f"{store}\n"
    assert err.splitlines()[0] == "label: 90 of 90 texts labelled"
    assert err.splitlines()[-1] == f"train on them: probekit train-probe {store}"
    assert run(["train-probe", store, "--quick", "--baseline", "random-init", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["meta"]["counts"]["test"] == {"bad": 5, "good": 5} or sum(found["meta"]["counts"]["test"].values()) == 9
    )
    assert len(found["random_init"]) == len(found["layers"])
    assert run(["label", store, labels, "--json"]) == 0  # the same labels again
    assert json.loads(capsys.readouterr().out)["new"] is False
    for command in ("verify", "repair"):
        assert run([command, store]) == 0
    capsys.readouterr()
    assert run(["ls"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("; labels label")


def test_a_second_set_of_a_part_of_the_texts(
    store: str, labels: str, here: Path, capsys: Capture, blank_pictures: None
) -> None:
    part = write(here / "part.csv", id=[*KEYS[:60], "x"], third=[f"{i // 3 % 2}" for i in range(61)])
    assert run(["label", store, labels, "--quiet"]) == 0
    args = ["label", store, part, "--label-column", "third"]
    assert run(args) == 3
    assert "part.csv, line 62: no text has the id 'x', only 'q00'" in capsys.readouterr().err
    assert run([*args, "--on-bad-row", "skip"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "third: 60 of 90 texts labelled; 1 row of the labels skipped (unknown id 1)"
    assert lines[-1].endswith("--label third")
    assert run(["train-probe", store, "--quick", "--label", "third"]) == 0
    assert "and 30 without a label left out" in capsys.readouterr().out


def wrong(here: Path) -> dict[str, tuple[list[str], int, str]]:
    return {
        "other content": (
            [write(here / "a.csv", id=KEYS, label=LABELS[1:] + LABELS[:1])],
            5,
            "has other labels 'label'",
        ),
        "missing id": ([write(here / "b.csv", id=KEYS[1:], label=LABELS[1:]), "--name", "b"], 3, "for the id 'q00'"),
        "no file": (["nothing.csv"], 2, "no file 'nothing.csv'"),
    }


def test_what_is_wrong_is_one_line_and_an_exit_code(store: str, labels: str, here: Path, capsys: Capture) -> None:
    assert run(["label", store, labels, "--quiet"]) == 0
    before = {path: path.read_bytes() for path in Path(store).rglob("*") if path.is_file()}
    capsys.readouterr()
    for name, (args, code, words) in wrong(here).items():
        assert (name, run(["label", store, *args])) == (name, code)
        out, err = capsys.readouterr()
        assert out == ""
        assert words in err
        assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in Path(store).rglob("*") if path.is_file()} == before
    assert run(["label", "runs/nothing", labels]) == 3
    args = wrong(here)["other content"][0]
    assert run(["label", store, *args, "--replace", "-q"]) == 0


def test_results_of_replaced_labels_are_not_mixed(store: str, labels: str, here: Path, blank_pictures: None) -> None:
    quick = ["--quick", "--layer", "0", "--C", "1", "--quiet"]
    args = ["train-probe", store, "--out", "results", *quick]
    assert run(["label", store, labels, "--quiet"]) == 0
    assert [run(args), run(args)] == [0, 0]
    more = write(here / "more.csv", id=KEYS, label=[i // 2 % 2 for i in range(N)])
    assert run(["label", store, more, "--name", "more", "--quiet"]) == 0
    assert run(args) == 0  # another label set changes nothing
    other = write(here / "other.csv", id=KEYS, label=[LABELS[i // 2] for i in range(N)])
    several = ["train-probe", store, "--out", "several", "--label", "label,more", *quick]
    assert [run(several), run(several)] == [0, 0]
    assert run(["label", store, other, "--replace", "--quiet"]) == 0
    assert [run(args), run(several)] == [5, 5]


def test_an_imported_store_is_labelled_too(here: Path, capsys: Capture, blank_pictures: None) -> None:
    import numpy as np

    (here / "acts").mkdir()
    np.save(here / "acts" / "resid_pre.0.npy", np.random.default_rng(0).standard_normal((N, 4)).astype("float32"))
    first = write(here / "first.csv", text=[f"text {i}" for i in range(N)], label=LABELS)
    assert run(["import", "acts", "--labels", first, "--out", "imported", "--quiet"]) == 0
    second = write(here / "second.csv", id=[f"first:{i}" for i in range(N)], parity=[i // 3 % 2 for i in range(N)])
    assert run(["label", "imported", second, "--label-column", "parity", "--quiet"]) == 0
    assert run(["train-probe", "imported", "--quick", "--label", "all", "--quiet"]) == 0
    assert run(["verify", "imported"]) == 0
