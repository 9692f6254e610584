"""Arrays of other programs as the source of an import: their places come from names, shapes and options.

Only headers and labels are read for a plan. Then every file is read once, for its checksum and for values that cannot
be stored.

Axes: N examples, S layers stacked in one array, D width of a place.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.imports.array_files import (
    LABELS,
    FileArray,
    arrays_in,
    file_state,
    find_array_files,
    read_labels,
    read_rows,
    scan,
)
from probekit.activations.imports.place_names import HIDDEN, check_place, hidden_place, is_bare, place_of
from probekit.activations.imports.plan import STORED_AS, ImportPlan
from probekit.activations.layout import Layout
from probekit.activations.plan.build import SHARD_BYTES
from probekit.errors import DataError, UsageError
from probekit.files.run import question_digest
from probekit.machine.devices import DTYPES
from probekit.machine.dtypes import dtype_name
from probekit.options import ImportOptions
from probekit.options.check import check_path
from probekit.points import FOLLOWED_BY_OUTPUT, POINTS, Place, spans_of
from probekit.selections import Selection
from probekit.tasks.base import Task
from probekit.tasks.load import labelled_task, labels_task
from probekit.text import listed

NOT_RECORDED = Selection.named("not recorded")


@dataclass(frozen=True)
class PlacedArray:
    """One array and its places: one place, or one for each index of its axis of layers."""

    array: FileArray
    places: list[Place]
    stack_axis: int | None

    @property
    def rows_axis(self) -> int:
        """The axis of the examples."""
        return 1 if self.stack_axis == 0 else 0

    def rows(self, start: int, stop: int) -> dict[Place, Tensor]:
        """Each place's rows from `start` to `stop`, [rows, D]."""
        x = read_rows(self.array, self.rows_axis, start, stop)
        parts = [x] if self.stack_axis is None else x.unbind(self.stack_axis)
        return dict(zip(self.places, parts, strict=True))

    def as_json(self) -> dict[str, Any]:
        """The array and its places, JSON-able."""
        return {
            "file": ascii(self.array.file.name)[1:-1],
            "key": None if self.array.key is None else ascii(self.array.key)[1:-1],
            "places": [list(place) for place in self.places],
            "shape": list(self.array.shape),
            "dtype": self.array.type_name,
            "stack_axis": self.stack_axis,
        }


@dataclass(frozen=True, eq=False)
class ArrayFiles:
    """Arrays as the source of an import.

    Attributes:
        arrays: every array with its places.
        states: each file with its state when the plan was made, to notice later changes.
        shard_rows: rows of each shard but the last.
    """

    arrays: list[PlacedArray]
    states: dict[Path, tuple[int, int, int]]
    shard_rows: int
    format = "arrays"

    @property
    def n_bytes(self) -> int:
        """Bytes that are read to check the files."""
        return sum(one.array.n_bytes for one in self.arrays)

    def checked(self, plan: ImportPlan, advance: Callable[[int], object]) -> dict[str, Any]:
        """The checksums of the files, and the arrays; errors as in `Source`."""
        by_array = {(one.array.file, one.array.key): one for one in self.arrays}

        def check(array: FileArray, values: Tensor) -> None:
            one = by_array.get((array.file, array.key))
            if one is not None and not all(bool(end.isfinite()) for end in values.to(DTYPES[plan.dtype]).aminmax()):
                raise _not_finite(plan, one)

        checksums = {ascii(path.name)[1:-1]: scan(path, arrays_in(path), check, advance) for path in self.states}
        self._check_unchanged()
        return {
            "sources": checksums,
            "source_fingerprint": question_digest(checksums),
            "arrays": {ascii(one.array.where): one.as_json() for one in self.arrays},
            "shard_rows": self.shard_rows,
        }

    def rows(self, shard: np.ndarray) -> dict[Place, Tensor]:
        """The rows of these examples, one after the other, at each place, [R, D]; errors as in `Source`."""
        values: dict[Place, Tensor] = {}
        for one in self.arrays:
            values |= one.rows(int(shard[0]), int(shard[-1]) + 1)
        self._check_unchanged()
        return values

    def _check_unchanged(self) -> None:
        """Raise a DataError if a file was written since the plan was made."""
        for path, state in self.states.items():
            if file_state(path) != state:
                raise DataError(f"{str(path)!a} was written while it was imported; run the same command again")

    def as_dict(self) -> dict[str, Any]:
        """The arrays, JSON-able."""
        return {"arrays": [one.as_json() for one in self.arrays]}

    def lines(self, plan: ImportPlan, in_full: bool) -> Iterator[tuple[str, str]]:
        """What is rounded and what is ignored; `in_full` also each array."""
        if not plan.task.has_texts:
            yield "texts", "none: there will be no bag-of-words baseline (--text-column)"
        for type_name in dict.fromkeys(one.array.type_name for one in self.arrays):
            if torch.promote_types(getattr(torch, type_name), DTYPES[plan.dtype]) != DTYPES[plan.dtype]:
                yield "rounded", f"from {type_name} to {plan.dtype}"
        if plan.left_aside:
            yield "ignored", listed(plan.left_aside)
        for one in self.arrays if in_full else []:
            array = one.array
            yield "array", f"{array.where} -> {spans_of(one.places)}, {list(array.shape)} {array.type_name}"


def _not_finite(plan: ImportPlan, one: PlacedArray) -> DataError:
    """The error for the first row of an array that cannot be stored, at its first place."""
    for rows in plan.shards:
        values = one.rows(int(rows[0]), int(rows[-1]) + 1)
        bad = torch.stack([~x.to(DTYPES[plan.dtype]).isfinite().all(1) for x in values.values()])
        if bad.any():
            row = int(bad.any(0).int().argmax())
            place = one.places[int(bad[:, row].int().argmax())]
            return _why(plan, one, place, int(rows[row]), values[place][row])
    return DataError(f"{one.array.where} changed while it was read; run the same command again")


