"""The picture of probe results: test score by layer, alone or several curves on one axes; rows for a single place.

A panel under the curve shows how far the activations of each layer compress the training labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import is_color_like, to_hex
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotParams
from matplotlib.ticker import AutoLocator, ScalarFormatter

from probekit.charts.axes import hidden, layer_axis_name, shown_ticks, x_limits, y_limits
from probekit.charts.curves import Curve, metric_of, own_names, place_text
from probekit.charts.palette import GREY, INK, PALETTE, short
from probekit.charts.references import comparisons
from probekit.errors import UsageError
from probekit.evaluation.results.data import LayerResult, ProbeData, is_output
from probekit.evaluation.results.surface_note import short_nuisance_text
from probekit.evaluation.results.wording import metric_name
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.comparisons import draw_comparisons
from probekit.plots.headings import Entries, legend_of, without_marks, write_above
from probekit.plots.intervals import draw_intervals, interval_rows
from probekit.plots.lines import draw_curve
from probekit.plots.margin import MarginLabel, draw_margin, is_narrow, is_short
from probekit.plots.style import (
    PLAIN,
    SMALL,
    inches,
    is_column,
    is_column_width,
    new_figure,
    shown_figure,
    wrapped,
    write_figure,
)
from probekit.text import listed, printable

TIMES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)  # ticks
LEAST = 1.05  # below this everywhere, the labels are not compressed


def compressions(results: ProbeData) -> list[float]:
    """Bits of the uniform code / bits of each place; none where a place has no code."""
    codes = [layer.codelength["compression"] for layer in results.layers if layer.codelength]
    return codes if len(codes) == len(results.layers) > 1 else []


def has_panel(results: ProbeData) -> bool:
    """Whether there is a compression to draw: a flat line at 1x is none."""
    return max(compressions(results), default=0) >= LEAST


def compression_note(results: ProbeData) -> list[str]:
    """What the subtitle says when the panel would be flat and is left out."""
    values = compressions(results)
    if not values or has_panel(results):
        return []
    return [f"no layer compresses the labels (at most {max(values):.2f}\N{MULTIPLICATION SIGN})"]


def draw_compression(ax: Axes, curves: Sequence[Curve]) -> None:
    """Compression by layer; dotted: from the class frequencies alone."""
    shown = [(curve, values) for curve in curves if (values := compressions(curve.results))]
    alone: dict[str, MarginLabel] = {}
    for curve, values in shown:
        ax.plot(
            curve.xs, values, color=INK if curve.is_alone else curve.color, linewidth=1.4, marker="o", markersize=2.5
        )
        code = curve.results.layers[0].codelength or {}
        times = code["uniform_bits"] / code["prior_bits"]
        text = f"class frequencies {times:.2f}"
        alone.setdefault(text, MarginLabel(times, text, GREY, is_line=True))
    every = [value for _, values in shown for value in values] + [label.value for label in alone.values()]
    low, high = min(0.9, *every), max(2.2, *every)
    ax.set_yscale("log")  # compression goes from about 1 to several hundred
    ax.set_ylim(low * 0.95, high * 1.15)
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
NAME = 56  # letters of a curve's name
MOST_BANDS = 2  # curves whose bands can be told apart
Limits = tuple[float, float]


@dataclass(frozen=True)
class _Asked:
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
        artists: on the axes and on `lower`.
    """

    def __init__(self, asked: list[_Asked], title: str | None, lower: Axes | None) -> None:
        super().__init__()
        self.set_in_layout(False)
        self.asked, self.title, self.lower = asked, title, lower
        self.artists: list[Artist] = []


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
    for all. Whatever else is on the axes stays, and so do the names of the axes. A figure without a layout engine,
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
    asked = _Asked(results, label, color)
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
) -> Entries:
    """Draw curves on new axes, which show at least `y`, without the legend of their marks; returns its entries."""
    asked = [_Asked(results, name, None) for results, name in zip(several, names, strict=True)]
    marks: Entries = []
    _make_room(ax)
    _draw(_Drawn(asked, title, None), ax, (None, y), marks)
    return marks


def panel_limits(several: Sequence[ProbeData]) -> Limits:
    """The ends of the y axis of these curves on axes of their own."""
    curves = _curves([_Asked(results, None, None) for results in several])
    return y_limits(curves, comparisons(curves))


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
    return SIZE[0], SIZE[1] + (PANEL if has_panel(results) else 0)


