"""Several curves in one picture: those that can be compared on the same axes, the others in panels side by side."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probekit.evaluation.results.data import ProbeData
from probekit.plots.curve import draw_panel, plot_accuracy_by_layer
from probekit.plots.curves import BAND, POINTWISE
from probekit.plots.headings import Entries, write_under
from probekit.plots.style import new_figure, write_figure, write_figure_title
from probekit.text import printable

PANEL_SIZE = (8.0, 4.8)  # inches
COLUMNS = 2


def plot_curves(curves: Sequence[ProbeData], *, title: str | None = None) -> Figure:
    """Draw curves on a new pyplot figure, which a notebook shows: a panel for those that can be compared.

    Args:
        curves: of several label sets and points.
        title: over all panels, or of the only one, as plain text.
    """
    from matplotlib import pyplot as plt

    panels = panels_of(curves)
    figure = plt.figure(figsize=_size(panels), layout="constrained")
    _draw(panels, figure, title)
    return figure


def save_curves_plot(curves: Sequence[ProbeData], folder: str | Path, *, title: str | None = None) -> Path:
    """Write curves.png and .svg into `folder`, the same bytes for the same curves; returns the PNG's path.

    Raises:
        StorageError: the disk refused.
    """
    panels = panels_of(curves)
    with new_figure(_size(panels)) as figure:
        _draw(panels, figure, title)
        return write_figure(figure, Path(folder) / "curves.png")


def panels_of(curves: Sequence[ProbeData]) -> list[list[ProbeData]]:
    """The curves of each panel: those of one label set; with one point, those of one metric.

    Curves of one label set have the same test rows and the same chance level.
    """
    one_point = len({curve.meta["point"] for curve in curves}) == 1
    panels: dict[str, list[ProbeData]] = {}
    for curve in curves:
        panels.setdefault(curve.headline if one_point else curve.meta["label"], []).append(curve)
    return list(panels.values())


def _size(panels: Sequence[Sequence[ProbeData]]) -> tuple[float, float]:
    columns = min(COLUMNS, len(panels))
    return PANEL_SIZE[0] * columns, PANEL_SIZE[1] * -(-len(panels) // columns)


def _draw(panels: Sequence[Sequence[ProbeData]], figure: Figure, title: str | None) -> None:
    if title and len(panels) > 1:
        write_figure_title(figure, printable(title))
    columns = min(COLUMNS, len(panels))
    axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel().tolist()
    for ax in axes[len(panels) :]:
        ax.remove()
    if len(panels) == 1 or not _draw_with_one_legend(panels, figure, axes):
        for ax, curves in zip(axes, panels, strict=False):
            ax.clear()
            for curve, name in zip(curves, _names(curves), strict=True):
                plot_accuracy_by_layer(curve, ax, label=name, title=title if len(panels) == 1 else None)


def _draw_with_one_legend(panels: Sequence[Sequence[ProbeData]], figure: Figure, axes: Sequence[Axes]) -> bool:
    """Draw the panels with the legend of their marks under all of them; False if their marks mean different things."""
    entries = [draw_panel(ax, curves, _names(curves)) for ax, curves in zip(axes, panels, strict=False)]
    marks: Entries = list({variants[0]: (variants, mark) for own in entries for variants, mark in own}.values())
    is_alone = {len(curves) == 1 for curves in panels}
    if len(is_alone) > 1 or {BAND, POINTWISE} <= {variants[0] for variants, _ in marks}:  # one look, two meanings
        return False
    if marks:
        write_under(figure, marks, is_grey=is_alone == {False})
    return True


def _names(curves: Sequence[ProbeData]) -> list[str | None]:
    by_point = len({curve.meta["point"] for curve in curves}) > 1
    return [str(curve.meta["point" if by_point else "label"]) if len(curves) > 1 else None for curve in curves]
