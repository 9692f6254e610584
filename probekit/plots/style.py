"""Shared by the pictures: colours, names that fit, and files with the same bytes for the same results."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation, Transform

from probekit.durable import write_as
from probekit.text import printable

# Okabe and Ito's colours, which colour-blind readers can tell apart
BLUE, GREEN, RED, GREY, INK = "#0072B2", "#009E73", "#D55E00", "#6B6B6B", "#222222"
PALE_BLUE = "#74B3DA"
NAME_LENGTH = 28  # longer names are cut in the middle
LETTERS_PER_INCH = 9  # of the title's usual size; longer titles are set smaller
LINE = 14.0  # points from one small line of text to the next
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


def write_headings(ax: Axes, title: str, lines: list[str], start: float) -> None:
    """A left-aligned title with small lines under it, the lowest `start` points above the axes."""
    for i, line in enumerate(reversed(lines)):
        where = above(ax, start + i * LINE)
        ax.text(0, 1, line, transform=where, color=GREY, fontsize="small", va="bottom", **PLAIN)
    size = 12 * min(1.0, inches(ax)[0] * LETTERS_PER_INCH / len(title))
    pad = start + len(lines) * LINE + 3
    ax.set_title(title, loc="left", pad=pad, fontsize=size, fontweight="bold", color=INK, **PLAIN)


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
    figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
    figure.savefig(svg, format="svg", metadata={"Date": None})
    write_as(path.with_suffix(".svg"), svg.getvalue())
    write_as(path.with_suffix(".png"), png.getvalue())
    return path.with_suffix(".png")
