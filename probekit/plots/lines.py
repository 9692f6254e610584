"""One curve on the layer axis: the line of test, its band, the selected layer, and the layers tied with the best."""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from probekit.charts.curves import (
    Curve,
    bands,
    chosen,
    has_intervals,
    interval_of,
    metric_of,
    place_text,
    test_value,
    validation_values,
)
from probekit.charts.curves import x_of as x_of_place
from probekit.charts.palette import PALETTE, RED

TEST, VALIDATION, SELECTED = "test", "validation", "selected on validation"
TIED, BELOW, ABOVE = "statistically tied with the best", "below the axis", "above the axis"
NESTED = "nested cross-validation"
MARKERS = "osD^"
_RULE = 0.4  # layers to either side that the rule of the tied layers covers


def draw_curve(ax: Axes, curve: Curve) -> tuple[Artist, dict[str, Artist]]:
    """Draw a curve on axes with their final y limits; returns its line, and marks that curves share by their names."""
    marks = (
        _draw_band(ax, curve)
        | draw_beyond(ax, curve.xs, curve.values, curve.color)
        | _draw_tied(ax, curve)
        | _draw_chosen(ax, curve)
    )
    marker = MARKERS[curve.rank // len(PALETTE) % len(MARKERS)]  # colours come again after the last
    look = {"linewidth": 2, "marker": marker, "markersize": 4.5 if len(curve.xs) <= 30 else 3, "zorder": 4}
    (line,) = ax.plot(curve.xs, curve.values, color=curve.color, label=curve.name or TEST, **look)
    return line, marks


def _draw_band(ax: Axes, curve: Curve) -> dict[str, Artist]:
    """The band of test, if intervals were requested, and, of one curve alone, the scores on validation."""
    ends, name = bands(curve.results)
    low, high = zip(*ends, strict=True)
    found: dict[str, Artist] = {}
    if not has_intervals(curve.results) or not curve.has_band:
        pass
    elif len(curve.xs) == 1:  # a band has no width here
        found[name] = ax.vlines(curve.xs, low, high, color=curve.color, alpha=0.35, linewidth=6, label=name)
    else:
        found[name] = ax.fill_between(curve.xs, low, high, color=curve.color, alpha=0.16, linewidth=0, label=name)
    if curve.is_alone and (values := validation_values(curve.results)):
        look = {"linestyle": (0, (4, 2)), "linewidth": 1, "label": VALIDATION}
        (found[VALIDATION],) = ax.plot(curve.xs, values, color=_paler(curve.color), **look)
    return found


def _paler(color: str) -> tuple[float, ...]:
    """Halfway to white."""
    return tuple(1 - (1 - part) / 2 for part in to_rgb(color))


def draw_beyond(ax: Axes, xs: Sequence[float], values: Sequence[float], color: str) -> dict[str, Artist]:
    """Mark each value beyond the ends of the y axis, which are final, with a triangle at that end; by their names."""
    low, high = ax.get_ylim()
    found: dict[str, Artist] = {}
    ends = {
        BELOW: ("v", 0.03, [value < low for value in values]),
        ABOVE: ("^", 0.97, [value > high for value in values]),
    }
    for name, (mark, y, is_there) in ends.items():
        at = [x for x, is_beyond in zip(xs, is_there, strict=True) if is_beyond]
        if at:
            look = {"linestyle": "none", "marker": mark, "markersize": 6, "color": color, "label": name, "zorder": 5}
            (found[name],) = ax.plot(at, [y] * len(at), transform=ax.get_xaxis_transform(), **look)
    return found


def _draw_tied(ax: Axes, curve: Curve) -> dict[str, Artist]:
    """A thin rule over the x axis under every layer that is statistically tied with the best."""
    tied = zip(curve.xs, curve.results.layers, strict=True)
    found: dict[str, Artist] = {}
    if len(curve.xs) == 1:
        return found
    for first, last in runs([x for x, layer in tied if layer.in_best_set]):
        (rule,) = ax.plot(
            [first - _RULE, last + _RULE],
            [0.011 + 0.02 * curve.rank] * 2,
            transform=ax.get_xaxis_transform(),
            color=curve.color,
            linewidth=4,
            solid_capstyle="butt",
            label="" if found else TIED,
        )
        found.setdefault(TIED, rule)
    return found


def runs(xs: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive layers: [0, 1, 2, 5] -> [(0, 2), (5, 5)]."""
    found: list[tuple[int, int]] = []
    for x in xs:
        if found and found[-1][1] == x - 1:
            found[-1] = (found[-1][0], x)
        else:
            found.append((x, x))
    return found


def _draw_chosen(ax: Axes, curve: Curve) -> dict[str, Artist]:
    """A ring around the selected place; with nested folds, a line for the complete procedure."""
    results, color = curve.results, RED if curve.is_alone else curve.color
    if results.procedure is not None:
        look = {"linewidth": 1.4, "linestyle": (0, (6, 2, 1, 2)), "label": NESTED, "zorder": 5}
        return {NESTED: ax.axhline(results.estimate[0], color=color, **look)}
    best = chosen(results)
    if best is None:
        return {}
    look = {"linestyle": "none", "marker": "o", "markersize": 10, "markerfacecolor": "none", "markeredgewidth": 1.8}
    at = [x_of_place(results, best)], [test_value(results, best)]
    (ring,) = ax.plot(*at, markeredgecolor=color, label=SELECTED, zorder=5, clip_on=False, **look)
    return {SELECTED: ring}


def scores_of(curve: Curve) -> list[str]:
    """The score to quote in words, the longest text first; none where nothing was selected."""
    results, metric, remarks = curve.results, metric_of(curve.results), _remarks(curve)
    if results.procedure is not None:
        value, ends = results.estimate
        what, within = "", f"{value:z.3f}{'' if ends is None else ' ' + _within(ends)}"
    elif best := chosen(results):
        value, what = test_value(results, best), f"{place_text(results, best)}, "
        within = f"{value:z.3f}" + (f" {_within(interval_of(results, best))}" if has_intervals(results) else "")
        metric = f"test {metric}"
    else:
        return []
    texts = [f"{what}{metric} {within}", f"{what}{within}", f"{what}{value:z.3f}"]
    return [texts[0] + "".join(remarks[:n]) for n in range(len(remarks), 0, -1)] + texts


def _remarks(curve: Curve) -> list[str]:
    """The scores of the control task, of random weights and of one row for each text at the selected place."""
    best = chosen(curve.results)
    if best is None or not curve.is_alone:
        return []
    random = [test_value(curve.results, layer) for layer in curve.results.random_init if layer.place == best.place]
    values = {"control": [] if best.control is None else [best.control], "random init": random}
    for how, layers in curve.results.pooled.items():
        values[f"{how} token"] = [test_value(curve.results, layer) for layer in layers if layer.place == best.place]
    return [f", {name} {value:z.3f}" for name, known in values.items() for value in known]


def _within(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:z.3f}, {ends[1]:z.3f}]"
