"""Texts as the model reads them, with the tokens that are read on a coloured ground."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from probekit.activations.plan.reading.show import ShownReading, ShownRow
from probekit.charts.palette import GREY, INK, short
from probekit.plots.style import PLAIN, SMALL, new_figure, shown_figure, write_figure
from probekit.text import printable

COLUMNS, MOST_LINES = 96, 8  # letters in a line, and lines of one text; the rest of it is cut
LETTER, LINE = 0.602 * SMALL / 72, 1.9 * SMALL / 72  # inches; DejaVu Sans Mono's letters are 0.602 em wide
READ, FORMATTING, PLAIN_TOKEN = "#FFD54F", "#F4A6A0", "#F0F0F0"
LEGEND = ((READ, "read: content"), (FORMATTING, "read: formatting"), (PLAIN_TOKEN, "not read"))


def plot_reading(shown: ShownReading, ax: Axes | None = None) -> Axes:
    """Draw the tokens of each text as boxes, those that are read coloured.

    Args:
        shown: as `show_reading` gives it.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows.
    """
    if ax is None:
        with shown_figure(_size(shown)) as figure:
            return plot_reading(shown, figure.subplots())
    line = 0.0
    for row in shown:
        for said in row.reads:
            ax.text(0, line, short(f"{row.id}: {said}", COLUMNS), fontsize=SMALL, color=INK, va="center", **PLAIN)
            line += 1
        for drawn in _lines(row):
            for start, text, colour in drawn:
                box = Rectangle((start, line - 0.45), max(len(text), 0.6), 0.9, facecolor=colour, edgecolor="white")
                ax.add_patch(box)
                ax.text(start, line, text, fontsize=SMALL, family="monospace", color=INK, va="center", **PLAIN)
            line += 1
        line += 0.7
    for k, (colour, meaning) in enumerate(LEGEND):
        ax.add_patch(Rectangle((20 * k, line - 0.4), 2, 0.8, facecolor=colour))
        ax.text(20 * k + 3, line, meaning, fontsize=SMALL, color=GREY, va="center", **PLAIN)
    ax.set_xlim(0, COLUMNS)
    ax.set_ylim(line + 0.8, -1)
    ax.axis("off")
    return ax


def save_reading_plot(shown: ShownReading, path: str | Path) -> Path:
    """Write the picture as PNG and SVG; returns the PNG's path.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(_size(shown)) as figure:
        plot_reading(shown, figure.add_subplot())
        return write_figure(figure, Path(path))


def _lines(row: ShownRow) -> list[list[tuple[int, str, str]]]:
    """The tokens in lines, each as (column, text, colour)."""
    lines: list[list[tuple[int, str, str]]] = [[]]
    column = 0
    for token in row.tokens:
        text = printable(token.text)[:COLUMNS]
        if column + len(text) > COLUMNS:
            lines.append([])
            column = 0
        colour = (FORMATTING if token.is_formatting else READ) if token.is_read else PLAIN_TOKEN
        lines[-1].append((column, text, colour))
        column += len(text)
    return lines if len(lines) <= MOST_LINES else [*lines[:MOST_LINES], [(0, "...", PLAIN_TOKEN)]]


def _size(shown: ShownReading) -> tuple[float, float]:
    """Width and height of the picture in inches."""
    n_lines = sum(len(row.reads) + len(_lines(row)) + 0.7 for row in shown) + 1.8
    return COLUMNS * LETTER + 0.2, n_lines * LINE + 0.1
