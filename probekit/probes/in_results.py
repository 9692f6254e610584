"""A fitted probe in a folder of results, here or on the Hub, named by its place."""

import re
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from probekit.errors import DataError, UsageError
from probekit.files.hub import Sought, fetch_folder, is_address, parse_address
from probekit.files.records import Must
from probekit.files.remote.path import as_path, local_path
from probekit.manifest import results_home
from probekit.options.check import check_any_path
from probekit.points import Place, is_point_name
from probekit.probes.files import write_probe
from probekit.results.files import check_probe_hash, probe_hash, reading
from probekit.results.names import curve_of_name
from probekit.text import listed

RESULTS = Sought(("results.json", "curves.json"), "give a local folder of results")


class _Saved(TypedDict):
    sha256: str


class _Layer(TypedDict):
    point: Annotated[str, Must("the name of a point", is_point_name)]
    layer: int | None
    probe: _Saved | None


class _Results(TypedDict):
    best: NotRequired[str | None]
    layers: list[_Layer]


class _Curve(TypedDict):
    label: str
    point: str
    within: NotRequired[str]
    probe: NotRequired[str]
    folder: str


class _Curves(TypedDict):
    curves: list[_Curve]


_DOWNLOADED = re.compile(
    r"([^/]+/)?(results\.json|results\.csv|curves\.json|predictions\.parquet|training_activations\.safetensors|"
    r"probes/[^/]+)"
)


def save_probe(probe: Any, path: Path) -> str:
    """Save a fitted probe; the hash that results hold of it, which is that of what was written.

    The file is not read again: another worker that writes the same results may have just deleted it.

    Raises:
        StorageError: the disk refused.
    """
    return probe_hash(write_probe(probe, path)[1])


def results_folder(name: str | Path) -> Path:
    """The folder of results of this name; one on the Hub, hf://owner/name[@revision][/folder], is downloaded.

    Raises:
        UsageError: no such repository or revision; neither a path nor a place on the Hub.
        DataError: the repository holds no results; the Hub did not answer, and the cache has no copy.
        StorageError: the cache cannot be written.
    """
    if not is_address(name):
        path = check_any_path("folder", name)
        if (here := local_path(path)) is None:
            home = str(results_home(path))
            raise UsageError(f"results are files on this machine; those of the store {str(path)!a:.80} are in {home!a}")
        return here
    return fetch_folder(
        parse_address(str(name), "model"), "model", RESULTS, lambda file: bool(_DOWNLOADED.fullmatch(file))
    )


def split_place(name: str) -> tuple[str, str | None]:
    """FOLDER[:PLACE] or hf://owner/name[:PLACE] -> the folder and the place; a folder with a colon is taken whole."""
    start = name.index(":") + 1 if local_path(as_path(name)) is None else 0
    folder, _, place = name[start:].rpartition(":")
    if not folder or (not start and Path(name).is_dir()):
        return name, None
    return name[:start] + folder, place or None


def probe_in(folder: Path, place: str | None) -> Path:
    """Where the probe of a place is saved, as results.json names it; without a place, that of the best layer.

    Of several curves, the place is as in `curve_of_name`.

    Raises:
        UsageError: no such place, or none where one is needed.
        DataError: damaged results, or no saved probe of this place.
    """
    if (folder / "curves.json").is_file():
        folder, place = _curve(folder, place)
    with reading("curve", folder, _Results) as body:  # `load_results` checks everything else
        known = {str(Place(layer["point"], layer["layer"])): layer["probe"] for layer in body["layers"]}
    wanted = body.get("best") if place is None else place
    if wanted is None:
        raise UsageError(f"no layer was selected in {str(folder)!a}; name one: {listed(known, most=4)}")
    if wanted not in known:
        raise UsageError(f"the results have no place {wanted!a:.60}; known are {listed(known, most=4)}")
    saved = known[wanted]
    if saved is None:
        raise DataError(f"the results hold no fitted probe of {wanted!a}: one of another package is never saved")
    path = folder / "probes" / wanted
    check_probe_hash(path, saved["sha256"])
    return path


def _curve(folder: Path, place: str | None) -> tuple[Path, str | None]:
    """The folder of the curve that a name of one of several curves means, and the place in it."""
    with reading("curves", folder, _Curves) as found:
        entries = found["curves"]
    number, own = curve_of_name(entries, place)
    return folder / Path(entries[number]["folder"]).name, own  # never a folder elsewhere