def _why(plan: ImportPlan, one: PlacedArray, place: Place, row: int, x: Tensor) -> DataError:
    where = f"{one.array.where} ({place}), first in row {row} (example {plan.task.ids[row]!a})"
    if x.isfinite().all():
        most = torch.finfo(DTYPES[plan.dtype]).max
        return DataError(
            f"{x.abs().max():.3g} in {where} is more than {plan.dtype} holds ({most:.3g}); "
            "choose a wider type (--store-dtype), or find out what made it so large"
        )
    what = "NaN" if x.isnan().any() else "infinity"
    return DataError(f"{what} in {where}; correct the activations where they were taken")


def plan_arrays(source: str | Path, options: ImportOptions) -> ImportPlan:
    """The plan of `import_activations` with the same arguments and format="arrays"; activations are not read.

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
    shard_rows = max(1, SHARD_BYTES // (sum(widths) * DTYPES[dtype].itemsize))
    position = NOT_RECORDED if options.position is None else Selection.of(options.position)
    return ImportPlan(
        path=source,
        source=ArrayFiles(sources, states, shard_rows),
        task=_with_position(task, options.position),
        model=options.model_name,
        points=points,
        places=places,
        widths=widths,
        n_layers=n_layers,
        positions=[position],
        layout=Layout([position], np.ones(len(task), dtype=np.int64), 0),
        dtype=dtype,
        shards=[np.arange(start, min(start + shard_rows, len(task))) for start in range(0, len(task), shard_rows)],
        left_aside=left_aside,
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


def _ordered(sources: list[PlacedArray], n_layers: int | None) -> tuple[list[Place], list[str], int]:
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


def _checked_width(source: PlacedArray, n: int) -> int:
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


def _dtype(sources: list[PlacedArray], wanted: str | torch.dtype | None) -> str:
    if wanted is not None:
        return dtype_name(wanted)
    types = {STORED_AS[source.array.type_name] for source in sources}
    return types.pop() if len(types) == 1 else "float32"


def _with_position(task: Task, position: Any) -> Task:
    """The task with the position that titles show; an index is not set, since no model reads there again."""
    return task if position is None or isinstance(position.plain, int) else replace(task, position=position)


@dataclass(frozen=True)
class NamingOptions:
    """The options that complete names: the point, the axis and numbers of stacked layers, the number of blocks."""

    point: str | None
    stack_axis: int | None
    layers: list[int] | None
    n_layers: int | None


def find_sources(arrays: list[FileArray], naming: NamingOptions) -> list[PlacedArray]:
    """Every array with its places.

    Raises:
        DataError: an invalid name or shape, or two arrays for one place.
        UsageError: a missing option, or one that has no use.
    """
    _check_options(arrays, naming)
    sources = [_source(array, naming) for array in arrays]
    seen: dict[Place, FileArray] = {}
    for source in sources:
        for place in source.places:
            if place in seen:
                both = f"{seen[place].where} and {source.array.where}"
                raise DataError(f"two arrays hold {place}: {both}; keep one, or rename one")
            seen[place] = source.array
    return sources


def _check_options(arrays: list[FileArray], naming: NamingOptions) -> None:
    stacked = any(len(array.shape) == 3 for array in arrays)
    if naming.point and not stacked and not any(is_bare(array.name) for array in arrays):
        raise UsageError(f"every name gives its point, so --point {naming.point} has no use; leave it out")
    for option, value in (("--stack-axis", naming.stack_axis), ("--layers", naming.layers)):
        if value is not None and not stacked:
            raise UsageError(f"no array has three axes, so {option} has no use; leave it out")


def _source(array: FileArray, naming: NamingOptions) -> PlacedArray:
    if len(array.shape) == 3:
        return _stacked(array, naming)
    if len(array.shape) != 2:
        raise DataError(_wrong_shape(array))
    place = place_of(array.name, array.where, naming.point, naming.n_layers)
    return PlacedArray(array, [check_place(place, array.where, naming.n_layers)], None)


def _stacked(array: FileArray, naming: NamingOptions) -> PlacedArray:
    """An array with an axis of layers."""
    axis, n_layers = naming.stack_axis, naming.n_layers
    if axis is None:
        raise UsageError(f"{_wrong_shape(array)}; if layers are stacked, name their axis with --stack-axis")
    size = array.shape[axis]
    layers = list(range(size)) if naming.layers is None else naming.layers
    if len(layers) != size:
        raise UsageError(f"--layers names {len(layers)}, and {array.where} has {size} on axis {axis}; name as many")
    point = _stacked_point(array, naming.point)
    if point == HIDDEN:
        places = [hidden_place(layer, array.where, n_layers) for layer in layers]
    else:
        places = [check_place(Place(point, layer), array.where, n_layers) for layer in layers]
    return PlacedArray(array, places, axis)


def _stacked_point(array: FileArray, given: str | None) -> str:
    """The point of stacked layers: the one in the array's name, or else the one that was given."""
    if array.name.removesuffix("s") == HIDDEN.removesuffix("s"):
        return HIDDEN
    try:
        point, layer = Place.of(array.name)
    except UsageError:
        if given is None:
            raise UsageError(f"the name of {array.where} gives no point; name it with --point") from None
        return given
    if layer is not None:
        raise DataError(f"{_wrong_shape(array)}; its name gives one layer, so save only that one in it")
    return point


def _wrong_shape(array: FileArray) -> str:
    return (
        f"{array.where} has the shape {list(array.shape)}, expected [examples, width]: one token's activations for "
        "each example, heads side by side"
    )
