"""Which texts have a position, by a plain count, and the token that nearly all of them have there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.activations.layout import Layout
from probekit.evaluation.by_position.columns import Column, lacks, position_columns, token_of, with_common_classes
from probekit.selections import ALL, Selection


def ragged(counts: list[int], **more) -> Layout:
    return Layout([ALL], np.array(counts, dtype=np.int64) + 1, 1, **more)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.booleans())
def test_rows_of_every_index(counts, from_end):
    layout = ragged(counts)
    rows = [(text, k) for text, n in enumerate(counts) for k in range(n)]
    columns = position_columns(layout, from_end)
    indices = range(-max(counts), 0) if from_end else range(max(counts))
    assert [column.name for column in columns] == [str(index) for index in indices]
    for column, index in zip(columns, indices, strict=True):
        expected = [(text, range(n)[index]) for text, n in enumerate(counts) if -n <= index < n]
        assert column.texts.tolist() == [text for text, _ in expected]
        assert column.rows.tolist() == [rows.index(each) for each in expected]


def test_selections_are_of_all_texts():
    layout = Layout([Selection("first"), Selection.named("last@user")], np.array([3, 1, 2]), 0)
    for from_end in (False, True):
        first, last = position_columns(layout, from_end)
        assert (first.name, first.rows.tolist(), first.texts.tolist()) == ("first", [0, 2, 4], [0, 1, 2])
        assert (last.name, last.rows.tolist()) == ("last@user", [1, 3, 5])


@pytest.mark.parametrize(("least", "expected"), [(0.6, ["a", "the"]), (0.7, ["a", None]), (1.0, ["a", None])])
def test_the_token_that_nearly_all_texts_have(least, expected):
    texts = ["a the", "a the", "a cat"]
    layout = ragged([2, 2, 2], characters=np.array([[0, 1], [2, 5]] * 3))
    assert [token_of(column, layout, texts, least) for column in position_columns(layout, False)] == expected
    assert token_of(position_columns(layout, False)[0], ragged([2, 2, 2]), texts, least) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["train", "test"])), min_size=1, max_size=30))
def test_classes_with_too_few_texts_are_left_out_if_two_remain(texts):
    labels, splits = np.array([k for k, _ in texts]), np.array([split for _, split in texts])
    every, least = np.arange(len(texts)), 2
    column = with_common_classes(Column("0", every, every, None), labels, splits, 4, least)
    common = [k for k in range(4) if min(texts.count((k, split)) for split in ("train", "test")) >= least]
    assert (lacks(column, labels, splits, list("abcd"), least) == "") == (len(common) >= 2)
    if len(common) in (2, 3):
        assert column.classes is not None
        assert column.classes.tolist() == common
        assert column.rows.tolist() == [i for i, (k, _) in enumerate(texts) if k in common]
    else:
        assert column.classes is None
        assert column.rows.tolist() == every.tolist()
