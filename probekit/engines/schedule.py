"""Which worker computes which shard, whoever carries the messages: pipes (`devices.py`) or Ray (`ray_extract.py`).

The most expensive shards go first. Those of a worker that died go to others; near the end, those of a slow worker are
given to idle ones a second time, and the first record wins. A worker that is silent for far too long is ended.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from probekit.activations.parts.cut import shard_costs
from probekit.activations.parts.work import ShardDone, begin_work, finish_store
from probekit.activations.plan.plan import ExtractionPlan, shard_rows
from probekit.activations.run.loop import extract_bar
from probekit.activations.store.format import record_numbers
from probekit.engines.answers import OF_ALL, Answer, error_of
from probekit.engines.shares import MOST_LOST, Shares
from probekit.errors import ProbekitError, StorageError
from probekit.files.remote.path import AnyPath
from probekit.text import counted

START_TRIES = 3  # workers that fail to start, one after the other, before no more are started
SLOW = 3.0  # times as long as expected: idle workers get the same shards
STUCK = 20.0  # times as long as expected: the worker is ended
PATIENCE = 5.0  # seconds that are never too slow
STUCK_PATIENCE = 120.0  # seconds of silence that never end a worker
AGAIN = "finished shards stay: run the same command again to resume"


class Worker(Protocol):
    """A process that computes shards."""

    name: str
    ready: bool  # it has the model
    numbers: list[int]  # shards that it has and has not reported
    heard: float  # time.monotonic() of its last answer, or of the first shards after it

    def give(self, numbers: Sequence[int]) -> None:
        """Have it compute these shards, after those that it has."""
        ...


W = TypeVar("W", bound=Worker)


class Crew(Protocol[W]):
    """The workers of one run, and the messages to and from them."""

    workers: list[W]
    ahead: int  # shards that a worker may hold when it gets more
    alike: bool  # whether what keeps one worker from starting would keep all

    def wanted(self, n_left: int) -> int:
        """How many workers there should be while so many shards are left; missing ones are started."""
        ...

    def start(self) -> None:
        """Ask for one more worker."""
        ...

    def answers(self) -> Sequence[tuple[W, Answer]]:
        """What workers have answered; waits for the first answer, about a second at most."""
        ...

    def end(self, worker: W) -> None:
        """Forget a worker, and end its process."""
        ...


class Schedule(Generic[W]):
    """The state of one run: what is left, and what went wrong.

    Args:
        crew: the workers.
        shares: the shards.
        path: the store.
        count: called with each shard that is on disk.
    """

    def __init__(self, crew: Crew[W], shares: Shares, path: AnyPath, count: Callable[[ShardDone], None]):
        self._crew, self._shares, self._path, self._count_one = crew, shares, path, count
        self._reasons: list[ProbekitError] = []  # why workers were lost
        self._failed: list[ProbekitError] = []  # why workers could not start, since one did

    def compute(self) -> None:
        """Return when every shard has a record.

        Raises:
            ProbekitError: an error that every worker would have, no worker is left, or a shard that costs too many.
        """
        while self._shares.left:
            while self._may_start and len(self._crew.workers) < self._crew.wanted(len(self._shares.left)):
                self._crew.start()
            self._give()
            for worker, answer in self._crew.answers():
                if worker in self._crew.workers:
                    self._take(worker, answer)
            for worker in list(self._crew.workers):
                if self._is_late(worker, STUCK_PATIENCE, STUCK):
                    self._lose(worker, StorageError(f"{worker.name}: no answer for {_age(worker):,.0f} seconds"))

    @property
    def _may_start(self) -> bool:
        return len(self._failed) < START_TRIES

    def _give(self) -> None:
        """Give shards to the worker with the fewest, as long as one has room; fewer at once near the end."""
        ready = [worker for worker in self._crew.workers if worker.ready]
        while ready:
            worker = min(ready, key=lambda one: len(one.numbers))
            ahead = min(self._crew.ahead, max(1, len(self._shares.left) // (2 * len(ready))))
            if len(worker.numbers) >= ahead:
                return
            numbers = self._shares.take(len(ready))
            if not numbers and not worker.numbers:
                numbers = self._of_a_slow_one(sum(not one.numbers for one in ready))
            if not numbers:
                return
            if not worker.numbers:
                worker.heard = time.monotonic()
            worker.numbers += numbers
            worker.give(numbers)

    def _of_a_slow_one(self, n_idle: int) -> list[int]:
        """Shards that another worker has had for too long, for one of so many idle ones."""
        for worker in self._crew.workers:
            if self._is_late(worker, PATIENCE, SLOW) and (some := self._shares.again(worker.numbers, n_idle)):
                return self._without_record(some)
        return []

    def _is_late(self, worker: W, patience: float, times: float) -> bool:
        """True if a worker is silent for so many times as long as its shards should take, and for some seconds."""
        expected = self._shares.seconds(worker.numbers)
        busy = worker.ready and worker.numbers
        return bool(busy) and expected is not None and _age(worker) > max(patience, times * expected)

    def _without_record(self, numbers: Sequence[int]) -> list[int]:
        """Count the shards that have a record, although nobody has said so; the others."""
        there = set(record_numbers(self._path)) if numbers else set[int]()
        left = [number for number in numbers if number not in there]
        self._count(ShardDone(n, 0, 0, 0, 0.0, computed=False) for n in numbers if n not in left)
        return left

    def _count(self, done: Iterator[ShardDone]) -> None:
        for one in done:
            if self._shares.finish([one.number]):
                self._count_one(one)

    def _take(self, worker: W, answer: Answer) -> None:
        if "error" in answer:
            error = error_of(answer, worker.name)
            if answer["kind"] in OF_ALL and (worker.ready or self._crew.alike):
                raise error
            self._lose(worker, error)
        elif "ready" in answer:
            worker.ready = True
            self._failed.clear()
        else:
            done = [ShardDone(**one) for one in answer["done"]]
            numbers = [one.number for one in done]
            if all(one.computed for one in done):
                # answers that come at once were computed one after the other
                self._shares.time(numbers, max(_age(worker), sum(one.seconds for one in done)))
            worker.numbers = [number for number in worker.numbers if number not in numbers]
            worker.heard = time.monotonic()
            self._count(iter(done))

    def _lose(self, worker: W, error: ProbekitError) -> None:
        """Do without a worker: its shards go to others, and a warning says so.

        Raises:
            ProbekitError: nobody is left and nobody more can start, or a shard was lost with too many workers.
        """
        self._crew.end(worker)
        self._reasons.append(error)
        if not worker.ready:
            self._failed.append(error)
        held = {number for other in self._crew.workers for number in other.numbers}
        left = [number for number in self._without_record(worker.numbers) if number not in held]
        often = self._shares.lose(left)
        if often is not None:
            raise StorageError(f"{error}; shard {often} was lost with {MOST_LOST} workers; {AGAIN}")
        grows = self._may_start and self._crew.wanted(len(self._shares.left)) > 0
        if not self._crew.workers and not grows and self._shares.left:
            raise self._last_error()
        warnings.warn(f"{error}; {self._what_then(worker, len(left), grows)}", stacklevel=2)

    def _what_then(self, worker: W, n_left: int, grows: bool) -> str:
        if n_left:
            return f"others will do its {counted(n_left, 'shard')}"
        if worker.ready or self._crew.alike:
            return "the others do without it"
        return f"{counted(START_TRIES - len(self._failed), 'more start')} will be tried" if grows else "no more start"

    def _last_error(self) -> ProbekitError:
        first, *others = self._failed or self._reasons
        more = f"; then {counted(len(others), 'other')} failed" if others else ""
        memory = "; a smaller --batch-tokens needs less" if "out of memory" in str(first) else ""
        error = type(first)(f"{first}{more}{memory}; {AGAIN}")
        error.__cause__ = first.__cause__
        return error


def _age(worker: Worker) -> float:
    """Seconds since a worker was heard."""
    return time.monotonic() - worker.heard


def compute_missing(
    plan: ExtractionPlan,
    path: AnyPath,
    check: str,
    progress: bool | None,
    crew: Callable[[], AbstractContextManager[Crew[Any]]],
) -> None:
    """Have a crew compute every shard of the store at `path` that has no record, and finish the store.

    Args:
        plan: what is extracted.
        path: the store.
        check: how records that are there are checked.
        progress: whether a bar, which counts whole shards, is shown: None on a terminal only.
        crew: starts the workers, and ends them when its context does.

    Raises:
        ProbekitError: as `Schedule.compute`.
    """
    missing = begin_work(plan, path, check)
    if missing:
        shares = Shares(missing, shard_costs(plan))
        with crew() as workers, extract_bar(plan, len(plan.task), progress) as advance:
            for number in set(range(len(plan.shards))) - set(missing):
                advance(shard_rows(plan, number), 0)

            def count(done: ShardDone) -> None:
                advance(shard_rows(plan, done.number), done.n_bytes * done.computed)

            Schedule(workers, shares, path, count).compute()
    finish_store(path)
