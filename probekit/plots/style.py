"""Shared by the pictures: colours, names that fit, and files with the same bytes for the same results."""

import io
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.transforms import ScaledTranslation, Transform

from probekit.charts.palette import GREY, INK, short
from probekit.files.durable import write_as
from probekit.options.check import is_real
from probekit.options.picture import check_inches
from probekit.text import printable

SMALL = 8.33  # points; the size of everything but titles, whatever the user's style
NARROW = 5.0  # inches; narrower axes have shorter names and no values in the margin, narrower figures no facts
DPI = 200  # of a PNG
LINE = 14.0  # points from one small line of text to the next
TITLE, SMALL_TITLE = 12.0, 9.0  # points; a title that is too long for the latter goes on in the next line
TITLE_LINES = 3  # at most; the rest of a title is cut
_DATELESS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False}  # names hold $, _ and %
_AROUND: dict[str, Any] = {"linestyle": "", "markersize": 10, "markerfacecolor": "none", "markeredgewidth": 1.8}
LOOKS: dict[str, dict[str, Any]] = {
    "solid": {"linestyle": "-"},
    "dashed": {"linestyle": (0, (4, 2))},
    "dotted": {"linestyle": (0, (1, 1.8))},
    "dash-dotted": {"linestyle": (0, (6, 2, 1, 2))},
    "tied": {"linewidth": 4, "solid_capstyle": "butt"},
    "ring": {"marker": "o", **_AROUND},
    "square": {"marker": "s", **_AROUND},
    "hollow": {"linestyle": "", "marker": "o", "markerfacecolor": "white", "markersize": 4.5},
    "above": {"linestyle": "", "marker": "^", "markersize": 6},
    "below": {"linestyle": "", "marker": "v", "markersize": 6},
}
"""How marks of a description of lines are drawn, in the picture and in its legend."""


def inches(ax: Axes) -> tuple[float, float]:
    """Width and height of the axes in inches, before the layout makes room around them."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    box = ax.get_window_extent()
    return box.width / figure.dpi, box.height / figure.dpi


def is_column(ax: Axes) -> bool:
    """Whether the figure is as narrow as a column of a paper, whose caption has the facts."""
    figure = ax.get_figure(root=True)
    return figure is not None and is_column_width(figure.get_figwidth())


def is_column_width(width: Any) -> bool:
    """Whether a picture of so many inches is as narrow as a column; None is a picture's own width."""
    return is_real(width) and width < NARROW


def style_axes(several: Iterable[Axes], grid: Literal["x", "y"] = "y") -> None:
    """The grid and the frame of axes."""
    for ax in several:
        ax.grid(visible=False, axis="both")
        ax.grid(axis=grid, color="#E6E6E6", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)


def paler(color: str) -> str:
    """Halfway to white."""
    red, green, blue = ((1 + part) / 2 for part in to_rgb(color))
    return to_hex((red, green, blue))


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


def write_headings(ax: Axes, title: str, lines: list[str], start: float, size: float | None = None) -> None:
    """A left-aligned title with small lines under it, the lowest `start` points above the axes.

    `size` is that of a panel's title, which is not bold; None fits the title into the width.
    """
    lines = [] if is_column(ax) else [part for line in lines for part in wrapped(line, 72 * inches(ax)[0])]
    write_lines(ax, lines, start)
    above_lines = start + len(lines) * LINE + 3
    if size is None:
        write_title(ax, title, above_lines)
    else:
        ax.set_title(printable(title), loc="left", pad=above_lines, fontsize=size, color=INK, **PLAIN)


def write_lines(ax: Axes, lines: list[str], start: float, color: str = GREY) -> None:
    """Small lines over the axes, the lowest `start` points above them."""
    for i, line in enumerate(reversed(lines)):
        ax.text(0, 1, line, transform=above(ax, start + i * LINE), color=color, fontsize=SMALL, va="bottom", **PLAIN)


def write_title(ax: Axes, title: str, start: float) -> None:
    """A left-aligned title, `start` points above the axes: smaller if it is long, then in several lines."""
    text, size = fitting_title(printable(title), 72 * inches(ax)[0])
    ax.set_title(text, loc="left", pad=start, fontsize=size, fontweight="bold", color=INK, **PLAIN)


