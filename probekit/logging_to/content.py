"""What of results goes to a tracker: the curve step by step, single numbers, settings and the picture."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.evaluation.by_position.data import PositionData
from probekit.evaluation.results.data import ProbeData
from probekit.text import printable

LAYER = "layer"  # the axis of the curves
_EXTRAS = ("low", "high")
_KINDS = {"probe": "", "procedure": "procedure/", "lead": "lead over ", "lead over pooled": "lead over pooled "}


@dataclass(frozen=True)
class LoggedRun:
    """The content of one run.

    Attributes:
        name: of the run.
        settings: the record of the results, JSON-able.
        steps: for each place of the curve, its number and the values there, such as "test/accuracy".
        numbers: that belong to no place: baselines, the lead, the score to quote.
    """

    name: str
    settings: dict[str, Any]
    steps: list[tuple[int, dict[str, float]]]
    numbers: dict[str, float]


def logged_run(results: Any) -> LoggedRun:
    """The content of `ProbeResults`, `ProbeCurves` or `PositionResults`.

    The step of a place is its place in its curve, so that layer 0 is step 0 and the output follows the last layer.
    """
    steps: dict[int, dict[str, float]] = {}
    numbers: dict[str, float] = {}
    for row, prefix, step in _rows(results):
        into = numbers if step is None else steps.setdefault(step, {})
        into |= _values(row, prefix)
    is_one = isinstance(results, (ProbeData, PositionData))
    first = results if is_one else next(iter(results.values()))
    about = [printable(first.meta[key]) for key in ("model", "task", "label", "probe")]
    settings = first.meta if is_one else {"curves": [curve.meta for curve in dict(results).values()]}
    if isinstance(results, ProbeData) and (results.procedure is not None or results.selected is not None):
        numbers[f"estimate/{results.headline}"] = float(results.estimate[0])
    return LoggedRun(" ".join(about), json.loads(json.dumps(settings, default=str)), sorted(steps.items()), numbers)


def _rows(results: Any) -> list[tuple[dict[str, Any], str, int | None]]:
    """The rows of the tidy table with the prefix of their curve and their step."""
    curves: dict[str, Any] = {"": results} if isinstance(results, ProbeData | PositionData) else _named(results)
    found = []
    for prefix, curve in curves.items():
        rows = curve.to_frame().to_dict("records")
        places: dict[str, dict[Any, int]] = {}
        for row in rows:
            own = f"{prefix}position {printable(row['position'])}/" if "position" in row else prefix
            place, known = row["place"], places.setdefault(own, {})
            if isinstance(place, str) and row.get("kind") != "procedure":
                known.setdefault(place, len(known))
            found.append((row, own, known.get(place) if isinstance(place, str) else None))
    return found


def _named(curves: Any) -> dict[str, Any]:
    """The curves by the prefix of their values; a slash in a name would make a group of its own."""
    return {f"{'/'.join(printable(part).replace('/', '|') for part in key)}/": one for key, one in curves.items()}


def _values(row: dict[str, Any], prefix: str) -> dict[str, float]:
    kind, name = row.get("kind", "probe"), printable(row.get("name", ""))
    group = _KINDS.get(kind, f"{kind}/") + (f"{name}/" if kind in ("baseline", "lead", "lead over pooled") else "")
    key = f"{prefix}{group}{row['split']}/{row['metric']}"
    values = {key: row["value"], **{f"{key}_{end}": row.get(end, math.nan) for end in _EXTRAS}}
    return {name: float(value) for name, value in values.items() if value is not None and value == value}


def draw(results: Any, folder: Path) -> Path:
    """Write the picture of the results into the folder; returns the PNG's path."""
    from probekit.plots import save_curves_plot, save_plot, save_positions_plot

    if isinstance(results, ProbeData):
        return save_plot(results, folder)
    if isinstance(results, PositionData):
        return save_positions_plot(results, folder)
    return save_curves_plot(list(results.values()), folder)
