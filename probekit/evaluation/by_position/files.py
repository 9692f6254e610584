"""Results by position or head on disk: `probekit.positions/1` or `probekit.heads/1` (JSON, results.csv and probes).

The probes are those of the layer that validation selects for each; every number is of all layers.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from probekit.evaluation.by_position.data import PositionCurve, PositionData, best_layer, noun_of
from probekit.evaluation.results.checks import check_curve_layers, check_label_classes, check_probe
from probekit.evaluation.results.files import as_entry, is_saved, load_hashed
from probekit.evaluation.results.meta import GridRecord, SavedPart
from probekit.evaluation.results.rows import about_curve, grid_cells, place_cells, procedure_rows, score_rows
from probekit.files.records import MISSING, ensure, inside
from probekit.options.probe import BY_HEAD, BY_POSITION
from probekit.probes.in_results import save_probe
from probekit.results.files import reading, write_results
from probekit.results.table import TableRow, ends_of
from probekit.text import listed


class _SavedCell(SavedPart):
    layer: int


@dataclass(frozen=True)
class _SavedCurve(PositionCurve):
    """A curve as its file has it: with the record of the probe that was saved."""

    probe: _SavedCell | None = None


class _Positions(TypedDict):
    meta: GridRecord
    positions: list[_SavedCurve]


class _Heads(TypedDict):
    meta: GridRecord
    heads: list[_SavedCurve]


_FORMS = {BY_POSITION: _Positions, BY_HEAD: _Heads}


def position_rows(data: PositionData) -> list[TableRow]:
    """One row per position or head, layer, split and metric; chance and p-values are of the headline on test.

    The kind is "probe" or "random-init"; the last rows, of no position, are "procedure" (of nested folds) and "lead"
    (over random weights).
    """
    about, selected = about_curve(data.meta), None if data.quoted is None else data.quoted.layer
    rows: list[TableRow] = []
    for one in data.positions:
        at = {**grid_cells(data.meta, noun_of(data), one.position), "token": one.token}
        at |= {} if noun_of(data) == BY_HEAD else {"position": one.position}
        for kind, layers in (("probe", one.layers), ("random-init", one.random_init)):
            for i, layer in enumerate(layers):
                where = {"kind": kind, **place_cells(layer, data.meta["n_layers"])}
                where |= {"selected": layer is selected} if kind == "probe" else {}
                for row in score_rows(layer, one.n):
                    of_test = kind == "probe" and row["split"] == "test" and row["metric"] == data.headline
                    tested = {"chance": one.chance, "p_value": layer.p_value, "p_corrected": one.corrected[i]}
                    rows.append({**about, **at, **where, **row, **(tested if of_test else {})})
    found = []
    if data.procedure is not None:
        found = procedure_rows(data.procedure, data.headline, data.procedure.get("chance"))
    if (random := data.meta.get("over_random")) is not None and random["over"] is not None:
        ahead = {"value": random["over"], **ends_of(random["interval"]), "n": random["n"]}
        found.append({"kind": "lead", "name": "random init", "split": "test", "metric": data.headline, **ahead})
    about |= grid_cells(data.meta, noun_of(data))
    return rows + [{**about, "point": data.meta["point"], **row} for row in found]


def save_positions(data: PositionData, folder: Path) -> None:
    """Write probes/, results.csv and, last, positions.json or heads.json into `folder`; earlier results go first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    noun = noun_of(data)
    kind, entries = f"{noun}s", [_entry_of(one) for one in data.positions]

    def write_probes(folder: Path) -> dict[str, Any]:
        saved = [_save_probe(data, one, _name(noun, i), folder) for i, one in enumerate(data.positions)]
        return {kind: [{**entry, "probe": probe} for entry, probe in zip(entries, saved, strict=True)]}

    write_results(kind, folder, {"meta": data.meta, kind: entries}, position_rows(data), write_probes)


def load_positions(folder: Path, noun: str = BY_POSITION) -> PositionData:
    """Read what `save_positions` wrote; `noun` is "position" or "head".

    Raises:
        DataError: no results by position there, damaged ones, or a probe that is not of these results.
    """
    name = f"{noun}s"
    with reading(name, folder, _FORMS[noun]) as found:
        meta, saved = found["meta"], found[name]
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
    return {"layer": best, "sha256": save_probe(probe, folder / "probes" / name)}


def _name(noun: str, number: int) -> str:
    """The file of a probe, by its number: a position's own name may be any text."""
    return f"{noun}_{number}"
