"""Work at a store from anywhere: the store itself says what there is to do, and a worker needs only its path.

Whoever drives an extraction begins the store. A worker plans the extraction again from the store's own files, computes
the shards that it is given, and writes them and their records itself: the first writer of a record wins, so that a
shard may be given to any number of workers. Whoever finds all records writes the manifest.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from probekit.activations.plan.identity import identity_of, record_of_run
from probekit.activations.plan.plan import ExtractionPlan, shard_rows
from probekit.activations.replan import plan_of_store
from probekit.activations.run.device_copy import Shard, on_host
from probekit.activations.run.forward import running
from probekit.activations.run.loop import compute_shard, refuse_hooks
from probekit.activations.store.format import has_manifest, read_plan, record_numbers, stored_rows
from probekit.activations.store.tensors import SIZE
from probekit.activations.store.writer import NewStore, StoreWriter, begin_store, write_manifest
from probekit.errors import UsageError
from probekit.files.durable import each_of
from probekit.files.remote.path import AnyPath
from probekit.machine.devices import find_device
from probekit.options.check import check_any_path


@dataclass(frozen=True)
class ShardDone:
    """A shard that is on disk.

    Attributes:
        number: of the shard.
        rows: examples in it.
        tokens: of these examples, as the model takes them.
        n_bytes: bytes of its tensors; 0 if it was not computed.
        seconds: that computing it took.
        computed: False if it was there already, or if another writer was faster.
    """

    number: int
    rows: int
    tokens: int
    n_bytes: int = 0
    seconds: float = 0.0
    computed: bool = False


def begin_work(plan: ExtractionPlan, path: str | AnyPath, check: str = SIZE) -> list[int]:
    """Begin the store of a plan at `path`, or find it there; the numbers of the shards without a record.

    Args:
        plan: what is extracted.
        path: the store.
        check: how shards that are there are checked: "size" or "hash".

    Raises:
        UsageError: the model has hooks, which a store cannot record.
        ResumeMismatch: the store at `path` has other settings.
        StorageError: the disk refused, or the files at `path` are damaged.
    """
    writer = open_writer(plan, check_any_path("out", path), check)
    return [] if writer.is_complete and check == SIZE else missing_shards(plan, writer)


def missing_shards(plan: ExtractionPlan, writer: StoreWriter) -> list[int]:
    """The numbers of the shards of a plan that a store lacks; raises a StorageError if one that is there is damaged."""
    numbers = range(len(plan.shards))
    there = each_of(writer.path, lambda number: writer.has(number, shard_rows(plan, number)), numbers)
    return [number for number, is_there in zip(numbers, there, strict=True) if not is_there]


def open_writer(plan: ExtractionPlan, path: AnyPath, check: str = SIZE) -> StoreWriter:
    """The writer of the store of a plan, which is begun or found at `path`; errors as in `begin_work`."""
    refuse_hooks(plan.model)
    new = NewStore(
        identity=identity_of(plan),
        model=plan.model.name,
        task=plan.task,
        layout=plan.layout,
        positions=plan.reading.positions,
        source=plan.model.source,
        meta=record_of_run(plan),
    )
    return StoreWriter(path, begin_store(path, new), check)


def open_work(path: str | AnyPath, device: str = "auto") -> ExtractionPlan:
    """The plan of the store at `path`, made again from its own files, with its model on `device`.

    Args:
        path: a store that was begun.
        device: such as "cuda:1", of the type that the store names; "auto" is that type.

    Raises:
        DataError: no store there, or its model cannot be loaded from where it was.
        UsageError: the device cannot be used; the store was extracted under edits, which it does not hold.
        ResumeMismatch: this model, this device or this probekit would make another store.
        StorageError: the files of the store are damaged, or do not say how it was extracted.
    """
    path = check_any_path("the store", path)
    plan = read_plan(path)
    if plan.edits:
        raise UsageError(
            f"{str(path)!a} is extracted under edits ({plan.edits}), and does not hold their tensors: a worker cannot "
            "make them again; extract in one process, or with part=(i, n)"
        )
    return plan_of_store(path, plan, device=None if device == "auto" else str(find_device(device)))


def write_shards(
    plan: ExtractionPlan, path: str | AnyPath, numbers: Iterable[int], check: str = SIZE
) -> Iterator[ShardDone]:
    """Compute and write these shards of the store at `path`; each is on disk when it is yielded.

    The next shards are computed while earlier ones go to disk, so `numbers` is read up to four shards ahead of what is
    yielded. One that has a record is not computed again. The weights are prepared once for each call.

    Args:
        plan: of the store, from `open_work` or as it was given to `begin_work`.
        path: the store.
        numbers: of the shards, in the order of work.
        check: how shards that are there are checked: "size" or "hash".

    Raises:
        DataError: NaN, infinity, or a value that the kept type cannot hold.
        StorageError: the disk refused, or the files at `path` are damaged.
    """
    path = check_any_path("the store", path)
    waiting, seconds = deque[tuple[ShardDone, Future[bool] | None]](), dict[int, float]()

    def there(number: int, rows: np.ndarray) -> ShardDone:
        return ShardDone(number, len(rows), int(plan.sequences.lengths[rows].sum()))

    def missing() -> Iterator[Shard]:
        for number in numbers:
            start, rows = time.monotonic(), shard_rows(plan, number)
            if writer.has(number, rows):
                waiting.append((there(number, rows), None))
                continue
            values = compute_shard(plan, number, later=[number])
            seconds[number] = time.monotonic() - start
            yield number, rows, values

    with StoreWriter(path, read_plan(path), check) as writer, running(plan.model, plan.device):
        for number, rows, tensors in on_host(missing()):
            n_bytes = sum(x.nbytes for x in tensors.values())
            done = replace(there(number, rows), n_bytes=n_bytes, seconds=seconds.pop(number))
            waiting.append((done, writer.write(number, rows, tensors)))
            while waiting and (waiting[0][1] is None or waiting[0][1].done()):
                yield _on_disk(*waiting.popleft())
        while waiting:
            yield _on_disk(*waiting.popleft())


def _on_disk(done: ShardDone, written: Future[bool] | None) -> ShardDone:
    return done if written is None else replace(done, computed=written.result())


def finish_store(path: str | AnyPath) -> bool:
    """Write the manifest of the store at `path` if every record is there; True if the store is complete.

    Raises:
        DataError: no store there.
        StorageError: the disk refused, or a file is damaged.
    """
    path = check_any_path("the store", path)
    if has_manifest(path):
        return True
    plan = read_plan(path)
    if plan.shards is None and stored_rows(path, plan) < plan.rows:  # of an older store
        return False
    if plan.shards is not None and len(record_numbers(path)) < plan.shards:
        return False
    write_manifest(path, plan)
    return True
