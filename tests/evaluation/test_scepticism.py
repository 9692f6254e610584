"""What a sceptic asks of a curve: leaks, folds, controls, code lengths, chance, imbalance, unconverged fits."""

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import KFold

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError, UsageError
from probekit.evaluation import ProbeResults
from probekit.evaluation.compare.controls import selectivity
from probekit.evaluation.curve import fit_places
from probekit.evaluation.request import DEFAULT_C
from probekit.evaluation.results.report import footnotes
from probekit.probes import PROBES, LogisticProbe
from probekit.tasks.base import Task
from probekit.verbs.train_probes import train_probes

BARE: dict[str, Any] = {"baselines": False, "controls": 0, "codelength": False}
SPLITS = np.array(["train", "train", "validation", "test"])


def set_of(X, labels, names, **task: Any) -> ActivationSet:
    n = len(labels)
    task = {"inputs": [f"sentence {i} of many" for i in range(n)], "splits": SPLITS[np.arange(n) % 4]} | task
    whole = Task("made", labels={"kind": labels}, label_names={"kind": names}, target="kind", **task)
    return ActivationSet({("resid_pre", i): torch.from_numpy(x.astype(np.float32)) for i, x in enumerate(X)}, whole)


def types_world(rule: bool, n=400, n_types=40, D=60, seed=0) -> ActivationSet:
    """Activations that show which of 40 words is read, and, if there is a rule, more loudly the word's class."""
    rng = np.random.default_rng(seed)
    types = rng.integers(n_types, size=n)
    labels = types % 2 if rule else rng.permutation(np.arange(n_types) % 2)[types]
    X = np.eye(n_types, D)[types] * 4 + rng.normal(size=(n, D)) * 0.3
    if rule:
        X[:, -1] = 12 * (2 * labels - 1)
        X[:, :n_types] = rng.normal(size=(n, n_types))
    return set_of([X], labels, ["even", "odd"], inputs=[f"row {i} word{k}" for i, k in enumerate(types)])


def first(results) -> Any:
    """The first place's result, whose optional parts are there."""
    return results.layers[0]


def test_selectivity_is_near_zero_for_words_by_heart_and_high_for_a_rule():
    heart, rule = (first(train_probes(types_world(rule), C=1, baselines=False)) for rule in (False, True))
    assert heart.metrics["test"]["accuracy"] > 0.9
    assert abs(heart.selectivity) < 0.1
    assert rule.metrics["test"]["accuracy"] > 0.9
    assert rule.selectivity > 0.3
    assert rule.control == pytest.approx(rule.metrics["test"]["accuracy"] - rule.selectivity)


def test_a_memorising_mlp_does_as_well_on_the_control_task():
    """Labels by the word alone, which the probe sees: what it learns of them it learns of random ones as well."""
    heart = first(train_probes(types_world(False), probe="mlp", baselines=False))
    assert heart.metrics["test"]["accuracy"] > 0.9
    assert heart.control > 0.85
    assert abs(heart.selectivity) < 0.1


UNIT = "last word of a text (the token that is read was not recorded)"
WORDS = {"type": "word", "unit": UNIT}


def without_ceiling(results: ProbeResults) -> dict[str, Any]:
    """The record of the control task; `test_ceilings` states what its ceiling is."""
    assert 0 < results.meta["control"]["ceiling"] <= 1
    return {key: value for key, value in results.meta["control"].items() if key != "ceiling"}


