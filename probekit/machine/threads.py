"""Threads: computing in one thread, on each thread's own rows, or on one item in each thread.

Blocks of rows are independent. So one block per thread is faster than threads that synchronise after every product,
and many times faster on a busy machine, where one thread is always late. Small problems gain nothing from threads
inside, and are solved one in each thread.

Sums have the same bits with any number of threads: rows are cut by their number alone, and everything else computes
in one thread.
"""

import atexit
import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from queue import Empty, SimpleQueue
from threading import Lock, Thread, get_ident, local
from time import monotonic
from typing import Any, TypeVar

import torch

ROWS_OF_A_SHARE = 2048  # of fewer rows a second thread gains less than starting it costs
MOST_SHARES = 16
SECONDS_TO_STOP = 2.0  # for a thread to notice that it should stop; it does so after its present call into C
SECONDS_AT_EXIT = 10.0
SECONDS_TO_NOTICE = 0.1  # a signal that another thread got does not wake the one that waits

Item = TypeVar("Item")
Result = TypeVar("Result")
Shares = Callable[[Callable[[slice], Result], int], Iterable[Result]]


class _Users:
    """The threads inside `one_thread`, and what is restored after the last of them."""

    def __init__(self) -> None:
        self.lock, self.number = Lock(), 1
        self.inside: set[int] = set()  # their identifiers: an interrupt cannot leave it half counted
        self.blas: list[int] = []


class _Own(local):
    """Of each thread: how many threads it may use inside `one_thread` (None outside), and its number before."""

    may_use: int | None = None
    before = 1


_USERS, _OWN = _Users(), _Own()


@contextmanager
def one_thread() -> Iterator[int]:
    """Let torch and BLAS compute in one thread; yields the number of threads that the caller may use itself.

    That is torch's number for the outermost caller. It is 1 inside another `one_thread`, and while another thread of
    the user's is inside one. All of them compute at once. The last to leave restores torch's and BLAS's numbers.
    """
    outermost = _OWN.may_use is None
    try:
        number = _enter() if outermost else _OWN.may_use
        with _may_use(1):
            yield number or 1
    finally:
        if outermost:
            _leave()


def _enter() -> int:
    with _USERS.lock:
        own, alone = torch.get_num_threads(), not _USERS.inside
        if alone:
            _USERS.number = own if own > 1 else _number_of_new_threads()
            _USERS.blas = [library.num_threads for library in _blas()]
        # A thread that first used torch while another was inside was born with 1, and would keep it
        _OWN.before = own if own > 1 else _USERS.number
        _USERS.inside.add(get_ident())  # from here on `_leave` restores
        if alone:
            _set_blas([1] * len(_USERS.blas))
        torch.set_num_threads(1)
        return _OWN.before if alone else 1


def _leave() -> None:
    _OWN.may_use = None
    with _USERS.lock:
        if get_ident() not in _USERS.inside:  # interrupted before it entered
            return
        torch.set_num_threads(_OWN.before)
        _USERS.inside.remove(get_ident())
        if not _USERS.inside:
            _set_blas(_USERS.blas)


def _number_of_new_threads() -> int:
    """Torch's global number, with which a new thread is born."""
    with ThreadPoolExecutor(1) as new:
        return new.submit(torch.get_num_threads).result()


@cache
def _blas() -> list[Any]:
    """The controls of the BLAS libraries of numpy and scipy; finding them takes milliseconds."""
    import scipy.linalg  # noqa: F401  its BLAS is loaded before libraries are looked for
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas").lib_controllers


def _set_blas(numbers: Sequence[int]) -> None:
    for library, number in zip(_blas(), numbers, strict=True):
        # threadpoolctl 3.8 obeys one thread alone, and the last user may be in another than the first
        take_control = getattr(library, "clear_controlling_thread", lambda force: None)
        take_control(force=True)
        library.set_num_threads(number)
        take_control(force=True)


@contextmanager
def _may_use(number: int) -> Iterator[None]:
    before, _OWN.may_use = _OWN.may_use, number
    try:
        yield
    finally:
        _OWN.may_use = before


