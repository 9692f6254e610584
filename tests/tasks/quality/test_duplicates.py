"""Near duplicates: all that brute force finds and nothing else."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.tasks.quality import duplicates
from probekit.tasks.quality.duplicates import (
    LEAST_SHINGLES,
    THRESHOLD,
    Inputs,
    near_pairs,
    rows_spanning_splits,
)
from probekit.tasks.splitting.splits import normalised_words


def shingles_of(words, width):
    padded = [None] * (width - 1) + list(words) + [None] * (width - 1)
    return {tuple(padded[i : i + width]) for i in range(len(words) + width - 1)}


def brute_force(distinct, width):
    """All ordered pairs by the definition: templates taken out, short ones left alone, Jaccard compared."""
    sets = [shingles_of(words, width) for words in distinct]
    counts = {}
    for one in sets:
        for shingle in one:
            counts[shingle] = counts.get(shingle, 0) + 1
    most = 10  # a tenth, or ten
    assert most == duplicates.most_common(len(sets))
    sets = [{shingle for shingle in one if counts[shingle] <= most} for one in sets]
    found = {}
    for (i, a), (j, b) in product(enumerate(sets), repeat=2):
        if i != j and min(len(a), len(b)) >= LEAST_SHINGLES and len(a & b) >= THRESHOLD * len(a | b) - 1e-12:
            found[i, j] = len(a & b) / len(a | b)
    return found


def found_in(texts):
    inputs = Inputs.of(texts)
    one, other, index = near_pairs(inputs.shingles(), np.arange(len(inputs.offsets) - 1))
    return inputs, dict(zip(zip(one.tolist(), other.tolist(), strict=True), index.tolist(), strict=True))


def mutated(seed, n, length, vocabulary):
    """Random texts, and copies of some with a few words replaced, added or taken out."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(vocabulary, size=rng.integers(1, length)).tolist() for _ in range(n)]
    for _ in range(n):
        text = list(texts[rng.integers(len(texts))])
        for _ in range(rng.integers(4)):
            at = rng.integers(len(text) + 1)
            text[at : at + rng.integers(2)] = rng.integers(vocabulary, size=rng.integers(1, 3)).tolist()
        texts.append(text)
    return texts


@given(st.integers(0, 10_000), st.sampled_from([2, 6, 40, 1000]), st.booleans(), st.sampled_from([50, 1_000_000]))
@settings(max_examples=60)
def test_pairs_are_those_of_brute_force(seed, vocabulary, as_ids, chunk):
    texts = mutated(seed, 20, 40, vocabulary)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_CHUNK", chunk)
        inputs, found = found_in(texts if as_ids else [" ".join(f"w{i}" for i in text) for text in texts])
    distinct = list(dict.fromkeys(map(tuple, texts)))
    assert [distinct[k] for k in inputs.number] == [tuple(text) for text in texts]
    expected = brute_force(distinct, inputs.width)
    assert found.keys() == expected.keys()
    assert all(abs(found[pair] - expected[pair]) < 1e-12 for pair in expected)


def test_only_the_rows_that_are_asked_for_are_looked_up():
    texts = [" ".join(f"w{i}" for i in text) for text in mutated(1, 40, 40, 1000)]
    inputs, found = found_in(texts)
    rows = np.arange(0, len(inputs.offsets) - 1, 3)
    one, other, _ = near_pairs(inputs.shingles(), rows)
    assert found
    assert set(zip(one.tolist(), other.tolist(), strict=True)) == {pair for pair in found if pair[0] % 3 == 0}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It 's a  GOOD film .", "it's a good film."),
        ("ﬁne café", "FINE cafe\u0301"),
        ("Straße", "STRASSE"),
        ("\u00a0wide\u3000space\n", "wide space"),
        ("\uff11\uff19\uff18\uff17", "1987"),
    ],
)
def test_equal_but_for_form_case_and_spacing(one, other):
    assert normalised_words(one) == normalised_words(other)
    assert Inputs.of([one, other]).number.tolist() == [0, 0]


