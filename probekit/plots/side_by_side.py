"""Runs side by side: their curves on one axis, and under them the differences of their estimates."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probekit.charts.axes import BOUNDS, shown_ticks, widened
from probekit.charts.curves import METRICS
from probekit.charts.grids import steps_grid
from probekit.charts.palette import GREY, INK, PALETTE, short
from probekit.evaluation.results.wording import interval_text, number_text
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.cells import draw_cells, draw_scale, grid_size
from probekit.plots.headings import Entries, draw_legends
from probekit.plots.lines import draw_beyond
from probekit.plots.style import (
    LINE,
    PLAIN,
    SMALL,
    inches,
    is_column,
    is_column_width,
    new_figure,
    shown_figure,
    text_width,
    wrapped,
    write_figure,
    write_lines,
    write_title,
)
from probekit.side_by_side.data import UNPAIRED, ComparedPlace, ComparedRun, ComparisonData, RunDifference, SeedGroup
from probekit.side_by_side.report import comparison_title, p_text, shared_setting, signed_interval
from probekit.text import printable

WIDTH, HEIGHT = 8.0, 4.0  # inches of the curves, without the headings
LEGEND_ROW, ROW, AROUND = 0.2, 0.27, 0.75  # inches: of a name, of a difference, and around the differences
COLUMN_LEGEND = 1.2  # inches that the legend adds to a narrow picture before it is scaled
MOST_ROWS = 15  # differences that are drawn; results.csv has all of them
MOST_BANDS = 2  # of more curves only the first has its band, as theirs mix to mud; results.csv has all of them
DASHES = ("-", "--", ":")  # more runs than colours
NAME = 34  # letters of a run's name
CHANCE, SPREAD = "chance level", "standard deviation"
BAND, SELECTED, GIVEN = "95% band", "selected on validation", "named place"


@dataclass(frozen=True)
class _Line:
    """One line of the picture: a run, or the mean of a set of seeds."""

    name: str
    color: str
    dashes: str
    runs: list[ComparedRun]
    group: SeedGroup | None = None


def plot_comparison(data: ComparisonData, *, title: str | None = None, width: float | None = None) -> Figure:
    """Draw a comparison on a new pyplot figure, which a notebook shows.

    Args:
        data: from `compare`.
        title: as plain text; "" for none.  [default: label, model and task, as far as the runs share them]
        width: in inches; 3.25 is a column of a paper.  [default: 8]
    """
    with shown_figure(_size(data, width), width) as figure:
        _draw(data, figure, title)
    return figure


@keywords(PictureOptions)
def save_comparison_plot(data: ComparisonData, folder: str | Path, options: PictureOptions) -> Path:
    """Write comparison.png and .svg into `folder`, the same bytes for the same comparison; returns the first path.

    Args:
        data: from `compare`.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(_size(data, options.width), options.width) as figure:
        _draw(data, figure, options.heading)
        return write_figure(figure, Path(folder) / "comparison.png", options.formats)


def _size(data: ComparisonData, given: float | None = None) -> tuple[float, float]:
    if data.meta["by"] == "step":
        return grid_size(steps_grid(data))
    rows = len(_shown(data))
    legend = COLUMN_LEGEND if is_column_width(given) else 0
    return WIDTH, HEIGHT + legend + LEGEND_ROW * len(_lines(data)) + (AROUND + ROW * rows) * bool(rows)


def _draw(data: ComparisonData, figure: Figure, title: str | None) -> None:
    name = comparison_title(data) if title is None else printable(title)
    if data.meta["by"] == "step":
        chart, ax = steps_grid(data), figure.subplots()
        draw_cells(chart, ax, name)
        draw_scale(chart, figure, ax, fraction=0.04, pad=0.02)
        return
    shown = _shown(data)
    if not shown:
        _draw_curves(data, figure.subplots(), name)
        return
    low = AROUND + ROW * len(shown)
    # parts with margins of their own: the names and numbers of the lower one leave the curves their width
    parts: Any = figure.subfigures(2, 1, height_ratios=[figure.get_figheight() - low, low])
    upper, lower = parts
    _draw_curves(data, upper.subplots(), name)
    _draw_differences(data, lower.subplots(), shown)


def _shown(data: ComparisonData) -> list[RunDifference]:
    return data.differences[:MOST_ROWS]


def _lines(data: ComparisonData) -> list[_Line]:
    """A line for each run; for the runs of one set of seeds their mean."""
    looks = itertools.cycle((color, dashes) for dashes in DASHES for color in PALETTE)
    lines = [
        _Line(group.name, *next(looks), [data.runs[number] for number in group.runs], group)
        if len(group.runs) > 1
        else _Line(group.name, *next(looks), [data.runs[group.runs[0]]])
        for group in data.groups
    ]
    grouped = {number for group in data.groups for number in group.runs}  # all, or those with an estimate
    return lines + [_Line(run.name, *next(looks), [run]) for i, run in enumerate(data.runs) if i not in grouped]


