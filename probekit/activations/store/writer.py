"""Writing a store: each shard on disk before its record, every record before the manifest.

Axes: N examples, R rows of a place in a shard, D width of a place.
"""

import contextlib
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from probekit.activations.layout import Layout, position_name
from probekit.activations.store.format import (
    FORMAT,
    MOST_EXAMPLES,
    PlanFile,
    examples_body,
    read_examples,
    read_plan,
    read_record,
    read_records,
    record_path,
    unfinished_advice,
)
from probekit.activations.store.shard import bytes_of, check_shard, header_of, read_tensor, record_of
from probekit.durable import TEMPORARY, keep_names, make_folder, refused, seal, sweep, write_first, write_named
from probekit.errors import ResumeMismatch, StorageError
from probekit.points import Place, place_name, split_point
from probekit.tasks.base import Task

FOLLOWS = ("widths", "shards", "rows")  # from other fields of an identity, which say more
MEANS = {
    "task_fingerprint": " (texts, labels or splits; a seed or a limit changes them)",
    "model_fingerprint": " (the weights, in the type that computes)",
}


class StoreWriter:
    """Makes a store, or goes on with one that was left unfinished.

    Shards go to disk in the background, one at a time, while the next is computed. Use it in a `with`, or end with
    `finish` or `close`: they wait for the last one.

    Args:
        path: the store; made when it is not there.
        identity: what decides the bits; must equal that of a store that is there.
        model_name: for people; the identity holds the fingerprint.
        task: the examples.
        layout: how many rows each has at a place; None is one for each position.
        positions: what was asked for, arrays as they are; None is the identity's.
        source: what `load_model` takes to load the model again, JSON-able.
        meta: what the manifest will say of the run, JSON-able; with it a lost manifest can be written again.

    Raises:
        ResumeMismatch: a store of another identity stands there; the message names every field that differs.
        StorageError: the disk refused, something else stands there, or what stands there is damaged.
    """

    def __init__(
        self,
        path: Path,
        identity: dict[str, Any],
        model_name: str,
        task: Task,
        layout: Layout | None = None,
        positions: Sequence[str | int | np.ndarray] | None = None,
        source: dict[str, Any] | None = None,
        meta: dict[str, Any] | None = None,
    ):
        self.path = path
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        _check_free(path)
        for folder in (path, path / "shards", path / "records"):
            make_folder(folder)
            sweep(folder)
        about = {key: value for key, value in (meta or {}).items() if key != "created"}
        plan = {"format": FORMAT, "model": model_name, "task": task.name, "identity": identity, "source": source}
        data, _ = seal({**plan, "meta": about})
        if not os.path.lexists(path / "plan.json"):  # a complete store may stand where nothing can be written
            write_first(path / "plan.json", data)
        self._plan = read_plan(path)
        check_same(path, self._plan, json.loads(data))
        if not os.path.lexists(path / "examples.json"):
            asked = list(positions or _listed(identity.get("position", "last")))
            layout = layout or _plain_layout(asked, len(task))
            write_first(path / "examples.json", seal(examples_body(task, layout, asked), MOST_EXAMPLES)[0])
        else:
            read_examples(path, self._plan)  # if they are damaged, nothing that is computed now can be kept

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
        """Whether there is nothing left to do."""
        return (self.path / "manifest.json").exists()

    def mark_newest(self) -> None:
        """Date a complete store as if it were finished now; one that may not be written keeps its date."""
        now = time.time_ns()
        with contextlib.suppress(OSError):
            os.utime(self.path / "manifest.json", ns=(now, now))

    def has(self, number: int, rows: np.ndarray) -> bool:
        """Whether this shard stands on disk already.

        Raises:
            StorageError: it does, and is damaged or holds other rows.
        """
        if not os.path.lexists(record_path(self.path, number)):
            return False
        record, _ = read_record(self.path, self._plan, number)
        if not np.array_equal(record.rows, rows):
            file = str(record_path(self.path, number))
            raise StorageError(f"{file!a} holds other rows than this run; name another folder, or remove it")
        check_shard(self.path, record)
        return True

    def read(self, number: int) -> dict[Place, Tensor]:
        """The tensors of a shard that stands on disk, [R, D] in the order of its rows.

        Raises:
            StorageError: it is missing or damaged.
        """
        record, _ = read_record(self.path, self._plan, number)
        return {split_point(name): read_tensor(self.path, record, name) for name in record.tensors}

    def write(self, number: int, rows: np.ndarray, tensors: dict[Place, Tensor]) -> None:
        """Put one shard on disk: the file first, then its record, unless another writer was faster.

        It returns as soon as the shard before this one is there; the tensors must stay as they are until the next call.

        Args:
            number: of the shard.
            rows: its examples, int64.
            tensors: place -> [R, D], the rows of the first of its examples first.

        Raises:
            StorageError: the disk refused this shard or the one before; those that are there stay.
        """
        self.flush()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(2, thread_name_prefix="probekit-store")  # one writes while one hashes
        self._pending = self._pool.submit(write_shard, self.path, self._plan, number, rows, tensors, self._pool)

    def flush(self) -> None:
        """Wait until every shard that was given is on disk.

        Raises:
            StorageError: the disk refused.
        """
        if self._pending is not None:
            self._pending.result()  # when Ctrl-C ends the wait, the shard stays pending, and `close` waits for it
            self._pending = None

    def close(self) -> None:
        """End the background's work; what it has begun is finished first."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._pool = self._pending = None

    def finish(self, meta: dict[str, Any] | None = None) -> None:
        """Write the manifest: from now on the store is complete.

        Args:
            meta: more to say of the run, beside what the writer was made with.

        Raises:
            StorageError: the disk refused, or a record is damaged.
        """
        try:
            self.flush()
        finally:
            self.close()
        write_manifest(self.path, self._plan, meta)


def write_shard(
    path: Path,
    plan: PlanFile,
    number: int,
    rows: np.ndarray,
    tensors: dict[Place, Tensor],
    pool: ThreadPoolExecutor,
) -> None:
    """Put one shard on disk, and then its record; it is hashed in the pool while it is written.

    Raises:
        StorageError: the disk refused.
    """
    named = {place_name(place): x.contiguous() for place, x in tensors.items()}
    hashed = pool.submit(record_of, rows, named)

    parts = [header_of(rows, named), *map(bytes_of, named.values())]
    write_named(path / "shards", parts, lambda: hashed.result().file)
    write_first(record_path(path, number), seal(hashed.result().body(plan.seal))[0])


def write_manifest(path: Path, plan: PlanFile, meta: dict[str, Any] | None = None) -> None:
    """Write the manifest of a store whose shards are all there.

    Raises:
        StorageError: the disk refused, a row is missing, or what stands there is damaged.
    """
    keep_names(path / "records")
    records = read_records(path, plan)
    kept = sum(len(record.rows) for record, _ in records.values())
    if kept != plan.rows:
        advice = unfinished_advice(path, plan.command, is_whole=False)
        raise StorageError(f"{str(path)!a} has {kept} of {plan.rows} rows: {advice}")
    examples = read_examples(path, plan)
    task = {"model": plan.model, "task": plan.task, "task_info": examples.task.info, "target": examples.task.target}
    body = {"format": FORMAT, **plan.identity, **task, **plan.meta, "created": now(), **(meta or {})}
    body |= {"plan": plan.seal, "examples": examples.seal, "records": [checksum for _, checksum in records.values()]}
    write_first(path / "manifest.json", seal(body)[0])


def now() -> str:
    """The date, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _listed(position: Any) -> list[Any]:
    return position if isinstance(position, list) else [position]


