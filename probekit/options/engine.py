"""How the work of a command is spread over processes and machines, and who is told of its progress."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from probekit.errors import UsageError
from probekit.options.check import is_whole
from probekit.options.kinds import READING, Kind, choice, not_blank, number
from probekit.options.option import CHECKS, RUNS, Options, option

Engine = Literal["ray"]
Sums = Literal["also", "only"] | None
"""What an extraction keeps: sums as well as activations, sums alone, or activations alone."""
MAX_PARTS = 99_999  # a cut of that many takes seconds; the name of its file has five digits


def checked_part(part: Any) -> tuple[int, int] | None:
    """`"2/4"` or `(2, 4)` -> `(2, 4)`. Raises UsageError unless it is None or a part of several, counted from 1."""
    if part is None:
        return None
    pair: Any = [_number(word) for word in part.split("/")] if isinstance(part, str) else part
    if isinstance(pair, list | tuple) and len(pair) == 2 and all(map(is_whole, pair)):
        i, n = map(int, pair)
        if 1 <= i <= n <= MAX_PARTS:
            return i, n
    raise UsageError(f"part (--part) is I/N with I from 1 to N, such as 2/4; got {part!a:.60}")


def _least_and_most(workers: Any) -> tuple[int, int]:
    """`4` -> `(4, 4)`, `"1:8"` -> `(1, 8)`. Raises UsageError."""
    given: Any = [_number(word) for word in workers.split(":")] if isinstance(workers, str) else workers
    pair: Any = [given] if is_whole(given) else given
    if isinstance(pair, list | tuple) and len(pair) in (1, 2) and all(map(is_whole, pair)):
        least, most = int(pair[0]), int(pair[-1])
        if 1 <= least <= most:
            return least, most
    raise UsageError(f"workers (--workers) is a number, 1 or more, or MIN:MAX such as 1:8; got {workers!a:.60}")


def _device_names(devices: Any) -> tuple[str, ...]:
    """`"0,1"` -> `("cuda:0", "cuda:1")`; `("auto",)` is left to the engine. Raises UsageError."""
    given = devices.split(",") if isinstance(devices, str) else devices
    words = [str(one).strip() for one in given] if isinstance(given, list | tuple) else []
    if not words or not all(words) or ("auto" in words and len(words) > 1):
        raise UsageError(
            f"devices (--devices) are numbers such as 0,1,2,3, names such as cuda:0, or auto; got {devices!a:.60}"
        )
    return tuple(f"cuda:{word}" if word.isdecimal() else word for word in words)


def _is_share(value: float) -> bool:
    return 0 <= value < 1000 and (value <= 1 or value == int(value))


def _number(word: str) -> int | None:
    word = word.strip()
    return int(word) if word.isdecimal() and len(word) < 10 else None


@dataclass(frozen=True, kw_only=True)
class ProgressOptions(Options):
    """Whether progress is shown."""

    progress: bool | None = option(
        None, "Show progress on stderr: None on a terminal and in a notebook, True always, False never.", flag=None
    )


@dataclass(frozen=True, kw_only=True)
class PartsOptions(ProgressOptions):
    """`ProgressOptions` of runs with several parts, which can tell a function of yours instead of showing a line."""

    on_progress: Callable[[int, int], None] | None = option(
        None, "Called with (done, total) of a part, in place of the line on stderr.", flag=None
    )
    on_part: Callable[[str], None] | None = option(
        None,
        'Called with the name of each part as it begins, such as "fitting probes", in place of the line on stderr.',
        flag=None,
    )


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options, heading=RUNS):
    """Whether the work runs on a Ray cluster, and on how many workers."""

    engine: Engine | None = option(
        None,
        "ray: run on the workers of a Ray cluster (pip install 'probekit[ray]').  [default: this process]",
        choice("ray"),
    )
    workers: str | int | Sequence[int] | None = option(
        None,
        "With --engine ray: how many workers, 4, or as few and as many, 1:8.  [default: what the cluster has]",
        Kind(lambda _, value: _least_and_most(value), metavar="N|MIN:MAX"),
        notes="In Python also (1, 8).",
    )
    gpus_per_worker: float | None = option(
        None,
        "With --engine ray: GPUs that each worker gets; 0.5 lets two share one.  [default: 1 on CUDA, else 0]",
        number("0, a share such as 0.5, or a whole number", _is_share, "G"),
    )
    address: str | None = option(
        None,
        "With --engine ray: address of a running cluster, or auto.  [default: a cluster on this machine]",
        not_blank("HOST:PORT"),
    )


@dataclass(frozen=True, kw_only=True)
class EngineOptions(ClusterOptions, heading=RUNS):
    """`ClusterOptions`, one part of several, or several devices of this machine."""

    part: str | Sequence[int] | None = option(
        None,
        "Do one part of n and stop: 1/4, 2/4, ... on as many machines or jobs as you like.",
        Kind(lambda _, value: checked_part(value), metavar="I/N"),
        notes="In Python also (1, 4). All parts write to one folder, or each to its own, and "
        "`probekit merge` joins these. The part that finds all shards completes the store.",
    )
    devices: str | Sequence[str | int] | None = option(
        None,
        "One process on each of these devices: 0,1,2,3, auto, or names such as cuda:0,cuda:1.",
        Kind(lambda _, value: _device_names(value), metavar="LIST"),
        notes='In Python also [0, 1] or ["cuda:0", "cuda:1"].',
    )
    check: str = option(
        "size",
        "How shards that are on disk already are checked: by size, or every byte by hash.",
        notes="Damaged ones are named; `probekit repair` computes them again.",
        kind=READING,
        heading=CHECKS,
    )
