"""Carry out an import: check every file, then write the store in blocks of rows.

Axes: N examples, D width of a place.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from probekit.activations.digest import FORMAT_VERSION, identity_digest
from probekit.activations.imports.check import check_unchanged, read_checksums
from probekit.activations.imports.plan import ImportPlan, plan_import
from probekit.activations.imports.sources import source_as_json, source_rows
from probekit.activations.imports.vllm.plan import plan_requests
from probekit.activations.imports.vllm.run import run_requests
from probekit.activations.layout import Layout
from probekit.activations.store.begin import NewStore, begin_store
from probekit.activations.store.reader import Store
from probekit.activations.store.writer import StoreWriter
from probekit.files.remote.path import AnyPath
from probekit.files.run import folder_name
from probekit.machine.devices import DTYPES
from probekit.machine.progress import progress_bar
from probekit.machine.versions import versions_of
from probekit.options import ImportArguments
from probekit.options.check import check_any_path
from probekit.options.option import keywords
from probekit.points import Place


@keywords(ImportArguments)
def import_activations(source: str | Path, options: ImportArguments) -> Store:
    """Make a store of activations that another program took.

    Args:
        source: a folder of .npy and .safetensors files, or one such file; their names give the places
            (`imports.place_names`). Or, with format="vllm", the folder of its requests.
        options: the fields of `ImportArguments`.

    Raises:
        UsageError: an unknown option, or one that is missing: point, stack_axis, n_layers, labels.
        DataError: a file, name, shape, type, value or label that cannot be used.
        StorageError: the disk refused, or the store at `out` is damaged.
        ResumeMismatch: `out` holds a store of another import.
    """
    if options.format == "vllm":
        return run_requests(plan_requests(source, options), options.out, options.progress)
    return run_import(plan_import(source, options), options.out, options.progress)


def run_import(
    plan: ImportPlan,
    out: str | AnyPath | None = None,
    progress: bool | None = None,
    on_begin: Callable[[AnyPath], object] | None = None,
) -> Store:
    """Carry out a plan, as `import_activations` does.

    Args:
        plan: the import.
        out: as for `import_activations`.
        progress: as for `import_activations`.
        on_begin: called with the store's path when every file is checked, just before anything is written.

    Raises:
        As `import_activations`.
    """
    total = len(plan.task) * plan.row_bytes + sum(source.array.n_bytes for source in plan.sources)
    with progress_bar("import", "B", total, progress) as bar:
        identity = import_identity(plan, read_checksums(plan, bar.advance))
        path = default_import_path(plan, identity) if out is None else check_any_path("out", out)
        if on_begin:
            on_begin(path)
        return _write(plan, identity, path, bar.advance)


def import_identity(plan: ImportPlan, checksums: dict[str, str]) -> dict[str, Any]:
    """Everything that decides the bits of the result, JSON-able; `checksums` are those of the files."""
    return {
        "version": FORMAT_VERSION,
        "kind": "import",
        "sources": checksums,
        "source_fingerprint": identity_digest(checksums),
        "arrays": {ascii(source.array.where): source_as_json(source) for source in plan.sources},
        "task_fingerprint": plan.task.fingerprint(),
        "model_name": plan.model,
        "task_name": plan.task.name,
        "n_layers": plan.n_layers,
        "rows": len(plan.task),
        "points": plan.points,
        "places": [list(place) for place in plan.places],
        "widths": plan.widths,
        "position": plan.position.plain,
        "dtype": plan.dtype,
        "shard_rows": plan.shard_rows,
        "shards": len(plan.shards),
    }


def default_import_path(plan: ImportPlan, identity: dict[str, Any]) -> Path:
    """The store of this import under runs/; equal imports get the same path."""
    return Path("runs", folder_name([plan.model, plan.task.name, "-".join(plan.points), "import"], identity))


def _write(plan: ImportPlan, identity: dict[str, Any], path: AnyPath, advance: Callable[[int], object]) -> Store:
    layout, meta = Layout([plan.position], np.ones(len(plan.task), dtype=np.int64), 0), _meta(plan, identity)
    new = NewStore(identity, plan.model, plan.task, layout, [plan.position], source=None, meta=meta)
    writer = StoreWriter(path, begin_store(path, new))
    if writer.is_complete:
        store = Store(path)
        writer.mark_newest()
        return store
    with writer:
        for number, rows in enumerate(plan.shards):
            if not writer.has(number, rows):
                writer.write(number, rows, _shard(plan, rows))
            advance(len(rows) * plan.row_bytes)
    writer.finish(_meta(plan, identity))
    return Store(path)


def _shard(plan: ImportPlan, rows: np.ndarray) -> dict[Place, Tensor]:
    values: dict[Place, Tensor] = {}
    for source in plan.sources:
        for place, x in source_rows(source, int(rows[0]), int(rows[-1]) + 1).items():
            values[place] = x.to(DTYPES[plan.dtype]).contiguous()
    check_unchanged(plan)
    return {place: values[place] for place in plan.places}


def _meta(plan: ImportPlan, identity: dict[str, Any]) -> dict[str, Any]:
    """Provenance of the values: most of the store's manifest."""
    return {
        **identity,
        "model": plan.model,
        "task": plan.task.name,
        "task_info": plan.task.info,
        "target": plan.task.target,
        "seed": plan.task.info.get("seed"),
        "source": str(plan.source),
        "versions": versions_of("torch", "numpy", "safetensors"),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
