"""The picture of a sweep: each task's estimate with its interval, sorted, and the depth of its best layer.

Tasks are in panels by metric. Several models, points or probes are dots of several colours in the row of a task.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probekit.charts.palette import INK, PALETTE, short
from probekit.errors import UsageError
from probekit.evaluation.results.wording import metric_name
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.style import (
    LINE,
    PLAIN,
    SMALL,
    inches,
    is_column,
    new_figure,
    shown_figure,
    style_axes,
    wrapped,
    write_figure,
    write_figure_title,
    write_lines,
)
from probekit.sweeps.data import SweepData, SweepRow
from probekit.sweeps.report import sweep_title
from probekit.text import printable

WIDTH = 9.0  # inches
ROW, AROUND = 0.17, 1.35  # inches: of a task's row, and of headings and axis of a panel
OWN_ROW = 0.07  # inches that each further curve adds to the row of its task
NAME = 34  # letters of a task's name
LOWEST = {"r2": -0.25, "spearman": -1.0}  # of the axis; others begin at 0
HIGHEST = 1.0


@dataclass(frozen=True)
class _Dot:
    """A curve of a task: its row, and the series that it belongs to."""

    task: str
    series: str
    row: SweepRow


def plot_sweep(results: SweepData, *, title: str | None = None, width: float | None = None) -> Figure:
    """Draw a sweep on a new pyplot figure, which a notebook shows.

    Args:
        results: from `sweep`.
        title: as plain text; "" for none.  [default: how many tasks and models, point and probe]
        width: in inches; 3.25 is a column of a paper.  [default: 9]

    Raises:
        UsageError: no run has an estimate.
    """
    panels = _panels(results)
    with shown_figure(_size(panels), width) as figure:
        _draw(results, panels, figure, title)
    return figure


@keywords(PictureOptions)
def save_sweep_plot(results: SweepData, folder: str | Path, options: PictureOptions) -> Path:
    """Write sweep.png and .svg into `folder`, the same bytes for the same results; returns the first path.

    Args:
        results: from `sweep`.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    panels = _panels(results)
    with new_figure(_size(panels), options.width) as figure:
        _draw(results, panels, figure, options.heading)
        return write_figure(figure, Path(folder) / "sweep.png", options.formats)


def _panels(results: SweepData) -> dict[str, list[_Dot]]:
    """The dots of each metric, of those curves that have an estimate.

    Raises:
        UsageError: there is none.
    """
    pairs = [(run, row) for run in results.runs for row in run.rows if row.value is not None]
    if not pairs:
        raise UsageError("no run of the sweep has an estimate yet, so there is nothing to draw; see its table")
    kinds = [(run.model, row.label, row.point, row.probe) for run, row in pairs]
    by_task: dict[str, set[tuple[str, ...]]] = {}
    for (run, _), kind in zip(pairs, kinds, strict=True):
        by_task.setdefault(run.task, set()).add(kind)
    differ = [i for i in range(4) if any(len({kind[i] for kind in own}) > 1 for own in by_task.values())]
    panels: dict[str, list[_Dot]] = {}
    for (run, row), kind in zip(pairs, kinds, strict=True):
        panels.setdefault(row.metric, []).append(_Dot(run.task, ", ".join(kind[i] for i in differ), row))
    return panels


def _tasks(dots: Sequence[_Dot]) -> list[str]:
    """The tasks, the highest mean estimate first."""
    values: dict[str, list[float]] = {}
    for dot in dots:
        values.setdefault(dot.task, []).append(dot.row.value or 0.0)
    return sorted(values, key=lambda task: -fmean(values[task]))


def _series(panels: dict[str, list[_Dot]]) -> list[str]:
    return list(dict.fromkeys(dot.series for dots in panels.values() for dot in dots))


def _heights(panels: dict[str, list[_Dot]]) -> list[float]:
    """Inches of each panel."""
    row = ROW + OWN_ROW * (len(_series(panels)) - 1)
    return [AROUND + row * len(_tasks(dots)) for dots in panels.values()]


def _size(panels: dict[str, list[_Dot]]) -> tuple[float, float]:
    return WIDTH, sum(_heights(panels)) + 0.5 + LINE / 72 * (len(_series(panels)) > 1)


