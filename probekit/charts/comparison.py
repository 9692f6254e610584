"""The curves of a comparison as data: a line for each run, or for the mean of runs that differ in their seed."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probekit.charts.accuracy import DASHES, SELECTED
from probekit.charts.axes import score_limits, x_limits
from probekit.charts.curves import METRICS, MOST_BANDS
from probekit.charts.lines import (
    Band,
    LegendEntry,
    Limits,
    LineChart,
    LineLook,
    Mark,
    Ring,
    Rule,
    Series,
    beyond_entries,
    entry_of,
)
from probekit.charts.palette import GREY, PALETTE, short
from probekit.evaluation.results.wording import interval_text, number_text
from probekit.side_by_side.data import ComparedPlace, ComparedRun, ComparisonData, SeedGroup
from probekit.side_by_side.report import comparison_title, shared_setting

RUN_NAME = 34  # letters of a run's name
CHANCE, SPREAD, DEVIATION = "chance level", "95% band", "standard deviation"
GIVEN = "named place"


@dataclass(frozen=True)
class ComparedLine:
    """One line of the picture: a run, or the mean of a set of seeds."""

    name: str
    color: str
    look: LineLook
    runs: list[ComparedRun]
    group: SeedGroup | None = None


def compared_lines(data: ComparisonData) -> list[ComparedLine]:
    """A line for each run; for the runs of one set of seeds their mean."""
    looks: Iterator[tuple[str, LineLook]] = itertools.cycle((color, look) for look in DASHES for color in PALETTE)
    groups = [(group, [data.runs[number] for number in group.runs]) for group in data.groups]
    lines = [ComparedLine(one.name, *next(looks), runs, one if len(runs) > 1 else None) for one, runs in groups]
    grouped = {number for group in data.groups for number in group.runs}  # all, or those with an estimate
    return lines + [ComparedLine(run.name, *next(looks), [run]) for i, run in enumerate(data.runs) if i not in grouped]


def comparison_chart(data: ComparisonData) -> LineChart:
    """The picture of the curves.

    Of more lines than two only the first has its band, as theirs mix to mud; results.csv has all of them.
    """
    lines, limits = compared_lines(data), _y_limits(data)
    chances = sorted({round(run.chance, 3) for run in data.runs if run.chance is not None})
    marks = [list(_marks(line, data, lines)) for line in lines]
    marks.append([Rule(value, GREY, "dashed", name=CHANCE) for value in chances if limits[0] <= value <= limits[1]])
    ticks = _ticks(data)
    is_depth = data.meta["axis"] == "depth"
    return LineChart(
        name=comparison_title(data),
        marks=[mark for own in marks for mark in own],
        x_ticks=ticks,
        x_limits=(-0.02, 1.02) if is_depth else x_limits(ticks),
        y_limits=limits,
        x_name="relative depth: share of the model's blocks that come before" if is_depth else "layer",
        y_name=METRICS.get(data.headline, data.headline),
        legend=_legend(data, lines, marks, limits),
        facts=[shared_setting(data)],
    )


def _marks(line: ComparedLine, data: ComparisonData, lines: Sequence[ComparedLine]) -> Iterator[Mark]:
    several, is_banded = line.runs, len(lines) <= MOST_BANDS
    if line.group is not None:
        named = [{place.place: place for place in run.places} for run in several]
        places = [place for name, place in named[0].items() if all(name in own for own in named)]
        xs = tuple(_x(data, place) for place in places)
        values = np.array([[own[place.place].value for own in named] for place in places])
        mean, spread = values.mean(axis=1), values.std(axis=1, ddof=1)
        yield Series(xs, tuple(mean.tolist()), line.color, line.look, name=line.name)
        if is_banded:  # the thin lines show the spread, too
            ends = zip((mean - spread).tolist(), (mean + spread).tolist(), strict=True)
            yield Band(xs, tuple(ends), line.color, DEVIATION)
        for run in several:
            yield _series(run, data, line.color, thin=True)
        return
    (run,) = several
    if not any(run.places == other.places for other in data.runs[: data.runs.index(run)]):  # two places of one curve
        yield _series(run, data, line.color, line.look, name=line.name)
        has_band = any(place.band for place in run.places) and (is_banded or line == lines[0])
        if has_band or len(run.places) == 1:
            xs = tuple(_x(data, place) for place in run.places)
            yield Band(xs, tuple(map(_ends, run.places)), line.color, SPREAD)
    if run.quoted is not None:
        look, name = ("square", GIVEN) if run.given else ("ring", SELECTED)
        yield Ring(_x(data, run.quoted), run.quoted.value, line.color, look, name)


def _series(
    run: ComparedRun, data: ComparisonData, color: str, look: LineLook = "solid", thin: bool = False, name: str = ""
) -> Series:
    xs, ys = (tuple(values) for values in zip(*((_x(data, place), place.value) for place in run.places), strict=True))
    return Series(xs, ys, color, look, dots=not thin, thin=thin, name=name)


def _x(data: ComparisonData, place: ComparedPlace) -> float:
    return place.depth if data.meta["axis"] == "depth" else float(place.x)


def _ends(place: ComparedPlace) -> Limits:
    if place.band is not None:
        return place.band
    low, high = place.low, place.high
    return place.value if low is None else low, place.value if high is None else high


def _legend(
    data: ComparisonData, lines: Sequence[ComparedLine], marks: Sequence[Sequence[Mark]], limits: Limits
) -> list[LegendEntry]:
    """A line for each run, whose line or ring is the first of its marks, and the other marks."""
    color = GREY if len(lines) > 1 else None
    every = [mark for own in marks for mark in own]
    firsts = [own[0] if own else Series((), (), line.color) for own, line in zip(marks, lines, strict=False)]
    found = [entry_of(mark, *_texts(line, data), is_own=True) for mark, line in zip(firsts, lines, strict=True)]
    shared = {mark.name: mark for mark in every if mark.name and not isinstance(mark, Series)}
    names = {SPREAD: f"{SPREAD} of the first"} if len(lines) > MOST_BANDS else {}
    if {SPREAD, DEVIATION} <= set(shared):  # one look in the legend
        names = {SPREAD: f"{SPREAD}; of seeds one {DEVIATION}"}
        del shared[DEVIATION]
    found += [entry_of(mark, names.get(name, name), color=color) for name, mark in shared.items()]
    return found + beyond_entries(every, limits, color)


def _texts(line: ComparedLine, data: ComparisonData) -> list[str]:
    """The name with its score, the longest text first."""
    name, group = short(line.name, RUN_NAME), line.group
    metric = METRICS.get(data.headline, data.headline)
    if group is not None:
        score = f"{number_text(group.mean)}, sd {number_text(group.spread)}"
        return [f"{name}: mean of {len(group.runs)} seeds {score}", name]
    (run,) = line.runs
    if run.estimate is None:
        return [f"{name}: no layer selected", name]
    where = "" if run.quoted is None else f"{run.quoted.place}, "
    score = f"{number_text(run.estimate)} {interval_text(run.interval)}".strip()
    return [f"{name}: {where}test {metric} {score}", f"{name}: {where}{score}", f"{name}: {number_text(run.estimate)}"]


def _y_limits(data: ComparisonData) -> Limits:
    values = [end for run in data.runs for place in run.places for end in (place.value, *_ends(place))]
    chances = [run.chance for run in data.runs if run.chance is not None]
    return score_limits([*values, *chances], data.headline, 0.05)


def _ticks(data: ComparisonData) -> dict[float, str]:
    if data.meta["axis"] == "depth":
        return {x / 5: f"{x / 5:.1f}" for x in range(6)}
    ends = {run.n_layers for run in data.runs if any(place.x == run.n_layers for place in run.places)}
    one_end = len({run.n_layers for run in data.runs}) == 1
    xs = sorted({place.x for run in data.runs for place in run.places})
    return {float(x): "out" if one_end and x in ends else "emb" if x < 0 else str(x) for x in xs}
