"""Workers on a Ray cluster, which may fail to start, die, or vanish with their node at any moment.

Ray places a worker where there is room and says when it died; nothing here waits for one without a limit.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from probekit.engines.answers import Answer, death_answer
from probekit.engines.cluster import one_line, room_of
from probekit.engines.ray_worker import ShardWorker
from probekit.engines.schedule import AGAIN
from probekit.errors import StorageError
from probekit.options.engine import ClusterOptions

TICK = 0.5  # seconds; how often is looked for nodes that joined and workers that are slow
NO_WORKER_SECONDS = 600.0  # that no worker runs: an autoscaling cluster takes minutes to start a node


class RayWorker:
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
        self.workers: list[RayWorker] = []

    def room(self) -> int:
        """How many workers the nodes of the cluster have room for, if nothing else runs there."""
        if time.monotonic() - self._looked >= TICK:
            self._looked = time.monotonic()
            self._room = room_of(self._ray, self._needs)
        return self._room

    def wanted(self, n_left: int) -> int:
        """The least number of workers, and more while the cluster has room and work is left."""
        most = self.room() if self._most is None else min(self._most, self.room())
        return min(max(self._least, most), n_left)

    def start(self) -> None:
        """Ask the cluster for one more worker."""
        made = self._ray.remote(ShardWorker).options(
            **self._needs, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        actor = made.remote()
        self.workers.append(RayWorker(f"worker {next(self._numbers)}", actor, actor.look.remote(*self._opening)))

    def answers(self) -> list[tuple[RayWorker, Answer]]:
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
        self._check_placed()
        return answers

    def _answer(self, call: Any) -> Answer:
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            return death_answer(why_it_died(error))

    def _check_placed(self) -> None:
        if any(worker.placed for worker in self.workers):
            self._waiting_since = time.monotonic()
        elif time.monotonic() - self._waiting_since > NO_WORKER_SECONDS:
            raise StorageError(f"the cluster gave no worker for {NO_WORKER_SECONDS:.0f} seconds; {AGAIN}")

    def end(self, worker: RayWorker) -> None:
        """Forget a worker, and end its process if there is one."""
        self.workers.remove(worker)
        self._kill(worker)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            self._kill(worker)
        self.workers.clear()

    def _kill(self, worker: RayWorker) -> None:
        self._ray.kill(worker.actor, no_restart=True)


def least_and_most(options: ClusterOptions) -> tuple[int, int | None]:
    """The bounds of `workers`, which the options have checked; one, and as many as there is room for, by default."""
    return cast(tuple[int, int | None], options.workers or (1, None))


def why_it_died(error: Exception) -> str:
    """Ray's reason, without its pages of advice."""
    text = one_line(error)
    if "memory" in text and "OutOfMemory" in type(error).__name__ + text:
        return "its process was ended because the memory of its node ran out"
    if "node" in text and ("died" in text or "removed" in text or "dead" in text) and "node_ip" not in text:
        return "its node is gone"
    return "its process died"
