"""`probekit selftest`: a table on stdout, and 0 or 3."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from probekit import verification
from probekit.cli.main import run
from probekit.verification import speed

Capture = pytest.CaptureFixture[str]


def test_a_table_and_a_verdict(gpt2_folder: Path, capfd: Capture) -> None:
    assert run(["selftest", "--model", str(gpt2_folder)]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "read from the model's folder" in out
    head = next(line for line in out.splitlines() if line.startswith("point"))
    assert head.split() == [
        "point",
        "layer",
        "against",
        "reference",
        "packed",
        "left",
        "pad",
        "right",
        "pad",
        "shuffled",
    ]
    assert out.splitlines()[-1].startswith("passed: 113 figures")


def test_json_holds_the_figures(gpt2_folder: Path, capsys: Capture) -> None:
    assert run(["selftest", "--model", str(gpt2_folder), "--json", "--seed", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"]
    assert found["first"] is None
    assert found["rows"][-1]["point"] == "logits"
    assert 0 < found["rows"][-1]["reference"]["error"] <= found["bounds"]["reference"] == 1e-5


def test_quiet_prints_only_the_verdict(gpt2_folder: Path, capsys: Capture) -> None:
    assert run(["selftest", "--model", str(gpt2_folder), "--quiet", "--random-init", "--dtype", "bf16"]) == 0
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (1, "")


def test_a_failure_is_one_line_and_exit_code_3(make_model, here: Path, capsys: Capture) -> None:
    folder = make_model(here / "broken")
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.bias"][2] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert run(["selftest", "--model", str(folder), "--speed"]) == 3
    out, err = capsys.readouterr()
    assert "inf !" in out
    assert "tokens/s" not in out, "a wrong model is not timed"
    assert len(err.splitlines()) == 1
    assert err.startswith("probekit: error: 'broken': failed: ")
    assert "first in forward order: mlp_pre.1, reference: inf (bound 1.0e-05)" in err


def test_without_a_tokenizer(make_model, here: Path, capsys: Capture) -> None:
    folder = make_model(here / "bare")
    (folder / "tokenizer.json").unlink()
    assert run(["selftest", "--model", str(folder), "--quiet"]) == 0


def test_the_command_prints_both_verdicts(gpt2_folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"rounds": 2, "seconds": 1e-6, "compare": False}
    monkeypatch.setattr(speed, "SQUARES", {"cpu": (16,)})
    monkeypatch.setattr(speed, "SECONDS_OF_PRODUCTS", 0.001)
    monkeypatch.setattr(speed, "FEWEST", 4)
    monkeypatch.setattr(verification, "measure_speed", lambda model, seed: speed.measure_speed(model, seed, **quick))
    assert run(["selftest", "--model", str(gpt2_folder), "--speed", "--quiet"]) == 0
    exact, fast = capsys.readouterr().out.splitlines()
    assert exact.startswith("passed: ")
    assert fast.startswith("speed: ")
    assert run(["selftest", "--model", str(gpt2_folder), "--speed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"]
    assert found["speed"]["verdict"].startswith("speed: ")
