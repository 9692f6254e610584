"""Tables of token ids: read from files and objects, checked row by row and against the model, split by tokens."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_configs import tiny_model

import probekit as pk
from probekit.causal.behaviour.neutral import load_neutral
from probekit.cli.main import run
from probekit.errors import DataError, UsageError
from probekit.models.weights import save_hf
from probekit.options import TaskOptions
from probekit.tasks.load import load_texts

RANDOM = random.Random(0)
ROWS = [(ids, ("even", "odd")[ids[-1] % 2]) for ids in (RANDOM.choices(range(20), k=n % 3 + 1) for n in range(300))]


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def of_rows(rows: list[Any] = ROWS, column: str = "ids") -> list[dict[str, Any]]:
    return [{column: ids, "label": label} for ids, label in rows]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "sums.jsonl", of_rows())


def test_every_source_gives_the_same_task(file, tmp_path):
    import pyarrow
    import pyarrow.parquet

    columns: dict[str, Any] = {"input_ids": [ids for ids, _ in ROWS], "label": [label for _, label in ROWS]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "sums.parquet")
    named = written(tmp_path / "named.jsonl", of_rows(column="program"))
    tasks = [
        pk.load_task(file),
        pk.load_task(tmp_path / "sums.parquet"),
        pk.load_task(named, text_column="program"),
        pk.load_task(ROWS),
        pk.load_task(columns),
    ]
    for task in tasks:
        assert list(task.inputs) == [ids for ids, _ in ROWS]
        assert task.label_names["label"] == ["even", "odd"]
        assert task.splits.tolist() == tasks[0].splits.tolist()


def test_a_split_holds_all_rows_of_the_same_ids(file):
    """Carved splits go by tokens: of 20 + 400 + 8,000 sequences, many of the short ones repeat."""
    task = pk.load_task(file)
    splits: dict[tuple[int, ...], set[str]] = {}
    for ids, split in zip(task.inputs, task.splits, strict=True):
        splits.setdefault(tuple(map(int, ids)), set()).add(str(split))
    assert len(splits) < len(task)
    assert all(len(found) == 1 for found in splits.values())
    assert set(task.splits) == {"train", "validation", "test"}
    assert task.info["also_in_train"] == {"validation": 0, "test": 0}


def test_texts_come_before_ids(tmp_path):
    rows = [{"ids": [1, 2], "text": f"t{i}", "label": i % 2} for i in range(30)]
    assert pk.load_task(written(tmp_path / "both.jsonl", rows)).inputs[0] == "t0"


def test_words_and_other_kinds_are_refused(file, tmp_path):
    rows = [{"ids": [1, 2], "start": 0, "end": 1, "label": i % 2} for i in range(30)]
    with pytest.raises(UsageError, match="a span is in a text, and these rows are token ids"):
        pk.load_task(written(tmp_path / "words.jsonl", rows), span_column="start,end")
    folder = tmp_path / "mixed"
    folder.mkdir()
    written(folder / "train.jsonl", of_rows())
    written(folder / "test.jsonl", [{"text": "a", "ids": 1, "label": "odd"}])
    with pytest.raises(DataError, match=r"test\.jsonl and train\.jsonl hold texts and token ids; give one kind"):
        pk.load_task(folder)


def test_files_of_ids_are_scored_and_used_as_neutral_texts(file):
    assert list(load_texts(file, TaskOptions()).inputs) == [ids for ids, _ in ROWS]
    model = tiny_model("gpt2")
    assert load_neutral(file, model, most=3) == [ids for ids, _ in ROWS[:3]]
    with pytest.raises(DataError, match=r"sums\.jsonl: token ids of .* are 0\.\.9, got"):
        load_neutral(file, _of_vocabulary(10))


def _of_vocabulary(d_vocab: int) -> Any:
    cfg: Any = tiny_model("gpt2").cfg
    return type(tiny_model("gpt2"))(type(cfg)(**{**vars(cfg), "d_vocab": d_vocab})).init_weights(0)


def test_the_commands_run_on_a_model_without_a_tokenizer(file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_hf(tiny_model("gpt2"), tmp_path / "model")
    assert run(["extract", "--model", "model", "--dataset", str(file), "--out", "store"]) == 0
    assert run(["train-probe", "store", "--quick", "--layer", "1"]) == 0
    model, acts = pk.load_model(tmp_path / "model", device="cpu"), pk.load_activations("store")
    with torch.no_grad():
        alone = model.run_with_cache(torch.tensor([ROWS[5][0]]))[1]["resid_pre", 1][0, -1]
    np.testing.assert_allclose(acts["resid_pre", 1][5], alone, rtol=1e-5, atol=1e-5)
    capsys.readouterr()
    save_hf(_of_vocabulary(10), tmp_path / "small")
    assert run(["extract", "--model", "small", "--dataset", str(file), "--out", "other"]) == 3
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "token ids of 'small' are 0..9, got " in line
