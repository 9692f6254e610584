"""Counts, lists and numbers in messages."""

import pytest

from probekit.errors import nearest
from probekit.text import counted, listed, metric


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 "), (999, "999 "), (1000, "1.00 k"), (292e9, "292 G"), (1e20, "100 E"), (3.5e33, "3500 Q")],
)
def test_numbers_have_three_digits_and_a_prefix(n, text):
    """The largest prefix takes whatever is left."""
    assert metric(n) == text


@pytest.mark.parametrize(("n", "text"), [(0, "0 texts"), (1, "1 text"), (2, "2 texts"), (12_000, "12,000 texts")])
def test_one_is_singular(n, text):
    assert counted(n, "text") == text


def test_an_irregular_plural_is_given():
    assert [counted(n, "class", "classes") for n in (1, 2)] == ["1 class", "2 classes"]


@pytest.mark.parametrize("n", [0, 1, 10, 11, 100_000])
def test_a_list_names_ten_and_counts_the_rest(n):
    names = [f"n{i}" for i in range(n)]
    assert listed(names) == ", ".join(names[:10]) + (f" and {n - 10:,} more" if n > 10 else "")


def test_an_unknown_name_among_many_gets_a_short_list():
    assert len(nearest("zzz", [f"column {i}" for i in range(100_000)])) < 200
