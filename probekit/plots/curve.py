"""The picture of probe results: test score by layer, alone or several curves on one axes; rows for a single place.

A panel under the curve shows how far the activations of each layer compress the training labels.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like, to_hex
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotParams

from probekit.charts.accuracy import accuracy_chart, compressions, has_compression
from probekit.charts.axes import around
from probekit.charts.curves import Curve, metric_of, named_curves
from probekit.charts.lines import LegendEntry, Limits, MarginLabel
from probekit.charts.palette import GREY, INK, PALETTE
from probekit.errors import UsageError
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.wording import metric_name
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.headings import write_above
from probekit.plots.intervals import draw_intervals, interval_rows
from probekit.plots.lines import Marks, draw_chart, name_axes, take_off
from probekit.plots.margin import draw_margin
from probekit.plots.style import LOOKS, SMALL, is_column_width, new_figure, shown_figure, style_axes, write_figure

TIMES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)  # ticks


def draw_compression(ax: Axes, curves: Sequence[Curve]) -> None:
    """Compression by layer; dotted: from the class frequencies alone."""
    style_axes([ax])
    shown = [(curve, values) for curve in curves if (values := compressions(curve.results))]
    alone: dict[float, MarginLabel] = {}
    for curve, values in shown:
        ax.plot(
            curve.xs, values, color=INK if curve.is_alone else curve.color, linewidth=1.4, marker="o", markersize=2.5
        )
        code = curve.results.layers[0].codelength or {}
        times = code["uniform_bits"] / code["prior_bits"]
        alone.setdefault(round(times, 2), MarginLabel(times, f"class frequencies {times:.2f}", GREY))
    every = [value for _, values in shown for value in values] + [label.value for label in alone.values()]
    low, high = min(0.9, *every), max(2.2, *every)
    ax.set_yscale("log")  # compression goes from about 1 to several hundred
    ax.set_ylim(low * 0.95, high * 1.15)
    for times in alone:
        ax.axhline(times, color=GREY, linewidth=1.1, zorder=1, **LOOKS["dotted"])
    draw_margin(ax, list(alone.values()))
    ticks = [tick for tick in TIMES if tick <= high]
    ticks = ticks if len(ticks) < 5 else [tick for tick in ticks if f"{tick}"[0] == "1"]
    ax.set_yticks(ticks, [f"{tick}\N{MULTIPLICATION SIGN}" for tick in ticks], fontsize=SMALL)
    ax.set_yticks([], minor=True)
    ax.set_ylabel("compression\nof labels", fontsize=SMALL)


SIZE = (8.0, 4.8)  # inches
PANEL = 1.0  # inches that the lower panel adds
AROUND, ROW = 1.9, 0.26  # inches of a picture of rows: for the headings and the axis, and for each row
COLUMN_LEGEND = 1.2  # inches that the legend, in few columns, adds to a narrow picture before it is scaled


class _Asked(NamedTuple):
    """Results that were asked to be drawn, with the name and the colour given for them."""

    results: ProbeData
    label: str | None
    color: str | None


class _Drawn(Artist):
    """What is drawn on axes, for one more curve there: an artist that draws nothing, and is cleared as the others are.

    Attributes:
        asked: in the order of the calls.
        title: the last one given.
        lower: the axes of the compression, if there are any.
        marks: of the curves, on the axes; those that are the same with one more curve stay as they are.
        artists: the others, on the axes and on `lower`: names, legends, and what depends on the limits.
        names: of the axes, as they were given.
    """

    def __init__(self, asked: list[_Asked], title: str | None, lower: Axes | None) -> None:
        super().__init__()
        self.set_in_layout(False)
        self.asked, self.title, self.lower = asked, title, lower
        self.marks: Marks = {}
        self.artists: list[Artist] = []
        self.names: tuple[str, str] = "", ""


def plot_accuracy_by_layer(
    results: ProbeData,
    ax: Axes | None = None,
    *,
    label: str | None = None,
    color: str | None = None,
    title: str | None = None,
    width: float | None = None,
) -> Axes:
    """Draw the headline on test by layer, its band, the selected layer, the layers tied with the best, and baselines.

    Results of a single place are drawn as rows: each score with its interval.

    Axes that hold other results keep them: the new curve gets the next colour, and limits, legend and title are made
    for all. Lines that are there stay as they are, but for what only a single curve has, such as its scores on
    validation. Whatever else is on the axes stays, and so do the names of the axes. A figure without a layout engine,
    whose margins nobody has set, gets matplotlib's constrained layout, which makes room for the names around the axes.
    Axes lower than 2.5 inches have no subtitle, and a legend of the curves and the selected layer only.

    Args:
        results: from `train_probes`.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows, with the compression under the curve.
        label: the curve's name in the legend.  [default: what it differs in from the other curves]
        color: of the curve.  [default: the next that is free]
        title: of the picture, as plain text; "" for none.  [default: what was probed, in which model]
        width: of a new figure, in inches; 3.25 is a column of a paper.  [default: 8]

    Raises:
        UsageError: `ax` is no axes, or holds results of another metric; a color that matplotlib does not know.
    """
    if color is not None and not is_color_like(color):
        raise UsageError(f"color= is a color of matplotlib, such as 'tab:red' or '#D55E00'; got {color!a}")
    if ax is not None and not isinstance(ax, Axes):
        raise UsageError(f"ax= is axes of matplotlib, such as one of plt.subplots(); got {type(ax).__name__}")
    asked = _Asked(results, label, color and to_hex(color).upper())
    if ax is not None:
        _add(ax, None, asked, title)
        return ax
    with shown_figure(_size(results, width), width) as figure:
        ax, lower = _axes(figure, results)
        _add(ax, lower, asked, title)
    return ax


def draw_panel(
    ax: Axes,
    several: Sequence[ProbeData],
    names: Sequence[str | None],
    title: str | None = None,
    y: Limits | None = None,
) -> list[LegendEntry]:
    """Draw curves on new axes, which show at least `y`, without the legend of their marks; returns its entries."""
    asked = [_Asked(results, name, None) for results, name in zip(several, names, strict=True)]
    _make_room(ax)
    return _draw(_Drawn(asked, title, None), ax, (None, y), has_marks=False)


def panel_limits(several: Sequence[ProbeData]) -> Limits:
    """The ends of the y axis of these curves on axes of their own."""
    return accuracy_chart(named_curves(several)).y_limits


@keywords(PictureOptions)
def save_plot(results: ProbeData, folder: str | Path, options: PictureOptions) -> Path:
    """Write accuracy_by_layer.png and .svg into `folder`, the same bytes for the same results; returns the first path.

    Args:
        results: from `train_probes`.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(_size(results, options.width), options.width) as figure:
        _add(*_axes(figure, results), _Asked(results, None, None), options.heading)
        return write_figure(figure, Path(folder) / "accuracy_by_layer.png", options.formats)


