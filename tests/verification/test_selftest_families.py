"""A self-test passes on every family as it is, shows every point, and finds what is wrong in each."""

from functools import cache
from typing import Any

import pytest
import torch
from tiny_configs import tiny_configs

import probekit as pk
from probekit.models.families import family_of
from probekit.models.weights import save_hf
from probekit.points import POINTS, split_point

CONFIGS = tiny_configs()
WITH_ORACLE = [name for name, cfg in CONFIGS.items() if family_of(cfg).hf_model(cfg)]
SCALES = {point.rpartition(".")[2] for point in POINTS if point.endswith("_scale")}
UNSEEN = SCALES | {"attn_scores", "result", "rot_q", "rot_k"}  # by transformers


def made(name: str) -> Any:
    cfg = CONFIGS[name]
    model = family_of(cfg).model(cfg).init_weights(1).eval()
    assert sum(p.numel() for p in model.parameters()) < 70_000
    with torch.no_grad():  # so that biases and norms show
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    model.name = name
    return model


@cache
def judged(name: str) -> Any:
    """The self-test of a correct model, run once."""
    model = made(name)
    return pk.selftest(model), model


def base(point: str) -> str:
    return point.rpartition(".")[2].removeprefix("cross_")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_correct_model_passes_at_every_point(name):
    found, model = judged(name)
    assert found.passed, found.describe()
    points = {split_point(name)[0] for name in model.points} | ({"logits"} if model.has_logits else set())
    assert {row.point for row in found.rows} == points


@pytest.mark.parametrize("name", WITH_ORACLE)
def test_transformers_computes_all_but_a_few_points(name):
    found, _ = judged(name)
    own = {row.point for row in found.rows if row.against == "float64"}
    assert {base(point) for point in own} <= UNSEEN | {"embed"}  # Marian's is one module for both stacks
    assert len(own) < len(found.rows) / 2


@pytest.mark.parametrize("name", WITH_ORACLE)
def test_both_implementations_read_the_same_folder(name, tmp_path):
    save_hf(made(name), tmp_path / "model")
    found = pk.selftest(pk.load_model(tmp_path / "model", device="cpu"))
    assert found.passed, found.describe()
    assert "read from the model's folder" in found.oracle


@pytest.mark.parametrize(
    ("name", "spoil", "where"),
    [
        ("llama", lambda model: setattr(model.blocks[1].ln2, "eps", 1e-1), "ln2_scale"),
        ("bert", lambda model: setattr(model.blocks[1].ln1, "eps", 1e-1), "ln1_scale"),
        ("marian", lambda model: setattr(model.decoder.blocks[1].ln3, "eps", 1e-1), "decoder.ln3_scale"),
    ],
)
def test_a_wrong_norm_is_named(name, spoil, where):
    model = made(name)
    spoil(model)
    found = pk.selftest(model)
    assert not found.passed
    assert found.first is not None
    assert (found.first.point, found.first.layer, found.first.check) == (where, 1, "reference")


@pytest.mark.parametrize(
    ("name", "norm"),
    [("bert", "ln_embed"), ("bert", "head.ln"), ("marian", "encoder.blocks.0.ln1"), ("marian", "decoder.blocks.2.ln3")],
)
def test_a_norm_is_tested_fused_and_in_steps(name, norm):
    """A hook on its scale makes it compute step by step, so both ways are tested."""
    model = made(name)
    module = model.get_submodule(norm)
    right = module.forward
    module.forward = lambda x: right(x if module.hook_scale.hooked else x + 0.01 * x.roll(1, -1))
    found = pk.selftest(model)
    assert not found.passed
    assert found.first is not None
    assert found.first.check == "reference"


def test_a_source_that_leaks_into_its_neighbours_is_named(monkeypatch):
    monkeypatch.setattr(
        "probekit.activations.plan.packing.PackedBatch.cross_mask",
        lambda self, device: torch.ones(len(self.tokens), self.tokens.shape[1], self.source.tokens.shape[1]).bool(),
    )
    found = pk.selftest(made("marian"))
    assert not found.passed
    assert {figure.check for row in found.rows for figure in row.figures.values() if not figure.passed} == {
        "packed",
        "shuffled",
    }
