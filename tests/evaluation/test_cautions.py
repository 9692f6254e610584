"""Leaks into test, and texts that were cut, are said beside the best score, in its table and in results.json."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError
from probekit.evaluation.results.cautions import cautions
from probekit.evaluation.results.report import footnotes
from probekit.evaluation.results.results import ProbeResults
from probekit.verbs.train_probes import train_probes

BARE: dict[str, Any] = {"C": 1, "baselines": False, "controls": 0, "codelength": False}


def copied(acts: ActivationSet, share: float, source: str, change: Callable[[str], str] = str) -> ActivationSet:
    """A share of the test texts is written over as many rows of another split."""
    inputs = list(acts.task.inputs)
    test, other = (np.flatnonzero(acts.splits == split) for split in ("test", source))
    for i, j in zip(test[: round(share * len(test))], other, strict=False):
        inputs[j] = change(inputs[i])
    return ActivationSet(dict(acts), dataclasses.replace(acts.task, inputs=inputs))


def long_texts(n: int = 400) -> list[str]:
    """Texts that share no three words in a row."""
    return [" ".join(f"w{i}x{k}" for k in range(20)) for i in range(n)]


def test_a_validation_split_equal_to_test_is_said_beside_best(world, tmp_path):
    results = train_probes(copied(world(n=400), 1.0, "validation"), **BARE)
    assert cautions(results) == ["100% of test texts are also in validation (--drop-leaks removes them)"]
    best = footnotes(results)[0]
    assert best.startswith("Quote: ")
    assert best.endswith("Caution: 100% of test texts are also in validation (--drop-leaks removes them).")
    results.save(tmp_path)
    leak = json.loads((tmp_path / "results.json").read_text())["meta"]["test_leak"]
    alone = {"group_rows": 0, "of_rows": 100, "removed": False}
    assert leak == {"texts": 100, "near": 0, "of_texts": 100, "also_in": ["validation"], **alone}
    assert cautions(ProbeResults.load(tmp_path)) == cautions(results)


def test_the_table_of_several_curves_says_it_once(world):
    curves = train_probes(copied(world(n=400), 1.0, "validation"), points="all", labels="all", **BARE)
    assert len(curves) > 1
    assert curves.summary().count("Caution: 100% of test texts are also in validation (--drop-leaks") == 1


def test_a_split_that_would_be_dropped_whole_is_refused(world):
    with pytest.raises(DataError, match="every text or group of validation is also in a later split, so --drop-leaks"):
        train_probes(copied(world(n=400), 1.0, "validation"), drop_leaks=True, **BARE)


def test_near_duplicates_count_and_dropping_leaks_ends_the_caution(world):
    acts = copied(world(n=400, inputs=long_texts()), 0.4, "train", lambda text: f"{text} more")
    kept, dropped = (train_probes(acts, drop_leaks=drop, **BARE) for drop in (False, True))
    assert cautions(kept) == ["40% of test texts are near-duplicates of train (--drop-leaks)"]
    assert (cautions(dropped), dropped.meta["test_leak"]["removed"]) == ([], True)
    assert "Caution" not in dropped.summary()


@pytest.mark.parametrize(("share", "found"), [(0.01, 0), (0.02, 1)])
def test_a_leak_of_one_percent_is_left_to_the_audit(world, share, found):
    results = train_probes(copied(world(n=400), share, "train"), **BARE)
    assert len(cautions(results)) == found
    assert "also occur" in results.summary()


def test_groups_that_test_shares_are_counted_once(world):
    """A quarter of the test rows has a group of train; half of these are copies of texts as well."""
    acts = world(n=400, inputs=long_texts())
    groups = np.arange(400)
    test, train = (np.flatnonzero(acts.splits == split) for split in ("test", "train"))
    groups[test[:25]] = groups[train[:25]]
    acts = ActivationSet(dict(acts), dataclasses.replace(acts.task, groups=groups))
    results = train_probes(copied(acts, 0.12, "train"), **BARE)
    assert cautions(results) == [
        "12% of test texts are also in train (--drop-leaks removes them)",
        "13% of test rows share a group with another split (--drop-leaks)",
    ]


def test_copies_and_near_duplicates_are_told_apart(world):
    """12% of test are copies of train; another 28% have one word more."""
    acts = copied(world(n=400, inputs=long_texts()), 0.4, "train", lambda text: f"{text} more")
    inputs: list[Any] = list(acts.task.inputs)
    for row in [i for i, text in enumerate(inputs) if text.endswith(" more")][:12]:
        inputs[row] = inputs[row].removesuffix(" more")
    results = train_probes(ActivationSet(dict(acts), dataclasses.replace(acts.task, inputs=inputs)), **BARE)
    assert cautions(results) == [
        "12% of test texts are also in train (--drop-leaks removes them)",
        "28% of test texts are near-duplicates of train (--drop-leaks)",
    ]
    assert (results.meta["test_leak"]["texts"], results.meta["test_leak"]["near"]) == (40, 28)


def test_folds_have_no_leak(world):
    results = train_probes(copied(world(n=400), 1.0, "validation"), folds=3, **BARE)
    assert (results.meta["test_leak"], cautions(results)) == (None, [])


@pytest.mark.parametrize(
    ("position", "read"),
    [
        ("last", ", and read there"),
        (-2, ", and read there"),
        ("first", " after the token read"),
        (3, " after the token read"),
        ("mean", ""),
        ("per example", ""),
    ],
)
def test_texts_that_were_cut_are_said(world, position, read):
    acts = world()
    cut = ActivationSet(dict(acts), acts.task, {**acts.meta, "cut": 108, "position": position}, acts.layout)
    results = train_probes(cut, **BARE)
    assert results.meta["texts_cut"]["of"] == 300
    assert cautions(results) == [f"108 of 300 texts were cut at the context{read}"]
    assert f"108 of 300 texts were cut at the context{read}." in results.summary()
    assert cautions(train_probes(acts, **BARE)) == []


def test_phrases_are_short_and_results_of_older_versions_have_none(world):
    results = train_probes(world(), **BARE)
    leak = {"texts": 999, "of_texts": 1000, "also_in": ["train", "validation"], "removed": False}
    worst = {**leak, "group_rows": 12_345, "of_rows": 12_345}
    cut = {"texts": 234_567, "of": 234_567, "read": "before"}
    phrases = cautions(dataclasses.replace(results, meta={**results.meta, "test_leak": worst, "texts_cut": cut}))
    assert phrases[0] == "99% of test texts are also in train or validation (--drop-leaks)"
    assert (len(phrases), max(map(len, phrases)) <= 70) == (3, True)
    older = {name: value for name, value in results.meta.items() if name not in ("test_leak", "texts_cut")}
    assert cautions(dataclasses.replace(results, meta=older)) == []
