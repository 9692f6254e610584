"""A task without validation rows: a part of train becomes validation, as `load_task` carves it."""

import csv
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError
from probekit.evaluation import transfer
from probekit.tasks import load_task
from probekit.verbs.train_probes import train_probes

BARE: dict[str, Any] = {"baselines": False, "controls": 0, "codelength": False}


def unvalidated(acts: ActivationSet) -> ActivationSet:
    splits = np.where(acts.splits == "test", "test", "train")
    return ActivationSet(dict(acts), replace(acts.task, splits=splits))


def test_a_task_without_validation_has_it_carved_and_is_told(world):
    acts = unvalidated(world())
    with pytest.warns(UserWarning, match="'planted' has no validation split: 22 of its 225 training rows choose"):
        results = train_probes(acts, seed=3, layers="0-1", **BARE)
    assert results.meta["n"] == {"train": 203, "validation": 22, "test": 75}
    assert results.meta["validation_carved"] == {"fraction": 0.1, "seed": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folds = train_probes(acts, folds=3, layers=0, **BARE)
    assert folds.meta["validation_carved"] is None
    assert not (acts.splits == "validation").any()


@pytest.mark.parametrize("seed", [0, 3])
def test_the_carved_rows_are_those_of_load_task(world, tmp_path: Path, seed: int):
    made = unvalidated(world(inputs=[f"text {i // 2}" for i in range(300)]))
    for split in ("train", "test"):
        rows = np.flatnonzero(made.splits == split)
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([("text", "label"), *((made.inputs[i], f"class {made.labels['kind'][i]}") for i in rows)])
    order = np.argsort(made.splits != "train", kind="stable")
    mine = ActivationSet({place: made[place][order] for place in made}, made.task.subset(order))
    loaded = ActivationSet(dict(mine), load_task(tmp_path, seed=seed))
    with pytest.warns(UserWarning, match="no validation split"):
        carved = train_probes(mine, layers="0-1", seed=seed, **BARE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = train_probes(loaded, layers="0-1", seed=seed, **BARE)
    assert carved.layers == expected.layers
    assert carved.meta["counts"] == expected.meta["counts"]


def test_random_weights_are_carved_alike(world):
    acts = unvalidated(world())
    noise = unvalidated(ActivationSet(dict(world(seed=9)), world().task))
    with pytest.warns(UserWarning, match="no validation split"):
        results = train_probes(acts, random_init=noise, layers=0, C=[0.1, 1], **BARE)
    assert len(results.random_init) == 1
    assert results.random_init[0].metrics.keys() == {"train", "validation", "test"}


def test_transfer_carves_each_task_that_has_no_validation(world):
    a, b = (unvalidated(world(seed=seed)) for seed in (0, 1))
    with pytest.warns(UserWarning, match="no validation split"):
        results = transfer([a, b], probe="mean-diff")
    assert results.meta["validation_carved"] == [{"fraction": 0.1, "seed": 0}] * 2
    assert [n["validation"] for n in results.meta["n"]] == [22, 22]


def test_nothing_is_carved_where_nothing_is_trained(world):
    acts = world()
    tests = ActivationSet(dict(acts), replace(acts.task, splits=np.full(300, "test")))
    with pytest.raises(DataError, match="every split needs every class"):
        train_probes(tests)
