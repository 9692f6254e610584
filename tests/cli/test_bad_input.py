"""Each kind of bad input, end to end: the exit code, one line that says what to do, and no traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

Capture = pytest.CaptureFixture[str]
GOOD = [f"text {i},{i % 2}" for i in range(40)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model", "gpt3"], "did you mean gpt2"),
        (["--model", "agrement-gpt2"], "did you mean agreement-gpt2"),
        (["--dataset", "sst3"], "did you mean sst2"),
        (
            ["--dataset", "absent.csv"],
            "not a file, a folder or an owner/name on the Hub; known are: agreement, counting, ranking",
        ),
        (["--points", "resid_per"], "did you mean resid_pre"),
        (["--points", "resid_pre.1"], "give points without a layer, such as 'resid_pre', and layers separately"),
        (["--points", ","], "no points given; give one or more, such as resid_pre"),
        (["--layers", "12"], "layer 12 is not in 0..2"),
        (["--layers", "0,3"], "layer 3 is not in 0..2"),
        (["--layers", "some"], "layers are all, 3, 0,4,8 or 2-6"),
        (["--text-column", "texts"], "did you mean 'text'?"),
        (["--label-column", "lable"], "did you mean 'label'?"),
        (["--device", "tpu7"], "give auto, cpu, cuda, cuda:1 or mps"),
    ],
)
def test_unknown_names(
    here: Path, gpt2_folder: Path, texts: Path, refused: Callable[..., str], options: list[str], says: str
) -> None:
    line = refused(2, "extract", "--model", gpt2_folder, "--dataset", texts, *options)
    assert says in line
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("n_layer", -1), ("n_head", 3), ("activation_function", "geluu"), ("n_embd", "16"), ("vocab_size", None)],
)
def test_impossible_configs_name_the_field(
    here: Path, make_model: Callable[..., Path], texts: Path, refused: Callable[..., str], field: str, value: object
) -> None:
    folder = make_model(here / "model", **{field: value})
    assert field in refused(3, "extract", "--model", folder, "--dataset", texts)
    assert field in refused(3, "points", "--model", folder)


def test_wrong_weights_are_all_named(
    here: Path, make_model: Callable[..., Path], texts: Path, refused: Callable[..., str]
) -> None:
    file = make_model(here / "model") / "model.safetensors"
    weights = safetensors.torch.load(file.read_bytes())
    del weights["transformer.h.0.ln_1.weight"], weights["transformer.wpe.weight"]
    weights["transformer.h.9.extra.weight"] = torch.zeros(2)
    weights["transformer.ln_f.bias"] = torch.zeros(17)
    file.write_bytes(safetensors.torch.save(weights))
    line = refused(3, "extract", "--model", here / "model", "--dataset", texts)
    for name in ("h.0.ln_1.weight", "wpe.weight", "h.9.extra.weight", "ln_f.bias"):
        assert name in line


def test_truncated_weights(
    here: Path, make_model: Callable[..., Path], texts: Path, refused: Callable[..., str]
) -> None:
    file = make_model(here / "model") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "model.safetensors" in refused(3, "extract", "--model", here / "model", "--dataset", texts)


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_with_a_file_missing_or_broken(
    here: Path, make_model: Callable[..., Path], texts: Path, refused: Callable[..., str], broken: str
) -> None:
    folder = make_model(here / "model")
    (folder / broken).write_bytes(b"{ no")
    assert broken in refused(3, "extract", "--model", folder, "--dataset", texts)
    (folder / broken).unlink()
    assert broken.split(".")[0] in refused(3, "extract", "--model", folder, "--dataset", texts)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.csv", b"", "is empty; expected a table of texts and labels"),
        ("header.csv", b"text,label\n", "has a header and no rows; expected one row for each text"),
        ("quote.csv", b'text,label\n"never closed,1\nb,0\n', "line 2"),
        ("latin.csv", "text,label\na,1\nné,0\n".encode("latin-1"), "line 3"),
        ("broken.jsonl", b'{"text": "a", "label": 1}\n{"text": \n', "line 2"),
        ("na.csv", "\n".join(["text,label", *GOOD, "NA,1"]).encode(), "line 42"),
        ("none.csv", "\n".join(["text,label", *GOOD, ",1"]).encode(), "line 42"),
        ("number.jsonl", b'{"text": "a", "label": 1}\n{"text": 5, "label": 0}\n', "line 2"),
        ("nolabel.csv", "\n".join(["text,label", *GOOD, "t,"]).encode(), "line 42"),
    ],
)
def test_files_that_cannot_be_used(
    here: Path, gpt2_folder: Path, refused: Callable[..., str], name: str, content: bytes, says: str
) -> None:
    Path(name).write_bytes(content)
    line = refused(3, "extract", "--model", gpt2_folder, "--dataset", name)
    assert says in line
    assert name in line


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["1"] * 40, "train: 1=32; validation: 1=4; test: 1=4"),
        (
            ["0", "1"] * 20 + ["-1"],
            "line 42: expected a label of 'label', got -1, which means 'not labelled' (1 of 41 rows); write",
        ),
        (["0"] * 40 + ["1"] * 2, "train: 0=34, 1=0;"),
    ],
)
def test_labels_no_probe_could_learn(
    here: Path, gpt2_folder: Path, refused: Callable[..., str], labels: list[str], says: str
) -> None:
    Path("t.csv").write_text("\n".join(["text,label", *(f"text {i},{label}" for i, label in enumerate(labels))]))
    assert says in refused(3, "extract", "--model", gpt2_folder, "--dataset", "t.csv")


def test_a_label_missing_in_one_split_shows_the_counts(
    here: Path, gpt2_folder: Path, refused: Callable[..., str]
) -> None:
    Path("data").mkdir()
    for split, classes in {"train": 2, "dev": 2, "test": 1}.items():
        rows = [f"{split} {i},{i % classes}" for i in range(10)]
        Path(f"data/{split}.csv").write_text("\n".join(["text,label", *rows]))
    line = refused(3, "extract", "--model", gpt2_folder, "--dataset", "data")
    assert "test: 0=10, 1=0" in line


@pytest.mark.parametrize(("value", "what"), [(float("nan"), "NaN"), (float("inf"), "infinity")])
def test_activations_that_are_no_numbers(
    here: Path, make_model: Callable[..., Path], texts: Path, refused: Callable[..., str], value: float, what: str
) -> None:
    file = make_model(here / "model") / "model.safetensors"
    weights = safetensors.torch.load(file.read_bytes())
    weights["transformer.h.1.mlp.c_proj.bias"][0] = value
    file.write_bytes(safetensors.torch.save(weights))
    line = refused(3, "extract", "--model", here / "model", "--dataset", texts)
    assert f"{what} in the activations at resid_pre.2, first in example 'texts:0';" in line


def test_training_on_what_is_no_store(here: Path, store: Path, refused: Callable[..., str]) -> None:
    assert "probekit extract" in refused(3, "train-probe")
    assert "make one with probekit extract" in refused(3, "train-probe", "absent")
    Path("runs/unrelated").mkdir(parents=True)
    assert "probekit extract" in refused(3, "train-probe")
    manifest = json.loads((store / "manifest.json").read_text())
    copy = here / "copy"
    copy.mkdir()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert "plan.json" in refused(4, "train-probe", "copy")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--layer", "12"], "layer 12 is not in 0..2"),
        (["--point", "resid_mid"], "there are resid_pre 0-2, resid_post 2, attn_out 0-2"),
        (["--point", "resid_per"], "did you mean resid_pre"),
        (["--probe", "logistc"], "did you mean logistic?"),
        (["--label", "lable"], "did you mean label?"),
    ],
)
def test_unknown_names_in_training(
    here: Path, store: Path, refused: Callable[..., str], options: list[str], says: str
) -> None:
    assert says in refused(2, "train-probe", store, *options)
