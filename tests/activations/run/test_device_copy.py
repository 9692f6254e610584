"""Shards arrive in host memory as they are computed, through streams, events and pinned memory as CUDA has them.

There is no GPU here: `simulated_cuda.py` carries out copies as late as it may, and fails where a GPU would go wrong now
and then. The first tests show that it does.
"""

import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from simulated_cuda import Misused, SimulatedCuda, simulated_cuda
from torch import Tensor

from probekit.activations.run.device_copy import HostCopies, on_host
from probekit.points import Place

GPU = torch.device("cuda", 1)
PLACES = [Place("resid_pre", 0), Place("resid_pre", 1)]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCuda]:
    with simulated_cuda(monkeypatch) as found:
        yield found


def computed(number: int, dtype: torch.dtype = torch.float32) -> dict[Any, Tensor]:
    return {place: torch.full((3, 4), 10.0 * number + i, device=GPU).to(dtype) for i, place in enumerate(PLACES)}


def copied(waits_for: Any = GPU, is_pinned: bool = True, is_recorded: bool = True, when: str = "late") -> Tensor:
    """A copy as a careless caller might make it."""
    x, stream = torch.ones(3, device=GPU), torch.cuda.Stream(GPU)
    host = torch.empty(3, pin_memory=is_pinned)
    if waits_for is not None:
        stream.wait_stream(torch.cuda.current_stream(waits_for))
    with nullcontext() if when == "on the stream that computes" else torch.cuda.stream(stream):
        host.copy_(x, non_blocking=True)
    if is_recorded:
        x.record_stream(stream)
    if when == "read early":
        assert not host.isfinite().all()
    del x
    stream.record_event().synchronize()
    return host + 0


def test_the_stand_in_lets_the_right_way_pass(cuda):
    assert copied().tolist() == [1, 1, 1]
    assert cuda.order == ["copy", "arrived"]


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"waits_for": None}, "has not waited for"),
        ({"waits_for": "cuda"}, "has not waited for"),  # cuda:0
        ({"is_recorded": False}, "used again"),
        ({"is_pinned": False}, "not pinned"),
        ({"when": "on the stream that computes"}, "makes the device wait"),
        ({"when": "read early"}, "before its copy has arrived"),
    ],
)
def test_the_stand_in_finds_every_way_to_go_wrong(cuda, wrong, fault):
    with pytest.raises(Misused, match=fault):
        copied(**wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_values_are_those_of_the_device(cuda, dtype):
    shards = ((number, np.array([number]), computed(number, dtype)) for number in range(5))
    for number, (n, rows, values) in enumerate(on_host(shards)):
        assert (n, rows.tolist()) == (number, [number])
        assert list(values) == PLACES
        for i, x in enumerate(values.values()):
            assert x.device.type == "cpu"
            assert x.dtype == dtype
            assert torch.equal(x, torch.full((3, 4), 10.0 * number + i).to(dtype))
    assert cuda.used - {"cpu"} == {"cuda:1"}


def test_a_copy_runs_while_the_next_shard_is_computed_and_two_are_held_at_most(cuda):
    computed_so_far: list[int] = []
    alive: list[weakref.ref[Tensor]] = []

    def shards() -> Iterator[Any]:
        for number in range(6):
            computed_so_far.append(number)
            values = computed(number)
            alive.extend(weakref.ref(x) for x in values.values())
            yield number, np.array([number]), values
            del values
            assert not any(one() is not None for one in alive), "a shard is let go of as soon as its copy has begun"

    for number, _, values in on_host(shards()):
        assert computed_so_far == list(range(min(number + 2, 6))), "one more than was given out"
        assert all(x.isfinite().all() for x in values.values())
        n_begun, n_arrived = cuda.order.count("copy"), cuda.order.count("arrived")
        assert n_begun - n_arrived == len(PLACES) * (number < 5), "the next shard's copies have begun, and no other's"
    assert cuda.live <= 2 * len(PLACES)


def test_an_error_of_the_model_comes_after_the_shards_before_it(cuda):
    def shards() -> Iterator[Any]:
        yield 0, np.array([0]), computed(0)
        yield 1, np.array([1]), computed(1)
        raise ValueError("the model")

    given = []
    with pytest.raises(ValueError, match="the model"):
        given.extend(on_host(shards()))
    assert [number for number, _, _ in given] == [0]


def test_shards_of_a_cpu_pass_as_they_are(cuda):
    x = torch.arange(3.0)
    given: Any = (0, np.array([0]), {PLACES[0]: x})
    ((_, _, values),) = on_host(iter([given]))
    assert values[PLACES[0]] is x
    assert cuda.order == []


def test_nothing_is_copied_twice(cuda):
    copies = HostCopies(GPU)
    (first,), arrive = copies.start([torch.ones(2, device=GPU)])
    (second,), arrive_second = copies.start([torch.zeros(2, device=GPU)])
    arrive_second()  # an event stands for all copies of its stream before it
    arrive()
    assert first.tolist() == [1, 1]
    assert second.tolist() == [0, 0]
    assert cuda.order == ["copy", "copy", "arrived", "arrived"]