def _draw(results: SweepData, panels: dict[str, list[_Dot]], figure: Figure, title: str | None) -> None:
    if title != "":
        write_figure_title(figure, printable(sweep_title(results) if title is None else title))
    axes = figure.subplots(len(panels), 2, squeeze=False, width_ratios=[3, 1], height_ratios=_heights(panels))
    series = _series(panels)
    colors = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(series)}
    for (left, right), (metric, dots) in zip(axes, panels.items(), strict=True):
        _draw_panel(left, right, metric, dots, colors)
    if len(series) > 1:
        shown = [axes[0][0].plot([], [], marker="o", linestyle="", color=colors[name])[0] for name in series]
        where = {"loc": "outside lower center", "ncols": min(4, len(series)), "frameon": False, "fontsize": SMALL}
        for text in figure.legend(shown, [short(name, 60) for name in series], **where).get_texts():
            text.set(**PLAIN)


def _draw_panel(left: Axes, right: Axes, metric: str, dots: Sequence[_Dot], colors: dict[str, str]) -> None:
    tasks = _tasks(dots)
    lowest = LOWEST.get(metric, 0.0)
    step = 0.7 / len(colors)
    for dot in dots:
        rank = list(colors).index(dot.series)
        y = tasks.index(dot.task) + (rank - (len(colors) - 1) / 2) * step
        _draw_dot(left, y, dot.row, colors[dot.series], (lowest, HIGHEST))
        if dot.row.depth is not None:
            right.plot([dot.row.depth], [y], marker="o", markersize=3.5, color=colors[dot.series])
    values = [each for dot in dots for each in (dot.row.value, dot.row.low, dot.row.high, dot.row.baseline_value)]
    known = [min(HIGHEST, max(lowest, each)) for each in values if each is not None]
    pad = 0.03 * (max(known) - min(known) or 1.0)
    left.set_xlim(min(known) - pad, max(known) + pad)
    left.set_yticks(
        range(len(tasks)), [short(task, NAME // 2 if is_column(left) else NAME) for task in tasks], fontsize=7, **PLAIN
    )
    right.set_yticks([])
    right.set_xlim(-0.04, 1.04)
    right.set_xticks([0, 0.5, 1])
    for ax, name in ((left, f"{metric_name(metric)} on test, 95% interval"), (right, "depth of the best layer")):
        ax.set_ylim(len(tasks) - 0.4, -0.6)
        ax.set_xlabel("\n".join(wrapped(name, 72 * inches(ax)[0])), fontsize=SMALL)
        ax.tick_params(axis="x", labelsize=SMALL)
        ax.hlines(range(len(tasks)), 0, 1, transform=ax.get_yaxis_transform(), color="#F0F0F0", linewidth=0.6, zorder=0)
        style_axes([ax], "x")
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
    write_lines(left, [] if is_column(left) else [_heading(dots)], 4)


def _draw_dot(ax: Axes, y: float, row: SweepRow, color: str, bounds: tuple[float, float]) -> None:
    """The estimate with its interval, and a tick at the best baseline; what is beyond the axis has an arrow."""
    low, high = bounds
    value = row.value or 0.0
    if row.low is not None and row.high is not None and row.low < high and row.high > low:
        ax.hlines(y, max(row.low, low), min(row.high, high), color=color, alpha=0.4, linewidth=2.2)
    filled = color if row.lead_low is None or row.lead_low > 0 else "white"
    mark = "<" if value < low else ">" if value > high else "o"
    ax.plot(
        [min(high, max(low, value))], [y], marker=mark, markersize=4, color=color, markerfacecolor=filled, linestyle=""
    )
    if row.baseline_value is not None and low <= row.baseline_value <= high:
        ax.plot([row.baseline_value], [y], marker="|", markersize=6, color=INK, markeredgewidth=1.2, linestyle="")


def _heading(dots: Sequence[_Dot]) -> str:
    tied = any(dot.row.lead_low is not None and dot.row.lead_low <= 0 for dot in dots)
    note = "; open dot: no lead over it, by its 95% interval" if tied else ""
    names = {dot.row.baseline for dot in dots} - {""}
    return f"upright tick: {names.pop() if len(names) == 1 else 'best baseline'}{note}" if names else ""
