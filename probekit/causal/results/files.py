"""Causal results on disk: `probekit.causal/1`, which is causal.json and, for other programs, three tables."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import numpy as np

from probekit.causal.data import CausalData, CausalLayer, ChecklistItem, Effect, Method, PatchGrid, Quadrant
from probekit.causal.results.frames import FRAMES, causal_frame
from probekit.durable import matches, write_as
from probekit.errors import DataError
from probekit.evaluation.results.folders import check_folder, clear_folder
from probekit.evaluation.results.form import has_form
from probekit.plain_files import MAX_RESULTS, parse_json, read_bytes

CAUSAL_FORMAT = "probekit.causal/1"
CAUSAL_RESULTS = re.compile(r"causal\.json|(effects|layers|patching)\.csv|(causal_by_layer|patching)\.(png|svg)")
_LISTS: dict[str, type] = {"layers": CausalLayer, "effects": Effect, "checklist": ChecklistItem}
_GRID = {"point": str, "layers": [int], "columns": [str], "by": str}
_ARRAYS = ("recovery", "interval", "attribution", "within_placebo")


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
        grids = [_grid(entry) for entry in body["grids"]]
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
    numbers = {one.name: math.nan for one in fields(kind) if one.type in (float, "float")}
    entry = {name: numbers.get(name) if value is None else value for name, value in entry.items()}
    for name in ("interval", "placebo_band"):
        if entry.get(name) is not None and None in entry[name]:
            entry[name] = None
    known = {"method": get_args(Method), "quadrant": get_args(Quadrant)}
    if not has_form(entry, kind) or any(entry[name] not in known[name] for name in known if name in entry):
        raise TypeError(f"an entry lacks a field of {kind.__name__}, or has one of another type")
    pairs = {name: tuple(value) for name, value in entry.items() if name in ("interval", "placebo_band") and value}
    return kind(**entry | pairs)


def _grid(entry: dict[str, Any]) -> PatchGrid:
    if not matches(entry, _GRID) or entry["by"] not in ("position", "head"):
        raise TypeError("a grid lacks a field, or has one of another type")
    shape = len(entry["layers"]), len(entry["columns"])
    arrays = {name: _array(entry.get(name), bool if name == "within_placebo" else np.float64) for name in _ARRAYS}
    for name, array in arrays.items():
        wanted = (*shape, 2) if name == "interval" else shape
        if array is None and name not in ("recovery", "interval"):
            continue
        if array is None or array.shape != wanted:
            raise TypeError(f"{name} of a grid has another shape")
    return PatchGrid(**{name: entry[name] for name in _GRID}, **arrays)


def _array(values: Sequence[Any] | None, dtype: type) -> np.ndarray | None:
    return None if values is None else np.array(values, dtype=dtype)
