"""Carving: stratified, seeded, and what is equal stays together."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.tasks.splitting.splits import carve, carve_missing, components, name_groups, sample, share, strata

LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=60).map(np.array)


@given(LABELS, st.data())
def test_shares_sum_to_n_and_are_within_one_of_proportion_or_one_row(labels, data):
    n = data.draw(st.integers(0, len(labels)))
    counts = share(labels, n)
    present = Counter(labels.tolist())
    assert sum(counts.values()) == n
    assert all(0 <= counts[k] <= present[k] for k in present)
    quotas = {k: n * present[k] / len(labels) for k in present}
    if all(quota >= 1 for quota in quotas.values()):
        assert all(abs(counts[k] - quotas[k]) < 1 for k in present)
    if n >= len(present):
        assert min(counts.values()) >= 1


@given(LABELS, st.integers(0, 5), st.data())
def test_with_different_texts_the_carved_part_is_stratified_exactly(labels, seed, data):
    n = data.draw(st.integers(0, len(labels)))
    chosen = carve(labels, range(len(labels)), n, seed)
    assert Counter(labels[chosen].tolist()) == Counter({k: c for k, c in share(labels, n).items() if c})
    assert (sample(labels, n, seed) == np.flatnonzero(chosen)).all()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 15)), min_size=1, max_size=60), st.integers(0, 5), st.data()
)
@settings(max_examples=200)
def test_equal_texts_stay_together_and_counts_stay_near(rows, seed, data):
    labels, keys = np.array([label for label, _ in rows]), [key for _, key in rows]
    n = data.draw(st.integers(0, len(rows)))
    chosen = carve(labels, keys, n, seed)
    assert not {k for k, c in zip(keys, chosen, strict=True) if c} & {
        k for k, c in zip(keys, chosen, strict=True) if not c
    }
    largest = max(Counter(keys).values())
    assert chosen.sum() <= n + len(set(labels.tolist())) * largest


def test_one_class_keys_end_within_half_of_the_largest_key():
    labels = np.repeat([0, 1], 300)
    keys = [(int(label), i // 5) for i, label in enumerate(labels)]
    for seed in range(20):
        assert np.abs(np.bincount(labels[carve(labels, keys, 61, seed)]) - 30.5).max() <= 3


PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=40)


@given(PAIRS)
def test_components_are_the_classes_of_the_relation_that_equal_keys_generate(rows):
    """Against repeated spreading of the least row number."""
    least = list(range(len(rows)))
    for _ in rows:
        for column in zip(*rows, strict=True):
            best = {key: min(n for n, k in zip(least, column, strict=True) if k == key) for key in column}
            least = [best[key] for key in column]
    found = components(*zip(*rows, strict=True))
    assert found.dtype == np.int64
    assert found.tolist() == [sorted(set(least)).index(n) for n in least]


@given(PAIRS)
def test_components_are_named_by_a_group_of_theirs_and_stay_apart(rows):
    texts, groups = [text for text, _ in rows], [str(group) * 40 for _, group in rows]
    numbers = components(texts, groups)
    names = name_groups(numbers, groups)
    assert components(names.tolist()).tolist() == numbers.tolist()
    assert max(map(len, names)) <= 64
    for name, number in zip(names, numbers, strict=True):
        own = [group for group, n in zip(groups, numbers, strict=True) if n == number]
        assert name == own[0] or len(own[0]) > 60


@given(LABELS, st.integers(0, 5), st.data())
def test_with_different_texts_rows_are_taken_in_a_random_order_until_each_class_has_its_share(labels, seed, data):
    """The rule that chose the rows of earlier versions too."""
    n = data.draw(st.integers(0, len(labels)))
    left, expected = share(labels, n), np.zeros(len(labels), dtype=bool)
    for row in np.random.default_rng(seed).permutation(len(labels)).tolist():
        expected[row] = left[int(labels[row])] > 0
        left[int(labels[row])] -= int(expected[row])
    assert (carve(labels, range(len(labels)), n, seed) == expected).all()


def brackets(n: int, seed: int) -> list[str]:
    """Random bracket strings, half of them with one bracket turned round: many short ones are equal."""
    rng, made = np.random.default_rng(seed), []
    for i in range(n):
        text, depth = "", 0
        while not text or depth or rng.random() < 0.55:
            up = depth == 0 or (rng.random() < 0.5 and len(text) < 60)
            text, depth = text + ")("[up], depth + (1 if up else -1)
        at = int(rng.integers(len(text)))
        made.append(text if i % 2 else text[:at] + "()"[text[at] == "("] + text[at + 1 :])
    return made


@pytest.mark.parametrize("seed", range(5))
def test_carved_splits_are_alike_in_label_length_and_repetition(seed):
    """More than a tenth of the rows are one text, which has to stay in train."""
    texts = brackets(3000, seed)
    labels, length = np.arange(3000) % 2, np.array([len(text) for text in texts])
    copies = np.array([Counter(texts)[text] for text in texts])
    assert copies.max() > 300
    splits = carve_missing(labels, ["train"] * 3000, texts, ["validation", "test"], seed)
    train = splits == "train"
    assert copies[train].max() == copies.max()
    assert copies[~train].max() < 60  # several texts with some copies each rather than one with many
    for split in ("validation", "test"):
        own = splits == split
        assert abs(own.sum() - 300) <= 2
        assert abs(labels[own].mean() - 0.5) <= 0.01
        assert abs((copies[own] > 1).mean() - (copies[train] > 1).mean()) < 0.08
        assert abs(length[own].mean() - length[train].mean()) < 4 * length.std() / np.sqrt(300)


def test_the_seed_decides_about_large_groups_too():
    keys = np.repeat(np.arange(40), 10).tolist()
    chosen = {tuple(np.flatnonzero(carve(np.arange(400) % 2, keys, 40, seed))) for seed in range(10)}
    assert len(chosen) > 5


def test_sample_takes_all_where_there_are_fewer():
    assert sample(np.array([0, 1, 1]), 10, 0).tolist() == [0, 1, 2]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(0, 5))
def test_strata_of_numbers_are_quantile_bins_of_ten_rows_or_more(values, seed):
    labels = np.array(values)
    bins = strata(labels)
    order = np.argsort(labels, kind="stable")
    assert (np.diff(bins[order]) >= 0).all()
    assert bins.max() < max(1, min(10, len(values) // 10))
    chosen = carve(labels, range(len(values)), len(values) // 2, seed)
    assert Counter(bins[chosen].tolist()) == Counter({k: n for k, n in share(bins, len(values) // 2).items() if n})


def test_numbers_fall_alike_on_both_sides():
    labels = np.random.default_rng(0).normal(size=1000) ** 3
    assert np.bincount(strata(labels)).tolist() == [100] * 10
    chosen = carve(labels, range(1000), 100, 0)
    assert np.bincount(strata(labels)[chosen]).tolist() == [10] * 10


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 15)), min_size=20, max_size=80), st.booleans())
def test_groups_never_straddle_carved_splits(rows, floats):
    labels = np.array([label for label, _ in rows], dtype=float if floats else int)
    groups = [group for _, group in rows]
    splits = carve_missing(labels, ["train"] * len(rows), groups, ["validation", "test"], 0)
    assert len(set(zip(groups, splits.tolist(), strict=True))) == len(set(groups))


def test_the_carved_test_split_does_not_depend_on_whether_validation_is_carved():
    labels, given = np.arange(60) % 2, np.full(60, "train")
    both = carve_missing(labels, given, list(range(60)), ("validation", "test"), seed=3)
    alone = carve_missing(labels, given, list(range(60)), ("test",), seed=3)
    assert (both == "validation").sum() == (both == "test").sum() == 6
    np.testing.assert_array_equal(both == "test", alone == "test")


def test_numbers_are_in_quantile_bins_whose_lower_edge_belongs_to_them():
    labels = np.array([*np.repeat(np.arange(20.0), 10), np.nan])
    edges = np.quantile(labels[:-1], np.arange(1, 10) / 10)
    np.testing.assert_array_equal(strata(labels), [*np.digitize(labels[:-1], edges), -1])
    assert np.bincount(strata(labels)[:-1]).tolist() == [20] * 10
