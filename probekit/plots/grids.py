"""Grids: layers by positions or heads, transfer, patching, and several of them in one figure."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probekit.causal.data import CausalData, PatchGrid
from probekit.charts.cells import CellGrid
from probekit.charts.grids import patching_grids, positions_grid, transfer_grid
from probekit.charts.palette import GREY, short
from probekit.errors import UsageError
from probekit.evaluation.by_position.data import PositionData, noun_of
from probekit.evaluation.results.data import TransferData
from probekit.evaluation.results.grids import Grid
from probekit.evaluation.results.wording import probed
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.cells import LEAST, draw_cells, draw_scale, grid_size
from probekit.plots.style import (
    SMALL,
    is_column_width,
    new_figure,
    shown_figure,
    wrapped,
    write_figure,
    write_figure_title,
)
from probekit.text import printable

COLUMNS = 2  # panels of patching side by side
PANEL = (4.3, 2.7)  # inches of one, at least
WIDEST = 16.0  # inches of two panels: the numbers of 20 columns are then 8 points high
PANEL_TITLE = 9.8  # points
MOST_GRIDS = 12  # in one picture: 79 inches, drawn in 23 s


def plot_positions(
    results: PositionData, ax: Axes | None = None, *, title: str | None = None, width: float | None = None
) -> Axes:
    """Draw the headline of every layer and position, or head, on test.

    White is chance: the score of the majority class of train there, or of the mean. Cells that are not above
    chance after the correction for all cells are grey. The cell that validation selects has a frame.

    Args:
        results: from `train_probes(by=...)`.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows.
        title: as plain text; "" for none.  [default: what was probed, in which model]
        width: of a new figure, in inches; 3.25 is a column of a paper.  [default: by the positions]
    """
    return _plot(positions_grid(results), ax, title, width)


def plot_transfer(
    results: TransferData, ax: Axes | None = None, *, title: str | None = None, width: float | None = None
) -> Axes:
    """Draw the headline of every pair of tasks, each probe at the layer selected on its own validation split.

    Args:
        results: from `transfer`.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows.
        title: as plain text; "" for none.  [default: the model]
        width: of a new figure, in inches; 3.25 is a column of a paper.  [default: by the tasks]
    """
    return _plot(transfer_grid(results), ax, title, width)


def plot_grids(grids: Sequence[Grid], *, title: str | None = None, width: float | None = None) -> Figure:
    """Draw grids under one another on a new pyplot figure; returns it.

    Args:
        grids: from `train_probes` with `by` or `shift_column`.
        title: over all of them, as plain text.  [default: none; each has its own]
        width: in inches.  [default: that of the widest]
    """
    charts = _charts(grids)
    with shown_figure(_size(charts), width) as figure:
        _draw(charts, figure, title)
    return figure


def plot_patching(data: CausalData, *, title: str | None = None, width: float | None = None) -> Figure:
    """Draw every patching grid on a new pyplot figure, which a notebook shows.

    Args:
        data: of a run with patching.
        title: of the picture, as plain text; "" for none.  [default: model and task]
        width: in inches; 3.25 is a column of a paper.  [default: by the tokens]

    Raises:
        UsageError: no patching was run.
    """
    charts = _patching(data)
    with shown_figure(_size(charts, _columns(charts, width)), width) as figure:
        _draw_patching(data, charts, figure, title)
    return figure


@keywords(PictureOptions)
def save_positions_plot(results: PositionData, folder: str | Path, options: PictureOptions) -> Path:
    """Write positions.png or heads.png, and .svg, the same bytes for the same results; returns the first path.

    Args:
        results: from `train_probes(by=...)`.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    return _save([positions_grid(results)], Path(folder) / f"{noun_of(results)}s.png", options)


