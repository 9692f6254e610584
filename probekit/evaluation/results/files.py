"""Results on disk: `probekit.results/2` (results.json, results.csv and the probes) and `probekit.transfer/1`."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from probekit.errors import DataError
from probekit.evaluation.results.checks import check_probe, check_probe_data, check_transfer, widths_of
from probekit.evaluation.results.data import BaselineResult, LayerResult, ProbeData, TransferCell, TransferData
from probekit.evaluation.results.frames import probe_frame, transfer_frame
from probekit.evaluation.results.meta import CurveRecord, SavedPart, TransferRecord
from probekit.evaluation.results.row_scores import ROWS_FILE, read_row_scores, row_scores_bytes
from probekit.evaluation.results.spread import SPREAD_FILE, read_spread, spread_bytes
from probekit.files.durable import write_as
from probekit.files.plain_files import MAX_RESULTS, read_bytes
from probekit.files.records import INFINITY, describing, read_as, read_json_file
from probekit.probes import load_probe
from probekit.probes.find import SAVED
from probekit.results_folders import clear_folder
from probekit.text import spreadsheet_cell

FORMAT = "probekit.results/2"
TRANSFER_FORMAT = "probekit.transfer/1"
AGAIN = "train again"


class _ResultsFile(TypedDict):
    meta: CurveRecord
    best: NotRequired[str | None]
    layers: list[LayerResult]
    baselines: list[BaselineResult]
    random_init: list[LayerResult]
    residual: NotRequired[list[LayerResult]]
    pooled: NotRequired[dict[str, list[LayerResult]]]
    predictions: NotRequired[SavedPart]
    training_activations: NotRequired[SavedPart]


class _TransferFile(TypedDict):
    meta: TransferRecord
    cells: list[TransferCell]


def save_results(data: ProbeData, folder: Path) -> None:
    """Write results.csv, predictions.parquet, training_activations.safetensors, probes/ and, last, results.json.

    Earlier results there are deleted first. results.json holds the hashes of the other files.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    layers = [as_entry(layer) for layer in data.layers]
    lists = {"baselines": data.baselines, "random_init": data.random_init, "residual": data.residual}
    body = {
        "format": FORMAT,
        "meta": data.meta,
        "best": None if data.selected is None else data.selected.place,
        "layers": layers,
    }
    body |= {name: [as_entry(result) for result in results] for name, results in lists.items()}
    body |= {"pooled": {how: [as_entry(layer) for layer in layers] for how, layers in data.pooled.items()}}
    json.dumps(body, allow_nan=False)  # fails before anything is deleted
    table = probe_frame(data).to_csv(index=False, lineterminator="\n").encode()
    rows = None if data.rows is None else row_scores_bytes(data.rows)
    spread = None if data.spread is None else spread_bytes(data.spread)
    clear_folder(folder)
    for entry, layer in zip(layers, data.layers, strict=True):
        entry["probe"] = _save_probe(layer, folder)
    write_as(folder / "results.csv", table)
    if rows is not None:
        write_as(folder / ROWS_FILE, rows)
        body["predictions"] = {"file": ROWS_FILE, "sha256": hashlib.sha256(rows).hexdigest()}
    if spread is not None:
        write_as(folder / SPREAD_FILE, spread)
        body["training_activations"] = {"file": SPREAD_FILE, "sha256": hashlib.sha256(spread).hexdigest()}
    write_as(folder / "results.json", json.dumps(body, indent=1, allow_nan=False).encode())


def load_results(folder: Path) -> ProbeData:
    """Read what `save_results` wrote; every value and array was checked against what it says and is named by.

    Raises:
        DataError: no results there, damaged ones, or a file that is not of these results.
    """
    path = folder / "results.json"
    body = read_json_file(path, FORMAT, "results", "train-probe", AGAIN)
    with describing(path, AGAIN):
        found = read_as(_ResultsFile, body)
        data = ProbeData(
            found["layers"],
            found["baselines"],
            found["meta"],
            found["random_init"],
            found.get("pooled", {}),
            residual=found.get("residual", []),
        )
        check_probe_data(data, found.get("best"))
    layers = [replace(layer, probe=_probe_of(layer, data, folder)) for layer in data.layers]
    data = replace(data, layers=layers)
    rows = spread = None
    if "predictions" in found:
        places, sizes, n_classes = [layer.place for layer in layers], data.meta["n"], data.meta["n_classes"]
        rows = read_row_scores(folder, found["predictions"]["sha256"], places, sizes, n_classes)
    if "training_activations" in found:
        spread = read_spread(folder, found["training_activations"]["sha256"], widths_of(layers))
    return replace(data, rows=rows, spread=spread)


def save_transfer(data: TransferData, folder: Path) -> None:
    """Write transfer.csv and, last, transfer.json into `folder`; earlier results there are deleted first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    body = {"format": TRANSFER_FORMAT, "meta": data.meta, "cells": [as_entry(cell) for cell in data.cells]}
    text = json.dumps(body, indent=1, allow_nan=False)
    frame = transfer_frame(data)
    frame[["train_task", "test_task"]] = frame[["train_task", "test_task"]].map(spreadsheet_cell)
    table = frame.to_csv(index=False, lineterminator="\n").encode()
    clear_folder(folder, "transfer")
    write_as(folder / "transfer.csv", table)
    write_as(folder / "transfer.json", text.encode())


def load_transfer(folder: Path) -> TransferData:
    """Read what `save_transfer` wrote.

    Raises:
        DataError: no such results there, or incomplete ones.
    """
    path = folder / "transfer.json"
    body = read_json_file(path, TRANSFER_FORMAT, "results of transfer", "transfer", AGAIN)
    with describing(path, AGAIN):
        found = read_as(_TransferFile, body)
        data = TransferData(found["cells"], found["meta"])
        check_transfer(data)
    return data


def as_entry(result: LayerResult | BaselineResult | TransferCell) -> dict[str, Any]:
    """A result as JSON has it, without the probe."""
    entry = {name: value for name, value in vars(result).items() if name != "probe"}
    entry["C"] = _json_C(entry["C"])
    if "tried" in entry:
        entry["tried"] = [(_json_C(C), value) for C, value in entry["tried"]]
    return entry


def _json_C(C: float | None) -> float | str | None:
    return INFINITY if C is not None and math.isinf(C) else C  # JSON has no infinity


def _save_probe(layer: LayerResult, folder: Path) -> dict[str, str] | None:
    if layer.probe is None or not is_saved(layer.probe):
        return None
    layer.probe.save(folder / "probes" / layer.place)
    return {"file": f"probes/{layer.place}", "sha256": probe_hash(folder / "probes" / layer.place)}


def is_saved(probe: Any) -> bool:
    """Whether results keep the fitted probe: only a class that `load_probe` knows can be read again without pickle."""
    return bool(probe.saveable) and type(probe) in SAVED


def probe_hash(path: Path) -> str:
    """The hash of a saved probe."""
    # the .json holds the hash of the weights, so its own hash covers both files
    return hashlib.sha256(read_bytes(f"{path}.json", MAX_RESULTS)).hexdigest()


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
    if probe_hash(path) != sha256:
        raise DataError(f"the probe {str(path)!a} is not the one of these results; {AGAIN}")
    return probe
