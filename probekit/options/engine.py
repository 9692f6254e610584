"""How the work of a command is spread over processes and machines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from probekit.errors import UsageError
from probekit.options.check import check_among, check_reading, is_real, is_whole
from probekit.options.option import option

Engine = Literal["ray"]
Sums = Literal["also", "only"] | None
"""What an extraction keeps: sums as well as activations, sums alone, or activations alone."""
MAX_PARTS = 99_999  # a cut of that many takes seconds; the name of its file has five digits
_RAY = ("workers", "gpus_per_worker", "address")  # options that only Ray has


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Whether the work runs on a Ray cluster, and on how many workers."""

    engine: Engine | None = option(
        None,
        "ray: run on the workers of a Ray cluster (pip install 'probekit[ray]').  [default: this process]",
    )
    workers: str | int | Sequence[int] | None = option(
        None,
        "With --engine ray: how many workers, 4, or as few and as many, 1:8.  [default: what the cluster has]",
        notes="In Python also (1, 8).",
        metavar="N|MIN:MAX",
    )
    gpus_per_worker: float | None = option(
        None,
        "With --engine ray: GPUs that each worker gets; 0.5 lets two share one.  [default: 1 on CUDA, else 0]",
        metavar="G",
    )
    address: str | None = option(
        None,
        "With --engine ray: address of a running cluster, or auto.  [default: a cluster on this machine]",
        metavar="HOST:PORT",
    )

    def __post_init__(self) -> None:
        """Check every value; `workers` becomes (least, most). Raises UsageError."""
        check_among("engine", self.engine, (None, "ray"))
        if self.engine is None and (given := [name for name in _RAY if getattr(self, name) is not None]):
            flag = given[0].replace("_", "-")
            raise UsageError(f"{given[0]} (--{flag}) is for Ray; give engine='ray' (--engine ray) too, or leave it out")
        object.__setattr__(self, "workers", _least_and_most(self.workers))
        share = self.gpus_per_worker
        if share is not None and not (is_real(share) and 0 <= share < 1000 and (share <= 1 or share == int(share))):
            raise UsageError(
                f"gpus_per_worker (--gpus-per-worker) is 0, a share such as 0.5, or a whole number; got {share!a:.60}"
            )
        if self.address is not None and not (isinstance(self.address, str) and self.address.strip()):
            raise UsageError(f"address (--address) is HOST:PORT or auto; got {self.address!a:.60}")


@dataclass(frozen=True, kw_only=True)
class EngineOptions(ClusterOptions):
    """`ClusterOptions`, one part of several, or several devices of this machine."""

    part: str | Sequence[int] | None = option(
        None,
        "Do one part of n and stop: 1/4, 2/4, ... on as many machines or jobs as you like.",
        notes="In Python also (1, 4). All parts write to one folder, or each to its own, and "
        "`probekit merge` joins these. The part that finds all shards completes the store.",
        metavar="I/N",
    )
    devices: str | Sequence[str | int] | None = option(
        None,
        "One process on each of these devices: 0,1,2,3, auto, or names such as cuda:0,cuda:1.",
        notes='In Python also [0, 1] or ["cuda:0", "cuda:1"].',
        metavar="LIST",
    )
    check: str = option(
        "size",
        "How shards that are on disk already are checked: by size, or every byte by hash.",
        notes="Damaged ones are named; `probekit repair` computes them again.",
        metavar="size|hash",
    )

    def __post_init__(self) -> None:
        """Check every value; `part` becomes (i, n) and `devices` a tuple of names. Raises UsageError."""
        super().__post_init__()
        check_reading(self.check)
        object.__setattr__(self, "part", checked_part(self.part))
        object.__setattr__(self, "devices", _device_names(self.devices))
        given = [name for name in ("part", "devices", "engine") if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"{given[0]} (--{given[0]}) and {given[1]} (--{given[1]}) exclude each other; give one")


def checked_part(part: Any) -> tuple[int, int] | None:
    """`"2/4"` or `(2, 4)` -> `(2, 4)`. Raises UsageError unless it is a part of several, counted from 1."""
    if part is None:
        return None
    pair: Any = [_number(word) for word in part.split("/")] if isinstance(part, str) else part
    if isinstance(pair, list | tuple) and len(pair) == 2 and all(map(is_whole, pair)):
        i, n = map(int, pair)
        if 1 <= i <= n <= MAX_PARTS:
            return i, n
    raise UsageError(f"part (--part) is I/N with I from 1 to N, such as 2/4; got {part!a:.60}")


def _least_and_most(workers: Any) -> tuple[int, int] | None:
    """`4` -> `(4, 4)`, `"1:8"` -> `(1, 8)`. Raises UsageError."""
    if workers is None:
        return None
    given: Any = [_number(word) for word in workers.split(":")] if isinstance(workers, str) else workers
    pair: Any = [given] if is_whole(given) else given
    if isinstance(pair, list | tuple) and len(pair) in (1, 2) and all(map(is_whole, pair)):
        least, most = int(pair[0]), int(pair[-1])
        if 1 <= least <= most:
            return least, most
    raise UsageError(f"workers (--workers) is a number, 1 or more, or MIN:MAX such as 1:8; got {workers!a:.60}")


def _device_names(devices: Any) -> tuple[str, ...] | None:
    """`"0,1"` -> `("cuda:0", "cuda:1")`; `("auto",)` is left to the engine. Raises UsageError."""
    if devices is None:
        return None
    given = devices.split(",") if isinstance(devices, str) else devices
    words = [str(one).strip() for one in given] if isinstance(given, list | tuple) else []
    if not words or not all(words) or ("auto" in words and len(words) > 1):
        raise UsageError(
            f"devices (--devices) are numbers such as 0,1,2,3, names such as cuda:0, or auto; got {devices!a:.60}"
        )
    return tuple(f"cuda:{word}" if word.isdecimal() else word for word in words)


def _number(word: str) -> int | None:
    word = word.strip()
    return int(word) if word.isdecimal() and len(word) < 10 else None
