"""The model of `experiments/transformer_lm.py`: causal, rotary, and probed like any other."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "experiments" / "transformer_lm.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("transformer_lm", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(script):
    return script.TransformerLM(script.LMConfig(d_vocab=11, d_model=16, n_heads=2, n_layers=2, n_ctx=12)).init_weights()


@torch.no_grad()
def test_a_token_does_not_change_what_comes_before_it(model):
    tokens = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, 5] = (other[:, 5] + 1) % 11
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(-1).all()


@torch.no_grad()
def test_only_differences_of_positions_count(model):
    tokens = torch.tensor([[1, 5, 9, 2]])
    places = torch.arange(4)[None]
    torch.testing.assert_close(model(tokens, places), model(tokens, places + 7), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(tokens, places), model(tokens, 2 * places), atol=1e-3)


def test_it_is_trained_and_probed_at_every_layer(script, capsys):
    script.main(["counting", "--steps", "3"])
    first, *layers = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"exact on held-out examples: \d+\.\d%", first)
    assert [line.split(":")[0] for line in layers] == ["resid_pre.0", "resid_pre.1", "resid_pre.2", "resid_post.2"]
    assert all(0 <= float(line.split()[-1]) <= 1 for line in layers)
