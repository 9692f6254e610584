"""Several curves in one picture: those that can be compared on the same axes, the others in panels side by side."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from probekit.evaluation.results.data import ProbeData
from probekit.plots.curve import plot_accuracy_by_layer
from probekit.plots.style import INK, PLAIN, new_figure, write_figure
from probekit.text import printable

PANEL_SIZE = (8.0, 4.8)  # inches
COLUMNS = 2


def plot_curves(curves: Sequence[ProbeData], *, title: str | None = None) -> Figure:
    """Draw curves on a new pyplot figure, which a notebook shows: a panel for those that can be compared.

    Args:
        curves: of several label sets and points.
        title: over all panels, as plain text.
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
    if title:
        figure.suptitle(printable(title), color=INK, **PLAIN)
    columns = min(COLUMNS, len(panels))
    axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel().tolist()
    for ax, curves in zip(axes, panels, strict=False):
        by_point = len({curve.meta["point"] for curve in curves}) > 1
        for curve in curves:
            name = str(curve.meta["point" if by_point else "label"])
            plot_accuracy_by_layer(curve, ax, label=name if len(curves) > 1 else None)
    for ax in axes[len(panels) :]:
        ax.remove()
