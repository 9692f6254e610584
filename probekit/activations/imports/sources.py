"""The places that an array of another program holds, from its name, its shape and the options.

Axes: N examples, S layers stacked in one array, D width of a place.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probekit.activations.imports.array_files import FileArray, read_rows
from probekit.activations.imports.place_names import HIDDEN, check_place, hidden_place, is_bare, place_of
from probekit.errors import DataError, UsageError
from probekit.points import Place, spans_of


@dataclass(frozen=True)
class Source:
    """One array and its places: one place, or one for each index of its axis of layers."""

    array: FileArray
    places: list[Place]
    stack_axis: int | None

    @property
    def rows_axis(self) -> int:
        """The axis of the examples."""
        return 1 if self.stack_axis == 0 else 0


def source_rows(source: Source, start: int, stop: int) -> dict[Place, Tensor]:
    """Each place's rows from `start` to `stop`, [rows, D]."""
    x = read_rows(source.array, source.rows_axis, start, stop)
    parts = [x] if source.stack_axis is None else x.unbind(source.stack_axis)
    return dict(zip(source.places, parts, strict=True))


def source_as_json(source: Source) -> dict[str, Any]:
    """An array and its places, JSON-able."""
    return {
        "file": ascii(source.array.file.name)[1:-1],
        "key": None if source.array.key is None else ascii(source.array.key)[1:-1],
        "places": [list(place) for place in source.places],
        "shape": list(source.array.shape),
        "dtype": source.array.type_name,
        "stack_axis": source.stack_axis,
    }


def source_as_words(source: Source) -> str:
    """An array and its places in one line."""
    return f"{source.array.where} -> {spans_of(source.places)}, {list(source.array.shape)} {source.array.type_name}"


@dataclass(frozen=True)
class NamingOptions:
    """The options that complete names: the point, the axis and numbers of stacked layers, the number of blocks."""

    point: str | None
    stack_axis: int | None
    layers: list[int] | None
    n_layers: int | None


def find_sources(arrays: list[FileArray], naming: NamingOptions) -> list[Source]:
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


def _source(array: FileArray, naming: NamingOptions) -> Source:
    if len(array.shape) == 3:
        return _stacked(array, naming)
    if len(array.shape) != 2:
        raise DataError(_wrong_shape(array))
    place = place_of(array.name, array.where, naming.point, naming.n_layers)
    return Source(array, [check_place(place, array.where, naming.n_layers)], None)


def _stacked(array: FileArray, naming: NamingOptions) -> Source:
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
    return Source(array, places, axis)


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
