"""Results by position or head on disk: `probekit.positions/1` or `probekit.heads/1` (JSON, results.csv and probes).

The probes are those of the layer that validation selects for each; every number is of all layers.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.durable import write_as
from probekit.errors import DataError
from probekit.evaluation.by_position.data import PositionCurve, PositionData, best_layer, noun_of
from probekit.evaluation.results.data import LayerResult
from probekit.evaluation.results.files import as_entry, entries_of, is_saved, probe_hash, with_tuples
from probekit.evaluation.results.folders import HEAD_RESULTS, POSITION_RESULTS, clear_folder
from probekit.options.probe import BY_HEAD, BY_POSITION
from probekit.plain_files import MAX_RESULTS, parse_json, read_bytes
from probekit.probes import load_probe

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "token",
    "point",
    "layer",
    "place",
    "C",
    "converged",
    "split",
    "n",
    "metric",
    "value",
    "low",
    "high",
)
COLUMNS += ("chance", "p_value", "p_corrected", "selected")


def position_frame(data: PositionData) -> "pd.DataFrame":
    """One row per position or head, layer, split and metric; chance and p-values are of the headline on test."""
    import pandas as pd

    selected = None if data.selected is None else data.selected[1]
    rows = [
        _row(data, one, i, split, metric, value, layer is selected)
        for one in data.positions
        for i, layer in enumerate(one.layers)
        for split, values in layer.metrics.items()
        for metric, value in values.items()
    ]
    numbers = ("C", "value", "low", "high", "chance", "p_value", "p_corrected")
    kinds = {"layer": "Int64", "n": "int64", "converged": "boolean", "selected": "boolean"}
    return pd.DataFrame(rows, columns=[noun_of(data), *COLUMNS]).astype(kinds | dict.fromkeys(numbers, "float64"))


def _row(
    data: PositionData, one: PositionCurve, i: int, split: str, metric: str, value: float, selected: bool
) -> tuple[Any, ...]:
    layer, of_test = one.layers[i], split == "test"
    ends = layer.intervals.get(metric, (None, None)) if of_test else (None, None)
    compared = (one.chance, layer.p_value, one.corrected[i]) if of_test and metric == data.headline else (None,) * 3
    where = (one.position, one.token, layer.point, layer.layer, layer.place, layer.C, layer.converged)
    return (*where, split, one.n[split], metric, value, *ends, *compared, selected)


def save_positions(data: PositionData, folder: Path) -> None:
    """Write results.csv, probes/ and, last, positions.json or heads.json into `folder`; earlier results go first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    entries, noun = [_entry_of(one) for one in data.positions], noun_of(data)
    json.dumps([data.meta, entries], allow_nan=False)  # fails before anything is deleted
    table = position_frame(data).to_csv(index=False, lineterminator="\n").encode()
    clear_folder(folder, HEAD_RESULTS if noun == BY_HEAD else POSITION_RESULTS)
    for number, (one, entry) in enumerate(zip(data.positions, entries, strict=True)):
        entry["probe"] = _save_probe(data, one, _name(noun, number), folder)
    write_as(folder / "results.csv", table)
    body = {"format": _format(noun), "meta": data.meta, f"{noun}s": entries}
    write_as(folder / f"{noun}s.json", json.dumps(body, indent=1, allow_nan=False).encode())


def load_positions(folder: Path, noun: str = BY_POSITION) -> PositionData:
    """Read what `save_positions` wrote; `noun` is "position" or "head".

    Raises:
        DataError: no results by position there, damaged ones, or a probe that is not of these results.
    """
    path = folder / f"{noun}s.json"
    try:
        body = parse_json(read_bytes(path, MAX_RESULTS))
        if body["format"] != _format(noun):
            raise ValueError(f"format {body['format']!a}, expected {_format(noun)}")
        entries = body[f"{noun}s"]
        curves = [_curve_of(entry, folder, _name(noun, number)) for number, entry in enumerate(entries)]
        headline = body["meta"]["headline"]
        if any(headline not in layer.metrics["test"] for one in curves for layer in one.layers):
            raise ValueError(f"a layer lacks the headline {headline!a}")
        return PositionData(curves, dict(body["meta"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"no complete results by {noun} at {str(path)!a} ({error!a:.200}); train again") from None


def _entry_of(one: PositionCurve) -> dict[str, Any]:
    return {**vars(one), "layers": [as_entry(layer) for layer in one.layers]}


def _curve_of(entry: dict[str, Any], folder: Path, name: str) -> PositionCurve:
    layers = [LayerResult(**with_tuples(each)) for each in entries_of(entry["layers"], LayerResult)]
    corrected = [None if value is None else float(value) for value in entry["corrected"]]
    if not layers or len(corrected) != len(layers):
        raise ValueError(f"{name} has {len(layers)} layers and {len(corrected)} p-values")
    if (saved := entry["probe"]) is not None:
        layer, path = int(saved["layer"]), folder / "probes" / name
        if probe_hash(path) != saved["sha256"]:
            raise ValueError(f"the probe {path.name} is not the one of these results")
        layers[layer] = LayerResult(**{**vars(layers[layer]), "probe": load_probe(path)})
    n = {str(split): int(count) for split, count in entry["n"].items()}
    chance = None if entry["chance"] is None else float(entry["chance"])
    token = None if entry["token"] is None else str(entry["token"])
    left_out = tuple(map(str, entry["left_out"]))
    return PositionCurve(str(entry["position"]), n, chance, layers, corrected, token, left_out)


def _save_probe(data: PositionData, one: PositionCurve, name: str, folder: Path) -> dict[str, Any] | None:
    """Save the probe of the selected layer; the record of it, or None where nothing is selected or can be saved."""
    best = best_layer(data, one)
    probe = None if best is None else one.layers[best].probe
    if probe is None or not is_saved(probe):
        return None
    path = folder / "probes" / name
    probe.save(path)
    return {"layer": best, "sha256": probe_hash(path)}


def _name(noun: str, number: int) -> str:
    """The file of a probe, by its number: a position's own name may be any text."""
    return f"{noun}_{number}"


def _format(noun: str) -> str:
    return f"probekit.{noun}s/1"
