"""Nested folds: what is quoted of them is fair where there is nothing to find."""

from typing import Any

import numpy as np
import pytest
import torch

from probekit.activations.sets import ActivationSet
from probekit.evaluation import train_probes
from probekit.tasks.base import Task

BARE: dict[str, Any] = {"baselines": False, "controls": 0, "codelength": False}


def noise(seed: int, n: int = 60, n_layers: int = 12, positives: float = 0.5, **task: Any) -> ActivationSet:
    """Activations and labels that have nothing to do with one another."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation((np.arange(n) < positives * n).astype(np.int64))
    about: dict[str, Any] = {"inputs": [f"text {i}" for i in range(n)], "splits": np.full(n, "train")} | task
    made = Task("noise", labels={"kind": labels}, label_names={"kind": ["a", "b"]}, target="kind", **about)
    places = [("resid_pre", i) for i in range(n_layers)]
    return ActivationSet({p: torch.from_numpy(rng.normal(size=(n, 6)).astype(np.float32)) for p in places}, made)


def assert_mean(values: list[float], expected: float) -> None:
    assert abs(np.mean(values) - expected) < 3 * np.std(values, ddof=1) / np.sqrt(len(values))


def quoted(results: Any) -> float:
    """The first number of the notes."""
    (line,) = [line for line in results.summary().splitlines() if line.startswith(("Best", "Whole procedure"))]
    return float(line.split("accuracy ")[1][:5])


def test_the_number_that_is_printed_of_noise_is_chance():
    worlds = [train_probes(noise(seed), probe="mean-diff", folds=5, **BARE) for seed in range(30)]
    assert_mean([quoted(results) for results in worlds], 0.5)
    assert np.mean([results.meta["optimism"]["over"] for results in worlds]) > 0.05


def test_folds_have_no_p_values_and_say_why():
    results = train_probes(noise(0, n_layers=2), probe="mean-diff", folds=3, **BARE)
    assert (results.meta["p_max"], results.meta["permutations"]) == (None, None)
    assert [layer.p_value for layer in results.layers] == [None, None]
    assert "No p-values with folds: the pooled predictions depend on the labels" in results.summary()
    assert "ignore that folds share training rows" in results.summary()


def test_the_picture_rings_no_place_that_all_rows_chose():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    results = train_probes(noise(0, n_layers=3), probe="mean-diff", folds=3, **BARE)
    ax = results.plot(Figure().subplots())
    labels = [str(line.get_label()) for line in ax.lines]
    assert not any("chosen" in label for label in labels)
    assert f"whole procedure: accuracy {results.judged[0]:.3f}" in " ".join(labels)
