"""`extract --engine ray`: Ray places workers, and the store decides what is done.

Workers get numbers of shards, compute and write them themselves, and answer with a few numbers (`ray_worker.py`). A
shard whose worker died is given to another; near the end, one that takes too long is given to a second worker, and the
first record wins. What a killed driver leaves is a store that the same command goes on with.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import cast

from probekit import errors
from probekit.activations.parts.cut import shard_costs
from probekit.activations.parts.work import ShardDone, begin_work, finish_store
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.loop import shard_rows
from probekit.activations.store.format import record_numbers
from probekit.engines.cluster import ray_cluster
from probekit.engines.ray_pool import Pool, Worker, workers_that_fit
from probekit.engines.ray_worker import Answer, own_versions
from probekit.engines.shares import MOST_LOST, Shares
from probekit.errors import StorageError, UsageError
from probekit.options.engine import ClusterOptions, EngineOptions
from probekit.progress import progress_bar
from probekit.remote.path import AnyPath, RemotePath
from probekit.text import counted

START_TRIES = 3  # workers that fail to start, one after the other, before no more are started
NO_WORKER_SECONDS = 600.0  # that no worker runs: an autoscaling cluster takes minutes to start a node
SLOW = 3.0  # times as long as expected: idle workers get the same shards
STUCK = 20.0  # times as long as expected: the worker is ended
_PATIENCE = 5.0  # seconds that are never too long
_STUCK_PATIENCE = 120.0
_AGAIN = "finished shards stay: run the same command again to resume"
_OF_ALL = ("DataError", "StorageError", "ResumeMismatch")  # while computing, errors that every worker would have

Count = Callable[[ShardDone, int], None]


def run_on_ray(plan: ExtractionPlan, path: AnyPath, options: EngineOptions, progress: bool | None) -> None:
    """Compute every missing shard of the store at `path` on the workers of a Ray cluster.

    Raises:
        UsageError: Ray is not installed, the cluster does not answer, or has no room for a worker.
        DataError, StorageError: as from `extract`; or no worker could start or stay, with the first reason.
    """
    missing = begin_work(plan, path, options.check)
    if missing:
        shares = Shares(missing, shard_costs(plan))
        with ray_cluster(options) as ray, _bar(plan, missing, progress) as count:
            place = str(path) if isinstance(path, RemotePath) else str(path.absolute())
            needs = needs_of(plan, options, [node["Resources"] for node in ray.nodes() if node["Alive"]])
            with closing(Pool(ray, (place, own_versions(), options.check), needs)) as pool:
                check_room(pool, options)
                _Run(pool, shares, path, options, count).all()
    finish_store(path)


def needs_of(plan: ExtractionPlan, options: EngineOptions, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """CPUs and GPUs of a worker: one GPU where the model runs on CUDA, else as many CPUs as let all workers fit.

    Args:
        plan: what is extracted.
        options: say how many workers there are at most, and how many GPUs each gets.
        nodes: CPUs and GPUs of each node.
    """
    gpus = options.gpus_per_worker
    if gpus is None:
        gpus = float(plan.device.type == "cuda")
    bounds = least_and_most(options)
    if gpus or bounds is None:
        return {"num_cpus": 1.0, "num_gpus": gpus}
    most = int(max((node.get("CPU", 0.0) for node in nodes), default=1.0))
    choices: Iterator[dict[str, float]] = ({"num_cpus": float(n), "num_gpus": 0.0} for n in range(most, 1, -1))
    wide = (needs for needs in choices if sum(workers_that_fit(node, needs) for node in nodes) >= bounds[1])
    return next(wide, {"num_cpus": 1.0, "num_gpus": 0.0})


def least_and_most(options: EngineOptions) -> tuple[int, int] | None:
    """The bounds of `workers`, which the options have checked."""
    return cast(tuple[int, int] | None, options.workers)


def check_room(pool: Pool, options: ClusterOptions) -> None:
    """Say that no node has room for a worker; a cluster of its own, which cannot grow, is not waited for.

    Raises:
        UsageError: this machine has no room.
    """
    if pool.room():
        return
    gpus = f" and {pool.needs['num_gpus']:g} GPU" if pool.needs["num_gpus"] else ""
    has = f"{pool.resource('CPU'):g} CPU and {pool.resource('GPU'):g} GPU"
    lacking = (
        f"no node has room for a worker, which needs {pool.needs['num_cpus']:g} CPU{gpus}; the nodes have {has} in all"
    )
    if not (options.address or os.environ.get("RAY_ADDRESS")):
        raise UsageError(f"{lacking}; give fewer --gpus-per-worker, or the --address of a cluster")
    warnings.warn(f"{lacking}; waiting for one that joins", stacklevel=2)


class _Run:
    """The state of one run: who works, what is left, and what went wrong."""

    def __init__(self, pool: Pool, shares: Shares, path: AnyPath, options: EngineOptions, count: Count):
        self.pool, self.shares, self.path, self.count = pool, shares, path, count
        self.least, self.most = least_and_most(options) or (1, None)
        self.failed: list[Exception] = []  # why workers could not start, since one did
        self.twice: set[int] = set()  # shards that a second worker has
        self.waiting_since = time.monotonic()  # while no worker runs anywhere

    def all(self) -> None:
        """Return when every shard has a record."""
        while self.shares.left:
            self._start()
            self._give()
            for worker, answer in self.pool.answers():
                if isinstance(answer, str):
                    self._lost(worker, StorageError(f"{worker.name}: {answer}"))
                elif "error" in answer:
                    self._failed(worker, answer)
                else:
                    self._answered(worker, answer)
            self._look()

    def _start(self) -> None:
        """Ask for `least` workers, and for more while the cluster has room and work is left."""
        if len(self.failed) >= START_TRIES:
            return
        room = self.pool.room()
        most = max(self.least, room if self.most is None else min(self.most, room))
        while len(self.pool.workers) < min(most, len(self.shares.left)):
            self.pool.start()

    def _give(self) -> None:
        """Give shards to idle workers; when all are given, those of slow workers a second time."""
        idle = [worker for worker in self.pool.workers if worker.idle]
        for at, worker in enumerate(idle):
            numbers = self.shares.take(len(self.pool.workers)) or self._of_a_slow_one(len(idle) - at)
            if numbers:
                worker.give(numbers)

    def _of_a_slow_one(self, n_idle: int) -> list[int]:
        """Shards that one worker has had for too long, the last first: it computes them in their order."""
        for worker in self.pool.workers:
            if self._is_late(worker, _PATIENCE, SLOW):
                left = self._note_records(worker.numbers)
                found = [number for number in reversed(left) if number not in self.twice]
                some = found[: -(-len(found) // n_idle)]
                self.twice.update(some)
                if some:
                    return some
        return []

    def _is_late(self, worker: Worker, patience: float, times: float) -> bool:
        """True if a worker takes so many times as long as its shards should, and more than some seconds."""
        expected = self.shares.seconds(worker.numbers)
        busy = worker.ready and not worker.idle
        return busy and expected is not None and worker.age > max(patience, times * expected)

    def _note_records(self, numbers: list[int]) -> list[int]:
        """Count the shards that have a record, although nobody has said so; the others."""
        there = set(record_numbers(self.path))
        left = [number for number in numbers if number not in there]
        self._count([ShardDone(number, 0, 0, 0, 0.0, computed=False) for number in set(numbers) - set(left)])
        return left

    def _count(self, done: list[ShardDone]) -> None:
        new = set(self.shares.finish(one.number for one in done))
        for one in done:
            if one.number in new:
                self.count(one, sum(worker.ready for worker in self.pool.workers))

    def _answered(self, worker: Worker, answer: Answer) -> None:
        if "node" in answer:
            worker.name += f" on {answer['node']}"
            worker.load()
        elif "loaded" in answer:
            worker.ready = True
            self.failed.clear()
        else:
            done = [ShardDone(**one) for one in answer["done"]]
            if all(one.computed for one in done):
                self.shares.time(worker.numbers, worker.age)
            self._count(done)

    def _failed(self, worker: Worker, answer: Answer) -> None:
        """Take note of an error that a worker reports.

        Raises:
            ProbekitError: every worker would have it.
        """
        kind = getattr(errors, answer["kind"], StorageError)
        error = kind(f"{worker.name}: {answer['error']}")
        if answer["errno"] is not None:  # the command line says what was saved where the disk refused
            error.__cause__ = OSError(answer["errno"], answer["error"])
        if worker.ready and answer["kind"] in _OF_ALL:
            raise error
        self._lost(worker, error)

    def _lost(self, worker: Worker, error: Exception) -> None:
        """Do without a worker; its shards go to others.

        Raises:
            ProbekitError: no worker can start, or a shard has lost too many workers.
        """
        self.pool.end(worker)
        if not worker.ready:
            self.failed.append(error)
            if not self.pool.workers and len(self.failed) >= START_TRIES:
                raise self.failed[0]
            more = START_TRIES - len(self.failed)
            then = f"{counted(more, 'more start')} will be tried" if more > 0 else "no more are started"
            warnings.warn(f"{error}; {then}", stacklevel=2)
            return
        left = self._note_records(worker.numbers)
        self.twice.difference_update(left)
        often = self.shares.lose(left)
        if often is not None:
            raise StorageError(f"{error}; shard {often} was lost with {MOST_LOST} workers; {_AGAIN}")
        if not self.pool.workers and len(self.failed) >= START_TRIES:
            raise self.failed[0]
        warnings.warn(f"{error}; others will do its {counted(len(left), 'shard')}", stacklevel=2)

    def _look(self) -> None:
        """End workers that are stuck; raise a StorageError if the cluster gives none for too long."""
        for worker in list(self.pool.workers):
            if self._is_late(worker, _STUCK_PATIENCE, STUCK):
                self._lost(worker, StorageError(f"{worker.name}: no answer for {worker.age:.0f} seconds"))
        if any(worker.placed for worker in self.pool.workers):
            self.waiting_since = time.monotonic()
        if time.monotonic() - self.waiting_since > NO_WORKER_SECONDS:
            raise (
                self.failed[0]
                if self.failed
                else StorageError(f"the cluster gave no worker for {NO_WORKER_SECONDS:.0f} seconds; {_AGAIN}")
            )


@contextmanager
def _bar(plan: ExtractionPlan, missing: list[int], show: bool | None) -> Iterator[Count]:
    """One bar over all workers: texts done and time left, tokens per second, megabytes so far."""
    start, tokens, n_bytes = time.monotonic(), 0, 0
    there = set(range(len(plan.shards))) - set(missing)
    with progress_bar("extract", "texts", len(plan.task), show) as bar:
        bar.advance(sum(len(shard_rows(plan, number)) for number in there))

        def count(done: ShardDone, workers: int) -> None:
            nonlocal tokens, n_bytes
            tokens, n_bytes = tokens + done.tokens * done.computed, n_bytes + done.n_bytes
            rate = tokens / (time.monotonic() - start)
            rows = len(shard_rows(plan, done.number))
            bar.advance(rows, f"{rate:,.0f} tokens/s, {n_bytes / 1e6:,.0f} MB, {counted(workers, 'worker')}")

        yield count