def test_the_control_is_that_of_the_words_and_can_be_left_out():
    acts = types_world(True)
    told = train_probes(acts, C=1, controls=2, baselines=False)
    assert without_ceiling(told) == {**WORDS, "draws": 2, "asked": 2, "seen": 0.94, "C": "label"}
    assert f"Control task: a random label for each distinct {UNIT}, mean of 2 draws; 94% of" in told.summary()
    assert " control  selectivity" in told.summary()
    bare = train_probes(acts, C=1, **BARE)
    assert bare.meta["control"] is None
    assert (bare.layers[0].control, bare.layers[0].selectivity, bare.layers[0].codelength) == (None, None, None)
    alike = set_of(
        [np.random.default_rng(0).normal(size=(40, 3))], np.arange(40) // 4 % 2, ["a", "b"], inputs=["x ."] * 40
    )
    told = train_probes(alike, C=1, baselines=False)
    assert told.meta["control"] == {"type": None, "unit": None, "draws": 0, "asked": 3, "seen": 0.0, "C": "label"}
    assert "No control task: no texts" in told.summary()


def test_words_that_train_never_saw_measure_no_memory(world):
    results = train_probes(world(), C=1, layers=2, baselines=False, codelength=False)
    assert without_ceiling(results) == {**WORDS, "draws": 3, "asked": 3, "seen": 0.0, "C": "label"}
    assert results.layers[0].control is not None
    assert results.layers[0].selectivity is None
    assert "only 0% of the test rows have a word seen in train" in results.summary()


def test_no_skill_is_no_merit_of_a_regression():
    assert selectivity(0.6, 0.2, "r2") == pytest.approx(0.4)
    assert selectivity(-0.3, 0.2, "r2") == pytest.approx(-0.2)
    assert selectivity(0.6, -0.5, "r2") is None
    assert selectivity(0.4, 0.5, "accuracy") == pytest.approx(-0.1)


@pytest.mark.parametrize("who", ["control", "code"])
def test_late_fits_of_controls_and_code_are_marked_and_choose_nothing(world, monkeypatch, who):
    acts = world(inputs=[f"text {i} word{i % 9}" for i in range(300)])
    how: dict[str, Any] = {"C": 1.0, "layers": "0-2", "baselines": False}
    plain = train_probes(acts, **how)

    class Late(LogisticProbe):
        def fit_many(self, X, problems):  # pyright: ignore[reportIncompatibleMethodOverride]
            probes = super().fit_many(X, problems)
            is_code = len(probes) == 1  # one prefix; else the target and three draws
            for i in range(0 if is_code else 1, len(probes)) if is_code == (who == "code") else []:
                probes[i].converged_, probes[i].gap_ = False, 0.5
            return probes

    monkeypatch.setitem(PROBES, "logistic", Late)
    results = train_probes(acts, **how)
    assert results.best.place == plain.best.place
    for one, other in zip(results.layers, plain.layers, strict=True):
        assert (one.converged, one.gap, one.late) == (False, 0.5, [who])
        assert (other.converged, other.late) == (True, [])
    assert f"Not converged: resid_pre.0 ({who}), " in results.summary()


def test_the_code_mixes_both_ends_of_a_long_grid(world):
    for grid, mixed in [
        (DEFAULT_C, [1e-4, 1e-2, 1, 1e2, 1e4]),
        ([1, 2, 3, 4, 5, 6], [1, 2, 3, 5, 6]),
        ([1, 2], [1, 2]),
    ]:
        results = train_probes(world(n=120), layers=0, C=grid, controls=0, baselines=False)
        assert results.meta["code"]["C"] == mixed


