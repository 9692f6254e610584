"""The causal curve: what can be read and what is used, by layer, on one axis.

Decodability is drawn as its share of the way from the baseline to a perfect score, and an effect is a share by
definition: so 0 is nothing and 1 is everything for both. The axis on the right has the score itself. Small panels
under the curve have other edits on an axis of their own, dose-response, completeness, and angles.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.patches import Patch, Rectangle

from probekit.causal.data import CausalData, Effect
from probekit.causal.results.checklist import base_text, base_warning
from probekit.causal.results.report import has_other_answers, method_name, place_ranges, quadrant_counts
from probekit.causal.results.view import (
    curve_effects,
    directions_text,
    dose,
    effect_shows_use,
    finite,
    methods_of,
    probe_effects,
    selected_place,
    selected_scale,
)
from probekit.charts.axes import point_axis_name, shown_ticks
from probekit.charts.palette import BLUE, GREEN, GREY, INK, RED, short
from probekit.errors import UsageError
from probekit.evaluation.results.wording import metric_name, position_name, probed
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.headings import Entries, draw_legends
from probekit.plots.lines import draw_beyond
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
    write_lines,
    write_title,
)
from probekit.text import listed, printable

METHODS = {"interchange": RED, "erase": "#CC79A7", "steer": "#E69F00"}
APART = 0.17  # of the axis, from tick to tick of the scales; with three panels a label takes 0.15
Panel = Callable[[CausalData, Axes], None]


def panels_shown(data: CausalData) -> list[Panel]:
    """The panels whose numbers were measured."""
    has_probes = any(layer.completeness.get(method) for layer in data.layers for method in methods_of(data))
    has_angles = any("das" in layer.angles for layer in data.layers)
    there = {
        _draw_others: bool(_others(data)),
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
        ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)


def _others(data: CausalData) -> dict[str, tuple[str, list[Effect]]]:
    """The curves of edits other than the headline: name -> (method, effects)."""
    found: dict[str, tuple[str, list[Effect]]] = {}
    for method in methods_of(data)[1:]:
        name = f"{method_name(data, method)} ({directions_text(data, method)})"
        found[name] = method, list(curve_effects(data, method).values())
    if own := list(probe_effects(data).values()):
        found["interchange (the probe's own direction)"] = "interchange", own
    return {name: (method, effects) for name, (method, effects) in found.items() if effects}


def _draw_others(data: CausalData, ax: Axes) -> None:
    """Effects of the other edits, which may be far above 1; filled dots show use."""
    at = {layer.place: i for i, layer in enumerate(data.layers)}
    entries: Entries = []
    for name, (method, effects) in _others(data).items():
        color = METHODS.get(method, INK)
        known = [effect for effect in effects if effect.place in at]
        xs, ys = [at[effect.place] for effect in known], [effect.effect for effect in known]
        (line,) = ax.plot(xs, ys, color=color, linewidth=1.3)
        fills = [color if effect_shows_use(effect) else "white" for effect in known]
        ax.scatter(xs, ys, s=12, color=fills, edgecolors=color, linewidths=0.9, zorder=3)
        is_own = name.startswith(f"{method} (the probe's own")
        entries.append(([name, f"{method} (probe's own)" if is_own else name.partition(" (")[0]], line))
    ax.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    _layer_ticks(data, ax)
    _name(ax, "Effect of other edits", "layer", entries)


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
    entries: Entries = []
    for method in methods_of(data):
        values = {i: v for i, layer in enumerate(data.layers) if (v := layer.completeness.get(method))}
        if not values:
            continue
        look: dict[str, Any] = {"color": METHODS.get(method, INK), "linewidth": 1.3, "marker": "o"}
        (line,) = ax.plot(list(values), [v[0] for v in values.values()], markersize=3.5, **look)
        entries.append(([method], line))
        later = {i: min(v[1:]) for i, v in values.items() if len(v) > 1}
        ax.plot(list(later), list(later.values()), linestyle=(0, (4, 2)), markersize=2, **look)
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, -0.05), max(high, 1.05))
    _layer_ticks(data, ax)
    _name(ax, "Completeness (dashed: later layers)", "layer", entries)


def _draw_angles(data: CausalData, ax: Axes) -> None:
    """The angle between the probe's direction and DAS's, and the least that 5% of random directions reach."""
    entries: Entries = []
    for name, color in (("das", INK), ("random 5%", GREY)):
        points = [(i, layer.angles[name]) for i, layer in enumerate(data.layers) if name in layer.angles]
        if points:
            look: dict[str, Any] = {"marker": "o", "markersize": 3.5}
            if name != "das":
                look = {"linestyle": (0, (4, 2)), "marker": "_" if len(points) == 1 else ""}
            label = ["probe to DAS"] if name == "das" else ["random directions: 5% are closer", "5% of random"]
            (line,) = ax.plot(*zip(*points, strict=True), color=color, linewidth=1.3, **look)
            entries.append((label, line))
    ax.set_ylim(0, 95)
    ax.set_yticks([0, 30, 60, 90], ["0°", "30°", "60°", "90°"])
    _layer_ticks(data, ax)
    _name(ax, "Angle to the probe's direction", "layer", entries)


def _layer_ticks(data: CausalData, ax: Axes) -> None:
    point = data.meta.get("point", data.layers[0].point)
    names = ["out" if x.point != point else str(x.layer) if x.layer is not None else "" for x in data.layers]
    shown = shown_ticks(range(len(names)), 12)
    ax.set_xticks(shown, [names[i] for i in shown])
    ax.set_xlim(-0.5, len(names) - 0.5)


def _name(ax: Axes, title: str, x: str, entries: Entries | None = None) -> None:
    """Title and name of the x axis; the legend is between the title and the axes, off the data."""
    lines = draw_legends(ax, ([], entries or []), 72 * inches(ax)[0])
    ax.set_title(title, fontsize=SMALL + 0.7, loc="left", pad=6 + lines * LINE, color=INK, **PLAIN)
    ax.set_xlabel(x, fontsize=SMALL, **PLAIN)


SIZE = (8.4, 5.4)  # inches
PANELS = 2.1  # inches that each row of small panels adds
CEILINGS = {"full vector": (0, (1, 1.5)), "das": (0, (5, 2))}
LIMITS = (-1.0, 2.0)  # of the axis, whose 0 is nothing and whose 1 is everything; what is beyond has a triangle
BEYOND = 0.25  # that a band may stretch the axis beyond the curves; a wider one leaves it
SHADES = {"read and used": GREEN, "read, not shown to be used": BLUE, "used, not read": RED, "neither": GREY}
COLUMN_LEGEND = 1.6  # inches that the legend, in few columns, adds to a narrow picture before it is scaled
STRIP = 0.085  # of the height, under the curves, for the names of the quadrants
_PLACEBOS = "placebos, lowest to highest"


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
    """Draw decodability and effects on axes, with the quadrants under them and headings above."""
    xs = {layer.place: x for layer, x in zip(data.layers, layer_xs(data), strict=True)}
    ax.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    ends = min(xs.values()) - 0.5, max(xs.values()) + 0.5
    ax.set_xlim(*ends)
    _set_heights(data, ax)
    entries = _draw_score(data, ax, xs) + _draw_headline(data, ax, xs)
    own = _draw_selected(data, ax, xs)
    unnamed = _draw_quadrants(data, ax, xs)
    _name_axes(data, ax)
    _write_above(data, ax, (own, [*_ordered(entries), *unnamed]), title)


def layer_xs(data: CausalData) -> list[int]:
    """Where each place is on the layer axis: the output of the last block after all layers."""
    point = data.meta.get("point", data.layers[0].point)
    last = max((layer.layer or 0 for layer in data.layers), default=0)
    n_layers = int(data.meta.get("n_layers", last + 1))
    return [n_layers if layer.point != point or layer.layer is None else layer.layer for layer in data.layers]


def _baseline(data: CausalData) -> float:
    value = float((data.meta.get("baseline") or {}).get("value", 0.0))
    return value if value < 1 - 1e-9 else 0.0


def _share(data: CausalData, score: float) -> float:
    baseline = _baseline(data)
    return (score - baseline) / (1 - baseline)


def _draw_score(data: CausalData, ax: Axes, xs: dict[str, int]) -> Entries:
    ys = [_share(data, layer.score) for layer in data.layers]
    at = list(xs.values())
    ends = [layer.interval for layer in data.layers]
    if all(ends):
        low, high = ([_share(data, pair[k]) for pair in ends if pair] for k in (0, 1))
        _draw_band(ax, at, low, high, BLUE, 0.15, zorder=2)
    (line,) = ax.plot(at, ys, color=BLUE, linewidth=1.8, marker="o", markersize=_dot(data), zorder=5)
    return [(["decodability: probe's test score, as a share above the baseline", "decodability"], line)]


def _draw_headline(data: CausalData, ax: Axes, xs: dict[str, int]) -> Entries:
    """The effect of the first method, with interval, placebos and ceilings; other methods have a panel of their own."""
    method = methods_of(data)[0]
    color = METHODS.get(method, INK)
    own = [effect for place, effect in curve_effects(data, method).items() if place in xs]
    at = [xs[effect.place] for effect in own]
    entries = _draw_placebos(ax, at, own)
    for name, style in CEILINGS.items():
        top = [effect for place, effect in curve_effects(data, method, name).items() if place in xs]
        if top:
            look: dict[str, Any] = {"color": INK, "linewidth": 1.1, "linestyle": style, "zorder": 3}
            look["marker"] = {"das": "D", "full vector": "s"}[name] if len(top) == 1 else ""
            (line,) = ax.plot([xs[e.place] for e in top], [e.effect for e in top], **look)
            shown = {"das": "DAS"}.get(name, name)
            entries.append(([f"{shown} (ceiling)"] * 2 + [shown], line))
    ends = [effect.interval or (effect.effect, effect.effect) for effect in own]
    _draw_band(ax, at, [low for low, _ in ends], [high for _, high in ends], color, 0.2, zorder=2)
    values = [effect.effect for effect in own]
    (line,) = ax.plot(at, values, color=color, linewidth=2.0, zorder=6)
    fills = [color if effect_shows_use(effect) else "white" for effect in own]
    ax.scatter(at, values, s=(1.15 * _dot(data)) ** 2, color=fills, edgecolors=color, linewidths=1.2, zorder=7)
    name, direction = method_name(data, method), directions_text(data, method)
    beyond: Entries = [([text], mark) for text, mark in draw_beyond(ax, at, values, color).items()]
    names = [f"effect of {name} ({direction})", f"{name} ({direction})", name]
    return [(names, line), *entries, *beyond]


def _draw_placebos(ax: Axes, at: Sequence[int], own: Sequence[Effect]) -> Entries:
    bands = [effect.placebo_band for effect in own]
    if not at or not all(bands):
        return []
    low, high = ([band[k] for band in bands if band] for k in (0, 1))
    return [([_PLACEBOS, "placebos"], _draw_band(ax, at, low, high, GREY, 0.3, zorder=2))]


def _draw_band(
    ax: Axes, at: Sequence[int], low: Sequence[float], high: Sequence[float], color: str, alpha: float, zorder: float
) -> Artist:
    """A band over several layers; a bar on a single one, as a band has no width there."""
    if len(at) == 1:
        return ax.vlines(at, low, high, color=color, alpha=alpha + 0.15, linewidth=8, zorder=zorder)
    return ax.fill_between(at, low, high, color=color, alpha=alpha, linewidth=0, zorder=zorder)


def _dot(data: CausalData) -> float:
    return 4.5 if len(data.layers) <= 30 else 3.0


def _ordered(entries: Entries) -> Entries:
    """Decodability, the methods, then what they are compared with."""
    starts = ("decodability", "effect of", "placebos")
    return sorted(entries, key=lambda entry: [entry[0][0].startswith(start) for start in starts], reverse=True)


def _set_heights(data: CausalData, ax: Axes) -> None:
    """Limits that hold curves and bands, up to `LIMITS` and `BEYOND`, with room for the quadrants under the curves."""
    shown, bands = [_share(data, layer.score) for layer in data.layers], []
    bands += [_share(data, end) for layer in data.layers for end in layer.interval or ()]
    method = methods_of(data)[0]
    for name in (None, *CEILINGS):
        for effect in curve_effects(data, method, name).values():
            shown.append(effect.effect)
            bands += [] if name else [*(effect.interval or ()), *(effect.placebo_band or ())]
    least, most = LIMITS
    values = [min(most, max(least, value)) for value in finite(shown)]
    low, high = min([0.0, *values]), max([1.0, *values])
    ends = [min(high + BEYOND, max(low - BEYOND, end)) for end in finite(bands)]
    low, high = min([low, *ends]), max([high, *ends])
    pad = 0.05 * (high - low)
    span = (high - low + 2 * pad) / (1 - STRIP)
    ax.set_ylim(high + pad - span, high + pad)
    ax.set_yticks([tick for tick in ax.get_yticks() if low - pad <= tick <= high + pad])  # none beside the quadrants
    ax.set_ylim(high + pad - span, high + pad)


def _draw_selected(data: CausalData, ax: Axes, xs: dict[str, int]) -> Entries:
    method = methods_of(data)[0]
    place = selected_place(data, method)
    effect = curve_effects(data, method).get(place or "")
    if effect is None or place not in xs:
        return []
    mark = ax.axvline(xs[place], STRIP, color=INK, linewidth=1, linestyle=(0, (3, 2)), zorder=1.5)
    ends = "" if effect.interval is None else f" [{effect.interval[0]:z.2f}, {effect.interval[1]:z.2f}]"
    score = f"{method} {effect.effect:z.2f}"
    return [([f"selected on validation: {printable(place)}, {score}{ends}", f"selected: {score}"], mark)]


def _draw_quadrants(data: CausalData, ax: Axes, xs: dict[str, int]) -> Entries:
    """Shade each run of layers of one quadrant, and name it under the curves; returns those without room for a name."""
    named, at = set(), list(xs.values())
    room = 72 * 0.86 * inches(ax)[0] / (ax.get_xlim()[1] - ax.get_xlim()[0])  # points of a layer, without the margins
    for first, last in _runs([layer.quadrant for layer in data.layers]):
        name = data.layers[first].quadrant
        left = at[first] - 0.5 if first == 0 else (at[first - 1] + at[first]) / 2
        right = at[last] + 0.5 if last == len(at) - 1 else (at[last] + at[last + 1]) / 2
        for height, alpha in ((1.0, 0.07), (STRIP, 0.35)):
            shape = Rectangle((left, 0), right - left, height, transform=ax.get_xaxis_transform())
            shape.set(facecolor=SHADES[name], alpha=alpha, linewidth=0, zorder=0.5)
            ax.add_patch(shape)
        lines = wrapped(name, room * (right - left) - 4, SMALL - 0.8)
        most = 1 if is_column(ax) else 2
        if len(lines) <= most and all(
            text_width(word, SMALL - 0.8) <= room * (right - left) - 4 for word in name.split()
        ):
            named.add(name)
            across = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "center"}
            where = (left + right) / 2, STRIP / 2
            ax.text(*where, "\n".join(lines), fontsize=SMALL - 0.8, color=INK, linespacing=0.95, **across)
    rest = [name for name in quadrant_counts(data) if name not in named]
    return [([name], Patch(facecolor=SHADES[name], alpha=0.42)) for name in rest]


def _runs(names: Sequence[str]) -> list[tuple[int, int]]:
    """(first, last) of each run of the same name."""
    starts = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    return list(zip(starts, [*(start - 1 for start in starts[1:]), len(names) - 1], strict=True))


def _name_axes(data: CausalData, ax: Axes) -> None:
    at, point = layer_xs(data), data.meta.get("point", data.layers[0].point)
    names = {
        x: "out" if layer.point != point else printable(layer.point) if layer.layer is None else str(layer.layer)
        for x, layer in zip(at, data.layers, strict=True)
    }
    shown = shown_ticks(sorted(names), 6 if is_column(ax) else 30)
    ax.set_xticks(shown, [names[x] for x in shown], **PLAIN)
    has_output = data.layers[-1].point != point
    name = point_axis_name(point, point == data.meta.get("output", "resid_post"), has_output)
    ax.set_xlabel("\n".join(wrapped(name, 72 * inches(ax)[0], float(ax.xaxis.label.get_fontsize()))), **PLAIN)
    ax.set_ylabel("share (0: nothing, 1: everything)")
    baseline = _baseline(data)
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if is_column(ax):
        return
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
    marks = [tick for tick in np.linspace(baseline, 1, 6) if _share(data, float(tick)) <= top]
    right.set_yticks(marks, [f"{tick:.2f}" for tick in marks])


def _write_above(data: CausalData, ax: Axes, legend: tuple[Entries, Entries], title: str | None) -> None:
    room = 72 * inches(ax)[0]
    height = draw_legends(ax, legend, room) * LINE
    warnings = [line for text in _warnings(data) for line in wrapped(text, room)]
    write_lines(ax, warnings, 8 + height, color=RED)
    height += len(warnings) * LINE
    lines = [] if is_column(ax) or title == "" else wrapped("; ".join(_facts(data)), room)
    write_lines(ax, lines, 8 + height)
    text = causal_heading(data) if title is None else printable(title)
    write_title(ax, text, 8 + height + len(lines) * LINE + 3)


def causal_heading(data: CausalData) -> str:
    """Label, model and task."""
    meta = data.meta
    task = short(meta["task"]) if meta.get("task") else None
    if not meta.get("label"):
        return f"{short(meta['model'])} ({task})" if task else short(meta["model"])
    what, where = probed(short(meta["label"]), task)
    return f"Decodability and causal effect of {what} in {short(meta['model'])}{where}"


def _warnings(data: CausalData) -> list[str]:
    return [f"! {warning}" for warning in [base_warning(data)] if warning]


def _facts(data: CausalData) -> list[str]:
    meta = data.meta
    read = f"{position_name(meta['position'])} read" if "position" in meta else ""
    at = {"read": "edited there", "all": "edits at every token"}.get(str(meta.get("at", "")), "")
    n = f"{meta['n']['test']:,} test rows" if "test" in meta.get("n", {}) else ""
    base = f"without edits: {text}" if (text := base_text(data)) else ""
    answers = f"answers by {short(meta['answers_label'])}" if has_other_answers(data) else ""
    marks = "filled: used"
    learned = place_ranges([layer for layer in data.layers if layer.used_by == ["das"]])
    by_das = f"used along DAS alone: {listed(learned)}" if learned else ""
    return [fact for fact in (", ".join(filter(None, (read, at))), answers, n, base, marks, by_das) if fact]
