"""Everything above the axes: title, what was probed, cautions, and the legend, stacked without overlap."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from probekit.charts.lines import LegendEntry, LineChart
from probekit.charts.palette import GREY, RED
from probekit.plots.margin import is_short
from probekit.plots.style import (
    LINE,
    LOOKS,
    PLAIN,
    SMALL,
    above,
    fitting,
    inches,
    is_column,
    paler,
    text_width,
    wrapped,
    write_lines,
    write_title,
)
from probekit.text import printable

_HANDLE, _TEXT_GAP, _COLUMN_GAP = 1.8, 0.8, 1.2  # sizes of the font
BANDS = 0.16, 0.3  # opacity of bands, and of grey ones
_MOST_LINES = 2  # of marks; more than these have shorter names, if that makes fewer of them
_LINE_GAP = 0.57  # sizes of the font; with the height of a text it makes a `LINE`
_SPACING: dict[str, Any] = {
    "handlelength": _HANDLE,
    "handletextpad": _TEXT_GAP,
    "columnspacing": _COLUMN_GAP,
    "labelspacing": _LINE_GAP,
}
_HANDLE_WIDTH = (_HANDLE + _TEXT_GAP) * SMALL  # points


def write_above(ax: Axes, chart: LineChart, title: str | None) -> None:
    """Write the headings of axes; `title` is None for the chart's name, "" where a caption has the facts."""
    room = 72 * inches(ax)[0]
    legend = [entry for entry in chart.legend if not (entry.is_minor and is_short(ax))]
    height = 8 + draw_legends(ax, legend, room) * LINE
    cautions = [line for text in chart.cautions for line in wrapped(f"! {text}", room)]
    write_lines(ax, cautions, height, color=RED)
    height += len(cautions) * LINE
    is_bare = is_short(ax) or is_column(ax) or title == ""
    lines = wrapped("; ".join([*([] if is_bare else chart.facts), *chart.notes]), room)
    write_lines(ax, lines, height)
    write_title(ax, chart.name if title is None else printable(title), height + len(lines) * LINE + 3)


def draw_legends(ax: Axes, legend: Sequence[LegendEntry], room: float) -> int:
    """Draw the lines of their own over the marks, above the axes; returns the number of lines."""
    own, marks = ([entry for entry in legend if entry.is_own is is_own] for is_own in (True, False))
    texts, columns = _fitting_marks([entry.texts for entry in marks], room)
    height = -(-len(texts) // columns)
    if marks:
        ax.add_artist(_legend(ax, texts, marks, columns, 4))
    if own:
        rows = [fitting(entry.texts, room - _HANDLE_WIDTH) for entry in own]
        ax.add_artist(_legend(ax, rows, own, 1, 4 + height * LINE))
    return height + len(own)


def _handle(entry: LegendEntry) -> Artist:
    """What an entry shows beside its text."""
    if entry.look in ("band", "shade"):
        return Patch(facecolor=entry.color, alpha=0.42 if entry.look == "shade" else BANDS[entry.color == GREY], lw=0)
    dots: dict[str, Any] = {"marker": "o", "markersize": 4.5, "linewidth": 2} if entry.dots else {"linewidth": 1.2}
    look: dict[str, Any] = dots | LOOKS[entry.look]
    return Line2D([], [], color=paler(entry.color) if entry.thin else entry.color, **look)


def _fitting_marks(several: Sequence[Sequence[str]], room: float) -> tuple[list[str], int]:
    """A text of each mark, and the number of columns."""
    texts = [fitting(variants, room - _HANDLE_WIDTH) for variants in several]
    columns = _columns(texts, room)
    for level in range(1, max(map(len, several), default=1)):
        if len(texts) <= _MOST_LINES * columns:
            break
        shorter = [fitting(variants[min(level, len(variants) - 1) :], room - _HANDLE_WIDTH) for variants in several]
        if _columns(shorter, room) > columns:
            texts, columns = shorter, _columns(shorter, room)
    return texts, columns


def _columns(texts: Sequence[str], room: float) -> int:
    """The number of columns that makes the fewest lines; of several such numbers the smallest."""
    widths = [text_width(text) + _HANDLE_WIDTH for text in texts]

    def fits(n: int) -> bool:
        columns = np.array_split(widths, n)  # as matplotlib fills them
        return n == 1 or sum(max(column) for column in columns) + (n - 1) * _COLUMN_GAP * SMALL <= room

    return min(filter(fits, range(1, max(1, len(texts)) + 1)), key=lambda n: (-(-len(texts) // n), n))


def write_under(figure: Figure, marks: Sequence[LegendEntry]) -> None:
    """One legend of marks under all axes of a figure."""
    texts, columns = _fitting_marks([entry.texts for entry in marks], 72 * 0.97 * figure.get_figwidth())
    where = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": SMALL}
    legend = figure.legend(list(map(_handle, marks)), texts, **where, **_SPACING)
    for text in legend.get_texts():
        text.set(**PLAIN)


def _legend(ax: Axes, texts: Iterable[str], marks: Sequence[LegendEntry], columns: int, height: float) -> Legend:
    legend = Legend(
        ax,
        list(map(_handle, marks)),
        list(texts),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        bbox_transform=above(ax, height),
        borderaxespad=0,
        borderpad=0,
        ncols=columns,
        frameon=False,
        fontsize=SMALL,
        **_SPACING,
    )
    legend.set_clip_on(False)  # what is clipped takes no part in the layout
    for text in legend.get_texts():
        text.set(**PLAIN)
    return legend
