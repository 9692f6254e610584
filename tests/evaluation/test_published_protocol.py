"""A published protocol in ten lines: every token, five label sets, fourteen places, least squares."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score

import probekit as pk
from probekit.models.families.gpt2 import GPT2, GPT2Config

GUIDE = Path(__file__).parents[2] / "docs" / "python.md"
N, L, VOCAB, SQUARES = 80, 8, 13, 4


def make_model() -> GPT2:
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_mlp": 32, "n_layers": 4, "n_ctx": L, "d_vocab": VOCAB}
    return GPT2(GPT2Config(**sizes, init_std=0.2)).init_weights(0)


def games() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    ids = np.random.default_rng(0).integers(VOCAB, size=(N, L))
    square = np.cumsum(ids, axis=1) % SQUARES
    visited = (np.cumsum(square[:, :, None] == np.arange(SQUARES), axis=1) > 0) * 1.0
    before = np.concatenate([np.zeros((N, 1)), ids[:, :-1]], axis=1)
    return ids, {
        "board": visited,
        "square": square * 1.0,
        "before": before,
        "mean": np.cumsum(ids, axis=1) / np.arange(1, L + 1),
        "step": ids % 3 * 1.0,
    }


def by_hand(acts: Any, ids: np.ndarray, labels: dict[str, np.ndarray]) -> dict[tuple[str, str], float]:
    """R2 on test of numpy's least squares at every place.

    On the same activations: after the final norm every row sums to zero up to rounding, and least squares fits the
    rounding errors, which differ between one forward and another.
    """
    train = np.arange(N) < 0.8 * N
    places = ["embed", *[f"{point}.{i}" for point in ("resid_pre", "resid_mid", "resid_post") for i in range(4)]]
    found = {}
    for place in [*places, "ln_final"]:
        x = acts[place].double().numpy().reshape(N, L, -1)
        x = np.concatenate([x, np.ones((N, L, 1))], axis=2)
        for name, given in labels.items():
            y = given.reshape(N, L, -1)
            parts = [part.reshape(-1, part.shape[-1]) for part in (x[train], y[train], x[~train], y[~train])]
            weights = np.linalg.lstsq(parts[0], parts[1], rcond=None)[0]
            found[place, name] = r2_score(parts[3], parts[2] @ weights)
    return found


def test_the_guides_ten_lines_are_least_squares_by_hand():
    section = GUIDE.read_text(encoding="utf-8").split("## A published protocol in ten lines")[1].split("\n## ")[0]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[-1]
    code = re.sub(r"^othello = .*\n", "", code, flags=re.MULTILINE)
    model, (ids, labels) = make_model(), games()
    scope = {"pk": pk, "np": np, "othello": model, "ids": ids, "labels": labels}
    exec(code, scope)
    table = scope["r2"]
    _, cache = model.run_with_cache(torch.from_numpy(ids))
    assert all(torch.allclose(x, cache[place].flatten(0, 1), atol=1e-5) for place, x in scope["tokens"].items())
    expected = by_hand(scope["tokens"], ids, labels)
    assert table.size == len(expected) == 70
    for (place, name), value in expected.items():
        assert table.loc[place, name] == pytest.approx(value, abs=1e-6), (place, name)
