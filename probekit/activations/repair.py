"""Mending a store: what is broken is made again out of the model, and must come out as it was recorded."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probekit.activations.plan.plan import ExtractionPlan, plan_extraction
from probekit.activations.run.device_copy import on_host
from probekit.activations.run.forward import compute_shard, running, shard_rows
from probekit.activations.store.format import (
    AGAIN,
    Examples,
    PlanFile,
    kept_rows,
    read_examples,
    read_manifest,
    read_plan,
    read_record,
    record_path,
)
from probekit.activations.store.shard import Record, bytes_of, check_shard, record_of
from probekit.activations.store.verify import STATISTICS, Broken, Verification, verify
from probekit.activations.store.writer import check_same, write_manifest
from probekit.durable import remove, seal, write_first, write_named
from probekit.errors import DataError, StorageError, UsageError
from probekit.models.base import LanguageModel
from probekit.options import ExtractOptions
from probekit.points import FOLLOWED_BY_OUTPUT, Place, place_name

Show = Callable[[int, int], object] | None
_ASKED: dict[str, type] = {
    "points": list,
    "device": str,
    "dtype": str,
    "compute_dtype": str,
    "batch_tokens": int,
    "bos": bool,
    "on_long": str,
    "block_nodes": int,
    "share": bool,
}  # what `plan` was asked for, as the identity has it


@dataclass
class Repaired:
    """What `repair` did.

    Attributes:
        path: the store.
        shards: numbers of the shards that were computed again.
        removed: numbers of the shards of an import that were taken out, for the import to make them again.
        manifest: whether the manifest was written again.
        complete: whether the store can be read now; one that lacks rows stays unfinished.
        left: what stays broken: statistics, which the command that made them makes again.
        command: of the command that makes such a store.
    """

    path: Path
    shards: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    manifest: bool = False
    complete: bool = False
    left: list[Broken] = field(default_factory=list)
    command: str = "extract"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "path": str(self.path)}


def repair(
    path: str | Path,
    model: LanguageModel | str | Path | None = None,
    show: Show = None,
    show_bytes: Show = None,
) -> Repaired:
    """Make what is broken in a store again, and touch nothing that is sound.

    A shard takes the place of the broken one when it came out with the checksum that its record or the manifest holds;
    a lost manifest is written again.

    Args:
        path: the store.
        model: the model, or where to load it from; None is the source that the store names.
        show: is called with (shards done, shards in all).
        show_bytes: is called with (bytes read, bytes in all) while the store is verified.

    Raises:
        DataError: no store there, or a model that cannot be loaded.
        UsageError: no such model or device.
        ResumeMismatch: the model, or this probekit, would make another store; the message names every field.
        StorageError: the plan or the examples are broken, the bits came out differently, or the disk refused.
    """
    found = verify(path, show_bytes)
    _refuse_lost(found)
    left = [one for one in found.broken if one.file == STATISTICS]
    done = Repaired(found.path, complete=found.finished, left=left, command=found.command)
    standing = read_plan(found.path)
    if found.shards and "model_fingerprint" not in standing.identity:
        done.removed, done.complete = _take_out(found), False
    elif found.shards:
        done.shards = _mend_shards(found, standing, model, show)
    manifest = found.path / "manifest.json"
    if any(one.file == manifest.name for one in found.broken):
        remove(manifest)
        done.complete = False
    if not done.complete and kept_rows(found.path, standing) == standing.rows:
        write_manifest(found.path, standing)
        done.manifest = done.complete = True
    return done


def _refuse_lost(found: Verification) -> None:
    """The plan and the examples are what everything else is made from."""
    for one in found.broken:
        if one.file in ("plan.json", "examples.json"):
            raise StorageError(f"{str(found.path / one.file)!a} cannot be made again ({one.why}); {AGAIN}")
        if one.file == "records":
            raise StorageError(one.why)


def _take_out(found: Verification) -> list[int]:
    """Remove the records of broken shards, so that the import that made them reads its files again."""
    remove(found.path / "manifest.json")
    for number in found.shards:
        remove(record_path(found.path, number))
    return found.shards


def _mend_shards(
    found: Verification, standing: PlanFile, model: LanguageModel | str | Path | None, show: Show
) -> list[int]:
    """The numbers of the shards that were computed again; a record that the plan has no shard for is removed."""
    path = found.path
    examples = read_examples(path, standing)
    check_asked(path, standing.identity)
    expected = {number: _expected(path, standing, number) for number in found.shards}
    made = _same_plan(path, standing, examples, _model(standing, model, path))
    numbers = [number for number in found.shards if number < len(made.shards)]
    with running(made):
        for i, number in enumerate(numbers):
            _mend_shard(path, standing, made, number, *expected[number])
            if show:
                show(i + 1, len(numbers))
    for number in set(found.shards) - set(numbers):
        remove(record_path(path, number))
    return numbers


def check_asked(path: Path, identity: dict[str, Any]) -> None:
    """Raise a StorageError unless the identity has all that `plan` was asked for."""
    sound = all(type(identity.get(key)) is kind for key, kind in _ASKED.items())
    if not sound or not all(type(point) is str for point in identity["points"]):
        raise StorageError(f"{str(path / 'plan.json')!a} does not say how the store was extracted; {AGAIN}")


def _expected(path: Path, standing: PlanFile, number: int) -> tuple[Record | None, str | None]:
    """What is known of a broken shard: its record, if that is sound, and the checksum of it that the manifest holds."""
    try:
        manifest = read_manifest(path)
        checksum = manifest["records"][number] if manifest["plan"] == standing.seal else None
    except (StorageError, IndexError):
        checksum = None
    try:
        record, standing_checksum = read_record(path, standing, number)
    except StorageError:
        return None, checksum
    return (record if checksum in (None, standing_checksum) else None), checksum


def _model(standing: PlanFile, model: LanguageModel | str | Path | None, path: Path) -> LanguageModel:
    """The model, on the device and in the type of the plan."""
    if isinstance(model, LanguageModel):
        return model
    from probekit.models import load_model

    source = dict(standing.source or {})
    if model is not None:
        source |= {"name_or_path": str(model), "revision": None}
    if not isinstance(source.get("name_or_path"), str):
        raise StorageError(f"{str(path)!a} does not say where its model is; name it: probekit repair --model MODEL")
    kinds: dict[str, type] = {"name_or_path": str, "revision": str, "random_init": bool, "seed": int}
    how: dict[str, Any] = {key: source[key] for key, kind in kinds.items() if isinstance(source.get(key), kind)}
    try:
        return load_model(**how, device=standing.identity["device"], dtype=standing.identity["compute_dtype"])
    except (UsageError, DataError) as error:
        if model is not None:
            raise
        gone = f"the model that made {str(path)!a} cannot be loaded from where it was ({error})"
        raise DataError(f"{gone}; name it: probekit repair --model MODEL") from error


def _same_plan(path: Path, standing: PlanFile, examples: Examples, model: LanguageModel) -> ExtractionPlan:
    """The plan that made the store.

    Raises:
        ResumeMismatch: this one has another identity.
    """
    identity = standing.identity
    advice = "give the model that made it with --model"
    of_model = {
        "family": type(model).__name__,
        "config": dataclasses.asdict(model.cfg),  # pyright: ignore[reportArgumentType]
        "model_fingerprint": model.fingerprint(),
        "compute_dtype": str(model.dtype).removeprefix("torch."),
    }
    other = {"identity": {**identity, **of_model}, "model": model.name, "task": standing.task}
    check_same(path, standing, json.loads(json.dumps(other)), advice)  # before a plan that the model may not allow
    made = plan_again(standing, examples, model)
    wanted = {"identity": made.identity, "model": model.name, "task": standing.task}
    check_same(path, standing, json.loads(json.dumps(wanted)), advice)
    return made


def plan_again(standing: PlanFile, examples: Examples, model: LanguageModel) -> ExtractionPlan:
    """The plan of a store for this model: the same examples, points, layers, positions, types and batches."""
    identity, asked = standing.identity, examples.positions
    same = _ASKED.keys() - {"compute_dtype"}  # which is the model's
    options = ExtractOptions(
        layers=_layers(standing.places, identity["points"], model),
        position=asked[0] if len(asked) == 1 else asked,
        **{key: identity[key] for key in same},
    )
    return plan_extraction(model, examples.task, options)


def _layers(places: list[Place], points: list[str], model: LanguageModel) -> str | list[int]:
    """The layers that were asked for: "all" when the last output ends the curve of a residual point."""
    layers = sorted({layer for point, layer in places if point in points and layer is not None})
    n_layers = model.n_layers_of(points[0])
    ends = (model.output_of(points[0]), n_layers - 1) in places and bool(set(points) & set(FOLLOWED_BY_OUTPUT))
    return "all" if not layers or (ends and layers == list(range(n_layers))) else layers


def _mend_shard(
    path: Path, standing: PlanFile, made: ExtractionPlan, number: int, known: Record | None, checksum: str | None
) -> None:
    """Compute one shard, and put it there if it is what it was: the file first, then its record."""
    rows = shard_rows(made, number)
    computed = compute_shard(made, number)
    _, _, tensors = next(on_host(iter([(number, rows, computed)])))
    named = {place_name(place): x.contiguous() for place, x in tensors.items()}
    record = record_of(rows, named)
    data, sealed = seal(record.body(standing.seal))
    same = sealed == checksum if known is None else record.file == known.file and np.array_equal(known.rows, rows)
    if not same and (known or checksum):
        raise StorageError(_other_bits(path, standing, number))
    try:
        check_shard(path, record)
    except StorageError:
        write_named(path / "shards", [record.header, *map(bytes_of, named.values())], lambda: record.file)
    if known is None:
        remove(record_path(path, number))
        write_first(record_path(path, number), data)


def _other_bits(path: Path, standing: PlanFile, number: int) -> str:
    versions = standing.meta.get("versions")
    there = versions.get("torch") if isinstance(versions, dict) else None
    return (
        f"shard {number} of {str(path)!a} came out with other bits than were recorded (torch {there!a} there, "
        f"{torch.__version__} here): repair it on the machine that made it, or {AGAIN}"
    )
