"""Begin a store, or find the one that is there and compare its settings; write its shards.

Each shard is on disk before its record, every record before the manifest.

Axes: N examples, R rows of a place in a shard, D width of a place.
"""

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from torch import Tensor

from probekit.activations.layout import Layout
from probekit.activations.store.examples import check_examples, read_head, write_examples
from probekit.activations.store.format import (
    AGAIN,
    FORMAT,
    FORMAT_VERSION,
    MAX_RECORDS,
    MAX_ROWS,
    PlanFile,
    has_manifest,
    plan_in,
    read_record,
    read_records,
    record_path,
    record_piece,
    records_of,
    unfinished_advice,
)
from probekit.activations.store.shard import Record, forms_of, hashed_parts, record_body
from probekit.activations.store.tensors import SIZE, check_shard, read_tensor
from probekit.errors import ResumeMismatch, StorageError, UsageError
from probekit.files.durable import (
    TEMPORARY,
    entries,
    is_there,
    make_folders,
    remove_stale,
    seal,
    sync_names,
    touch,
    write_first,
    write_named,
)
from probekit.files.remote.path import AnyPath
from probekit.files.run import ELSEWHERE, begin_run, differing, refuse_others, value_shown
from probekit.files.scratch import give_back_memory
from probekit.interventions import one_place_in_words
from probekit.points import Place
from probekit.selections import Selection
from probekit.tasks.base import Task

CONTINUATIONS = "continuations"  # the folder of what the model wrote, before there is a plan
DERIVED = ("widths", "shards", "rows")  # fields of an identity that follow from others, which say more
SHARING = ("share", "block_nodes")  # these follow from edits
EXPLAINED = {
    "task_fingerprint": " (texts, labels or splits; a seed or a limit changes them)",
    "model_fingerprint": " (the weights, in the type that computes)",
    "arithmetic": " (the order of its sums, which decides the last digits)",
}
UNSAID = {"via": "probekit", "quantize": None}  # what an identity without these fields means
IN_FLIGHT = 3  # shards on their way to the disk at once: one is hashed and written while others wait for their fsync
IN_FLIGHT_BYTES = 256 << 20  # of larger shards fewer are


@dataclass(frozen=True, eq=False)
class NewStore:
    """Everything that is known of a store before its first shard.

    Attributes:
        identity: the settings that decide the bits; must equal those of a store that is there.
        model: name of the model, for people; the identity holds the fingerprint.
        task: the examples.
        layout: how many rows each has at a place.
        positions: those that were requested.
        source: arguments with which `load_model` loads the model again, JSON-able.
        meta: provenance for the manifest, JSON-able; it is kept in the plan, so that a lost manifest can be rewritten.
    """

    identity: dict[str, Any]
    model: str
    task: Task
    layout: Layout
    positions: Sequence[Selection]
    source: dict[str, Any] | None
    meta: dict[str, Any]


def begin_store(path: AnyPath, new: NewStore) -> PlanFile:
    """Write plan and examples at `path`, unless the same store is there already.

    Raises:
        ResumeMismatch: `path` holds a store with another identity; the message names every field that differs.
        StorageError: the disk refused, `path` holds something else, or a damaged store.
        UsageError: more texts or shards than one store can hold.
    """
    _check_size(new.identity)
    check_free(path)
    make_folders(path, "shards", "records")
    about = {key: value for key, value in new.meta.items() if key != "created"}
    body = {"format": FORMAT, "model": new.model, "task": new.task.name, "identity": new.identity}
    body |= {"source": new.source, "meta": about}
    stored: dict[str, Any] = {}

    def same(found: dict[str, Any], ours: dict[str, Any]) -> None:
        stored.update(found)
        check_same(path, plan_in(path, found, ""), ours)

    run = begin_run(path, body, "is of another store", same, AGAIN)
    plan = plan_in(path, stored, run.seal)
    if not is_there(path / "examples.json"):
        remove_stale(path / "examples")
        write_examples(path, new.task, new.layout, new.positions)
    else:
        check_examples(path, plan)  # with damaged examples, shards that are computed now would be lost
    return plan


