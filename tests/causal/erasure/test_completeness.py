"""Fresh probes after an edit, on activations whose labels are planted in directions of their own."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from probekit.activations import ActivationSet
from probekit.causal.erasure.completeness import FreshProbes, fresh_probes, harmonic_mean, read_afresh
from probekit.causal.erasure.erase import fit_eraser, fit_leace_rows
from probekit.errors import DataError, UsageError
from probekit.points import Place
from probekit.tasks import Task

N, D = 480, 6
HERE, LATER = Place("resid_pre", 1), Place("resid_post", 1)


def planted() -> tuple[Task, Tensor]:
    """Class a in column 0, class b in column 1, the number c in column 2, and noise."""
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(0, 2, N), rng.integers(0, 3, N), rng.normal(size=N)
    x = rng.normal(size=(N, D)) * 0.3
    x[:, :3] += np.stack([3.0 * a, 2.0 * b, c], axis=1)
    words = np.array(["red", "green", "blue", "black", "white", "brown", "pink", "grey"])
    texts = [" ".join(words[rng.integers(0, 8, 9)]) for _ in range(N)]
    splits = np.resize(["train"] * 4 + ["validation", "test"], N)
    return Task("planted", texts, {"a": a, "b": b, "c": c}, splits=splits, target="a"), torch.from_numpy(x).float()


@pytest.fixture(scope="module")
def before() -> ActivationSet:
    task, x = planted()
    return ActivationSet({HERE: x, LATER: 2 * x}, task)


@pytest.fixture(scope="module")
def erased(before) -> FreshProbes:
    """The column of a is 0 here; at the later place the model has it again."""
    erased = before[HERE].clone()
    erased[:, 0] = 0
    return fresh_probes(before, ActivationSet({HERE: erased, LATER: before[LATER]}, before.task))


def test_an_erased_label_is_at_chance_and_the_others_stay(erased):
    here = [erased.completeness[0], erased.selectivity[0], erased.reliability[0]]
    assert here == pytest.approx([1, 1, 1], abs=0.25)  # of 160 rows: an accuracy at chance varies by 0.04
    assert erased.before.scores["a"].values[HERE] > 0.95
    low, high = erased.after.scores["a"].intervals[HERE]
    assert low < 0.5 < high
    assert {name: scores.metric for name, scores in erased.after.scores.items()} == {
        "a": "balanced_accuracy",
        "b": "balanced_accuracy",
        "c": "r2",
    }


def test_leace_removes_most_of_what_rows_that_it_never_saw_hold(before):
    """Not all: 320 rows give the class means to a tenth of a standard deviation."""
    after = ActivationSet({HERE: fit_eraser(before, HERE)(before[HERE])}, before.task)
    found = fresh_probes(before, after)
    assert found.completeness[0] > 0.75
    assert found.selectivity[0] > 0.9


def test_fitted_to_all_rows_leace_leaves_fresh_probes_nothing(before):
    """So what they read after an erasure that was fitted to some rows is its error, and not the measure's."""
    eraser = fit_leace_rows(before[HERE], before.labels["a"])
    found = fresh_probes(before, ActivationSet({HERE: eraser(before[HERE])}, before.task))
    low, high = found.completeness_intervals[0]
    assert low < 1 < high
    assert low > 0.7


def test_what_is_computed_again_later_shows_there(erased):
    assert (erased.places, erased.label) == ([HERE, LATER], "a")
    assert erased.completeness[1] == 0
    assert erased.reliability[1] == 0


def test_rows_that_the_edit_was_fitted_to_are_left_out(before, erased):
    """Whatever stands there changes nothing, and they may be absent."""
    rows = before.splits != "train"
    spoilt = before[HERE].clone()
    spoilt[:, 0] = 0
    spoilt[torch.from_numpy(~rows)] = 1e6
    found = read_afresh(ActivationSet({HERE: spoilt}, before.task))
    assert found.scores["a"].values[HERE] == erased.after.scores["a"].values[HERE]
    assert read_afresh(ActivationSet({HERE: spoilt[torch.from_numpy(rows)]}, before.task.subset(rows))) == found


def test_what_was_read_without_edits_serves_several_edits(before, erased):
    again = fresh_probes(erased.before, ActivationSet({LATER: before[LATER]}, before.task))
    assert (again.places, again.completeness, again.selectivity) == ([LATER], [0], [1])


def test_an_edit_of_everything_is_complete_and_not_selective(before):
    noise = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
    found = fresh_probes(before, ActivationSet({HERE: noise}, before.task))
    assert found.completeness[0] == pytest.approx(1, abs=0.3)
    assert found.selectivity[0] == pytest.approx(0, abs=0.3)
    assert found.reliability[0] < 0.4


def test_no_edit_keeps_everything(before):
    found = fresh_probes(before, ActivationSet({HERE: before[HERE]}, before.task))
    assert (found.completeness, found.selectivity) == ([0], [1])


def test_the_share_of_nothing_is_not_a_number(before):
    noise = torch.randn(N, D, generator=torch.Generator().manual_seed(1))
    nothing = ActivationSet({HERE: noise}, before.task)
    found = fresh_probes(nothing, nothing)
    assert all(map(math.isnan, [*found.completeness, *found.selectivity, *found.reliability]))


def test_a_label_set_with_a_rare_class_is_left_out_by_name(before):
    rare = np.zeros(N, dtype=int)
    rare[:2] = 1
    task = Task("t", before.inputs, {"a": before.labels["a"], "rare": rare}, splits=before.splits, target="a")
    acts = ActivationSet({HERE: before[HERE]}, task)
    found = fresh_probes(acts, acts)
    assert list(found.after.scores) == ["a"]
    assert "'rare'" in found.after.left_out["rare"]
    with pytest.raises(DataError, match="'rare'"):
        fresh_probes(acts, acts, "rare")


def test_bad_input_is_refused(before):
    only_here = ActivationSet({HERE: before[HERE]}, before.task)
    with pytest.raises(UsageError, match=r"no activations of resid_post\.1"):
        fresh_probes(only_here, before)
    with pytest.raises(UsageError, match=r"no activations of resid_post\.1 without the edit"):
        fresh_probes(read_afresh(only_here), before)
    some = ActivationSet({HERE: before[HERE][:400]}, before.task.subset(np.arange(400)))
    with pytest.raises(UsageError, match="test rows with the edit are others"):
        fresh_probes(some, only_here)
    kept = before.splits != "validation"
    without = ActivationSet({HERE: before[HERE][torch.from_numpy(kept)]}, before.task.subset(kept))
    with pytest.raises(DataError, match="and validation has no rows"):
        read_afresh(without)
    with pytest.raises(UsageError, match="no label set 'd'"):
        fresh_probes(before, before, "d")


@pytest.mark.parametrize(
    ("shares", "expected"), [((1, 1), 1), ((0.5, 1), 2 / 3), ((0, 0), 0), ((-0.2, 0.9), 0), ((1.2, 0.5), 2 / 3)]
)
def test_reliability_is_the_harmonic_mean_within_0_and_1(shares, expected):
    assert harmonic_mean(*shares) == pytest.approx(expected)
    assert math.isnan(harmonic_mean(math.nan, 1))
