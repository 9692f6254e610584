"""Statistics of a causal run, against theorems."""

import numpy as np
import pytest

from probekit.causal.curve.statistics import cramers_v

PAIR = np.tile([0, 1], 30), np.repeat([0, 1], 30)


def test_cramers_v_is_the_size_of_the_correlation_of_two_classes_and_the_same_from_both_sides() -> None:
    a, b = np.random.default_rng(0).integers(2, size=(2, 90))
    assert cramers_v(a, b) == pytest.approx(abs(np.corrcoef(a, b)[0, 1]))
    assert cramers_v(a, b) == pytest.approx(cramers_v(b, a))


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (*PAIR, 0.0),  # every pair of classes equally often
        (PAIR[0], 1 - PAIR[0], 1.0),
        (np.arange(60) % 3, (np.arange(60) % 3 + 1) % 3, 1.0),
        (PAIR[0], np.zeros(60, dtype=int), 0.0),  # one class
        (np.append(PAIR[0], [-1] * 9), np.append(PAIR[1], [1] * 9), 0.0),  # rows without a label do not count
    ],
)
def test_cramers_v_of_known_tables(a: np.ndarray, b: np.ndarray, wanted: float) -> None:
    assert cramers_v(a, b) == pytest.approx(wanted, abs=1e-12)
