"""Probes by class and instance, and scikit-learn's estimators, against the same estimators fitted directly."""

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LogisticRegression, Perceptron
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError, UsageError
from probekit.evaluation import DEFAULT_C, ProbeResults, TransferResults, transfer
from probekit.evaluation.fits.protocol import fold_protocol
from probekit.probes import KSparseProbe, LogisticProbe, RidgeProbe
from probekit.tasks.base import Task
from probekit.tasks.quality.duplicates import linked_texts
from probekit.verbs.train_probes import train_probes

BARE: dict[str, Any] = {"baselines": False, "controls": 0, "codelength": False}
CLASSIFIERS = [
    LogisticRegression(C=0.1),
    make_pipeline(StandardScaler(), LogisticRegression(C=0.01)),
    RandomForestClassifier(n_estimators=7, random_state=0),
    KNeighborsClassifier(4),
    DecisionTreeClassifier(max_depth=3, random_state=0),
    Perceptron(random_state=0),
    SVC(C=0.5),
]


class FewSteps(LogisticProbe):
    """A probe with a parameter that has no default."""

    def __init__(self, max_iter: int, C: float = 1.0):
        super().__init__(C=C, max_iter=max_iter)


def rows(acts: ActivationSet, place: Any, which: np.ndarray) -> np.ndarray:
    return acts[place].numpy()[which]


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda estimator: type(estimator).__name__)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_each_layer_has_the_accuracy_of_the_estimator_fitted_directly(world, estimator, n_classes):
    acts = world(n_classes=n_classes)
    y, splits = acts.labels["kind"], acts.splits
    results = train_probes(acts, probe=estimator, layers="0-2", **BARE)
    for layer in results.layers:
        place = (layer.point, layer.layer)
        direct: Any = clone(estimator).fit(rows(acts, place, splits == "train"), y[splits == "train"])
        for split in ("train", "validation", "test"):
            own = splits == split
            expected = direct.score(rows(acts, place, own), y[own])
            assert layer.metrics[split]["accuracy"] == pytest.approx(expected)
        if n_classes == 2:
            X = rows(acts, place, splits == "test")
            scores = (
                direct.decision_function(X) if hasattr(direct, "decision_function") else direct.predict_proba(X)[:, 1]
            )
            assert layer.metrics["test"]["auroc"] == pytest.approx(roc_auc_score(y[splits == "test"], scores))
        assert (layer.C, layer.tried[0][0], layer.gap, layer.converged) == (None, None, None, True)
    assert not hasattr(estimator, "classes_")


def test_folds_fit_the_estimator_on_each_round_s_rows(world):
    acts = world(n=120)
    estimator, y = DecisionTreeClassifier(max_depth=2, random_state=0), acts.labels["kind"]
    results = train_probes(acts, probe=estimator, folds=3, layers=2, **BARE)
    right = np.zeros(120, dtype=bool)
    for each in fold_protocol(y, linked_texts(acts.inputs), 3, 0).rounds:
        train = np.setdiff1d(np.arange(120), each.test)
        direct: Any = clone(estimator)
        direct.fit(rows(acts, ("resid_pre", 2), train), y[train])
        right[each.test] = direct.predict(rows(acts, ("resid_pre", 2), each.test)) == y[each.test]
    assert results.layers[0].metrics["test"]["accuracy"] == pytest.approx(right.mean())


def numbers(n: int = 240) -> ActivationSet:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5)).astype(np.float32)
    splits = np.array(["train", "train", "validation", "test"])[np.arange(n) % 4]
    task = Task(
        "years",
        [f"text {i}" for i in range(n)],
        {"year": 3 * X[:, 0] + rng.normal(size=n)},
        {"year": []},
        splits,
        "year",
    )
    return ActivationSet({("resid_pre", 0): torch.from_numpy(X), ("resid_pre", 1): torch.from_numpy(X[:, 1:])}, task)