def _draw_curves(data: ComparisonData, ax: Axes, title: str) -> None:
    lines = _lines(data)
    ax.set_ylim(*_y_limits(data))
    marks: dict[str, Artist] = {}
    entries: Entries = []
    for line in lines:
        drawn = _draw_seeds(ax, line, data, marks) if line.group else _draw_run(ax, line, data, marks)
        entries.append((_legend_texts(line, data), drawn))
    if BAND in marks and SPREAD in marks:  # one look in the legend
        marks = {f"{BAND}; of seeds one {SPREAD}": marks.pop(SPREAD)} | marks
        del marks[BAND]
    _draw_chance(data, ax, marks)
    _name_axes(data, ax)
    room = 72 * inches(ax)[0]
    height = draw_legends(ax, (entries, [([name], mark) for name, mark in marks.items()]), room) * LINE
    heads = [] if is_column(ax) or title == "" else wrapped(shared_setting(data), room)
    write_lines(ax, heads, 8 + height)
    write_title(ax, title, 8 + height + len(heads) * LINE + 3)


def _x(data: ComparisonData, place: ComparedPlace) -> float:
    return place.depth if data.meta["axis"] == "depth" else float(place.x)


def _draw_run(ax: Axes, line: _Line, data: ComparisonData, marks: dict[str, Artist]) -> Artist:
    (run,) = line.runs
    if any(run.places == other.places for other in data.runs[: data.runs.index(run)]):  # two places of one curve
        return _ring(ax, line, data, marks) or ax.plot([], [], color=line.color)[0]
    xs, values = [_x(data, place) for place in run.places], [place.value for place in run.places]
    ends = [_ends(place) for place in run.places]
    lines = _lines(data)
    if len(xs) > 1 and any(place.band for place in run.places) and (len(lines) <= MOST_BANDS or line == lines[0]):
        low, high = zip(*ends, strict=True)
        look = {"color": line.color, "alpha": 0.16, "linewidth": 0, "label": BAND}
        marks.setdefault(
            BAND if len(lines) <= MOST_BANDS else f"{BAND} of the first", ax.fill_between(xs, low, high, **look)
        )
    elif len(xs) == 1:
        ax.vlines(xs, [ends[0][0]], [ends[0][1]], color=line.color, linewidth=1.4)
    (drawn,) = ax.plot(
        xs, values, color=line.color, linestyle=line.dashes, linewidth=2, marker="o", markersize=4, zorder=4
    )
    marks |= draw_beyond(ax, xs, values, line.color)
    _ring(ax, line, data, marks)
    return drawn


def _ring(ax: Axes, line: _Line, data: ComparisonData, marks: dict[str, Artist]) -> Artist | None:
    """A ring around the place that validation selected, or a square around one that was named."""
    (run,) = line.runs
    if run.quoted is None:
        return None
    what, marker = (GIVEN, "s") if run.given else (SELECTED, "o")
    look = {"marker": marker, "markersize": 10, "markerfacecolor": "none", "markeredgewidth": 1.8, "label": what}
    at = [_x(data, run.quoted)], [run.quoted.value]
    (drawn,) = ax.plot(*at, linestyle="none", markeredgecolor=line.color, zorder=5, clip_on=False, **look)
    marks.setdefault(what, drawn)
    return drawn


def _ends(place: ComparedPlace) -> tuple[float, float]:
    if place.band is not None:
        return place.band
    low, high = place.low, place.high
    return place.value if low is None else low, place.value if high is None else high


def _draw_seeds(ax: Axes, line: _Line, data: ComparisonData, marks: dict[str, Artist]) -> Artist:
    """Thin lines for the seeds, their mean, and one standard deviation to either side."""
    for run in line.runs:
        xs, values = [_x(data, place) for place in run.places], [place.value for place in run.places]
        ax.plot(xs, values, color=line.color, linewidth=0.7, alpha=0.45, zorder=3)
    named = [{place.place: place for place in run.places} for run in line.runs]
    every = [name for name in named[0] if all(name in own for own in named)]
    xs = [_x(data, named[0][name]) for name in every]
    values = np.array([[own[name].value for own in named] for name in every])
    mean, spread = values.mean(axis=1), values.std(axis=1, ddof=1)
    if len(_lines(data)) <= MOST_BANDS:  # the thin lines show the spread, too
        look = {"color": line.color, "alpha": 0.16, "linewidth": 0, "label": SPREAD}
        marks.setdefault(SPREAD, ax.fill_between(xs, mean - spread, mean + spread, **look))
    marks |= draw_beyond(ax, xs, mean.tolist(), line.color)
    (drawn,) = ax.plot(
        xs, mean, color=line.color, linestyle=line.dashes, linewidth=2.2, marker="o", markersize=4, zorder=4
    )
    return drawn


