"""A comparison on disk: `probekit.comparison/1` (comparison.json and three tables)."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from probekit.files.durable import write_as
from probekit.files.records import describing, ensure, inside, read_as, read_json_file
from probekit.results_folders import clear_folder
from probekit.side_by_side.data import ComparisonData
from probekit.side_by_side.frames import difference_frame, place_frame, run_frame
from probekit.text import spreadsheet_cell

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "probekit.comparison/1"
FILE = "comparison.json"
AGAIN = "compare again"


def save_comparison(data: ComparisonData, folder: Path) -> None:
    """Write the tables and, last, comparison.json into `folder`; an earlier comparison there is deleted first.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    body = {
        "format": FORMAT,
        "meta": data.meta,
        "runs": [asdict(run) for run in data.runs],
        "differences": [asdict(each) for each in data.differences],
        "groups": [asdict(group) for group in data.groups],
    }
    text = json.dumps(body, indent=1, allow_nan=False).encode()
    tables = {"comparison": run_frame(data), "differences": difference_frame(data), "places": place_frame(data)}
    written = {name: _csv(frame) for name, frame in tables.items()}
    clear_folder(folder, "comparison")
    for name, content in written.items():
        write_as(folder / f"{name}.csv", content)
    write_as(folder / FILE, text)


def _csv(frame: "pd.DataFrame") -> bytes:
    """A table whose texts, which may come from data, are no formulas for a spreadsheet."""
    safe = frame.map(lambda cell: spreadsheet_cell(cell) if isinstance(cell, str) else cell)
    return safe.to_csv(index=False, lineterminator="\n").encode()


def load_comparison(folder: Path) -> ComparisonData:
    """Read what `save_comparison` wrote.

    Raises:
        DataError: no comparison there, or an incomplete one.
    """
    path = folder / FILE
    body = read_json_file(path, FORMAT, "comparison", "compare", AGAIN)
    with describing(path, AGAIN):
        data = read_as(ComparisonData, {name: value for name, value in body.items() if name != "format"})
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
