"""Parts on devices in order: contiguous, within the memory, filled in turn, optimal; errors count what is missing."""

import re
from itertools import combinations_with_replacement

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from probekit.errors import UsageError
from probekit.models.placement import PartBytes, Placement, describe_placement, placement_of

SIZE = st.integers(0, 30)
PARTS = st.builds(PartBytes, SIZE, st.lists(SIZE, min_size=1, max_size=6).map(tuple), SIZE)
FREE = st.lists(st.integers(0, 90), min_size=1, max_size=3)
HOST = st.none() | st.integers(0, 150)


def named(free: list[int]) -> dict[str, int]:
    return {f"cuda:{i}": size for i, size in enumerate(free)}


def placed(parts: PartBytes, free: list[int], host: int | None) -> tuple[Placement | None, int, int]:
    """The placement, or the bytes that its error says are missing on the last device and on the host."""
    try:
        return placement_of(parts, named(free), host), 0, 0
    except UsageError as error:
        missing = str(error).partition("; it needs ")[2]
        device, on_host = (re.findall(rf"(\d+) B more on {where}", missing) for where in ("cuda", "the host"))
        assert device or on_host
        return None, int(*device or [0]), int(*on_host or [0])


def fits(parts: PartBytes, free: list[int], n_on_host: int) -> bool:
    """Whether any placement in order fits, by trying them all."""
    kept = len(parts.blocks) - n_on_host
    room = max(parts.blocks[kept:], default=0)
    sizes = [parts.before, *parts.blocks[:kept], parts.after + room]
    return any(
        all(sum(s for s, d in zip(sizes, where, strict=True) if d == i) <= free[i] for i in range(len(free)))
        for where in combinations_with_replacement(range(len(free)), len(sizes))
    )


@given(PARTS, FREE, HOST)
def test_parts_are_whole_in_order_and_fit(parts, free, host):
    found, *_ = placed(parts, free, host)
    assume(found is not None)
    assert found is not None
    order = [int(name.removeprefix("cuda:")) for name in (found.before, *found.blocks, found.after)]
    assert order == sorted(order), "each device holds adjacent parts, in the order of the devices"
    assert len(found.blocks) == len(parts.blocks)
    kept = len(parts.blocks) - found.n_on_host
    used = dict.fromkeys(named(free), 0)
    for device, size in zip((found.before, *found.blocks[:kept]), (parts.before, *parts.blocks), strict=False):
        used[device] += size
    used[found.after] += parts.after + max(parts.blocks[kept:], default=0)
    assert all(used[device] <= size for device, size in named(free).items())
    assert sum(parts.blocks[kept:]) <= (host or 0)
    assert set(found.blocks[kept:]) <= {found.after}, "blocks of the host run where the head is"


@given(PARTS, FREE)
def test_a_device_is_used_only_if_the_one_before_is_full(parts, free):
    found, *_ = placed(parts, free, None)
    assume(found is not None)
    assert found is not None
    where = [found.before, *found.blocks, found.after]
    sizes = [parts.before, *parts.blocks, parts.after]
    for i in range(1, len(sizes)):
        if where[i] != where[i - 1]:
            on_it = sum(size for size, device in zip(sizes[:i], where, strict=False) if device == where[i - 1])
            assert on_it + sizes[i] > named(free)[where[i - 1]]


@given(PARTS, FREE, st.integers(0, 150))
def test_as_few_blocks_as_possible_stay_on_the_host(parts, free, host):
    """No other placement in order keeps more blocks on the devices."""
    found, *_ = placed(parts, free, host)
    least = next((n for n in range(len(parts.blocks) + 1) if fits(parts, free, n)), None)
    if least is None or sum(parts.blocks[len(parts.blocks) - least :]) > host:
        assert found is None
    else:
        assert found is not None
        assert found.n_on_host == least


@given(PARTS, FREE, HOST)
def test_the_error_counts_the_bytes_that_are_missing(parts, free, host):
    """With as many more it fits; with one less, on the device or on the host, it does not."""
    _, short, short_on_host = placed(parts, free, host)
    assume(short or short_on_host)

    def fits_with(more: int, more_on_host: int) -> bool:
        return (
            placed(parts, [*free[:-1], free[-1] + more], None if host is None else host + more_on_host)[0] is not None
        )

    assert fits_with(short, short_on_host)
    assert not (short and fits_with(short - 1, short_on_host))
    assert not (short_on_host and fits_with(short, short_on_host - 1))


def test_by_example():
    parts = PartBytes(4, (10, 10, 10, 10), 3)
    assert placement_of(parts, named([100]), 0) == Placement("cuda:0", ("cuda:0",) * 4, "cuda:0")
    assert placement_of(parts, named([25, 25]), 0) == Placement("cuda:0", ("cuda:0",) * 2 + ("cuda:1",) * 2, "cuda:1")
    assert placement_of(parts, named([25, 13]), 99) == Placement(
        "cuda:0", ("cuda:0",) * 2 + ("cuda:1",) * 2, "cuda:1", 2
    )
    assert placement_of(parts, named([25, 2, 23]), 0).devices == ("cuda:0", "cuda:2")
    two = placement_of(parts, named([25, 13]), 99)
    assert describe_placement(two) == "cuda:0 (2 blocks), cuda:1 (2 blocks, 2 of them kept on the host)"
    with pytest.raises(UsageError, match=r"takes 47 B, and free are 20 B on cpu; it needs 27 B more on cpu$"):
        placement_of(parts, {"cpu": 20}, None)
    with pytest.raises(UsageError, match=r"free are 27 B on cuda:0, 5 B on the host; it needs 25 B more on the host$"):
        placement_of(parts, named([27]), 5)
