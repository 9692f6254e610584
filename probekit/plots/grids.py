"""Several heatmaps under one another: by position or head, or of a shift, for several points, label sets and probes."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from probekit.evaluation.results.data import TransferData
from probekit.evaluation.results.grids import Grid
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.heatmap import plot_transfer, transfer_size
from probekit.plots.positions import plot_positions, positions_size
from probekit.plots.style import new_figure, shown_figure, write_figure, write_figure_title
from probekit.text import printable


def plot_grids(grids: Sequence[Grid], *, title: str | None = None, width: float | None = None) -> Figure:
    """Draw grids under one another on a new pyplot figure; returns it.

    Args:
        grids: from `train_probes` with `by` or `shift_column`.
        title: over all of them, as plain text.  [default: none; each has its own]
        width: in inches.  [default: that of the widest]
    """
    with shown_figure(_size(grids), width) as figure:
        _draw(grids, figure, title)
        return figure


@keywords(PictureOptions)
def save_grids_plot(grids: Sequence[Grid], folder: str | Path, options: PictureOptions) -> Path:
    """Write grids.png and .svg, the same bytes for the same results; returns the first path.

    Args:
        grids: from `train_probes` with `by` or `shift_column`.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(_size(grids), options.width) as figure:
        _draw(grids, figure, options.heading)
        return write_figure(figure, Path(folder) / "grids.png", options.formats)


def _draw(grids: Sequence[Grid], figure: Figure, title: str | None) -> None:
    ratios = [_size_of(grid)[1] for grid in grids]
    axes = figure.subplots(len(grids), 1, height_ratios=ratios, squeeze=False)[:, 0]
    if title:
        write_figure_title(figure, printable(title))
    for ax, grid in zip(axes, grids, strict=True):
        own = "" if title == "" else None
        if isinstance(grid, TransferData):
            plot_transfer(grid, ax, title=own)
        else:
            plot_positions(grid, ax, title=own)


def _size_of(grid: Grid) -> tuple[float, float]:
    return transfer_size(grid) if isinstance(grid, TransferData) else positions_size(grid)


def _size(grids: Sequence[Grid]) -> tuple[float, float]:
    sizes = [_size_of(grid) for grid in grids]
    return max(width for width, _ in sizes), sum(height for _, height in sizes)
