"""From texts to labels and back: what the model wrote goes out, a judge labels it by id, `label` joins it."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import probekit as pk
from probekit.cli.main import run
from probekit.tasks.base import examples_table
from probekit.text import from_spreadsheet_cell

Capture = pytest.CaptureFixture[str]
PROMPTS = ["=1+1 is", "Say: \x1b[31m‮", 'quoted "text", or', *(f"prompt number {i}" for i in range(57))]


@pytest.fixture
def store(gpt2_folder: Path, here: Path, capsys: Capture) -> Path:
    rows = [{"text": text, "topic": "ab"[i % 2]} for i, text in enumerate(PROMPTS)]
    Path("prompts.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    job = [
        "extract",
        "--model",
        str(gpt2_folder),
        "--dataset",
        "prompts.jsonl",
        "--generate",
        "3",
        "--temperature",
        "1",
    ]
    assert run([*job, "--layers", "1", "--keep-columns", "topic", "--out", "runs/s", "--quiet", "--keep-blanks"]) == 0
    capsys.readouterr()
    return Path("runs/s")


def test_the_round_trip(store: Path, capsys: Capture, blank_pictures: None) -> None:
    assert run(["export", str(store), "--texts", "--out", "texts.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert out == "texts.jsonl\n"
    assert "60 rows with id, text, prompt, continuation, split, topic; join labels by id" in err
    rows = [json.loads(line) for line in Path("texts.jsonl").read_text().splitlines()]
    acts = pk.load_activations(store)
    assert rows == acts.to_frame().to_dict("records")
    assert [row["prompt"] for row in rows] == PROMPTS
    assert all(row["prompt"] + row["continuation"] == row["text"] and row["continuation"] for row in rows)
    judged = [{"id": row["id"], "label": ["no", "yes"][i % 2]} for i, row in enumerate(rows)]
    Path("judged.jsonl").write_text("\n".join(map(json.dumps, reversed(judged))) + "\n")
    assert run(["label", str(store), "judged.jsonl", "--name", "honest", "--quiet"]) == 0
    assert run(["train-probe", str(store), "--quick", "--C", "1", "--quiet"]) == 0
    assert run(["export", str(store), "--texts", "--out", "again.csv", "--quiet"]) == 0
    with Path("again.csv").open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    assert [cell["honest"] for cell in cells] == [one["label"] for one in judged]
    assert [from_spreadsheet_cell(cell["prompt"]) for cell in cells] == PROMPTS
    assert not any(value.startswith("=") for cell in cells for value in cell.values())


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_every_format_holds_missing_labels(store: Path, ending: str) -> None:
    ids = pk.load_activations(store).ids
    pk.label_store(store, {one: i / 4 for i, one in enumerate(ids[:40])}, name="share", on_bad_row="skip")
    pk.label_store(store, {one: "ab"[i % 2] for i, one in enumerate(ids[5:])}, name="kind", on_bad_row="skip")
    assert run(["export", str(store), "--texts", "--out", f"texts.{ending}", "--quiet"]) == 0
    readers: dict[str, Any] = {
        "jsonl": lambda path: pd.read_json(path, lines=True),
        "csv": pd.read_csv,
        "parquet": pd.read_parquet,
    }
    found, wanted = readers[ending](f"texts.{ending}"), pk.load_activations(store).to_frame()
    for name in ("share", "kind"):
        assert found[name].isna().tolist() == wanted[name].isna().tolist()
        assert found[name].dropna().tolist() == wanted[name].dropna().tolist()
    assert wanted["kind"].isna().tolist() == [i < 5 for i in range(len(PROMPTS))]


def test_what_cannot_be_written_is_one_line(store: Path, refused: Callable[..., str]) -> None:
    assert "texts are written to a file such as texts.csv" in refused(2, "export", store, "--texts", "--out", "x.txt")
    assert "exclude each other" in refused(2, "export", store, "--texts", "--to", "csv")
    assert "no store at 'nowhere'" in refused(3, "export", "nowhere", "--texts")


def test_token_ids_are_lists() -> None:
    task = pk.Task("ids", [[1, 2], [3]] * 10, {"label": np.arange(20) % 2}, {"label": ["a", "b"]})
    table = examples_table(task)
    assert [*table] == ["id", "ids", "split", "label"]
    assert table["ids"].tolist()[:2] == [[1, 2], [3]]
