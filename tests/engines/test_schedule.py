"""Whatever workers do, every shard is counted once, and nobody is waited for without a limit: on simulated workers.

Shards are given out once each, the most expensive first, in tasks of some seconds, and again when they are lost.
"""

import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from probekit.activations.parts.work import ShardDone
from probekit.engines import schedule
from probekit.engines.answers import Answer, death_answer, error_answer
from probekit.engines.schedule import AGAIN, START_TRIES, Schedule
from probekit.engines.shares import MOST_LOST, TASK_SECONDS, Shares
from probekit.errors import DataError, ProbekitError, StorageError, UsageError

N = 30
Fate = Callable[["One", int], Answer | str | None]  # of a worker at a shard: an answer, "silent", or None: it does it


class One:
    """A simulated worker, which computes a shard at each tick."""

    def __init__(self, name: str):
        self.name, self.ready, self.heard = name, False, 0.0
        self.numbers: list[int] = []
        self.todo: list[int] = []
        self.silent = False

    def give(self, numbers: Sequence[int]) -> None:
        self.todo += numbers


class Simulated:
    """A crew whose workers do what `fate` says; a tick takes a second."""

    def __init__(self, folder: Path, n: int, fate: Fate, grows: bool = False, ahead: int = 1):
        self.n, self.fate, self.grows, self.ahead, self.alike = n, fate, grows, ahead, not grows
        self.folder, self.now, self.started = folder, 0.0, 0
        self.computed: list[int] = []
        self.workers: list[One] = []
        (folder / "records").mkdir(parents=True)
        (folder / "shards").mkdir()
        for _ in range(n):
            self.start()

    def wanted(self, n_left: int) -> int:
        return min(self.n, n_left) if self.grows else 0

    def start(self) -> None:
        self.started += 1
        self.workers.append(One(f"w{self.started}"))

    def end(self, worker: One) -> None:
        self.workers.remove(worker)

    def answers(self) -> list[tuple[One, Answer]]:
        self.now += 1.0
        assert self.now < 10_000, "never ends"
        return [(worker, answer) for worker in self.workers if (answer := self._step(worker))]

    def _step(self, worker: One) -> Answer | None:
        if not worker.ready:
            answer = self.fate(worker, -1)
            return answer if isinstance(answer, dict) else {"ready": True}
        if worker.silent or not worker.todo:
            return None
        number = worker.todo.pop(0)
        answer = self.fate(worker, number)
        if answer == "silent":
            worker.silent = True
        if answer is not None:
            return answer if isinstance(answer, dict) else None
        record = self.folder / "records" / f"{number:05d}.json"
        new = not record.exists()
        record.touch()
        self.computed.append(number)
        return {"done": [vars(ShardDone(number, 1, 1, 1, 1.0, computed=new))]}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Simulated, list[str]]]:
    """Runs a schedule; the crew, and the warnings. Every shard was counted once if it returns."""

    def runs(fate: Fate, n: int = 2, n_shards: int = N, **how: object) -> tuple[Simulated, list[str]]:
        crew = Simulated(tmp_path / str(len(list(tmp_path.iterdir()))), n, fate, **how)  # type: ignore[arg-type]
        monkeypatch.setattr(schedule, "time", SimpleNamespace(monotonic=lambda: crew.now))
        counted: list[int] = []
        shares = Shares(range(n_shards), np.linspace(1.0, 2.0, n_shards))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            Schedule(crew, shares, crew.folder, lambda done: counted.append(done.number)).compute()
        assert sorted(counted) == list(range(n_shards))
        return crew, [str(one.message) for one in found]

    return runs


def fine(worker: One, number: int) -> None:
    return None


@pytest.mark.parametrize("ahead", [1, 5])
def test_without_faults_each_shard_is_computed_once_and_the_work_is_shared(run: Callable, ahead: int) -> None:
    crew, said = run(fine, ahead=ahead)
    assert sorted(crew.computed) == list(range(N))
    assert crew.now <= N / 2 + 3
    assert said == []