def _plain_layout(positions: list[Any], n: int) -> Layout:
    return Layout([position_name(one) for one in positions], np.ones(n, dtype=np.int64), 0)


def _check_free(path: Path) -> None:
    if os.path.lexists(path) and not os.path.lexists(path / "plan.json"):
        try:
            names = {p.name for p in path.iterdir() if not p.name.startswith(TEMPORARY)}
        except OSError as error:
            raise refused(path, error) from error
        strange = names - {"shards", "records"} or any((path / "records").glob("*.json"))
        if strange and not os.path.lexists(path / "plan.json"):  # another writer may have begun meanwhile
            raise StorageError(f"{str(path)!a} holds something that is no store; name an empty or a new folder")


def check_same(
    path: Path, standing: PlanFile, wanted: dict[str, Any], advice: str = "name another folder, or remove it"
) -> None:
    """Refuse to go on with a store of another identity, naming every field that differs.

    Args:
        path: the store.
        standing: what is there.
        wanted: identity, model and task of this run, as JSON gives them back.
        advice: what to do.

    Raises:
        ResumeMismatch: they differ.
    """
    there, here = _flat(standing.identity), _flat(wanted["identity"])
    differing = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if not differing:
        return
    differing = [key for key in differing if key not in FOLLOWS] or differing
    there |= {"model": standing.model, "task": standing.task}
    here |= {key: wanted[key] for key in ("model", "task")}
    named = [key for key in ("model", "task") if there[key] != here[key]] + differing
    fields = "; ".join(
        f"{key}{MEANS.get(key, '')}: {_said(there, key)} there, {_said(here, key)} here" for key in named
    )
    if _of_another_version(there, here):
        raise ResumeMismatch(
            f"{str(path)!a} was made by another version of probekit, whose {here['family']} has other settings "
            f"({fields}); what is complete can be read; to go on or to mend it take that version, or extract again"
        )
    raise ResumeMismatch(f"{str(path)!a} was made with other settings ({fields}); {advice}")


def _of_another_version(there: dict[str, Any], here: dict[str, Any]) -> bool:
    """Whether the configs of one family do not have the same fields."""
    same_family = "family" in here and there.get("family") == here["family"]
    return same_family and any(key.startswith("config.") for key in there.keys() ^ here.keys())


def _said(flat: dict[str, Any], key: str) -> str:
    return _brief(flat[key]) if key in flat else "nothing"


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in identity.items() if not isinstance(value, dict)}
    for key, value in identity.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {}
    return flat


def _brief(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:24]}...{text[-24:]}"