@contextmanager
def shares(parallel: bool) -> Iterator[Shares]:
    """Yields a function that calls `work` on shares of n rows and gives the results in row order.

    Torch and BLAS use one thread inside each share. The shares depend on n alone, not on the number of threads. Without
    `parallel` there is one share.
    """
    with torch.inference_mode(mode=False), torch.no_grad(), one_thread() as n_threads:
        if not parallel:
            yield lambda work, n: [work(slice(0, n))]
        elif n_threads == 1:
            yield lambda work, n: map(work, _split(n))
        else:
            with ThreadPoolExecutor(n_threads, initializer=_begin) as pool:
                yield lambda work, n: _mapped(pool, work, _split(n))


def _mapped(pool: ThreadPoolExecutor, work: Callable[[slice], Result], parts: list[slice]) -> Iterable[Result]:
    return pool.map(work, parts) if len(parts) > 1 else map(work, parts)


def _begin(may_use: int = 1, grad: bool = False) -> None:
    """Prepares a new thread."""
    _OWN.may_use = may_use
    torch.get_num_threads()  # or torch would take the global number at the thread's first operation
    torch.set_num_threads(1)
    torch.set_grad_enabled(grad)


def _split(n: int) -> list[slice]:
    parts = min(MOST_SHARES, max(1, n // ROWS_OF_A_SHARE))
    return [slice(*ends) for ends in pairwise(n * i // parts for i in range(parts + 1))]


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], at_once: int, done: Callable[[], None]
) -> list[Result]:
    """The result of `work` for each item, in order; up to `at_once` items at a time, each in a thread of its own.

    Items share the threads that the caller may use. Torch and BLAS use one thread in each, so that the results are the
    same with any number of them. An error is that of the first item that has one; items after it are stopped. So are
    all of them by Ctrl-C.

    Args:
        work: called from several threads at once, unless `at_once` is 1: then from this one.
        items: started in order.
        at_once: at most; fewer where there are fewer threads.
        done: called after each item, from this thread.
    """
    with one_thread() as n_threads:
        workers = min(n_threads, at_once, len(items))
        if workers > 1:
            return _Workers(work, items, workers, n_threads // workers).results(done)
        results = []
        for item in items:
            with _may_use(n_threads):
                results.append(work(item))
            done()
        return results


class _Stopped(SystemExit):
    """Raised in a thread whose result is not wanted any more; a SystemExit ends a thread without a traceback."""


class _Workers:
    """Threads that take one item after another."""

    def __init__(self, work: Callable[[Any], Any], items: Sequence[Any], workers: int, may_use: int):
        self._work, self._items, self._may_use = work, items, may_use
        self._lock, self._next, self._end = Lock(), 0, len(items)
        self._ended: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        # daemons: the interpreter does not wait for one that is in a long call when the user interrupts
        self._threads = [Thread(target=self._run, daemon=True) for _ in range(workers)]

    def results(self, done: Callable[[], None]) -> list[Any]:
        """The results in order; raises the error of the first item that has one."""
        found: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        try:
            for thread in self._threads:
                thread.start()
            while any(number not in found for number in range(self._end)):
                try:
                    number, value, error = self._ended.get(timeout=SECONDS_TO_NOTICE)
                except Empty:
                    continue
                if error is not None:  # items before it are waited for: one of them may have an error too
                    errors[number], self._end = error, min(self._end, number)
                else:
                    found[number] = value
                    done()
            if errors:
                raise errors[min(errors)]
        except BaseException:
            self._stop()
            raise
        for thread in self._threads:
            thread.join()
        return [found[number] for number in range(len(self._items))]

    def _run(self) -> None:
        _begin(self._may_use, grad=True)
        while (number := self._take()) is not None:
            try:
                self._ended.put((number, self._work(self._items[number]), None))
            except BaseException as error:
                self._ended.put((number, None, error))
                return

    def _take(self) -> int | None:
        with self._lock:
            if self._next >= self._end:
                return None
            self._next += 1
            return self._next - 1

    def _stop(self) -> None:
        """Ends all threads, which notice at their next line of Python; one in a long call into C ends after it."""
        self._end = 0
        until = monotonic() + SECONDS_TO_STOP
        for thread in self._threads:
            if thread.is_alive() and thread.ident is not None:
                stop = ctypes.py_object(_Stopped)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), stop)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - monotonic()))
                if thread.is_alive():  # a thread that leaves a C++ function while Python shuts down may abort it
                    atexit.register(thread.join, SECONDS_AT_EXIT)
