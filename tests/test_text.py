"""Numbers made short."""

import pytest

from probekit.text import metric


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 "), (999, "999 "), (1000, "1.00 k"), (292e9, "292 G"), (1e20, "100 E"), (3.5e33, "3500 Q")],
)
def test_numbers_have_three_digits_and_a_prefix(n, text):
    """The largest prefix takes whatever is left."""
    assert metric(n) == text
