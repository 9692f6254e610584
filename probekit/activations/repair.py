"""Repair a store: the shard loop of `extract` computes the broken shards again, bit for bit."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probekit.activations.replan import check_extracted, load_again, plan_again, same_plan
from probekit.activations.run.device_copy import on_host
from probekit.activations.run.loop import run_shards
from probekit.activations.store.begin import refuse_old
from probekit.activations.store.check import (
    STATISTICS,
    Broken,
    Verification,
    cannot_be_made_again,
    is_of_labels,
    verify,
)
from probekit.activations.store.examples import read_examples
from probekit.activations.store.format import AGAIN, PlanFile, read_plan, record_path, stored_rows
from probekit.activations.store.replace import ReplacingWriter
from probekit.activations.store.writer import write_manifest
from probekit.errors import StorageError, UsageError
from probekit.files.durable import remove
from probekit.files.remote.path import AnyPath
from probekit.interventions import Edits
from probekit.models.base import LanguageModel

__all__ = ["Repaired", "plan_again", "repair"]

Advance = Callable[[int, int], object] | None


@dataclass(frozen=True)
class Repaired:
    """The result of `repair`.

    Attributes:
        path: the store.
        shards: numbers of the shards that were computed again.
        removed: numbers of the shards of an import that were removed; the same import writes them again.
        manifest: True if the manifest was written again.
        complete: True if the store can be loaded now; one that lacks rows stays unfinished.
        left: what stays broken: statistics and joined labels, which the commands that made them make again.
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
    _refuse_lost(found)
    plan = read_plan(found.path)
    if found.shards:
        refuse_old(found.path, plan)
    shards = [] if plan.is_import else _recompute(found, plan, model, edits, show)
    removed = _remove_shards(found) if plan.is_import else []
    manifest, complete = _finish(found, plan, complete=found.finished and not removed)
    left = [one for one in found.broken if one.file == STATISTICS or is_of_labels(one.file)]
    return Repaired(found.path, shards, removed, manifest, complete, left, found.command)


def _finish(found: Verification, plan: PlanFile, complete: bool) -> tuple[bool, bool]:
    """Write a manifest that is broken or missing, if every row is there; (was it written, is the store complete)."""
    manifest = found.path / "manifest.json"
    if any(one.file == manifest.name for one in found.broken):
        remove(manifest)
        complete = False
    if complete or stored_rows(found.path, plan) != plan.rows:
        return False, complete
    write_manifest(found.path, plan)
    return True, True


def _refuse_lost(found: Verification) -> None:
    """Everything else is made from the plan and the examples."""
    for one in found.broken:
        if cannot_be_made_again(one.file):
            raise StorageError(f"{str(found.path / one.file)!a} cannot be made again ({one.why}); {AGAIN}")
        if one.file == "records":
            raise StorageError(one.why)


def _remove_shards(found: Verification) -> list[int]:
    """Remove the records of broken shards, so that the import writes these shards again."""
    if found.shards:
        remove(found.path / "manifest.json")
    for number in found.shards:
        remove(record_path(found.path, number))
    return found.shards


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
    examples = read_examples(path, plan)
    check_extracted(path, plan.identity)
    again = same_plan(path, plan, examples, load_again(path, plan, model), edits)
    numbers = [number for number in found.shards if number < len(again.shards)]
    writer = ReplacingWriter(path, plan, numbers, show)
    with writer, closing(run_shards(again, progress=False, writer=writer)) as computed:
        for number, rows, tensors in on_host(computed):
            writer.write(number, rows, tensors)
    for number in set(found.shards) - set(numbers):
        remove(record_path(path, number))
    return numbers
