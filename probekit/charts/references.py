"""What a curve is compared with, as data: baselines, the control task, random weights, other features."""

from collections.abc import Sequence
from dataclasses import dataclass

from probekit.charts.curves import Curve, test_value, x_of
from probekit.charts.lines import Limits, LineLook, MarginLabel, Rule, Series, visible_runs
from probekit.charts.palette import GREEN, GREY, ORANGE, PINK, RED, short
from probekit.evaluation.results.wording import features_name

CONTROL, RANDOM, RESIDUAL = "control task", "random init", "residualised"
POOLED = {"mean": PINK, "last": ORANGE, "activations": PINK}  # other features of the same rows
_LOOKS: dict[str, LineLook] = {CONTROL: "dashed", RESIDUAL: "dash-dotted"}  # others are solid
NAME = 16  # letters of a baseline
MOST_BASELINES = 8  # that the margin names one by one; of more, those of one name are a range


@dataclass(frozen=True)
class ReferenceScores:
    """Scores that a curve is compared with, as lines on its axes.

    Attributes:
        name: for the margin.
        values: one per place; a single one for a baseline, which is a line across the axes, or the lowest and the
            highest of the baselines of many curves.
        xs: the places; none for a baseline.
        color: grey if it belongs to all curves.
    """

    name: str
    values: tuple[float, ...]
    xs: tuple[int, ...]
    color: str


def comparisons(curves: Sequence[Curve]) -> list[ReferenceScores]:
    """What all curves are compared with; a comparison that several curves share is there once, in grey.

    More than `MOST_BASELINES` baselines would crowd the picture: those of one name become the range of their values.
    """
    several = [[*_baselines(curve), *_others(curve)] for curve in curves]
    owners: dict[tuple[object, ...], list[ReferenceScores]] = {}
    for each in (comparison for own in several for comparison in own):
        key = (each.name, each.xs, tuple(round(value, 3) for value in each.values))
        owners.setdefault(key, []).append(each)
    shared = [ReferenceScores(**{**vars(same[0]), "color": GREY}) for same in owners.values() if len(same) > 1]
    found = shared + [same[0] for same in owners.values() if len(same) == 1]
    baselines = [each for each in found if not each.xs]
    if len(baselines) <= MOST_BASELINES:
        return found
    by_name: dict[str, list[float]] = {}
    for each in baselines:
        by_name.setdefault(each.name, []).extend(each.values)
    ranges = [
        ReferenceScores(name, tuple(dict.fromkeys((min(values), max(values)))), (), GREY)
        for name, values in by_name.items()
    ]
    return [each for each in found if each.xs] + ranges


def _baselines(curve: Curve) -> list[ReferenceScores]:
    name = curve.results.headline
    found = [(short(b.name, NAME), b.metrics["test"].get(name)) for b in curve.results.baselines]
    color = GREY if curve.is_alone else curve.color
    return [ReferenceScores(text, (value,), (), color) for text, value in found if value is not None]


def _others(curve: Curve) -> list[ReferenceScores]:
    """The curves of the control task, of random weights, without nuisances, and of one row for each text."""
    results = curve.results
    colors = {CONTROL: GREY, RANDOM: GREEN, RESIDUAL: RED} | {
        features_name(how): color for how, color in POOLED.items()
    }
    found = {
        CONTROL: [(x_of(results, layer), layer.control) for layer in results.layers if layer.control is not None],
        RANDOM: [(x_of(results, layer), test_value(results, layer)) for layer in results.random_init],
        RESIDUAL: [(x_of(results, layer), test_value(results, layer)) for layer in results.residual],
    }
    found |= {
        features_name(how): [(x_of(results, layer), test_value(results, layer)) for layer in layers]
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


def reference_marks(several: Sequence[ReferenceScores], limits: Limits) -> list[Series | Rule]:
    """The lines of those of which the axis shows a value; ranges of baselines are side by side."""
    low, high = limits
    found: list[Series | Rule] = []
    for each in several:
        if not each.xs and len(each.values) > 1:
            first, last = sorted(min(max(value, low), high) for value in each.values)
            found.append(Rule(first, each.color, to=last, rank=sum(isinstance(mark, Rule) for mark in found)))
        elif not each.xs and low <= (value := max(each.values)) <= high:
            found.append(Rule(value, each.color))
        elif each.xs and visible_runs(each.values, limits):
            xs = tuple(map(float, each.xs))
            look = _LOOKS.get(each.name, "solid")
            found.append(Series(xs, each.values, each.color, look, dots=False, name=each.name))
    return found


def margin_labels(each: ReferenceScores, limits: Limits, is_alone: bool) -> list[MarginLabel]:
    """Its name at its right end, and a note at each end of the axis that it leaves, at whatever layer.

    What is beyond the axis throughout is noted with all its values. Of lines that belong to one of several curves, only
    those across the axes have their names there.
    """
    low, high = limits
    first, last = each.values[0], each.values[-1]
    is_range, labels = not each.xs and len(each.values) > 1, []
    end = (first + last) / 2 if is_range else last
    if low <= end <= high and (is_alone or not each.xs):
        number = "" if each.xs else f"{first:z.2f} to {last:z.2f}" if is_range else f"{end:z.3f}"
        labels.append(MarginLabel(end, each.name, each.color, number, None if each.xs else "dotted"))
    if (most := max(each.values)) > high:
        labels.append(MarginLabel(most, f"↑ {each.name} {_beyond(each, 'up to', limits)}", each.color, look="above"))
    if (least := min(each.values)) < low:
        labels.append(MarginLabel(least, f"↓ {each.name} {_beyond(each, 'down to', limits)}", each.color, look="below"))
    return labels


def _beyond(each: ReferenceScores, to: str, limits: Limits) -> str:
    """Its values, if all are beyond one end of the axis; else only the farthest, after `to`."""
    first, last = min(each.values), max(each.values)
    if first > limits[1] or last < limits[0]:
        return " to ".join(dict.fromkeys(f"{value:z.2f}" for value in (first, last)))
    return f"{to} {last if to == 'up to' else first:z.2f}"
