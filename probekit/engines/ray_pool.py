"""Workers on a Ray cluster, which may fail to start, die, or vanish with their node at any moment.

Ray places a worker where there is room and says when it died; nothing here waits for one without a limit.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from probekit.engines.cluster import one_line
from probekit.engines.ray_worker import Answer, ShardWorker

TICK = 0.5  # seconds; how often is looked for nodes that joined and workers that are slow


class Worker:
    """One actor, and the call that it has not answered yet."""

    def __init__(self, name: str, actor: Any, call: Any):
        self.name, self.actor = name, actor
        self.call = call
        self.numbers: list[int] = []  # shards of the call
        self.since = time.monotonic()
        self.placed = self.ready = False  # whether it runs somewhere, and has the model

    @property
    def idle(self) -> bool:
        """True if it waits for work."""
        return self.ready and self.call is None

    @property
    def age(self) -> float:
        """Seconds since its call."""
        return time.monotonic() - self.since

    def load(self) -> None:
        """Let it load the model."""
        self.placed, self.since, self.call = True, time.monotonic(), self.actor.load.remote()

    def give(self, numbers: Sequence[int]) -> None:
        """Let it compute these shards."""
        self.numbers, self.since = list(numbers), time.monotonic()
        self.call = self.actor.write.remote(self.numbers)


class Pool:
    """The workers that are alive, starting, or waiting for room.

    Args:
        ray: the module, connected.
        opening: arguments of `ShardWorker.look`.
        needs: what each worker gets, as Ray's `num_cpus` and `num_gpus`.
    """

    def __init__(self, ray: Any, opening: tuple[str, Mapping[str, str], str], needs: Mapping[str, float]):
        self._ray, self._opening, self._needs = ray, opening, needs
        self._numbers = itertools.count(1)
        self._looked, self._room = -TICK, 0
        self.workers: list[Worker] = []

    def room(self) -> int:
        """How many workers the nodes of the cluster have room for, if nothing else runs there."""
        if time.monotonic() - self._looked >= TICK:
            self._looked = time.monotonic()
            self._room = sum(fitting(node["Resources"], self._needs) for node in self._ray.nodes() if node["Alive"])
        return self._room

    def start(self) -> None:
        """Ask the cluster for one more worker."""
        made = self._ray.remote(ShardWorker).options(
            **self._needs, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        actor = made.remote()
        self.workers.append(Worker(f"worker {next(self._numbers)}", actor, actor.look.remote(*self._opening)))

    def answers(self) -> list[tuple[Worker, Answer | str]]:
        """What workers have answered, or why one is gone; waits for the first of them, a tick at most."""
        calls = {worker.call: worker for worker in self.workers if worker.call is not None}
        if not calls:
            time.sleep(TICK / 10)
            return []
        first, _ = self._ray.wait(list(calls), timeout=TICK)
        found, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0) if first else ([], [])
        for call in found:
            calls[call].call = None
        return [(calls[call], self._answer(call)) for call in found]

    def _answer(self, call: Any) -> Answer | str:
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            return why_it_died(error)

    def end(self, worker: Worker) -> None:
        """Forget a worker, and end its process if there is one."""
        self.workers.remove(worker)
        self._kill(worker)

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            self._kill(worker)
        self.workers.clear()

    def _kill(self, worker: Worker) -> None:
        self._ray.kill(worker.actor, no_restart=True)


def fitting(resources: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many workers with these needs a node with these resources holds."""
    of_each = {"num_cpus": "CPU", "num_gpus": "GPU"}
    return int(min(resources.get(of_each[name], 0.0) / n + 1e-6 for name, n in needs.items() if n))


def why_it_died(error: Exception) -> str:
    """Ray's reason, without its pages of advice."""
    text = one_line(error)
    if "memory" in text and "OutOfMemory" in type(error).__name__ + text:
        return "its process was ended because the memory of its node ran out"
    if "node" in text and ("died" in text or "removed" in text or "dead" in text) and "node_ip" not in text:
        return "its node is gone"
    return "its process died"
