"""A fitted probe in a folder of results, here or on the Hub, named by its place."""

import hashlib
import re
from pathlib import Path
from typing import Any

from probekit.errors import DataError, UsageError
from probekit.hub import Sought, fetch_folder, is_address, parse_address
from probekit.manifest import results_home
from probekit.options.check import check_any_path
from probekit.plain_files import MAX_RESULTS, parse_json, read_bytes
from probekit.remote.path import RemotePath, is_remote
from probekit.text import listed

RESULTS = Sought(("results.json", "curves.json"), "give a local folder of results")
_DOWNLOADED = re.compile(
    r"([^/]+/)?(results\.json|results\.csv|curves\.json|predictions\.parquet|training_activations\.safetensors|"
    r"probes/[^/]+)"
)


def results_folder(name: str | Path) -> Path:
    """The folder of results of this name; one on the Hub, hf://owner/name[@revision][/folder], is downloaded.

    Raises:
        UsageError: no such repository or revision; neither a path nor a place on the Hub.
        DataError: the repository holds no results; the Hub did not answer, and the cache has no copy.
        StorageError: the cache cannot be written.
    """
    if not is_address(name):
        path = check_any_path("folder", name)
        if isinstance(path, RemotePath):
            home = str(results_home(path))
            raise UsageError(f"results are files on this machine; those of the store {str(path)!a:.80} are in {home!a}")
        return path
    return fetch_folder(
        parse_address(str(name), "model"), "model", RESULTS, lambda file: bool(_DOWNLOADED.fullmatch(file))
    )


def split_place(name: str) -> tuple[str, str | None]:
    """FOLDER[:PLACE] or hf://owner/name[:PLACE] -> the folder and the place; a folder with a colon is taken whole."""
    start = name.index(":") + 1 if is_remote(name) else 0
    folder, _, place = name[start:].rpartition(":")
    if not folder or (not start and Path(name).is_dir()):
        return name, None
    return name[:start] + folder, place or None


def probe_in(folder: Path, place: str | None) -> Path:
    """Where the probe of a place is saved, as results.json names it; without a place, that of the best layer.

    Of several curves, the place is LABEL/POINT or LABEL/POINT.LAYER.

    Raises:
        UsageError: no such place, or none where one is needed.
        DataError: damaged results, or no saved probe of this place.
    """
    if (folder / "curves.json").is_file():
        folder, place = _curve(folder, place)
    body = _read(folder / "results.json")
    known = {_name(layer): layer.get("probe") for layer in body["layers"]}
    wanted = body.get("best") if place is None else place
    if wanted is None:
        raise UsageError(f"no layer was selected in {str(folder)!a}; name one: {listed(known, most=4)}")
    if wanted not in known:
        raise UsageError(f"the results have no place {wanted!a:.60}; known are {listed(known, most=4)}")
    saved = known[wanted]
    if saved is None:
        raise DataError(f"the results hold no fitted probe of {wanted!a}: one of another package is never saved")
    path = folder / "probes" / str(wanted)
    _check(path, saved)
    return path


def _curve(folder: Path, place: str | None) -> tuple[Path, str | None]:
    """The folder of the curve that LABEL/POINT[.LAYER] names, and the place in it."""
    entries = _read(folder / "curves.json")["curves"]
    for entry in entries:
        start = f"{entry['label']}/{entry['point']}"
        if place == start or (place or "").startswith(f"{start}."):
            own = Path(str(entry["folder"])).name  # never a folder elsewhere
            return folder / own, None if place == start else (place or "").removeprefix(f"{entry['label']}/")
    known = [f"{entry['label']}/{entry['point']}" for entry in entries]
    raise UsageError(
        f"these results hold several curves; name one and a layer, LABEL/POINT.LAYER: "
        f"{listed([ascii(name)[1:-1] for name in known], most=4)}"
    )


def _name(layer: dict[str, Any]) -> str:
    point, number = layer["point"], layer["layer"]
    if not all(part.isidentifier() for part in str(point).split(".")) or not isinstance(number, int | None):
        raise DataError(f"no place is called {point!a}, {number!a}")  # it becomes a path
    return point if number is None else f"{point}.{number}"


def _read(path: Path) -> dict[str, Any]:
    try:
        body = parse_json(read_bytes(path, MAX_RESULTS))
        if not str(body["format"]).startswith(("probekit.results/", "probekit.curves/")):
            raise ValueError(f"format {body['format']!a}")
        parts = body["layers"] if "layers" in body else body["curves"]
        if not all(isinstance(part, dict) and "point" in part for part in parts):
            raise ValueError("an entry without its point")
        return body
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{str(path)!a} is not a complete file of results: {ascii(str(error))[1:-1]}") from None


def _check(path: Path, saved: Any) -> None:
    """Raise a DataError unless the probe's .json, which holds the hash of the weights, is that of the results."""
    try:
        found = hashlib.sha256(read_bytes(f"{path}.json", MAX_RESULTS)).hexdigest()
    except OSError as error:
        raise DataError(f"the probe {str(path)!a} cannot be read: {error.strerror}") from None
    if not isinstance(saved, dict) or found != saved.get("sha256"):
        raise DataError(f"the probe {str(path)!a} is not the one of these results; train again")
