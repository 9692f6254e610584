"""A comparison on disk: comparison.json and results.csv."""

from dataclasses import asdict
from pathlib import Path

from probekit.evaluation.results.files import json_C
from probekit.files.records import ensure, inside
from probekit.results.files import reading, write_results
from probekit.side_by_side.data import ComparisonData
from probekit.side_by_side.table import comparison_rows


def save_comparison(data: ComparisonData, folder: Path) -> None:
    """Write results.csv and, last, comparison.json into `folder`; an earlier comparison there is deleted first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    lists = {name: [asdict(each) for each in getattr(data, name)] for name in ("runs", "differences", "groups")}
    for place in (place for run in lists["runs"] for place in run["places"]):
        place["C"] = json_C(place["C"])
    write_results("comparison", folder, {"meta": data.meta, **lists}, comparison_rows(data))


def load_comparison(folder: Path) -> ComparisonData:
    """Read what `save_comparison` wrote.

    Raises:
        DataError: no comparison there, or an incomplete one.
    """
    with reading("comparison", folder, ComparisonData) as data:
        _check(data)
    return data


def _check(data: ComparisonData) -> None:
    """Check that runs that are named are there, and what the picture needs of each."""
    numbers = range(len(data.runs))
    for i, run in enumerate(data.runs):
        with inside("runs", i):
            names = [place.place for place in run.places]
            ensure(names and len(set(names)) == len(names), "one place or more, each once", names, "places")
            ensure(run.best is None or run.best < len(names), f"one of {len(names)} places", run.best, "best")
            ensure(run.headline == data.headline, data.headline, run.headline, "headline")
            ensure(data.meta["by"] == "run" or run.step is not None, "the step of a checkpoint", run.step, "step")
    for i, each in enumerate(data.differences):
        own = each.run in numbers and each.minus in numbers and each.run != each.minus
        ensure(own, f"two of the {len(numbers)} runs", [each.run, each.minus], "differences", i)
    for i, group in enumerate(data.groups):
        own = bool(group.runs) and all(run in numbers for run in group.runs)
        ensure(own, f"some of the {len(numbers)} runs", group.runs, "groups", i, "runs")
