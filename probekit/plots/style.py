"""Shared by the pictures: colours, names that fit, and files with the same bytes for the same results."""

import io
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.transforms import ScaledTranslation, Transform

from probekit.durable import write_as
from probekit.text import printable

# Okabe and Ito's colours, which colour-blind readers can tell apart
BLUE, GREEN, RED, GREY, INK = "#0072B2", "#009E73", "#D55E00", "#6B6B6B", "#222222"
PALE_BLUE = "#74B3DA"
PALETTE = (BLUE, RED, GREEN, "#CC79A7", "#E69F00", "#56B4E9", INK)  # of several curves, in this order
NAME_LENGTH = 28  # longer names are cut in the middle
SMALL = 8.33  # points; the size of everything but titles, whatever the user's style
DPI = 200  # of a PNG
LINE = 14.0  # points from one small line of text to the next
TITLE, SMALL_TITLE = 12.0, 9.0  # points; a title that is too long for the latter goes on in the next line
TITLE_LINES = 3  # at most; the rest of a title is cut
PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False}  # names hold $, _ and %


def short(name: object, most: int = NAME_LENGTH) -> str:
    """A name with control characters escaped, cut in the middle if it is long."""
    text = printable(name)
    half = most // 2 - 1  # one character less, for the ellipsis
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def inches(ax: Axes) -> tuple[float, float]:
    """Width and height of the axes in inches, before the layout makes room around them."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    box = ax.get_window_extent()
    return box.width / figure.dpi, box.height / figure.dpi


def above(ax: Axes, points: float) -> Transform:
    """Axes coordinates, shifted up by `points`."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return ax.transAxes + ScaledTranslation(0, points / 72, figure.dpi_scale_trans)


def text_width(text: str, size: float = SMALL, weight: str = "normal") -> float:
    """Width in points of one line of text."""
    font = FontProperties(size=size, weight=weight)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]


def _width_of_start(word: str, size: float, weight: str, n: int) -> float:
    """Width of the first `n` letters."""
    return text_width(word[:n], size, weight)


def wrapped(text: str, room: float, size: float = SMALL, weight: str = "normal") -> list[str]:
    """`text` in lines of at most `room` points, broken between words, or inside a word that is longer than a line."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size, weight) <= room:
            lines[-1] += f" {word}"
            continue
        while text_width(word, size, weight) > room and len(word) > 1:
            most = max(1, bisect(range(1, len(word)), room, key=partial(_width_of_start, word, size, weight)))
            lines.append(word[:most])
            word = word[most:]
        lines.append(word)
    return lines


def fitting(texts: Sequence[str], room: float) -> str:
    """The first of the texts that is at most `room` points wide; the last, cut in the middle, if none is."""
    for text in texts:
        if text_width(text) <= room:
            return text
    text = texts[-1]
    while len(text) > 5 and text_width(text) > room:
        text = short(text, len(text) - 1)
    return text


def write_headings(ax: Axes, title: str, lines: list[str], start: float) -> None:
    """A left-aligned title with small lines under it, the lowest `start` points above the axes."""
    write_lines(ax, lines, start)
    write_title(ax, title, start + len(lines) * LINE + 3)


def write_lines(ax: Axes, lines: list[str], start: float, color: str = GREY) -> None:
    """Small lines over the axes, the lowest `start` points above them."""
    for i, line in enumerate(reversed(lines)):
        ax.text(0, 1, line, transform=above(ax, start + i * LINE), color=color, fontsize=SMALL, va="bottom", **PLAIN)


def write_title(ax: Axes, title: str, start: float) -> None:
    """A left-aligned title, `start` points above the axes: smaller if it is long, then in several lines."""
    text, size = fitting_title(title, 72 * inches(ax)[0])
    ax.set_title(text, loc="left", pad=start, fontsize=size, fontweight="bold", color=INK, **PLAIN)


def write_figure_title(figure: Figure, title: str) -> None:
    """A left-aligned title over all axes of a figure, which fits its width whatever the resolution."""
    text, size = fitting_title(title, 72 * 0.93 * figure.get_figwidth())
    figure.suptitle(text, x=0.01, ha="left", fontsize=size, fontweight="bold", color=INK, **PLAIN)


def fitting_title(title: str, room: float) -> tuple[str, float]:
    """The title in lines of at most `room` points, and the size of its letters."""
    size = min(TITLE, max(SMALL_TITLE, TITLE * room / max(1.0, text_width(title, TITLE, "bold"))))
    lines = wrapped(title, room + 1, size, "bold")
    if len(lines) > TITLE_LINES:
        lines = [*lines[: TITLE_LINES - 1], lines[TITLE_LINES - 1][:-1] + "…"]
    return "\n".join(lines), size


@contextmanager
def new_figure(size: tuple[float, float]) -> Iterator[Figure]:
    """A figure without pyplot, in matplotlib's default style whatever the user's."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.hashsalt": "probekit", "svg.fonttype": "none"})  # text stays text
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def write_figure(figure: Figure, path: Path) -> Path:
    """Write `path`.svg and, last, `path`.png, atomically and without dates; returns the latter.

    Raises:
        StorageError: the disk refused.
    """
    png, svg = io.BytesIO(), io.BytesIO()
    _lay_out(figure)
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    figure.savefig(svg, format="svg", metadata={"Date": None})
    write_as(path.with_suffix(".svg"), svg.getvalue())
    write_as(path.with_suffix(".png"), png.getvalue())
    return path.with_suffix(".png")


def _lay_out(figure: Figure) -> None:
    """Make room for all texts once; `savefig` would do it again for each file, and draw the figure twice for that."""
    engine = figure.get_layout_engine()
    if engine is not None:
        figure.set_dpi(DPI)
        engine.execute(figure)
        figure.set_layout_engine(None)
