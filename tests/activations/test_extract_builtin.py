"""Extraction with the built-in model: what its closed vocabulary refuses, and how much a stopped run can lose."""

import numpy as np
import pytest
from store_cases import plan_of

from probekit.activations.plan import build as planning
from probekit.errors import DataError
from probekit.models import load_model
from probekit.models.base import LanguageModel
from probekit.tasks import Task, load_task


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    model = load_model("agreement-gpt2", device="cpu")
    assert sum(p.numel() for p in model.parameters()) < 1_000_000
    return model


def test_a_word_outside_the_vocabulary_names_its_example(model: LanguageModel) -> None:
    texts = ["the keys", "the zebra"]
    task = Task(
        "t", texts, {"y": np.array([0, 1])}, {"y": ["a", "b"]}, np.array(["train", "test"]), "y", ids=["a:0", "a:1"]
    )
    with pytest.raises(DataError, match=r"example 'a:1': .*zebra"):
        plan_of(model, task)


def test_a_shard_takes_so_much_work_however_narrow_its_rows(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a run that is stopped has kept something, though all its rows would fit one shard's bytes."""
    cfg = model.cfg
    matrices = cfg.n_layers * (4 * cfg.d_model**2 + 2 * cfg.d_model * cfg.d_mlp)
    per_node = 2 * matrices + cfg.n_layers * 2 * 7 * cfg.d_model  # a LayerNorm takes 7 operations a number
    monkeypatch.setattr(planning, "SHARD_FLOPS", {"cpu": 500 * per_node})
    made = plan_of(model, load_task("agreement", limit=300), batch_tokens=200)
    nodes = [sum(int(made.packing.sizes[blocks].sum()) for blocks in shard) for shard in made.shards]
    assert len(made.shards) > 5
    assert max(nodes) <= 500
