"""`probekit score`: what it prints and writes, what it refuses, and how it exits."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probekit.cli.main import run
from probekit.evaluation import ProbeCurves, ProbeResults
from probekit.models import load_model
from probekit.tasks.base import Task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

pytest_plugins = ("cli.conftest",)
Capture = pytest.CaptureFixture[str]
NEW = ["text number 7 good", "text number 12 bad", "a text of another kind, longer than all good"]


@pytest.fixture(scope="module")
def results(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results") / "one"
    assert run(["train-probe", str(store), "--point", "resid_pre", "--quick", "--quiet", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def curves(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results") / "several"
    assert run(["train-probe", str(store), "--point", "all", "--quick", "--quiet", "--out", str(out)]) == 0
    return out


def scored(*args: object) -> int:
    return run(["score", *map(str, args)])


def given(texts: list[str]) -> list[str]:
    return [part for text in texts for part in ("--text", text)]


def test_texts_are_scored_as_python_scores_them(results: Path, gpt2_folder: Path, capsys: Capture) -> None:
    assert scored("--probe", results, "--model", gpt2_folder, *given(NEW), "--json") == 0
    out, err = capsys.readouterr()
    found, model = json.loads(out), load_model(str(gpt2_folder))
    best = ProbeResults.load(results).best
    expected = best.probe.decision_function(extract(model, NEW)[best.place])
    assert [row["score"] for row in found["scores"]] == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-5)
    assert [row["text"] for row in found["scores"]] == NEW
    assert found["place"] == best.place
    assert found["rows"] == 3
    assert err == ""


def test_a_picture_beside_a_file_changes_neither(results: Path, gpt2_folder: Path, tmp_path: Path) -> None:
    probe, (one, both, alone, beside) = (
        ("--probe", results, "--model", gpt2_folder, *given(NEW)),
        (tmp_path / name for name in ("one.csv", "both.csv", "alone.svg", "beside.svg")),
    )
    assert scored(*probe, "--out", one) == 0
    assert scored(*probe, "--picture", alone) == 0
    assert scored(*probe, "--out", both, "--picture", beside) == 0
    assert both.read_bytes() == one.read_bytes()
    assert beside.read_bytes() == alone.read_bytes()


def test_the_table_goes_to_stdout_and_what_it_means_to_stderr(
    results: Path, gpt2_folder: Path, capsys: Capture
) -> None:
    assert scored("--probe", results, "--model", gpt2_folder, *given(NEW)) == 0
    out, err = capsys.readouterr()
    assert "text number 7 good" in out
    assert "probability: of 1, " in err
    assert re.match(r"unusual: \d of 3 texts \(", err.splitlines()[-1])
    assert scored("--probe", results, "--model", gpt2_folder, *given(NEW), "--quiet") == 0
    again = capsys.readouterr()
    assert again == (out, "")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_dataset_with_labels_of_one_class_is_scored_in_its_order(
    results: Path, gpt2_folder: Path, tmp_path: Path, capsys: Capture, ending: str
) -> None:
    """Labels are not read, nor are splits."""
    data, out = tmp_path / "new.csv", tmp_path / f"scores.{ending}"
    data.write_text("text,label,split\n" + "".join(f"text {i} good,1,test\n" for i in range(30)))
    assert scored("--probe", results, "--model", gpt2_folder, "--dataset", data, "--out", out) == 0
    assert capsys.readouterr().out == f"{out}\n"
    read: dict[str, Callable[..., Any]] = {"csv": pd.read_csv, "parquet": pd.read_parquet}
    frame = pd.read_json(out, lines=True) if ending == "jsonl" else read[ending](out)
    assert frame["id"].tolist() == [f"new:{i}" for i in range(30)]
    expected = ProbeResults.load(results).best.score(
        load_model(str(gpt2_folder)), [f"text {i} good" for i in range(30)]
    )
    assert frame["score"].tolist() == pytest.approx(expected.scores.tolist(), abs=1e-5)


def test_tokens_are_named_with_their_pieces(results: Path, gpt2_folder: Path, capsys: Capture) -> None:
    assert scored("--probe", results, "--model", gpt2_folder, "--text", "né x", "--tokens", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["scores"]
    assert [(row["token_index"], row["trained"]) for row in rows] == [(i, i == 4) for i in range(5)]  # é has two bytes
    assert "".join(row["token"] for row in rows if row["token_index"] != 2) == "né x"
    assert scored("--probe", results, "--model", gpt2_folder, "--text", "né x", "--tokens") == 0
    shown = capsys.readouterr()
    assert "'x'" in shown.out
    assert re.match(r"unusual: \d of 1 trained token \(", shown.err.splitlines()[-1])  # others extrapolate


def test_a_threshold_flags_and_tells_what_it_gives_on_test(results: Path, gpt2_folder: Path, capsys: Capture) -> None:
    assert scored("--probe", results, "--model", gpt2_folder, *given(NEW), "--fpr", 0.5, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    threshold = found["threshold"]
    assert [row["flagged"] for row in found["scores"]] == [
        row["score"] >= threshold["value"] for row in found["scores"]
    ]
    assert threshold["tpr"]["low"] <= threshold["tpr"]["value"] <= threshold["tpr"]["high"]


def test_a_curve_among_several_is_named(curves: Path, gpt2_folder: Path, capsys: Capture, refused: Any) -> None:
    job = ["--model", gpt2_folder, "--text", NEW[0]]
    own = ProbeCurves.load(curves)["label", "attn_out"]
    for place, expected in (("label/attn_out", own.best.place), ("label/attn_out.1", "attn_out.1")):
        assert scored("--probe", f"{curves}:{place}", *job, "--json") == 0
        assert json.loads(capsys.readouterr().out)["place"] == expected
    for place in ("", ":attn_out.1", ":label/attn_out.9"):
        line = refused(2, "score", "--probe", f"{curves}{place}", *job)
        assert "RESULTS:LABEL/POINT.LAYER, with label/resid_pre, label/attn_out" in line


def test_what_cannot_be_scored_is_one_line(
    results: Path, store: Path, gpt2_folder: Path, make_model: Callable[..., Path], tmp_path: Path, refused: Any
) -> None:
    probe, model, text = ("--probe", results), ("--model", gpt2_folder), ("--text", "x")
    assert "either --dataset" in refused(2, "score", *probe, *model)
    assert "exclude each other" in refused(2, "score", *probe, *model, *text, "--dataset", "x.csv")
    assert "no folder of results" in refused(3, "score", "--probe", tmp_path / "none", *model, *text)
    assert "is a store" in refused(3, "score", "--probe", store, *model, *text)
    assert "no results here" in refused(3, "score", "--probe", tmp_path, *model, *text)
    assert "no probe of 'resid_pre.9'" in refused(2, "score", "--probe", f"{results}:resid_pre.9", *model, *text)
    assert "got 1.00% (--fpr" in refused(2, "score", *probe, *model, *text, "--fpr", 0.01)
    assert "between 0 and 1" in refused(2, "score", *probe, *model, *text, "--fpr", 1.5)
    assert "such as scores.csv" in refused(2, "score", *probe, *model, *text, "--out", tmp_path / "scores")
    assert "text 1 (--text) is empty" in refused(2, "score", *probe, *model, *text, "--text", " ")
    assert "and these are chats" in refused(3, "score", *probe, *model, "--dataset", _chats(tmp_path))
    other = make_model(tmp_path / "other", n_layers=4)
    assert "different weights" in refused(5, "score", *probe, "--model", other, *text)
    assert scored(*probe, "--model", other, *text, "--any-model", "--quiet") == 0


def test_a_typed_text_is_the_message_of_a_user_where_chats_were_trained_on(
    gpt2_folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}")
    chats = [[{"role": "user", "content": f"{i} {'good' if i % 2 else 'bad'}"}] for i in range(40)]
    splits = np.array(["train", "validation", "test", "train"])[np.arange(40) // 2 % 4]
    task = Task("made", [""] * 40, {"y": np.arange(40) % 2}, {"y": ["no", "yes"]}, splits, chats=chats)
    model = load_model(str(gpt2_folder))
    acts = extract(model, task, layers=1, chat_template=template.read_text())
    trained = train_probes(acts, probe="mean-diff", quick=True, intervals=False, baselines=False)
    job = ["--probe", trained.save(tmp_path / "r"), "--model", gpt2_folder, "--text", "9 good"]
    assert scored(*job, "--chat-template", template, "--json") == 0
    out, err = capsys.readouterr()
    expected = trained.best.score(model, chats[9:10], chat_template=template.read_text())
    assert [row["score"] for row in json.loads(out)["scores"]] == pytest.approx(expected.scores.tolist(), abs=1e-6)
    assert "each --text is taken as the message of a user" in err


def _chats(folder: Path) -> Path:
    path = folder / "chats.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}) + "\n")
    return path


def test_interrupted_nothing_is_written_and_that_is_said(
    results: Path, gpt2_folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from probekit.scoring import score as scoring

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scoring, "decisions", stop)
    out = tmp_path / "scores.csv"
    assert scored("--probe", results, "--model", gpt2_folder, "--text", "x", "--out", out) == 130
    assert "0 texts scored, and nothing was written to" in capsys.readouterr().err
    assert not out.exists()


def test_hostile_texts_and_ids_are_escaped(results: Path, gpt2_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    data, out = tmp_path / "new.jsonl", tmp_path / "scores.csv"
    texts = ["<script>alert(1)</script>", "\x1b[31mred", "a\u202eb", "=HYPERLINK()"]
    data.write_text("".join(json.dumps({"text": text, "id": f"={i}"}) + "\n" for i, text in enumerate(texts)))
    job = ["--probe", results, "--model", gpt2_folder, "--dataset", data, "--id-column", "id"]
    assert scored(*job) == 0
    shown = capsys.readouterr().out
    assert "\\x1b[31mred" in shown
    assert not {"\x1b", "\u202e"} & set(shown)
    assert scored(*job, "--out", out) == 0
    assert [line.split(",")[0] for line in out.read_text().splitlines()] == ["id", *(f"'={i}" for i in range(4))]
