"""Several requests to an object store at once: most of a small request's time is waiting for the answer."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from probekit.files.remote.path import AnyPath, RemotePath

T = TypeVar("T")
R = TypeVar("R")

REQUESTS = 16  # small ones in flight
RANGES = 4  # ranges of one object in flight


def each_of(path: AnyPath, function: Callable[[T], R], items: Iterable[T], most: int = REQUESTS) -> Iterator[R]:
    """`function` of each item in order; at most `most` at a time where `path` is in an object store."""
    return _ahead(function, items, most) if isinstance(path, RemotePath) else map(function, items)


def read_ranges(path: RemotePath, bounds: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes of an object from each start to before each end, in order; the next ones are on their way meanwhile."""
    return _ahead(lambda bound: path.read_bytes(*bound), bounds, RANGES)


def _ahead(function: Callable[[T], R], items: Iterable[T], most: int) -> Iterator[R]:
    """`map` with at most so many results that are under way or not yet taken."""
    items = list(items)
    if len(items) < 2:
        yield from map(function, items)
        return
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(min(most, len(items)), thread_name_prefix="probekit-remote")
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) == most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
