"""Lines over layers on matplotlib axes, with the texts around them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import AutoLocator, ScalarFormatter

from probekit.charts.axes import shown_ticks
from probekit.charts.lines import (
    ABOVE,
    BELOW,
    STRIP,
    Band,
    LegendEntry,
    LineChart,
    Mark,
    Ring,
    Rule,
    Series,
    Stretch,
    entry_of,
    lone,
)
from probekit.charts.palette import GREY, INK
from probekit.plots.headings import BANDS, write_above
from probekit.plots.margin import draw_margin, is_narrow
from probekit.plots.style import LOOKS, PLAIN, SMALL, inches, is_column, paler, style_axes, text_width, wrapped

Marks = dict[Mark, list[Artist]]


def draw_chart(
    chart: LineChart, ax: Axes, title: str | None = None, before: Marks | None = None, lowest: Axes | None = None
) -> tuple[Marks, tuple[str, str]]:
    """Draw a chart on axes; returns what was drawn for each mark, and the names of the axes.

    Args:
        chart: what is drawn.
        ax: where.
        title: instead of the chart's name; "" for none.
        before: marks that are there, which are not drawn again; those that are not in the chart are removed.
        lowest: of the axes that share the layer axis; it has the name.  [default: ax]
    """
    if not before:
        style_axes([ax])
    drawn = draw_marks(chart, ax, before)
    draw_margin(ax, chart.margin)
    name_layers(ax, chart, 6 if is_column(ax) else 12 if is_narrow(ax) else 30)
    names = name_axes(ax, lowest or ax, chart.x_name, chart.y_name)
    write_above(ax, replace(chart, legend=[*chart.legend, *_name_shades(ax, chart)]), title)
    return drawn, names


def draw_marks(chart: LineChart, ax: Axes, before: Marks | None = None) -> Marks:
    """Draw the marks of a chart alone; `before` as for `draw_chart`."""
    ax.set_xlim(*chart.x_limits)
    ax.set_ylim(*chart.y_limits)
    before = dict(before or {})
    drawn = {mark: before.pop(mark, None) or _draw(ax, mark) for mark in chart.marks}
    take_off([artist for left in before.values() for artist in left])
    for mark, artists in drawn.items():
        artists[0].set_label(mark.name or "_")
        if isinstance(mark, Series) and isinstance(artists[0], Line2D):
            _fit(artists[0], mark, chart)
            if not mark.thin:
                _draw_beyond(ax, mark, chart)
    return drawn


def take_off(artists: Sequence[Artist]) -> None:
    """Take artists off their axes, unless somebody else did."""
    for artist in artists:
        if artist.axes is not None:
            artist.remove()


def _draw(ax: Axes, mark: Mark) -> list[Artist]:
    across: dict[str, Any] = {"transform": ax.get_xaxis_transform()}
    match mark:
        case Series():
            return _draw_line(ax, mark)
        case Band():
            alpha, (low, high) = BANDS[mark.color == GREY], zip(*mark.ends, strict=True)
            if len(mark.xs) == 1:  # a band has no width here
                return [ax.vlines(mark.xs, low, high, color=mark.color, alpha=alpha + 0.19, linewidth=6)]
            return [ax.fill_between(mark.xs, low, high, color=mark.color, alpha=alpha, linewidth=0)]
        case Rule():
            if mark.to is not None:
                look = {"transform": ax.get_yaxis_transform(), "linewidth": 5, "alpha": 0.35}
                at = [0.994 - 0.012 * mark.rank] * 2
                return [*ax.plot(at, [mark.value, mark.to], color=mark.color, solid_capstyle="butt", **look)]
            return [ax.axhline(mark.value, color=mark.color, linewidth=1.1, zorder=1, **LOOKS[mark.look])]
        case Ring():
            return [*ax.plot([mark.x], [mark.y], color=mark.color, zorder=5, clip_on=False, **LOOKS[mark.look])]
        case Stretch() if mark.look == "tied":
            height = [0.011 + 0.02 * mark.rank] * 2
            return [*ax.plot([mark.left, mark.right], height, color=mark.color, **LOOKS["tied"], **across)]
        case Stretch():
            look = {"facecolor": mark.color, "linewidth": 0, "zorder": 0.5, **across}
            size = mark.right - mark.left
            shapes = [Rectangle((mark.left, 0), size, h, alpha=a, **look) for h, a in ((1.0, 0.07), (STRIP, 0.35))]
            return [ax.add_patch(shape) for shape in shapes]


def _draw_line(ax: Axes, one: Series) -> list[Artist]:
    size = 4.5 if len(one.xs) <= 30 else 3
    dots: dict[str, Any] = {"marker": "o", "markersize": size, "linewidth": 2, "zorder": 4} if one.dots else {}
    look: dict[str, Any] = {"linewidth": 1.2, "zorder": 3} | dots | LOOKS[one.look]
    color = paler(one.color) if one.thin else one.color
    drawn: list[Artist] = [*ax.plot(one.xs, one.ys, color=color, **look)]
    hollow = [(x, y) for x, y in zip(one.xs, one.ys, strict=True) if x in one.hollow]
    if hollow:
        face: dict[str, Any] = LOOKS["hollow"] | {"markersize": size + 0.5, "zorder": 4.5}
        drawn += ax.plot(*zip(*hollow, strict=True), color=one.color, **face)
    return drawn


def _fit(line: Line2D, one: Series, chart: LineChart) -> None:
    """Interrupt a line where its values are beyond the axis; a value without dot that no line goes to has a diamond."""
    low, high = chart.y_limits
    line.set_ydata([y if low <= y <= high else np.nan for y in one.ys])
    if not one.dots:
        alone = lone(one, chart.y_limits)
        line.set(marker="D" if alone else "", markersize=4, markevery=alone or None)


def _draw_beyond(ax: Axes, one: Series, chart: LineChart) -> None:
    """A triangle for each value beyond an end of the y axis."""
    low, high = chart.y_limits
    where: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "zorder": 5, "color": one.color}
    if below := [x for x, y in zip(one.xs, one.ys, strict=True) if y < low]:
        ax.plot(below, [0.03] * len(below), label=BELOW, **where, **LOOKS["below"])
    if above := [x for x, y in zip(one.xs, one.ys, strict=True) if y > high]:
        ax.plot(above, [0.97] * len(above), label=ABOVE, **where, **LOOKS["above"])


def name_layers(ax: Axes, chart: LineChart, most: int) -> None:
    """The ticks of both axes; at most so many layers have their names, and no value beside the names of shades."""
    xs = sorted(chart.x_ticks)
    shown = shown_ticks(xs, most)
    size = SMALL if len(shown) > 16 or is_column(ax) else 10
    ax.set_xticks(shown, [chart.x_ticks[x] for x in shown], fontsize=size, **PLAIN)
    ax.set_xticks(xs, minor=True)
    ax.yaxis.set_major_locator(AutoLocator())  # rows may have been here before
    ax.yaxis.set_major_formatter(ScalarFormatter())
    if chart.shades:
        low, high = chart.y_limits
        ax.set_yticks([tick for tick in ax.get_yticks() if low + STRIP * (high - low) <= tick <= high])


def _name_shades(ax: Axes, chart: LineChart) -> list[LegendEntry]:
    """Write the names of shades under the curves; returns the legend's entries of those without room."""
    named, (low, high) = set(), chart.x_limits
    size, most = SMALL - 0.8, 1 if is_column(ax) else 2
    for one in chart.shades:
        room = 72 * 0.86 * inches(ax)[0] / (high - low) * (one.right - one.left) - 4  # without the margins
        lines = wrapped(one.name, room, size)
        if len(lines) <= most and all(text_width(word, size) <= room for word in one.name.split()):
            named.add(one.name)
            across = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "center", "fontsize": size}
            ax.text((one.left + one.right) / 2, STRIP / 2, "\n".join(lines), color=INK, linespacing=0.95, **across)
    return [entry_of(one) for one in {one.name: one for one in chart.shades if one.name not in named}.values()]


def name_axes(ax: Axes, lowest: Axes, x: str, y: str) -> tuple[str, str]:
    """Name axes, unless somebody else did; returns the names, in lines that fit."""
    x = "\n".join(wrapped(x, 72 * inches(lowest)[0], float(lowest.xaxis.label.get_fontsize())))
    if not lowest.get_xlabel():
        lowest.set_xlabel(x, **PLAIN)
    if not ax.get_ylabel():
        ax.set_ylabel(y, **PLAIN)
    return x, y
