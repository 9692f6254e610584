"""Ties of the headline on validation: the lower loss, then the smaller C, then the earlier layer."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit import train_probes
from probekit.activations.activations import ActivationSet
from probekit.evaluation import ProbeResults
from probekit.evaluation.compare.baseline_fits import dense_fits, selection_parts
from probekit.evaluation.scores.predictions import Predictions
from probekit.evaluation.scores.selection import selection_key, tie_loss
from probekit.tasks.base import Task

N, D = 320, 8
GRID = [1e-4, 1e-2, 1.0]
LABELS = (np.arange(N) % 8 == 0).astype(int)  # 12% of one class, so the headline is AUROC
SPLITS = np.repeat(["train", "validation", "test"], [160, 80, 80])


@pytest.fixture(scope="module")
def imbalanced() -> ActivationSet:
    """A class of 12% that every C separates at two layers with other noise, so that all have an AUROC of 1."""
    rng = np.random.default_rng(0)
    task = Task(
        name="rare",
        inputs=[f"text number {i}" for i in range(N)],
        labels={"kind": LABELS},
        label_names={"kind": ["no", "yes"]},
        splits=SPLITS,
        target="kind",
        groups=np.arange(N) // 4,
    )
    planted = 12 * LABELS[:, None] * (np.arange(D) == 0)
    rows = [rng.normal(size=(N, D)) + planted for _ in range(2)]
    return ActivationSet({("resid_pre", i): torch.from_numpy(x).float() for i, x in enumerate(rows)}, task)


def predicted(acts: ActivationSet, layer: Any) -> np.ndarray:
    return np.asarray(layer.probe.predict(acts[layer.point, layer.layer][SPLITS == "test"]))


@pytest.mark.parametrize("probe", ["logistic", "ridge", "mean-diff", "lda"])
def test_the_probe_of_a_tie_predicts_the_rare_class(imbalanced: ActivationSet, probe: str) -> None:
    results = train_probes(imbalanced, probe=probe, quick=True)
    assert results.headline == "auroc"
    for layer in results.layers:
        assert {value for _, value in layer.tried} == {1.0}
        assert f1_score(LABELS[SPLITS == "test"], predicted(imbalanced, layer)) > 0.9
        assert not layer.is_at_edge  # no C has a higher headline


@pytest.mark.parametrize("how", [{}, {"folds": 4}, {"metric": "average_precision"}], ids=str)
def test_the_C_of_a_tie_is_that_of_the_lowest_log_loss(imbalanced: ActivationSet, how: dict[str, Any]) -> None:
    results = train_probes(imbalanced, C=GRID, quick=True, **how)
    if how.get("folds"):
        assert results.procedure is not None
        assert results.procedure["metrics"]["f1"] > 0.9
        return
    losses = []
    for layer in results.layers:
        X = imbalanced[layer.point, layer.layer].double().numpy()
        fits = [
            make_pipeline(StandardScaler(), LogisticRegression(C=C, tol=1e-10, max_iter=1000)).fit(
                X[SPLITS == "train"], LABELS[SPLITS == "train"]
            )
            for C in GRID
        ]
        own = [log_loss(LABELS[SPLITS == "validation"], fit.predict_proba(X[SPLITS == "validation"])) for fit in fits]
        assert GRID[int(np.argmin(own))] == layer.C
        assert layer.loss == pytest.approx(min(own), rel=1e-3)
        losses.append(min(own))
    assert results.best.layer == int(np.argmin(losses))


def test_a_baseline_that_ties_predicts_the_rare_class_too() -> None:
    columns = LABELS[:, None] + 0.01 * np.random.default_rng(0).normal(size=(N, 1))
    train, validation = (np.flatnonzero(name == SPLITS) for name in ("train", "validation"))
    fits = dense_fits("length", columns, LABELS, train, 2, GRID)
    keys = [selection_parts(fit, LABELS, validation, 2, "auroc") for fit in fits]
    assert {value for _, value, _ in keys} == {1.0}
    best = max(range(len(GRID)), key=lambda i: selection_key(*keys[i], fits[i].C))
    assert f1_score(LABELS, fits[best].predicted) > 0.9


def test_the_order_of_the_rules() -> None:
    """Converged, headline, rows, loss, C: each rule decides where all before it are equal, and no later one does."""
    better = {"converged": (True, False), "headline": (0.9, 0.8), "rows": (20, 10), "loss": (0.1, 0.2), "C": (0.1, 1.0)}
    for number, name in enumerate(better):
        for later in itertools.product((0, 1), repeat=len(better) - number - 1):
            own = {key: values[0] for key, values in better.items()}
            other = {**own, name: better[name][1]}
            for key, which in zip(list(better)[number + 1 :], later, strict=True):
                own[key], other[key] = better[key][which], better[key][1 - which]
            assert selection_key(**own) > selection_key(**other)
    assert selection_key(True, 1.0, None, None) == selection_key(True, 1.0 - 1e-14, float("nan"), None)
    assert selection_key(True, 1.0, 5.0, None) > selection_key(True, 1.0, None, None)


def test_the_loss_is_of_what_the_probe_predicts() -> None:
    truth = np.array([0, 1, 1])
    likely = np.array([[0.8, 0.2], [0.5, 0.5], [1.0, 0.0]])
    odds = Predictions(truth, likely.argmax(axis=1), likely[:, 1], 2, likely)
    assert tie_loss(odds) == pytest.approx(-np.log([0.8, 0.5, 1e-300]).mean())
    assert tie_loss(Predictions(truth, likely.argmax(axis=1), likely[:, 1], 2)) == pytest.approx(2 / 3)
    numbers = np.array([1.0, 2.0, 4.0])
    assert tie_loss(Predictions(numbers, numbers + 2, numbers, 0)) == 2


def test_the_loss_of_huge_numbers_is_one_that_results_can_hold(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    labels, splits = {"size": 1e90 * (X[:, 0] + rng.normal(size=60))}, np.repeat(["train", "validation", "test"], 20)
    task = Task("huge", [f"text {i}" for i in range(60)], labels, {"size": []}, splits, "size")
    results = train_probes(ActivationSet({("resid_pre", 0): torch.from_numpy(X).float()}, task), quick=True)
    results.save(tmp_path / "results")
    assert ProbeResults.load(tmp_path / "results").best.loss == results.best.loss