def write_figure_title(figure: Figure, title: str) -> None:
    """A left-aligned title over all axes of a figure, which fits its width whatever the resolution."""
    text, size = fitting_title(printable(title), 72 * 0.93 * figure.get_figwidth())
    figure.suptitle(text, x=0.01, ha="left", fontsize=size, fontweight="bold", color=INK, **PLAIN)


def fitting_title(title: str, room: float) -> tuple[str, float]:
    """The title in lines of at most `room` points, and the size of its letters."""
    size = min(TITLE, max(SMALL_TITLE, TITLE * room / max(1.0, text_width(title, TITLE, "bold"))))
    lines = wrapped(title, room + 1, size, "bold")
    if len(lines) > TITLE_LINES:
        lines = [*lines[: TITLE_LINES - 1], lines[TITLE_LINES - 1][:-1] + "…"]
    return "\n".join(lines), size


class NotebookFigure(Figure):
    """A pyplot figure that a cell of a notebook shows once, though it is also the value of the cell's last line.

    The inline backend shows every open figure at the end of the cell, and IPython shows the value; both ask here.
    """

    _cell: int | None = None  # that has shown it

    def _ipython_display_(self) -> None:
        from IPython import get_ipython  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]

        shell = get_ipython()
        cell = getattr(shell, "execution_count", None)
        if cell is None or cell != self._cell:
            self._cell = cell
            raise NotImplementedError  # IPython then shows it as any other figure


@contextmanager
def shown_figure(size: tuple[float, float], width: float | None = None) -> Iterator[Figure]:
    """A new pyplot figure to draw on, which a notebook shows; after an error it is closed.

    Args:
        size: in inches.
        width: in inches, instead of that of `size`; a column of a paper has small letters throughout.
    """
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=of_width(size, width), layout="constrained", FigureClass=NotebookFigure)
    try:
        with mpl.rc_context(_letters(width)):
            yield figure
    except BaseException:
        plt.close(figure)
        raise
    for ax in figure.axes if _letters(width) else ():
        ax.tick_params(labelsize=SMALL)  # of ticks that are made when the picture is drawn


@contextmanager
def new_figure(size: tuple[float, float], width: float | None = None) -> Iterator[Figure]:
    """A figure without pyplot, in matplotlib's default style whatever the user's; arguments as for `shown_figure`."""
    with mpl.rc_context():
        mpl.rcdefaults()
        # text stays text; publishers refuse Type 3 fonts
        mpl.rcParams.update({"svg.hashsalt": "probekit", "svg.fonttype": "none", "pdf.fonttype": 42})
        mpl.rcParams.update(_letters(width))
        figure = Figure(figsize=of_width(size, width), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def _letters(width: float | None) -> dict[Any, Any]:
    """Settings for the letters of ticks and axis names, which are 10 points otherwise."""
    return {"font.size": SMALL} if is_column_width(width) else {}


def of_width(size: tuple[float, float], width: float | None) -> tuple[float, float]:
    """Inches of a picture that is made narrower or wider; its height changes less, as letters keep their size."""
    check_inches(width)
    return size if width is None else (width, size[1] * (width / size[0]) ** 0.5)


def write_figure(figure: Figure, path: Path, formats: Sequence[str] = ()) -> Path:
    """Write the picture in each format, atomically and without dates; returns the path in the first of them.

    Args:
        figure: from `new_figure`.
        path: its ending is replaced.
        formats: png, svg or pdf.  [default: the path's own ending, if it is .svg or .pdf; else png and svg]

    Raises:
        StorageError: the disk refused.
    """
    own = path.suffix.lower().removeprefix(".")
    formats = formats or ((own,) if own in ("svg", "pdf") else ("png", "svg"))
    _lay_out(figure)
    for name in reversed(formats):  # the one that is reported last
        content = io.BytesIO()
        figure.savefig(content, format=name, dpi=DPI, metadata=_DATELESS[name])
        write_as(path.with_suffix(f".{name}"), content.getvalue())
    return path.with_suffix(f".{formats[0]}")


def _lay_out(figure: Figure) -> None:
    """Make room for all texts once; `savefig` would do it again for each file, and draw the figure twice for that."""
    engine = figure.get_layout_engine()
    assert engine is not None  # `new_figure` makes one
    figure.set_dpi(DPI)
    engine.execute(figure)
    figure.set_layout_engine(None)
