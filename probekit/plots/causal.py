"""The causal curve: what can be read and what is used, by layer, on one axis.

Decodability is drawn as its share of the way from the baseline to a perfect score, and an effect is a share by
definition: so 0 is nothing and 1 is everything for both. The axis on the right has the score itself.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from probekit.causal.data import CausalData, Effect
from probekit.causal.results.checklist import base_text, base_warning
from probekit.causal.results.report import has_other_answers, method_name, place_ranges, quadrant_counts
from probekit.causal.results.view import (
    curve_effects,
    directions_text,
    effect_shows_use,
    finite,
    methods_of,
    selected_place,
)
from probekit.errors import UsageError
from probekit.evaluation.results.wording import metric_name, position_name, probed
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.causal_panels import METHODS, draw_panels, panel_rows, panels_shown
from probekit.plots.headings import Entries, draw_legends
from probekit.plots.limits import point_axis_name, shown_ticks
from probekit.plots.lines import draw_beyond
from probekit.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LINE,
    PLAIN,
    RED,
    SMALL,
    inches,
    is_column,
    is_column_width,
    new_figure,
    short,
    shown_figure,
    text_width,
    wrapped,
    write_figure,
    write_lines,
    write_title,
)
from probekit.text import listed, printable

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
