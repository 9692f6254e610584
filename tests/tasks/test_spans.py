"""The world `spans`: what stands in its docstring holds."""

from itertools import product

import numpy as np
import pytest
from chances import fits, uniform

from probekit.errors import UsageError
from probekit.tasks.base import SPLITS
from probekit.tasks.spans import MASK, VOCABULARY, masked_spans, spans, split_of

ALL = [
    (first, length)
    for length in range(4, 9)
    for first in range(33 - length)
    if np.mean(range(first, first + length)) != 15.5
]


@pytest.fixture(scope="module")
def drawn():
    return masked_spans(12_000, seed=1)


def test_hidden_numbers_and_their_spans_are_uniform(drawn):
    assert uniform([span.first + span.place for span in drawn], range(32))
    for number in (0, 13, 31):
        of_number = [(s.first, s.length) for s in drawn if s.first + s.place == number]
        held = [(a, n) for a, n in ALL if a <= number < a + n and split_of(a, n) == "train"]
        assert uniform(of_number, held)


@pytest.mark.parametrize("length", [4, 8])
def test_the_other_numbers_are_hidden_by_their_own_coins(drawn, length):
    """Given the length, each pattern of the others has its probability, but for the one that leaves nothing to see."""
    patterns = list(product((False, True), repeat=length - 1))[:-1]
    probabilities = [np.prod([0.25 if hidden else 0.75 for hidden in pattern]) for pattern in patterns]
    seen = [(*s.hidden[: s.place], *s.hidden[s.place + 1 :]) for s in drawn if s.length == length]
    assert all(s.hidden[s.place] for s in drawn)
    by_count = [sum(sum(pattern) == k for pattern in seen) for k in range(length - 1)]
    wanted = [
        sum(p for p, one in zip(probabilities, patterns, strict=True) if sum(one) == k) for k in range(length - 1)
    ]
    few = max(k for k in range(length - 1) if wanted[k] * len(seen) > 5)
    assert fits(
        [*by_count[:few], sum(by_count[few:])],
        [*(p / sum(wanted) for p in wanted[:few]), sum(wanted[few:]) / sum(wanted)],
    )


def test_labels_are_the_truth():
    task = spans((3000, 1000, 1000), seed=2)
    task.check()
    task.check("mean")
    assert isinstance(task.position, np.ndarray)
    for text, place, hidden, above in zip(
        task.inputs, task.position.tolist(), task.labels["hidden"], task.labels["mean"], strict=True
    ):
        words = str(text).split()
        assert set(words) <= set(VOCABULARY)
        assert words[place] == MASK
        anchor = next(i for i, word in enumerate(words) if word != MASK)
        first = int(words[anchor]) - anchor
        assert words == [MASK if word == MASK else str(first + i) for i, word in enumerate(words)]
        assert hidden == first + place
        assert above == (np.mean(range(first, first + len(words))) > 15.5)


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_has_every_number_and_as_many_means_below_as_above(split):
    mine = [(first, length) for first, length in ALL if split_of(first, length) == split]
    assert {(32 - first - length, length) for first, length in mine} == set(mine)  # mirror images
    assert {number for first, length in mine for number in range(first, first + length)} == set(range(32))
    assert {(s.first, s.length) for s in masked_spans(3000, seed=4, split=split)} <= set(mine)
    share = np.mean([s.above for s in masked_spans(4000, seed=5, split=split)])
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(4000)


def test_seed_and_split():
    assert spans((40, 40, 40)).fingerprint() == spans((40, 40, 40)).fingerprint()
    assert masked_spans(3, seed=1) == masked_spans(9, seed=1)[:3]
    with pytest.raises(UsageError, match="did you mean train"):
        masked_spans(1, split="trian")
