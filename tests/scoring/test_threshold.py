"""Thresholds for a false-positive rate: exact on validation, within the binomial interval on new rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from probekit.errors import DataError, UsageError
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.scores.rates import rate_of, rates_at, threshold_for
from probekit.scoring.threshold import choose_threshold, threshold_text


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_at_most_the_wanted_share_of_negatives_is_flagged_however_scores_tie(values: list[int], fpr: float) -> None:
    scores, labels = np.array(values, dtype=float), np.zeros(len(values), dtype=int)
    found = threshold_for(scores, labels, fpr)
    if found.value is None:
        assert fpr * len(values) < 1
        return
    flagged = int((scores >= found.value).sum())
    assert flagged == found.flagged <= fpr * len(values) * (1 + 1e-9)
    lower = np.append(scores[scores < found.value], [])
    if len(lower):  # the next lower score would flag too many
        assert (scores >= lower.max()).sum() > np.floor(fpr * len(values) * (1 + 1e-12))


@pytest.mark.parametrize(
    ("n", "fpr", "k"), [(100, 0.01, 1), (99, 0.01, 0), (100, 0.29, 29), (199, 0.01, 1), (1000, 0.05, 50)]
)
def test_as_many_are_flagged_as_the_rate_allows(n: int, fpr: float, k: int) -> None:
    found = threshold_for(np.random.default_rng(0).normal(size=n), np.zeros(n, dtype=int), fpr)
    assert (found.flagged, found.value is None, found.least) == (k, k == 0, 1 / n)


def test_thresholds_hold_their_rate_on_new_rows() -> None:
    """Over 400 draws, the flagged share of new negatives is k / (n + 1) within its interval of 99.9%."""
    rng, n, new, draws, fpr = np.random.default_rng(0), 300, 50, 400, 0.02
    flagged = 0
    for _ in range(draws):
        chosen = threshold_for(rng.normal(size=n), np.zeros(n, dtype=int), fpr)
        assert chosen.value is not None
        flagged += int((rng.normal(size=new) >= chosen.value).sum())
    rate, trials = 6 / 301, draws * new
    spread = np.sqrt(rate * (1 - rate) / trials * (1 + (new - 1) * 1.2 / n))  # rows of one draw share a threshold
    assert abs(flagged / trials - rate) < 3.3 * spread
    assert flagged / trials < fpr + 3.3 * spread


@pytest.mark.parametrize(("hits", "rows"), [(0, 10), (10, 10), (3, 40), (1, 1), (0, 1)])
def test_intervals_are_those_of_clopper_and_pearson(hits: int, rows: int) -> None:
    found, exact = rate_of(hits, rows), binomtest(hits, rows).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_a_row_at_the_threshold_is_flagged() -> None:
    tpr, fpr = rates_at(1.0, np.array([1.0, 0.9, 1.0, 0.5]), np.array([1, 1, 0, 0]))
    assert tpr is not None
    assert fpr is not None
    assert (tpr.hits, tpr.rows, fpr.hits, fpr.rows) == (1, 2, 1, 2)
    assert rates_at(1.0, np.array([1.0]), np.array([1]))[1] is None


def rows_of(n: int, **changes: Any) -> RowScores:
    rng = np.random.default_rng(0)
    labels, splits = np.arange(n) % 2, np.array(["validation", "test"], dtype=object)[np.arange(n) // 2 % 2]
    own = {"scores": {"p.0": rng.normal(size=n) + labels}, "predicted": {"p.0": labels}, **changes}
    blank = np.array([""] * n, dtype=object)
    return RowScores(blank, blank, splits, labels, np.arange(n), **own)


def test_what_a_threshold_gives_is_told_of_test_alone() -> None:
    rows = rows_of(800)
    found = choose_threshold(rows, "p.0", 0.05)
    tested = rows.splits == "test"
    tpr, fpr = rates_at(found.value, rows.scores["p.0"][tested], rows.labels[tested])
    assert (found.tpr, found.test_fpr, found.negatives, found.flagged) == (tpr, fpr, 200, 10)
    assert tpr is not None
    line = threshold_text(found, "yes")
    assert f"it finds {tpr.value:.3f} [{tpr.low:.3f}, {tpr.high:.3f}], {tpr.hits} of 200 of yes" in line
    assert "false-positive rate of 5.00%" in line


def test_what_cannot_be_chosen_is_refused_with_the_least_rate() -> None:
    with pytest.raises(UsageError, match=r"50 validation rows of the first class .* 2\.00% at least, got 1\.00%"):
        choose_threshold(rows_of(200), "p.0", 0.01)
    with pytest.raises(UsageError, match="for probes of two classes"):
        choose_threshold(rows_of(200, predicted={}), "p.0", 0.05)
    with pytest.raises(UsageError, match="for probes of two classes"):
        choose_threshold(rows_of(200, scores={"p.0": np.zeros((200, 3))}), "p.0", 0.05)
    with pytest.raises(DataError, match="no scores of validation rows"):
        choose_threshold(None, "p.0", 0.05)
