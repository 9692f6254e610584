"""The causal curve: what can be read and what is used, by layer, on one axis, which on the right has the score itself.

Small panels under the curve have other edits on an axis of their own, dose-response, completeness, and angles.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from probekit.causal.data import CausalData, Effect
from probekit.causal.results.view import dose, methods_of, selected_place, selected_scale
from probekit.charts.axes import shown_ticks
from probekit.charts.effects import METHODS, causal_chart, other_edits_chart, share_of, zero_score
from probekit.charts.lines import LegendEntry
from probekit.charts.palette import BLUE, GREY, INK
from probekit.errors import UsageError
from probekit.evaluation.results.wording import metric_name
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.headings import draw_legends
from probekit.plots.lines import draw_chart, draw_marks, name_layers
from probekit.plots.style import (
    LINE,
    PLAIN,
    SMALL,
    inches,
    is_column,
    is_column_width,
    new_figure,
    shown_figure,
    style_axes,
    write_figure,
)
from probekit.text import printable

APART = 0.17  # of the axis, from tick to tick of the scales; with three panels a label takes 0.15
Panel = Callable[[CausalData, Axes], None]


def panels_shown(data: CausalData) -> list[Panel]:
    """The panels whose numbers were measured."""
    has_probes = any(layer.completeness.get(method) for layer in data.layers for method in methods_of(data))
    has_angles = any("das" in layer.angles for layer in data.layers)
    there = {
        _draw_others: other_edits_chart(data) is not None,
        _draw_dose: len(_doses(data)) > 1,
        _draw_completeness: has_probes,
        _draw_angles: has_angles,
    }
    return [panel for panel, is_there in there.items() if is_there]


def panel_rows(panels: int) -> int:
    """Rows of panels: three have room side by side."""
    return -(-panels // 3)


def draw_panels(data: CausalData, figure: Figure, where: SubplotSpec) -> None:
    """Draw them in rows."""
    panels = panels_shown(data)
    rows = panel_rows(len(panels))
    columns = -(-len(panels) // rows)
    grid = where.subgridspec(rows, columns)
    for i, panel in enumerate(panels):
        ax = figure.add_subplot(grid[divmod(i, columns)])
        panel(data, ax)
        ax.tick_params(labelsize=SMALL)
    style_axes(figure.axes[-len(panels) :])


def _draw_others(data: CausalData, ax: Axes) -> None:
    chart = other_edits_chart(data)
    assert chart is not None
    draw_marks(chart, ax)
    name_layers(ax, chart, 12)
    _name(ax, chart.name, chart.x_name, list(chart.legend))


def _doses(data: CausalData) -> list[Effect]:
    return dose(data, _place(data, "steer")) if "steer" in methods_of(data) else []


def _place(data: CausalData, method: str) -> str:
    """The place that validation chose; without a choice the last."""
    return selected_place(data, method) or (data.layers[-1].place if data.layers else "")


def _draw_dose(data: CausalData, ax: Axes) -> None:
    """Effect by scale; scale 0 is the run without edits, whose effect is 0."""
    effects = {effect.scale or 0.0: effect for effect in _doses(data)}
    bands = {0.0: (0.0, 0.0)} | {scale: e.placebo_band for scale, e in effects.items() if scale and e.placebo_band}
    if len(bands) > 1:
        low, high = zip(*(bands[scale] for scale in sorted(bands)), strict=True)
        ax.fill_between(sorted(bands), low, high, color=GREY, alpha=0.3, linewidth=0)
    points = {0.0: 0.0} | {scale: e.effect for scale, e in effects.items()}
    sizes = {0.0: 0.0} | {scale: e.size for scale, e in effects.items()}
    scales = sorted(points)
    for scale, e in effects.items():
        if e.interval is not None:
            ax.vlines(scale, *e.interval, color=METHODS["steer"], alpha=0.5, linewidth=3)
    ax.plot(
        scales, [points[scale] for scale in scales], color=METHODS["steer"], linewidth=1.6, marker="o", markersize=3.5
    )
    chosen = selected_scale(data, "steer")
    if chosen is not None:
        ax.axvline(chosen, color=INK, linewidth=1, linestyle=(0, (3, 2)), zorder=1)
    shown = _apart(scales, [0.0, *([] if chosen is None else [chosen]), scales[0], scales[-1]])
    ax.set_xticks(shown, [f"{scale:+g}\n{sizes[scale]:.0%}" if scale else "0\n" for scale in shown])
    ax.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    _name(ax, f"Dose-response at {printable(_place(data, 'steer'))}", "sd along the direction; size of the edit")


def _apart(scales: list[float], first: list[float]) -> list[float]:
    """The scales with a tick: those named first, and others whose labels do not touch theirs."""
    shown: list[float] = []
    for scale in dict.fromkeys([*first, *scales]):
        if all(abs(scale - other) >= APART * (scales[-1] - scales[0]) for other in shown):
            shown.append(scale)
    return sorted(shown)


def _draw_completeness(data: CausalData, ax: Axes) -> None:
    """Completeness after each method's edit at the same layer, and at the later layer where it is lowest."""
    entries = []
    for method in methods_of(data):
        values = {i: v for i, layer in enumerate(data.layers) if (v := layer.completeness.get(method))}
        if not values:
            continue
        look: dict[str, Any] = {"color": METHODS.get(method, INK), "linewidth": 1.3, "marker": "o"}
        ax.plot(list(values), [v[0] for v in values.values()], markersize=3.5, **look)
        entries.append(LegendEntry([method], "solid", look["color"], dots=True))
        later = {i: min(v[1:]) for i, v in values.items() if len(v) > 1}
        ax.plot(list(later), list(later.values()), linestyle=(0, (4, 2)), markersize=2, **look)
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, -0.05), max(high, 1.05))
    _layer_ticks(data, ax)
    _name(ax, "Completeness (dashed: later layers)", "layer", entries)