def _legend_texts(line: _Line, data: ComparisonData) -> list[str]:
    """The name with its score, the longest text first."""
    name, group = short(line.name, NAME), line.group
    metric = METRICS.get(data.headline, data.headline)
    if group is not None:
        return [
            f"{name}: mean of {len(group.runs)} seeds {number_text(group.mean)}, sd {number_text(group.spread)}",
            name,
        ]
    (run,) = line.runs
    if run.estimate is None:
        return [f"{name}: no layer selected", name]
    where = "" if run.quoted is None else f"{run.quoted.place}, "
    score = f"{number_text(run.estimate)} {interval_text(run.interval)}".strip()
    return [f"{name}: {where}test {metric} {score}", f"{name}: {where}{score}", f"{name}: {number_text(run.estimate)}"]


def _draw_chance(data: ComparisonData, ax: Axes, marks: dict[str, Artist]) -> None:
    """A line across the axes for each chance level; runs of one task have the same."""
    low, high = ax.get_ylim()
    for chance in sorted({round(run.chance, 3) for run in data.runs if run.chance is not None}):
        if low <= chance <= high:
            line = ax.axhline(chance, color=GREY, linewidth=1, linestyle=(0, (4, 2)), zorder=1, label=CHANCE)
            marks.setdefault(CHANCE, line)


def _y_limits(data: ComparisonData) -> tuple[float, float]:
    least, most = BOUNDS.get(data.headline, (0.0, 1.0))
    values = [end for run in data.runs for place in run.places for end in (place.value, *_ends(place))]
    values += [run.chance for run in data.runs if run.chance is not None]
    values = [min(most, max(least, value)) for value in values]
    low, high = widened(min(values), max(values), (least, most))
    pad = 0.05 * (high - low)
    return low - pad, high + pad


def _name_axes(data: ComparisonData, ax: Axes) -> None:
    ax.set_ylabel(METRICS.get(data.headline, data.headline), **PLAIN)
    if data.meta["axis"] == "depth":
        ax.set_xlim(-0.02, 1.02)
        ax.set_xlabel(
            "relative depth" if is_column(ax) else "relative depth: share of the model's blocks that come before"
        )
    else:
        xs = sorted({place.x for run in data.runs for place in run.places})
        shown = shown_ticks(xs, 6 if is_column(ax) else 30)
        ends = {run.n_layers for run in data.runs if any(place.x == run.n_layers for place in run.places)}
        one_end = len({run.n_layers for run in data.runs}) == 1
        ax.set_xticks(shown, ["out" if one_end and x in ends else "emb" if x < 0 else str(x) for x in shown])
        ax.set_xlabel("layer")
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_differences(data: ComparisonData, ax: Axes, shown: Sequence[RunDifference]) -> None:
    """A row for each difference: its value and interval, and in words at the right."""
    colors = {id(run): line.color for line in _lines(data) for run in line.runs}
    names = []
    for y, each in enumerate(shown):
        color = colors.get(id(data.runs[each.run]), INK)
        if each.interval is not None:
            ax.hlines(y, *each.interval, color=color, linewidth=2)
        face = "white" if each.kind == UNPAIRED else color
        ax.plot([each.difference], [y], "o", color=color, markerfacecolor=face, markersize=5.5, zorder=3)
        p = "" if each.corrected is None else f", p {p_text(each.corrected, '= ')}"
        text = f"{each.difference:+z.3f} {signed_interval(each.interval)}{p}{', unpaired' * (each.kind == UNPAIRED)}"
        if not is_column(ax):
            ax.text(1.01, y, text, transform=ax.get_yaxis_transform(), va="center", fontsize=SMALL, color=INK, **PLAIN)
        names.append(_pair_name(data, each))
    ax.axvline(0, color=GREY, linewidth=1)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_yticks(range(len(shown)), names, fontsize=SMALL, **PLAIN)
    beside = max(text_width(line, SMALL) for name in names for line in name.split("\n"))
    name = wrapped(_difference_axis(data, len(shown)), max(72.0, 72 * inches(ax)[0] - beside), SMALL + 1)
    ax.set_xlabel("\n".join(name), fontsize=SMALL + 1, **PLAIN)
    ax.tick_params(axis="x", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _pair_name(data: ComparisonData, each: RunDifference) -> str:
    name = short(data.runs[each.run].name, NAME - 8)
    return name if data.meta["pairs"] == "first" else f"{name}\nminus {short(data.runs[each.minus].name, NAME - 8)}"


def _difference_axis(data: ComparisonData, shown: int) -> str:
    metric = METRICS.get(data.headline, data.headline)
    first = f" minus that of {short(data.runs[0].name, NAME)}" if data.meta["pairs"] == "first" else " difference"
    more = f" ({shown} of {len(data.differences)} differences)" if shown < len(data.differences) else ""
    return f"test {metric}{first}, 95% interval{more}"
