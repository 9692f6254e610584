"""Layers against training steps as a heatmap, coloured by the distance from chance; cells not above chance are grey."""

import math

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from probekit.charts.palette import GREY, INK
from probekit.evaluation.results.wording import metric_name
from probekit.plots.heatmap import is_dark
from probekit.plots.positions import COLOURS, NOT_ABOVE
from probekit.plots.style import PLAIN, inches, is_column, text_width, write_headings
from probekit.side_by_side.checkpoints import is_above
from probekit.side_by_side.data import ComparisonData
from probekit.side_by_side.report import shared_setting

CELL = (0.5, 0.3)  # inches
AROUND = (2.2, 2.1)  # inches for names, headings and the colour bar
LEAST, MOST = (6.4, 3.4), (14.0, 11.0)  # inches of a figure
SIZE, TOO_SMALL = 8.0, 4.5  # points of a number; smaller ones are left out


def steps_size(data: ComparisonData) -> tuple[float, float]:
    """Width and height of the figure in inches."""
    L, S = data.matrix.shape
    wanted = [around + cell * n for around, cell, n in zip(AROUND, CELL, (S, L), strict=True)]
    width, height = (min(max(least, one), most) for least, one, most in zip(LEAST, wanted, MOST, strict=True))
    return width, height


def draw_steps(data: ComparisonData, ax: Axes, title: str) -> None:
    """Draw the headline of every layer at every step on test, the first layer at the bottom.

    White is chance: the score of the majority class of train, or of the mean. Cells that are not above chance after the
    correction for all cells are grey. A frame marks the layer that validation selects at each step.
    """
    values, chance = data.matrix, np.array([_chance(data, i) for i in range(len(data.runs))])
    most = max(0.05, 1 - float(chance.min()))
    scale = Normalize(-most, most)
    fills = colormaps[COLOURS](0.04 + 0.92 * np.asarray(scale(np.nan_to_num(values - chance))).clip(0, 1))
    grey = _not_above(data)
    fills[grey] = to_rgba(NOT_ABOVE)
    for i, row in enumerate(fills):
        for j, fill in enumerate(row):
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=tuple(fill), edgecolor="white", linewidth=0.8))
    _write_numbers(data, ax, fills, grey)
    _frame_selected(data, ax)
    _name_axes(data, ax)
    _add_scale(data, ax, scale)
    tested = any(place.above_chance is not None for run in data.runs for place in run.places)
    lines = [shared_setting(data), "white: chance; frame: selected on validation"]
    lines += ["grey: not above chance (permutation test, corrected for all cells)"] if tested else []
    write_headings(ax, title, lines, start=7)


def _chance(data: ComparisonData, run: int) -> float:
    known = data.runs[run].chance
    return known if known is not None else 1 / max(1, data.meta["n_classes"]) if data.meta["n_classes"] else 0.0


def _not_above(data: ComparisonData) -> np.ndarray:
    """Which cells are not above chance, bool [L, S]; none where no test was made."""
    tested = [{place.place: is_above(place.above_chance) for place in run.places} for run in data.runs]
    return np.array([[own.get(name) is False for own in tested] for name in data.place_names])


def _write_numbers(data: ComparisonData, ax: Axes, fills: np.ndarray, grey: np.ndarray) -> None:
    L, S = data.matrix.shape
    wide, high = inches(ax)
    wide *= 0.7 if is_column(ax) else 1  # names and scale take the rest
    size = min(SIZE, 72 * wide / S * 0.86 / text_width("0.00", 1.0), 72 * high / L * 0.62)
    if size < TOO_SMALL:
        return
    for i, j in np.ndindex(L, S):
        value = data.matrix[i, j]
        if math.isfinite(value):
            colour = GREY if grey[i, j] else "white" if is_dark(fills[i, j]) else INK
            text = f"{value:z.2f}"
            ax.text(j, i, text, ha="center", va="center", fontsize=size, color=colour, clip_on=True)


def _frame_selected(data: ComparisonData, ax: Axes) -> None:
    for j, run in enumerate(data.runs):
        if run.quoted is not None:
            i = data.place_names.index(run.quoted.place)
            look = {"fill": False, "edgecolor": INK, "linewidth": 1.6, "zorder": 3}
            halo = [withStroke(linewidth=3.2, foreground="white")]  # seen on dark cells too
            ax.add_patch(
                Rectangle((j - 0.45, i - 0.43), 0.9, 0.86, path_effects=halo, **look)
            )  # not on its neighbour's


def _name_axes(data: ComparisonData, ax: Axes) -> None:
    L, S = data.matrix.shape
    wide, high = inches(ax)
    names = [step_name(step) for step in data.steps]
    step = max(1, math.ceil((max(text_width(name, SIZE) for name in names) + 5) * S / (72 * wide)))
    ax.set_xticks(range(0, S, step), names[::step], fontsize=SIZE, **PLAIN)
    lines = max(1, math.ceil(10 * L / (72 * high)))
    last = {place.place: run.n_layers for run in data.runs for place in run.places if place.x == run.n_layers}
    layers = ["output" if name in last else name.rpartition(".")[2] or name for name in data.place_names]
    ax.set_yticks(range(0, L, lines), layers[::lines], fontsize=SIZE, **PLAIN)
    ax.tick_params(length=0, pad=4)
    ax.set_xlim(-0.5, S - 0.5)
    ax.set_ylim(-0.5, L - 0.5)
    ax.set_xlabel("training step", fontsize=SIZE + 1)
    ax.set_ylabel("layer", fontsize=SIZE + 1)
    ax.spines[:].set_visible(False)


def step_name(step: int) -> str:
    """143000 -> "143k", 1_500_000 -> "1.5M"; smaller steps as they are."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (1_000_000, "M"), (1000, "k")):
        if step >= size and step % (size // 10) == 0:
            return f"{step / size:g}{unit}"
    return f"{step:,}"


def _add_scale(data: ComparisonData, ax: Axes, scale: Normalize) -> None:
    figure = ax.get_figure(root=True)
    assert figure is not None
    base = "the majority class" if data.meta["n_classes"] else "the mean"
    bar = figure.colorbar(ScalarMappable(scale, COLOURS), ax=ax, fraction=0.04, pad=0.02)
    bar.set_label(f"test {metric_name(data.headline)}\nabove {base}", fontsize=SIZE)
    bar.ax.tick_params(labelsize=SIZE, length=2)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