def _draw_angles(data: CausalData, ax: Axes) -> None:
    """The angle between the probe's direction and DAS's, and the least that 5% of random directions reach."""
    entries = []
    for name, color in (("das", INK), ("random 5%", GREY)):
        points = [(i, layer.angles[name]) for i, layer in enumerate(data.layers) if name in layer.angles]
        if points:
            look: dict[str, Any] = {"marker": "o", "markersize": 3.5}
            if name != "das":
                look = {"linestyle": (0, (4, 2)), "marker": "_" if len(points) == 1 else ""}
            label = ["probe to DAS"] if name == "das" else ["random directions: 5% are closer", "5% of random"]
            ax.plot(*zip(*points, strict=True), color=color, linewidth=1.3, **look)
            is_das = name == "das"
            entries.append(LegendEntry(label, "solid" if is_das else "dashed", color, dots=is_das))
    ax.set_ylim(0, 95)
    ax.set_yticks([0, 30, 60, 90], ["0°", "30°", "60°", "90°"])
    _layer_ticks(data, ax)
    _name(ax, "Angle to the probe's direction", "layer", entries)


def _layer_ticks(data: CausalData, ax: Axes) -> None:
    point = data.meta.get("point", data.layers[0].point)
    names = ["out" if x.point != point else str(x.layer) if x.layer is not None else "" for x in data.layers]
    shown = shown_ticks(range(len(names)), 12)
    ax.set_xticks(shown, [names[int(i)] for i in shown])
    ax.set_xlim(-0.5, len(names) - 0.5)


def _name(ax: Axes, title: str, x: str, legend: Sequence[LegendEntry] = ()) -> None:
    """Title and name of the x axis; the legend is between the title and the axes, off the data."""
    lines = draw_legends(ax, legend, 72 * inches(ax)[0])
    ax.set_title(title, fontsize=SMALL + 0.7, loc="left", pad=6 + lines * LINE, color=INK, **PLAIN)
    ax.set_xlabel(x, fontsize=SMALL, **PLAIN)


SIZE = (8.4, 5.4)  # inches
PANELS = 2.1  # inches that each row of small panels adds
COLUMN_LEGEND = 1.6  # inches that the legend, in few columns, adds to a narrow picture before it is scaled


def plot_causal(data: CausalData, *, title: str | None = None, width: float | None = None) -> Figure:
    """Draw the causal curve on a new pyplot figure, which a notebook shows.

    Args:
        data: of a run with layers.
        title: of the picture, as plain text; "" for none.  [default: label, model and task]
        width: in inches; 3.25 is a column of a paper.  [default: 8.4]

    Raises:
        UsageError: there are no layers.
    """
    _check(data)
    with shown_figure(_size(data, width), width) as figure:
        _draw(data, figure, title)
    return figure


@keywords(PictureOptions)
def save_causal_plot(data: CausalData, folder: str | Path, options: PictureOptions) -> Path:
    """Write causal_by_layer.png and .svg into `folder`, the same bytes for the same results; returns the first path.

    Args:
        data: of a run with layers.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        UsageError: there are no layers.
        StorageError: the disk refused.
    """
    _check(data)
    with new_figure(_size(data, options.width), options.width) as figure:
        _draw(data, figure, options.heading)
        return write_figure(figure, Path(folder) / "causal_by_layer.png", options.formats)


def _check(data: CausalData) -> None:
    if not data.layers or not data.effects:
        raise UsageError("these results have no curve: only patching was run; draw that with plot_patching()")


def _size(data: CausalData, width: float | None) -> tuple[float, float]:
    legend = COLUMN_LEGEND if is_column_width(width) else 0
    return SIZE[0], SIZE[1] + legend + _panels_height(data, width or SIZE[0])


def _panels_height(data: CausalData, width: float) -> float:
    """Inches of the small panels; in a narrow picture there is no room for them."""
    return 0 if is_column_width(width) else PANELS * panel_rows(len(panels_shown(data)))


def _draw(data: CausalData, figure: Figure, title: str | None) -> None:
    below = _panels_height(data, figure.get_figwidth())
    rows = figure.add_gridspec(2, 1, height_ratios=[SIZE[1], below]) if below else None
    ax = figure.add_subplot(rows[0] if rows else 111)
    draw_causal(data, ax, title)
    if rows:
        draw_panels(data, figure, rows[1])


def draw_causal(data: CausalData, ax: Axes, title: str | None = None) -> None:
    """Draw decodability and effects on axes, with the quadrants under them, headings above, and scores at the right."""
    draw_chart(causal_chart(data), ax, title)
    if is_column(ax):
        return
    baseline = zero_score(data)
    right = ax.secondary_yaxis(
        "right",
        functions=(
            lambda y: baseline + np.asarray(y) * (1 - baseline),
            lambda y: (np.asarray(y) - baseline) / (1 - baseline),
        ),
    )
    right.set_ylabel(f"test {metric_name(str(data.meta.get('headline', 'score')))}", color=BLUE, **PLAIN)
    right.tick_params(colors=BLUE)
    right.spines["right"].set_visible(False)
    top = ax.get_ylim()[1]
    marks = [tick for tick in np.linspace(baseline, 1, 6) if share_of(data, float(tick)) <= top]
    right.set_yticks(marks, [f"{tick:.2f}" for tick in marks])