def _size(results: ProbeData, width: float | None) -> tuple[float, float]:
    if len(results.layers) == 1:
        return SIZE[0], AROUND + ROW * len(interval_rows([Curve(results, "", PALETTE[0])]))
    if is_column_width(width):
        return SIZE[0], SIZE[1] + COLUMN_LEGEND
    return SIZE[0], SIZE[1] + (PANEL if has_compression(results) else 0)


def _axes(figure: Figure, results: ProbeData) -> tuple[Axes, Axes | None]:
    """The axes of the curve, and those of the compression where there is one."""
    if not has_compression(results) or is_column_width(figure.get_figwidth()):
        return figure.subplots(), None
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.6, 1])
    return upper, lower


def _add(ax: Axes, lower: Axes | None, asked: _Asked, title: str | None) -> None:
    """Draw results on the axes; curves that are there get the names and the legend of all."""
    before = next((artist for artist in ax.artists if isinstance(artist, _Drawn)), None) or _Drawn([], None, lower)
    metrics = {each.results.headline for each in before.asked} - {asked.results.headline}
    if metrics:
        raise UsageError(
            f"these axes show {metric_name(metrics.pop())}, and the results are scored by "
            f"{metric_name(asked.results.headline)}; draw them on axes of their own"
        )
    _make_room(ax)
    now = ax.get_xlim(), ax.get_ylim()
    take_off(before.artists)
    shared = ax.get_shared_x_axes().get_siblings(ax), ax.get_shared_y_axes().get_siblings(ax)
    is_theirs = [_has_layers(before) or any(axes.has_data() for axes in siblings) for siblings in shared]
    x, y = (limits if is_kept else None for limits, is_kept in zip(now, is_theirs, strict=True))
    lowest = before.lower or ax
    if lowest.get_xlabel() == before.names[0]:  # nobody named it since
        lowest.set_xlabel("")
    if ax.get_ylabel() == before.names[1]:
        ax.set_ylabel("")
    drawn = _Drawn([*before.asked, asked], before.title if title is None else title, before.lower)
    _draw(drawn, ax, (x, y), before)


def _has_layers(drawn: _Drawn) -> bool:
    """Whether the axes of these curves are layers and scores, and not rows."""
    return any(len(each.results.layers) > 1 for each in drawn.asked)


def _make_room(ax: Axes) -> None:
    """Have the layout make room for names around the axes, unless somebody chose one, or set the margins by hand."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    sides = ("left", "right", "bottom", "top", "wspace", "hspace")
    usual = SubplotParams()
    by_hand = any(getattr(figure.subplotpars, side) != getattr(usual, side) for side in sides)
    if figure.get_layout_engine() is None and not by_hand:
        figure.set_layout_engine("constrained")


def _draw(
    drawn: _Drawn,
    ax: Axes,
    theirs: tuple[Limits | None, Limits | None],
    before: _Drawn | None = None,
    has_marks: bool = True,
) -> list[LegendEntry]:
    """Draw what was asked, beside what is there `before`, within limits that hold `theirs`.

    Returns the legend's entries of marks, which are drawn on these axes only with `has_marks`.
    """
    curves = named_curves(*zip(*drawn.asked, strict=True))
    panels = [ax] if drawn.lower is None else [ax, drawn.lower]
    there = {artist for axes in panels for artist in axes.get_children()}
    ax.add_artist(drawn)
    chart = accuracy_chart(curves, theirs[1] if _has_layers(drawn) else None)
    marks = [entry for entry in chart.legend if not entry.is_own]
    if _has_layers(drawn):
        kept = {} if before is None else before.marks
        legend = [entry for entry in chart.legend if has_marks or entry.is_own]
        chart = replace(chart, x_limits=around(chart.x_limits, theirs[0]), legend=legend)
        drawn.marks, drawn.names = draw_chart(chart, ax, drawn.title, kept, panels[-1])
        if drawn.lower is not None:
            draw_compression(drawn.lower, curves)
            drawn.lower.figure.align_ylabels(panels)  # pyright: ignore[reportAttributeAccessIssue]
    else:
        style_axes([ax], "x")
        draw_intervals(ax, curves)
        drawn.names = name_axes(ax, ax, f"{metric_of(curves[0].results)}, 95% interval", "")
        write_above(ax, replace(chart, legend=[], notes=[]), drawn.title)
    own = {artist for artists in drawn.marks.values() for artist in artists}
    drawn.artists = [a for axes in panels for a in axes.get_children() if a not in there | own]
    return marks
