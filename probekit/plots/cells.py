"""A grid of cells on matplotlib axes: colours, numbers where they fit, names, and the scale of the colours."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from probekit.charts.cells import CellGrid
from probekit.charts.palette import GREY, INK
from probekit.plots.style import PLAIN, inches, is_column, text_width, wrapped, write_headings
from probekit.text import printable

COLOURS = "RdBu"
MUTED = "#DDDDDD"
CELL, TALL = (0.48, 0.3), (0.95, 0.62)  # inches of a cell, and of one with a small text under its own
AROUND = (2.3, 2.1)  # inches for names, headings and the scale
TURNED = 0.9  # inches for column names that are turned
LEAST, MOST = (5.6, 3.4), (14.0, 11.0)  # inches of a figure
SIZE = 8.0  # points of names and numbers
TOO_SMALL = 4.5  # points; smaller numbers are left out
UNDER = 0.62  # of the size of a number, for the text under it
STEP = 0.85  # rows from one row of the footer to the next


def grid_size(grid: CellGrid, least: tuple[float, float] = LEAST) -> tuple[float, float]:
    """Width and height of a grid's picture in inches, at least `least`."""
    wanted = [
        around + cell * n
        for around, cell, n in zip(AROUND, _cell(grid), (len(grid.columns), _n_rows(grid)), strict=True)
    ]
    if max(map(text_width, map(printable, grid.columns))) > 72 * _cell(grid)[0]:
        wanted[1] += TURNED
    width, height = (min(max(low, one), most) for low, one, most in zip(least, wanted, MOST, strict=True))
    return width, height


def _cell(grid: CellGrid) -> tuple[float, float]:
    return TALL if any(cell.under for row in grid.cells for cell in row) else CELL


def _n_rows(grid: CellGrid) -> int:
    return len(grid.rows) + len(grid.footer)


def draw_cells(grid: CellGrid, ax: Axes, title: str | None = None, size: float | None = None) -> None:
    """Draw a grid with its headings.

    Args:
        grid: what is drawn.
        ax: empty axes.
        title: over the notes; "" for none.  [default: the grid's name]
        size: of the title's letters; None fits it into the width.
    """
    fills = _fills(grid)
    edges = [np.arange(n + 1) - 0.5 for n in (len(grid.columns), len(grid.rows))]
    ax.pcolormesh(*edges, fills, edgecolors="white", linewidth=0.8)
    _write_numbers(grid, ax, fills)
    halo = [withStroke(linewidth=3.2, foreground="white")]  # seen on dark cells too
    for i, row in enumerate(grid.cells):
        for j in (j for j, cell in enumerate(row) if cell.framed):
            look: dict[str, Any] = {"fill": False, "edgecolor": INK, "linewidth": 1.6, "zorder": 3}
            ax.add_patch(Rectangle((j - 0.45, i - 0.43), 0.9, 0.86, path_effects=halo, **look))
    _name_axes(grid, ax)
    write_headings(ax, grid.name if title is None else title, [printable(note) for note in grid.notes], 7, size)


def draw_scale(grid: CellGrid, figure: Figure, axes: Axes | Sequence[Axes], **where: Any) -> None:
    """Draw the colour bar of the axes that share it."""
    if grid.scale is not None:
        name, most = grid.scale
        bar = figure.colorbar(ScalarMappable(Normalize(-most, most), COLOURS), ax=axes, **where)
        bar.set_label(name, fontsize=SIZE)
        bar.ax.tick_params(labelsize=SIZE, length=2)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def _fills(grid: CellGrid) -> np.ndarray:
    """A colour for each cell, [R, C, 4]; the ends of the map, which are too dark for dark text, are left out."""
    levels = np.array([[cell.level for cell in row] for row in grid.cells])
    fills = colormaps[COLOURS](0.04 + 0.46 * (1 + levels.clip(-1, 1)))
    fills[np.array([[cell.muted for cell in row] for row in grid.cells])] = to_rgba(MUTED)
    return fills


def _is_dark(colour: np.ndarray) -> bool:
    """Whether white text is easier to read on a colour than dark text, by the luminance of Rec. 709."""
    return float(np.dot(colour[:3], (0.2126, 0.7152, 0.0722))) < 0.5


