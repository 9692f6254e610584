"""Draw what a curve is compared with: baselines, the control task, random weights, and one row for each text."""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from probekit.charts.curves import visible_runs
from probekit.charts.references import CONTROL, POOLED, RANDOM, RESIDUAL, ReferenceScores
from probekit.plots.lines import draw_beyond
from probekit.plots.margin import MarginLabel, draw_margin, is_narrow

LINES = {CONTROL: (0, (5, 2.5)), RANDOM: "-", RESIDUAL: (0, (4, 1.5, 1, 1.5))} | {f"{how} token": "-" for how in POOLED}


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
        if not each.xs and len(each.values) > 1:  # the range of many curves' baselines, at the end of the axes
            look = {"transform": ax.get_yaxis_transform(), "linewidth": 5, "alpha": 0.35, "solid_capstyle": "butt"}
            at = 0.994 - 0.012 * [one.name for one in several if not one.xs].index(each.name)
            ax.plot([at, at], [min(max(value, low), high) for value in each.values], color=each.color, **look)
    draw_margin(ax, labels)
    return entries


def _labels(ax: Axes, each: ReferenceScores, is_alone: bool) -> list[MarginLabel]:
    """Its name at its right end, and a note at each end of the axis that it leaves, at whatever layer."""
    low, high = ax.get_ylim()
    first, last = each.values[0], each.values[-1]
    is_range, labels = not each.xs and len(each.values) > 1, []
    end = (first + last) / 2 if is_range else last
    if low <= end <= high and (is_alone or not each.xs):
        values = f"{first:z.2f} to {last:z.2f}" if is_range else f"{end:z.3f}"
        text = each.name if each.xs or is_narrow(ax) else f"{each.name} {values}"
        labels.append(MarginLabel(end, text, each.color, is_line=not each.xs and not is_range))
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
