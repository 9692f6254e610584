"""Write the shards of a store: each on disk before its record, every record before the manifest.

Axes: N examples, R rows of a place in a shard, D width of a place.
"""

import contextlib
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
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
    unfinished_advice,
)
from probekit.activations.store.shard import (
    bytes_of,
    check_shard,
    header_of,
    read_tensor,
    record_body,
    record_of,
)
from probekit.durable import seal, sync_names, write_first, write_named
from probekit.errors import StorageError
from probekit.points import Place, place_name, split_point


class StoreWriter:
    """Writes the shards of a store that `begin_store` began, also of one that an earlier run left unfinished.

    Shards go to disk in the background, one at a time, while the next is computed. Use it in a `with`, or end with
    `finish` or `close`: they wait for the last one.

    Args:
        path: the store.
        plan: its plan.
    """

    def __init__(self, path: Path, plan: PlanFile):
        self.path = path
        self._plan = plan
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

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
        """Date a complete store as if it were finished now; a read-only one keeps its date."""
        now = time.time_ns()
        with contextlib.suppress(OSError):
            os.utime(self.path / "manifest.json", ns=(now, now))

    def has(self, number: int, rows: np.ndarray) -> bool:
        """True if this shard is on disk; every byte of it is checked.

        Raises:
            StorageError: it is damaged or holds other rows.
        """
        file = record_path(self.path, number)
        if not os.path.lexists(file):
            return False
        record, _ = read_record(self.path, self._plan, number)
        if not np.array_equal(record.rows, rows):
            raise StorageError(f"{str(file)!a} holds rows of another run; name another folder, or remove it")
        check_shard(self.path, record)
        return True

    def read(self, number: int) -> dict[Place, Tensor]:
        """The tensors of a shard on disk, [R, D] in the order of its rows.

        Raises:
            StorageError: it is missing or damaged.
        """
        record, _ = read_record(self.path, self._plan, number)
        return {split_point(name): read_tensor(self.path, record, name) for name in record.tensors}

    def write(self, number: int, rows: np.ndarray, tensors: dict[Place, Tensor]) -> None:
        """Put one shard on disk: the file first, then its record, unless another writer was faster.

        Returns when the shard before this one is on disk; leave the tensors unchanged until the next call.

        Args:
            number: of the shard.
            rows: its examples, int64.
            tensors: place -> [R, D], the rows of the first of its examples first.

        Raises:
            StorageError: the disk refused this shard or the one before; those on disk are kept.
        """
        self.flush()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2, thread_name_prefix="probekit-store")  # one writes while one hashes
        self._pending = self._pool.submit(self._put, number, rows, tensors, self._pool)

    def _put(self, number: int, rows: np.ndarray, tensors: dict[Place, Tensor], pool: ThreadPoolExecutor) -> None:
        """Write a shard and then its record; the shard is hashed in the pool while it is written."""
        named = {place_name(place): x.contiguous() for place, x in tensors.items()}
        hashed = pool.submit(record_of, rows, named)
        parts = [header_of(rows, named), *map(bytes_of, named.values())]
        write_named(self.path / "shards", parts, lambda: hashed.result().file)
        write_first(record_path(self.path, number), seal(record_body(hashed.result(), self._plan.seal))[0])

    def flush(self) -> None:
        """Wait until every shard that was given is on disk.

        Raises:
            StorageError: the disk refused.
        """
        if self._pending is not None:
            self._pending.result()  # if Ctrl-C ends the wait, the shard stays pending, and `close` waits for it
            self._pending = None

    def close(self) -> None:
        """Finish the write that has begun, and end the background threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._pool = self._pending = None

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
        write_manifest(self.path, self._plan, meta)


def write_manifest(path: Path, plan: PlanFile, meta: dict[str, Any] | None = None) -> None:
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
