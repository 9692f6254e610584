"""Small panels under the causal curve: other edits on an axis of their own, dose-response, completeness, and angles."""

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from probekit.causal.data import CausalData, Effect
from probekit.causal.results.report import method_name
from probekit.causal.results.view import (
    curve_effects,
    directions_text,
    dose,
    effect_shows_use,
    methods_of,
    probe_effects,
    selected_place,
    selected_scale,
)
from probekit.plots.headings import Entries, draw_legends
from probekit.plots.limits import shown_ticks
from probekit.plots.style import GREY, INK, LINE, PLAIN, RED, SMALL, inches
from probekit.text import printable

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
