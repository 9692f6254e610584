"""Layers against positions or heads as a heatmap, coloured by the distance from chance; grey is not above chance."""

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from probekit.charts.palette import GREY, INK, short
from probekit.evaluation.by_position.data import PositionCurve, PositionData, noun_of
from probekit.evaluation.by_position.report import axis_name, positions_title
from probekit.evaluation.results.data import LayerResult
from probekit.evaluation.results.wording import metric_name, position_name
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.options.probe import BY_HEAD
from probekit.plots.heatmap import is_dark
from probekit.plots.style import (
    PLAIN,
    inches,
    is_column,
    new_figure,
    shown_figure,
    text_width,
    write_figure,
    write_headings,
)

COLOURS = "RdBu"
CELL = (0.46, 0.3)  # inches
AROUND = (2.4, 2.1)  # inches for names, headings and the colour bar
SLANTED = 0.9  # inches for names of tokens and selections
LEAST, MOST = (6.4, 3.4), (14.0, 11.0)  # inches of a figure
NOT_ABOVE = "#DDDDDD"
STRIP = "#F4F4F4"
NAME = 18  # letters of a selection
SIZE = 8.0  # points of a number
TOO_SMALL = 4.5  # points; smaller numbers are left out


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
    if ax is None:
        with shown_figure(positions_size(results), width) as figure:
            return plot_positions(results, figure.subplots(), title=title)
    fills = _fills(results)
    for i, row in enumerate(fills):
        for j, fill in enumerate(row):
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=tuple(fill), edgecolor="white", linewidth=0.8))
    _write_numbers(results, ax, fills)
    _frame_selected(results, ax)
    _name_axes(results, ax)
    _add_scale(results, ax)
    _write_headings(results, ax, title)
    return ax


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
    with new_figure(positions_size(results), options.width) as figure:
        plot_positions(results, figure.subplots(), title=options.heading)
        return write_figure(figure, Path(folder) / f"{noun_of(results)}s.png", options.formats)


def positions_size(results: PositionData) -> tuple[float, float]:
    """Width and height of the heatmap's picture in inches."""
    sizes = (len(results.positions), len(results.places) + _strips(results))
    wanted = [around + cell * n for around, cell, n in zip(AROUND, CELL, sizes, strict=True)]
    if not _are_numbers(results):
        wanted[1] += SLANTED
    width, height = (min(max(least, one), most) for least, one, most in zip(LEAST, wanted, MOST, strict=True))
    return width, height


def _strips(results: PositionData) -> int:
    """Rows under the layers, of chance and of the number of texts; heads have the same ones."""
    return 0 if noun_of(results) == BY_HEAD else 2


def _chance(one: PositionCurve) -> float:
    return 0.0 if one.chance is None else one.chance


def _scale(results: PositionData) -> Normalize:
    """Symmetric around chance, so that a perfect score has the darkest colour."""
    most = max(0.05, 1 - min(map(_chance, results.positions)))
    return Normalize(-most, most)


def _fills(results: PositionData) -> np.ndarray:
    """A colour for each cell, [L, P, 4]."""
    chance = np.array([_chance(one) for one in results.positions])
    fills = colormaps[COLOURS](0.04 + 0.92 * np.asarray(_scale(results)(results.matrix - chance)).clip(0, 1))
    level = results.meta.get("above_chance") or 0.0
    for j, one in enumerate(results.positions):
        for i, p in enumerate(one.corrected):
            if p is not None and p > level:
                fills[i, j] = (*(int(NOT_ABOVE[k : k + 2], 16) / 255 for k in (1, 3, 5)), 1)
    return fills


def _write_numbers(results: PositionData, ax: Axes, fills: np.ndarray) -> None:
    """The scores, the chance level and the number of test texts, where they fit."""
    L, P = results.matrix.shape
    wide, high = inches(ax)
    wide *= 0.7 if is_column(ax) else 1  # names and scale take the rest
    size = min(
        SIZE,
        72 * wide / P * 0.86 / (text_width("0.00", 1.0)),
        72 * high / (L + _strips(results)) * 0.62,
    )
    if size < TOO_SMALL:
        return
    for j, one in enumerate(results.positions):
        for i, layer in enumerate(one.layers):
            grey = one.corrected[i] is not None and one.corrected[i] > results.meta["above_chance"]
            colour = GREY if grey else "white" if is_dark(fills[i, j]) else INK
            _write(ax, j, i, _short_number(layer.metrics["test"][results.headline]), size, colour)
        if not _strips(results):
            continue
        chance = "" if one.chance is None else _short_number(one.chance)
        for row, text in ((-1.1, chance), (-1.95, f"{one.n['test']:,}" if one.n["test"] < 10_000 else "")):
            if text_width(text, 0.92 * size) <= 72 * wide / P:
                _write(ax, j, row, text, 0.92 * size, GREY)


