"""When the alarms of running scores go off, against a loop over tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from probekit.evaluation.scores.alarms import alarms_at, highest, lead_of, rises_of, some_rises

RUNNING = st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=12), min_size=1, max_size=8)


def slow_alarm(scores: list[int], threshold: float) -> int:
    return next((i for i, score in enumerate(scores) if score >= threshold), -1)


@given(RUNNING, st.floats(-4, 4))
def test_an_alarm_goes_off_at_the_first_score_at_the_threshold(texts: list[list[int]], threshold: float) -> None:
    rises = rises_of([np.array(own, dtype=float) for own in texts])
    for line in (threshold, float(round(threshold))):
        assert alarms_at(rises, line).tolist() == [slow_alarm(own, line) for own in texts]
    assert highest(rises).tolist() == [max(own) for own in texts]
    assert rises.lengths.tolist() == [len(own) for own in texts]
    assert rises.counts.sum() == len(rises.tokens) == len(rises.scores)


@given(RUNNING, st.integers(-3, 3), st.randoms())
def test_leads_are_quartiles_of_the_tokens_that_follow(texts: list[list[int]], threshold: int, random) -> None:
    rises = rises_of([np.array(own, dtype=float) for own in texts])
    which = random.sample(range(len(texts)), random.randint(1, len(texts)))
    early = [len(texts[i]) - 1 - at for i in which if (at := slow_alarm(texts[i], threshold)) >= 0]
    found = lead_of(some_rises(rises, np.array(which)), threshold)
    if not early:
        assert found is None
        return
    assert found is not None
    assert (found.alarms, found.median) == (len(early), np.median(early))
    assert [found.low, found.high] == np.percentile(early, [25, 75]).tolist()
