"""A comparison as tidy pandas tables."""

from typing import TYPE_CHECKING, Any

from probekit.side_by_side.data import ComparisonData, RunDifference

if TYPE_CHECKING:
    import pandas as pd

FACTS = ("model", "revision", "task", "label", "point", "position", "probe", "seed")


def run_frame(data: ComparisonData) -> "pd.DataFrame":
    """One row per run, with the difference to the run that it is compared with."""
    rows = []
    for number, run in enumerate(data.runs):
        found, place = difference_of(data, number), run.quoted
        low, high = run.interval or (None, None)
        rows.append(
            {
                "run": run.name,
                **{key: run.facts.get(key) for key in FACTS},
                "step": run.step,
                "n_layers": run.n_layers,
                "n_test": run.n_test,
                "best": None if place is None else place.place,
                "layer": None if place is None else place.layer,
                "depth": None if place is None else place.depth,
                "metric": run.headline,
                "estimate": run.estimate,
                "low": low,
                "high": high,
                "chance": run.chance,
                "converged": run.converged,
                **_difference_cells(data, found),
                "path": run.path,
            }
        )
    return _typed(rows)


def difference_of(data: ComparisonData, run: int) -> RunDifference | None:
    """The difference of one run that the table shows: to the previous run, or to the first."""
    shown = [each for each in data.differences if each.run == run]
    if data.meta["pairs"] != "previous":
        shown = [each for each in shown if each.minus == 0]
    return shown[0] if shown else None


def difference_frame(data: ComparisonData) -> "pd.DataFrame":
    """One row per difference."""
    rows = [{"run": data.runs[each.run].name, **_difference_cells(data, each)} for each in data.differences]
    return _typed(rows or [{"run": None, **_difference_cells(data, None)}]).iloc[: len(rows)]


def _difference_cells(data: ComparisonData, found: RunDifference | None) -> dict[str, Any]:
    ends = (None, None) if found is None or found.interval is None else found.interval
    return {
        "minus": None if found is None else data.runs[found.minus].name,
        "difference": None if found is None else found.difference,
        "difference_low": ends[0],
        "difference_high": ends[1],
        "p_value": None if found is None else found.p_value,
        "p_corrected": None if found is None else found.corrected,
        "kind": None if found is None else found.kind,
        "rows_in_common": None if found is None else found.n,
        "why": None if found is None else found.why,
    }


def place_frame(data: ComparisonData) -> "pd.DataFrame":
    """One row per run and place."""
    rows = [
        {
            "run": run.name,
            "step": run.step,
            "place": place.place,
            "point": place.point,
            "layer": place.layer,
            "x": place.x,
            "depth": place.depth,
            "metric": run.headline,
            "value": place.value,
            "low": place.low,
            "high": place.high,
            "band_low": None if place.band is None else place.band[0],
            "band_high": None if place.band is None else place.band[1],
            "p_above_chance": place.above_chance,
            "is_quoted": number == run.best,
        }
        for run in data.runs
        for number, place in enumerate(run.places)
    ]
    return _typed(rows)


_WHOLE = ("step", "n_layers", "n_test", "layer", "x", "rows_in_common")
_REAL = ("depth", "estimate", "low", "high", "chance", "value", "band_low", "band_high", "p_above_chance")
_REAL += ("difference", "difference_low", "difference_high", "p_value", "p_corrected")
_FLAGS = ("converged", "is_quoted")


def _typed(rows: list[dict[str, Any]]) -> "pd.DataFrame":
    import pandas as pd

    kinds = dict.fromkeys(_WHOLE, "Int64") | dict.fromkeys(_REAL, "float64") | dict.fromkeys(_FLAGS, "boolean")
    frame = pd.DataFrame(rows)
    return frame.astype({name: kind for name, kind in kinds.items() if name in frame})
