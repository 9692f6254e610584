"""Torch's number of threads is partly global, so whoever lowers it has to restore it for everyone."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import numpy as np
import pytest
import torch

from probekit.probes import LogisticProbe, MLPProbe
from probekit.threads import one_thread, shares


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
            assert by_thread(lambda rows: rows, 10) == [slice(0, 10)]
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def test_it_is_restored_after_an_error():
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == number_in_a_new_thread() == 3


def test_computations_that_overlap_take_turns_and_leave_every_thread_as_it_was():
    """The second thread first uses torch, and asks for its turn, while the first one computes; it ends last."""
    asks, has_turn, first_is_out, found = Event(), Event(), Event(), {}

    def second() -> None:
        found["born with"] = torch.get_num_threads()
        asks.set()
        with one_thread():
            has_turn.set()
            first_is_out.wait()
            found["inside"] = torch.get_num_threads()
        found["after"] = torch.get_num_threads()

    other = Thread(target=second)
    with one_thread():
        other.start()
        asks.wait()
        overlapped = has_turn.wait(0.1)
    first_is_out.set()
    other.join()
    assert not overlapped
    assert found == {"born with": 1, "inside": 1, "after": 3}
    assert torch.get_num_threads() == number_in_a_new_thread() == 3


@pytest.mark.parametrize("probe", [MLPProbe(max_epochs=3), LogisticProbe()], ids=["mlp", "logistic"])
def test_a_fit_waits_for_its_turn(probe):
    X, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2
    alone = probe.fit(X, y).decision_function(X)
    started, done = Event(), Event()

    def fit() -> None:
        started.set()
        probe.fit(X, y)
        done.set()

    other = Thread(target=fit)
    with one_thread():
        other.start()
        started.wait()
        overlapped = done.wait(0.1)
    other.join()
    assert not overlapped
    np.testing.assert_array_equal(probe.decision_function(X), alone)
    assert torch.get_num_threads() == number_in_a_new_thread() == 3
