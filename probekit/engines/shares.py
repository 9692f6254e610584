"""Which shards a worker gets next: a few at a time, so that a task takes some seconds and all workers end together."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

TASK_SECONDS = 5.0  # of work in a task: a call costs some milliseconds, and the end of one waits for the disk
MOST_LOST = 5  # times that a shard may be lost with its worker
_REMEMBERED = 32  # tasks whose speed is known


class Shares:
    """The shards that are left, the most expensive first.

    Args:
        missing: numbers of the shards without a record.
        costs: of every shard, in any unit.
    """

    def __init__(self, missing: Sequence[int], costs: np.ndarray):
        self.left = set(missing)  # without a record, as far as is known
        self._costs = costs
        self._queue = deque(sorted(self.left, key=lambda number: (-costs[number], number)))
        self._queued = self._cost(self._queue)
        self._lost: Counter[int] = Counter()
        self._twice: set[int] = set()  # shards that a second worker has
        self._seconds_per_cost: deque[float] = deque(maxlen=_REMEMBERED)

    def take(self, n_workers: int) -> list[int]:
        """Shards for one of so many workers; none if all are with workers.

        The first tasks are one shard each, which shows how long they take. Later ones take `TASK_SECONDS`, and less
        near the end: at most half of an equal share of what is left. A shard that was lost with a worker goes alone.
        """
        taken, cost = list[int](), 0.0
        share = self._queued / (2 * n_workers)
        budget = min(share, TASK_SECONDS / median(self._seconds_per_cost)) if self._seconds_per_cost else 0.0
        while self._queue:
            number = self._queue[0]
            alone = self._lost[number] > 0 or any(self._lost[first] > 0 for first in taken[:1])
            if taken and (alone or cost + self._costs[number] > budget):
                break
            taken.append(self._queue.popleft())
            cost += float(self._costs[number])
        self._queued -= cost
        return taken

    def finish(self, numbers: Iterable[int]) -> list[int]:
        """Note that these have a record; those of them that were not known to."""
        new = [number for number in numbers if number in self.left]
        self.left.difference_update(new)
        return new

    def time(self, numbers: Sequence[int], seconds: float) -> None:
        """Learn from a task how long shards take."""
        self._seconds_per_cost.append(seconds / max(self._cost(numbers), 1e-9))

    def seconds(self, numbers: Sequence[int]) -> float | None:
        """How long a task should take; None before the first has ended."""
        return median(self._seconds_per_cost) * self._cost(numbers) if self._seconds_per_cost else None

    def again(self, numbers: Sequence[int], n_idle: int) -> list[int]:
        """Shards of a slow worker for one of so many idle ones, each once; the last first: it begins at the first."""
        found = [number for number in reversed(numbers) if number in self.left and number not in self._twice]
        some = found[: -(-len(found) // n_idle)]
        self._twice.update(some)
        return some

    def lose(self, numbers: Iterable[int]) -> int | None:
        """Put shards of a worker that is gone back in front; one of them that was lost too often, if there is one."""
        waiting = set(self._queue)
        again = [number for number in numbers if number in self.left and number not in waiting]
        self._queue.extendleft(reversed(again))
        self._queued += self._cost(again)
        self._lost.update(again)
        self._twice.difference_update(again)
        return next((number for number in again if self._lost[number] >= MOST_LOST), None)

    def _cost(self, numbers: Iterable[int]) -> float:
        return float(sum(self._costs[number] for number in numbers))