@keywords(PictureOptions)
def save_transfer_plot(results: TransferData, folder: str | Path, options: PictureOptions) -> Path:
    """Write transfer.png and .svg into `folder`, the same bytes for the same results; returns the first path.

    Args:
        results: from `transfer`.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    return _save([transfer_grid(results)], Path(folder) / "transfer.png", options)


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
    return _save(_charts(grids), Path(folder) / "grids.png", options)


@keywords(PictureOptions)
def save_patching_plot(data: CausalData, folder: str | Path, options: PictureOptions) -> Path:
    """Write patching.png and .svg into `folder`, the same bytes for the same results; returns the first path.

    Args:
        data: of a run with patching.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        UsageError: no patching was run.
        StorageError: the disk refused.
    """
    charts = _patching(data)
    with new_figure(_size(charts, _columns(charts, options.width)), options.width) as figure:
        _draw_patching(data, charts, figure, options.heading)
        return write_figure(figure, Path(folder) / "patching.png", options.formats)


def _charts(grids: Sequence[Grid]) -> list[CellGrid]:
    """The first `MOST_GRIDS`; the last of them says that there are more."""
    charts = [*map(_chart, grids[:MOST_GRIDS])]
    if len(grids) > MOST_GRIDS:
        more = f"the first {MOST_GRIDS} of {len(grids)} grids; probekit report shows all of them"
        charts[-1] = replace(charts[-1], notes=[*charts[-1].notes, more])
    return charts


def _chart(grid: Grid) -> CellGrid:
    return transfer_grid(grid) if isinstance(grid, TransferData) else positions_grid(grid)


def _plot(chart: CellGrid, ax: Axes | None, title: str | None, width: float | None) -> Axes:
    if ax is None:
        with shown_figure(grid_size(chart), width) as figure:
            return _plot(chart, figure.subplots(), title, None)
    draw_cells(chart, ax, title)
    figure = ax.get_figure(root=True)
    assert figure is not None
    draw_scale(chart, figure, ax, fraction=0.04, pad=0.02)
    return ax


def _save(charts: Sequence[CellGrid], path: Path, options: PictureOptions) -> Path:
    with new_figure(_size(charts), options.width) as figure:
        if len(charts) == 1:
            _plot(charts[0], figure.subplots(), options.heading, None)
        else:
            _draw(charts, figure, options.heading)
        return write_figure(figure, path, options.formats)


def _size(charts: Sequence[CellGrid], columns: int | None = None) -> tuple[float, float]:
    """Inches of grids under one another, or of panels in columns."""
    sizes = [grid_size(chart, PANEL if columns else LEAST) for chart in charts]
    columns = columns or 1
    rows = [sizes[i : i + columns] for i in range(0, len(sizes), columns)]
    wanted = max(sum(width for width, _ in row) for row in rows), sum(max(high for _, high in row) for row in rows)
    return min(wanted[0], WIDEST), wanted[1]


def _draw(charts: Sequence[CellGrid], figure: Figure, title: str | None) -> None:
    axes = figure.subplots(len(charts), 1, height_ratios=[grid_size(chart)[1] for chart in charts], squeeze=False)[:, 0]
    if title:
        write_figure_title(figure, printable(title))
    for ax, chart in zip(axes, charts, strict=True):
        _plot(chart, ax, "" if title == "" else None, None)


def _patching(data: CausalData) -> list[CellGrid]:
    if not data.grids:
        raise UsageError("these results have no patching; run causal with --method patch (methods=['patch'])")
    return patching_grids(data)


def _columns(charts: Sequence[CellGrid], width: float | None) -> int:
    return 1 if is_column_width(width) else min(COLUMNS, len(charts))


def _draw_patching(data: CausalData, charts: Sequence[CellGrid], figure: Figure, title: str | None) -> None:
    columns = _columns(charts, figure.get_figwidth())
    axes = figure.subplots(-(-len(charts) // columns), columns, squeeze=False).ravel().tolist()
    for ax in axes[len(charts) :]:
        ax.remove()
    for chart, ax in zip(charts, axes, strict=False):
        draw_cells(chart, ax, size=PANEL_TITLE)
    draw_scale(charts[0], figure, axes[: len(charts)], shrink=0.8, aspect=28, pad=0.02)
    room = 72 * 0.97 * figure.get_figwidth()
    below = [line for text in (_recovery_text(data.grids), _first_layer(data.grids)) for line in wrapped(text, room)]
    figure.supxlabel("\n".join(below), x=0.01, ha="left", fontsize=SMALL, color=GREY)
    text = _patching_title(data) if title is None else printable(title)
    if text:
        write_figure_title(figure, text)


def _recovery_text(grids: Sequence[PatchGrid]) -> str:
    """What the colours mean, with the logit differences at both ends if all grids have the same."""
    known = {grid.logit_differences for grid in grids}
    ends = known.pop() if len(known) == 1 else None
    corrupted, clean = ("", "") if ends is None else (f" ({ends[1]:z.2f})", f" ({ends[0]:z.2f})")
    return f"recovery of the logit difference: 0 is the corrupted run{corrupted}, 1 the clean run{clean}"


def _first_layer(grids: Sequence[PatchGrid]) -> str:
    first = min(min(grid.layers) for grid in grids)
    return f"layer {first}, {'the first block' if first == 0 else 'the first one patched'}, is the lowest row"


def _patching_title(data: CausalData) -> str:
    task = short(data.meta["task"]) if data.meta.get("task") else None
    what, where = (
        probed(short(data.meta["label"]), task) if data.meta.get("label") else ("", f" ({task})" if task else "")
    )
    return f"Activation patching{' of ' if what else ''}{what} in {short(data.meta['model'])}{where}"
