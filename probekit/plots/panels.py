"""Several curves in one picture: those that can be compared on the same axes, the others in panels side by side.

With several probes, or values of a column, at several points there is a row of panels for each label set, and in it a
panel for each point, with a curve for each of them. The panels of a row have the same y axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probekit.charts.by_k import k_chart
from probekit.charts.curves import BAND, POINTWISE, metric_of
from probekit.charts.lines import Limits
from probekit.charts.palette import short
from probekit.evaluation.results.by_k import curves_by_k
from probekit.evaluation.results.coordinates import coordinates, shown_coordinates, within_text
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.wording import decoding
from probekit.options.check import is_real
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.curve import draw_panel, panel_limits, plot_accuracy_by_layer
from probekit.plots.headings import write_under
from probekit.plots.lines import draw_chart
from probekit.plots.style import new_figure, shown_figure, write_figure, write_figure_title
from probekit.text import printable

PANEL_SIZE = (8.0, 4.8)  # inches
SMALL_PANEL = (6.0, 4.4)  # inches, of a panel in a row for each label set
LEAST_PANEL = 2.8  # inches of width
LEGEND_ROW, FEW = 0.2, 4  # inches that each further curve adds to a panel of more than a few
COLUMNS = 2
MOST_COLUMNS = 4  # of a row; more points go on in the next


@dataclass(frozen=True)
class _Panel:
    """Curves on axes of their own, with a title and the ends of the y axis at least; None leaves them to the curves."""

    curves: list[ProbeData]
    title: str | None = None
    y: Limits | None = None


def plot_curves(curves: Sequence[ProbeData], *, title: str | None = None, width: float | None = None) -> Figure:
    """Draw curves on a new pyplot figure, which a notebook shows: a panel for those that can be compared.

    Args:
        curves: of several label sets, points and probes.
        title: over all panels, or of the only one, as plain text; "" for none.
        width: in inches; 3.25 is a column of a paper.  [default: 6 to 8 for each panel]
    """
    with shown_figure(_size(curves, width), width) as figure:
        _draw(curves, figure, title)
    return figure


@keywords(PictureOptions)
def save_curves_plot(curves: Sequence[ProbeData], folder: str | Path, options: PictureOptions) -> Path:
    """Write curves.png and .svg into `folder`, the same bytes for the same curves; returns the first path.

    Args:
        curves: as for `plot_curves`.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(_size(curves, options.width), options.width) as figure:
        _draw(curves, figure, options.heading)
        return write_figure(figure, Path(folder) / "curves.png", options.formats)


def panels_of(curves: Sequence[ProbeData]) -> list[list[ProbeData]]:
    """The curves of each panel.

    They are those of one label set, with several probes (or values) at several points of one point of it, and with one
    point and one of these those of one metric. Curves of one label set and value have the same test rows and the same
    chance level.
    """
    one_point = len({curve.meta["point"] for curve in curves}) == 1
    panels: dict[tuple[str, ...], list[ProbeData]] = {}
    for curve in curves:
        key = (curve.headline,) if one_point and not _has_several_of_a_point(curves) else (curve.meta["label"],)
        panels.setdefault((*key, curve.meta["point"]) if _is_grid(curves) else key, []).append(curve)
    return list(panels.values())


def _is_grid(curves: Sequence[ProbeData]) -> bool:
    """Whether there is a row for each label set, with a panel for each point."""
    return _has_several_of_a_point(curves) and len({curve.meta["point"] for curve in curves}) > 1


def _has_several_of_a_point(curves: Sequence[ProbeData]) -> bool:
    """Whether several curves have the same label set and point: of several probes, or of the values of a column."""
    return len(shown_coordinates(curves)) > 2


def _panels(curves: Sequence[ProbeData]) -> list[_Panel]:
    """The panels with their titles and the ends of their y axes."""
    panels = panels_of(curves)
    if not _is_grid(curves):
        return [_Panel(own) for own in panels]
    ends: dict[str, Limits] = {}
    for own in panels:
        label, (low, high) = own[0].meta["label"], panel_limits(own)
        before = ends.get(label, (low, high))
        ends[label] = min(low, before[0]), max(high, before[1])
    return [_Panel(own, _grid_title(own[0]), ends[own[0].meta["label"]]) for own in panels]


def _grid_title(curve: ProbeData) -> str:
    return f"{short(curve.meta['label'])}: {short(curve.meta['point'])}"


def _columns(curves: Sequence[ProbeData], width: float | None) -> int:
    """How many panels are side by side in a picture of so many inches; None is as wide as they are."""
    room = max(1, int(width / LEAST_PANEL)) if width is not None and is_real(width) else MOST_COLUMNS
    if _is_grid(curves):
        return min(MOST_COLUMNS, room, len({curve.meta["point"] for curve in curves}))
    return min(COLUMNS, room, len(panels_of(curves)))


def _size(curves: Sequence[ProbeData], given: float | None) -> tuple[float, float]:
    if curves_by_k(curves):
        return PANEL_SIZE
    columns, panels = _columns(curves, given), panels_of(curves)
    width, height = SMALL_PANEL if _is_grid(curves) else PANEL_SIZE
    height += LEGEND_ROW * max(0, max(map(len, panels)) - FEW)
    return width * columns, height * -(-len(panels) // columns)


def _draw(curves: Sequence[ProbeData], figure: Figure, title: str | None) -> None:
    if by_k := curves_by_k(curves):
        draw_chart(k_chart(by_k), figure.subplots(), title)
        return
    panels, columns = _panels(curves), _columns(curves, figure.get_figwidth())
    if title is None and _is_grid(curves):
        title = decoding({key: short(curves[0].meta[key]) for key in ("model", "task")}, metric_of(curves[0]))
    if title and len(panels) > 1:
        write_figure_title(figure, printable(title))
    axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel().tolist()
    for ax in axes[len(panels) :]:
        ax.remove()
    if len(panels) == 1 or not _draw_with_one_legend(panels, figure, axes):
        for ax, panel in zip(axes, panels, strict=False):
            ax.clear()
            for curve, name in zip(panel.curves, _names(panel.curves), strict=True):
                own = title if len(panels) == 1 else panel.title
                plot_accuracy_by_layer(curve, ax, label=name, title=own)


def _draw_with_one_legend(panels: Sequence[_Panel], figure: Figure, axes: Sequence[Axes]) -> bool:
    """Draw the panels with the legend of their marks under all of them; False if their marks mean different things."""
    entries = [
        draw_panel(ax, panel.curves, _names(panel.curves), panel.title, panel.y)
        for ax, panel in zip(axes, panels, strict=False)
    ]
    marks = list({entry.texts[0]: entry for own in entries for entry in own}.values())
    is_alone = {len(panel.curves) == 1 for panel in panels}
    if len(is_alone) > 1 or {BAND, POINTWISE} <= {entry.texts[0] for entry in marks}:  # one look, two meanings
        return False
    if marks:
        write_under(figure, marks)
    return True


def _names(curves: Sequence[ProbeData]) -> list[str | None]:
    """What the curves of a panel differ in."""
    if len(curves) == 1:
        return [None]
    every = [coordinates(curve.meta) | {"within": within_text(curve.meta)} for curve in curves]
    differ = [name for name in ("point", "label", "within", "probe") if len({one[name] for one in every}) > 1]
    shown = differ[:1] if differ[:1] in (["point"], ["label"]) else differ
    return [", ".join(one[name] for name in shown) for one in every]
