"""The plan of an import: which file gives which place. Only headers and labels are read for it.

`summary.py` describes a plan, `check.py` reads its files, and `run.py` carries it out.

Axes: N examples, S layers stacked in one array, D width of a place.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probekit.activations.imports.array_files import (
    LABELS,
    FileArray,
    arrays_in,
    file_state,
    find_array_files,
    read_labels,
)
from probekit.activations.imports.sources import NamingOptions, Source, find_sources
from probekit.activations.plan.build import SHARD_BYTES
from probekit.errors import DataError, UsageError
from probekit.machine.devices import DTYPES
from probekit.machine.dtypes import dtype_name
from probekit.options import ImportOptions
from probekit.options.check import check_path
from probekit.points import FOLLOWED_BY_OUTPUT, POINTS, Place
from probekit.selections import Selection
from probekit.tasks.base import Task
from probekit.tasks.load import labelled_task, labels_task

NOT_RECORDED = Selection.named("not recorded")
STORED_AS = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float32"}


@dataclass(frozen=True, eq=False)
class ImportPlan:
    """One import, ready to run with `run_import`.

    Attributes:
        source: the folder or file.
        sources: every array with its places.
        task: the N examples.
        model: name of the model in titles.
        points: short names, the one that is probed by default first.
        places: every place, in curve order.
        widths: D of each place.
        n_layers: number of the model's blocks.
        position: the token that the activations belong to, or "not recorded".
        dtype: name of the type on disk.
        shard_rows: rows of each shard but the last.
        left_aside: names of files in the folder that are no arrays.
        states: each file with its state when the plan was made, to notice later changes.
    """

    source: Path
    sources: list[Source] = field(repr=False)
    task: Task = field(repr=False)
    model: str
    points: list[str]
    places: list[Place]
    widths: list[int]
    n_layers: int
    position: Selection
    dtype: str
    shard_rows: int
    left_aside: list[str]
    states: dict[Path, tuple[int, int, int]] = field(repr=False)

    @property
    def row_bytes(self) -> int:
        """Bytes of one example on disk."""
        return sum(self.widths) * DTYPES[self.dtype].itemsize

    @property
    def shards(self) -> list[np.ndarray]:
        """Row indices of each shard."""
        n, size = len(self.task), self.shard_rows
        return [np.arange(start, min(start + size, n)) for start in range(0, n, size)]


def plan_import(source: str | Path, options: ImportOptions) -> ImportPlan:
    """The plan of `import_activations` with the same arguments; headers and labels are read, activations are not.

    Raises:
        UsageError: an unknown option, or one that is missing: point, stack_axis, n_layers, labels.
        DataError: a file, name, shape, type or label that cannot be used.
    """
    for name in ("model", "dataset"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is for --format vllm; of arrays, name the model with --model-name")
    source = check_path("source", source).expanduser()
    labels = None if options.labels is None else check_path("labels (--labels)", options.labels).expanduser()
    layers = None if options.layers is None else list(options.layers)
    naming = NamingOptions(options.point, options.stack_axis, layers, options.n_layers)
    files, left_aside = find_array_files(source, labels)
    arrays = [array for file in files for array in arrays_in(file)]
    states = {file: file_state(file) for file in files if file.name != f"{LABELS}.npy"}
    task = _task(source, labels, arrays, options)
    sources = find_sources([array for array in arrays if array.name != LABELS], naming)
    places, points, n_layers = _ordered(sources, options.n_layers)
    width_of = {place: _checked_width(one, len(task)) for one in sources for place in one.places}
    widths, dtype = [width_of[place] for place in places], _dtype(sources, options.dtype)
    return ImportPlan(
        source=source,
        sources=sources,
        task=_with_position(task, options.position),
        model=options.model_name,
        points=points,
        places=places,
        widths=widths,
        n_layers=n_layers,
        position=NOT_RECORDED if options.position is None else Selection.of(options.position),
        dtype=dtype,
        shard_rows=max(1, SHARD_BYTES // (sum(widths) * DTYPES[dtype].itemsize)),
        left_aside=left_aside,
        states=states,
    )


def _task(source: Path, labels: Path | None, arrays: list[FileArray], options: ImportOptions) -> Task:
    columns = {name: getattr(options, name) for name in ("text_column", "label_column", "group_column")}
    name = options.task_name or _task_name(source, labels)
    if labels is not None and labels.suffix != ".npy":
        return labelled_task(labels, options, name)
    found = arrays_in(labels) if labels is not None else [array for array in arrays if array.name == LABELS]
    if not found:
        raise UsageError(f"no labels: name their file with --labels, or put labels.npy [N] into {str(source)!a}")
    if given := [option for option, value in columns.items() if value is not None]:
        raise UsageError(
            f"--{given[0].replace('_', '-')} needs a table of labels, and {found[0].where} has no columns; leave it out"
        )
    if len(found) > 1:
        raise DataError(f"both {found[0].where} and {found[1].where} hold labels; keep one")
    return labels_task(read_labels(found[0]).tolist(), found[0].where, options, name)


def _task_name(source: Path, labels: Path | None) -> str:
    """The name of the labels file, or that of the source where the labels file has a general name."""
    return source.resolve().stem if labels is None or labels.stem in (LABELS, "label") else labels.stem


def _ordered(sources: list[Source], n_layers: int | None) -> tuple[list[Place], list[str], int]:
    """Places in curve order, the points with the one that is probed by default first, and the number of blocks."""
    order = list(POINTS)
    places = [place for source in sources for place in source.places]
    places.sort(key=lambda place: (place[1] is None, order.index(place[0]), place[1] or 0))
    layers = [layer for _, layer in places if layer is not None]
    points = list(dict.fromkeys(point for point, _ in places))
    residual = [point for point in points if point in FOLLOWED_BY_OUTPUT]
    last = Place("resid_post", max(layers, default=-1))
    if residual and last in places and n_layers is None:
        raise UsageError(
            f"{last} is drawn as the end of {residual[0]} only if it is of the model's last block; "
            "say how many blocks there are with --n-layers"
        )
    n_layers = max(layers, default=-1) + 1 if n_layers is None else n_layers
    n_outputs = sum(point == "resid_post" for point, _ in places)
    if residual and n_outputs == 1 and ("resid_post", n_layers - 1) in places:
        points.remove("resid_post")
    return places, points, n_layers


def _checked_width(source: Source, n: int) -> int:
    """The width of an array whose type and shape can be used."""
    array = source.array
    if array.type_name not in STORED_AS:
        hint = "save bfloat16 in a .safetensors file" if array.type_name == "void16" else "save them as float32"
        raise DataError(f"{array.where} is {array.type_name}, expected activations in floating point; {hint}")
    rows, width = array.shape[source.rows_axis], array.shape[-1]
    if rows != n:
        shape = list(array.shape)
        raise DataError(f"{array.where} has {rows:,} rows (shape {shape}), expected {n:,}, one for each label")
    if not width:
        raise DataError(f"{array.where} has the shape {list(array.shape)} and holds no numbers; save it again")
    return width


def _dtype(sources: list[Source], wanted: str | torch.dtype | None) -> str:
    if wanted is not None:
        return dtype_name(wanted)
    types = {STORED_AS[source.array.type_name] for source in sources}
    return types.pop() if len(types) == 1 else "float32"


def _with_position(task: Task, position: Any) -> Task:
    """The task with the position that titles show; an index is not set, since no model reads there again."""
    return task if position is None or isinstance(position.plain, int) else replace(task, position=position)
