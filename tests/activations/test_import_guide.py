"""The code of the guide to importing, run with a model of transformers: every state lands at our own model's place."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

from probekit.activations import import_activations
from probekit.models.load import load_model

GUIDE = Path(__file__).parents[2] / "docs/how-to/import-activations.md"
N, N_LAYERS = 12, 3


class Chosen:
    """A model of which only some hidden states are asked for."""

    def __init__(self, model: GPT2LMHeadModel, states: Any):
        self.model, self.states, self.config = model, states, model.config

    def __call__(self, output_hidden_states: bool, **batch: Any) -> Any:
        return self.model(output_hidden_states=self.states, **batch)


@pytest.fixture
def oracle() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=16, n_head=2, n_layer=N_LAYERS, n_positions=8, vocab_size=30)
    model = GPT2LMHeadModel(config).eval()
    assert sum(p.numel() for p in model.parameters()) < 20_000
    return model


@pytest.mark.parametrize("tied", [True, False, None])
@pytest.mark.parametrize("states", [True, [1, 3], [-1, 0]], ids=str)
def test_the_guide_puts_hidden_states_where_they_belong(oracle, states, tied, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    oracle.save_pretrained("model")
    if tied is not None:
        oracle.config.tie_last_hidden_states = tied
    tokens, last = torch.randint(30, (N, 8)), torch.arange(N) % 8
    code = next(code for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S) if "hidden_states" in code)
    names = {"model": Chosen(oracle, states), "batch": {"input_ids": tokens}, "last": last}
    with torch.no_grad():
        exec(code, {"torch": torch, "save_file": save_file, **names})
    rows = [{"label": i % 2, "split": ["train", "validation", "test"][i // 4]} for i in range(N)]
    Path("labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = import_activations("acts.safetensors", "labels.jsonl", n_layers=N_LAYERS, out="store")
    indices = range(N_LAYERS + 1) if states is True else sorted(i % (N_LAYERS + 1) for i in states)
    output = f"resid_post.{N_LAYERS - 1}" if tied is False else "ln_final"
    assert [str(place) for place in store] == [f"resid_pre.{i}" if i < N_LAYERS else output for i in indices]
    with torch.no_grad():
        _, cache = load_model("model", device="cpu").run_with_cache(tokens)
    for place in store:
        ours = cache[place][torch.arange(N), last]
        assert (store[place] - ours).abs().max() <= 1e-5 * ours.abs().max()
