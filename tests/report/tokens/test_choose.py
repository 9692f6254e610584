"""Which texts are shown."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.report.tokens.find import choose_texts, confidence_of


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 5), st.data())
def test_each_row_once_and_as_many_as_there_are(n, size, seed, data):
    sure = np.array(data.draw(st.lists(st.floats(0, 9), min_size=size, max_size=size)))
    wrong = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=bool)
    rows, why = choose_texts(n, seed, np.arange(size) * 3, sure, wrong)
    assert len(rows) == len(why) == min(n, size) == len(set(rows.tolist()))
    assert set(rows.tolist()) <= set(range(0, 3 * size, 3))
    assert all(wrong[row // 3] for row, reason in zip(rows.tolist(), why, strict=True) if reason == "mistake")
    assert why.count("mistake") == min(round(0.3 * n), int(wrong.sum()), n)
    again, _ = choose_texts(n, seed, np.arange(size) * 3, sure, wrong)
    assert again.tolist() == rows.tolist()


def test_the_most_confident_mistakes_and_the_extremes_are_chosen():
    sure = np.arange(100.0)
    wrong = np.isin(np.arange(100), [3, 50, 90])
    rows, why = choose_texts(10, 0, np.arange(100), sure, wrong)
    by_reason = {reason: [row for row, own in zip(rows.tolist(), why, strict=True) if own == reason] for reason in why}
    assert by_reason["mistake"] == [90, 50, 3]
    assert by_reason["least confident"] == [0, 1]
    assert by_reason["most confident"] == [99, 98]
    assert len(by_reason["random"]) == 3


def test_without_scores_all_are_random():
    rows, why = choose_texts(5, 1, np.arange(50), None, None)
    assert set(why) == {"random"}
    assert rows.tolist() != choose_texts(5, 2, np.arange(50), None, None)[0].tolist()


def test_confidence_is_the_distance_to_the_threshold_or_to_the_next_class():
    assert confidence_of(np.array([-2.0, 0.5]), 1.0).tolist() == [3.0, 0.5]
    assert confidence_of(np.array([[1.0, 4.0, 2.0]])).tolist() == [2.0]
