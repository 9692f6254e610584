"""Find the runs that a comparison names: folders of results, stores, folders of either, and results in memory."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probekit.errors import DataError, UsageError, nearest
from probekit.evaluation.results.coordinates import curve_keys
from probekit.evaluation.results.curves import ProbeCurves
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.files import load_results
from probekit.evaluation.results.several import load_several
from probekit.files.hub import is_address
from probekit.files.plain_files import MAX_RESULTS, parse_json, read_bytes
from probekit.files.remote.path import local_path
from probekit.manifest import is_store, stores_in
from probekit.options.question import OF_BLACK_BOXES
from probekit.probes.in_results import results_folder, split_place
from probekit.results.kinds import KINDS, kind_in
from probekit.text import by_numbers, kind_of, listed

CURVE, CURVES = "results.json", "curves.json"
# of a question: what else was computed
EXTENT = ("quick", "controls", "codelength", "intervals", "random_init", "ensemble", *OF_BLACK_BOXES)


@dataclass(frozen=True, eq=False)
class NamedRun:
    """A curve, and where it comes from.

    Attributes:
        data: the curve.
        path: its folder; None where it was passed in Python.
        name: given for it; None for the facts in which it differs.
        place: named instead of the one that validation selects.
        address: on the Hub, where it was downloaded from there.
        note: which of several results of a store were taken; "" where there is no choice.
    """

    data: ProbeData
    path: Path | None = None
    name: str | None = None
    place: LayerResult | None = None
    address: str | None = None
    note: str = ""


def find_runs(runs: Any) -> list[NamedRun]:
    """The curves of every run, in the order given.

    Args:
        runs: folders ("runs/a", "runs/a:resid_pre.5", "hf://owner/name") and results in a list, or a dictionary of
            them by name.

    Raises:
        UsageError: nothing that can be compared; a place that a run does not have.
        DataError: no results there, damaged ones, or several where one is meant.
    """
    if isinstance(runs, str | os.PathLike | ProbeData | ProbeCurves):
        runs = [runs]
    if not isinstance(runs, Mapping | Sequence):
        raise UsageError(f"compare takes a list of folders or results, or a dictionary by name; got {kind_of(runs)}")
    named = runs.items() if isinstance(runs, Mapping) else ((None, run) for run in runs)
    return [found for name, run in named for found in _of_one(run, name)]


def _of_one(run: Any, name: Any) -> Iterable[NamedRun]:
    name = None if name is None else str(name)
    if isinstance(run, ProbeData):
        return [NamedRun(run, name=name)]
    if isinstance(run, ProbeCurves):
        return _together(list(run.values()), None, name)
    if not isinstance(run, str | os.PathLike) or isinstance(os.fspath(run), bytes):
        raise UsageError(
            f"compare takes folders of results, ProbeResults and ProbeCurves; got {kind_of(run)}, leave it out"
        )
    named, place = split_place(os.fspath(run))
    path = results_folder(named)
    address = named if is_address(named) else None
    found = [
        replace(each, address=address, note=note) for folder, note in _folders(path) for each in _loaded(folder, name)
    ]
    if place is None:
        return found
    if len(found) > 1:
        raise UsageError(
            f"{str(path)!a} holds {len(found)} curves, and {place!a} names a place of one; name its folder"
        )
    return [replace(found[0], place=_place_of(found[0].data, place, path))]


def _place_of(data: ProbeData, name: str, path: Path) -> LayerResult:
    known = {layer.place: layer for layer in data.layers}
    if name not in known:
        raise UsageError(f"{str(path)!a} has no place {name!a}; {nearest(name, known)}")
    return known[name]


def _folders(path: Path) -> list[tuple[Path, str]]:
    """The folders of results at `path`, and notes: itself, those of a store, or those of stores or results in it."""
    if not path.is_dir():
        raise DataError(f"no folder {str(path)!a}; name a folder of results, or a store that has some")
    if (path / CURVE).is_file() or (path / CURVES).is_file():
        return [(path, "")]
    if (kind := kind_in(path)) is not None:
        what = KINDS[kind].what
        raise UsageError(
            f"expected curves to compare; {str(path)!a} holds {what}; name results that train-probe made without --by "
            "and --shift-column"
        )
    if is_store(path):
        return [_fullest_results(path)]
    if inside := stores_in(path):
        return [_fullest_results(each) for each in map(local_path, inside) if each is not None]
    if own := _results_in(path):
        return [(each, "") for each in own]
    raise DataError(f"no results in {str(path)!a}; name a folder that train-probe wrote, or a store with results")


def _results_in(path: Path) -> list[Path]:
    names = (CURVE, CURVES)
    inside = [each for each in path.iterdir() if each.is_dir() and any((each / name).is_file() for name in names)]
    return sorted(inside, key=lambda each: by_numbers(each.name))  # step2 before step10


def _fullest_results(store: Path) -> tuple[Path, str]:
    """The folder of the results in a store, and a note where some ask the same and compute less, as --quick does."""
    there = _results_in(store / "results") if (store / "results").is_dir() else []
    if not there:
        raise DataError(f"the store {str(store)!a} has no results; run probekit train-probe {str(store)!a} first")
    asked = [_asked(each) for each in there]
    by_extent = sorted(zip(asked, there, strict=True), key=lambda pair: _extent(pair[0]), reverse=True)
    (first, taken), *others = by_extent
    questions = [{key: value for key, value in each.items() if key not in EXTENT} for each in asked]
    if others and (any(each != questions[0] for each in questions) or _extent(others[0][0]) == _extent(first)):
        names = listed([ascii(each.name) for each in there], most=4)
        raise UsageError(
            f"{str(store)!a} has results of several questions, {names}; name one of these folders in its results/"
        )
    less = listed([ascii(each.name) for _, each in others], most=4)
    return taken, f"Of the store {str(store)!a}: the fullest results, {taken.name!a}, not {less}." if others else ""


def _asked(folder: Path) -> dict[str, Any]:
    """The question that results answer, as train-probe saved it; its folder's name where none was saved."""
    file = folder / CURVE if (folder / CURVE).is_file() else folder / CURVES
    try:
        asked = parse_json(read_bytes(file, MAX_RESULTS))["meta"]["asked"]
    except (OSError, ValueError, KeyError, TypeError):
        asked = None  # what is wrong with it is said when it is loaded
    return asked if isinstance(asked, dict) else {"folder": folder.name}


def _extent(asked: Mapping[str, Any]) -> tuple[int, ...]:
    """How much was computed for a question; larger is fuller."""
    found = (asked.get(key) for key in EXTENT)
    quick, *others = (int(value) if isinstance(value, int) else int(bool(value)) for value in found)
    return (1 - quick, *others)


def _loaded(folder: Path, name: str | None) -> list[NamedRun]:
    if (folder / CURVES).is_file() and not (folder / CURVE).is_file():
        return _together(load_several("curves", folder, load_results)[0], folder, name)
    return [NamedRun(load_results(folder), folder, name)]


def _together(curves: Sequence[ProbeData], folder: Path | None, name: str | None) -> list[NamedRun]:
    """The curves of one call; a name that was given for all of them gets what each one is of."""
    keys = curve_keys(list(curves))
    return [
        NamedRun(each, folder, None if name is None else ", ".join([name, *key]))
        for each, key in zip(curves, keys, strict=True)
    ]
