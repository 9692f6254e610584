"""A causal run on models of other kinds: of three classes, in bfloat16, and a model of `transformers`."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from models.adapter.wrapped import wrapped
from tiny_configs import tiny_model

import probekit as pk
from probekit.causal.curve import problem
from probekit.causal.curve.causal_curve import causal_curve

N, WORDS = 54, range(20, 26)


def model_of(name):
    if name.startswith("adapted "):
        return wrapped(name.removeprefix("adapted "))
    return deepcopy(tiny_model("gpt2")).to(torch.bfloat16 if name == "bfloat16" else torch.float32)


@torch.no_grad()
def preferred(model, inputs, classes):
    """For each class the token that its texts make more probable than the others' do, so that the model has answers."""
    logits_NV = torch.stack([model(torch.tensor([ids]))[0, -1] for ids in inputs]).float()
    means_CV = torch.stack([logits_NV[classes == i].mean(dim=0) for i in np.unique(classes)])
    return [str(int(i)) for i in (means_CV - means_CV.mean(dim=0)).argmax(dim=1)]


@pytest.mark.parametrize(("name", "n_classes"), [("gpt2", 3), ("bfloat16", 2), ("adapted gptj", 2)])
def test_the_counterparts_output_gives_the_counterparts_answer(name, n_classes, monkeypatch):
    """The class is that of the last token, which is read, edited, and followed by the answer."""
    monkeypatch.setattr(problem, "STEPS", 2)
    model, rng = model_of(name), np.random.default_rng(0)
    assert sum(p.numel() for p in model.parameters()) < 200_000
    last = np.arange(N) % len(WORDS)
    inputs = [[*rng.integers(5, 20, 2).tolist(), WORDS[i]] for i in last]
    splits = np.repeat(["train", "validation", "test"], N // 3)
    names = {"kind": [str(i) for i in range(n_classes)]}
    task = pk.Task("kinds", inputs, {"kind": last % n_classes}, label_names=names, splits=splits)
    acts = pk.extract(model, task, points=["resid_pre"], progress=False)
    results = pk.train_probes(acts, quick=True, C=1.0)
    answers = preferred(model, inputs, last % n_classes)
    how = {"scales": [-1, 1], "placebos": 1, "completeness": False}
    found = causal_curve(model, acts, results, answers=answers, **how)
    own = [e for e in found.effects if e.direction == "full vector" and e.split == "test"]
    assert len(own) == model.cfg.n_layers + 1
    assert own[-1].effect == pytest.approx(1, abs=0.05 if name == "bfloat16" else 1e-4)
    assert {e.method for e in found.effects} == {"interchange", "erase", "steer"}
    without = found.meta["no_share"]
    assert "interchange" not in without
    for e in found.effects:
        assert np.isfinite([e.size, e.logit_difference]).all()
        assert np.isfinite(e.effect) or e.method in without
