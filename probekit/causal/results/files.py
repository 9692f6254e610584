"""Causal results on disk: causal.json and results.csv."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_args, get_origin, get_type_hints

import numpy as np

from probekit.causal.data import CausalData, CausalLayer, CausalMeta, ChecklistItem, Effect, PatchGrid
from probekit.causal.results.table import causal_rows
from probekit.files.records import As, ensure, inside, read_as
from probekit.results.files import reading, write_results
from probekit.text import listed

_LISTS: dict[str, type] = {
    "layers": CausalLayer,
    "effects": Effect,
    "checklist": ChecklistItem,
    "grids": PatchGrid,
}


class _CausalFile(TypedDict):
    meta: Annotated[dict[str, Any], As(CausalMeta)]
    layers: list[dict[str, Any]]
    effects: list[dict[str, Any]]
    checklist: list[dict[str, Any]]
    grids: list[dict[str, Any]]


def save_causal(data: CausalData, folder: Path) -> None:
    """Write results.csv and, last, causal.json into `folder`; earlier causal results there are deleted first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    lists = {name: [_plain(vars(each)) for each in getattr(data, name)] for name in _LISTS}
    write_results("causal", folder, {"meta": _plain(data.meta), **lists}, causal_rows(data))


def load_causal(folder: Path) -> CausalData:
    """Read what `save_causal` wrote.

    Raises:
        DataError: no causal results there, or incomplete ones.
    """
    with reading("causal", folder, _CausalFile) as found:
        lists = {name: _read_list(found, name, kind) for name, kind in _LISTS.items()}
        data = CausalData(**lists, meta=found["meta"])
        _check(data)
    return data


def _check(data: CausalData) -> None:
    """Check that each place, split, method and direction that is named is there."""
    meta, places = data.meta, [layer.place for layer in data.layers]
    ensure(len(set(places)) == len(places), "each place once", places, "layers")
    for i, effect in enumerate(data.effects):
        ensure(effect.place in places, f"a place of the layers ({listed(places, most=4)})", effect.place, "effects", i)
    for i, layer in enumerate(data.layers):
        for method, values in (*layer.completeness.items(), *layer.completeness_interval.items()):
            ensure(values, "one number or more", values, "layers", i, "completeness", method)
        for method, ends in layer.completeness_interval.items():
            ensure(len(ends) == 2, "two numbers", ends, "layers", i, "completeness_interval", method)
    with inside("meta"):
        for method, chosen in meta.get("selected", {}).items():
            for name in ("place", "passed_over"):
                place = chosen.get(name)
                fits = place is None or place in places
                ensure(fits, f"a place of the layers ({listed(places, most=4)})", place, "selected", method, name)
        ensure("base" not in meta or "test" in meta["base"], "the behaviour on test", meta.get("base"), "base")
    for i, grid in enumerate(data.grids):
        with inside("grids", i):
            _check_grid(grid)


def _check_grid(grid: PatchGrid) -> None:
    """Check that the arrays of a grid have its layers and columns."""
    ensure(grid.layers and grid.columns, "layers and columns", [grid.layers, grid.columns])
    shape = len(grid.layers), len(grid.columns)
    shapes = {"recovery": shape, "interval": (*shape, 2), "attribution": shape, "within_placebo": shape}
    for name, expected in shapes.items():
        array = getattr(grid, name)
        if array is not None:
            kind = "b" if name == "within_placebo" else "f"
            fits = array.shape == expected and array.dtype.kind == kind
            ensure(
                fits,
                f"{'truth values' if kind == 'b' else 'numbers'} of the shape {list(expected)}",
                list(array.shape),
                name,
            )


def _plain(value: Any) -> Any:
    """A value as JSON has it: null for nan and infinity, lists for arrays and tuples."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_list(body: dict[str, Any], name: str, kind: type) -> list[Any]:
    found = []
    for i, entry in enumerate(body[name]):
        with inside(name, i):
            found.append(_read(entry, kind))
    return found


def _read(entry: dict[str, Any], kind: type) -> Any:
    """A dataclass out of JSON: numbers that are null where there must be one are nan, and pairs with one are null."""
    numbers, pairs = _special(kind)
    unknown = [name for name in numbers if name in entry and entry[name] is None]
    gone = [name for name in pairs if isinstance(entry.get(name), list) and None in entry[name]]
    found = read_as(kind, {**entry, **dict.fromkeys(unknown, 0.0), **dict.fromkeys(gone)})
    return replace(found, **dict.fromkeys(unknown, math.nan)) if unknown else found


@cache
def _special(kind: type) -> tuple[list[str], list[str]]:
    """The fields that are numbers, and those that are tuples, which JSON has as lists."""
    hints = get_type_hints(kind)
    numbers = [name for name, hint in hints.items() if hint is float]
    pairs = [name for name, hint in hints.items() if any(get_origin(x) is tuple for x in (hint, *get_args(hint)))]
    return numbers, pairs
