"""A self-test finds what is wrong in a family; that it passes on those that are right is in `models/test_matrix.py`."""

import pytest
import torch
from tiny_configs import new_model

import probekit as pk


@pytest.mark.parametrize(
    ("name", "spoil", "where"),
    [
        ("llama", lambda model: setattr(model.blocks[1].ln2, "eps", 1e-1), "ln2_scale"),
        ("bert", lambda model: setattr(model.blocks[1].ln1, "eps", 1e-1), "ln1_scale"),
        ("marian", lambda model: setattr(model.decoder.blocks[1].ln3, "eps", 1e-1), "decoder.ln3_scale"),
    ],
)
def test_a_wrong_norm_is_named(name, spoil, where):
    model = new_model(name)
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
    model = new_model(name)
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
    found = pk.selftest(new_model("marian"))
    assert not found.passed
    assert {figure.check for row in found.rows for figure in row.figures.values() if not figure.passed} == {
        "packed",
        "shuffled",
    }
