from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.evaluation.compare.controls import with_every_class
from probekit.evaluation.fits.fit_grid import fit_grid, target_only
from probekit.evaluation.fits.protocol import check_masks, fold_protocol, split_protocol
from probekit.tasks.quality.duplicates import linked_texts
from probekit.tasks.splitting.splits import components

N = 60
LABELS = np.arange(N) % 3
ALL = np.ones(N, dtype=bool)


def folds_of(labels: Any = LABELS, linked: Any = None, folds: Any = 5, seed: int = 0):
    return fold_protocol(labels, np.arange(len(labels)) if linked is None else linked, folds, seed)


def test_the_splits_are_one_round():
    splits = np.array(["train", "validation", "test"])[np.arange(N) % 3]
    kept = ALL.copy()
    kept[:6] = False
    protocol = split_protocol(splits, kept)
    ((mask, part),) = protocol.choosers
    assert np.flatnonzero(protocol.masks[mask]).tolist() == list(range(6, N, 3))
    assert protocol.parts[part].tolist() == list(range(7, N, 3))
    assert protocol.test.tolist() == list(range(8, N, 3))
    assert protocol.final == mask == protocol.rounds[0].mask


@pytest.mark.parametrize("folds", [3, 5])
def test_each_row_tests_once_and_never_what_it_was_fitted_on(folds):
    protocol = folds_of(folds=folds)
    assert sorted(protocol.test) == list(range(N))
    for each in protocol.rounds:
        chosen_on = np.concatenate([protocol.parts[part] for _, part in each.choosers])
        assert not protocol.masks[each.mask][each.test].any()
        assert sorted([*chosen_on, *each.test]) == list(range(N))
        for mask, part in each.choosers:
            taught = np.flatnonzero(protocol.masks[mask])
            assert sorted([*taught, *protocol.parts[part], *each.test]) == list(range(N))
    assert len(protocol.masks) == folds * (folds - 1) / 2 + folds + 1
    assert np.flatnonzero(protocol.masks[protocol.final]).tolist() == list(range(N))


def test_folds_hold_each_class_in_its_share_and_whole_groups_and_follow_the_seed():
    alone = folds_of(labels=np.arange(N) % 10 // 7)
    assert {int(np.sum(np.arange(N)[each.test] % 10 >= 7)) for each in alone.rounds} <= {3, 4}
    groups = np.arange(N) // 4
    for labels in (LABELS, np.linspace(0, 1, N)):
        grouped = folds_of(labels=labels, linked=groups)
        for one, other in pairwise(grouped.rounds):
            assert not set(groups[one.test]) & set(groups[other.test])
    assert [a.test.tolist() for a in folds_of().rounds] == [a.test.tolist() for a in folds_of().rounds]
    assert [a.test.tolist() for a in folds_of().rounds] != [a.test.tolist() for a in folds_of(seed=1).rounds]


def test_equal_texts_and_groups_stay_together():
    texts = linked_texts(["a", "b", "a", "c"])
    assert texts.tolist() == [0, 1, 0, 2]
    assert linked_texts([[1, 2], [3], [1, 2]]).tolist() == [0, 1, 0]
    assert components(texts.tolist(), [5, 6, 7, 7]).tolist() == [0, 1, 0, 0]


def test_texts_that_the_audit_takes_for_one_stay_together():
    long = "the quick brown fox jumps over the lazy dog while the cat sleeps by the warm fire at home"
    near = long.replace("home", "night")
    inputs = [long, "A  text .", "nothing", near, "a text."]
    assert linked_texts(inputs).tolist() == [0, 1, 2, 0, 1]


def test_more_folds_than_rows_or_groups_are_refused():
    with pytest.raises(DataError, match="61 folds need at least 61 rows"):
        folds_of(folds=61)
    with pytest.raises(DataError, match="5 folds need at least 5 rows or groups of rows, got 4"):
        folds_of(linked=np.arange(N) // 15)
    with pytest.raises(DataError, match=r"60 rows of .* cannot be divided into 25 folds .* take fewer folds"):
        folds_of(folds=25)


def test_a_class_that_a_training_part_lacks_is_named_with_its_fold():
    labels = (np.arange(N) < 3).astype(np.int64)
    protocol = folds_of(labels=labels, linked=np.maximum(np.arange(N), 2), folds=4)
    with pytest.raises(DataError, match=r"'rare' of 'kind' is missing from a training part of fold \d \(it has 3"):
        check_masks(protocol, labels, ["usual", "rare"], "kind")
    with pytest.raises(DataError, match=r"must be 0\.\.0, got 0\.\.1"):
        check_masks(protocol, labels, ["usual"], "kind")
    check_masks(folds_of(), LABELS, ["a", "b", "c"], "kind")


def test_numbers_must_be_finite_and_vary_everywhere():
    years = np.linspace(1900, 2000, N)
    protocol = folds_of(labels=years)
    check_masks(protocol, years, [], "year")
    for wrong in (np.where(years < 1950, np.nan, years), np.full(N, 1.0)):
        with pytest.raises(DataError, match="'year' must be finite and vary"):
            check_masks(protocol, wrong, [], "year")


def test_problems_of_equal_rows_or_labels_share_their_arrays():
    protocol = folds_of(folds=3)
    controls = [np.roll(LABELS, 1), np.roll(LABELS, 2)]
    grid = fit_grid(protocol, [LABELS, *controls], 3, [0.1, 1.0])
    problems = grid.problems
    assert len(problems.weightings) == 3 + 3 + 1  # the last is None, which is every row
    assert len(problems.labels) == 3
    assert len(problems.problems) == 2 * (3 * 6 + 1)  # every mask for every label set, the last for the target alone
    for (number, mask, i), at in grid.index.items():
        problem = problems.problems[at]
        weights = problems.weightings[problem.weighting]
        np.testing.assert_array_equal(problems.labels[problem.label].values, [LABELS, *controls][number])
        np.testing.assert_array_equal(np.ones(N) if weights is None else weights, protocol.masks[mask])
        assert [0.1, 1.0][i] == problem.C
    assert len(target_only(grid).problems.problems) == 2 * 7


def test_rows_that_nothing_is_fitted_on_are_in_no_problem():
    splits = np.array(["train", "validation", "test"])[np.arange(N) % 3]
    protocol = split_protocol(splits, ALL)
    assert protocol.fitted.tolist() == protocol.train.tolist() == list(range(0, N, 3))
    problems = fit_grid(protocol, [np.arange(N) % 2], 2, [1.0, 2.0]).problems
    assert problems.weightings == (None,)
    (labels,) = problems.labels
    assert labels.values.tolist() == (np.arange(0, N, 3) % 2).tolist()


def test_a_control_task_that_cannot_be_fitted_is_left_out():
    protocol = split_protocol(np.array(["train", "validation", "test"])[np.arange(6) // 2], np.ones(6, dtype=bool))
    draws = np.array([[0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 1, 1]])
    assert [draw.tolist() for draw in with_every_class(protocol, draws, 2)] == [[0, 1, 0, 1, 0, 1]]
