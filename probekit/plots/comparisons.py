"""What a curve is compared with: baselines, the control task, random weights, and one row for each text."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from probekit.plots.curves import Curve, test_value, visible_runs, x_of
from probekit.plots.lines import draw_beyond
from probekit.plots.margin import MarginLabel, draw_margin, is_narrow
from probekit.plots.style import GREEN, GREY, RED, short

CONTROL, RANDOM, RESIDUAL = "control task", "random init", "residualised"
POOLED = {"mean": "#CC79A7", "last": "#E69F00"}  # a probe over a sequence, against one row for each text
LINES = {CONTROL: (0, (5, 2.5)), RANDOM: "-", RESIDUAL: (0, (4, 1.5, 1, 1.5))} | {f"{how} token": "-" for how in POOLED}
NAME = 16  # letters of a baseline


@dataclass(frozen=True)
class ReferenceScores:
    """Scores that a curve is compared with, as lines on its axes.

    Attributes:
        name: for the margin.
        values: one per place; a single one for a baseline, which is a line across the axes.
        xs: the places; none for a baseline.
        color: grey if it belongs to all curves.
    """

    name: str
    values: tuple[float, ...]
    xs: tuple[int, ...]
    color: str


def comparisons(curves: Sequence[Curve]) -> list[ReferenceScores]:
    """What all curves are compared with; a comparison that several curves share is there once, in grey."""
    several = [[*_baselines(curve), *_others(curve)] for curve in curves]
    owners: dict[tuple[object, ...], list[ReferenceScores]] = {}
    for each in (comparison for own in several for comparison in own):
        key = (each.name, each.xs, tuple(round(value, 3) for value in each.values))
        owners.setdefault(key, []).append(each)
    shared = [ReferenceScores(**{**vars(same[0]), "color": GREY}) for same in owners.values() if len(same) > 1]
    return shared + [same[0] for same in owners.values() if len(same) == 1]


def _baselines(curve: Curve) -> list[ReferenceScores]:
    name = curve.results.headline
    found = [(short(b.name, NAME), b.metrics["test"].get(name)) for b in curve.results.baselines]
    color = GREY if curve.is_alone else curve.color
    return [ReferenceScores(text, (value,), (), color) for text, value in found if value is not None]


def _others(curve: Curve) -> list[ReferenceScores]:
    """The curves of the control task, of random weights, without nuisances, and of one row for each text."""
    results = curve.results
    colors = {CONTROL: GREY, RANDOM: GREEN, RESIDUAL: RED} | {f"{how} token": color for how, color in POOLED.items()}
    found = {
        CONTROL: [(x_of(results, layer), layer.control) for layer in results.layers if layer.control is not None],
        RANDOM: [(x_of(results, layer), test_value(results, layer)) for layer in results.random_init],
        RESIDUAL: [(x_of(results, layer), test_value(results, layer)) for layer in results.residual],
    }
    found |= {
        f"{how} token": [(x_of(results, layer), test_value(results, layer)) for layer in layers]
        for how, layers in results.pooled.items()
    }
    return [
        ReferenceScores(
            name,
            tuple(value for _, value in points),
            tuple(x for x, _ in points),
            colors[name] if curve.is_alone else curve.color,
        )
        for name, points in found.items()
        if points
    ]


def draw_comparisons(ax: Axes, several: Sequence[ReferenceScores], is_alone: bool) -> dict[str, Artist]:
    """Draw them on axes with their final y limits; returns the legend's entries.

    What leaves the axis at any layer is named at that end, with an arrow and its farthest value; what is beyond it
    throughout, with all its values.

    Args:
        ax: with the curves.
        several: what to draw.
        is_alone: whether they belong to one curve, so that the margin has room for all names.
    """
    low, high = ax.get_ylim()
    entries: dict[str, Artist] = {}
    labels = []
    for each in several:
        runs = visible_runs(each.values, low, high)
        if each.xs and runs:
            look = {"color": each.color, "linewidth": 1.2, "linestyle": LINES[each.name], "zorder": 3, "markersize": 4}
            values = [value if low <= value <= high else float("nan") for value in each.values]
            alone = [run.start for run in runs if len(run) == 1]  # which no line goes to
            marked = {"marker": "D", "markevery": alone} if alone else {}
            (line,) = ax.plot(each.xs, values, label=each.name, **look, **marked)
            entries.setdefault(each.name, line)
            entries |= draw_beyond(ax, each.xs, each.values, each.color)
        labels += _labels(ax, each, is_alone)
    draw_margin(ax, labels)
    return entries


def _labels(ax: Axes, each: ReferenceScores, is_alone: bool) -> list[MarginLabel]:
    """Its name at its right end, and a note at each end of the axis that it leaves, at whatever layer."""
    low, high = ax.get_ylim()
    end, labels = each.values[-1], []
    if low <= end <= high and (is_alone or not each.xs):
        text = each.name if each.xs or is_narrow(ax) else f"{each.name} {end:z.3f}"
        labels.append(MarginLabel(end, text, each.color, is_line=not each.xs))
    if max(each.values) > high:
        text = f"↑ {each.name} {_beyond(each, 'up to', low, high)}"
        labels.append(MarginLabel(max(each.values), text, each.color, is_beyond=True))
    if min(each.values) < low:
        text = f"↓ {each.name} {_beyond(each, 'down to', low, high)}"
        labels.append(MarginLabel(min(each.values), text, each.color, is_beyond=True))
    return labels


def _beyond(each: ReferenceScores, to: str, low: float, high: float) -> str:
    """Its values, if all are beyond one end of the axis; else only the farthest, after `to`."""
    first, last = min(each.values), max(each.values)
    if first > high or last < low:
        return " to ".join(dict.fromkeys(f"{value:z.2f}" for value in (first, last)))
    return f"{to} {last if to == 'up to' else first:z.2f}"