def test_a_simple_rule_is_a_shorter_code_than_random_labels(world):
    simple, noise = world(strength=(1.5,) * 5), world(strength=(0,) * 5)
    codes = [first(train_probes(acts, layers=0, controls=0, baselines=False)).codelength for acts in (simple, noise)]
    assert codes[0]["uniform_bits"] == codes[1]["uniform_bits"] == pytest.approx(150)
    assert codes[0]["bits"] < 0.6 * codes[1]["bits"]
    assert codes[1]["compression"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("probe", ["ridge", "mean-diff"])
def test_only_the_logistic_probe_has_a_code(world, probe):
    assert train_probes(world(), layers=0, probe=probe, baselines=False, controls=0).layers[0].codelength is None


def leaky(n=200) -> ActivationSet:
    rng = np.random.default_rng(0)
    labels = np.arange(n) // 4 % 2
    inputs = [f"{'pqrstuvwxyz'[i % 11]}{i * i * 31 % 1009} a {i} sentence b{i} alone c{i}" for i in range(n)]
    inputs[1], inputs[5] = inputs[3], inputs[2]  # train rows equal to a test and a validation row
    return set_of([rng.normal(size=(n, 4)) + labels[:, None]], labels, ["a", "b"], inputs=inputs)


def test_leaks_are_told_and_dropped_when_asked():
    acts = leaky()
    kept, dropped = (train_probes(acts, C=1, drop_leaks=drop, **BARE) for drop in (False, True))
    assert kept.meta["n"] == {"train": 100, "validation": 50, "test": 50}
    assert dropped.meta["n"] == {"train": 98, "validation": 50, "test": 50}
    assert kept.meta["audit"]["shared"]["test in train"]["exact"] == 1
    assert "1 of the 50 test texts also occurs in train" in kept.summary()
    assert "rows that leak: 2 of train, leave them out with drop_leaks" in kept.summary()
    assert "1 of the 50 test texts also occurs in train, where they were left out" in dropped.summary()
    assert "rows that leak: 2 of train, left out" in dropped.summary()
    assert sum(dropped.meta["counts"]["train"].values()) == 98
    rows = np.flatnonzero(acts.splits == "train")
    rows = rows[~np.isin(rows, [1, 5])]
    alone = LogisticProbe(C=1).fit(acts["resid_pre", 0][torch.from_numpy(rows)], acts.labels["kind"][rows])
    np.testing.assert_allclose(dropped.layers[0].probe.coef_, alone.coef_, rtol=1e-2, atol=1e-2)


def test_what_is_left_after_the_leaks_must_be_enough():
    labels = np.arange(16) // 4 % 2
    inputs = ["text of the kind" if label else f"sort {i}" for i, label in enumerate(labels)]
    acts = set_of([np.random.default_rng(0).normal(size=(16, 3))], labels, ["a", "b"], inputs=inputs)
    with pytest.raises(DataError, match=r"left by --drop-leaks .*: every split needs .*b=0"):
        train_probes(acts, drop_leaks=True, **BARE)
    alike = set_of([np.zeros((16, 3))], labels, ["a", "b"], inputs=["one text"] * 16)
    with pytest.raises(
        DataError,
        match="every text or group of train is also in a later split, so --drop-leaks",
    ):
        train_probes(alike, drop_leaks=True, **BARE)


def test_folds_use_every_row_and_tell_how_the_whole_procedure_does(world):
    acts = world(n=120)
    results = train_probes(acts, folds=4, C=[0.01, 1])
    assert results.meta["folds"] == 4
    assert results.meta["n"] == {"test": 120}
    assert all(set(layer.metrics) == {"validation", "test"} for layer in results.layers)
    assert results.layers[2].metrics["test"]["accuracy"] > 0.9
    assert abs(results.layers[0].metrics["test"]["accuracy"] - 0.5) < 0.2
    procedure = results.meta["procedure"]
    assert len(procedure["layers"]) == 4
    score = f"accuracy {procedure['metrics']['accuracy']:.3f}"
    assert f"Quote: nested cross-validation {score}, 95% interval [" in results.summary()
    assert "120 examples in 4 nested folds" in results.summary()
    assert "a curve, not estimates for a layer picked from it" in results.summary()
    assert not any(line.startswith("*") for line in results.summary().splitlines())
    assert repr(results) == f"ProbeResults(5 layers; nested cross-validation, {score})"
    told: Any = results.meta["optimism"]
    assert told["over"] == told["value"] - procedure["metrics"]["accuracy"]
    best: Any = results.best
    kept = best.probe
    whole = LogisticProbe(C=best.C).fit(acts[results.best.place], acts.labels["kind"])
    np.testing.assert_allclose(kept.coef_, whole.coef_, rtol=1e-2, atol=1e-2)


def test_a_fold_s_own_labels_change_none_of_its_predictions(world, monkeypatch):
    seen: list[Any] = []

    def spy(sources, plans, places, *more):
        (fitted,) = fit_places(sources, plans, places, *more)
        seen.append((plans[0].grid.protocol, fitted))
        return [fitted]

    monkeypatch.setattr(sys.modules["probekit.evaluation.set_fits"], "fit_places", spy)
    # folds that do not follow the labels, so that they stay when labels change
    monkeypatch.setattr("sklearn.model_selection.StratifiedKFold", KFold)
    acts = world(n=120, strength=(0.5,) * 5)
    how: dict[str, Any] = {"folds": 4, "C": [0.01, 1], "layers": "0-1", **BARE}
    train_probes(acts, **how)
    first = seen[0][0].rounds[0].test
    acts.labels["kind"][first] = np.random.default_rng(5).permutation(1 - acts.labels["kind"][first])
    train_probes(acts, **how)
    (one_protocol, one), (other_protocol, other) = seen
    np.testing.assert_array_equal(one_protocol.rounds[0].test, other_protocol.rounds[0].test)
    for a, b in zip(one.values(), other.values(), strict=True):
        mine, rest = slice(len(first)), slice(len(first), None)  # equal but for the solver's tolerance
        np.testing.assert_allclose(a.fit.test.scores[mine], b.fit.test.scores[mine], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(a.fit.test.predicted[mine], b.fit.test.predicted[mine])
        assert a.fit.by_round[0] == b.fit.by_round[0]
        assert not np.allclose(a.fit.test.scores[rest], b.fit.test.scores[rest], rtol=0.1)


def test_folds_need_every_class_in_every_training_part():
    labels = (np.arange(80) < 3).astype(np.int64)
    groups = np.maximum(np.arange(80), 2)
    acts = set_of([np.random.default_rng(0).normal(size=(80, 3))], labels, ["usual", "rare"], groups=groups)
    with pytest.raises(DataError, match=r"class 'rare' of 'kind' is missing from a training part of fold \d"):
        train_probes(acts, folds=4, **BARE)
    with pytest.raises(UsageError, match="3 or more"):
        train_probes(acts, folds=2, **BARE)


def test_groups_never_straddle_folds(world):
    acts = world(n=120, groups=np.arange(120) // 6)
    results = train_probes(acts, folds=3, C=1, layers=2, **BARE)
    assert results.meta["interval"]["unit"] == "group"


def late(monkeypatch, is_late):
    """Logistic probes of which some say that they did not converge."""

    class Late(LogisticProbe):
        def fit_many(self, X, problems):  # pyright: ignore[reportIncompatibleMethodOverride]
            probes = super().fit_many(X, problems)
            for probe, problem in zip(probes, problems.problems, strict=True):
                probe.converged_ = not is_late(problem.C)
            return probes

    monkeypatch.setitem(PROBES, "logistic", Late)


def test_what_did_not_converge_loses_against_what_did(world, monkeypatch):
    acts = world(strength=(0.8,) * 5)
    plain = train_probes(acts, layers=1, C=[1e-4, 0.1, 10], **BARE).layers[0]
    late(monkeypatch, lambda C: plain.C == C)
    marked = train_probes(acts, layers=1, C=[1e-4, 0.1, 10], **BARE).layers[0]
    assert marked.C != plain.C
    assert marked.converged


def test_where_nothing_converged_everything_says_so(world, monkeypatch, tmp_path):
    late(monkeypatch, lambda C: True)
    results = train_probes(world(), layers="1-2", C=[0.1, 1], **BARE)
    assert not any(layer.converged for layer in results.layers)
    assert "resid_pre.2 !" in results.summary()
    assert "Not converged: resid_pre.1, resid_pre.2" in results.summary()
    assert results.to_frame().query("kind == 'probe'")["converged"].tolist().count(True) == 0
    assert '"converged": false' in (results.save(tmp_path) / "results.json").read_text()


def test_an_unconverged_place_is_not_the_best_while_another_converged(world):
    results = train_probes(world(), C=1, **BARE)
    late = [[] if layer.place == "resid_pre.1" else ["probe"] for layer in results.layers]
    layers = [dataclasses.replace(x, converged=not y, late=y) for x, y in zip(results.layers, late, strict=True)]
    assert dataclasses.replace(results, layers=layers).best.place == "resid_pre.1"


def test_at_imbalance_the_headline_is_auroc():
    rng = np.random.default_rng(0)
    labels = (np.arange(400) // 4 % 10 == 0).astype(np.int64)
    acts = set_of([rng.normal(size=(400, 3)) + s * labels[:, None] for s in (0, 3)], labels, ["no", "yes"])
    results = train_probes(acts, C=[0.1, 1], baselines=False)
    assert results.headline == "auroc"
    layer: Any = results.layers[1]
    assert dict(layer.tried)[layer.C] == layer.metrics["validation"]["auroc"] == max(v for _, v in layer.tried)
    assert layer.band[0] <= layer.metrics["test"]["auroc"] <= layer.band[1]
    assert "test AUROC" in results.summary()
    assert "scored by AUROC, because one class has more than 80% of the training labels" in results.summary()


def test_chance_the_best_set_and_optimism_are_told(world):
    results = train_probes(world(), **BARE)
    meta: Any = results.meta
    layers: Any = results.layers
    assert meta["no_p_values"] is None
    assert layers[0].p_value > 0.01
    assert layers[2].p_value == meta["p_max"] == pytest.approx(1 / 1001)
    assert [layer.in_best_set for layer in layers][:2] == [False, False]
    assert max(layers, key=lambda layer: layer.metrics["test"]["accuracy"]).in_best_set
    assert all(layer.band[0] <= layer.metrics["test"]["accuracy"] <= layer.band[1] for layer in layers)
    top = max(layer.metrics["test"]["accuracy"] for layer in layers)
    over = top - results.best.metrics["test"]["accuracy"]
    assert meta["optimism"]["value"] == top
    assert meta["optimism"]["over"] == pytest.approx(over)
    lines = results.summary().splitlines()
    tied = {line.split()[1] for line in lines if line[1:2] == "="}
    assert "resid_pre.2" in tied
    assert tied == {x.place for x in layers if x.in_best_set}
    assert "= statistically tied with the best on test (95%, all layers jointly)" in results.summary()


def regression(n=240) -> ActivationSet:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6))
    years = 1900 + 30 * X[:, 0] + rng.normal(size=n)
    return set_of([rng.normal(size=(n, 6)), X], years, [])


@pytest.mark.parametrize("folds", [None, 4])
def test_numbers_are_predicted_too(folds, tmp_path):
    results = train_probes(regression(), folds=folds)
    assert (results.meta["probe"], results.headline, results.meta["n_classes"]) == ("ridge", "r2", 0)
    assert results.best.place == "resid_pre.1"
    assert results.best.metrics["test"]["r2"] > 0.95
    assert results.layers[0].metrics["test"]["r2"] < 0.2
    assert {"r2", "spearman", "mae"} <= set(results.best.metrics["test"])
    assert ("Quote: nested cross-validation R2" if folds else "Quote: test R2") in results.summary()
    results.save(tmp_path)
    assert type(results).load(tmp_path) == results


def test_a_probe_of_classes_refuses_numbers_and_says_what_to_take(world):
    with pytest.raises(UsageError, match=r"logistic predicts classes, and 'kind' holds a number.*take ridge"):
        train_probes(regression(), probe="logistic")


def test_random_weights_stand_beside_the_curve(world):
    acts, noise = world(), world(seed=9, strength=(0,) * 5)
    noise = ActivationSet(dict(noise), acts.task, acts.meta)
    seen: list[Any] = []
    results = train_probes(acts, C=1, random_init=noise, on_progress=lambda *x: seen.append(x), **BARE)
    assert seen == [(i + 1, 10) for i in range(10)]
    assert [layer.place for layer in results.random_init] == [layer.place for layer in results.layers]
    assert all(layer.probe is None and layer.converged for layer in results.random_init)
    assert max(layer.metrics["test"]["accuracy"] for layer in results.random_init) < 0.7
    assert "random init" in results.summary()
    assert set(results.to_frame()["kind"]) == {"probe", "random-init", "curve", "lead"}
    with pytest.raises(UsageError, match="other examples"):
        train_probes(acts, random_init=world(n=100), **BARE)
    with pytest.raises(UsageError, match="other examples, labels or splits"):
        train_probes(acts, random_init=world(seed=9), **BARE)  # of the same ids
    few = ActivationSet({("resid_pre", 0): acts["resid_pre", 0]}, acts.task)
    with pytest.raises(UsageError, match=r"no activations of resid_pre\.1"):
        train_probes(acts, random_init=few, **BARE)


def test_features_that_say_nothing_end_at_chance():
    labels = np.arange(80) // 4 % 2
    acts = set_of([np.zeros((80, 5)), np.full((80, 5), 1e3)], labels, ["a", "b"])
    results = train_probes(acts)
    assert all(layer.metrics["test"]["auroc"] == 0.5 for layer in results.layers)
    assert all(layer.converged for layer in results.layers)


def test_a_control_of_texts_is_at_chance_where_no_text_stands_twice(world):
    acts = world(n=600)
    results = train_probes(acts, C=[0.01, 1.0], control_type="text", codelength=False)
    record = {"type": "text", "unit": "text", "draws": 3, "asked": 3, "seen": 0.0, "C": "label"}
    assert without_ceiling(results) == record
    assert all(layer.selectivity is None for layer in results.layers)
    assert "selectivity" not in results.summary().lower()
    assert (
        "Control task: a random label for each distinct text, mean of 3 draws, at the label's C; above chance only"
        in results.summary()
    )
    controls: list[Any] = [layer.control for layer in results.layers]
    assert all(abs(control - 0.5) < 0.1 for control in controls)
    with pytest.raises(UsageError, match="got 'texts'; did you mean text"):
        train_probes(acts, control_type="texts")


def test_rows_that_are_all_alike_are_said_to_be(world):
    acts = world(n=200)
    alike = ActivationSet({("resid_pre", 0): torch.ones(200, 3), ("resid_pre", 1): acts["resid_pre", 1]}, acts.task)
    results = train_probes(alike, **BARE)
    assert "All weights are 0 at resid_pre 0: the rows are identical" in results.summary()
    assert all(layer.converged for layer in results.layers)


def test_the_note_of_the_permutation_test_names_the_question_it_answers(world):
    """For numbers an interval of R2 that includes 0 may stand beside a small p-value: the questions differ."""
    numbers = train_probes(regression(), C=[1.0], baselines=False)
    (note,) = [line for line in footnotes(numbers) if line.startswith("Permutation test")]
    assert "association with test labels" in note
    assert note.endswith("It does not test R2 > 0; the interval does.")
    (note,) = [line for line in footnotes(train_probes(world(), **BARE)) if line.startswith("Permutation test")]
    assert "R2" not in note


@pytest.mark.parametrize("folds", [None, 4])
def test_random_weights_that_do_better_than_every_baseline_are_what_is_led(world, folds):
    """The same activations as "random" weights: the lead over them is exactly 0, its interval that of equal answers."""
    acts = world()
    results = train_probes(acts, C=1, random_init=acts, folds=folds, controls=0, codelength=False)
    assert max(baseline.metrics["test"]["accuracy"] for baseline in results.baselines) < results.estimate[0]
    lead = results.meta["lead"]
    assert (lead["baseline"], lead["over"]) == ("random init", 0)
    assert lead["interval"][0] == pytest.approx(-lead["interval"][1])
    assert "minus the best baseline (random init): +0.000" in results.summary()
