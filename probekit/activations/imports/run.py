"""Activations that another program took, made into a store: files of arrays and a file of labels go in.

Everything that the headers and the labels tell is checked first; then every file is read once, for its checksum and for
values that cannot be kept; only then is the store begun. It is written in blocks of rows, so that memory does not grow
with N, and it knows its sources by their checksums: the same import goes on, another one is refused.

Axes: N examples, S layers stacked in one array, D width of a place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.imports.array_files import LABELS, Held, arrays_of, find_files, state_of
from probekit.activations.imports.plan import ImportPlan
from probekit.activations.imports.sources import Naming, Source, point_option
from probekit.activations.layout import Layout
from probekit.activations.store.reader import Store, StoreWriter
from probekit.devices import DTYPES, dtype_name
from probekit.errors import DataError, UsageError, nearest
from probekit.options import ImportArguments, ImportOptions
from probekit.options.option import keywords
from probekit.points import FOLLOWED_BY_OUTPUT, POINTS, Place, place_name
from probekit.tasks.base import POSITIONS, Task
from probekit.tasks.labelled import labelled_task, labels_task
from probekit.versions import versions_of

NOT_RECORDED = "not recorded"
KEPT_AS = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float32"}


@keywords(ImportArguments)
def import_activations(source: str | Path, options: ImportArguments) -> Store:
    """Make a store of activations that another program took.

    Args:
        source: a folder of .npy and .safetensors files, or one such file; their names give the places
            (`imports.place_names`).
        options: the fields of `ImportArguments`.

    Raises:
        UsageError: an unknown option, or one that is missing: point, stack_axis, n_layers, labels.
        DataError: a file, name, shape, type, value or label that cannot be used.
        StorageError: the disk refused, or the store at `out` is damaged.
        ResumeMismatch: `out` holds a store of another import.
    """
    return run_import(plan_import(source, options), options.out, options.progress)


def plan_import(source: str | Path, options: ImportOptions) -> ImportPlan:
    """The plan of `import_activations` with the same arguments; headers and labels are read, activations are not."""
    source = Path(source).expanduser()
    labels = None if options.labels is None else Path(options.labels).expanduser()
    layers = None if options.layers is None else list(options.layers)
    naming = Naming(point_option(options.point), options.stack_axis, layers, options.n_layers)
    files, aside = find_files(source, labels)
    arrays = [array for file in files for array in arrays_of(file)]
    states = {file: state_of(file) for file in files if file.name != f"{LABELS}.npy"}
    task = _task(source, labels, arrays, options)
    sources = naming.sources([array for array in arrays if array.name != LABELS])
    places, points, n_layers = _ordered(sources, options.n_layers)
    widths = {place: _checked(s, len(task)) for s in sources for place in s.places}
    return ImportPlan(
        source=source,
        sources=sources,
        task=_at_position(task, options.position),
        model=options.model_name,
        points=points,
        places=places,
        widths=[widths[place] for place in places],
        n_layers=n_layers,
        position=NOT_RECORDED if options.position is None else options.position,
        dtype=_dtype([s.array for s in sources], options.dtype),
        left_aside=aside,
        _states=states,
    )


def run_import(plan: ImportPlan, out: str | Path | None = None, progress: bool | None = None) -> Store:
    """Carry out a plan, as `import_activations` does; `out`, `progress` and errors as there."""
    with _bar(plan, progress) as advance:
        plan.read(advance)
        path = plan.default_path if out is None else Path(out)
        return _to_store(plan, path, advance)


def _to_store(plan: ImportPlan, path: Path, advance: Callable[[int], object]) -> Store:
    layout = Layout([str(plan.position)], np.ones(plan.texts, dtype=np.int64), 0)
    writer = StoreWriter(path, plan.identity, plan.model, plan.task, layout, meta=_describe_run(plan))
    if writer.is_complete:
        store = Store(path)
        writer.mark_newest()
        return store
    with writer:
        for number, rows in enumerate(plan.shards):
            if not writer.has(number, rows):
                writer.write(number, rows, _shard(plan, rows))
            advance(len(rows) * sum(plan.widths) * DTYPES[plan.dtype].itemsize)
    writer.finish(_describe_run(plan))
    return Store(path)


def _shard(plan: ImportPlan, rows: np.ndarray) -> dict[Place, Tensor]:
    found: dict[Place, Tensor] = {}
    for source in plan.sources:
        for place, x in source.rows(int(rows[0]), int(rows[-1]) + 1).items():
            found[place] = x.to(DTYPES[plan.dtype]).contiguous()
    plan.check_unchanged()
    return {place: found[place] for place in plan.places}


def _describe_run(plan: ImportPlan) -> dict[str, Any]:
    """Where the values come from: most of the store's manifest."""
    return {
        **plan.identity,
        "model": plan.model,
        "task": plan.task.name,
        "task_info": plan.task.info,
        "target": plan.task.target,
        "seed": plan.task.info.get("seed"),
        "source": str(plan.source),
        "versions": versions_of("torch", "numpy", "safetensors"),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _task_name(source: Path, labels: Path | None) -> str:
    """The stem of the file of labels where that says more than "labels", else that of the source."""
    return source.resolve().stem if labels is None or labels.stem in (LABELS, "label") else labels.stem


def _task(source: Path, labels: Path | None, arrays: list[Held], options: ImportOptions) -> Task:
    columns = {name: getattr(options, name) for name in ("text_column", "label_column", "group_column")}
    name, seed = options.task_name or _task_name(source, labels), options.seed
    if labels is not None and labels.suffix != ".npy":
        return labelled_task(labels, **columns, name=name, seed=seed)
    held = arrays_of(labels) if labels is not None else [array for array in arrays if array.name == LABELS]
    if not held:
        raise UsageError(f"no labels: name their file with --labels, or put labels.npy [N] into {str(source)!a}")
    if given := [option for option, value in columns.items() if value is not None]:
        raise UsageError(f"--{given[0].replace('_', '-')} needs a table of labels; {held[0].where} has no columns")
    if len(held) > 1:
        raise DataError(f"labels stand in {held[0].where} and in {held[1].where}; keep one")
    array = held[0]
    if len(array.shape) != 1 or array.dtype == "bf16" or np.dtype(array.dtype).kind not in "biufU":
        what = f"{list(array.shape)} of {array.type_name}"
        raise DataError(f"{array.where} must hold labels [N], numbers or texts; got {what}")
    return labels_task(array.numbers().tolist(), array.where, name, seed)


def _ordered(sources: list[Source], n_layers: int | None) -> tuple[list[Place], list[str], int]:
    """Places in curve order, the points with the one that is probed by default first, and the number of blocks."""
    order = list(POINTS)
    places = [place for source in sources for place in source.places]
    places.sort(key=lambda place: (place[1] is None, order.index(place[0]), place[1] or 0))
    layers = [layer for _, layer in places if layer is not None]
    points = list(dict.fromkeys(point for point, _ in places))
    followed = [point for point in points if point in FOLLOWED_BY_OUTPUT]
    last = ("resid_post", max(layers, default=-1))
    if followed and last in places and n_layers is None:
        raise UsageError(
            f"{place_name(last)} ends the curve of {followed[0]} if it is the model's last block; "
            "give the number of blocks with --n-layers"
        )
    n_layers = max(layers, default=-1) + 1 if n_layers is None else n_layers
    if followed and ("resid_post", n_layers - 1) in places and sum(point == "resid_post" for point, _ in places) == 1:
        points.remove("resid_post")
    return places, points, n_layers


def _checked(source: Source, n: int) -> int:
    """The width of an array whose type and shape can be used."""
    array = source.array
    if array.type_name not in KEPT_AS:
        hint = "save bfloat16 in a .safetensors file" if array.type_name == "void16" else "save them as float32"
        raise DataError(f"{array.where} is {array.type_name}, expected activations in floating point; {hint}")
    found, width = array.shape[source.rows_axis], array.shape[-1]
    if found != n:
        shape = list(array.shape)
        raise DataError(f"{array.where} has {found:,} rows (shape {shape}), expected {n:,}, one for each label")
    if not width:
        raise DataError(f"{array.where} has the shape {list(array.shape)} and holds nothing")
    return width


def _dtype(arrays: list[Held], wanted: str | torch.dtype | None) -> str:
    if wanted is not None:
        return dtype_name(wanted)
    kept = {KEPT_AS[array.type_name] for array in arrays}
    return kept.pop() if len(kept) == 1 else "float32"


def _at_position(task: Task, position: str | int | None) -> Task:
    """The task with what titles call its token; the model is not at hand, so nobody reads there again."""
    if position is None or isinstance(position, int):
        return task
    if position not in POSITIONS:
        raise UsageError(f"no position {position!a}; {nearest(position, POSITIONS)}, or the index of a token")
    return replace(task, position=position)


@contextmanager
def _bar(plan: ImportPlan, progress: bool | None) -> Iterator[Callable[[int], object]]:
    from tqdm import tqdm

    disable = None if progress is None else not progress
    total = plan.bytes + sum(source.array.n_bytes for source in plan.sources)
    with tqdm(
        total=total, desc="import", unit="B", unit_scale=True, disable=disable, dynamic_ncols=True, leave=None
    ) as bar:
        yield bar.update