def _short_number(value: float) -> str:
    """0.534 -> ".53", 1.0 -> "1.0": narrow cells hold three characters."""
    text = f"{value:z.2f}"
    return text[:3] if text.startswith("1.0") else text.replace("0.", ".", 1)


def _write(ax: Axes, x: float, y: float, text: str, size: float, colour: str) -> None:
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color=colour, clip_on=True)


def _frame_selected(results: PositionData, ax: Axes) -> None:
    quoted = results.quoted
    if quoted is None or quoted.column is None:
        return
    at = next(i for i, each in enumerate(quoted.column.layers) if each is quoted.layer)
    j = next(j for j, each in enumerate(results.positions) if each is quoted.column)
    ax.add_patch(Rectangle((j - 0.5, at - 0.5), 1, 1, fill=False, edgecolor=INK, linewidth=2, zorder=3, clip_on=False))


def _name_axes(results: PositionData, ax: Axes) -> None:
    L, P = results.matrix.shape
    wide, high = inches(ax)
    names = [_position_name(one) for one in results.positions]
    longest = max(text_width(name, SIZE) for name in names) + 4
    rotated = {} if _are_numbers(results) else {"rotation": 50, "ha": "right", "rotation_mode": "anchor"}
    step = max(1, int(np.ceil((14 if rotated else longest) * P / (72 * wide))))
    ax.set_xticks(range(0, P, step), names[::step], fontsize=SIZE, **rotated, **PLAIN)
    lines = max(1, int(np.ceil(10 * (L + _strips(results)) / (72 * high))))
    layers = [_layer_name(results, layer) for layer in results.positions[0].layers]
    strips = ["majority" if results.meta["n_classes"] else "mean", "test texts"][: _strips(results)]
    ax.set_yticks(
        [*range(0, L, lines), -1.1, -1.95][: len(layers[::lines]) + len(strips)],
        [*layers[::lines], *strips],
        fontsize=SIZE,
        **PLAIN,
    )
    ax.tick_params(length=0, pad=4)
    ax.set_xlim(-0.5, P - 0.5)
    ax.set_ylim(-2.4 if strips else -0.5, L - 0.5)
    ax.set_xlabel(axis_name(results), fontsize=SIZE + 1, **PLAIN)
    ax.set_ylabel(f"layer, {short(results.meta['point'])}", fontsize=SIZE + 1, **PLAIN)
    ax.spines[:].set_visible(False)


def _are_numbers(results: PositionData) -> bool:
    """Whether positions are named by their number alone, which needs little room."""
    return all(_position_name(one).lstrip("-").isdigit() for one in results.positions)


def _position_name(one: PositionCurve) -> str:
    """The position, after the token that nearly all texts have there."""
    if one.token is None:
        return short(one.position, NAME)
    word = one.token.strip()
    if not any(letter.isalnum() for letter in word):  # a bracket next to a number would look like part of it
        word = repr(word or one.token)
    return f"{short(word, NAME)}  {one.position}"


def _layer_name(results: PositionData, layer: LayerResult) -> str:
    if layer.point != results.meta["point"]:
        return "output"
    return layer.point if layer.layer is None else str(layer.layer)


def _add_scale(results: PositionData, ax: Axes) -> None:
    figure = ax.get_figure(root=True)
    assert figure is not None
    base = "the majority class" if results.meta["n_classes"] else "the mean"
    bar = figure.colorbar(ScalarMappable(_scale(results), COLOURS), ax=ax, fraction=0.04, pad=0.02)
    bar.set_label(f"test {metric_name(results.headline)}\nabove {base}", fontsize=SIZE)
    bar.ax.tick_params(labelsize=SIZE, length=2)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def _write_headings(results: PositionData, ax: Axes, title: str | None) -> None:
    chance = results.positions[0].chance
    if _strips(results) or chance is None:
        read, level = "", "chance"
    else:
        base = "majority class" if results.meta["n_classes"] else "mean"
        read, level = f", {position_name(results.meta['position'])}", f"{base}, {chance:.2f}"
    frame = "" if results.quoted is None else "; frame: selected on validation"
    if results.procedure is not None:
        frame = f"; {results.meta['folds']} nested folds"
    lines = [f"{short(results.meta['probe'])} probe{read}; white: {level}{frame}"]
    if results.meta.get("above_chance") is not None:
        lines.append("grey: not above chance (permutation test, corrected for all cells)")
    else:
        lines.append(f"no p-values: {results.meta['no_p_values']}")
    write_headings(ax, positions_title(results) if title is None else title, lines, start=7)
