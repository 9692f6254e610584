"""Results by position or head on disk: `probekit.positions/1` or `probekit.heads/1` (JSON, results.csv and probes).

The probes are those of the layer that validation selects for each; every number is of all layers.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.evaluation.by_position.data import PositionCurve, PositionData, best_layer, noun_of
from probekit.evaluation.results.checks import check_curve_layers, check_label_classes, check_probe
from probekit.evaluation.results.files import AGAIN, as_entry, is_saved, load_hashed, probe_hash
from probekit.evaluation.results.meta import GridRecord, SavedPart
from probekit.files.durable import write_as
from probekit.files.records import MISSING, describing, ensure, inside, read_as, read_json_file
from probekit.options.probe import BY_HEAD, BY_POSITION
from probekit.results_folders import clear_folder
from probekit.text import listed

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "kind",
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


class _SavedCell(SavedPart):
    layer: int


@dataclass(frozen=True)
class _SavedCurve(PositionCurve):
    """A curve as its file has it: with the record of the probe that was saved."""

    probe: _SavedCell | None = None


def position_frame(data: PositionData) -> "pd.DataFrame":
    """One row per position or head, layer, split and metric; chance and p-values are of the headline on test.

    The kind is "probe" or "random-init"; of nested folds the last rows, of the kind "procedure", have no position.
    """
    import pandas as pd

    selected = None if data.selected is None or data.procedure is not None else data.selected[1]
    rows = [
        _row(data, one, kind, i, split, metric, layer is selected)
        for one in data.positions
        for kind, layers in (("probe", one.layers), ("random-init", one.random_init))
        for i, layer in enumerate(layers)
        for split, values in layer.metrics.items()
        for metric in values
    ]
    procedure = data.procedure or {"metrics": {}, "intervals": {}}
    nowhere = (None, "procedure", None, data.meta["point"], None, None, None, None, "test", procedure.get("n", 0))
    for metric, value in procedure["metrics"].items():
        ends = procedure["intervals"].get(metric, (None, None))
        rows.append((*nowhere, metric, value, *ends, None, None, None, None))
    numbers = ("C", "value", "low", "high", "chance", "p_value", "p_corrected")
    kinds = {"layer": "Int64", "n": "int64", "converged": "boolean", "selected": "boolean"}
    return pd.DataFrame(rows, columns=[noun_of(data), *COLUMNS]).astype(kinds | dict.fromkeys(numbers, "float64"))


def _row(
    data: PositionData, one: PositionCurve, kind: str, i: int, split: str, metric: str, selected: bool
) -> tuple[Any, ...]:
    layer, of_test = (one.layers if kind == "probe" else one.random_init)[i], split == "test"
    ends = layer.intervals.get(metric, (None, None)) if of_test else (None, None)
    is_compared = of_test and metric == data.headline and kind == "probe"
    compared = (one.chance, layer.p_value, one.corrected[i]) if is_compared else (None,) * 3
    where = (one.position, kind, one.token, layer.point, layer.layer, layer.place, layer.C, layer.converged)
    n = one.n.get(split, one.n["test"])  # with folds all texts take turns as validation
    return (
        *where,
        split,
        n,
        metric,
        layer.metrics[split][metric],
        *ends,
        *compared,
        selected if kind == "probe" else None,
    )


def save_positions(data: PositionData, folder: Path) -> None:
    """Write results.csv, probes/ and, last, positions.json or heads.json into `folder`; earlier results go first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    entries, noun = [_entry_of(one) for one in data.positions], noun_of(data)
    json.dumps([data.meta, entries], allow_nan=False)  # fails before anything is deleted
    table = position_frame(data).to_csv(index=False, lineterminator="\n").encode()
    clear_folder(folder, f"{noun}s")
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
    body = read_json_file(path, _format(noun), f"results by {noun}", "train-probe", AGAIN)
    with describing(path, AGAIN):
        meta, name = read_as(GridRecord, body.get("meta", MISSING)), f"{noun}s"
        with inside(name):
            saved = read_as(list[_SavedCurve], body.get(name, MISSING))
        curves = [PositionCurve(**{key: one for key, one in vars(each).items() if key != "probe"}) for each in saved]
        ensure(curves, "one curve or more", curves, name)
        data = PositionData(curves, meta)
        check_label_classes(meta)
        _check_grid(data, noun)
        for i, one in enumerate(saved):
            is_there = one.probe is None or 0 <= one.probe["layer"] < len(one.layers)
            ensure(is_there, f"one of the {len(one.layers)} layers", one.probe, name, i, "probe")
    curves = [_with_probe(one, meta, folder / "probes" / _name(noun, i)) for i, one in enumerate(saved)]
    return PositionData(curves, meta)


def _check_grid(data: PositionData, noun: str) -> None:
    """Check that all curves have the same layers, each with its corrected p-value and its number of texts."""
    meta = data.meta
    ensure(noun_of(data) == noun, f"a grid by {noun}", meta["by"], "meta", "by")
    ensure(noun != BY_HEAD or "key_value" in meta, "true or false", MISSING, "meta", "key_value")
    is_tested = meta["no_p_values"] is None or any(p is not None for one in data.positions for p in one.corrected)
    ensure(not is_tested or "above_chance" in meta, "the level of the p-values", MISSING, "meta", "above_chance")
    if data.procedure is not None:
        found = data.procedure["metrics"]
        ensure(data.headline in found, f"the headline, {data.headline}", found, "meta", "procedure", "metrics")
    for i, one in enumerate(data.positions):
        with inside(f"{noun}s", i):
            places = check_curve_layers(one.layers, data.headline)
            ensure(places == data.places, f"the layers {listed(data.places, most=4)}, as in all curves", places)
            ensure(len(one.corrected) == len(places), f"{len(places)} p-values", one.corrected, "corrected")
            splits = {split for layer in one.layers for split in layer.metrics}
            splits -= set() if data.procedure is None else {"validation"}  # with folds all texts take turns
            ensure(splits <= one.n.keys(), f"how many texts of {listed(sorted(splits))} there are", one.n, "n")
            if one.random_init:
                others = check_curve_layers(one.random_init, data.headline)
                ensure(others == data.places, f"the layers {listed(data.places, most=4)}", others, "random_init")
            left_out = set(one.left_out) <= set(meta["classes"])
            ensure(left_out, "classes of the results", list(one.left_out), "left_out")


def _with_probe(saved: "_SavedCurve", meta: dict[str, Any], path: Path) -> PositionCurve:
    """The curve, with the fitted probe of the layer that has one."""
    fields, record = dict(vars(saved)), saved.probe
    del fields["probe"]
    if record is not None:
        probe = load_hashed(path, record["sha256"])
        check_probe(probe, path, [name for name in meta["classes"] if name not in saved.left_out])
        layers, number = list(saved.layers), record["layer"]
        layers[number] = replace(layers[number], probe=probe)
        fields["layers"] = layers
    return PositionCurve(**fields)


def _entry_of(one: PositionCurve) -> dict[str, Any]:
    entry = {**vars(one), "layers": [as_entry(layer) for layer in one.layers]}
    random_init = [as_entry(layer) for layer in entry.pop("random_init")]
    return entry | ({"random_init": random_init} if random_init else {})


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
