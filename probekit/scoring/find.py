"""Find the results, and the place in them, that `RESULTS[:PLACE]` names."""

from pathlib import Path

from probekit.errors import DataError
from probekit.evaluation.results.coordinates import coordinates
from probekit.evaluation.results.curves import ProbeCurves
from probekit.evaluation.results.results import ProbeResults
from probekit.probes.in_results import results_folder, split_place
from probekit.results.kinds import refuse_other_kind
from probekit.results.names import curve_of_name
from probekit.text import listed


def split_name(name: str) -> tuple[Path, str | None]:
    """The folder and the place of `RESULTS[:PLACE]`; a folder whose own name holds a colon is taken whole.

    Results on the Hub, hf://owner/name, are downloaded.

    Raises:
        DataError: no such folder; or as from `results_folder`.
    """
    folder, place = split_place(name)
    path = results_folder(folder)
    if not path.is_dir():
        raise DataError(f"no folder of results {folder!a}; give one that train-probe wrote, or FOLDER:PLACE")
    return path, place


def find_results(folder: Path, place: str | None) -> tuple[ProbeResults, str | None]:
    """The results in a folder, and their place; of several curves, `place` is as in `curve_of_name`.

    Raises:
        UsageError: a place that does not say which curve is meant.
        DataError: no results, or those of another kind.
    """
    if (folder / "curves.json").is_file():
        return _of_curves(ProbeCurves.load(folder), place)
    refuse_other_kind(folder)
    if (folder / "manifest.json").is_file():
        own = sorted(path.parent.name for path in folder.glob("results/*/*.json") if path.stem in ("results", "curves"))
        hint = f"one of its folders of results: {listed(own, most=4)}" if own else "train a probe on it first"
        raise DataError(f"{str(folder)!a} is a store; {hint}")
    return ProbeResults.load(folder), place


def _of_curves(curves: ProbeCurves, place: str | None) -> tuple[ProbeResults, str | None]:
    several = list(curves.values())
    named = [{**coordinates(one.meta), "places": [layer.place for layer in one.layers]} for one in several]
    number, own = curve_of_name(named, place)
    return several[number], own