@pytest.mark.parametrize("estimator", [Lasso(0.1), DecisionTreeRegressor(max_depth=4, random_state=0)], ids=str)
def test_each_layer_has_the_r2_of_the_regressor_fitted_directly(estimator):
    acts = numbers()
    y, train, test = acts.labels["year"], acts.splits == "train", acts.splits == "test"
    results = train_probes(acts, probe=estimator, controls=0)
    assert results.headline == "r2"
    for layer in results.layers:
        direct: Any = clone(estimator)
        direct.fit(rows(acts, (layer.point, layer.layer), train), y[train])
        expected = r2_score(y[test], direct.predict(rows(acts, (layer.point, layer.layer), test)))
        assert layer.metrics["test"]["r2"] == pytest.approx(expected)


def test_results_of_an_estimator_say_what_they_lack_and_come_back_without_probes(world, tmp_path):
    results = train_probes(world(), probe=RandomForestClassifier(3, random_state=0, max_depth=2), layers="1-2")
    assert results.best.probe.estimator_.n_features_in_ == 8
    record = results.meta["estimator"]
    assert record["class"] == "sklearn.ensemble._forest.RandomForestClassifier"
    assert (record["certified"], record["saved"]) == (False, False)
    assert (record["parameters"]["n_estimators"], record["parameters"]["max_depth"]) == (3, 2)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert results.meta["probe"] == "RandomForestClassifier(max_depth=2, n_estimators=3, random_state=0)"
    assert "probe (no convergence certificate, fitted probes are not saved); 150 train" in results.summary()
    assert results.meta["code"] is None
    loaded = ProbeResults.load(results.save(tmp_path / "results"))
    assert loaded == results
    assert not (tmp_path / "results" / "probes").exists()
    assert loaded.best.probe is None
    assert loaded.summary() == results.summary()


def test_a_fit_that_warns_is_not_converged(world):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = train_probes(world(), probe=LogisticRegression(max_iter=1), layers=0, **BARE)
    assert (results.layers[0].converged, results.layers[0].late) == (False, ["probe"])
    with pytest.warns(ConvergenceWarning):
        LogisticRegression(max_iter=1).fit(*([[0.0], [1.0], [3.0]], [0, 1, 1]))


def test_an_instance_keeps_its_parameters_and_its_class_has_the_default_ones(world):
    acts = world()
    few = train_probes(acts, probe=KSparseProbe(k=2), layers=2, **BARE)
    assert np.count_nonzero(few.best.probe.coef_) == 2
    assert (few.meta["probe"], few.meta["C"]) == ("k-sparse-2", list(DEFAULT_C))
    assert few.meta["estimator"]["parameters"] == {"C": 1.0, "k": 2, "method": "mean-difference"}
    named, classed = (train_probes(acts, probe=probe, layers=2, **BARE) for probe in ("ridge", RidgeProbe))
    assert named == classed
    assert named.meta["probe"] == "ridge"


def test_an_instance_s_own_C_is_the_only_one_tried_unless_C_is_given(world):
    own = train_probes(world(), probe=LogisticProbe(C=0.25), layers=2, **BARE)
    assert (own.meta["C"], own.best.C) == ([0.25], 0.25)
    given = train_probes(world(), probe=LogisticProbe(C=0.25), C=[0.1, 1], layers=2, **BARE)
    assert given.meta["C"] == [0.1, 1]
    assert train_probes(world(), probe=FewSteps(100), layers=2, **BARE).meta["C"] == list(DEFAULT_C)


def with_capabilities(**capabilities: Any) -> type[LogisticProbe]:
    return type("Changed", (LogisticProbe,), capabilities)


def test_capabilities_of_the_class_decide_what_is_fitted_and_measured(world):
    how: dict[str, Any] = {"layers": 2, "baselines": False, "controls": 0}
    acts = world(n_classes=3)
    plain = train_probes(acts, C=1, **how).best
    assert train_probes(acts, probe=with_capabilities(for_codelength=False), C=1, **how).meta["code"] is None
    fixed = train_probes(acts, probe=with_capabilities(has_C=False), **how)
    assert (fixed.meta["C"], fixed.best.C, fixed.best.metrics) == (None, None, plain.metrics)
    scored = train_probes(acts, probe=with_capabilities(log_odds=False), C=1, **how).best.metrics["test"]
    assert plain.metrics["test"].keys() - scored.keys() == {"brier", "ece"}
    with pytest.raises(UsageError, match="predicts numbers, and 'kind' has classes"):
        train_probes(acts, probe=with_capabilities(predicts="numbers"), **how)