def _check_size(identity: dict[str, Any]) -> None:
    """Refuse what a store could not be finished with, before anything is computed."""
    for what, n, most in (("texts", identity["rows"], MAX_ROWS - 1), ("shards", identity.get("shards"), MAX_RECORDS)):
        if n is not None and n > most:
            raise UsageError(
                f"{n:,} {what} are more than the {most:,} of one store; split the task, or keep fewer layers or tokens "
                "(--position), or sums alone (--stats-only)"
            )


def check_free(path: AnyPath) -> bool:
    """True if a store was begun at `path`; refuse a folder with files that are not of a store.

    Raises:
        StorageError: there are some, `path` is an object, or the disk refused.
    """
    if is_there(path / "plan.json"):
        return True
    if path.is_file():
        raise StorageError(f"{str(path)!a} is an object or a file, expected the place of a store; name another")
    names = {one.path.name for one in entries(path) if not one.path.name.startswith(TEMPORARY)}
    other = names - {"shards", "records", CONTINUATIONS}
    if other or ("records" in names and any((path / "records").glob("*.json"))):
        if is_there(path / "plan.json"):
            return True  # another writer began meanwhile
        raise StorageError(f"{str(path)!a} holds files that are not of a store; name an empty or a new folder")
    return False


def check_same(path: AnyPath, plan: PlanFile, wanted: dict[str, Any], advice: str = ELSEWHERE) -> None:
    """Compare a store with `wanted`: identity, model and task of this run, as JSON gives them back.

    Raises:
        ResumeMismatch: they differ; the message names every field.
    """
    refuse_old(path, plan, wanted["identity"].get("version"))
    stored, ours = ({**UNSAID, **_flat(identity)} for identity in (plan.identity, wanted["identity"]))
    fields = differing(stored, ours)
    if not fields:
        return
    fields = [key for key in fields if key not in DERIVED] or fields
    if "via" in fields and "kind" not in fields:  # config and fingerprint differ too, which says nothing
        fields = [key for key in fields if key in UNSAID]
    if any(key.startswith("edit") for key in fields):
        fields = [key for key in fields if key not in SHARING]
    stored |= {"model": plan.model, "task": plan.task}
    ours |= {key: wanted[key] for key in ("model", "task")}
    fields = [key for key in ("model", "task") if stored[key] != ours[key]] + fields
    what = f"{str(path)!a} was made with other settings"
    # the configs of one family do not have the same fields, or its activations came from other arithmetic
    of_config = any(key.startswith("config.") for key in stored.keys() ^ ours.keys())
    same_family = "family" in ours and stored.get("family") == ours["family"]
    if same_family and (of_config or stored.get("arithmetic") != ours.get("arithmetic")):
        what = f"{str(path)!a} was made by another version of probekit"
        advice = "a complete store can still be loaded; to resume or repair it, use that version, or extract again"
    raise refuse_others(what, fields, stored, ours, EXPLAINED, advice, _shown)


def refuse_old(path: AnyPath, plan: PlanFile, version: int = FORMAT_VERSION) -> None:
    """Raise a ResumeMismatch if a store that is to be written to has another format than `version`."""
    if (there := plan.identity.get("version")) != version:
        raise ResumeMismatch(
            f"{str(path)!a} has format {there}, which this probekit reads and does not write (format {version}): it "
            "can still be loaded; to go on, extract to another folder"
        )


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in identity.items() if not isinstance(value, dict)}
    for key, value in identity.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {}
    return flat


def _shown(flat: Mapping[str, Any], key: str) -> str:
    if key.startswith("edits.") and key in flat:
        return one_place_in_words(flat[key])
    return value_shown(flat, key)


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
        """Write the manifest, with `meta` added to the plan's provenance: from now on the store is complete.

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
