"""Repair a store: the shard loop of `extract` computes the broken shards again, bit for bit."""

from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.replan import plan_of_store
from probekit.activations.run.device_copy import on_host
from probekit.activations.run.loop import run_shards
from probekit.activations.store.check import (
    STATISTICS,
    Advance,
    Broken,
    Verification,
    cannot_be_made_again,
    is_of_labels,
    is_of_latents,
    verify,
)
from probekit.activations.store.format import (
    AGAIN,
    PlanFile,
    read_manifest,
    read_plan,
    read_record,
    record_path,
    record_piece,
    stored_rows,
)
from probekit.activations.store.shard import Record, bytes_of, record_body, record_of
from probekit.activations.store.tensors import check_shard
from probekit.activations.store.writer import StoreWriter, refuse_old, write_manifest
from probekit.errors import StorageError, UsageError
from probekit.files.durable import remove, write_named
from probekit.files.remote.path import AnyPath
from probekit.interventions import Edits
from probekit.models.base import LanguageModel
from probekit.points import Place


@dataclass(frozen=True)
class Repaired:
    """The result of `repair`.

    Attributes:
        path: the store.
        shards: numbers of the shards that were computed again.
        removed: numbers of the shards of an import that were removed; the same import writes them again.
        manifest: True if the manifest was written again.
        complete: True if the store can be loaded now; one that lacks rows stays unfinished.
        left: what stays broken: statistics, joined labels and kept latents; the commands that made them make them
            again.
        command: name of the command that makes such a store.
    """

    path: AnyPath
    shards: list[int]
    removed: list[int]
    manifest: bool
    complete: bool
    left: list[Broken]
    command: str

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "path": str(self.path)}


def repair(
    path: str | AnyPath,
    model: LanguageModel | str | Path | None = None,
    show: Advance = None,
    show_bytes: Advance = None,
    edits: Edits | None = None,
) -> Repaired:
    """Write what is broken in a store again, and touch nothing that is sound.

    A shard is replaced only if it comes out with the checksum that its record or the manifest holds. A lost manifest is
    written again. Broken shards of an import are removed; the same import then writes them again.

    Args:
        path: the store.
        model: the model, or where to load it from; None is the source that the store names.
        show: called with (shards done, broken shards).
        show_bytes: called with (bytes read, bytes in all) while the store is verified.
        edits: those of the extraction, if it had any: a store records them, and does not hold their tensors.

    Raises:
        DataError: no store there, or a model that cannot be loaded.
        UsageError: no such model or device; no edits for broken shards of a store that was extracted under some.
        ResumeMismatch: the model, the edits, or this probekit, would make another store; the message names every field.
        StorageError: the plan or the examples are broken, the bits came out differently, or the disk refused.
    """
    found = verify(path, show_bytes)
    for one in found.broken:  # everything else is made from the plan and the examples
        if cannot_be_made_again(one.file):
            raise StorageError(f"{str(found.path / one.file)!a} cannot be made again ({one.why}); {AGAIN}")
        if one.file == "records":
            raise StorageError(one.why)
    plan, manifest = read_plan(found.path), found.path / "manifest.json"
    if found.shards:
        refuse_old(found.path, plan)
    shards, removed = ([], found.shards) if plan.is_import else (_recompute(found, plan, model, edits, show), [])
    complete = found.finished and not removed
    if removed or any(one.file == manifest.name for one in found.broken):
        remove(manifest)
        complete = False
    for number in removed:
        remove(record_path(found.path, number))
    written = not complete and stored_rows(found.path, plan) == plan.rows
    if written:
        write_manifest(found.path, plan)
    left = [one for one in found.broken if one.file == STATISTICS or is_of_labels(one.file) or is_of_latents(one.file)]
    return Repaired(found.path, shards, removed, written, complete or written, left, found.command)


def _recompute(
    found: Verification,
    plan: PlanFile,
    model: LanguageModel | str | Path | None,
    edits: Edits | None,
    show: Advance,
) -> list[int]:
    """Numbers of the shards that were computed again; a record that the plan has no shard for is removed."""
    path = found.path
    if not found.shards:
        return []
    if plan.edits and edits is None:
        raise UsageError(
            f"{str(path)!a} was extracted under edits ({plan.edits}), and does not hold their tensors; give them "
            "again in Python: probekit.activations.repair(path, edits=...)"
        )
    again = plan_of_store(path, plan, model, edits)
    numbers = [number for number in found.shards if number < len(again.shards)]
    writer = _ReplacingWriter(path, plan, numbers, show)
    with writer, closing(run_shards(again, progress=False, writer=writer)) as computed:
        for number, rows, tensors in on_host(computed):
            writer.write(number, rows, tensors)
    for number in set(found.shards) - set(numbers):
        remove(record_path(path, number))
    return numbers


class _ReplacingWriter(StoreWriter):
    """Writes the broken shards of a store, each only by the bits that were recorded, and takes all others as sound."""

    def __init__(self, path: AnyPath, plan: PlanFile, broken: Iterable[int], advance: Advance = None):
        super().__init__(path, plan)
        self._expected = {number: _expected(path, plan, number) for number in broken}
        self._advance, self._written = advance, 0

    def has(self, number: int, rows: np.ndarray) -> bool:
        """True unless the shard is one of the broken ones."""
        return number not in self._expected

    def write(self, number: int, rows: np.ndarray, tensors: dict[Place, Tensor]) -> Future[bool]:
        """Replace one shard.

        Raises:
            StorageError: the disk refused, or a shard before came out with other bits than recorded.
        """
        written = super().write(number, rows, tensors)
        self._written += 1
        if self._advance:
            self._advance(self._written, len(self._expected))
        return written

    def _put(
        self, number: int, rows: np.ndarray, tensors: dict[Place, Tensor], before: Future[bool] | None = None
    ) -> bool:
        if before is not None:
            before.result()
        named = {str(place): x.contiguous() for place, x in tensors.items()}
        record, (known, checksum) = record_of(rows, named), self._expected[number]
        if known is None:
            is_same = checksum in (None, self._records.sealed(record_body(record))[1])
        else:
            is_same = record.file == known.file and np.array_equal(record.rows, known.rows)
        if not is_same:
            versions = self.plan.meta.get("versions")
            version = versions.get("torch") if isinstance(versions, dict) else None
            raise StorageError(
                f"shard {number} of {str(self.path)!a} came out with other bits than were recorded (torch {version!a} "
                f"there, {torch.__version__} here): repair it on the machine that made it, or {AGAIN}"
            )
        try:
            check_shard(self.path, record)
        except StorageError:
            write_named(self.path / "shards", [record.header, *map(bytes_of, named.values())], lambda: record.file)
        if known is None:
            self._records.remove(record_piece(number))
            self._records.write(record_piece(number), record_body(record))
        return True


def _expected(path: AnyPath, plan: PlanFile, number: int) -> tuple[Record | None, str | None]:
    """What is known about a broken shard: its record, if that is sound, and its checksum, if the manifest has it."""
    try:
        manifest = read_manifest(path)
        recorded = manifest["records"][number] if manifest["plan"] == plan.seal else None
    except (StorageError, IndexError):
        recorded = None
    try:
        record, checksum = read_record(path, plan, number)
    except StorageError:
        return None, recorded
    return (record if recorded in (None, checksum) else None), recorded