def _axes(figure: Figure, results: ProbeData) -> tuple[Axes, Axes | None]:
    """The axes of the curve, and those of the compression where there is one."""
    if not has_panel(results) or is_column_width(figure.get_figwidth()):
        return figure.subplots(), None
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.6, 1])
    return upper, lower


def _add(ax: Axes, lower: Axes | None, asked: _Asked, title: str | None) -> None:
    """Draw results on the axes; curves that are there are drawn again, with the names and the legend of all."""
    before = next((artist for artist in ax.artists if isinstance(artist, _Drawn)), None) or _Drawn([], None, lower)
    metrics = {each.results.headline for each in before.asked} - {asked.results.headline}
    if metrics:
        raise UsageError(
            f"these axes show {metric_name(metrics.pop())}, and the results are scored by "
            f"{metric_name(asked.results.headline)}; draw them on axes of their own"
        )
    _make_room(ax)
    now = ax.get_xlim(), ax.get_ylim()
    for artist in before.artists:
        if artist.axes is not None:  # not removed by somebody else
            artist.remove()
    shared = ax.get_shared_x_axes().get_siblings(ax), ax.get_shared_y_axes().get_siblings(ax)
    is_theirs = [_has_layers(before.asked) or any(axes.has_data() for axes in siblings) for siblings in shared]
    x, y = (limits if is_kept else None for limits, is_kept in zip(now, is_theirs, strict=True))
    _clear_names(before, ax)
    _draw(_Drawn([*before.asked, asked], before.title if title is None else title, before.lower), ax, (x, y))


def _has_layers(asked: Sequence[_Asked]) -> bool:
    """Whether the axes of these curves are layers and scores, and not rows."""
    return any(len(each.results.layers) > 1 for each in asked)


def _clear_names(before: _Drawn, ax: Axes) -> None:
    """Take back the names that axes got, unless somebody named them since."""
    if before.asked:
        x, y = _axis_names(_curves(before.asked))
        lowest = before.lower or ax
        if " ".join(lowest.get_xlabel().split()) == x:
            lowest.set_xlabel("")
        if ax.get_ylabel() == y:
            ax.set_ylabel("")


def _axis_names(curves: Sequence[Curve]) -> tuple[str, str]:
    metric = metric_of(curves[0].results)
    if all(len(curve.results.layers) == 1 for curve in curves):
        return f"{metric}, 95% interval", ""
    return layer_axis_name(curves), metric