def _room(grid: CellGrid, ax: Axes) -> tuple[float, float]:
    """Points of a cell's width and height."""
    wide, high = inches(ax)
    wide *= 0.7 if is_column(ax) else 1  # names and scale take the rest
    return 72 * wide / len(grid.columns), 72 * high / _n_rows(grid)


def _write_numbers(grid: CellGrid, ax: Axes, fills: np.ndarray) -> None:
    """The texts of the cells and of the footer, all of one size, where they fit."""
    wide, high = _room(grid, ax)
    longest = max(text_width(text, 1.0) for row in grid.cells for each in row for text in (each.text, "0.00"))
    is_tall = _cell(grid) == TALL
    under = max(text_width(each.under, UNDER) for row in grid.cells for each in row)
    size = min(SIZE + 3 * is_tall, 0.86 * wide / max(longest, under), (0.36 if is_tall else 0.62) * high)
    if size < TOO_SMALL:
        return
    down = -1 if grid.first_at_bottom else 1
    middle: dict[str, Any] = {"ha": "center", "va": "center", "clip_on": True, **PLAIN}
    for i, row in enumerate(grid.cells):
        for j, cell in enumerate(row):
            look: dict[str, Any] = middle | {"color": GREY if cell.muted else "white" if _is_dark(fills[i, j]) else INK}
            up = 0.13 * down if cell.under else 0
            ax.text(j, i - up, printable(cell.text), fontsize=size, fontweight="bold" if cell.bold else None, **look)
            if cell.under:
                ax.text(j, i + 0.24 * down, printable(cell.under), fontsize=UNDER * size, **look)
    grey: dict[str, Any] = middle | {"color": GREY}
    for y, (_, texts) in zip(_footer_rows(grid), grid.footer, strict=True):
        for j, text in enumerate(texts):
            if text_width(text, 0.92 * size) <= wide:
                ax.text(j, y, text, fontsize=0.92 * size, **grey)


def _footer_rows(grid: CellGrid) -> list[float]:
    """The heights of the footer's rows."""
    start, sign = (-1.1, -1) if grid.first_at_bottom else (len(grid.rows) + 0.1, 1)
    return [start + sign * STEP * k for k in range(len(grid.footer))]


def _name_axes(grid: CellGrid, ax: Axes) -> None:
    wide, high = _room(grid, ax)
    columns, rows = [printable(name) for name in grid.columns], [_lines(name) for name in grid.rows]
    numbers = all(name.lstrip("-").replace(",", "")[:1].isdigit() for name in columns)
    longest = max(text_width(name, SIZE) for name in columns) + 4
    is_turned = longest > wide and not numbers
    rotated: dict[str, Any] = {"rotation": 50, "ha": "right", "rotation_mode": "anchor"} if is_turned else {}
    size = max(TOO_SMALL, min(SIZE, 1.1 * wide)) if is_turned else SIZE
    step = max(1, math.ceil((size if is_turned else longest if numbers else 0) / wide))
    ax.set_xticks(range(0, len(columns), step), columns[::step], fontsize=size, **rotated, **PLAIN)
    lines = max(1, math.ceil(10 * max(name.count("\n") + 1 for name in rows) / high))
    shown = range(0, len(rows), lines)
    names = [*(rows[i] for i in shown), *(printable(name) for name, _ in grid.footer)]
    ax.set_yticks([*shown, *_footer_rows(grid)], names, fontsize=SIZE, **PLAIN)
    ax.tick_params(length=0, pad=4)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    end = 0.45 if grid.footer else 0
    if grid.first_at_bottom:
        ax.set_ylim(min([-0.5, *_footer_rows(grid)]) - end, len(rows) - 0.5)
    else:
        ax.set_ylim(max([len(rows) - 0.5, *_footer_rows(grid)]) + end, -0.5)
    room = 72 * inches(ax)[0]
    ax.set_xlabel("\n".join(wrapped(printable(grid.x_name), room, SIZE + 1)), fontsize=SIZE + 1, **PLAIN)
    ax.set_ylabel(grid.y_name, fontsize=SIZE + 1, **PLAIN)
    ax.spines[:].set_visible(False)


def _lines(name: str) -> str:
    return "\n".join(map(printable, name.split("\n")))
