"""Each kind of bad input, end to end: the exit code, one line that says what to do, and no traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch


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
    Path("runs/unrelated").mkdir(parents=True)
    assert "probekit extract" in refused(3, "train-probe")
    manifest = json.loads((store / "manifest.json").read_text())
    copy = here / "copy"
    copy.mkdir()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert "plan.json" in refused(4, "train-probe", "copy")
