"""A comparison on disk: `probekit.comparison/1` (comparison.json and three tables)."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.durable import write_as
from probekit.errors import DataError
from probekit.evaluation.results.folders import check_folder, clear_folder
from probekit.plain_files import MAX_RESULTS, parse_json, read_bytes
from probekit.side_by_side.data import ComparedPlace, ComparedRun, ComparisonData, RunDifference, SeedGroup
from probekit.side_by_side.frames import difference_frame, place_frame, run_frame
from probekit.text import spreadsheet_cell

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "probekit.comparison/1"
FILE = "comparison.json"
COMPARISON_FILES = re.compile(r"comparison\.(json|csv|png|svg|pdf)|(differences|places)\.csv")


def check_comparison_folder(folder: str | Path) -> None:
    """Check that a comparison may be written to `folder`: it does not exist, is empty or holds only a comparison.

    Raises:
        StorageError: it is a file, or holds a file that is not of a comparison.
    """
    check_folder(folder, COMPARISON_FILES)


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
    clear_folder(folder, COMPARISON_FILES)
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
    try:
        body = parse_json(read_bytes(path, MAX_RESULTS))
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!a}, expected {FORMAT}")
        return ComparisonData(
            [_run_of(run) for run in body["runs"]],
            [RunDifference(**_with_ends(each, "interval")) for each in body["differences"]],
            [SeedGroup(**_with_ends(each, "interval")) for each in body["groups"]],
            dict(body["meta"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"no complete comparison at {str(path)!a} ({error!a:.200}); compare again") from None


def _run_of(entry: Mapping[str, Any]) -> ComparedRun:
    places = [ComparedPlace(**_with_ends(place, "band")) for place in entry["places"]]
    return ComparedRun(**{**_with_ends(entry, "interval"), "places": places})


def _with_ends(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    """JSON has a list where an interval is a tuple."""
    return {**entry, name: None if entry[name] is None else (float(entry[name][0]), float(entry[name][1]))}
