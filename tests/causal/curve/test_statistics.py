"""Statistics of a causal run, against theorems."""

import numpy as np
import pytest
from scipy.stats import norm, ttest_1samp

from probekit.causal.curve.statistics import adjusted_p_values, cramers_v, ratio_interval
from probekit.evaluation.scores.bootstrap import Bootstrap

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


@pytest.mark.parametrize(("units", "size"), [(8, 1), (8, 5), (30, 1)])
def test_the_interval_of_a_mean_of_few_units_is_student_ts(units: int, size: int) -> None:
    """Groups of equal rows are one unit each; a ratio to a constant is the mean over it."""
    values = 3 + norm.ppf((np.arange(units) + 0.5) / units)
    rows, group = np.repeat(values, size), np.repeat(np.arange(units), size)
    drawn = Bootstrap(len(rows), groups=None if size == 1 else group, resamples=20_000)
    wanted = ttest_1samp(values, 0).confidence_interval()
    found = ratio_interval(rows, np.full(len(rows), 2.0), drawn)
    assert found is not None
    width = (wanted.high - wanted.low) / 2
    assert 2 * np.array(found) == pytest.approx(np.array([wanted.low, wanted.high]), abs=0.03 * width)


def corrected(every_PK: np.ndarray, column: int = 0) -> np.ndarray:
    """The corrected p-values of one column as the direction, and the others as its placebos."""
    return adjusted_p_values(every_PK[:, column].tolist(), np.delete(every_PK, column, axis=1))


def test_corrected_p_values_do_not_depend_on_the_unit_of_a_place() -> None:
    """A late layer, where every edit moves the answer a hundred times more, hides no effect of an early one."""
    every_PK = np.random.default_rng(0).normal(size=(6, 41))
    every_PK[0, 0] = 10.0
    alike = corrected(every_PK)
    scaled_PK = every_PK * np.array([[1.0], [100.0], [0.01], [3.0], [1e-6], [1e6]])
    assert alike[0] == 1 / 41
    np.testing.assert_array_equal(corrected(scaled_PK), alike)


def test_of_directions_that_are_alike_at_most_a_share_p_has_a_corrected_p_so_small() -> None:
    """Each of K + 1 columns once as the direction is every order of exchangeable ones, so that this is exact."""
    every_PK = np.random.default_rng(1).normal(size=(8, 40)) * np.geomspace(1, 1e3, 8)[:, None]
    least = [corrected(every_PK, k).min() for k in range(40)]
    np.testing.assert_array_equal(np.sort(least), np.arange(1, 41) / 40)
