"""Write the shards of a store: each on disk before its record, every record before the manifest.

Axes: N examples, R rows of a place in a shard, D width of a place.
"""

import contextlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
from torch import Tensor

from probekit.activations.store.examples import read_head
from probekit.activations.store.format import (
    FORMAT,
    PlanFile,
    has_manifest,
    read_record,
    read_records,
    record_path,
    record_piece,
    records_of,
    unfinished_advice,
)
from probekit.activations.store.shard import Record, forms_of, hashed_parts, record_body
from probekit.activations.store.tensors import SIZE, check_shard, read_tensor
from probekit.errors import StorageError
from probekit.files.durable import is_there, seal, sync_names, touch, write_first, write_named
from probekit.files.remote.path import AnyPath
from probekit.files.scratch import give_back_memory
from probekit.points import Place

IN_FLIGHT = 3  # shards on their way to the disk at once: one is hashed and written while others wait for their fsync
IN_FLIGHT_BYTES = 256 << 20  # of larger shards fewer are


class StoreWriter:
    """Writes the shards of a store that `begin_store` began, also of one that an earlier run left unfinished.

    Up to `IN_FLIGHT` shards go to disk in the background while the next is computed; their records are written in the
    order of the shards, none after one that failed. Use it in a `with`, or end with `finish` or `close`: they wait.

    Args:
        path: the store.
        plan: its plan.
        check: how shards that are on disk are checked: "size", or every byte by "hash".
    """

    def __init__(self, path: AnyPath, plan: PlanFile, check: str = SIZE):
        self.path, self.plan = path, plan
        self._check = check
        self._records = records_of(path, plan)
        self._pool: ThreadPoolExecutor | None = None
        self._pending: deque[tuple[int, Future[bool]]] = deque()  # bytes of a shard, and its way to the disk

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with contextlib.suppress(Exception) if kind else contextlib.nullcontext():
                self.flush()
        finally:
            self.close()

    @property
    def is_complete(self) -> bool:
        """True if there is nothing left to do."""
        return has_manifest(self.path)

    def mark_newest(self) -> None:
        """Date a complete store as if it were finished now; one that is read-only or remote keeps its date."""
        touch(self.path / "manifest.json")

    def has(self, number: int, rows: np.ndarray) -> bool:
        """True if this shard has a record and its file the recorded size, or with check "hash" the recorded bytes.

        Raises:
            StorageError: it is damaged or holds other rows.
        """
        file = record_path(self.path, number)
        if not is_there(file):
            return False
        record, _ = read_record(self.path, self.plan, number)
        if not np.array_equal(record.rows, rows):
            raise StorageError(f"{str(file)!a} holds rows of another run; name another folder, or remove it")
        check_shard(self.path, record, self._check)
        return True

    def read(self, number: int) -> dict[Place, Tensor]:
        """The tensors of a shard on disk, [R, D] in the order of its rows.

        Raises:
            StorageError: it is missing or damaged.
        """
        record, _ = read_record(self.path, self.plan, number)
        return {Place.of(name): read_tensor(self.path, record, name) for name in record.tensors}

    def write(self, number: int, rows: np.ndarray, tensors: dict[Place, Tensor]) -> Future[bool]:
        """Put one shard on disk: the file first, then its record, unless another writer was faster.

        Returns when there is room for one more on its way; leave the tensors unchanged until `flush` or `finish`.

        Args:
            number: of the shard.
            rows: its examples, int64.
            tensors: place -> [R, D], the rows of the first of its examples first.

        Returns:
            What is done when the record is on disk: True if it is this one, False if another writer was faster.

        Raises:
            StorageError: the disk refused an earlier shard; those on disk are kept.
        """
        n_bytes = sum(x.nbytes for x in tensors.values())
        self._wait(IN_FLIGHT - 1, IN_FLIGHT_BYTES - n_bytes)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="probekit-store")
        before = self._pending[-1][1] if self._pending else None
        written = self._pool.submit(self._put, number, rows, tensors, before)
        self._pending.append((n_bytes, written))
        return written

    def _put(
        self, number: int, rows: np.ndarray, tensors: dict[Place, Tensor], before: Future[bool] | None = None
    ) -> bool:
        """Write a shard, and then its record when that of the shard before is on disk."""
        named, record = {str(place): x.contiguous() for place, x in tensors.items()}, list[Record]()
        parts = hashed_parts(rows, forms_of(named), named.values(), record)
        write_named(self.path / "shards", parts, lambda: record[0].file)
        if before is not None:
            before.result()  # it began sooner, so that its thread is not waiting for this one
        first = self._records.write(record_piece(number), record_body(record[0]))
        give_back_memory()
        return first

    def flush(self) -> None:
        """Wait until every shard that was given is on disk.

        Raises:
            StorageError: the disk refused.
        """
        self._wait(0, 0)

    def _wait(self, most: int, most_bytes: int) -> None:
        """Wait until at most so many shards, and bytes of them, are on their way; an error stays for the next call."""
        while len(self._pending) > most or (self._pending and sum(n for n, _ in self._pending) > most_bytes):
            self._pending[0][1].result()  # if Ctrl-C ends the wait, the shard stays pending, and `close` waits for it
            self._pending.popleft()

    def close(self) -> None:
        """Finish the writes that have begun, and end the background threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._pool = None
        self._pending.clear()

    def finish(self, meta: dict[str, Any] | None = None) -> None:
        """Write the manifest: from now on the store is complete.

        Args:
            meta: provenance in addition to that of the plan.

        Raises:
            StorageError: the disk refused, or a record is damaged.
        """
        try:
            self.flush()
        finally:
            self.close()
        write_manifest(self.path, self.plan, meta)


def write_manifest(path: AnyPath, plan: PlanFile, meta: dict[str, Any] | None = None) -> None:
    """Write the manifest of a store that has all of its shards.

    Raises:
        StorageError: the disk refused, a row is missing, or a file is damaged.
    """
    sync_names(path / "records")
    records = read_records(path, plan)
    stored = sum(len(record.rows) for record, _ in records.values())
    if stored != plan.rows:
        advice = unfinished_advice(path, plan.command, has_every_row=False)
        raise StorageError(f"{str(path)!a} has {stored} of {plan.rows} rows: {advice}")
    examples = read_head(path)
    task = {"model": plan.model, "task": plan.task, "task_info": examples.info, "target": examples.target}
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    body = {"format": FORMAT, **plan.identity, **task, **plan.meta, "created": now, **(meta or {})}
    body |= {"plan": plan.seal, "examples": examples.seal, "records": [checksum for _, checksum in records.values()]}
    write_first(path / "manifest.json", seal(body)[0])
