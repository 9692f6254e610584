"""Activation patching: layer by position, or layer by head, coloured by the recovery of the clean run's answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from probekit.causal.data import CausalData, PatchGrid
from probekit.causal.results.checklist import is_approximate
from probekit.charts.axes import shown_ticks
from probekit.charts.palette import GREY, INK, short
from probekit.errors import UsageError
from probekit.evaluation.results.wording import probed
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.style import (
    LINE,
    PLAIN,
    SMALL,
    inches,
    is_column,
    is_column_width,
    new_figure,
    shown_figure,
    text_width,
    wrapped,
    write_figure,
    write_figure_title,
    write_lines,
)
from probekit.text import counted, printable

COLUMNS = 2  # panels side by side
CELL = (0.34, 0.24)  # inches
PANEL = (3.4, 6.6), (1.3, 4.6)  # inches: least and most of the width, then of the height
AROUND = (0.9, 1.45)  # inches around a panel
MOST_NUMBERS = 200  # cells of a panel; more of them have colours alone
WITHIN = "#D4D4D4"  # cells inside the placebo band
COLOURS = "RdBu"  # red: away from the clean run, white: nothing, blue: towards it
TOKEN = 14  # letters of a token


def plot_patching(data: CausalData, *, title: str | None = None, width: float | None = None) -> Figure:
    """Draw every patching grid on a new pyplot figure, which a notebook shows.

    Args:
        data: of a run with patching.
        title: of the picture, as plain text; "" for none.  [default: model and task]
        width: in inches; 3.25 is a column of a paper.  [default: by the tokens]

    Raises:
        UsageError: no patching was run.
    """
    grids = _grids(data)
    with shown_figure(_size(grids, width), width) as figure:
        _draw(data, grids, figure, title)
    return figure


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
    grids = _grids(data)
    with new_figure(_size(grids, options.width), options.width) as figure:
        _draw(data, grids, figure, options.heading)
        return write_figure(figure, Path(folder) / "patching.png", options.formats)


def _grids(data: CausalData) -> list[PatchGrid]:
    if not data.grids:
        raise UsageError("these results have no patching; run causal with --method patch (methods=['patch'])")
    return sorted(data.grids, key=lambda grid: grid.by == "head")  # heads last


def _columns(grids: Sequence[PatchGrid], width: float | None) -> int:
    return 1 if is_column_width(width) else min(COLUMNS, len(grids))


def _size(grids: Sequence[PatchGrid], width: float | None = None) -> tuple[float, float]:
    columns = _columns(grids, width)
    rows = [grids[i : i + columns] for i in range(0, len(grids), columns)]
    own = max(sum(_panel(grid)[0] for grid in row) for row in rows) + 0.9
    return own, sum(max(_panel(grid)[1] for grid in row) for row in rows) + 0.6


def _panel(grid: PatchGrid) -> tuple[float, float]:
    """Width and height of a panel in inches."""
    sizes = CELL[0] * len(grid.columns), CELL[1] * len(grid.layers)
    return tuple(  # pyright: ignore[reportReturnType]
        min(max(size, least), most) + around for size, (least, most), around in zip(sizes, PANEL, AROUND, strict=True)
    )


def _draw(data: CausalData, grids: Sequence[PatchGrid], figure: Figure, title: str | None) -> None:
    columns = _columns(grids, figure.get_figwidth())
    axes = figure.subplots(-(-len(grids) // columns), columns, squeeze=False).ravel().tolist()
    for ax in axes[len(grids) :]:
        ax.remove()
    axes = axes[: len(grids)]
    norm = colour_range(grids)
    varied = bool(data.meta.get("patched", {}).get("varied"))
    images = [draw_patching(grid, ax, norm, varied) for grid, ax in zip(grids, axes, strict=True)]
    bar = figure.colorbar(images[0], ax=axes, shrink=0.8, aspect=28, pad=0.02)
    bar.set_label("recovery", fontsize=SMALL)
    below = [line for text in (_recovery_text(grids), _first_layer(grids)) for line in wrapped(text, _room(figure))]
    figure.supxlabel("\n".join(below), x=0.01, ha="left", fontsize=SMALL, color=GREY)
    bar.ax.tick_params(labelsize=SMALL)
    text = _title(data) if title is None else printable(title)
    if text:
        write_figure_title(figure, text)


def _recovery_text(grids: Sequence[PatchGrid]) -> str:
    """What the colours mean, with the logit differences at both ends if all grids have the same."""
    known = {grid.logit_differences for grid in grids}
    ends = known.pop() if len(known) == 1 else None
    if ends is None:
        return "recovery of the logit difference: 0 is the corrupted run, 1 the clean run"
    return (
        f"recovery of the logit difference: 0 is the corrupted run ({ends[1]:z.2f}), 1 the clean run ({ends[0]:z.2f})"
    )


def _first_layer(grids: Sequence[PatchGrid]) -> str:
    first = min(min(grid.layers) for grid in grids)
    return f"layer {first}, {'the first block' if first == 0 else 'the first one patched'}, is the lowest row"


def _room(figure: Figure) -> float:
    """Points of a line under the panels."""
    return 72 * 0.97 * figure.get_figwidth()


def colour_range(grids: Sequence[PatchGrid]) -> Normalize:
    """Colours centred on 0 that reach the largest value of all grids, so that none is clipped."""
    largest = max([1e-12, *(float(abs(value)) for grid in grids for value in grid.recovery.ravel() if value == value)])
    return Normalize(-largest, largest)


def draw_patching(grid: PatchGrid, ax: Axes, norm: Normalize, varied: bool = False) -> AxesImage:
    """Draw one grid, the first layer at the bottom; cells inside the placebo band are grey.

    Args:
        grid: what is drawn.
        ax: empty axes.
        norm: from `colour_range`.
        varied: whether pairs have different tokens at one position, which is said where columns are positions.
    """
    look: dict[str, Any] = {"origin": "lower", "aspect": "auto", "interpolation": "nearest"}
    image = ax.imshow(grid.recovery, cmap=COLOURS, norm=norm, **look)
    if grid.within_placebo is not None and grid.within_placebo.any():
        over = np.zeros((*grid.recovery.shape, 4))
        over[grid.within_placebo] = to_rgba(WITHIN)
        ax.imshow(over, **look)
    ax.set_xticks(np.arange(-0.5, len(grid.columns)), [], minor=True)
    ax.set_yticks(np.arange(-0.5, len(grid.layers)), [], minor=True)
    ax.grid(which="minor", color="white", linewidth=0.8)
    ax.tick_params(which="both", length=0, labelsize=SMALL)
    ax.spines[:].set_visible(False)
    if grid.recovery.size <= MOST_NUMBERS:
        _write_numbers(grid, ax, norm)
    _name_axes(grid, ax, varied)
    return image


def _write_numbers(grid: PatchGrid, ax: Axes, norm: Normalize) -> None:
    """The value in each cell outside the placebo band, unless it rounds to 0."""
    within = np.zeros(grid.recovery.shape, bool) if grid.within_placebo is None else grid.within_placebo
    for (i, j), value in np.ndenumerate(grid.recovery):
        if np.isfinite(value) and abs(value) >= 0.005 and not within[i, j]:
            dark = abs(float(norm(value)) - 0.5) > 0.3
            where = {"ha": "center", "va": "center", "fontsize": SMALL - 2.2}
            ax.text(j, i, f"{value:z.2f}", color="white" if dark else INK, **where)


def _name_axes(grid: PatchGrid, ax: Axes, varied: bool) -> None:
    rows = shown_ticks(range(len(grid.layers)), 24)
    ax.set_yticks(rows, [str(grid.layers[i]) for i in rows])
    ax.set_ylabel("layer", fontsize=SMALL)
    if grid.by == "head":
        columns = shown_ticks(range(len(grid.columns)), 24)
        ax.set_xticks(columns, [printable(grid.columns[j]) for j in columns], **PLAIN)
        ax.set_xlabel("head", fontsize=SMALL)
    else:
        names = [token_text(token) for token in grid.columns]
        room = 72 * (0.7 * inches(ax)[0] if is_column(ax) else _panel(grid)[0] - AROUND[0]) / len(names)
        turned = max(map(text_width, names)) > room - 3
        how: dict[str, Any] = {"rotation": 55, "ha": "right", "rotation_mode": "anchor"} if turned else {}
        size = min(SMALL, 1.1 * room)
        ax.set_xticks(range(len(names)), names, fontsize=size, **how, **PLAIN)
        if all(name.lstrip("-").isdigit() for name in names):  # texts of several lengths have no tokens in common
            ax.set_xlabel("token, counted from the last", fontsize=SMALL)
    n = f"{counted(grid.n, 'pair')}; " if grid.n is not None else ""
    notes = [note for note in (n + _within_note(grid), _attribution_note(grid), _words(grid, varied)) if note]
    notes = [] if is_column(ax) else notes
    write_lines(ax, notes, 5)
    title = f"{printable(grid.point)}, layer x {grid.by}"
    ax.set_title(title, loc="left", pad=6 + len(notes) * LINE, fontsize=SMALL + 1.5, color=INK, **PLAIN)


def token_text(token: str) -> str:
    """A token on an axis: spaces that would be lost are shown as ␣."""
    text = short(token, TOKEN)
    return text if text.strip() else text.replace(" ", "␣") or "∅"


def _within_note(grid: PatchGrid) -> str:
    if grid.within_placebo is None:
        return "no placebos"
    return f"grey: inside the placebo band ({grid.within_placebo.mean():.0%} of cells)"


def _words(grid: PatchGrid, varied: bool) -> str:
    """That a column is a position, whose word is another one in other pairs."""
    if not varied or grid.by == "head":
        return ""
    is_counted = all(name.lstrip("-").isdigit() for name in grid.columns)
    return "columns mix words, which differ by pair" + ("" if is_counted else "; shown: the first pair's")


def _attribution_note(grid: PatchGrid) -> str:
    """Whether the cells are exact, and how well one backward pass approximates them."""
    r = "" if grid.correlation is None else f"correlation {grid.correlation:.2f}"
    if is_approximate(grid):
        sample = f" with exact patching of {counted(grid.n_exact or 0, 'pair')}" if r else ""
        return f"by attribution patching: {r or 'not compared with exact patching'}{sample}"
    return f"exact; attribution patching: {r}" if r else ""


def _title(data: CausalData) -> str:
    task = short(data.meta["task"]) if data.meta.get("task") else None
    what, where = (
        probed(short(data.meta["label"]), task) if data.meta.get("label") else ("", f" ({task})" if task else "")
    )
    return f"Activation patching{' of ' if what else ''}{what} in {short(data.meta['model'])}{where}"
