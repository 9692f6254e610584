"""Causal results on disk: `probekit.causal/2`, which is causal.json and, for other programs, three tables."""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np

from probekit.causal.data import CausalData, CausalLayer, ChecklistItem, Effect, Method, PatchGrid, Quadrant
from probekit.causal.results.frames import FRAMES, causal_frame
from probekit.durable import write_as
from probekit.errors import DataError
from probekit.evaluation.results.folders import check_folder, clear_folder
from probekit.evaluation.results.form import has_form
from probekit.plain_files import MAX_RESULTS, parse_json, read_bytes

CAUSAL_FORMAT = "probekit.causal/2"
CAUSAL_RESULTS = re.compile(
    r"causal\.json|(effects|layers|patching)\.csv|(causal_by_layer|patching)\.(png|svg|pdf)|report\.html"
)
_LISTS: dict[str, type] = {"layers": CausalLayer, "effects": Effect, "checklist": ChecklistItem}
_ARRAYS = {"recovery": np.float64, "interval": np.float64, "attribution": np.float64, "within_placebo": np.bool_}
_NAMES = {"method": get_args(Method), "quadrant": get_args(Quadrant), "by": ("position", "head")}


def check_causal_folder(folder: str | Path) -> None:
    """Check that causal results may be written to `folder`: it does not exist, is empty or holds only such results.

    Raises:
        StorageError: it is a file, or holds a file that is not of causal results.
    """
    check_folder(folder, CAUSAL_RESULTS)


def save_causal(data: CausalData, folder: Path) -> None:
    """Write the tables and, last, causal.json into `folder`; earlier causal results there are deleted first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    text = _json(data)  # fails before anything is deleted
    tables = {name: causal_frame(data, name) for name in FRAMES}
    clear_folder(folder, CAUSAL_RESULTS)
    for name, table in tables.items():
        if len(table):
            write_as(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n").encode())
    write_as(folder / "causal.json", text.encode())


def load_causal(folder: Path) -> CausalData:
    """Read what `save_causal` wrote.

    Raises:
        DataError: no causal results there, or incomplete ones.
    """
    path = folder / "causal.json"
    try:
        body = parse_json(read_bytes(path, MAX_RESULTS))
    except FileNotFoundError:
        raise DataError(
            f"no causal results here, as {str(path)!a} is missing; give the folder that probekit causal wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"could not read {str(path)!a}: {error}") from None
    version = body.get("format") if isinstance(body, dict) else None
    if version != CAUSAL_FORMAT:
        raise DataError(f"{str(path)!a} is not a file of causal results: expected {CAUSAL_FORMAT}, got {version!a:.60}")
    with complete_causal(folder):
        layers, effects, checklist = ([_read(entry, kind) for entry in body[name]] for name, kind in _LISTS.items())
        grids = [_read_grid(entry) for entry in body["grids"]]
        return CausalData(layers, effects, grids, checklist, dict(body["meta"]))


@contextmanager
def complete_causal(folder: Path) -> Iterator[None]:
    """Turn what fails where the record lacks a value, or has one of another type, into a DataError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DataError(f"{str(folder)!a} does not hold complete causal results ({error!a:.200}); run again") from None


def _json(data: CausalData) -> str:
    """One line for each layer, effect, grid and question, so that the file can be read and compared."""
    body = {"format": [CAUSAL_FORMAT], "meta": [data.meta]}
    lists: dict[str, list[Any]] = {name: [_plain(vars(each)) for each in getattr(data, name)] for name in _LISTS}
    lists["grids"] = [_plain(vars(grid)) for grid in data.grids]
    lines = [f'"{name}": {json.dumps(_plain(value), allow_nan=False)}' for name, (value,) in body.items()]
    for name, entries in lists.items():
        inner = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
        lines.append(f'"{name}": [\n{inner}\n]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _plain(value: Any) -> Any:
    """A value as JSON has it: null for nan and infinity, lists for arrays and tuples."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read(entry: Any, kind: type) -> Any:
    """A dataclass out of JSON: numbers that are null where there must be one are nan, and pairs are tuples."""
    numbers, pairs = _special(kind)
    changed = {name: math.nan for name in numbers if name in entry and entry[name] is None}
    changed |= {name: None for name in pairs if isinstance(entry.get(name), list) and None in entry[name]}
    entry = {**entry, **changed}
    if not has_form(entry, kind) or any(entry[name] not in _NAMES[name] for name in _NAMES if name in entry):
        raise TypeError(f"an entry lacks a field of {kind.__name__}, or has one of another type")
    return kind(**entry | {name: tuple(entry[name]) for name in pairs if entry.get(name)})


@cache
def _special(kind: type) -> tuple[list[str], list[str]]:
    """The fields that are numbers, and those that are tuples, which JSON has as lists."""
    numbers = [one.name for one in fields(kind) if one.type is float]
    pairs = [one.name for one in fields(kind) if any(get_origin(x) is tuple for x in (one.type, *get_args(one.type)))]
    return numbers, pairs


def _read_grid(entry: dict[str, Any]) -> PatchGrid:
    """A grid, with arrays of the shape of its layers and columns; null is nan."""
    arrays = {name: np.array(entry[name], kind) for name, kind in _ARRAYS.items() if entry.get(name) is not None}
    shape = len(entry["layers"]), len(entry["columns"])
    for name, array in arrays.items():
        if array.shape != ((*shape, 2) if name == "interval" else shape):
            raise TypeError(f"{name} of a grid has another shape")
    return _read(entry | arrays, PatchGrid)
