"""Arrays of other programs as the source of an import: their places come from names, shapes and options.

Only headers and labels are read for a plan. Then every file is read once, for its checksum and for values that cannot
be stored. The name of a file, or of a tensor in it, gives its place:

a point and a layer    resid_pre.3   resid_post_11   resid_mid-3   layer_3_resid_pre   blocks.3.hook_resid_pre
a point without layer  embed   ln_final   hook_embed
a layer only           layer_3   3   blocks.3   model.layers.3   transformer.h.3: the point is given by an option
Hugging Face's list    hidden_states_3: the input of block 3; in a model of n blocks, hidden_states_n is the output of
the final norm, which is the point ln_final, not the output of the last block

Axes: N examples, S layers stacked in one array, D width of a place.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.imports.array_files import (
    LABELS,
    FileArray,
    arrays_in,
    check_unchanged,
    file_state,
    find_array_files,
    read_labels,
    read_rows,
    scan,
)
from probekit.activations.imports.plan import STORED_AS, ImportPlan, RowCheck
from probekit.activations.imports.verify import plan_check
from probekit.activations.layout import Layout
from probekit.activations.plan.build import SHARD_BYTES
from probekit.activations.plan.places import width_of
from probekit.errors import DataError, UsageError
from probekit.files.run import question_digest
from probekit.machine.devices import DTYPES
from probekit.machine.dtypes import dtype_name
from probekit.models.base import LanguageModel
from probekit.models.load import outline
from probekit.options import ImportOptions
from probekit.options.check import check_path
from probekit.points import (
    FOLLOWED_BY_OUTPUT,
    HIDDEN,
    MAX_LAYERS,
    POINTS,
    Place,
    UnknownPoint,
    check_layer,
    spans_of,
)
from probekit.selections import Selection
from probekit.tasks.base import Task
from probekit.tasks.load import labelled_task, labels_task
from probekit.text import listed

NOT_RECORDED = Selection.named("not recorded")
FORMS = (
    "resid_pre.3, resid_post_11, layer_3_resid_pre, blocks.3.hook_resid_pre, embed; "
    "hidden_states_3; or, with --point, layer_3, 3, model.layers.3"
)
_HIDDEN = re.compile(r"hidden_states?[._-]?(\d{1,4})")
_BARE = re.compile(r"(?:(?:model|transformer)\.)*(?:(?:layers?|blocks?|block|h|l)[._-]?)?(\d{1,4})", re.IGNORECASE)
_AFTER = re.compile(r"(.+?)[._-](?:layer[._-]?)?(\d{1,4})")
_BEFORE = re.compile(r"(?:layer|block)s?[._-]?(\d{1,4})[._-](.+)")


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
        dtype: name of the type on disk.
        task: the N examples.
    """

    arrays: list[PlacedArray]
    states: dict[Path, tuple[int, int, int]]
    shard_rows: int
    dtype: str
    task: Task = field(repr=False)
    format = "arrays"

    @property
    def n_bytes(self) -> int:
        """Bytes that are read to check the files."""
        return sum(one.array.n_bytes for one in self.arrays)

    def checked(self, advance: Callable[[int], object]) -> dict[str, Any]:
        """The checksums of the files, and the arrays; errors as in `Source`."""
        by_array = {(one.array.file, one.array.key): one for one in self.arrays}

        def check(array: FileArray, values: Tensor) -> None:
            one = by_array.get((array.file, array.key))
            if one is not None and not all(bool(end.isfinite()) for end in values.to(DTYPES[self.dtype]).aminmax()):
                raise self._not_finite(one)

        checksums = {ascii(path.name)[1:-1]: scan(path, arrays_in(path), check, advance) for path in self.states}
        check_unchanged(self.states)
        return {
            "sources": checksums,
            "source_fingerprint": question_digest(checksums),
            "arrays": {ascii(one.array.where): one.as_json() for one in self.arrays},
            "shard_rows": self.shard_rows,
        }

    def _not_finite(self, one: PlacedArray) -> DataError:
        """The error for the first row of an array that cannot be stored, at its first place."""
        for start in range(0, len(self.task), self.shard_rows):
            values = one.rows(start, min(start + self.shard_rows, len(self.task)))
            bad = torch.stack([~x.to(DTYPES[self.dtype]).isfinite().all(1) for x in values.values()])
            if not bad.any():
                continue
            row = int(bad.any(0).int().argmax())
            place = one.places[int(bad[:, row].int().argmax())]
            x, example = values[place][row], self.task.ids[start + row]
            where = f"{one.array.where} ({place}), first in row {start + row} (example {example!a})"
            if x.isfinite().all():
                most = torch.finfo(DTYPES[self.dtype]).max
                return DataError(
                    f"{x.abs().max():.3g} in {where} is more than {self.dtype} holds ({most:.3g}); "
                    "choose a wider type (--store-dtype) if there is one, or find out what made it so large"
                )
            what = "NaN" if x.isnan().any() else "infinity"
            return DataError(f"{what} in {where}; correct the activations where they were taken")
        return DataError(f"{one.array.where} changed while it was read; run the same command again")

    def rows(self, shard: np.ndarray) -> dict[Place, Tensor]:
        """The rows of these examples, one after the other, at each place, [R, D]; errors as in `Source`."""
        values: dict[Place, Tensor] = {}
        for one in self.arrays:
            values |= one.rows(int(shard[0]), int(shard[-1]) + 1)
        check_unchanged(self.states)
        return values

    def type_of(self, place: Place) -> str:
        """The type of the place's array."""
        return next(one.array.type_name for one in self.arrays if place in one.places)

    def as_dict(self) -> dict[str, Any]:
        """The arrays, JSON-able."""
        return {"arrays": [one.as_json() for one in self.arrays]}

    def lines(self, left_aside: list[str], in_full: bool) -> Iterator[tuple[str, str]]:
        """What is rounded and what is ignored; `in_full` also each array."""
        if not self.task.has_texts:
            yield "texts", "none: there will be no bag-of-words baseline (--text-column)"
        for type_name in dict.fromkeys(one.array.type_name for one in self.arrays):
            if torch.promote_types(getattr(torch, type_name), DTYPES[self.dtype]) != DTYPES[self.dtype]:
                yield "rounded", f"from {type_name} to {self.dtype}"
        if left_aside:
            yield "ignored", listed(left_aside)
        for one in self.arrays if in_full else []:
            array = one.array
            yield "array", f"{array.where} -> {spans_of(one.places)}, {list(array.shape)} {array.type_name}"


