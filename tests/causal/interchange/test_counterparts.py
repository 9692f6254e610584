"""Counterparts: the rule, against every candidate compared by hand."""

import numpy as np
import pytest

from probekit.causal.interchange.counterparts import choose_counterparts, with_counterparts
from probekit.errors import DataError, UsageError


def test_every_counterpart_is_the_best_by_the_rule():
    rng = np.random.default_rng(0)
    n = 80
    labels, lengths, groups = rng.integers(0, 3, n), rng.integers(3, 7, n), rng.integers(0, 12, n)
    splits = np.array(["train", "test"])[rng.integers(0, 2, n)]
    texts = [rng.integers(0, 3, length).tolist() for length in lengths]

    def rank(i, j):
        differing = sum(a != b for a, b in zip(texts[i], texts[j], strict=False)) + abs(lengths[i] - lengths[j])
        return groups[i] == groups[j], abs(lengths[i] - lengths[j]), differing

    found = choose_counterparts(labels, lengths, groups, 0, texts, splits)
    assert found.dtype == np.int64
    for i, j in enumerate(found):
        candidates = [k for k in range(n) if labels[k] != labels[i] and splits[k] == splits[i]]
        assert j in candidates
        assert rank(i, j) == min(rank(i, k) for k in candidates)


def test_ties_are_drawn_with_the_seed():
    labels, lengths = np.arange(200) % 2, np.full(200, 5)
    found = choose_counterparts(labels, lengths, seed=1)
    assert np.array_equal(found, choose_counterparts(labels, lengths, seed=1))
    assert not np.array_equal(found, choose_counterparts(labels, lengths, seed=2))
    assert len(set(found.tolist())) > 100


def test_the_same_group_is_taken_only_where_no_other_has_another_label():
    labels, lengths, groups = [0, 1, 1, 0], [4, 4, 9, 9], ["a", "a", "b", "b"]
    assert choose_counterparts(labels, lengths, groups).tolist() == [2, 3, 0, 1]
    assert choose_counterparts([0, 1], [4, 4], ["a", "a"]).tolist() == [1, 0]


def test_a_text_without_a_counterpart_is_refused():
    with pytest.raises(DataError, match=r"a split \(3 texts\) have the label 1"):
        choose_counterparts([1, 1, 1], [3, 3, 3])
    with pytest.raises(DataError, match=r"a split \(1 text\) have the label 0"):
        choose_counterparts([0, 1, 0], [3, 3, 3], splits=["train", "train", "test"])
    with pytest.raises(UsageError, match=r"of the same rows; got \[2, 3\] rows"):
        choose_counterparts([0, 1, 0], [3, 3])
    with pytest.raises(UsageError, match="lengths are numbers of tokens; got NaN"):
        choose_counterparts([0, 1, 0], [3, float("nan"), 3])


def test_counterparts_differ_in_label_and_answer_and_rows_without_one_are_numbered_minus_1():
    """Alone, the nearest text of another label would have the same answer."""
    labels, answers = [0, 0, 1, 1, 0], [0, 1, 0, 1, 0]
    texts = [[1, 1], [2, 2], [1, 2], [2, 1], [1, 1]]
    found = choose_counterparts(labels, [2] * 5, texts=texts, answers=answers)
    assert found.tolist()[1:4] == [2, 1, found[3]]
    assert found[3] in (0, 4)
    assert found[0] == found[4] == 3
    labels, answers = np.array([0, 0, 1]), np.array([0, 1, 0])
    found = choose_counterparts(labels, [2] * 3, answers=answers)
    assert found.tolist() == [-1, 2, 1]
    kept, counterpart = with_counterparts(found)
    assert (kept.tolist(), counterpart.tolist()) == ([1, 2], [1, 0])
    with pytest.raises(DataError, match="no two texts differ in their label and in their answer"):
        choose_counterparts([0, 1, 0], [2] * 3, answers=[0, 0, 0])


@pytest.mark.parametrize("seed", range(5))
def test_a_counterpart_has_a_counterpart(seed):
    rng = np.random.default_rng(seed)
    labels, answers, groups = rng.integers(0, 3, (3, 30))
    answers[labels == 0] = 0
    splits = np.arange(30) % 2
    found = choose_counterparts(labels, [1] * 30, groups, seed, splits=splits, answers=answers)
    kept, counterpart = with_counterparts(found)
    assert len(kept)
    assert kept[counterpart].tolist() == found[kept].tolist()
    for i, j in zip(kept, kept[counterpart], strict=True):
        assert labels[i] != labels[j]
        assert answers[i] != answers[j]
        assert splits[i] == splits[j]
