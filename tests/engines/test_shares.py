"""Shards are given out once each, the most expensive first, in tasks of some seconds, and again when they are lost."""

import numpy as np
import pytest

from probekit.engines.shares import MOST_LOST, TASK_SECONDS, Shares


def test_every_shard_is_given_once_the_most_expensive_first():
    costs = np.random.default_rng(0).lognormal(size=40)
    shares, given = Shares(range(0, 40, 2), costs), list[int]()
    while numbers := shares.take(3):
        given += numbers
        shares.time(numbers, 0.01)
    assert sorted(given) == list(range(0, 40, 2))
    assert given == sorted(given, key=lambda number: -costs[number])


def test_tasks_are_one_shard_until_the_speed_is_known_then_some_seconds_then_less():
    shares = Shares(range(1000), np.ones(1000))
    assert shares.take(2) == [0]
    assert shares.take(2) == [1]
    assert shares.seconds([2]) is None
    shares.time([0], 0.1)
    assert shares.seconds([2, 3]) == pytest.approx(0.2)
    assert len(shares.take(2)) == round(TASK_SECONDS / 0.1)
    sizes = []
    while numbers := shares.take(2):
        sizes.append(len(numbers))
        shares.time(numbers, 0.1 * len(numbers))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    left = 1000 - 2 - round(TASK_SECONDS / 0.1)
    for size in sizes:
        assert size <= max(1, left / 4)
        left -= size
    assert left == 0


def test_lost_shards_come_back_first_and_alone_and_not_for_ever():
    shares = Shares(range(20), np.arange(20.0, 0, -1))
    shares.time([0], 0.001)
    task = shares.take(1)
    assert len(task) > 2
    assert shares.finish(task[:1]) == task[:1]
    assert shares.finish(task[:1]) == []
    for _ in range(MOST_LOST - 1):
        assert shares.lose(task) is None
        assert [shares.take(1) for _ in task[1:]] == [[number] for number in task[1:]]
    assert len(shares.take(1)) > 1  # those that were never lost go together
    assert shares.lose(task) == task[1]
    assert shares.left == set(range(20)) - {task[0]}


def test_a_shard_that_two_workers_lose_waits_once():
    shares = Shares(range(3), np.ones(3))
    first = shares.take(1)
    shares.lose(first)
    shares.lose(first)
    given = []
    while numbers := shares.take(1):
        given += numbers
    assert given == [0, 1, 2]
