"""Threads that each compute on their own rows, and computing in one thread.

Blocks of rows are independent. So one block per thread is faster than threads that synchronise after every product,
and many times faster on a busy machine, where one thread is always late.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from threading import RLock
from typing import TypeVar

import torch

_TURN = RLock()  # who holds it may set torch's number of threads
Result = TypeVar("Result")
Shares = Callable[[Callable[[slice], Result], int], list[Result]]


@contextmanager
def one_thread() -> Iterator[int]:
    """Make torch use one thread: sums keep one order, and threads slow small steps down. Yields the number before.

    Torch's number is partly global, so computations that need one thread take turns: two at once would change each
    other's bits, and the later to end would restore the 1 of the other. A thread may enter again while it is inside.
    """
    with _TURN:
        before = _number_of_threads()
        torch.set_num_threads(1)
        try:
            yield before
        finally:
            torch.set_num_threads(before)


def _number_of_threads() -> int:
    """The number that the calling thread computes with.

    A thread that first used torch during `one_thread` of another was born with 1, and would set 1 for all in the end. A
    new thread is born with the number that is global now.
    """
    number = torch.get_num_threads()
    if number > 1:
        return number
    with ThreadPoolExecutor(1) as new:
        return new.submit(torch.get_num_threads).result()


@contextmanager
def shares(parallel: bool) -> Iterator[Shares]:
    """Yields a function that calls `work` on each thread's share of n rows and returns the results in row order.

    Torch uses one thread inside each share. Without `parallel` there is one share.
    """
    with torch.inference_mode(mode=False), torch.no_grad(), one_thread() as n_threads:
        if not parallel or n_threads == 1:
            yield lambda work, n: [work(slice(0, n))]
            return
        with ThreadPoolExecutor(n_threads, initializer=_begin) as pool:
            yield lambda work, n: list(pool.map(work, _split(n, n_threads)))


def _begin() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


def _split(n: int, parts: int) -> list[slice]:
    ends = [n * i // parts for i in range(parts + 1)]
    return [slice(*share) for share in pairwise(ends) if share[0] < share[1]]
