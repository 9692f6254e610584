"""Grids of several points, and how many pairs are patched cell by cell."""

import numpy as np
import pytest
from causal.patching.test_patching import T, pairs_of
from tiny_configs import tiny_model

from probekit.causal.patching import patch_pairs as module
from probekit.causal.patching.patch_pairs import exact_pairs, patch_pairs
from probekit.causal.patching.patching import patch_grid
from probekit.errors import UsageError


def test_pairs_are_patched_without_labels_or_probes() -> None:
    model, pairs = tiny_model("gpt2"), pairs_of(2)
    found = patch_pairs(model, pairs, points=["mlp_out", "z"], layers="1-2", placebos=0)
    assert [(grid.point, grid.layers, grid.n_exact) for grid in found.grids] == [
        ("mlp_out", [1, 2], 2),
        ("z", [1, 2], 2),
    ]
    assert np.array_equal(found.grids[0].recovery, patch_grid(model, pairs, "mlp_out", [1, 2], placebos=0).recovery)
    assert found.layers == found.effects == []
    assert {item.question: item.answer for item in found.checklist}["Which pairs are patched?"] == "2"


def test_a_model_without_mlps_is_patched_where_it_can_be() -> None:
    """The stream before the first block holds what the texts differ in: one token."""
    found = patch_pairs(tiny_model("hooked-attention-normless-bidirectional"), pairs_of(2, changed=3), placebos=0)
    assert [grid.point for grid in found.grids] == ["resid_pre", "attn_out", "z"]
    assert found.grids[0].recovery[0].tolist() == pytest.approx([float(at == 3) for at in range(T)], abs=1e-4)
    with pytest.raises(UsageError, match="attention alone"):
        patch_pairs(tiny_model("hooked-attention"), pairs_of(2), points=["mlp_out"], placebos=0)


def test_a_large_grid_is_exact_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of FLOPs is that of a text from the patched token on, in the layers from the patch on."""
    model, pairs = tiny_model("gpt2"), pairs_of(6)
    assert exact_pairs(model, pairs, "resid_pre", 3, None, 20) == 6
    width, blocks, tokens, runs = model.cfg.d_model, 1 + 2 + 3, T * (T + 1) / 2, 1 + 5
    flops = 2 * 12 * width**2 * blocks * tokens * runs
    monkeypatch.setattr(module, "EXACT_FLOPS", {"cpu": 5.5 * flops})
    assert exact_pairs(model, pairs, "resid_pre", 3, None, 20) == 5
    monkeypatch.setattr(module, "EXACT_FLOPS", {"cpu": 0})
    (grid,) = patch_pairs(model, pairs, points=["resid_pre"], placebos=1).grids
    assert (grid.n, grid.n_exact) == (6, 4)
    assert grid.correlation is not None
    assert exact_pairs(model, pairs, "resid_pre", 3, 9, 20) == 6
    with pytest.raises(UsageError, match="0 or more; got -1"):
        exact_pairs(model, pairs, "resid_pre", 3, -1, 20)
