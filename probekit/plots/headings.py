"""Everything above the axes: title, what was probed, cautions, and the legend, stacked without overlap."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from probekit.charts.curves import BAND, POINTWISE, Curve, metric_of, shared_facts
from probekit.charts.palette import GREY, RED
from probekit.evaluation.results.cautions import cautions
from probekit.evaluation.results.wording import decoding
from probekit.plots.comparisons import LINES
from probekit.plots.lines import NESTED, SELECTED, TEST, TIED, scores_of
from probekit.plots.margin import is_short
from probekit.plots.style import (
    LINE,
    PLAIN,
    SMALL,
    above,
    fitting,
    inches,
    is_column,
    text_width,
    wrapped,
    write_lines,
    write_title,
)
from probekit.text import printable

Entries = list[tuple[list[str], Artist]]
"""Of a legend: the variants of each text, the longest first, and what it names."""
Blocks = tuple[Entries, Entries]
"""Entries in lines of their own, and under them entries side by side."""
_HANDLE, _TEXT_GAP, _COLUMN_GAP = 1.8, 0.8, 1.2  # sizes of the font
SHORTER = {TIED: "tied with the best", BAND: "95% band", POINTWISE: "95% interval"}
_MOST_LINES = 2  # of marks; more than these have shorter names, if that makes fewer of them
_LINE_GAP = 0.57  # sizes of the font; with the height of a text it makes a `LINE`
_SPACING: dict[str, Any] = {
    "handlelength": _HANDLE,
    "handletextpad": _TEXT_GAP,
    "columnspacing": _COLUMN_GAP,
    "labelspacing": _LINE_GAP,
}
_HANDLE_WIDTH = (_HANDLE + _TEXT_GAP) * SMALL  # points


def write_above(ax: Axes, curves: Sequence[Curve], legend: Blocks, notes: list[str], title: str | None) -> None:
    """Write the headings of axes whose curves are drawn.

    Args:
        ax: with the curves.
        curves: what is drawn.
        legend: from `legend_of`.
        notes: more for the lines under the title.
        title: None for the facts that the curves share.
    """
    room = 72 * inches(ax)[0]
    height = draw_legends(ax, legend, room) * LINE
    warnings = _caution_lines(curves, room)
    write_lines(ax, warnings, 8 + height, color=RED)
    height += len(warnings) * LINE
    is_bare = is_short(ax) or is_column(ax) or title == ""  # the caption has the facts
    lines = wrapped("; ".join(notes), room) if is_bare else _subtitle(curves, notes, room)
    write_lines(ax, lines, 8 + height)
    write_title(ax, title_of(curves) if title is None else printable(title), 8 + height + len(lines) * LINE + 3)


def title_of(curves: Sequence[Curve]) -> str:
    """Label, model and task, as far as all curves have the same."""
    return decoding(shared_facts([curve.results for curve in curves]), metric_of(curves[0].results))


def _subtitle(curves: Sequence[Curve], notes: list[str], room: float) -> list[str]:
    shared = shared_facts([curve.results for curve in curves])
    read = ", ".join(shared[key] for key in ("point", "position") if key in shared)
    read = ", ".join(part for part in (read, shared.get("within", "")) if part)
    parts = [read, shared.get("probe", ""), shared.get("examples", ""), shared.get("quick", ""), *notes]
    return wrapped("; ".join(part for part in parts if part), room)


def _caution_lines(curves: Sequence[Curve], room: float) -> list[str]:
    """Each caution once, with the names of its curves unless it is of all."""
    owners: dict[str, list[str]] = {}
    for curve in curves:
        for text in cautions(curve.results):
            owners.setdefault(printable(text), []).append(curve.name)
    texts = [text if len(of) == len(curves) else f"{', '.join(of)}: {text}" for text, of in owners.items()]
    return [line for text in texts for line in wrapped(f"! {text}", room)]


def legend_of(curves: Sequence[Curve], lines: Sequence[Artist], marks: dict[str, Artist]) -> Blocks:
    """The legend: a line for the selected place, or for each of several curves, and the marks that they share."""
    if len(curves) > 1:
        rows = [(_row(curve.name, scores_of(curve)), line) for curve, line in zip(curves, lines, strict=True)]
        whose = "" if all(curve.has_band for curve in curves) else " of the best curve"
        return rows, [(_variants(name, whose), mark) for name, mark in marks.items()]
    (curve,), (line,) = curves, lines
    rest = [(_variants(name), mark) for name, mark in marks.items() if name not in (SELECTED, NESTED)]
    chosen = [(_row(name, scores_of(curve)), mark) for name, mark in marks.items() if name in (SELECTED, NESTED)]
    return chosen, [([curve.name or TEST], line), *rest]


def without_marks(legend: Blocks, is_alone: bool) -> Blocks:
    """The legend of low axes: the curves, and the lines that have no name in the margin."""
    own, marks = legend
    if is_alone:
        return own, marks[:1]
    return own, [(variants, mark) for variants, mark in marks if variants[0] in LINES]


def _variants(name: str, whose: str = "") -> list[str]:
    """The texts of a mark, the longest first; `whose` follows the name of a band."""
    more = whose if name in (BAND, POINTWISE) else ""
    return [f"{each}{more}" for each in (name, SHORTER.get(name)) if each is not None]


def _row(name: str, scores: list[str]) -> list[str]:
    if not scores:
        return [name]
    word = name.split()[0] if name in (SELECTED, NESTED) else name
    return [f"{name}: {score}" for score in scores] + [f"{word}: {scores[-1]}", f"{word} {scores[-1].split()[-1]}"]


def draw_legends(ax: Axes, legend: Blocks, room: float) -> int:
    """Draw the lines of their own over the marks, above the axes; returns the number of lines."""
    own, marks = legend
    texts, columns = _fitting_marks([variants for variants, _ in marks], room)
    height = -(-len(texts) // columns)
    if marks:
        drawn = _legend(ax, texts, [mark for _, mark in marks], columns, 4)
        if len(own) > 1:
            _make_grey(drawn)
        ax.add_artist(drawn)
    if own:
        rows = [fitting(variants, room - _HANDLE_WIDTH) for variants, _ in own]
        ax.add_artist(_legend(ax, rows, [mark for _, mark in own], 1, 4 + height * LINE))
    return height + len(own)


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


def _make_grey(legend: Legend) -> None:
    """Marks of several curves belong to none of them."""
    for handle in legend.legend_handles:
        if isinstance(handle, Line2D):
            handle.set(color=GREY, markeredgecolor=GREY)
        elif handle is not None:
            handle.set(color=GREY, alpha=0.3)


def _columns(texts: Sequence[str], room: float) -> int:
    """The number of columns that makes the fewest lines; of several such numbers the smallest."""
    widths = [text_width(text) + _HANDLE_WIDTH for text in texts]

    def fits(n: int) -> bool:
        columns = np.array_split(widths, n)  # as matplotlib fills them
        return n == 1 or sum(max(column) for column in columns) + (n - 1) * _COLUMN_GAP * SMALL <= room

    return min(filter(fits, range(1, max(1, len(texts)) + 1)), key=lambda n: (-(-len(texts) // n), n))


def write_under(figure: Figure, marks: Entries, is_grey: bool) -> None:
    """One legend of marks under all axes of a figure; grey if they belong to several curves."""
    texts, columns = _fitting_marks([variants for variants, _ in marks], 72 * 0.97 * figure.get_figwidth())
    where = {"loc": "outside lower center", "ncols": columns, "frameon": False, "fontsize": SMALL}
    legend = figure.legend([mark for _, mark in marks], texts, **where, **_SPACING)
    if is_grey:
        _make_grey(legend)
    for text in legend.get_texts():
        text.set(**PLAIN)


def _legend(ax: Axes, texts: Iterable[str], marks: Sequence[Artist], columns: int, height: float) -> Legend:
    legend = Legend(
        ax,
        marks,
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
