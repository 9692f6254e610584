"""How often the claims of results hold, over simulated worlds whose truth is known.

    python benchmarks/claims.py [--worlds 300] [--only WORD]     measures what benchmarks/claims.json lacks
    python benchmarks/claims.py --page > docs/what-each-number-is-worth.md

Each cell is written as soon as it is measured, so that a run that was stopped goes on. A cell that is there for another
number of worlds is measured again; `--only` takes the cells whose name contains a word, `--again` also those that are
there. One core takes half an hour.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy

import numpy as np
from claims_cells import (
    Directions,
    Measured,
    above_one_placebo,
    of_any_size,
    of_chance,
    of_conversations,
    of_curve,
    of_directions,
    of_effect,
    of_equals,
    of_grid,
    of_label_sets,
)
from claims_worlds import World

RECORDS = Path(__file__).with_name("claims.json")
CHEAP = 4  # times as many worlds where one takes a few milliseconds


@dataclass(frozen=True)
class Cell:
    """One setting: what a world of it measures, and how many times the usual number of worlds it takes."""

    name: str
    measure: Callable[[int], Measured]
    times: float = 1


@dataclass(frozen=True)
class Kind:
    """How a measure is summarised, and what it should be.

    Attributes:
        nominal: what it should be; None where nothing is promised.
        unsafe: -1 if less is unsafe, 1 if more is, 0 if both are.
        tolerance: how far a value on the unsafe side may be off and still be called approximate.
        of: "share", "mean", "median", "p" (three measures: shares up to 5% and 1%, and the largest excess of the
            distribution over the uniform one), or "procedure" (the share of intervals that hold the mean).
    """

    nominal: float | None = None
    unsafe: int = 0
    tolerance: float = 0.0
    of: str = "mean"


COVERAGE = Kind(0.95, -1, 0.05, "share")
P = Kind(of="p")
KINDS = {  # by the beginning of the name of a measure; the first that fits
    "optimism": Kind(0.0, 1, 0.005),
    "calibration slope": Kind(1.0, 0, 0.1, "median"),
    "own slope": Kind(of="median"),
    "calibration error": Kind(),
    "own calibration error": Kind(),
    "tied layers": Kind(),
    "found used": Kind(of="share"),
    "used": Kind(0.05, 1, 0.025, "share"),
    **{f"realised FPR of {rate:g}": Kind(rate, 1, rate / 2) for rate in (0.01, 0.05)},
    "procedure": Kind(0.95, -1, 0.05, "procedure"),
    "smallest p": P,
    "p of": P,
}
OF_P = {"<= 0.05": Kind(0.05, 1, 0.025, "share"), "<= 0.01": Kind(0.01, 1, 0.01, "share"), "excess": Kind(0.0, 1, 0.05)}
CERTAIN = 3.0  # Monte Carlo errors: of some 300 values on the page, less than one is further from what it should be


def kind_of(measure: str) -> Kind:
    name, _, of_p = measure.partition(" | ")
    if of_p:
        return OF_P[of_p]
    return next((kind for start, kind in KINDS.items() if name.startswith(start)), COVERAGE)


def verdict(measured: float, nominal: float, error: float, unsafe: int, tolerance: float) -> str:
    """What a measured rate says of a nominal one: "holds", "cautious" on the safe side, "approximate" or "off".

    Args:
        measured: over the worlds.
        nominal: what is promised.
        error: Monte Carlo standard error.
        unsafe: -1 if less than promised is unsafe, 1 if more is, 0 if both are.
        tolerance: how far off "approximate" may be.
    """
    away = measured - nominal
    if abs(away) <= CERTAIN * error:
        return "holds"
    if away * unsafe < 0:
        return "cautious"
    return "approximate" if abs(away) <= tolerance + 1e-12 else "off"


def summarised(name: str, values: np.ndarray, others: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """The measures of a cell that the values [worlds] of one give: name -> n, value, error."""
    kind, known = kind_of(name), values[np.isfinite(values)]
    n = len(known)
    if not n:
        return {name: {"n": 0}}
    if kind.of == "p":
        rates = {f"{name} | <= {p}": _entry(known <= p, OF_P[f"<= {p}"]) for p in (0.05, 0.01)}
        above = (np.arange(1, n + 1) / n - np.sort(known)).max()
        # the excess D of n uniform values has P(D > d) = exp(-2 n d^2); three of these errors are as rare as of others
        return rates | {f"{name} | excess": {"n": n, "value": float(above), "error": 0.607 / np.sqrt(n)}}
    if kind.of == "procedure":
        inside = (others["low"] <= known.mean()) & (known.mean() <= others["high"])
        return {"procedure interval": _entry(inside[np.isfinite(others["low"])], COVERAGE)}
    return {name: _entry(known, kind)}


def _entry(values: np.ndarray, kind: Kind) -> dict[str, float]:
    n = len(values)
    if kind.of == "median":
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
        return {"n": n, "value": float(middle), "error": float(1.2533 * (high - low) / 1.349 / np.sqrt(n))}
    # of a share, the error that it has if the nominal one is true: a share of 0 or 1 has one, too
    spread = float(np.std(values))
    if kind.of in ("share", "procedure") and kind.nominal is not None:
        spread = np.sqrt(kind.nominal * (1 - kind.nominal))
    return {"n": n, "value": float(np.mean(values)), "error": float(spread / np.sqrt(n))}


def measured(cell: Cell, worlds: int) -> dict[str, dict[str, float]]:
    """Measure -> the number of worlds that have it, its value, its Monte Carlo error."""
    found = [cell.measure(seed) for seed in range(worlds)]
    names = list(dict.fromkeys(name for each in found for name in each))
    columns = {name: np.array([each.get(name, np.nan) for each in found], dtype=float) for name in names}
    shown = [name for name in names if name not in ("low", "high")]
    return {key: entry for name in shown for key, entry in summarised(name, columns[name], columns).items()}


SIGNAL = [
    World(),
    World(n=50),
    World(n=1000),
    World(n=50, share=0.05),
    World(share=0.05),
    World(n=1000, share=0.05),
    World(n=50, classes=5),
    World(classes=5),
    World(n=1000, classes=5),
    World(n=50, classes=0),
    World(classes=0),
    World(n=1000, classes=0),
    World(groups=5),
    World(groups=10),
    World(groups=20),
    World(groups=100),
    World(groups=20, uneven=True),
    World(groups=20, mixed=True),
    World(classes=0, groups=20),
    World(groups=20, named=False),
    World(strengths="easy"),
]
FOLDS = [World(n=50, folds=5), World(folds=5), World(n=1000, folds=5), World(classes=0, folds=5)]
VARIED: tuple[dict[str, Any], ...] = (
    {}, {"n": 50}, {"n": 1000}, {"n": 50, "share": 0.05}, {"share": 0.05}, {"classes": 5}, {"n": 50, "classes": 0},
    {"classes": 0}, {"groups": 5}, {"groups": 20}, {"groups": 100}, {"groups": 20, "mixed": True},
    {"classes": 0, "groups": 20}, {"groups": 20, "named": False},
)  # fmt: skip
CHANCE = [World(strengths="none", **about) for about in VARIED]
ROWS = ((50, None), (200, None), (200, 5), (200, 10), (200, 20), (200, 100))


def cells() -> list[Cell]:
    """Every setting, in the order of the page."""
    found = [Cell(f"curve: {world}", partial(of_curve, world)) for world in SIGNAL]
    found += [
        Cell(f"curve: {world}", partial(of_curve, world), 0.5) for world in FOLDS
    ]  # which take five times as long
    for n, groups in ROWS:
        what = f"n = {n}" if groups is None else f"n = {n}, {groups} groups"
        for metric in ("accuracy", "auroc"):
            found.append(Cell(f"equals: {metric}, {what}", partial(of_equals, n, groups, metric), CHEAP))
        found.append(Cell(f"effect: {what}", partial(of_effect, n, groups), CHEAP))
    found += [Cell(f"chance: {world}", partial(of_chance, world)) for world in CHANCE]
    for n, metric in ((50, "accuracy"), (200, "accuracy"), (50, "auroc"), (200, "auroc")):
        found.append(Cell(f"grid: {metric}, n = {n}", partial(of_grid, n, metric), CHEAP))
    found.append(Cell("label sets: n = 200", partial(of_label_sets, 200), CHEAP))
    cases = {f"placebos spread by {spread:g}": Directions(spread) for spread in (0.02, 0.1, 0.3)}
    cases["placebos spread by 0.1, heavy tails"] = Directions(0.1, heavy=True)
    cases["placebos spread by 0.1, n = 50"] = Directions(0.1, n=50)
    for effect in (0.05, 0.1, 0.15, 0.3):
        cases[f"an effect of {effect:g}, placebos spread by 0.02"] = Directions(0.02, effect)
    cases["placebos spread by 0.02, no least size"] = Directions(0.02, rule=of_any_size)
    cases["an effect of 0.05, placebos spread by 0.02, no least size"] = Directions(0.02, 0.05, rule=of_any_size)
    cases["placebos spread by 0.1, a band of one placebo"] = Directions(0.1, rule=above_one_placebo)
    found += [Cell(f"used: {name}", partial(of_directions, case), CHEAP) for name, case in cases.items()]
    return found + [Cell(f"conversations: n = {n}", partial(of_conversations, n), CHEAP) for n in (50, 200, 1000)]


def read_records(path: Path = RECORDS) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=300)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--again", action="store_true", help="also those that are there")
    parser.add_argument("--page", action="store_true", help="print the page of the records")
    parser.add_argument("--records", type=Path, default=RECORDS)
    asked = parser.parse_args()
    if asked.page:
        from claims_page import page

        print(page(read_records(asked.records)), end="")
        return
    every = cells()
    for cell in every:
        records = read_records(asked.records)
        worlds = round(asked.worlds * cell.times)
        there = records.get(cell.name, {}).get("worlds") == worlds
        if asked.only not in cell.name or (there and not asked.again):
            continue
        records[cell.name] = {"worlds": worlds, "measures": measured(cell, worlds)}
        ordered = {each.name: records[each.name] for each in every if each.name in records}
        asked.records.write_text(json.dumps(_rounded(ordered), indent=1) + "\n", encoding="utf-8")
        print(cell.name, flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 5) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
