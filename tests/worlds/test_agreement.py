"""The built-in task: its grammar is what its docstring says, and the word that is read gives nothing away."""

from collections import Counter

import numpy as np
import pytest
from chances import fits, independent

from probekit.errors import UsageError
from probekit.tasks.base import SPLITS
from probekit.worlds.agreement import (
    ADJECTIVES,
    ADVERBS,
    EMBEDDED_FORMS,
    EOS,
    NOUNS,
    PEOPLE,
    PREDICATES,
    PREPOSITIONS,
    THINGS,
    VERB_FORMS,
    VOCABULARY,
    _realise,
    _skeleton,
    agreement,
    sentences,
)
from probekit.worlds.grammar import split_by_checksum

N = 20_000
KINDS = {
    **dict.fromkeys(ADJECTIVES, "adjective"),
    **dict.fromkeys(ADVERBS, "adverb"),
    **dict.fromkeys(PREPOSITIONS, "preposition"),
    **dict.fromkeys(PREDICATES, "predicate"),
    **{form: "noun" for pair in NOUNS for form in pair},
    **{form: "verb" for pair in VERB_FORMS for form in pair},
    **{form: "embedded" for pair in EMBEDDED_FORMS for form in pair},
    **{word: word for word in (EOS, "the", "that", ".")},
}
NUMBER = {form: k for forms in (NOUNS, VERB_FORMS, EMBEDDED_FORMS) for pair in forms for k, form in enumerate(pair)}


@pytest.fixture(scope="module")
def language():
    return sentences(N, seed=1)


@pytest.fixture(scope="module")
def task():
    return agreement()


def test_vocabulary_is_small_closed_and_unambiguous(language):
    assert VOCABULARY[0] == EOS
    assert len(VOCABULARY) == len(set(VOCABULARY)) < 150
    assert set(KINDS) == set(VOCABULARY)
    assert len(NOUNS) >= 12
    assert {word for s in language for word in s.words} == set(VOCABULARY) - {EOS}


def test_every_sentence_parses_and_every_verb_agrees(language):
    for s in language:
        kinds = [KINDS[word] for word in s.words]
        assert kinds.count("verb") == 1
        assert kinds[s.verb :] == ["verb", "predicate", "."]
        nouns = [word for word in s.words if KINDS[word] == "noun"]
        assert [NUMBER[noun] for noun in nouns] == [s.number, *s.attractors]
        assert NUMBER[s.words[s.verb]] == s.number
        assert (s.words[s.verb], s.wrong_verb) in {pair[:: 1 - 2 * s.number] for pair in VERB_FORMS}
        for i, kind in enumerate(kinds):
            if kind == "embedded":  # agrees with its own noun, which is a person
                assert kinds[i - 1] == "noun"
                assert NUMBER[s.words[i]] == NUMBER[s.words[i - 1]] == s.attractors[-1]
                assert s.words[i - 1] in {form for pair in PEOPLE for form in pair}
        assert (kinds[s.verb - 1] == "adverb") == (s.depth == 0)


def test_probabilities_are_those_of_the_docstring(language):
    assert fits([sum(s.depth == d for s in language) for d in range(4)], [1 / 4] * 4)
    assert fits(list(Counter(s.number for s in language).values()), [1 / 2] * 2)
    for d in (1, 2, 3):
        numbers = Counter((s.number, *s.attractors) for s in language if s.depth == d)
        assert fits([*numbers.values(), *[0] * (2 ** (d + 1) - len(numbers))], [0.5 ** (d + 1)] * 2 ** (d + 1))
    deep = [s for s in language if s.depth]
    relative = sum(KINDS[s.words[s.verb - 1]] == "embedded" for s in deep)
    assert fits([relative, len(deep) - relative], [1 / 2, 1 / 2])
    assert all("that" not in s.words for s in language if KINDS[s.words[s.verb - 1]] != "embedded")
    words = Counter(word for s in language for word in s.words)
    nouns = sum(s.depth + 1 for s in language)
    adjectives = sum(words[word] for word in ADJECTIVES)
    assert fits([adjectives, nouns - adjectives], [1 / 2, 1 / 2])
    for choices in (ADJECTIVES, ADVERBS, PREPOSITIONS, PREDICATES):
        assert fits([words[word] for word in choices], [1 / len(choices)] * len(choices))
    for forms in (PEOPLE, THINGS, VERB_FORMS, EMBEDDED_FORMS):
        assert fits([words[form] for pair in forms for form in pair], [0.5 / len(forms)] * 2 * len(forms))
    subjects = Counter(next(word for word in s.words if KINDS[word] == "noun") for s in language)
    assert fits([subjects[form] for pair in NOUNS for form in pair], [1 / 40] * 40)


class Coins:
    """Stands in for the generator where numbers are tossed: the first coins are given, the rest are the same."""

    def __init__(self, coins: list[int]):
        self.tosses = iter([0.0 if coin else 0.9 for coin in coins])

    def random(self) -> float:
        return next(self.tosses, 0.0)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_the_subjects_number_reaches_only_subject_and_verb(depth):
    """Exact independence: the coin is tossed after the skeleton is drawn, and turning it changes no other word."""
    rng = np.random.default_rng(depth)
    for _ in range(200):
        slots = _skeleton(rng, depth)
        attractors = rng.integers(0, 2, depth).tolist()
        one, many = (_realise(Coins([number, *attractors]), slots, depth) for number in (0, 1))  # pyright: ignore[reportArgumentType]
        assert (one.number, many.number) == (0, 1)
        assert one.attractors == many.attractors == tuple(attractors)
        assert one.skeleton == many.skeleton
        differ = [i for i, (a, b) in enumerate(zip(one.words, many.words, strict=True)) if a != b]
        subject = next(i for i, word in enumerate(one.words) if KINDS[word] == "noun")
        assert differ == [subject, one.verb]
        assert one.verb - 1 > subject


def test_labels_are_the_truth_and_independent(task):
    number, attractor, depth = (task.labels[k] for k in ("number", "attractor", "depth"))
    for i, text in enumerate(task.inputs):
        numbers = [NUMBER[word] for word in text.split() if KINDS[word] == "noun"]
        assert (number[i], depth[i]) == (numbers[0], len(numbers) - 1)
        assert attractor[i] == (numbers[-1] + 1 if depth[i] else 0)
    for split in SPLITS:
        here = task.splits == split
        last = [task.inputs[i].split()[-1] for i in np.flatnonzero(here)]
        for other in (attractor[here], depth[here], last):
            assert independent(number[here], other)


def test_the_word_that_is_read_does_not_predict_number(task):
    """The best guess from the last word alone, learnt on train, is at chance on test; for the attractor it is not."""
    last = np.array([text.split()[-1] for text in task.inputs])
    test = task.splits == "test"

    def accuracy(label_set: str, rows: np.ndarray) -> float:
        labels = task.labels[label_set]
        seen = Counter(zip(last[~test], labels[~test], strict=True))
        guess = [max(range(task.n_classes(label_set)), key=lambda k, w=word: seen[w, k]) for word in last[rows]]
        return float(np.mean(np.array(guess) == labels[rows]))

    assert abs(accuracy("number", test) - 0.5) < 4 * 0.5 / np.sqrt(test.sum())
    assert accuracy("attractor", test) == 1.0


def test_sentences_of_a_split_keep_to_it():
    for split in SPLITS:
        assert {split_by_checksum(s.skeleton) for s in sentences(50, split=split)} == {split}
    with pytest.raises(UsageError, match="did you mean train"):
        sentences(1, split="tain")
    assert sentences(5, seed=3) == sentences(9, seed=3)[:5]
