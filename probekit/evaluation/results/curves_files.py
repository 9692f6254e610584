"""Curves of several points and label sets on disk: `probekit.curves/1`, a folder of results for each curve.

curves.json lists label, point, probe, folder and sha256 of results.json for each curve; results.csv is the table.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probekit.durable import write_as
from probekit.errors import DataError
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.files import load_results, save_results
from probekit.evaluation.results.folders import clear_curves
from probekit.evaluation.results.frames import curves_frame
from probekit.plain_files import MAX_RESULTS, parse_json, read_bytes

CURVES_FORMAT = "probekit.curves/1"
_LONGEST = 80  # characters of a folder's name
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def save_curves(curves: Sequence[ProbeData], meta: Mapping[str, Any], folder: Path) -> None:
    """Write a folder of results for each curve, results.csv and, last, curves.json; earlier curves are deleted first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    names = curve_folders(curve_keys(curves))
    table = curves_frame(curves).to_csv(index=False, lineterminator="\n").encode()
    json.dumps(meta, allow_nan=False)  # fails before anything is deleted
    clear_curves(folder)
    for name, curve in zip(names, curves, strict=True):
        save_results(curve, folder / name)
    write_as(folder / "results.csv", table)
    entries = [
        {
            **{key: curve.meta[key] for key in ("label", "point", "probe")},
            "folder": name,
            "sha256": _hash(folder / name),
        }
        for name, curve in zip(names, curves, strict=True)
    ]
    body = {"format": CURVES_FORMAT, "meta": meta, "curves": entries}
    write_as(folder / "curves.json", json.dumps(body, indent=1, allow_nan=False).encode())


def load_curves(folder: Path) -> tuple[list[ProbeData], dict[str, Any]]:
    """The curves that `save_curves` wrote, and their `meta`.

    Raises:
        DataError: no curves there, damaged ones, or results that are not of these curves.
    """
    path = folder / "curves.json"
    try:
        body = parse_json(read_bytes(path, MAX_RESULTS))
        if body["format"] != CURVES_FORMAT:
            raise ValueError(f"format {body['format']!a}, expected {CURVES_FORMAT}")
        entries = [(str(entry["folder"]), str(entry["sha256"])) for entry in body["curves"]]
        meta = dict(body["meta"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"no complete curves at {str(path)!a} ({error}); train again") from None
    return [_load(folder, *entry) for entry in entries], meta


def curve_keys(curves: Sequence[ProbeData]) -> list[tuple[str, ...]]:
    """(label, point) of each curve; (label, point, probe) where several probes have the same label set and point."""
    pairs = [(curve.meta["label"], curve.meta["point"]) for curve in curves]
    if len(set(pairs)) == len(pairs):
        return list(pairs)
    return [(*pair, str(curve.meta["probe"])) for pair, curve in zip(pairs, curves, strict=True)]


def curve_folders(keys: Sequence[tuple[str, ...]]) -> list[str]:
    """A folder's name for each key; with a digest where the plain name is long, altered or taken.

    Names that differ in case alone count as one, as some file systems have it.
    """
    folders: list[str] = []
    for key in keys:
        whole = "-".join(key)
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", whole).lstrip(".-")[:_LONGEST]
        if plain != whole or plain.casefold() in {other.casefold() for other in folders}:
            digest = hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()[:8]
            plain = f"{plain}-{digest}".lstrip("-")
        folders.append(plain)
    return folders


def _load(folder: Path, name: str, sha256: str) -> ProbeData:
    if _FOLDER.fullmatch(name) is None:
        raise DataError(f"{str(folder / 'curves.json')!a} names the folder {name!a}, which is outside; train again")
    curve = load_results(folder / name)
    if _hash(folder / name) != sha256:
        raise DataError(f"the results in {str(folder / name)!a} are not those of these curves; train again")
    return curve


def _hash(folder: Path) -> str:
    # results.json holds the hashes of the probes, so its own hash covers them
    return hashlib.sha256(read_bytes(folder / "results.json", MAX_RESULTS)).hexdigest()