@pytest.mark.parametrize(("one", "other"), [("good !", "good ?"), ("good film", "goodfilm"), ("a b", "b a")])
def test_other_words_marks_and_orders_are_other_texts(one, other):
    assert Inputs.of([one, other]).number.tolist() == [0, 1]


def test_short_phrases_are_compared_whole():
    """Every text of one to three words out of three, repeats included: no two are nearly the same."""
    phrases = [" ".join(words) for n in (1, 2, 3) for words in product(["very", "good", "film"], repeat=n)]
    assert found_in([*phrases, "very very very very", "very " * 8, "very " * 9])[1] == {}


def test_what_all_texts_share_makes_none_of_them_near():
    """A long instruction before short questions is a template."""
    rng = np.random.default_rng(0)
    shot = " ".join(f"shot{i}" for i in range(200))
    assert found_in([f"{shot} {' '.join(f'w{i}' for i in rng.integers(1000, size=12))}" for _ in range(100)])[1] == {}


def test_sequences_over_few_ids_are_not_near_by_chance():
    rng = np.random.default_rng(0)
    sequences = rng.integers(2, size=(2000, 24)).tolist()
    inputs, found = found_in(sequences)
    assert (inputs.width, found) == (30, {})
    assert len(inputs.offsets) - 1 == len(set(map(tuple, sequences)))


def test_text_without_spaces_is_read_by_its_characters():
    one = "这部电影讲述了一个关于友谊和勇气的感人故事非常值得一看"
    texts = [one, one.replace("感", "动"), "我昨天去商店买了很多东西然后回家做饭给家人吃"]
    assert list(found_in(texts)[1]) == [
        (0, 1),
        (1, 0),
    ]


@pytest.mark.parametrize("texts", [["!"], ["a", "a"], ["a b c d e f g h i j k l"] * 2, [[1], [1]], [[0, 1], [2]]])
def test_little_is_enough(texts):
    assert found_in(texts)[1] == {}


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), min_size=1, max_size=40), st.booleans())
def test_rows_that_span_splits_are_those_whose_group_a_later_split_has(rows, named):
    """Against the last split of each group, by hand."""
    groups = np.array([f"g{group}" if named else group for group, _ in rows])
    splits = np.array(["train", "validation", "test"])[[split for _, split in rows]]
    last = {}
    for group, split in rows:
        last[group] = max(split, last.get(group, 0))
    spanning = rows_spanning_splits(groups, splits)
    assert spanning.tolist() == [i for i, (group, split) in enumerate(rows) if split < last[group]]
    assert spanning.dtype == np.int64
    kept = np.delete(np.arange(len(rows)), spanning)
    assert len({(groups[i], splits[i]) for i in kept}) == len({groups[i] for i in kept})
    assert set(splits[spanning]) <= {"train", "validation"}


@pytest.mark.parametrize("as_ids", [False, True])
def test_some_of_the_inputs_are_compared_as_if_there_were_no_others(as_ids):
    rng = np.random.default_rng(0)
    ids = [rng.integers(12, size=rng.integers(1, 90)).tolist() for _ in range(40)]
    ids += [[*one[:-1], 99] for one in ids[:20]] + ids[10:15]
    given = ids if as_ids else [" ".join(f"w{i}" for i in one) for one in ids]
    rows = rng.permutation(len(given))[:45]
    some, alone = Inputs.of(given).of_rows(rows), Inputs.of([given[i] for i in rows])
    np.testing.assert_array_equal(some.number, alone.number)
    np.testing.assert_array_equal(some.offsets, alone.offsets)
    assert some.width == alone.width
    every = np.arange(len(alone.offsets) - 1)
    found, expected = (near_pairs(one.shingles(), every) for one in (some, alone))
    assert sorted(zip(*found, strict=True)) == sorted(zip(*expected, strict=True))
    assert len(found[0])


def test_an_exact_duplicate_is_no_near_one():
    text = "after long debates the committee approved the plan for the new bridge over the wide river on monday"
    near = text.replace("monday", "friday")
    exact, close = duplicates.duplicates_in([text, near], [text, text.replace("monday", "sunday"), "nothing of this"])
    assert exact.tolist() == [True, False, False]
    assert close.tolist() == [False, True, False]