@pytest.mark.parametrize("capabilities", [{"linear": False}, {"linear": False, "by_score": False}], ids=str)
def test_the_way_to_a_decision_changes_no_score(world, capabilities):
    acts = world(n_classes=3)
    plain, changed = (
        train_probes(acts, probe=probe, layers=2, C=1, **BARE).best.metrics
        for probe in (LogisticProbe, with_capabilities(**capabilities))
    )
    for split, scores in plain.items():
        assert changed[split] == pytest.approx(scores)


def test_a_saved_class_is_one_that_can_be_read_again(world, tmp_path):
    class Mine(LogisticProbe):
        pass

    results = train_probes(world(), probe=Mine, layers=2, C=1, **BARE)
    assert isinstance(results.best.probe, Mine)
    assert results.meta["estimator"]["saved"] is False
    assert "Mine() probe (fitted probes are not saved)" in results.summary()
    assert ProbeResults.load(results.save(tmp_path / "results")).best.probe is None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"probe": SVC(), "C": 1}, r"SVC\(\) has no C; leave it out"),
        ({"probe": Lasso()}, r"Lasso\(\) predicts numbers, and 'kind' has classes"),
        ({"probe": 3}, "probe must be a name"),
        ({"probe": "mean-diff", "C": 1}, "the probe mean-diff has no C; leave it out"),
    ],
)
def test_probes_that_cannot_be_are_refused(world, how, message):
    with pytest.raises(UsageError, match=message):
        train_probes(world(), **how)


def test_estimators_transfer(world, tmp_path):
    def named(name: str, seed: int) -> ActivationSet:
        acts = world(seed=seed)
        return ActivationSet(dict(acts), replace(acts.task, name=name))

    sets = [named("a", 0), named("b", 1)]
    estimator = DecisionTreeClassifier(max_depth=2, random_state=0)
    results = transfer(sets, probe=estimator, layers=2)
    test, train = (sets[1].splits == "test", sets[0].splits == "train")
    direct: Any = clone(estimator)
    direct.fit(rows(sets[0], ("resid_pre", 2), train), sets[0].labels["kind"][train])
    expected = direct.score(rows(sets[1], ("resid_pre", 2), test), sets[1].labels["kind"][test])
    assert results.matrix[0, 1] == pytest.approx(expected)
    assert TransferResults.load(results.save(tmp_path / "transfer")) == results


@pytest.mark.parametrize("probe", ["logistic", "ridge", "mean-diff"])
@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_float64_features_that_cannot_be_squared_are_refused(world, probe, size):
    acts = world()
    acts = ActivationSet({place: x.double() * size for place, x in acts.items()}, acts.task)
    with pytest.raises(DataError, match="multiply all features by one constant"):
        train_probes(acts, probe=probe, baselines=False)


@pytest.mark.parametrize("probe", ["logistic", "mlp", KNeighborsClassifier()], ids=str)
def test_probes_of_results_know_the_names_of_the_task(world, probe, tmp_path):
    acts = world(n_classes=3)
    results = train_probes(acts, probe=probe, layers=[2], controls=0, codelength=False, baselines=False)
    names, X = acts.label_names["kind"], acts["resid_pre", 2]
    best = results.best.probe
    assert best.label_names_.tolist() == names
    assert best.predict_labels(X).tolist() == [names[i] for i in best.predict(X)]
    results.save(tmp_path)
    if best.saveable:
        loaded = ProbeResults.load(tmp_path).best.probe
        assert loaded.predict_labels(X).tolist() == best.predict_labels(X).tolist()
