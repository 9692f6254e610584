"""Results on disk: `probekit.results/2` (results.json, results.csv and the probes) and `probekit.transfer/1`."""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probekit.durable import write_as
from probekit.errors import DataError
from probekit.evaluation.results.data import BaselineResult, LayerResult, ProbeData, TransferCell, TransferData
from probekit.evaluation.results.folders import TRANSFER_RESULTS, clear_folder
from probekit.evaluation.results.form import has_form
from probekit.evaluation.results.frames import probe_frame, transfer_frame
from probekit.evaluation.results.row_scores import ROWS_FILE, read_row_scores, row_scores_bytes
from probekit.evaluation.results.spread import SPREAD_FILE, read_spread, spread_bytes
from probekit.evaluation.scores.metrics import HEADLINES
from probekit.plain_files import MAX_RESULTS, parse_json, read_bytes
from probekit.probes import load_probe
from probekit.probes.load import SAVED
from probekit.text import spreadsheet_cell

FORMAT = "probekit.results/2"
OLDER = ("probekit.results/1",)
INFINITE = "inf"  # a C without a penalty, in JSON
TRANSFER_FORMAT = "probekit.transfer/1"


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
    """Read what `save_results` wrote.

    Raises:
        DataError: no results there, damaged ones, or a probe that is not the one of these results.
    """
    path = folder / "results.json"
    body = _read(path)
    try:
        for name, kind in (("layers", LayerResult), ("baselines", BaselineResult), ("random_init", LayerResult)):
            body[name] = entries_of(body[name], kind)
        layers = [_layer_of(entry, folder) for entry in body["layers"]]
        baselines = [BaselineResult(**with_tuples(entry)) for entry in body["baselines"]]
        random_init = [LayerResult(**with_tuples(entry)) for entry in body["random_init"]]
        pooled = {
            how: [LayerResult(**with_tuples(entry)) for entry in entries_of(entries, LayerResult)]
            for how, entries in body.get("pooled", {}).items()
        }
        residual = [LayerResult(**with_tuples(one)) for one in entries_of(body.get("residual", []), LayerResult)]
        _check_headline(body["meta"]["headline"], layers, path)
        rows = None if "predictions" not in body else read_row_scores(folder, body["predictions"]["sha256"])
        spread = None
        if "training_activations" in body:
            spread = read_spread(folder, body["training_activations"]["sha256"])
        return ProbeData(layers, baselines, body["meta"], random_init, pooled, rows, spread, residual)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{str(path)!a} is not a complete file of results: {error!a}") from None


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
    clear_folder(folder, TRANSFER_RESULTS)
    write_as(folder / "transfer.csv", table)
    write_as(folder / "transfer.json", text.encode())


def load_transfer(folder: Path) -> TransferData:
    """Read what `save_transfer` wrote.

    Raises:
        DataError: no such results there, or incomplete ones.
    """
    path = folder / "transfer.json"
    try:
        body = parse_json(read_bytes(path, MAX_RESULTS))
        if body["format"] != TRANSFER_FORMAT:
            raise ValueError(f"format {body['format']!a}, expected {TRANSFER_FORMAT}")
        cells = [TransferCell(**with_tuples(cell)) for cell in entries_of(body["cells"], TransferCell)]
        return TransferData(cells, body["meta"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"no complete results of transfer at {str(path)!a}: {error}") from None


@contextmanager
def complete_results(folder: Path) -> Iterator[None]:
    """Turn what fails where the record of results lacks a value, or has one of another type, into a DataError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DataError(f"{str(folder)!a} does not hold complete results ({error!a:.200}); train again") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        body = parse_json(read_bytes(path, MAX_RESULTS))
    except FileNotFoundError:
        raise DataError(
            f"no results here, as {str(path)!a} is missing; give the folder that train-probe wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"could not read {str(path)!a}: {error}") from None
    version = body.get("format") if isinstance(body, dict) else None
    if version in OLDER:
        raise DataError(f"{str(path)!a} has an older format of results ({version}, now {FORMAT}); train again")
    if version != FORMAT:
        raise DataError(
            f"{str(path)!a} is not a file of results (expected format {FORMAT}, got {version!a}); train again"
        )
    return body


def entries_of(values: Any, kind: type) -> list[dict[str, Any]]:
    """The entries of a list as JSON has them, each with the fields of a dataclass, and with infinity as a number."""
    if not isinstance(values, list):
        raise TypeError("a list is missing")
    entries = [_with_infinity(value) for value in values]
    for i, entry in enumerate(entries):
        if not has_form(entry, kind):
            raise TypeError(f"entry {i} lacks a field of {kind.__name__}, or has one of another type")
    return entries


def _with_infinity(entry: Any) -> Any:
    return (
        {**entry, **{name: _from_json_C(entry[name]) for name in ("C", "tried") if name in entry}}
        if isinstance(entry, dict)
        else entry
    )


def _check_headline(name: Any, layers: list[LayerResult], path: Path) -> None:
    if name not in HEADLINES:
        raise DataError(f"{str(path)!a} has the headline {name!a}; expected {', '.join(HEADLINES)}; train again")
    chosen = any("validation" in layer.metrics for layer in layers)
    splits = ("validation", "test") if chosen else ("test",)
    lacking = [layer.place for layer in layers for split in splits if name not in layer.metrics[split]]
    if lacking or not layers:
        place = lacking[0] if lacking else "any layer"
        raise DataError(f"{str(path)!a} lacks the headline {name} of {place}; train again")


def as_entry(result: LayerResult | BaselineResult | TransferCell) -> dict[str, Any]:
    """A result as JSON has it, without the probe."""
    entry = {name: value for name, value in vars(result).items() if name != "probe"}
    entry["C"] = _json_C(entry["C"])
    if "tried" in entry:
        entry["tried"] = [(_json_C(C), value) for C, value in entry["tried"]]
    return entry


def _json_C(C: float | None) -> float | str | None:
    return INFINITE if C is not None and math.isinf(C) else C  # JSON has no infinity


def _from_json_C(value: Any) -> Any:
    """A C, or what was tried, with infinity in place of its name."""
    if isinstance(value, list):
        return [_from_json_C(each) for each in value]
    return math.inf if value == INFINITE else value


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


def _layer_of(entry: dict[str, Any], folder: Path) -> LayerResult:
    layer = dict(entry)
    saved = layer.pop("probe")
    path = folder / "probes" / _place_of(layer)
    probe = None if saved is None else load_probe(path)
    if saved is not None and probe_hash(path) != saved["sha256"]:
        raise DataError(f"the probe of {path.name!a} in {str(folder)!a} is not the one of these results; train again")
    return LayerResult(**with_tuples(layer), probe=probe)


def _place_of(entry: dict[str, Any]) -> str:
    point, layer = entry["point"], entry["layer"]
    parts = str(point).split(".")  # "encoder.resid_pre"
    if not all(part.isidentifier() for part in parts) or not isinstance(layer, int | None):  # it becomes a path
        raise DataError(f"no place is called {point!a}, {layer!a}")
    return point if layer is None else f"{point}.{layer}"


def with_tuples(entry: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where results have tuples."""
    fixed = {**entry, "intervals": {name: tuple(ends) for name, ends in entry["intervals"].items()}}
    if "tried" in entry:
        fixed["tried"] = [tuple(pair) for pair in entry["tried"]]
    if entry.get("band") is not None:
        fixed["band"] = tuple(entry["band"])
    return fixed
