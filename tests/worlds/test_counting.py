"""The world `counting`: what stands in its docstring holds."""

import numpy as np
import pytest
from chances import fits, uniform

from probekit.errors import UsageError
from probekit.tasks.base import SPLITS
from probekit.worlds.counting import EOS, VOCABULARY, counting, counts, split_of_start, starts, words


def test_a_count_ends_with_42():
    assert words(34) == ["34", "35", "36", "37", "38", "39", "40", "41", "42", EOS]
    assert words(42) == ["42", EOS]
    assert words(45) == ["45", EOS]
    assert [EOS, *(str(number) for number in range(100))] == VOCABULARY


def test_probabilities_are_those_of_the_docstring():
    drawn = counts(8000, seed=1)
    first = [int(count[0]) for count in drawn]
    assert all(count == words(start) for count, start in zip(drawn, first, strict=True))
    low, high = [start for start in first if start <= 42], [start for start in first if start > 42]
    assert fits([len(low), len(high)], [3 / 4, 1 / 4])
    assert uniform(low, [start for start in range(43) if start % 4 in (0, 1)])
    assert uniform(high, range(43, 100))
    assert counts(5, seed=1) == drawn[:5]


def test_held_out_starts_are_seen_later_in_a_count_only():
    drawn = counts(2000)
    held_out = {*starts("validation"), *starts("test")}
    assert held_out == {start for start in range(43) if start % 4 > 1}
    assert held_out.isdisjoint(int(count[0]) for count in drawn)
    assert held_out <= {int(word) for count in drawn for word in count[1:-1]} | {2, 3}
    with pytest.raises(UsageError, match="did you mean train"):
        starts("tain")


def test_labels_are_the_truth():
    task = counting()
    task.check()
    for text, stops, number in zip(task.inputs, task.labels["stops"], task.labels["number"], strict=True):
        read = [int(word) for word in str(text).split()]
        assert read == [*range(read[0], read[-1] + 1)]
        assert number == read[-1]
        assert stops == (read[-1] >= 42)
    assert task.n_classes("number") == 0
    assert len(set(map(str, task.inputs))) == len(task)
    task.check("number")


def test_half_of_each_split_stops_and_no_start_stands_in_two():
    task, other = counting(), counting(seed=5)
    for split in SPLITS:
        here = task.splits == split
        assert task.labels["stops"][here].mean() == 0.5
        assert {split_of_start(int(str(text).split()[0])) for text in np.array(task.inputs)[here]} == {split}
    assert task.groups is not None
    assert task.groups.tolist() == [int(str(text).split()[0]) for text in task.inputs]
    assert task.fingerprint() == counting().fingerprint() != other.fingerprint()


def test_no_more_texts_than_there_are():
    """Half of them stop, so that twice the rarer kind is the most: the 50 starts of the training split stop once."""
    most = 2 * sum(start % 4 in (0, 1) for start in range(100))
    assert (counting((most, 2, 2)).splits == "train").sum() == most
    for n in (most + 2, most - 1, -2):
        with pytest.raises(UsageError, match=rf"an even number of texts, at most {most} for train; got {n}"):
            counting((n, 2, 2))
