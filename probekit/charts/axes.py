"""Limits and ticks: the y axis fits the curves and their bands, and shows comparisons where that costs little room."""

import math
from collections.abc import Collection, Iterable, Sequence

from probekit.charts.curves import Curve, bands, validation_values
from probekit.charts.lines import Limits
from probekit.charts.references import CONTROL, ReferenceScores
from probekit.evaluation.results.data import ProbeData, is_output
from probekit.points import base_name
from probekit.text import printable

BOUNDS = {"r2": (-0.25, 1.0), "spearman": (-1.0, 1.0)}  # of the y axis; an R2 may be far below 0
SMALLEST_SPAN = 0.3  # of the y axis, so that noise never fills the picture
STRETCH = 2.0  # comparisons may make the y axis this much longer than the curves need
STRETCH_UP = 1.25  # a control task above the curves, where it is the easier task and its height says nothing
PLACES = {
    "resid_pre": "input of block i",
    "resid_mid": "after the attention of block i",
    "resid_post": "before the last norm of block i",  # unless it is the output, in models without such a norm
}
UNDER = 1.0  # that the y axis shows under a best R2 that is far below 0
_PAD = 0.05  # of the span, above and below
_RULE = 0.02  # of the span, for the rule of each curve's tied layers


def y_limits(curves: Sequence[Curve], others: Sequence[ReferenceScores]) -> Limits:
    """The ends of the y axis."""
    least, most = _bounds(curves)
    needed = [value for curve in curves for value in _needed(curve)]
    low, high = max(least, min(needed)), min(most, max(needed))
    room, top = max(high - low, SMALLEST_SPAN), high
    ends = [
        (end, STRETCH_UP if each.name == CONTROL and end > top else STRETCH)
        for each in others
        for end in (min(each.values), max(each.values))
        if least <= end <= most
    ]
    for end, stretch in sorted(ends, key=lambda one: max(low - one[0], one[0] - high)):  # the nearest first
        if max(high, end) - min(low, end) <= stretch * room + 1e-9:
            low, high = min(low, end), max(high, end)
    low, high = widened(low, high, (least, most))
    pad = _PAD * (high - low)
    return low - 1.4 * pad - _RULE * (len(curves) - 1) * (high - low), high + pad


def widened(low: float, high: float, bounds: Limits) -> Limits:
    """The range made at least `SMALLEST_SPAN` long, to both sides where the bounds allow it."""
    least, most = bounds
    high = min(most, high + max(0.0, SMALLEST_SPAN - (high - low)) / 2)
    low = max(least, min(low, high - SMALLEST_SPAN))
    return low, max(high, low + SMALLEST_SPAN)


def _bounds(curves: Sequence[Curve]) -> Limits:
    """The ends of the axis at most; where the best scores are below the usual end, it goes on under them."""
    least, most = BOUNDS.get(curves[0].results.headline, (0.0, 1.0))
    kept = [max(curve.values) for curve in curves]
    kept += [quoted.value for curve in curves if (quoted := curve.results.quoted)]
    return min([least, *(value - UNDER for value in kept if value < least)]), most


def _needed(curve: Curve) -> Iterable[float]:
    """What the axis has to show of a curve."""
    results = curve.results
    yield from curve.values
    yield from (end for ends in bands(results)[0] for end in ends)
    if curve.is_alone:
        yield from validation_values(results)
    if results.procedure is not None:
        yield results.estimate[0]


def score_limits(values: Collection[float], metric: str, pad: float, least: float = math.inf) -> Limits:
    """The ends of an axis of scores of a metric: those that hold the values, as far as its `BOUNDS`, or `least`, go."""
    bottom, most = BOUNDS.get(metric, (0.0, 1.0))
    bottom = min(bottom, least)
    low, high = widened(max(bottom, min(values)), min(most, max(values)), (bottom, most))
    return low - pad * (high - low), high + pad * (high - low)


def around(limits: Limits, others: Limits | None) -> Limits:
    """Limits that hold both."""
    return limits if others is None else (min(*limits, *others), max(*limits, *others))


def x_limits(xs: Collection[float]) -> Limits:
    """The ends of an axis of layers."""
    first, last = min(xs), max(xs)
    margin = max(0.5, 0.02 * (last - first))
    return first - margin, last + margin


def shown_ticks(xs: Sequence[float], most: int = 30) -> list[float]:
    """The ticks that get a label: all, or every second, fourth or so, and always the last; never too close."""
    if any(x % 1 for x in xs):  # shares and not layers, which are few
        return list(xs)
    step = next(step for step in (1, 2, 4, 10, 20, 50, 10**6) if len(xs) <= most * step and (step != 2 or most < 30))
    shown = [xs[-1]]
    for x in reversed(xs[:-1]):
        if x % step == 0 and shown[-1] - x >= max(step / 2, (xs[-1] - xs[0]) / most):
            shown.append(x)
    return shown[::-1]


def layer_axis_name(curves: Sequence[Curve]) -> str:
    """What the layer axis means; only "layer" where the curves differ."""
    names = {_axis_name(curve.results) for curve in curves}
    return names.pop() if len(names) == 1 else "layer"


def _axis_name(results: ProbeData) -> str:
    if results.layers[0].layer is None:
        return ""
    is_end = results.meta["point"] == results.meta.get("output", "resid_post")
    return point_axis_name(results.meta["point"], is_end, is_output(results, results.layers[-1]))


def point_axis_name(point: str, is_end: bool, has_output: bool) -> str:
    """The name of a layer axis.

    Args:
        point: of the curve.
        is_end: whether it is the output of the blocks.
        has_output: whether the last place is the output of the last block.
    """
    stack, _, name = point.rpartition(".")
    place = "output of block i" if is_end else PLACES.get(name, f"{base_name(point)} of block i")
    place += f" of the {stack}" if stack else ""
    return printable(f"layer ({place}; last: output)" if has_output else f"layer ({place})")


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights for labels of sorted values: close to the values, at least `gap` apart, within the axis."""
    heights = list(values)
    for _ in range(300):  # labels that overlap push each other apart, and the ends of the axis push back
        for i in range(len(heights) - 1):
            push = max(0.0, gap - (heights[i + 1] - heights[i])) / 2
            heights[i], heights[i + 1] = heights[i] - push, heights[i + 1] + push
        heights = [min(max(height, low + gap / 2), high - gap / 2) for height in heights]
    for i in range(len(heights) - 2, -1, -1):  # what is left where there is hardly room
        heights[i] = min(heights[i], heights[i + 1] - gap)
    return heights
