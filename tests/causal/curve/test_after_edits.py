"""The loss on neutral text, and what probes read, after the edits of a causal run of a tiny model."""

import numpy as np
import pytest
import torch
from tiny_configs import tiny_model

import probekit as pk
from probekit.causal.behaviour.measure import loss_per_token
from probekit.causal.results.results import CausalResults
from probekit.interventions import Add
from probekit.tasks import Task

METHODS = ["interchange", "erase", "steer"]


def test_a_row_of_an_edit_is_that_of_its_text():
    """Whatever the texts' lengths, by which they are sorted."""
    model = tiny_model("gpt2")
    texts = [[5, 6, 7, 8, 9], [1, 2], [3, 4, 5, 6], [], [9, 8, 7]]
    vectors = torch.randn(len(texts), model.cfg.d_model, generator=torch.Generator().manual_seed(0))
    alone = [
        loss_per_token(model, [text], {"resid_pre.1": Add(v)}) for text, v in zip(texts, vectors, strict=True) if text
    ]
    weights = [len(text) - 1 for text in texts if text]
    together = loss_per_token(model, texts, {"resid_pre.1": Add(vectors)})
    assert together == pytest.approx(np.average(alone, weights=weights), rel=1e-5)
    assert together != pytest.approx(loss_per_token(model, texts, {"resid_pre.1": Add(vectors.flip(0))}), rel=1e-5)


@pytest.fixture(scope="module")
def found() -> CausalResults:
    """Whether the last token is an 8 or a 9, in texts whose first token is another label."""
    rng = np.random.default_rng(0)
    last, first = rng.integers(0, 2, 150), rng.integers(0, 2, 150)
    inputs = [[8 + f, *rng.integers(10, 50, 3).tolist(), 8 + y] for y, f in zip(last, first, strict=True)]
    splits = np.resize(["train", "validation", "test"], 150)
    names = {"last": ["eight", "nine"], "first": ["eight", "nine"]}
    task = Task("t", inputs, {"last": last, "first": first}, label_names=names, splits=splits, target="last")
    model = tiny_model("gpt2")
    assert sum(p.numel() for p in model.parameters()) < 100_000
    acts = pk.extract(model, task, points=["resid_pre"])
    results = pk.train_probes(acts, quick=True, C=1.0)
    return pk.causal_curve(model, acts, results, answers=["8", "9"], das=False, placebos=0, scales=[1])


def test_every_method_says_what_it_leaves_at_its_place_and_at_later_ones(found):
    for i, layer in enumerate(found.layers):
        assert list(layer.completeness) == list(layer.collateral) == METHODS
        assert {len(shares) for shares in layer.completeness.values()} == {len(found.layers) - i}
    first = found.layers[0]
    assert first.completeness["interchange"][0] == pytest.approx(1, abs=0.3)


def test_every_edit_of_every_token_changes_the_loss(found):
    for layer in found.layers:
        assert all(np.isfinite(value) and value != 0 for value in layer.collateral.values())


def test_the_measures_survive_the_files(found, tmp_path):
    found.save(tmp_path)
    assert CausalResults.load(tmp_path).layers == found.layers
