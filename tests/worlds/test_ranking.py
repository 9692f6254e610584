"""The world `ranking`: what stands in its docstring holds."""

import numpy as np
import pytest
from chances import independent, uniform

from probekit.errors import UsageError
from probekit.tasks.base import SPLITS
from probekit.worlds.grammar import split_by_checksum
from probekit.worlds.ranking import VOCABULARY, lists, ranking, ranks, spaced


@pytest.fixture(scope="module")
def task():
    return ranking((4000, 400, 400), seed=1)


def oracle(items: list[int]) -> list[int]:
    """Ranks from all pairs at once."""
    x = np.array(items)
    return np.tril(x[None, :] <= x[:, None], -1).sum(1).tolist()


def test_ranks_are_those_of_all_pairs():
    assert ranks([5, 3, 9, 3, 4]) == [0, 0, 2, 1, 2]
    for items in lists(300, seed=3):
        assert ranks(items) == oracle(items)


def test_lists_have_the_probabilities_of_the_docstring():
    drawn = lists(6000, seed=1)
    assert uniform(map(len, drawn), range(5, 9))
    assert uniform([item for items in drawn for item in items], range(16))
    assert independent([items[0] for items in drawn], [items[1] for items in drawn])
    assert lists(5, seed=1) == drawn[:5]


def test_labels_are_the_truth_and_the_place_says_nothing_of_them(task):
    task.check()
    for text, target, place, rank in zip(task.inputs, task.targets, task.position, task.labels["rank"], strict=True):
        items = [int(word) for word in text.split()]
        assert oracle(items)[place] == rank
        assert target.split() == ["<bos>", *map(str, oracle(items)[:-1])]
        assert len(target.split()) == len(items)  # the same place in both
        assert {*text.split(), *target.split()} <= set(VOCABULARY)
    length = [len(text.split()) for text in task.inputs]
    assert uniform(length, range(5, 9))
    assert uniform(task.labels["rank"].tolist(), range(5))
    assert independent(task.labels["rank"], task.position)
    for k in range(6, 9):
        assert uniform([p for p, n in zip(task.position.tolist(), length, strict=True) if n == k], range(4, k))
    assert {p for p, n in zip(task.position.tolist(), length, strict=True) if n == 5} == {4}


def test_no_list_stands_in_two_splits(task):
    for split in SPLITS:
        assert {split_by_checksum(text) for text in np.array(task.inputs)[task.splits == split]} == {split}
        assert {split_by_checksum(spaced(items)) for items in lists(50, seed=9, split=split)} == {split}
    with pytest.raises(UsageError, match="did you mean test"):
        lists(1, split="tset")
    assert ranking((40, 20, 20)).fingerprint() == ranking((40, 20, 20)).fingerprint()