def plan_arrays(source: str | Path, options: ImportOptions) -> ImportPlan:
    """The plan of `import_activations` with the same arguments and format="arrays"; activations are not read.

    Raises:
        UsageError: an unknown option, or one that is missing: point, stack_axis, n_layers, labels.
        DataError: a file, name, shape, type or label that cannot be used.
    """
    if options.dataset is not None:
        raise UsageError("--dataset is for --format vllm; of arrays, name the table with the texts with --labels")
    if options.verify and options.model is None:
        raise UsageError("--verify compares the arrays with a model's forward pass; name the model with --model")
    if options.verify == 0 and options.model is not None:
        raise UsageError("--model is what arrays are verified against, so --verify 0 leaves nothing for it to do")
    source = check_path("source", source).expanduser()
    labels = None if options.labels is None else check_path("labels (--labels)", options.labels).expanduser()
    options = replace(options, layers=None if options.layers is None else list(options.layers))
    model = None if options.model is None else outline(str(options.model), tokenizer=True)
    if model is not None:
        if options.n_layers not in (None, model.n_layers):
            raise UsageError(
                f"--n-layers {options.n_layers}, and {options.model!a:.60} has {model.n_layers}; leave it out"
            )
        options = replace(options, n_layers=model.n_layers)
    files, left_aside = find_array_files(source, labels)
    arrays = [array for file in files for array in arrays_in(file)]
    states = {file: file_state(file) for file in files if file.name != f"{LABELS}.npy"}
    task = _task(source, labels, arrays, options)
    placed = _placed([array for array in arrays if array.name != LABELS], options)
    places, points, n_layers = _ordered(placed, options.n_layers)
    found_widths = {place: _checked_width(one, len(task)) for one in placed for place in one.places}
    widths = [found_widths[place] for place in places]
    types = {STORED_AS[one.array.type_name] for one in placed}
    dtype = dtype_name(options.dtype) if options.dtype is not None else types.pop() if len(types) == 1 else "float32"
    shard_rows = max(1, SHARD_BYTES // (sum(widths) * DTYPES[dtype].itemsize))
    given: Any = options.position
    position = NOT_RECORDED if given is None else Selection.of(given)
    if given is not None and not isinstance(given.plain, int):
        task = replace(task, position=given)  # as titles show it; no model reads at an index again
    check = None if model is None else _check(options, task, model, dict(zip(places, widths, strict=True)))
    return ImportPlan(
        path=source,
        source=ArrayFiles(placed, states, shard_rows, dtype, task),
        task=task,
        model=model.name if model is not None and options.model_name == "unnamed" else options.model_name,
        points=points,
        places=places,
        widths=widths,
        n_layers=n_layers,
        positions=[position],
        layout=Layout([position], np.ones(len(task), dtype=np.int64), 0),
        dtype=dtype,
        shards=[np.arange(start, min(start + shard_rows, len(task))) for start in range(0, len(task), shard_rows)],
        left_aside=left_aside,
        check=check,
    )


def _check(options: ImportOptions, task: Task, model: LanguageModel, widths: dict[Place, int]) -> RowCheck:
    """The rows to verify against a model, whose places must have these widths."""
    if not task.has_texts:
        raise UsageError("--model verifies arrays on their texts, and there are none; name the column (--text-column)")
    if options.position is None:
        raise UsageError("--model verifies arrays at the token that was read; say which with --position, such as last")
    for place, width in widths.items():
        if (own := width_of(model, place)) != width:
            raise DataError(
                f"{place} is {width:,} wide in the arrays and {own:,} in {options.model!a:.60}; name the model that "
                "they were taken from (--model)"
            )
    return plan_check(options, task, model, None)


def _task(source: Path, labels: Path | None, arrays: list[FileArray], options: ImportOptions) -> Task:
    columns = {name: getattr(options, name) for name in ("text_column", "label_column", "group_column")}
    own = "" if labels is None or labels.stem in (LABELS, "label") else labels.stem
    name = options.task_name or own or source.resolve().stem
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


def _ordered(placed: list[PlacedArray], n_layers: int | None) -> tuple[list[Place], list[str], int]:
    """Places in curve order, the points with the one that is probed by default first, and the number of blocks."""
    order = list(POINTS)
    places = [place for one in placed for place in one.places]
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


def _placed(arrays: list[FileArray], options: ImportOptions) -> list[PlacedArray]:
    """Every array with its places."""
    is_stacked = any(len(array.shape) == 3 for array in arrays)
    if options.point and not is_stacked and not any(_BARE.fullmatch(array.name) for array in arrays):
        raise UsageError(f"every name gives its point, so --point {options.point} has no use; leave it out")
    for option, value in (("--stack-axis", options.stack_axis), ("--layers", options.layers)):
        if value is not None and not is_stacked:
            raise UsageError(f"no array has three axes, so {option} has no use; leave it out")
    found: list[PlacedArray] = []
    seen: dict[Place, FileArray] = {}
    for array in arrays:
        if len(array.shape) == 3:
            found.append(_stacked(array, options))
        elif len(array.shape) == 2:
            place = place_of(array.name, array.where, options.point, options.n_layers)
            found.append(PlacedArray(array, [place], None))
        else:
            raise DataError(_wrong_shape(array))
        for place in found[-1].places:
            if place in seen:
                both = f"{seen[place].where} and {array.where}"
                raise DataError(f"two arrays hold {place}: {both}; keep one, or rename one")
            seen[place] = array
    return found


def _stacked(array: FileArray, options: ImportOptions) -> PlacedArray:
    """An array with an axis of layers, at the point in its name, or else at the one that was given."""
    axis, point = options.stack_axis, options.point
    if axis is None:
        raise UsageError(f"{_wrong_shape(array)}; if layers are stacked, name their axis with --stack-axis")
    size = array.shape[axis]
    layers = list(range(size)) if options.layers is None else list(options.layers)
    if len(layers) != size:
        raise UsageError(f"--layers names {len(layers)}, and {array.where} has {size} on axis {axis}; name as many")
    if array.name.removesuffix("s") == HIDDEN.removesuffix("s"):
        point = HIDDEN
    else:
        try:
            point, layer = Place.of(array.name)
        except UsageError:
            layer = None
            if point is None:
                raise UsageError(f"the name of {array.where} gives no point; name it with --point") from None
        if layer is not None:
            raise DataError(f"{_wrong_shape(array)}; its name gives one layer, so save only that one in it")
    return PlacedArray(array, [_place(point, layer, array.where, options.n_layers) for layer in layers], axis)


def _wrong_shape(array: FileArray) -> str:
    return (
        f"{array.where} has the shape {list(array.shape)}, expected [examples, width]: one token's activations for "
        "each example, heads side by side"
    )


def place_of(name: str, where: str, point: str | None, n_layers: int | None) -> Place:
    """The place that a name gives; `point` completes names that give only a layer.

    Args:
        name: of a file without its ending, or of a tensor.
        where: the same, for messages.
        point: a short name, or "hidden_states".
        n_layers: number of the model's blocks, where it is known.

    Raises:
        DataError: the name has none of the forms above, or gives a layer that cannot be.
        UsageError: --point or --n-layers is needed and missing.
    """
    if match := _HIDDEN.fullmatch(name):
        return _place(HIDDEN, int(match[1]), where, n_layers)
    if match := _BARE.fullmatch(name):
        if point is None:
            raise UsageError(
                f"{where} names a layer and no point; name it with --point: resid_post for the output of block "
                f"{int(match[1])}, resid_pre for its input, or hidden_states for Hugging Face's list"
            )
        return _place(point, int(match[1]), where, n_layers)
    tries: list[Any] = [name]
    if match := _BEFORE.fullmatch(name):
        tries.append((match[2], int(match[1])))
    if match := _AFTER.fullmatch(name):
        tries.append((match[1], int(match[2])))
    for spec in tries:
        try:
            short, layer = Place.of(spec)
        except UnknownPoint:
            continue
        return _place(short, layer, where, n_layers)
    raise DataError(f"the name of {where} gives no place; rename it to one of these forms: {FORMS}")


def _place(point: str, layer: int | None, where: str, n_layers: int | None) -> Place:
    """The place of a layer at a point, or of one of Hugging Face's hidden states, if there is one."""
    if point == HIDDEN and layer is not None:
        if n_layers is None:
            raise UsageError(
                f"{where} is one of Hugging Face's hidden_states, the last of which is the output of the final norm; "
                "give the number of the model's blocks with --n-layers, to tell the last one from the others"
            )
        if layer > n_layers:
            raise DataError(
                f"{where} is hidden state {layer}, and a model of {n_layers} blocks has 0..{n_layers}; check --n-layers"
            )
        return Place("ln_final", None) if layer == n_layers else Place("resid_pre", layer)
    place = Place(point, layer)
    if "{layer}" in POINTS[point] and layer is None:
        raise DataError(f"{where} gives the point {point} and no layer; rename it, for example to {point}.3")
    if "{layer}" not in POINTS[point] and layer is not None:
        raise DataError(f"{where} gives layer {layer} of {point}, which has no layers; rename it to {point}")
    if layer is not None and layer >= MAX_LAYERS:
        raise DataError(f"{where} gives layer {layer}, and models have at most {MAX_LAYERS:,} layers; rename it")
    if layer is not None and n_layers is not None:
        try:
            check_layer(layer, n_layers)
        except UsageError as error:
            raise DataError(f"{where} is {place}, and {error}; check --n-layers") from None
    return place
