"""Threads that each compute on their own rows.

Blocks of rows are independent. So one block per thread is faster than threads that synchronise after every product,
and many times faster on a busy machine, where one thread is always late.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from threading import Lock
from typing import TypeVar

import torch

ALONE = Lock()  # torch's number of threads is global: two solves at once would change each other's bits
Result = TypeVar("Result")
Shares = Callable[[Callable[[slice], Result], int], list[Result]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Make torch use one thread: sums keep one order, and threads slow small steps down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def shares(parallel: bool) -> Iterator[Shares]:
    """Yields a function that calls `work` on each thread's share of n rows and returns the results in row order.

    Torch uses one thread inside each share. Without `parallel` there is one share.
    """
    n_threads = torch.get_num_threads()
    with ALONE, torch.inference_mode(mode=False), torch.no_grad(), one_thread():
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
