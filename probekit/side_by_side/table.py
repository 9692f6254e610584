"""A comparison as rows of the one table (`probekit.results.table`)."""

from typing import Any

from probekit.points import Place, depth_of
from probekit.results.table import TableRow, ends_of
from probekit.side_by_side.data import ComparedPlace, ComparedRun, ComparisonData

FACTS = ("model", "task", "label", "probe")


def comparison_rows(data: ComparisonData) -> list[TableRow]:
    """The places of every run ("probe"), its quoted score ("run"), and the differences, named by what is subtracted."""
    rows = []
    for number, run in enumerate(data.runs):
        about = _about(run)
        rows += [{**about, **row} for row in (*_places(run), *_quoted(run))]
        for each in (each for each in data.differences if each.run == number):
            ends = ends_of(each.interval) | {"p_value": each.p_value, "p_corrected": each.corrected}
            own = {"kind": "difference", "name": data.runs[each.minus].name, "n": each.n, "value": each.difference}
            rows.append({**about, **own, **ends, "note": f"{each.kind}{': ' if each.why else ''}{each.why}"})
    return rows


def _about(run: ComparedRun) -> dict[str, Any]:
    names = {name: run.facts.get(name) for name in FACTS}
    return {**names, "run": run.name, "name": names["probe"], "split": "test", "n": run.n_test, "metric": run.headline}


def _places(run: ComparedRun) -> list[dict[str, Any]]:
    return [
        {
            "kind": "probe",
            **_where(run, place),
            "value": place.value,
            "low": place.low,
            "high": place.high,
            "p_corrected": place.above_chance,
            **ends_of(place.band, "band_low", "band_high"),
            "selected": number == run.best,
            "C": place.C,
            "in_best_set": place.in_best_set,
            "at_edge": place.is_at_edge,
        }
        for number, place in enumerate(run.places)
    ]


def _where(run: ComparedRun, place: ComparedPlace) -> dict[str, Any]:
    depth = depth_of(Place(place.point, place.layer), run.n_layers)  # of places side by side there is none
    return {"point": place.point, "layer": place.layer, "depth": depth, "place": place.place}


def _quoted(run: ComparedRun) -> list[dict[str, Any]]:
    """The score to quote; with nested folds it is of no place."""
    if run.estimate is None:
        return []
    where = {} if run.quoted is None else {**_where(run, run.quoted), "selected": True}
    score = {"value": run.estimate, **ends_of(run.interval), "chance": run.chance, "converged": run.converged}
    return [{"kind": "run", **where, **score}]
