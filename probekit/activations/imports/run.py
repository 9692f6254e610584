"""Carry out an import: check every file, then write the store in blocks of rows.

Axes: N examples, D width of a place.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from probekit.activations.imports.arrays import plan_arrays
from probekit.activations.imports.plan import ImportPlan
from probekit.activations.imports.verify import verify_rows
from probekit.activations.imports.vllm import plan_requests
from probekit.activations.store.format import FORMAT_VERSION, has_manifest
from probekit.activations.store.reader import Store
from probekit.activations.store.writer import NewStore, StoreWriter, begin_store
from probekit.errors import DataError
from probekit.files.remote.path import AnyPath
from probekit.files.run import folder_name
from probekit.machine.devices import DTYPES
from probekit.machine.progress import progress_bar
from probekit.machine.versions import versions_of
from probekit.options import ImportArguments, ImportOptions
from probekit.options.check import check_any_path
from probekit.options.option import keywords
from probekit.points import Place


@keywords(ImportArguments)
def import_activations(source: str | Path, options: ImportArguments) -> Store:
    """Make a store of activations that another program took.

    Args:
        source: a folder of .npy and .safetensors files, or one such file; their names give the places
            (`imports.arrays`). Or, with format="vllm", the folder of its requests.
        options: the fields of `ImportArguments`.

    Raises:
        UsageError: an unknown option, or one that is missing: point, stack_axis, n_layers, labels.
        DataError: a file, name, shape, type, value or label that cannot be used.
        StorageError: the disk refused, or the store at `out` is damaged.
        ResumeMismatch: `out` holds a store of another import.
    """
    return run_import(plan_import(source, options), options.out, options.progress)


def plan_import(source: str | Path, options: ImportOptions) -> ImportPlan:
    """The plan of `import_activations` with the same arguments; headers and labels are read, activations are not.

    Raises:
        UsageError: an unknown option, or one that is missing: point, stack_axis, n_layers, labels; of vLLM: model and
            dataset.
        DataError: a file, name, shape, type or label that cannot be used.
    """
    return (plan_requests if options.format == "vllm" else plan_arrays)(source, options)


def run_import(
    plan: ImportPlan,
    out: str | AnyPath | None = None,
    progress: bool | None = None,
    on_begin: Callable[[AnyPath], object] | None = None,
) -> Store:
    """Carry out a plan, as `import_activations` does.

    `on_begin` gets the store's path when every file is checked, just before anything is written.
    """
    n_bytes = plan.row_bytes
    with progress_bar("check", "B", plan.source.n_bytes, progress) as bar:
        identity = _identity(plan, plan.source.checked(bar.advance))
    if out is None:  # equal imports get the same path
        what = "-".join(plan.points) if plan.source.format == "arrays" else plan.source.format
        out = Path("runs", folder_name([plan.model, plan.task.name, what, "import"], identity))
    path = check_any_path("out", out)
    verified = None if has_manifest(path) else verify_rows(plan, progress)
    if on_begin:
        on_begin(path)
    meta = _meta(plan, identity, verified)
    writer = StoreWriter(
        path, begin_store(path, NewStore(identity, plan.model, plan.task, plan.layout, plan.positions, None, meta))
    )
    if writer.is_complete:
        store = Store(path)
        writer.mark_newest()
        return store
    with progress_bar("import", "B", int(n_bytes.sum()), progress) as bar:
        with writer:
            for number, rows in enumerate(plan.shards):
                if not writer.has(number, rows):
                    writer.write(number, rows, _kept(plan, rows))
                bar.advance(int(n_bytes[rows].sum()))
        writer.finish(_meta(plan, identity, verified))
    return Store(path)


def _identity(plan: ImportPlan, of_source: dict[str, Any]) -> dict[str, Any]:
    """Everything that decides the bits of the result, JSON-able."""
    return {
        "version": FORMAT_VERSION,
        "kind": "import",
        **of_source,
        "task_fingerprint": plan.task.fingerprint(),
        "model_name": plan.model,
        "task_name": plan.task.name,
        "n_layers": plan.n_layers,
        "rows": len(plan.task),
        "points": plan.points,
        "places": [list(place) for place in plan.places],
        "widths": plan.widths,
        "position": plan.position,
        "dtype": plan.dtype,
        "shards": len(plan.shards),
        # rows that somebody asked to verify; those of the default depend on the machine
        **(
            {"verify": len(plan.check.rows)}
            if plan.check is not None and plan.check.asked and len(plan.check.rows)
            else {}
        ),
    }


def _kept(plan: ImportPlan, rows: np.ndarray) -> dict[Place, Tensor]:
    """The rows of a shard at each place, [R, D] of the type on disk."""
    values = plan.source.rows(rows)
    kept = {place: values[place].to(DTYPES[plan.dtype]).contiguous() for place in plan.places}
    if not all(bool(end.isfinite()) for x in kept.values() for end in x.aminmax()):
        raise DataError(
            f"values of {str(plan.path)!a} are larger than {plan.dtype} holds; choose a wider type (--store-dtype) if "
            "there is one, or divide them by a constant"
        )
    return kept


def _meta(plan: ImportPlan, identity: dict[str, Any], verified: dict[str, Any] | None) -> dict[str, Any]:
    """Provenance of the values: most of the store's manifest."""
    packages = ["torch", "numpy", "safetensors", *(["tokenizers"] if plan.source.format == "vllm" else [])]
    return {
        **identity,
        "model": plan.model,
        "task": plan.task.name,
        "task_info": plan.task.info,
        "target": plan.task.target,
        "seed": plan.task.info.get("seed"),
        "source": str(plan.path),
        "verified": verified,
        "versions": versions_of(*packages),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
