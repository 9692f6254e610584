"""The C of the control tasks: the label's, or each task's own choice."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.evaluation import ProbeResults
from probekit.evaluation.compare.controls import control_labels, control_types
from probekit.evaluation.fits import layer as fits_of_a_layer
from probekit.evaluation.fits.protocol import fold_protocol
from probekit.verbs.train_probes import train_probes

GRID = (0.001, 0.1, 10.0)
QUICK: dict[str, Any] = {"baselines": False, "codelength": False, "intervals": False, "controls": 2}


@pytest.fixture(scope="module")
def acts(world):
    """Types that are read often, so that train holds each of them; their labels can be learnt in part."""
    return world(n=240, inputs=[f"text {i} word{i * i % 23}" for i in range(240)], strength=(0.2, 0.4, 0.5, 0.4, 0.3))


def tasks_of(acts, train: np.ndarray | None = None) -> np.ndarray:
    """The draws of the control task, [2, N]."""
    rows = np.flatnonzero(acts.splits == "train") if train is None else train
    return control_labels(acts.labels["kind"], control_types(acts) or [], 2, 2, 0, rows)


def fitted(X: np.ndarray, y: np.ndarray, C: float | None) -> Pipeline:
    probe = LogisticRegression(C=C or 0, solver="newton-cholesky", tol=1e-12)
    return make_pipeline(StandardScaler(), probe).fit(X, y)


@pytest.mark.parametrize("which", ["label", "own"])
def test_controls_are_those_of_separate_fits(acts, which):
    """By scikit-learn: at the C of the layer, or at the C that validation of the control task chooses."""
    train, validation, test = (acts.splits == name for name in ("train", "validation", "test"))
    for place in train_probes(acts, C=GRID, control_C=which, layers="0-2", **QUICK).layers:
        X, found = acts[place.point, place.layer].double().numpy(), []
        for y in tasks_of(acts):
            probes = {C: fitted(X[train], y[train], C) for C in GRID}
            own = max(GRID, key=lambda C: probes[C].score(X[validation], y[validation]))
            found.append(probes[place.C if which == "label" else own].score(X[test], y[test]))
        assert place.control == pytest.approx(np.mean(found))
        assert place.selectivity == pytest.approx(place.metrics["test"]["accuracy"] - np.mean(found))


def test_each_fold_s_controls_have_the_C_that_the_fold_chose(acts):
    results = train_probes(acts, C=GRID, folds=3, layers="1", metric="auroc", **QUICK)
    (place,) = results.layers
    X, y = acts["resid_pre.1"].double().numpy(), acts.labels["kind"]
    protocol = fold_protocol(y, np.arange(len(y)), 3, 0)
    scores: list[list[tuple[np.ndarray, np.ndarray]]] = [[], []]
    for each in protocol.rounds:
        rows = protocol.masks[each.mask] > 0
        means = []
        for C in GRID:
            values = []
            for mask, part in each.choosers:
                own, held = protocol.masks[mask] > 0, protocol.parts[part]
                values.append(roc_auc_score(y[held], fitted(X[own], y[own], C).decision_function(X[held])))
            means.append(np.mean(values))
        C = GRID[int(np.argmax(means))]
        for task, known in zip(tasks_of(acts, np.arange(len(y))), scores, strict=True):
            decided = fitted(X[rows], task[rows], C).decision_function(X[each.test])
            known.append((task[each.test], (decided - decided.mean()) / decided.std()))
    pooled = [tuple(map(np.concatenate, zip(*known, strict=True))) for known in scores]
    assert place.control == pytest.approx(np.mean([roc_auc_score(*each) for each in pooled]), abs=1e-3)


def same_but_for_the_C_of_controls(one: ProbeResults, other: ProbeResults) -> bool:
    metas = [{**each.meta, "control": {**each.meta["control"], "C": None}} for each in (one, other)]
    probes = zip(one.layers, other.layers, strict=True)
    alike = all(np.array_equal(a.probe.coef_, b.probe.coef_) for a, b in probes)
    return alike and metas[0] == metas[1] and one.layers == other.layers


@pytest.mark.parametrize("how", [{}, {"folds": 3}, {"probe": "ridge"}, {"probe": "mean-diff"}], ids=str)
def test_of_one_strength_both_are_the_same(acts, how):
    how = how if how.get("probe") == "mean-diff" else {"C": 0.1, **how}
    results = [train_probes(acts, layers="0-1", control_C=which, **how, **QUICK) for which in ("label", "own")]
    assert same_but_for_the_C_of_controls(*results)
    assert "own C" not in results[1].summary()


def test_only_the_label_is_fitted_at_every_C(acts, monkeypatch):
    """Ridge excepted: a decomposition of the features gives every strength."""
    counts = []

    def counted(grid, keys, made=fits_of_a_layer.problems_at):
        counts.append(len(keys))
        return made(grid, keys)

    monkeypatch.setattr(fits_of_a_layer, "problems_at", counted)
    for how in ({}, {"control_C": "own"}, {"probe": "ridge"}):
        train_probes(acts, C=GRID, layers="0", **how, **QUICK)
    assert counts == [3, 2, 9, 9]


def test_ridge_has_the_controls_of_the_label_s_C(acts):
    results = train_probes(acts, C=GRID, layers="0-2", probe="ridge", **QUICK)
    for place in results.layers:
        (alone,) = train_probes(acts, C=place.C, layers=str(place.layer), probe="ridge", **QUICK).layers
        assert alone.control == place.control


def test_the_note_and_the_record_say_which_C(acts):
    label, own = (train_probes(acts, C=GRID, layers="0", control_C=which, **QUICK) for which in ("label", "own"))
    assert "mean of 2 draws, at the label's C; " in label.summary()
    assert "mean of 2 draws, each at its own C; " in own.summary()
    before = {name: value for name, value in own.meta["control"].items() if name != "C"}
    earlier = replace(own, meta={**own.meta, "control": before})  # results of versions that did not record it
    assert earlier.summary() == own.summary()
