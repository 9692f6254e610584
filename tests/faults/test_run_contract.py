"""The contract of every kind of run: whatever befalls it, the same question again ends in the same answer.

Stores, parts with their statistics, statistics alone, imports, labels, continuations and training (`kinds.py`). Of
stores, which promise more, `test_faults.py` tries the rest.
"""

import os

import pytest

NIGHTLY = os.environ.get("PROBEKIT_FAULTS") == "nightly"
OTHERS = ["parts", "sums", "imports", "labels", "continuations", "training"]


@pytest.mark.parametrize("kind", OTHERS)
def test_a_kill_at_any_moment_costs_only_what_was_under_way(campaign, kind):
    """kill -9, up to four times on one folder: every file under a final name is whole, the resumed run is equal."""
    assert campaign("kills", 4, 100, kind=kind)["resumed"] > 0


@pytest.mark.parametrize("kind", OTHERS)
def test_a_fault_at_each_call_is_reported_or_survived(campaign, kind):
    """A kill, EIO, ENOSPC at each create, write, fsync, rename, link and mkdir: told with code 4, nothing partial is
    visible, the resumed run is equal. Without hard links the run itself is."""
    verdict = campaign("points", 120 if kind == "parts" else 24, 1, kind=kind)
    assert min(verdict[fault] for fault in ("kill", "EIO", "ENOSPC")) > 0


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("damage", ["flips", "truncations", "deletions"])
def test_a_damaged_file_is_named_or_made_again_and_never_answers(campaign, kind, damage):
    verdict = campaign(damage, 24, 300, kind=kind)
    assert damage == "deletions" or verdict["noticed"] > 0


@pytest.mark.parametrize("kind", ["store", *OTHERS])
def test_two_workers_and_one_that_was_stopped_for_a_while_give_the_answer_of_one(campaign, kind):
    assert campaign("writers", 2, 40, kind=kind)["rounds"] == (40 if NIGHTLY else 2)


@pytest.mark.parametrize("kind", ["store", *OTHERS])
def test_another_question_is_refused_and_changes_nothing(campaign, kind):
    assert campaign("questions", 2, 20, kind=kind)["refused"] > 0
