"""How often the claims of results hold, over simulated worlds whose truth is known.

    python benchmarks/claims.py [--worlds 200] [--only WORD]     measures what benchmarks/claims.json lacks
    python benchmarks/claims.py --page > docs/what-each-number-is-worth.md

A cell has its own multiple of `--worlds`. Each is written as soon as it is measured, so that a run that was stopped
goes on. Where a record has fewer worlds than are asked for, only the others are measured and the two are put together;
`--again` measures all of them, which a change of the code of a cell needs. `--only` takes the cells whose name contains
a word. A record of more worlds than are asked for is kept. All cells take two hours of one core.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy

import numpy as np
from claims_cells import (
    METRICS,
    OFFSET,
    PAIRS,
    Directions,
    Measured,
    above_one_placebo,
    of_any_size,
    of_chance,
    of_conversations,
    of_curve,
    of_difference,
    of_directions,
    of_effect,
    of_grid,
    of_label_sets,
    of_lead,
    of_runs,
    of_score,
)
from claims_worlds import World
from scipy.special import ndtr

RECORDS = Path(__file__).with_name("claims.json")
CHEAP = 10  # times as many worlds where one takes a few milliseconds


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
        tolerance: how far it may be off and still hold.
        of: "share", "mean", "median", "p" (two measures: the shares up to 5% and to 1%), or "procedure" (the share of
            intervals that hold the mean of all worlds).
    """

    nominal: float | None = None
    unsafe: int = 0
    tolerance: float = 0.0
    of: str = "mean"


COVERAGE = Kind(0.95, -1, 0.025, "share")
P = Kind(of="p")
KINDS = {  # by the beginning of the name of a measure; the first that fits
    "optimism": Kind(0.0, 1, 0.005),
    "calibration slope": Kind(1.0, 0, 0.1, "median"),
    "own slope": Kind(of="median"),
    "width of": Kind(of="median"),
    "calibration error": Kind(),
    "own calibration error": Kind(),
    "tied layers": Kind(),
    "found used": Kind(of="share"),
    "used": Kind(0.05, 1, 0.025, "share"),
    **{f"realised FPR of {rate:g}": Kind(rate, 1, rate / 2) for rate in (0.01, 0.05)},
    "procedure": Kind(0.95, -1, 0.025, "procedure"),
    "smallest p": P,
    "p of": P,
}
OF_P = {"<= 0.05": Kind(0.05, 1, 0.025, "share"), "<= 0.01": Kind(0.01, 1, 0.01, "share")}
QUANTILE = 1.96  # the simulation's own error is shown, and weighed, as a 95% interval
Entry = dict[str, float]


def kind_of(measure: str) -> Kind:
    name, _, of_p = measure.partition(" | ")
    if of_p:
        return OF_P[of_p]
    return next((kind for start, kind in KINDS.items() if name.startswith(start)), COVERAGE)


def ends_of(kind: Kind, entry: Entry) -> tuple[float, float]:
    """The 95% interval of a measured value: Wilson's for a share, 1.96 standard errors for the others."""
    n, value = entry["n"], entry["value"]
    if kind.of not in ("share", "procedure"):
        return value - QUANTILE * entry["error"], value + QUANTILE * entry["error"]
    # a mean of shares, such as over the bins of a world, varies less than one share would: it is wide enough for those
    k = QUANTILE**2 / n
    middle, half = (value + k / 2) / (1 + k), np.sqrt(k * (value * (1 - value) + k / 4)) / (1 + k)
    return float(middle - half), float(middle + half)


def verdict(kind: Kind, entry: Entry) -> str:
    """What a measured value says of a promised one.

    "holds" only where all of the simulation's interval is within the tolerance, "off" where none of it is, and "not
    shown" in between. "cautious" is further than the tolerance on the safe side.
    """
    assert kind.nominal is not None
    low, high = (end - kind.nominal for end in ends_of(kind, entry))
    if kind.unsafe < 0:
        low, high = -high, -low
    most = kind.tolerance + 1e-12
    if high <= most and (kind.unsafe or low >= -most):
        return "cautious" if high < -most else "holds"
    return "off" if low > most or (not kind.unsafe and high < -most) else "not shown"


def summarised(name: str, values: np.ndarray, others: dict[str, np.ndarray]) -> dict[str, Entry]:
    """The measures of a cell that the values [worlds] of one give: name -> n, value and, of no share, error."""
    kind, known = kind_of(name), values[np.isfinite(values)]
    n = len(known)
    if not n:
        return {name: {"n": 0}}
    if kind.of == "p":
        return {f"{name} | <= {p}": {"n": n, "value": float(np.mean(known <= p))} for p in (0.05, 0.01)}
    if kind.of == "procedure":
        inside = (others["low"] <= known.mean()) & (known.mean() <= others["high"])
        has = np.isfinite(others["low"])
        return {
            "procedure interval": {"n": int(has.sum()), "value": float(inside[has].mean())} if has.any() else {"n": 0}
        }
    if kind.of == "share":
        return {name: {"n": n, "value": float(known.mean())}}
    if kind.of == "median":
        low, middle, high = np.quantile(known, (0.25, 0.5, 0.75))
        return {name: {"n": n, "value": float(middle), "error": float(1.2533 * (high - low) / 1.349 / np.sqrt(n))}}
    return {name: {"n": n, "value": float(known.mean()), "error": float(known.std() / np.sqrt(n))}}


