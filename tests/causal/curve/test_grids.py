"""Patching within a causal run: which test rows are patched, and in which layers."""

import numpy as np
from causal.curve.test_effects import parts, run

from probekit.causal.curve import grids as module

assert parts  # the fixture


def test_pairs_are_test_rows_drawn_at_random_whose_answers_differ(parts, monkeypatch):
    """Here the answers go by another label than that of the probes."""
    monkeypatch.setattr(module, "MOST_PAIRS", 10)
    seen = []
    patched = module.grids_of
    monkeypatch.setattr(module, "grids_of", lambda *args: seen.append(args) or patched(*args))
    found = run(parts, "idle", methods="patch", placebos=0, layers=0)
    counts = found.meta["patched"]
    assert counts["pairs"] == 10
    assert counts["more"] == 50
    _, acts = parts
    pairs, layers = seen[0][1], seen[0][3]
    used = acts.task.labels["used"]
    number = {text[0]: i for i, text in enumerate(acts.task.inputs)}
    rows = np.array([[number[x[0]], number[y[0]]] for x, y in zip(pairs.clean, pairs.corrupted, strict=True)])
    assert (used[rows[:, 0]] != used[rows[:, 1]]).all()
    assert layers == [0]
    assert np.flatnonzero(acts.task.splits == "test")[9] < rows[:, 0].max()  # not the first ten
    assert any(item.answer.startswith("10; test rows left out: 50 beyond") for item in found.checklist)
    assert np.allclose(found.grids[0].recovery[0, -1], 1, atol=1e-3)  # one token is the whole text
