"""Curves of several points and label sets on disk: `probekit.curves/1`, a folder of results for each curve.

curves.json lists label, point, probe, folder and sha256 of results.json for each curve; results.csv is the table.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from probekit.errors import DataError
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.files import AGAIN, load_results, save_results
from probekit.evaluation.results.folders import clear_curves
from probekit.evaluation.results.frames import curves_frame
from probekit.evaluation.results.meta import SavedPart
from probekit.files.durable import write_as
from probekit.files.plain_files import MAX_RESULTS, read_bytes
from probekit.files.records import Must, describing, ensure, read_as, read_json_file

CURVES_FORMAT = "probekit.curves/1"
_LONGEST = 80  # characters of a folder's name
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class CurveEntry(SavedPart):
    """A curve, and its folder in that of all curves."""

    label: str
    point: str
    probe: str
    folder: Annotated[str, Must("the name of a folder inside", lambda name: _FOLDER.fullmatch(name) is not None)]


class CurvesFile(TypedDict):
    """What curves.json holds."""

    meta: dict[str, Any]
    curves: list[CurveEntry]


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
    body = read_json_file(path, CURVES_FORMAT, "curves", "train-probe", AGAIN)
    with describing(path, AGAIN):
        found = read_as(CurvesFile, body)
        entries = found["curves"]
        ensure(entries, "one curve or more", entries, "curves")
        names = [entry["folder"] for entry in entries]
        ensure(len(set(names)) == len(names), "each folder once", names, "curves")
    curves = [_load(folder, entry) for entry in entries]
    keys = curve_keys(curves)
    if len(set(keys)) < len(keys):
        raise DataError(f"{str(path)!a} has two curves of the same label set, point and probe; {AGAIN}")
    return curves, found["meta"]


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


def _load(folder: Path, entry: CurveEntry) -> ProbeData:
    own = folder / entry["folder"]
    curve = load_results(own)
    same = all(curve.meta[key] == entry[key] for key in ("label", "point", "probe"))
    if not same or _hash(own) != entry["sha256"]:
        raise DataError(f"the results in {str(own)!a} are not those of these curves; {AGAIN}")
    return curve


def _hash(folder: Path) -> str:
    # results.json holds the hashes of the probes, so its own hash covers them
    return hashlib.sha256(read_bytes(folder / "results.json", MAX_RESULTS)).hexdigest()