def pooled(entries: Sequence[Entry]) -> Entry:
    """One entry of several of other worlds: the mean by number of worlds; so of medians, as each is of many worlds."""
    entries = [each for each in entries if each["n"]]
    n = sum(each["n"] for each in entries)
    if not n:
        return {"n": 0}
    found = {"n": n, "value": sum(each["n"] * each["value"] for each in entries) / n}
    if "error" in entries[0]:
        found["error"] = float(np.sqrt(sum((each["n"] * each["error"]) ** 2 for each in entries)) / n)
    return found


def measured(cell: Cell, worlds: range) -> dict[str, Entry]:
    """Measure -> the number of worlds that have it, its value, its standard error."""
    return summary([cell.measure(seed) for seed in worlds])


def summary(found: Sequence[Measured]) -> dict[str, Entry]:
    """`measured`, of what the worlds of a cell have given."""
    names = list(dict.fromkeys(name for each in found for name in each))
    columns = {name: np.array([each.get(name, np.nan) for each in found], dtype=float) for name in names}
    shown = [name for name in names if name not in ("low", "high")]
    return {key: entry for name in shown for key, entry in summarised(name, columns[name], columns).items()}


def continued(cell: Cell, record: dict[str, Any], worlds: int) -> dict[str, Any]:
    """A record with as many worlds: those that it lacks are measured and put together with those that it has."""
    there, measures = record.get("worlds", 0), record.get("measures", {})
    if there > worlds or "procedure interval" in measures:  # which need the estimates of all worlds
        there, measures = 0, {}
    more = measured(cell, range(there, worlds))
    both = {name: pooled([each[name] for each in (measures, more) if name in each]) for name in {**measures, **more}}
    return {"worlds": worlds, "measures": both}


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
LEADS = [world for world in SIGNAL if world not in (World(n=1000, classes=5), World(n=1000, classes=0))]
ROWS = ((50, None), (200, None), (200, 5), (200, 10), (200, 20), (200, 100))


# classes so many standard deviations apart: AUROC of 0.9, 0.95 and 0.97, and a balanced accuracy of 0.87
FEW_OF_A_CLASS = (("auroc", 1.81), ("auroc", 2.33), ("auroc", 2.66), ("balanced_accuracy", 2.28))


def few_of_a_class(metric: str, apart: float, positives: int) -> str:
    """The name of a cell of `FEW_OF_A_CLASS`."""
    true = ndtr(apart / np.sqrt(2)) if metric == "auroc" else ndtr([apart / 2 + OFFSET, apart / 2 - OFFSET]).mean()
    called = metric.replace("_", " ").replace("auroc", "AUROC")
    return f"score: {called} of {true:.2f}, {positives} positives of 200"


def cells() -> list[Cell]:
    """Every setting, in the order of the page."""
    found = [Cell(f"curve: {world}", partial(of_curve, world)) for world in SIGNAL]
    found += [
        Cell(f"curve: {world}", partial(of_curve, world), 0.5) for world in FOLDS
    ]  # which take five times as long
    for metric, apart in FEW_OF_A_CLASS:
        for positives in (3, 5, 10, 20, 50):
            measure = partial(of_score, positives, metric, apart, 200)
            found.append(Cell(few_of_a_class(metric, apart, positives), measure, CHEAP))
    found += [Cell(f"lead: {world}", partial(of_lead, world)) for world in LEADS]
    for n, groups in ROWS:
        what = f"n = {n}" if groups is None else f"n = {n}, {groups} groups"
        for metric in METRICS:
            for case, pair in PAIRS.items():
                measure = partial(of_difference, n, groups, metric, pair)
                found.append(Cell(f"difference: {metric}, {what}, {case}", measure, CHEAP))
        found.append(Cell(f"effect: {what}", partial(of_effect, n, groups), CHEAP))
    found += [Cell(f"runs: {m}, n = {n}", partial(of_runs, n, m), CHEAP) for m in METRICS for n in (50, 200)]
    found += [Cell(f"chance: {world}", partial(of_chance, world)) for world in CHANCE]
    for n, metric in ((50, "accuracy"), (200, "accuracy"), (50, "auroc"), (200, "auroc")):
        found.append(Cell(f"grid: {metric}, n = {n}", partial(of_grid, n, metric), CHEAP))
    found.append(Cell("label sets: n = 200", partial(of_label_sets, 200), 4))
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
    parser.add_argument("--worlds", type=int, default=200)
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
        record = {} if asked.again else records.get(cell.name, {})
        if asked.only not in cell.name or record.get("worlds", 0) >= worlds:
            continue
        records[cell.name] = continued(cell, record, worlds)
        ordered = {each.name: records[each.name] for each in every if each.name in records}
        asked.records.write_text(json.dumps(_rounded(ordered), indent=1) + "\n", encoding="utf-8")
        print(cell.name, flush=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 5) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
