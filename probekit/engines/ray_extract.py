"""`extract --engine ray`: Ray places workers, and the store decides what is done.

Workers may fail to start, die, or vanish with their node at any moment. Ray places one where there is room and says
when it died; nothing here waits for one without a limit.

Workers get numbers of shards, compute and write them themselves, and answer with a few numbers (`answers.py`); which
worker gets which shard, and what happens when one dies, is in `schedule.py`. After a killed driver, the same command
computes the shards without a record.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, cast

from probekit.activations.plan.plan import ExtractionPlan
from probekit.engines.answers import Answer, ShardWorker, death_answer, one_line, own_versions
from probekit.engines.cluster import check_workers_fit, ray_cluster, resources_of, room_of, workers_that_fit
from probekit.engines.schedule import AGAIN, compute_missing
from probekit.errors import StorageError
from probekit.files.remote.path import AnyPath
from probekit.options.engine import ClusterOptions, EngineOptions

TICK = 0.5  # seconds; how often is looked for nodes that joined and workers that are slow
NO_WORKER_SECONDS = 600.0  # that no worker runs: an autoscaling cluster takes minutes to start a node


def run_on_ray(plan: ExtractionPlan, path: AnyPath, options: EngineOptions, progress: bool | None) -> None:
    """Compute every missing shard of the store at `path` on the workers of a Ray cluster.

    Raises:
        UsageError: Ray is not installed, the cluster does not answer, or has no room for a worker.
        DataError, StorageError: as from `extract`; or no worker could start or stay, with the first reason.
    """

    @contextmanager
    def crew() -> Iterator[Pool]:
        with ray_cluster(options) as ray:
            needs = needs_of(plan, options, resources_of(ray))
            check_workers_fit(ray, needs, options)
            opening = (str(path.absolute()), own_versions(), options.check)
            with closing(Pool(ray, opening, needs, _least_and_most(options))) as pool:
                yield pool

    compute_missing(plan, path, options.check, progress, crew)


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
    _, at_most = _least_and_most(options)
    if gpus or at_most is None:
        return {"num_cpus": 1.0, "num_gpus": gpus}
    most = int(max((node.get("CPU", 0.0) for node in nodes), default=1.0))
    choices: Iterator[dict[str, float]] = ({"num_cpus": float(n), "num_gpus": 0.0} for n in range(most, 1, -1))
    wide = (needs for needs in choices if sum(workers_that_fit(node, needs) for node in nodes) >= at_most)
    return next(wide, {"num_cpus": 1.0, "num_gpus": 0.0})


class _RayWorker:
    """One actor, and the call that it has not answered yet."""

    def __init__(self, name: str, actor: Any, call: Any):
        self.name, self.actor = name, actor
        self.call = call
        self.numbers: list[int] = []
        self.heard = time.monotonic()
        self.placed = self.ready = False  # whether it runs somewhere, and has the model

    def load(self, node: str) -> None:
        """Let it load the model, on the node on which it runs."""
        self.name += f" on {node}"
        self.placed, self.heard, self.call = True, time.monotonic(), self.actor.load.remote()

    def give(self, numbers: Sequence[int]) -> None:
        """Let it compute these shards."""
        self.call = self.actor.write.remote(list(numbers))


class Pool:
    """The workers that are alive, starting, or waiting for room.

    Args:
        ray: the module, connected.
        opening: arguments of `ShardWorker.look`.
        needs: what each worker gets, as Ray's `num_cpus` and `num_gpus`.
        bounds: how many workers are asked for at once, and how many there are at most (None: as the cluster has room).
    """

    ahead, alike = 1, False  # a call has many shards; nodes differ

    def __init__(
        self,
        ray: Any,
        opening: tuple[str, Mapping[str, str], str],
        needs: Mapping[str, float],
        bounds: tuple[int, int | None],
    ):
        self._ray, self._opening, self._needs = ray, opening, needs
        self._least, self._most = bounds
        self._numbers = itertools.count(1)
        self._looked, self._room = -TICK, 0
        self._waiting_since = time.monotonic()  # while no worker runs anywhere
        self.workers: list[_RayWorker] = []

    def wanted(self, n_left: int) -> int:
        """The least number of workers, and more while the cluster has room and work is left."""
        if time.monotonic() - self._looked >= TICK:
            self._looked = time.monotonic()
            self._room = room_of(self._ray, self._needs)
        most = self._room if self._most is None else min(self._most, self._room)
        return min(max(self._least, most), n_left)

    def start(self) -> None:
        """Ask the cluster for one more worker."""
        made = self._ray.remote(ShardWorker).options(
            **self._needs, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        actor = made.remote()
        self.workers.append(_RayWorker(f"worker {next(self._numbers)}", actor, actor.look.remote(*self._opening)))

    def answers(self) -> list[tuple[_RayWorker, Answer]]:
        """What workers have answered, or why one is gone; waits for the first of them, a tick at most.

        Raises:
            StorageError: no worker runs anywhere, for too long.
        """
        calls = {worker.call: worker for worker in self.workers if worker.call is not None}
        if not calls:
            time.sleep(TICK / 10)
            return []
        first, _ = self._ray.wait(list(calls), timeout=TICK)
        found, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0) if first else ([], [])
        answers = []
        for call in found:
            worker, answer = calls[call], self._answer(call)
            worker.call = None
            if "node" in answer:
                worker.load(answer["node"])
            else:
                answers.append((worker, answer))
        if any(worker.placed for worker in self.workers):
            self._waiting_since = time.monotonic()
        elif time.monotonic() - self._waiting_since > NO_WORKER_SECONDS:
            raise StorageError(f"the cluster gave no worker for {NO_WORKER_SECONDS:.0f} seconds; {AGAIN}")
        return answers

    def _answer(self, call: Any) -> Answer:
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            return death_answer(_why_it_died(error))

    def end(self, worker: _RayWorker) -> None:
        """Forget a worker, and end its process if there is one."""
        self.workers.remove(worker)
        self._ray.kill(worker.actor, no_restart=True)

    def close(self) -> None:
        """End all workers."""
        for worker in list(self.workers):
            self.end(worker)


def _least_and_most(options: ClusterOptions) -> tuple[int, int | None]:
    """The bounds of `workers`, which the options have checked; one, and as many as there is room for, by default."""
    return cast(tuple[int, int | None], options.workers or (1, None))


def _why_it_died(error: Exception) -> str:
    """Ray's reason, without its pages of advice."""
    text = one_line(error)[:500]  # the advice that follows names nodes, and ways in which workers die
    if "memory" in text and "OutOfMemory" in type(error).__name__ + text:
        return "its process was ended because the memory of its node ran out"
    if "node" in text and ("died" in text or "removed" in text or "dead" in text) and "node_ip" not in text:
        return "its node is gone"
    return "its process died"
