"""`probekit transfer`: what is printed, what is written where, and what is refused."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from probekit.activations import list_stores
from probekit.cli.main import run
from probekit.evaluation import TransferResults

Capture = pytest.CaptureFixture[str]
FILES = ["results.csv", "transfer.json", "transfer.png", "transfer.svg"]


@pytest.fixture(scope="module")
def stores(gpt2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two tasks of one model: the same words at the end, after different beginnings."""
    folder, made = tmp_path_factory.mktemp("tasks"), []
    for name in ("plain", "negated"):
        rows = "".join(f"{name} {i} is {'good' if i % 2 else 'bad'},{i % 2}\n" for i in range(60))
        (folder / f"{name}.csv").write_text(f"text,label\n{rows}")
        job = ["extract", "--model", str(gpt2_folder), "--dataset", str(folder / f"{name}.csv"), "--quiet"]
        assert run([*job, "--out", str(folder / name), "--points", "resid_post"]) == 0
        made.append(folder / name)
    return made


@pytest.fixture
def job(here: Path, stores: list[Path], capsys: Capture) -> list[str]:
    for store in stores:
        shutil.copytree(store, store.name)
    capsys.readouterr()
    return ["transfer", "plain", "negated", "--probe", "mean-diff"]


def test_the_matrix_is_printed_and_kept_in_the_first_store(job: list[str], capsys: Capture) -> None:
    assert run(job) == 0
    out = capsys.readouterr().out
    picture = Path(out.splitlines()[-1].removeprefix("Picture: "))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in picture.parent.iterdir()) == FILES
    assert picture.parts[:2] == ("plain", "results")
    assert "majority class" in out
    results = TransferResults.load(picture.parent)
    assert results.matrix.shape == (2, 2)
    assert {cell.layer for cell in results.cells} == {0, 1, 2}
    with (picture.parent / "results.csv").open() as file:
        assert {row["layer"] for row in csv.DictReader(file)} == {"0", "1", "2"}
    assert [one.state for one in list_stores(".")] == ["complete", "complete"]


@pytest.mark.usefixtures("blank_pictures")
def test_every_option_reaches_it(job: list[str], capsys: Capture) -> None:
    more = ["--layer", "1", "--point", "resid_post", "--label", "label", "--seed", "3", "--out", "there"]
    assert run([*job[:3], "--probe", "ridge", "--C", "0.5,2", *more, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert (found["results"], found["picture"], found["stores"]) == ("there", "there/transfer.png", job[1:3])
    assert {cell["layer"] for cell in found["cells"]} == {1}
    assert {cell["C"] for cell in found["cells"]} <= {0.5, 2.0}
    assert (found["meta"]["seed"], found["meta"]["probe"]) == (3, "ridge")
    assert not Path("plain/results").exists()


@pytest.mark.usefixtures("blank_pictures")
def test_quiet_prints_only_the_picture_and_other_questions_have_other_folders(job: list[str], capsys: Capture) -> None:
    for more in ([], ["--layer", "0"], ["--seed", "1"], []):
        assert run([*job, *more, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, layer, seed, again = out.splitlines()
    assert first == again
    assert len({first, layer, seed}) == 3


def test_a_folder_with_anything_else_is_refused_before_training_and_an_older_version_is_replaced_whole(
    job: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([*job, "--out", "there", "--quiet"]) == 0
    before = {path.name: path.read_bytes() for path in Path("there").iterdir()}
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr("probekit.evaluation.transfer", never)
        assert run([*job, "--out", "there", "--quiet", "--layer", "0", "--seed", "1"]) == 5
    assert "holds results of other settings (different: layers, seed)" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("there").iterdir()} == before
    body = json.loads(before["transfer.json"])
    del body["meta"]["asked"]  # as earlier versions had none
    Path("there/transfer.json").write_text(json.dumps(body))
    assert run([*job, "--out", "there", "--quiet", "--layer", "0"]) == 0
    after = {path.name: path.read_bytes() for path in Path("there").iterdir()}
    assert sorted(after) == FILES
    assert before["transfer.json"] != after["transfer.json"]
    TransferResults.load("there").save("there")
    assert sorted(path.name for path in Path("there").iterdir()) == FILES[:2]
    monkeypatch.setattr("probekit.evaluation.transfer", never)
    for foreign, code, says in (
        ("thesis.tex", 4, "holds 'thesis.tex', which is not a file of results"),
        ("results.json", 5, "holds a curve, and this makes a transfer or shift; give another folder (--out)"),
        ("probes", 4, "holds 'probes', which is not a file of results"),
    ):
        folder = Path(f"mine-{foreign}")
        folder.mkdir()
        (folder / foreign).write_text("mine")
        capsys.readouterr()
        assert run([*job, "--out", str(folder)]) == code
        assert says in capsys.readouterr().err
        assert [path.read_text() for path in folder.iterdir()] == ["mine"]


def never(*_: object, **__: object) -> None:
    raise AssertionError("trained")


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("probekit.evaluation.transfer", "no results were written"),
        ("probekit.plots.save_transfer_plot", "the results in there are incomplete"),
    ],
)
def test_ctrl_c_says_what_was_saved_and_how_to_resume(
    job: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch, where: str, says: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupt)
    assert run([*job, "--out", "there"]) == 130
    line = f"probekit: interrupted: the stores are complete, {says}; run the same command again\n"
    assert capsys.readouterr() == ("", line)
