"""`probekit points`: names and shapes, from config.json, and from the headers of weights that are there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpt2_points import GPT2_POINTS

from probekit.cli.main import run
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.weights import save_hf

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(here: Path) -> Callable[[GPT2Config], Path]:
    """A model folder without weights."""

    def write(cfg: GPT2Config) -> Path:
        Path("model").mkdir()
        Path("model/config.json").write_text(json.dumps(cfg.to_hf()))
        return Path("model")

    return write


def test_every_point_with_its_short_name_full_name_and_shape(
    folder: Callable[[GPT2Config], Path], capsys: Capture
) -> None:
    model = folder(GPT2Config(d_model=24, n_heads=3, d_mlp=40, n_layers=4, d_vocab=50))
    assert run(["points", "--model", str(model)]) == 0
    out, err = capsys.readouterr()
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines()}
    assert list(rows) == GPT2_POINTS
    assert rows["resid_pre"] == ["blocks.{0..3}.hook_resid_pre", "[B, L, 24]"]
    assert rows["q"] == ["blocks.{0..3}.attn.hook_q", "[B, L, 3, 8]"]
    assert rows["attn_pattern"] == ["blocks.{0..3}.attn.hook_pattern", "[B, 3, L, M]"]
    assert rows["mlp_post"] == ["blocks.{0..3}.mlp.hook_post", "[B, L, 40]"]
    assert rows["embed"] == ["hook_embed", "[B, L, 24]"]
    assert "4 layers" in err


def test_json_holds_the_same(folder: Callable[[GPT2Config], Path], capsys: Capture) -> None:
    model = folder(GPT2Config(d_model=24, n_heads=3, n_layers=1))
    assert run(["points", "--model", str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["n_layers"]) == ("model", 1)
    assert {row["short"]: row["shape"] for row in found["points"]}["z"] == ["B", "L", 3, 8]


def test_the_largest_gpt2_takes_no_memory(folder: Callable[[GPT2Config], Path], capsys: Capture) -> None:
    """Its weights would be 6 GB; a vocabulary a hundred times as large shows that none are made."""
    model = folder(GPT2Config(d_model=1600, n_heads=25, d_mlp=6400, n_layers=48, d_vocab=5_025_700))
    assert run(["points", "--model", str(model)]) == 0
    assert "blocks.{0..47}.hook_resid_post" in capsys.readouterr().out


def test_weights_that_are_there_must_be_those_of_config_json(
    folder: Callable[[GPT2Config], Path], capsys: Capture
) -> None:
    sizes: dict[str, Any] = {"d_model": 24, "n_heads": 3, "d_mlp": 40, "d_vocab": 50, "n_ctx": 16}
    model = folder(GPT2Config(**sizes, n_layers=2))
    save_hf(GPT2(GPT2Config(**sizes, n_layers=2)).init_weights(), model)
    assert run(["points", "--model", str(model)]) == 0
    (model / "config.json").write_text(json.dumps(GPT2Config(**sizes, n_layers=3).to_hf()))
    assert run(["points", "--model", str(model)]) == 3
    assert "not those of its config.json; missing: h.2.attn" in capsys.readouterr().err.replace("transformer.", "")
    (model / "model.safetensors").write_bytes(b"damaged")
    assert run(["points", "--model", str(model)]) == 3
    assert "is damaged or not a safetensors file" in capsys.readouterr().err
