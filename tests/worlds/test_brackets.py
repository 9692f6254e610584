"""The world `brackets`: what stands in its docstring holds."""

from itertools import product

import numpy as np
import pytest
from chances import fits, uniform

from probekit.errors import UsageError
from probekit.tasks.base import SPLITS
from probekit.worlds.brackets import (
    VOCABULARY,
    _balanced,
    _shuffled,
    _with_one_reversed,
    bracket_words,
    brackets,
    brackets_depth,
    is_balanced,
)
from probekit.worlds.grammar import split_by_checksum


def oracle(word: str) -> bool:
    """Balanced is what vanishes when neighbours that fit are taken out again and again."""
    while "()" in word:
        word = word.replace("()", "")
    return not word


ALL = ["".join(word) for word in product("()", repeat=8)]  # of four pairs
BALANCED = [word for word in ALL if oracle(word)]


@pytest.fixture(scope="module")
def drawn():
    return bracket_words(6000, seed=1)


def test_balanced_is_what_can_be_taken_out():
    for length in range(2, 13, 2):
        for word in map("".join, product("()", repeat=length)):
            assert is_balanced(word) == oracle(word)


def test_words_of_each_kind_are_uniform():
    rng = np.random.default_rng(0)
    assert len(BALANCED) == 14  # Catalan
    assert uniform([_balanced(rng, 4) for _ in range(3000)], BALANCED)
    assert uniform([_shuffled(rng, 4) for _ in range(3000)], [w for w in ALL if w.count("(") == 4 and not oracle(w)])
    turned = [word[:i] + ")("[word[i] == ")"] + word[i + 1 :] for word in BALANCED for i in range(8)]
    counts = {word: turned.count(word) for word in turned}
    found = [_with_one_reversed(rng, 4) for _ in range(3000)]
    assert set(found) <= set(counts)
    assert fits([found.count(word) for word in counts], [n / len(turned) for n in counts.values()])


@pytest.mark.parametrize("split", SPLITS)
def test_probabilities_are_those_of_the_docstring(split):
    drawn = bracket_words(4000, seed=1, split=split)
    assert uniform([len(word) for word in drawn], (8, 10, 12, 14, 16))
    assert uniform(map(oracle, drawn), (False, True))
    assert uniform([word.count("(") == word.count(")") for word in drawn if not oracle(word)], (False, True))
    assert {split_by_checksum(word) for word in drawn} == {split}
    assert bracket_words(5, seed=1, split=split) == drawn[:5]


def test_labels_are_the_truth():
    task = brackets((600, 300, 300), seed=2)
    task.check()
    for text, label in zip(task.inputs, task.labels["balanced"], strict=True):
        *word, asked = str(text).split()
        assert asked == "?"
        assert set(word) == {"(", ")"} <= set(VOCABULARY)
        assert label == oracle("".join(word))
    for split in SPLITS:
        assert {
            split_by_checksum(text[:-1].replace(" ", "")) for text in np.array(task.inputs)[task.splits == split]
        } == {split}


def test_depths_are_the_truth_and_uniform():
    task = brackets_depth((2000, 300, 300), seed=3)
    task.check()
    assert isinstance(task.position, np.ndarray)
    for text, place, depth in zip(task.inputs, task.position.tolist(), task.labels["depth"], strict=True):
        before = str(text).split()[: place + 1]
        assert before[-1] in "()"
        assert depth == before.count("(") - before.count(")")
    assert uniform(task.labels["depth"].tolist(), range(5))
    assert task.fingerprint() == brackets_depth((2000, 300, 300), seed=3).fingerprint()
    with pytest.raises(UsageError, match="did you mean train"):
        bracket_words(1, split="trail")
