"""Transfer as a matrix: train on the rows, test on the columns, coloured by the distance from chance level."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.patches import Rectangle

from probekit.charts.palette import GREY, INK, short
from probekit.evaluation.results.coordinates import within_text
from probekit.evaluation.results.data import TransferCell, TransferData
from probekit.evaluation.results.surface_note import short_shift_text
from probekit.evaluation.results.wording import metric_name, position_name
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.style import PLAIN, inches, new_figure, shown_figure, write_figure, write_headings
from probekit.text import printable

CELL = (0.95, 0.62)  # inches
AROUND = (2.3, 1.9)  # inches for names and headings
COLOURS = "RdBu"
NAME = 20  # letters of a task's name
_GAP = 0.18  # of a cell, above the row of the majority class


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
    if ax is None:
        with shown_figure(transfer_size(results), width) as figure:
            return plot_transfer(results, figure.subplots(), title=title)
    _draw_cells(results, ax)
    if _has_majority(results):
        _draw_majority(results, ax)
    _name_axes(results, ax)
    _write_headings(results, ax, title)
    return ax


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
    with new_figure(transfer_size(results), options.width) as figure:
        plot_transfer(results, figure.subplots(), title=options.heading)
        return write_figure(figure, Path(folder) / "transfer.png", options.formats)


def _has_majority(results: TransferData) -> bool:
    return results.headline == "accuracy"


def transfer_size(results: TransferData) -> tuple[float, float]:
    """Width and height of the matrix's picture in inches."""
    wide, high = len(results.tasks), len(results.rows)
    return max(5.6, AROUND[0] + CELL[0] * wide), AROUND[1] + CELL[1] * (high + _has_majority(results))


def _draw_cells(results: TransferData, ax: Axes) -> None:
    fills = _fills(results)
    size = _font_size(results, ax)
    for i, row in enumerate(results.chosen):
        for j, cell in enumerate(row):
            fill = tuple(fills[i, j])
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=fill, edgecolor="white", linewidth=1.5))
            _write_cell(ax, (j, i), cell, results.headline, "white" if is_dark(fill) else INK, size)


def _fills(results: TransferData) -> np.ndarray:
    """A colour for each cell, [rows, T, 4]: white at chance level, grey where there is no value."""
    least = -1.0 if results.headline == "r2" else 0.0
    norm = TwoSlopeNorm(results.meta["chance"], vmin=least, vmax=1)
    values = np.clip(results.matrix, least, 1)
    fills = colormaps[COLOURS](0.04 + 0.92 * np.asarray(norm(np.nan_to_num(values))))
    fills[np.isnan(values)] = (0.93, 0.93, 0.93, 1)
    return fills


def _font_size(results: TransferData, ax: Axes) -> float:
    """Size of the numbers, in points, that fits the cells."""
    wide, high = inches(ax)
    columns, rows = len(results.tasks), len(results.rows)
    return min(11.0, 72 * wide * 0.8 / columns / 4.2, 72 * high * 0.7 / (rows + 1) / 2.6)


def _write_cell(ax: Axes, at: tuple[int, int], cell: TransferCell, metric: str, colour: str, size: float) -> None:
    """The value, bold on the probe's own task, and its interval under it."""
    x, y = at
    middle: dict[str, Any] = {"ha": "center", "va": "center", "color": colour}
    if metric not in cell.metrics:
        ax.text(x, y, "–", fontsize=size, **middle)  # noqa: RUF001
        return
    ends = cell.intervals.get(metric)
    weight = "bold" if cell.train_task == cell.test_task else "normal"
    text = f"{cell.metrics[metric]:.2f}"
    ax.text(x, y - (0.13 if ends else 0), text, fontsize=size, fontweight=weight, **middle)
    if ends:
        ax.text(x, y + 0.24, f"{ends[0]:.2f}–{ends[1]:.2f}", fontsize=0.62 * size, **middle)  # noqa: RUF001


def is_dark(colour: Sequence[float] | np.ndarray) -> bool:
    """Whether white text is easier to read on a colour than dark text, by the luminance of Rec. 709."""
    red, green, blue = colour[:3]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5


def _draw_majority(results: TransferData, ax: Axes) -> None:
    """The score on each test split of always predicting the largest class of its train split."""
    y = len(results.rows) + _GAP
    size = _font_size(results, ax)
    for j, share in enumerate(results.meta["majority"]):
        ax.add_patch(Rectangle((j - 0.5, y - 0.5), 1, 0.6, facecolor="#F1F1F1", edgecolor="white", linewidth=1.5))
        ax.text(j, y - 0.2, f"{share:.2f}", color=GREY, ha="center", va="center", fontsize=0.85 * size)


def _name_axes(results: TransferData, ax: Axes) -> None:
    tasks, n, n_rows = results.tasks, len(results.tasks), len(results.rows)
    rows = [f"{short(row[0].train_task, NAME)}\n{_at(row)}" for row in results.chosen]
    has_majority = _has_majority(results)
    ys = [*range(n_rows), *([n_rows + _GAP - 0.2] if has_majority else [])]
    ax.set_yticks(ys, [*rows, *(["majority class"] if has_majority else [])], fontsize="small", **PLAIN)
    names = [short(task, NAME) for task in tasks]
    fits = max(map(len, names)) * 0.075 < 0.8 * inches(ax)[0] / n
    rotated = {} if fits else {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(n), names, fontsize="small", **rotated, **PLAIN)
    ax.tick_params(length=0, pad=4)
    ax.set_xlim(-0.5, n - 0.5)
    ax.set_ylim(n_rows - 0.5 + (_GAP + 0.6 if has_majority else 0), -0.5)
    ax.set_ylabel("trained on")
    ax.set_xlabel("tested on")
    ax.spines[:].set_visible(False)


def _at(row: Sequence[TransferCell]) -> str:
    """The layer of a row, which is another one for each tested value where each leaves out another value."""
    return f"at {row[0].place}" if len({cell.place for cell in row}) == 1 else "each at its own layer"


def _write_headings(results: TransferData, ax: Axes, title: str | None) -> None:
    meta = results.meta
    rows = f", {short(rows)}" if (rows := within_text(meta)) else ""
    read = f"{printable(meta['point'])}, {position_name(meta['position'])}{rows}; {printable(meta['probe'])} probe"
    shown = f"test {metric_name(results.headline)}, 95% interval; white: chance level, {meta['chance']:.2f}"
    own = f"Transfer between tasks in {short(meta['model'])}"
    notes = [read, shown]
    if shift := meta.get("shift"):
        notes += [short_shift_text(shift)] if shift["change"] is not None else []
        own = f"{short(meta['label'])}: shift over {short(shift['column'])} in {short(meta['model'])}"
    write_headings(ax, own if title is None else title, notes, start=7)
