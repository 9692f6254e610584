"""The world `spans`: what stands in its docstring holds."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from chances import fits, uniform

from probekit.errors import UsageError
from probekit.tasks import load_task
from probekit.tasks.base import SPLITS
from probekit.worlds.grammar import split_by_checksum
from probekit.worlds.spans import MASK, VOCABULARY, masked_spans, spans

ALL = [
    (first, length)
    for length in range(4, 9)
    for first in range(33 - length)
    if np.mean(range(first, first + length)) != 15.5
]


@pytest.fixture(scope="module")
def drawn():
    return masked_spans(12_000, seed=1)


def share_of_split(number: int, first: int, length: int) -> float:
    """The probability that coins for the span's other numbers make a text of the training split, counted out."""
    share = 0.0
    for hidden in product((False, True), repeat=length):
        words = [MASK if h else str(first + k) for k, h in enumerate(hidden)]
        if hidden[number - first] and not all(hidden) and split_by_checksum(" ".join(words)) == "train":
            share += 0.25 ** (sum(hidden) - 1) * 0.75 ** (length - sum(hidden))
    return share


@pytest.mark.parametrize("number", [0, 13, 31])
def test_spans_and_coins_have_the_probabilities_of_the_docstring(drawn, number):
    held = [(a, n) for a, n in ALL if a <= number < a + n]
    shares = [share_of_split(number, *span) for span in held]
    counts = Counter((s.first, s.length) for s in drawn if s.first + s.place == number)
    assert set(counts) <= set(held)
    assert fits([counts[span] for span in held], [share / sum(shares) for share in shares])


def test_coins_are_those_of_the_docstring(drawn):
    """In long spans, where the draws that leave nothing to see hardly matter."""
    long = [span for span in drawn if span.length == 8]
    assert all(span.hidden[span.place] for span in drawn)
    assert not any(all(span.hidden) for span in drawn)
    hidden = sum(sum(span.hidden) - 1 for span in long)
    assert abs(hidden / (7 * len(long)) - 0.25) < 4 * np.sqrt(0.25 * 0.75 / (7 * len(long)))


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
def test_a_split_has_its_texts_every_number_and_as_many_means_below_as_above(split):
    mine = masked_spans(4000, seed=5, split=split)
    assert {split_by_checksum(span.text) for span in mine} == {split}
    assert uniform([span.first + span.place for span in mine], range(32))
    assert abs(np.mean([span.above for span in mine]) - 0.5) < 0.05
    assert {(span.first, span.length) for span in mine} <= set(ALL)


def test_seed_and_split():
    assert spans((40, 40, 40)).fingerprint() == spans((40, 40, 40)).fingerprint()
    assert masked_spans(3, seed=1) == masked_spans(9, seed=1)[:3]
    with pytest.raises(UsageError, match="did you mean train"):
        masked_spans(1, split="trian")


def test_the_task_reads_the_masks_unless_another_position_is_asked_for():
    task = load_task("spans", limit=64)
    assert isinstance(task.position, np.ndarray)
    assert all(str(text).split()[k] == MASK for text, k in zip(task.inputs, task.position.tolist(), strict=True))
    assert load_task("spans", limit=64, position="first").position == "first"
