"""A quick look: the same fits, scores and intervals; what is left out is said, and what is asked for by name is not."""

import json
from typing import Any

import numpy as np
import pytest

from probekit.evaluation import ProbeResults
from probekit.options import ProbeOptions
from probekit.verbs.train_probes import train_probes

FAST: Any = {"C": [0.01, 1], "layers": [0, 2]}
ALL_OUT = ["control tasks", "code length", "bag-of-words and length baselines", "near-duplicate search", "p-values"]


@pytest.fixture(scope="module")
def quick(world) -> ProbeResults:
    return train_probes(world(n=120), **FAST, quick=True)


@pytest.fixture(scope="module")
def complete(world) -> ProbeResults:
    return train_probes(world(n=120), **FAST, controls=1)


def test_scores_and_intervals_are_those_of_the_complete_results(quick: ProbeResults, complete: ProbeResults) -> None:
    for one, other in zip(quick.layers, complete.layers, strict=True):
        assert (one.C, one.in_best_set, one.converged) == (other.C, other.in_best_set, other.converged)
        assert one.metrics["test"] == pytest.approx(other.metrics["test"], abs=1e-6)
        for name, ends in other.intervals.items():
            assert one.intervals[name] == pytest.approx(ends, abs=1e-4)
        np.testing.assert_allclose(one.probe.coef_, other.probe.coef_, atol=1e-2)
        assert (one.p_value, one.control, one.selectivity, one.codelength) == (None,) * 4
    assert quick.best.place == complete.best.place
    kept = [baseline for baseline in complete.baselines if baseline.name in ("majority", "embedding")]
    assert quick.baselines == kept


def test_what_was_left_out_is_said_everywhere(quick: ProbeResults, complete: ProbeResults, tmp_path) -> None:
    assert quick.meta["left_out"] == ALL_OUT
    sentence = (
        "Quick look without control tasks, code length, bag-of-words and length baselines, near-duplicate search and "
        "p-values: run again without --quick (quick=True) for them."
    )
    assert sentence in quick.summary().splitlines()[2]
    assert sentence in quick._repr_html_()
    assert "minus the best of these baselines" in quick.summary()
    assert json.loads((quick.save(tmp_path) / "results.json").read_text())["meta"]["left_out"] == ALL_OUT
    assert ProbeResults.load(tmp_path).summary() == quick.summary()
    axes = quick.plot()
    assert "quick look without control tasks" in " ".join(text.get_text() for text in axes.texts).replace("\n", " ")
    assert complete.meta["left_out"] == []
    assert "uick" not in complete.summary()
    assert (quick.meta["no_p_values"], quick.meta["p_max"]) == ("a quick look leaves them out", None)


def test_no_number_of_near_duplicates_is_claimed(quick: ProbeResults, complete: ProbeResults) -> None:
    """Exact duplicates are counted; a 0 for the others would say that there are none."""
    for results, near in ((quick, False), (complete, True)):
        audit = results.meta["audit"]
        assert (audit["near"] is not None) == near
        assert all((one["near"] is not None) == near for one in audit["shared"].values())
        assert all(one["exact"] == 0 for one in audit["shared"].values())


def test_a_number_that_is_asked_for_wins(world) -> None:
    inputs = [f"text {i // 2}" for i in range(120)]  # neighbours are in different splits
    asked: Any = {"controls": 2, "codelength": True, "baselines": True, "drop_leaks": True}
    splits = np.array(["train", "train", "train", "validation", "test"])[np.arange(120) % 5]
    results = train_probes(world(n=120, inputs=inputs, splits=splits), **FAST, quick=True, **asked)
    assert results.meta["left_out"] == ["p-values"]
    assert results.meta["control"]["asked"] == 2
    assert results.layers[0].codelength is not None
    assert "bag-of-words" in [baseline.name for baseline in results.baselines]
    assert results.meta["audit"]["near"] is not None


def test_only_what_would_have_been_computed_is_left_out(world) -> None:
    folds = train_probes(world(n=120), **FAST, quick=True, folds=3, probe="ridge")
    assert folds.meta["left_out"] == ["control tasks", "bag-of-words and length baselines"]
    bare = train_probes(world(n=120), **FAST, quick=True, intervals=False, baselines=False)
    assert bare.meta["left_out"] == ["control tasks", "code length", "near-duplicate search"]
    assert bare.baselines == []


def test_options_say_what_is_computed() -> None:
    for quick, usual in ((False, (3, True, True)), (True, (0, False, None))):
        options = ProbeOptions(quick=quick)
        assert (options.controls, options.codelength, options.baselines) == usual
        assert ProbeOptions(**vars(options)) == options
    assert ProbeOptions(quick=True, controls=3).controls == 3  # although 3 is also what complete results have


def test_several_curves_say_it_once(world) -> None:
    curves = train_probes(world(n=120), **FAST, quick=True, labels="all")
    assert curves.summary().count("Quick look without control tasks") == 1
