"""An ensemble is the mean of calibrated scores of the members that validation chose; an ensemble of one is that one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit
from sklearn.metrics import accuracy_score, roc_auc_score

import probekit as pk
from probekit.activations.activations import ActivationSet
from probekit.errors import DataError, UsageError
from probekit.evaluation.compare.ensembles import choose_members
from probekit.probes.calibration import PRIOR_ROWS
from probekit.tasks.base import Task

FAST = {"C": 1.0, "controls": 0, "codelength": False, "baselines": False}
N = 600


def make_acts(n_layers: int = 4, n_classes: int = 2, seed: int = 0, order: Any = None) -> ActivationSet:
    """Layers that each see the class through noise of their own, so that their mean sees more than any of them."""
    rng = np.random.default_rng(seed)
    labels = np.random.default_rng(7).integers(n_classes or 2, size=N)
    noise = [rng.normal(size=(N, 4)) for _ in range(n_layers)]
    signal = np.eye(4)[labels] * (0.9 if n_classes else 1.0)
    y = labels + 0.3 * rng.normal(size=N) if not n_classes else labels
    rows = np.arange(N) if order is None else order
    names: Any = {"kind": [f"class {k}" for k in range(n_classes)]} if n_classes else None
    splits = np.array(["train", "validation", "test"])[np.arange(N) % 3]
    texts = [f"text {i}" for i in rows]
    task = Task("noisy", texts, {"kind": y[rows]}, names, splits=splits[rows], ids=[f"row {i}" for i in rows])
    return ActivationSet(
        {("resid_pre", i): torch.from_numpy((signal + one)[rows].astype(np.float32)) for i, one in enumerate(noise)},
        task,
    )


def train(acts: ActivationSet, **options: Any) -> Any:
    return pk.train_probes(acts, **{**FAST, **options})


@pytest.fixture(scope="module")
def results() -> Any:
    return train(make_acts())


@pytest.mark.parametrize("probe", ["logistic", "mean-diff", "lda"])
def test_an_ensemble_of_one_is_that_one(probe: str) -> None:
    options = {} if probe == "logistic" else {"probe": probe, "C": None}
    results = train(make_acts(n_layers=1), **options)
    found = pk.ensemble(results)
    assert found.members == ["resid_pre.0"]
    (layer,) = results.layers
    for name in ("accuracy", "balanced_accuracy", "f1", "auroc", "average_precision"):
        assert found.metrics["test"][name] == pytest.approx(layer.metrics["test"][name])
        assert found.intervals[name] == pytest.approx(layer.intervals[name])
    assert found.over == 0
    assert found.over_interval is not None  # that of equal answers, which says how many rows there are
    assert found.over_interval[0] == pytest.approx(-found.over_interval[1])


def temperature(scores: np.ndarray, labels: np.ndarray) -> float:
    """The slope that maximises the likelihood, with `PRIOR_ROWS` further rows whose labels follow the scores."""
    own, prior = expit(scores), PRIOR_ROWS / len(scores)
    ones, zeros = (labels == 1) + prior * own, (labels == 0) + prior * (1 - own)
    found = minimize_scalar(
        lambda slope: -(ones * log_expit(slope * scores) + zeros * log_expit(-slope * scores)).sum(),
        bounds=(0, 20),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(found.x)


def test_it_is_the_mean_of_the_scores_each_at_its_temperature(results: Any) -> None:
    rows = results.rows
    chosen, tested = rows.splits == "validation", rows.splits == "test"
    scaled = {k: temperature(x[chosen], rows.labels[chosen]) * x for k, x in rows.scores.items()}
    ranked = sorted(scaled, key=lambda k: -accuracy_score(rows.labels[chosen], scaled[k][chosen] > 0))
    means = [np.mean([scaled[k] for k in ranked[:n]], axis=0) for n in range(1, len(ranked) + 1)]
    values = [accuracy_score(rows.labels[chosen], mean[chosen] > 0) for mean in means]
    found = pk.ensemble(results)
    best = int(np.argmax(values))
    assert sorted(found.members) == sorted(ranked[: best + 1])
    assert list(found.tried.values()) == pytest.approx(values)
    test = means[best][tested]
    assert found.metrics["test"]["accuracy"] == pytest.approx(accuracy_score(rows.labels[tested], test > 0))
    assert found.metrics["test"]["auroc"] == pytest.approx(roc_auc_score(rows.labels[tested], test))
    single = accuracy_score(rows.labels[tested], rows.scores[found.single][tested] > 0)
    assert found.over == pytest.approx(found.metrics["test"]["accuracy"] - single)


def test_layers_that_err_apart_are_better_together(results: Any) -> None:
    found = pk.ensemble(results)
    assert len(found.members) > 1
    assert found.over_interval is not None
    assert found.over_interval[0] > 0


def test_test_labels_choose_nothing_and_the_order_of_rows_changes_nothing(results: Any) -> None:
    found, tested = pk.ensemble(results), results.rows.splits == "test"
    labels = np.where(tested, 1 - results.rows.labels, results.rows.labels)
    other = pk.ensemble(replace(results, rows=replace(results.rows, labels=labels)))
    assert (other.members, other.tried) == (found.members, found.tried)
    assert other.metrics["test"]["accuracy"] == pytest.approx(1 - found.metrics["test"]["accuracy"])
    shuffled = train(make_acts(order=np.random.default_rng(0).permutation(N)))
    again = pk.ensemble(shuffled)
    assert again.members == found.members
    assert again.metrics["test"] == pytest.approx(found.metrics["test"], abs=1e-4)
    both = pk.ensemble([results, shuffled])  # the rows of the second are put in the order of the first
    assert both.metrics["test"]["accuracy"] == pytest.approx(results.best.metrics["test"]["accuracy"], abs=1e-4)


def test_it_is_one_more_line_of_the_curve(results: Any, tmp_path: Any) -> None:
    curve = train(make_acts(), ensemble=True)
    line, alone = curve.baselines[-1], pk.ensemble(results)
    assert line.name == "ensemble"
    assert line.metrics["test"] == pytest.approx(alone.metrics["test"])
    assert curve.meta["ensemble"]["members"] == alone.members
    assert curve.meta["ensemble"]["over"] == pytest.approx(line.metrics["test"]["accuracy"] - curve.estimate[0])
    assert curve.layers == results.layers
    assert curve.meta["lead"] == results.meta["lead"]  # it is no rival
    table = curve.to_frame()
    own = table[(table["kind"] == "ensemble") & (table["metric"] == "accuracy") & (table["split"] == "test")]
    assert own["value"].item() == line.metrics["test"]["accuracy"]
    loaded = pk.ProbeResults.load(curve.save(tmp_path / "r"))
    assert loaded.meta["ensemble"] == curve.meta["ensemble"]
    assert "Ensemble of the layers that validation chose" in loaded.summary()


@pytest.mark.parametrize("n_classes", [0, 3])
def test_several_classes_and_numbers_have_ensembles(n_classes: int) -> None:
    results = train(make_acts(n_classes=n_classes), ensemble=True)
    name = results.headline
    found = pk.ensemble(results)
    assert found.metrics["test"] == pytest.approx(results.baselines[-1].metrics["test"])
    assert found.metrics["test"][name] > results.best.metrics["test"][name]


def test_seeds_and_probes_are_members_by_name() -> None:
    acts = make_acts()
    curves = train(acts, probes=["logistic", "lda"])
    found = pk.ensemble(curves, of="layers")
    assert len(found.meta["candidates"]) == 8
    assert {name.split()[0] for name in found.meta["candidates"]} == {"logistic", "lda"}
    seeds = [train(make_acts(seed=seed)) for seed in (1, 2, 3)]
    mixed = pk.ensemble(seeds)
    assert len(mixed.meta["candidates"]) == 3
    assert mixed.metrics["validation"]["accuracy"] >= max(one.best.metrics["validation"]["accuracy"] for one in seeds)
    same = pk.ensemble([seeds[0]] * 3)  # three times the same is that one
    assert same.metrics["test"]["accuracy"] == seeds[0].best.metrics["test"]["accuracy"]
    assert np.isfinite(mixed.to_frame()["value"].to_numpy()).all()


def test_ties_go_to_fewer_members(results: Any) -> None:
    rows = results.rows
    scores = rows.scores["resid_pre.0"]
    found = choose_members({"a": scores, "b": scores.copy(), "c": scores.copy()}, rows, "accuracy", 2)
    assert found.names == ["a"]


def test_what_makes_no_ensemble_is_refused(results: Any) -> None:
    bare = make_acts()
    splits = np.where(bare.splits == "validation", "train", bare.splits)
    bare.task = replace(bare.task, splits=splits)
    for make, error, words in (
        (lambda: train(bare, ensemble=True), UsageError, "chosen on validation rows, and the task has none"),
        (lambda: pk.ensemble(train(bare)), UsageError, "the task has none"),
        (lambda: train(make_acts(), ensemble=True, folds=3), UsageError, "exclude each other"),
        (lambda: pk.ensemble([]), UsageError, "results of train_probes, or a list"),
        (lambda: pk.ensemble("runs"), UsageError, "results of train_probes, or a list"),
        (lambda: pk.ensemble(results, of="seeds"), UsageError, "is one of layers, best"),
        (
            lambda: pk.ensemble([results, train(make_acts(n_classes=3))]),
            DataError,
            "other rows, labels or",
        ),
        (lambda: pk.ensemble([results, train(make_acts(), metric="auroc")]), DataError, "another metric"),
    ):
        with pytest.raises(error, match=words):
            make()