def _make_room(ax: Axes) -> None:
    """Have the layout make room for names around the axes, unless somebody chose one, or set the margins by hand."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    sides = ("left", "right", "bottom", "top", "wspace", "hspace")
    usual = SubplotParams()
    by_hand = any(getattr(figure.subplotpars, side) != getattr(usual, side) for side in sides)
    if figure.get_layout_engine() is None and not by_hand:
        figure.set_layout_engine("constrained")


def _curves(asked: Sequence[_Asked]) -> list[Curve]:
    """The curves with a name and a colour for each."""
    names = own_names([each.results for each in asked]) if len(asked) > 1 else [""]
    taken = [to_hex(each.color) for each in asked if each.color is not None]
    free = [color for color in PALETTE if to_hex(color) not in taken] or list(PALETTE)
    curves = []
    for rank, (each, name) in enumerate(zip(asked, names, strict=True)):
        color = each.color
        if color is None:
            color = free.pop(0)
            free.append(color)  # after the last the first comes again
        text = name if each.label is None else short(each.label, NAME)
        curves.append(Curve(each.results, text, color, rank, len(asked) == 1))
    if len(curves) <= MOST_BANDS:
        return curves
    best = max(curves, key=lambda curve: curve.quoted)
    return [replace(curve, has_band=curve is best) for curve in curves]


def _draw(drawn: _Drawn, ax: Axes, theirs: tuple[Limits | None, Limits | None], shared: Entries | None = None) -> None:
    """Draw what was asked, within limits that hold `theirs`; the entries of marks go into `shared`, if it is given."""
    curves = _curves(drawn.asked)
    panels = [ax] if drawn.lower is None else [ax, drawn.lower]
    before = {artist for axes in panels for artist in axes.get_children()}
    ax.add_artist(drawn)
    if _has_layers(drawn.asked):
        _draw_layers(drawn, ax, curves, theirs, shared)
    else:
        draw_intervals(ax, curves)
        _finish([ax], _axis_names(curves), grid="x")
        write_above(ax, curves, ([], []), [], drawn.title)
    drawn.artists = [a for axes in panels for a in axes.get_children() if a not in before]


def _draw_layers(
    drawn: _Drawn,
    ax: Axes,
    curves: list[Curve],
    theirs: tuple[Limits | None, Limits | None],
    shared: Entries | None,
) -> None:
    panels = [ax] if drawn.lower is None else [ax, drawn.lower]
    others = comparisons(curves)
    x, y = map(_around, (x_limits(curves), y_limits(curves, others)), theirs)
    ax.set_xlim(*x)
    ax.set_ylim(*y)
    lines = [draw_curve(ax, curve) for curve in curves]
    marks = {name: mark for _, own in reversed(lines) for name, mark in own.items()}
    marks |= draw_comparisons(ax, others, is_alone=len(curves) == 1)
    name_layers(ax, curves)
    _finish(panels, _axis_names(curves), grid="y")
    legend = legend_of(curves, [line for line, _ in lines], marks)
    if shared is not None:
        shared[:] = legend[1]
        legend = legend[0], []
    if is_short(ax):
        legend = without_marks(legend, is_alone=len(curves) == 1)
    write_above(ax, curves, legend, _notes(curves, y), drawn.title)
    if drawn.lower is not None:
        draw_compression(drawn.lower, curves)
        drawn.lower.figure.align_ylabels(panels)  # pyright: ignore[reportAttributeAccessIssue]


def _around(ours: Limits, theirs: Limits | None) -> Limits:
    """Limits that hold both."""
    return ours if theirs is None else (min(*ours, *theirs), max(*ours, *theirs))


def _finish(panels: Sequence[Axes], names: tuple[str, str], grid: Literal["x", "y"]) -> None:
    """Name the axes, unless somebody else did; draw the grid."""
    lowest = panels[-1]
    if not lowest.get_xlabel():
        words = wrapped(names[0], 72 * inches(lowest)[0], float(lowest.xaxis.label.get_fontsize()))
        lowest.set_xlabel("\n".join(words), **PLAIN)
    if not panels[0].get_ylabel():
        panels[0].set_ylabel(names[1], **PLAIN)
    for axes in panels:
        axes.grid(visible=False, axis="both")
        axes.grid(axis=grid, color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)


def _notes(curves: list[Curve], limits: Limits) -> list[str]:
    """What the picture leaves out: scores beyond its ends, and a compression that would be flat."""
    beyond = [
        (value, place_text(curve.results, layer)) for curve in curves for _, value, layer in hidden(curve, *limits)
    ]
    notes = []
    if beyond:
        value, place = min(beyond)
        notes.append(f"{metric_of(curves[0].results)} down to {value:.4g} ({place}) is below the axis")
    if len(curves) == 1 and (nuisance := curves[0].results.meta.get("nuisance")):
        names = listed([short(name) for name in nuisance["names"]], most=4)
        notes.append(f"nuisance {names}: {short_nuisance_text(curves[0].results)}")
    return [*notes, *(compression_note(curves[0].results) if len(curves) == 1 else [])]


def name_layers(ax: Axes, curves: Sequence[Curve]) -> None:
    """The ticks of the layer axis; a layer's number comes before the output of a curve that ends there."""
    names: dict[int, str] = {}
    for curve in curves:
        for x, layer in zip(curve.xs, curve.results.layers, strict=True):
            name = _tick(curve.results, layer)
            names[x] = name if name.isdigit() else names.get(x, name)
    xs = sorted(names)
    shown = shown_ticks(xs, 6 if is_column(ax) else 12 if is_narrow(ax) else 30)
    ax.set_xticks(shown, [names[x] for x in shown], fontsize=SMALL if len(shown) > 16 or is_column(ax) else 10, **PLAIN)
    ax.set_xticks(xs, minor=True)
    ax.yaxis.set_major_locator(AutoLocator())  # rows may have been here before
    ax.yaxis.set_major_formatter(ScalarFormatter())


def _tick(results: ProbeData, layer: LayerResult) -> str:
    if is_output(results, layer):
        return "out"
    return printable(layer.point) if layer.layer is None else str(layer.layer)
