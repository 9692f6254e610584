"""Results of a curve and of a transfer on disk: results.json and transfer.json, with their other files."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from probekit.evaluation.results.checks import check_probe, check_probe_data, check_transfer, widths_of
from probekit.evaluation.results.data import BaselineResult, LayerResult, ProbeData, TransferCell, TransferData
from probekit.evaluation.results.meta import CurveRecord, SavedPart, TransferRecord
from probekit.evaluation.results.row_scores import ROWS_FILE, read_row_scores, row_scores_bytes
from probekit.evaluation.results.rows import curve_rows, transfer_rows
from probekit.evaluation.results.spread import SPREAD_FILE, read_spread, spread_bytes
from probekit.files.records import INFINITY
from probekit.probes import load_probe
from probekit.probes.find import SAVED
from probekit.probes.in_results import save_probe
from probekit.results.files import check_probe_hash, reading, write_part, write_results


class _ResultsFile(TypedDict):
    meta: CurveRecord
    best: NotRequired[str | None]
    layers: list[LayerResult]
    baselines: list[BaselineResult]
    random_init: list[LayerResult]
    residual: NotRequired[list[LayerResult]]
    pooled: NotRequired[dict[str, list[LayerResult]]]
    predictions: NotRequired[SavedPart | None]
    training_activations: NotRequired[SavedPart | None]


class _TransferFile(TypedDict):
    meta: TransferRecord
    cells: list[TransferCell]


def save_results(data: ProbeData, folder: Path) -> None:
    """Write the probes, predictions.parquet, training_activations.safetensors, results.csv and, last, results.json.

    Earlier results there are deleted first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    best = None if data.selected is None else data.selected.place
    lists = {name: [as_entry(one) for one in getattr(data, name)] for name in ("layers", "baselines")}
    lists |= {name: [as_entry(one) for one in getattr(data, name)] for name in ("random_init", "residual")}
    pooled = {how: [as_entry(layer) for layer in layers] for how, layers in data.pooled.items()}
    rows = None if data.rows is None else row_scores_bytes(data.rows)
    spread = None if data.spread is None else spread_bytes(data.spread)

    def write_parts(folder: Path) -> dict[str, Any]:
        saved = [_save_probe(layer, folder) for layer in data.layers]
        return {
            "layers": [{**entry, "probe": probe} for entry, probe in zip(lists["layers"], saved, strict=True)],
            "predictions": write_part(folder / ROWS_FILE, rows),
            "training_activations": write_part(folder / SPREAD_FILE, spread),
        }

    body = {"meta": data.meta, "best": best, **lists, "pooled": pooled}
    write_results("curve", folder, body, curve_rows(data), write_parts)


def load_results(folder: Path) -> ProbeData:
    """Read what `save_results` wrote; every value and array was checked against what it says and is named by.

    Raises:
        DataError: no results there, damaged ones, or a file that is not of these results.
    """
    with reading("curve", folder, _ResultsFile) as found:
        names = ("layers", "baselines", "meta", "random_init", "pooled", "residual")
        data = ProbeData(**{name: found[name] for name in names if name in found})
        check_probe_data(data, found.get("best"))
    layers = [replace(layer, probe=_probe_of(layer, data, folder)) for layer in data.layers]
    data = replace(data, layers=layers)
    rows = spread = None
    if (saved := found.get("predictions")) is not None:
        places, sizes, n_classes = [layer.place for layer in layers], data.meta["n"], data.meta["n_classes"]
        rows = read_row_scores(folder, saved["sha256"], places, sizes, n_classes)
    if (saved := found.get("training_activations")) is not None:
        spread = read_spread(folder, saved["sha256"], widths_of(layers))
    return replace(data, rows=rows, spread=spread)


def save_transfer(data: TransferData, folder: Path) -> None:
    """Write results.csv and, last, transfer.json into `folder`; earlier results there are deleted first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    body = {"meta": data.meta, "cells": [as_entry(cell) for cell in data.cells]}
    write_results("transfer", folder, body, transfer_rows(data))


def load_transfer(folder: Path) -> TransferData:
    """Read what `save_transfer` wrote.

    Raises:
        DataError: no such results there, or incomplete ones.
    """
    with reading("transfer", folder, _TransferFile) as found:
        data = TransferData(found["cells"], found["meta"])
        check_transfer(data)
    return data


def as_entry(result: LayerResult | BaselineResult | TransferCell) -> dict[str, Any]:
    """A result as JSON has it, without the probe."""
    entry = {name: value for name, value in vars(result).items() if name != "probe"}
    entry["C"] = json_C(entry["C"])
    if "tried" in entry:
        entry["tried"] = [(json_C(C), value) for C, value in entry["tried"]]
    return entry


def json_C(C: float | None) -> float | str | None:
    """A regularisation as JSON, which has no infinity."""
    return INFINITY if C is not None and math.isinf(C) else C


def _save_probe(layer: LayerResult, folder: Path) -> dict[str, str] | None:
    if layer.probe is None or not is_saved(layer.probe):
        return None
    return {"file": f"probes/{layer.place}", "sha256": save_probe(layer.probe, folder / "probes" / layer.place)}


def is_saved(probe: Any) -> bool:
    """Whether results keep the fitted probe: only a class that `load_probe` knows can be read again without pickle."""
    return bool(probe.saveable) and type(probe) in SAVED


def _probe_of(layer: LayerResult, data: ProbeData, folder: Path) -> Any:
    """The fitted probe of a layer, whose classes are those of the results; None where none was saved."""
    if layer.probe is None:
        return None
    path = folder / "probes" / layer.place
    probe = load_hashed(path, layer.probe["sha256"])
    check_probe(probe, path, list(data.meta["classes"]))
    return probe


def load_hashed(path: Path, sha256: str) -> Any:
    """The probe saved at a path, if it is the one whose hash results hold.

    Raises:
        DataError: it is missing, damaged, or another.
    """
    probe = load_probe(path)
    check_probe_hash(path, sha256)
    return probe
