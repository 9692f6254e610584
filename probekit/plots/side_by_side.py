"""Runs side by side: their curves on one axis, and under them the differences of their estimates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probekit.charts.comparison import RUN_NAME, compared_lines, comparison_chart
from probekit.charts.curves import METRICS
from probekit.charts.grids import steps_grid
from probekit.charts.palette import GREY, INK, short
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.cells import draw_cells, draw_scale, grid_size
from probekit.plots.lines import draw_chart
from probekit.plots.style import (
    PLAIN,
    SMALL,
    inches,
    is_column,
    is_column_width,
    new_figure,
    shown_figure,
    style_axes,
    text_width,
    wrapped,
    write_figure,
)
from probekit.side_by_side.data import UNPAIRED, ComparisonData, RunDifference
from probekit.side_by_side.report import comparison_title, p_text, signed_interval

WIDTH, HEIGHT = 8.0, 4.0  # inches of the curves, without the headings
LEGEND_ROW, ROW, AROUND = 0.2, 0.27, 0.75  # inches: of a name, of a difference, and around the differences
COLUMN_LEGEND = 1.2  # inches that the legend adds to a narrow picture before it is scaled
MOST_ROWS = 15  # differences that are drawn; results.csv has all of them


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
    return WIDTH, HEIGHT + legend + LEGEND_ROW * len(compared_lines(data)) + (AROUND + ROW * rows) * bool(rows)


def _draw(data: ComparisonData, figure: Figure, title: str | None) -> None:
    if data.meta["by"] == "step":
        chart, ax = steps_grid(data), figure.subplots()
        draw_cells(chart, ax, comparison_title(data) if title is None else title)
        draw_scale(chart, figure, ax, fraction=0.04, pad=0.02)
        return
    shown = _shown(data)
    parts: Any = [figure]
    if shown:
        low = AROUND + ROW * len(shown)
        # parts with margins of their own: the names and numbers of the lower one leave the curves their width
        parts = figure.subfigures(2, 1, height_ratios=[figure.get_figheight() - low, low])
    ax = parts[0].subplots()
    draw_chart(comparison_chart(data), ax, title)
    if shown:
        _draw_differences(data, parts[1].subplots(), shown)


def _shown(data: ComparisonData) -> list[RunDifference]:
    return data.differences[:MOST_ROWS]


def _draw_differences(data: ComparisonData, ax: Axes, shown: Sequence[RunDifference]) -> None:
    """A row for each difference: its value and interval, and in words at the right."""
    colors = {id(run): line.color for line in compared_lines(data) for run in line.runs}
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
    style_axes([ax], "x")
    ax.spines["left"].set_visible(False)


def _pair_name(data: ComparisonData, each: RunDifference) -> str:
    name = short(data.runs[each.run].name, RUN_NAME - 8)
    return name if data.meta["pairs"] == "first" else f"{name}\nminus {short(data.runs[each.minus].name, RUN_NAME - 8)}"


def _difference_axis(data: ComparisonData, shown: int) -> str:
    metric = METRICS.get(data.headline, data.headline)
    first = f" minus that of {short(data.runs[0].name, RUN_NAME)}" if data.meta["pairs"] == "first" else " difference"
    more = f" ({shown} of {len(data.differences)} differences)" if shown < len(data.differences) else ""
    return f"test {metric}{first}, 95% interval{more}"
