"""Published protocols without validation rows: with one setting nothing is chosen, so all of train is fitted."""

import json
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.activations.activations import ActivationSet
from probekit.errors import UsageError
from probekit.evaluation import ProbeResults, TransferResults, transfer
from probekit.plots import save_plot
from probekit.verbs.train_probes import train_probes

BARE: dict[str, Any] = {"baselines": False, "controls": 0, "codelength": False}


def unvalidated(acts: ActivationSet, **changes: Any) -> ActivationSet:
    splits = np.where(acts.splits == "test", "test", "train")
    return ActivationSet(dict(acts), replace(acts.task, splits=splits, **changes))


@pytest.fixture
def acts(world) -> ActivationSet:
    numbers = np.random.default_rng(3).normal(size=300)
    made = unvalidated(world(inputs=[f"text {i} is number {i % 19}" for i in range(300)]))
    labels, names = {**made.labels, "number": numbers}, {**made.label_names, "number": []}
    return ActivationSet(dict(made), replace(made.task, labels=labels, label_names=names))


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_with_one_C_every_place_is_fitted_on_all_of_train_and_scored_on_test(acts):
    results = train_probes(acts, label="number", C=2.0, **BARE)
    assert results.meta["n"] == {"train": 225, "test": 75}
    assert results.meta["validation_carved"] is None
    train, y = acts.splits == "train", acts.labels["number"]
    for layer in results.layers:
        X = acts[layer.point, layer.layer].double().numpy()
        oracle = make_pipeline(StandardScaler(), Ridge(alpha=1 / 4)).fit(X[train], y[train])
        assert layer.metrics["test"]["r2"] == pytest.approx(oracle.score(X[~train], y[~train]), abs=1e-9)
        assert layer.metrics["train"]["r2"] == pytest.approx(oracle.score(X[train], y[train]), abs=1e-9)
        assert layer.metrics.keys() == {"train", "test"}
        assert layer.tried == []


@pytest.mark.parametrize("probe", ["mean-diff", "lda"])
def test_a_probe_without_C_needs_no_validation_either(acts, probe):
    assert train_probes(acts, probe=probe, layers="0-1", **BARE).meta["n"] == {"train": 225, "test": 75}


def test_of_several_layers_none_is_selected_and_best_says_so(acts):
    results = train_probes(acts, C=1, layers="0-1", **BARE)
    assert results.selected is None
    for what in ("best", "estimate"):
        with pytest.raises(UsageError, match=r"no layer was selected: the task has no validation split.*layers="):
            getattr(results, what)
    one = train_probes(acts, C=1, layers=1, **BARE)
    assert one.best is one.layers[0]
    assert one.estimate[0] == one.best.metrics["test"]["accuracy"]
    assert "nothing was selected" in one.summary()


@pytest.fixture
def full(acts) -> ProbeResults:
    noise = ActivationSet({place: -acts[place].flip(0) for place in acts}, acts.task)
    return train_probes(acts, C=1, random_init=noise)


def test_table_files_and_picture_live_without_a_selected_layer(full, tmp_path):
    text = full.summary()
    assert "Quote: nothing, as no layer was selected: the task has no validation split." in text
    assert "p = " in text  # of the best of all layers, which no selection is needed for
    assert "225 train, 75 test examples" in text
    assert not any(line.startswith("*") for line in text.splitlines())
    assert "selected on validation" not in text
    assert "validation" not in text.splitlines()[3]
    assert "font-weight:bold" not in full._repr_html_()
    assert repr(full) == "ProbeResults(5 layers; none selected, scored by test accuracy)"
    assert (full.meta["lead"], full.meta["optimism"], full.meta["chosen_on"]) == (None, None, None)
    frame = full.to_frame()
    assert set(frame["split"]) == {"train", "test"}
    assert not frame["selected"].dropna().any()
    save_plot(full, full.save(tmp_path))
    assert json.loads((tmp_path / "results.json").read_text())["best"] is None
    loaded = ProbeResults.load(tmp_path)
    assert loaded.layers == full.layers
    assert loaded.summary() == text


def test_the_bag_of_words_has_one_C_where_nothing_chooses(full):
    (bag,) = [baseline for baseline in full.baselines if baseline.name == "bag-of-words"]
    assert bag.C == 10
    assert bag.metrics.keys() == {"train", "test"}


def test_a_validation_split_that_is_there_still_selects_the_layer_with_one_C(world):
    results = train_probes(world(), C=1, **BARE)
    assert results.best is max(results.layers, key=lambda one: (one.metrics["validation"]["accuracy"], -one.loss))


def test_transfer_at_one_layer_and_C_carves_nothing(world, tmp_path):
    a, b = (unvalidated(world(seed=seed)) for seed in (0, 1))
    results = transfer([a, b], probe="mean-diff", layers=2)
    assert results.meta["validation_carved"] == [None, None]
    assert [cell.validation for cell in results.cells] == [None] * 4
    assert "nothing was selected" in results.summary()
    assert TransferResults.load(results.save(tmp_path)).cells == results.cells


def test_without_intervals_only_the_scores_stay(world):
    acts = world(inputs=[f"text {i} is number {i % 19}" for i in range(300)])
    full, quick = (train_probes(acts, C=[0.1, 1], layers="0-1", intervals=ask) for ask in (True, False))
    for one, other in zip(full.layers, quick.layers, strict=True):
        assert other == replace(one, intervals={}, band=None, in_best_set=None, p_value=None)
    assert quick.meta["lead"] == {**full.meta["lead"], "interval": None}
    assert quick.meta["interval"] is None
    assert quick.best.place == full.best.place
    assert "95%" not in quick.summary()
    assert not any(baseline.intervals for baseline in quick.baselines)
    assert train_probes(acts, folds=3, C=1, layers=0, intervals=False, **BARE).estimate[1] is None
    legend = quick.plot().get_legend_handles_labels()[1]
    assert not any("95%" in name for name in legend)
