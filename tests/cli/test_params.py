"""`probekit params`: what is printed, what is drawn, and what needs no network, torch or weights."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from probekit.cli.main import run
from probekit.models.accounting import account
from probekit.models.families import named_shape, shape_of
from probekit.models.families.gpt2 import GPT2Config
from probekit.models.shapes import ModelShape
from probekit.text import metric
from probekit.worlds import MODELS, world
from probekit.worlds.train import untrained

Capture = pytest.CaptureFixture[str]
SMALL = GPT2Config(d_model=24, n_heads=3, d_mlp=40, n_layers=4, n_ctx=30, d_vocab=50)


@pytest.fixture
def folder(here: Path) -> str:
    """A model folder without weights."""
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(SMALL.to_hf()))
    return "model"


def shape(name: str) -> ModelShape:
    found = named_shape(name)
    assert found
    return found


def told(args: list[str], capsys: Capture) -> Any:
    assert run(["params", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_size_by_name_at_its_own_context(here: Path, capsys: Capture) -> None:
    assert run(["params", "gpt2"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert ["parameters", "124,439,808"] in rows
    assert ["token", "embedding", "38,597,376", "31.0%"] in rows
    assert ["12", "blocks", "of", "7,087,872", "85,054,464", "68.3%"] in rows
    assert ["final", "norm", "1,536", "<0.1%"] in rows
    assert ["head", "(the", "token", "embedding)", "0", "0.0%"] in rows
    assert ["weights", "498", "MB"] in rows
    assert ["resid_pre", "3.15", "MB", "12", "37.7", "MB"] in rows
    head = 2 * 1024 * 768 * 50257
    assert ["head", f"{head:,}", "27.1%"] in rows
    assert "1 text of 1,024 tokens" in out
    assert err == ""


def test_json_is_the_account(here: Path, capsys: Capture) -> None:
    found = told(["gpt2-xl", "--context", "16384", "--dtype", "bf16", "--batch", "2"], capsys)
    expected = account("gpt2-xl", shape("gpt2-xl"), 16384, 2, "bfloat16").as_dict()
    assert found == json.loads(json.dumps(expected))


def test_a_context_beyond_the_models_own_is_counted_and_noted(here: Path, capsys: Capture) -> None:
    assert run(["params", "gpt2-xl", "--context", "16384"]) == 0
    assert "gpt2-xl supports 1,024 tokens" in capsys.readouterr().err
    assert run(["params", "gpt2-xl", "--context", "16384", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_folder_is_counted_from_its_config(folder: str, capsys: Capture) -> None:
    assert told([folder], capsys) == json.loads(json.dumps(account("model", shape_of(SMALL)).as_dict()))


def test_a_built_in_model(capsys: Capture) -> None:
    assert told(["agreement-gpt2"], capsys)["family"] == "gpt2"


@pytest.mark.parametrize("name", MODELS)
def test_a_worlds_model_is_counted_without_training_it_or_writing_anything(
    name: str, here: Path, capsys: Capture
) -> None:
    found = told([name], capsys)
    weights = sum(weight.numel() for weight in untrained(world(name), 0).parameters())
    assert (found["model"], found["parameters"]["total"]) == (name, weights)
    assert list(here.iterdir()) == []


@pytest.mark.filterwarnings("default:the model .* is the one in this folder")
def test_a_folder_with_the_name_of_a_size_wins(folder: str, capsys: Capture) -> None:
    Path(folder).rename("gpt2")
    assert told(["gpt2"], capsys)["n_ctx"] == 30


def test_several_models_are_compared_in_a_table_and_a_picture(here: Path, capsys: Capture) -> None:
    assert run(["params", "--compare", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]) == 0
    out, err = capsys.readouterr()
    rows = out.splitlines()
    assert rows[-1] == "Picture: runs/flop_shares.png"
    assert len([row for row in rows if "%" in row]) == 20
    assert rows[1].split()[:7] == ["gpt2", "124,439,808", "498", "MB", "1,024", "75.5", "MB"]
    assert len(err.splitlines()) == 4
    for suffix in ("png", "svg"):
        assert Path(f"runs/flop_shares.{suffix}").stat().st_size > 1000


def test_a_comparison_as_json_at_one_context(folder: str, capsys: Capture) -> None:
    found = told(["--compare", folder, "gpt2", "--context", "64", "--out", "x/shares.png"], capsys)
    assert [(x["model"], x["context"]) for x in found["models"]] == [("model", 64), ("gpt2", 64)]
    assert found["picture"] == "x/shares.png"
    assert Path("x/shares.png").is_file()


def test_a_revision_is_that_of_each_model_that_is_compared(folder: str, capsys: Capture) -> None:
    for name in ("one/step1", "two/step1"):
        shutil.copytree(folder, name)
    other = replace(SMALL, n_layers=2)
    Path("two/step1/config.json").write_text(json.dumps(other.to_hf()))
    more = ["--context", "8", "--revision", "step1"]
    alone = [told([name, *more], capsys)["parameters"] for name in ("one", "two")]
    found = told(["--compare", "one", "two", *more], capsys)["models"]
    assert [one["parameters"] for one in found] == alone
    assert alone[0] != alone[1]


def test_folders_are_called_by_their_own_names(here: Path, folder: str, capsys: Capture) -> None:
    for name in ("a/tiny", "b/small", "b/tiny"):
        shutil.copytree(folder, name)
    said = ["--compare", str(here / "a/tiny"), str(here / "b/small"), "--context", "8"]
    assert [x["model"] for x in told(said, capsys)["models"]] == ["tiny", "small"]
    said = ["--compare", "a/tiny", "b/tiny", "b/small", "--context", "8"]
    assert [x["model"] for x in told(said, capsys)["models"]] == ["a/tiny", "b/tiny", "small"]
    assert told([str(here / "a/tiny")], capsys)["model"] == "tiny"


def test_from_a_config_file(here: Path, capsys: Capture) -> None:
    Path("c.yaml").write_text("params: {models: [gpt2, gpt2-xl], compare: true, context: 8}")
    assert [x["model"] for x in told(["--config", "c.yaml"], capsys)["models"]] == ["gpt2", "gpt2-xl"]
    assert told(["--set", "params.models=gpt2-large"], capsys)["model"] == "gpt2-large"


def test_a_size_by_name_takes_no_torch_and_no_network(here: Path) -> None:
    code = (
        "import socket, sys\n"
        "from probekit.cli.main import run\n"
        "socket.socket.connect = None\n"
        "assert run(['params', 'gpt2-xl']) == 0\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 "),
        (999, "999 "),
        (1000, "1.00 k"),
        (9_996, "10.0 k"),
        (99_960, "100 k"),
        (999_600, "1.00 M"),
        (5e18, "5.00 E"),
    ],
)
def test_three_digits_and_a_prefix(n: float, text: str) -> None:
    assert metric(n) == text


def test_a_class_of_transformers_is_counted_as_it_counts_itself(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import GPTJConfig, GPTJForCausalLM

    config = GPTJConfig(n_layer=2, n_head=2, n_embd=16, rotary_dim=4, vocab_size=50, n_positions=32)
    (here / "model").mkdir()
    (here / "model/config.json").write_text(json.dumps(config.to_dict()))
    assert run(["params", "model", "--via", "transformers", "--dtype", "bf16", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    model = GPTJForCausalLM(config)
    blocks = sum(weight.numel() for weight in model.transformer.h.parameters())
    assert parts["blocks"] == {"parameters": blocks, "bytes": 2 * blocks}
    assert parts["token embedding"]["parameters"] == 50 * 16
    assert parts["total"]["parameters"] == model.num_parameters() < 10_000
    assert run(["params", "model", "--via", "transformers"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("model, GPTJForCausalLM in float32\n")
    assert f"{model.num_parameters():,}" in out
    assert "FLOPs are counted for probekit's own families alone" in err
    for more in (["--compare", "gpt2"], ["--context", "8"], ["--batch", "2"]):
        assert run(["params", "model", "--via", "transformers", *more]) == 2
