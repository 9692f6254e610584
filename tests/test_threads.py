"""Torch's number of threads is partly global, so whoever lowers it has to restore it for everyone."""

import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread, current_thread, main_thread
from time import sleep

import numpy as np
import pytest
import torch
from sklearn.base import clone
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from probekit.machine import threads
from probekit.machine.threads import in_threads, one_thread, shares
from probekit.probes import LogisticProbe, MLPProbe


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def number_in_a_new_thread() -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_one_thread_is_entered_again_by_the_same_thread():
    with one_thread() as before:
        with one_thread() as inside, shares(parallel=True) as by_thread:
            assert (before, inside, torch.get_num_threads()) == (3, 1, 1)
            assert list(by_thread(lambda rows: rows, 10)) == [slice(0, 10)]
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def test_it_is_restored_after_an_error():
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == number_in_a_new_thread() == 3


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_computations_that_overlap_leave_every_thread_as_it_was(first_ends_first):
    """The second thread first uses torch while the first one computes; both compute at once, each in one thread."""
    second_is_in, second_may_end, found = Event(), Event(), {}

    def second() -> None:
        found["born with"] = torch.get_num_threads()
        with one_thread() as may_use:
            found["inside"] = (may_use, torch.get_num_threads())
            second_is_in.set()
            second_may_end.wait()
        found["after"] = torch.get_num_threads()

    other = Thread(target=second)
    with one_thread() as may_use:
        assert may_use == 3
        other.start()
        second_is_in.wait()
        assert torch.get_num_threads() == 1
        if not first_ends_first:
            second_may_end.set()
            other.join()
            assert torch.get_num_threads() == 1
    second_may_end.set()
    other.join()
    assert found == {"born with": 1, "inside": (1, 1), "after": 3}
    assert torch.get_num_threads() == number_in_a_new_thread() == 3


def blas_threads() -> list[int]:
    """The numbers of threads of numpy's and scipy's BLAS."""
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_blas_computes_in_one_thread_until_the_last_user_is_out():
    is_in, may_end = Event(), Event()

    def second() -> None:
        with one_thread():
            is_in.set()
            may_end.wait()

    with threadpool_limits(2, user_api="blas"):
        before, other = blas_threads(), Thread(target=second)
        with one_thread(), one_thread():
            assert set(blas_threads()) == {1}
            other.start()
            is_in.wait()
        assert set(blas_threads()) == {1}
        may_end.set()
        other.join()
        assert blas_threads() == before


def test_an_interrupt_on_the_way_in_leaves_nothing_behind(monkeypatch):
    lower, calls = threads._set_blas, []

    def interrupted(numbers: list[int]) -> None:
        lower(numbers)
        calls.append(numbers)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(threads, "_set_blas", interrupted)
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with pytest.raises(KeyboardInterrupt), one_thread():
            pass
        assert blas_threads() == before
    with one_thread() as may_use:
        assert may_use == 3
    assert torch.get_num_threads() == number_in_a_new_thread() == 3


@pytest.mark.parametrize("probe", [MLPProbe(max_epochs=3), LogisticProbe()], ids=["mlp", "logistic"])
def test_fits_of_several_threads_at_once_are_those_of_one(probe):
    X, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2
    alone = probe.fit(X, y).decision_function(X)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: each.fit(X, y).decision_function(X), [clone(probe) for _ in range(4)]))
    assert all(np.array_equal(each, alone) for each in found)
    assert torch.get_num_threads() == number_in_a_new_thread() == 3


def test_sums_over_shares_have_the_same_bits_with_any_number_of_threads():
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(9_000, 3)).astype(np.float32))

    def total() -> list[Tensor]:
        with shares(parallel=True) as by_thread:
            return list(by_thread(lambda rows: X[rows].sum(dim=0), len(X)))

    many = total()
    torch.set_num_threads(1)
    assert len(many) == 4
    assert all(map(torch.equal, many, total()))


def test_items_are_worked_on_at_once_and_come_in_order():
    """Two items that wait for each other, so that one thread could not end; they share the caller's threads."""
    both, done = Barrier(2, timeout=10), []

    def work(item: int) -> tuple[int, int, int]:
        if item < 2:
            both.wait()
        with one_thread() as may_use:
            return item * item, may_use, torch.get_num_threads()

    found = in_threads(work, range(5), 2, lambda: done.append(current_thread() is main_thread()))
    assert found == [(item * item, 1, 1) for item in range(5)]
    assert done == [True] * 5
    torch.set_num_threads(6)
    assert [may_use for _, may_use, _ in in_threads(work, range(2), 9, lambda: None)] == [3, 3]
    torch.set_num_threads(3)
    assert in_threads(work, range(2, 4), 1, lambda: None) == [(4, 3, 1), (9, 3, 1)]  # here, with all of them
    with one_thread():
        assert in_threads(work, range(2, 4), 9, lambda: None) == [(4, 1, 1), (9, 1, 1)]


def test_the_error_is_that_of_the_first_item_and_ends_those_after_it():
    later_failed, ended = Event(), []

    def work(item: int) -> int:
        if item == 1:
            later_failed.wait()
            raise KeyError(item)
        if item == 2:
            later_failed.set()
            raise ValueError(item)
        try:
            while item > 2:
                sleep(0.001)
        finally:
            ended.append(item)
        return item

    with pytest.raises(KeyError):
        in_threads(work, range(9), 3, lambda: None)
    assert set(ended) <= {0, 3}
    assert torch.get_num_threads() == number_in_a_new_thread() == 3


def test_ctrl_c_ends_all_items_at_once():
    started, ended = Barrier(2, timeout=10), []

    def work(item: int) -> None:
        try:
            if started.wait() == 0:
                signal.raise_signal(signal.SIGINT)  # Python raises it in the main thread
            while True:
                sleep(0.001)
        finally:
            ended.append(item)

    with pytest.raises(KeyboardInterrupt):
        in_threads(work, range(50), 2, lambda: None)
    assert sorted(ended) == [0, 1]
    assert torch.get_num_threads() == number_in_a_new_thread() == 3