@pytest.mark.parametrize("seed", range(20))
def test_every_shard_is_counted_once_whoever_dies_or_falls_silent(run: Callable, seed: int) -> None:
    draws = random.Random(seed)
    bad: list[str] = []

    def fate(worker: One, number: int) -> Answer | str | None:
        if number >= 0 and worker.name not in ("w1", *bad) and draws.random() < 0.2 and len(bad) < 8:
            bad.append(worker.name)
            return draws.choice(["silent", death_answer("its process died"), error_answer(RuntimeError("CUDA"))])
        return None

    grows = bool(seed % 2)
    run(fate, n=4, grows=grows, ahead=1 if grows else 5)


def test_shards_of_a_worker_that_dies_go_to_others_in_one_line(run: Callable) -> None:
    dies = death_answer("its process died")
    crew, said = run(lambda one, number: dies if one.name == "w2" and number >= 0 else None)
    assert said == ["w2: its process died; others will do its 1 shard"]
    assert sorted(crew.computed) == list(range(N))


def test_shards_of_a_slow_worker_are_given_to_an_idle_one_without_a_word(run: Callable) -> None:
    crew, said = run(lambda one, number: "silent" if one.name == "w2" and number >= 0 else None, ahead=5)
    assert said == []
    assert crew.now < N + schedule.STUCK_PATIENCE


def test_a_worker_that_is_silent_for_far_too_long_is_ended_and_replaced(run: Callable) -> None:
    crew, said = run(lambda one, number: "silent" if one.name == "w1" and number < N - 3 else None, n=1, grows=True)
    assert len(said) == 1
    assert said[0].startswith("w1: no answer for 12")
    assert crew.started == 2


def test_a_shard_that_every_worker_dies_of_ends_the_run(run: Callable) -> None:
    dies = death_answer("its process died")
    with pytest.raises(StorageError, match=rf"shard 7 was lost with {MOST_LOST} workers; {AGAIN}"):
        run(lambda one, number: dies if number == 7 else None, n=2, grows=True)


def test_an_error_that_every_worker_would_have_is_raised_at_once(run: Callable) -> None:
    unsound = error_answer(DataError("NaN in example '7'"))
    with pytest.raises(DataError, match=r"^w\d: NaN in example '7'$"):
        run(lambda one, number: unsound if number == 7 else None)
    with pytest.raises(DataError, match=r"^w1: no model$"):  # machines are alike, so the second would not start either
        run(lambda one, number: error_answer(DataError("no model")))


@pytest.mark.parametrize(("n", "grows", "failed"), [(3, False, 3), (1, True, START_TRIES), (4, True, START_TRIES + 1)])
def test_when_nobody_is_left_the_first_reason_is_the_error(run: Callable, n: int, grows: bool, failed: int) -> None:
    other = error_answer(UsageError("other versions"))
    with pytest.raises(UsageError, match=rf"^w1: other versions; then {failed - 1} others failed; {AGAIN}$"):
        run(lambda one, number: other, n=n, grows=grows)


def test_a_worker_that_cannot_start_is_tried_again_and_the_count_begins_anew(run: Callable) -> None:
    late = error_answer(UsageError("no driver of CUDA"))
    crew, said = run(lambda one, number: late if one.name in ("w1", "w2") and number < 0 else None, n=1, grows=True)
    assert crew.started == 3
    assert said == [
        f"{name}: no driver of CUDA; {more} will be tried"
        for name, more in [("w1", "2 more starts"), ("w2", "1 more start")]
    ]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (StorageError("no\nspace"), StorageError, "w: no space"),
        (MemoryError(), StorageError, "w: out of memory"),
        (KeyError("x"), StorageError, "w: KeyError: 'x'"),
        (UsageError("u"), UsageError, "w: u"),
    ],
)
def test_an_error_survives_its_answer_as_one_line(error: Exception, kind: type[ProbekitError], said: str) -> None:
    error.__cause__ = OSError(28, "No space left on device")
    found = schedule.error_of(error_answer(error), "w")
    assert (type(found), str(found)) == (kind, said)
    assert isinstance(found.__cause__, OSError)
    assert found.__cause__.errno == 28


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
