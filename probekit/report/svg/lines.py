"""Lines over layers: curves with bands, rules for baselines, and a column for each layer that says its values."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from probekit.charts.axes import spread
from probekit.charts.curves import visible_runs
from probekit.report.svg.element import element, hot, path_of, svg, text_room, together
from probekit.report.svg.scales import AxisSpan, cut_to, pixel, tick_text, ticks
from probekit.text import printable

TOP, BOTTOM, LEFT, RIGHT = 12.0, 46.0, 52.0, 14.0  # pixels around the axes
LINE = 14.0  # pixels from one small line of text to the next
NARROW = 480  # pixels; a narrower picture has no names in the margin


@dataclass(frozen=True)
class Series:
    """A line over the layers.

    Attributes:
        name: in the legend.
        color: a class of the page: "blue", "red", "green", "pink", "orange", "sky", "ink", "grey".
        xs: the layers.
        ys: a value for each.
        look: "solid", "dashed" or "dotted".
        band: (low, high) for each layer; empty for none.
        hollow: the layers whose dot is hollow.
        dots: whether each layer has a dot.
    """

    name: str
    color: str
    xs: Sequence[float]
    ys: Sequence[float]
    look: str = "solid"
    band: Sequence[tuple[float, float]] = ()
    hollow: frozenset[float] = frozenset()
    dots: bool = True


@dataclass(frozen=True)
class Rule:
    """A value that does not depend on the layer."""

    name: str
    value: float
    color: str = "grey"


@dataclass(frozen=True)
class LineChart:
    """A picture of lines over layers; a value beyond the y axis is a triangle at that end.

    Attributes:
        name: what it shows, for those who do not see it.
        series: in the order of the legend; the last are drawn first.
        rules: baselines.
        x_ticks: layer -> its name.
        x_name: of the axis.
        y_name: of the axis.
        y_limits: of the axis.
        tips: layer -> what is said of it, in lines.
        ringed: (layer, value, color) of the selected places.
        tied: layers that are tied with the best.
    """

    name: str
    series: Sequence[Series]
    x_ticks: dict[float, str]
    x_name: str
    y_name: str
    y_limits: tuple[float, float]
    tips: dict[float, str]
    rules: Sequence[Rule] = ()
    ringed: Sequence[tuple[float, float, str]] = ()
    tied: Sequence[float] = ()


def draw_lines(chart: LineChart, width: float = 720, height: float = 360) -> Markup:
    """The chart as SVG."""
    xs = sorted(chart.x_ticks)
    margin = RIGHT if width < NARROW or not chart.rules else 12 + max(text_room(_label(rule)) for rule in chart.rules)
    around = max(0.5, 0.02 * (xs[-1] - xs[0]))
    across = AxisSpan(xs[0] - around, xs[-1] + around, LEFT, width - margin)
    up = AxisSpan(*chart.y_limits, height - BOTTOM, TOP)
    parts = [_grid(chart, across, up), _x_axis(chart, across, up), *_rules(chart, across, up, width >= NARROW)]
    parts += [_band(one, across, up) for one in chart.series if one.band]
    parts += [_line(one, across, up) for one in reversed(chart.series)]
    parts += [_tied(chart, across, up), *_columns(chart, across, up)]
    return svg(chart.name, width, height, parts)


def _label(rule: Rule) -> str:
    return f"{rule.name} {rule.value:z.3f}"


def _grid(chart: LineChart, across: AxisSpan, up: AxisSpan) -> Markup:
    values = ticks(up.low, up.high)
    lines = [
        element("path", class_="grid", d=path_of([(across.start, y), (across.end, y)]))
        for y in (pixel(up, value) for value in values)
    ]
    names = [
        element("text", tick_text(value, values), class_="tick end", x=across.start - 7, y=pixel(up, value) + 4)
        for value in values
    ]
    middle = (up.start + up.end) / 2
    name = element("text", chart.y_name, class_="axis mid", transform=f"translate(13 {middle:g}) rotate(-90)")
    return together([*lines, *names, name])


def _x_axis(chart: LineChart, across: AxisSpan, up: AxisSpan) -> Markup:
    xs = sorted(chart.x_ticks)
    room = max(text_room(chart.x_ticks[x]) for x in xs) + 6
    step = next((s for s in (1, 2, 4, 5, 10, 20, 50) if room * len(xs) / s <= across.end - across.start), 100)
    shown = [x for i, x in enumerate(xs) if i % step == 0]
    names = [element("text", chart.x_ticks[x], class_="tick mid", x=pixel(across, x), y=up.start + 17) for x in shown]
    name = element("text", chart.x_name, class_="axis mid", x=(across.start + across.end) / 2, y=up.start + BOTTOM - 9)
    line = element("path", class_="base", d=path_of([(across.start, up.start), (across.end, up.start)]))
    return together([line, *names, name])


def _rules(chart: LineChart, across: AxisSpan, up: AxisSpan, named: bool) -> list[Markup]:
    """The baselines within the axis, with their names in the margin where there is room."""
    shown = sorted((rule for rule in chart.rules if up.low <= rule.value <= up.high), key=lambda rule: -rule.value)
    ys = [pixel(up, rule.value) for rule in shown]
    found = [
        element("path", class_=f"{rule.color} rule", d=path_of([(across.start, y), (across.end, y)]))
        for rule, y in zip(shown, ys, strict=True)
    ]
    if named:
        found += [
            element("text", _label(rule), class_=f"{rule.color} name", x=across.end + 6, y=y + 4)
            for rule, y in zip(shown, spread(ys, LINE, up.end, up.start), strict=True)
        ]
    return found


def _band(one: Series, across: AxisSpan, up: AxisSpan) -> Markup:
    """The band as far as the axis shows it."""
    low = list(zip(one.xs, (ends[0] for ends in one.band), strict=True))
    high = list(zip(one.xs, (ends[1] for ends in one.band), strict=True))
    if len(one.xs) == 1:
        ends = [(pixel(across, x), pixel(up, y)) for x, y in (*low, *high)]
        return element("path", class_=f"{one.color} bar", d=path_of(ends))
    shape = [(pixel(across, x), pixel(up, y)) for x, y in cut_to([*low, *reversed(high)], up.low, up.high)]
    return element("path", class_=f"{one.color} band", d=path_of(shape, closed=True)) if shape else Markup()


def _line(one: Series, across: AxisSpan, up: AxisSpan) -> Markup:
    points = [(pixel(across, x), pixel(up, y)) for x, y in zip(one.xs, one.ys, strict=True)]
    return together(
        element("path", class_=f"{one.color} line {one.look}", d=path_of(points[run.start : run.stop]))
        for run in visible_runs(one.ys, up.low, up.high)
        if len(run) > 1
    )


def _tied(chart: LineChart, across: AxisSpan, up: AxisSpan) -> Markup:
    """A thick rule over the axis under every layer that is tied with the best."""
    half = 0.4 * (across.end - across.start) / (across.high - across.low)
    ends = [(pixel(across, x) - half, pixel(across, x) + half) for x in chart.tied]
    return together(
        element("path", class_="blue tied", d=path_of([(a, up.start - 3), (b, up.start - 3)])) for a, b in ends
    )


def _columns(chart: LineChart, across: AxisSpan, up: AxisSpan) -> list[Markup]:
    """For each layer a column that shows its values when it is pointed at or has the focus."""
    xs = sorted(chart.tips)
    edges = [across.start, *[(pixel(across, a) + pixel(across, b)) / 2 for a, b in pairwise(xs)]]
    edges.append(across.end)
    found = []
    for i, x in enumerate(xs):
        at = pixel(across, x)
        inside = [
            element(
                "rect", class_="hit", x=edges[i], y=up.end, width=edges[i + 1] - edges[i], height=up.start - up.end
            ),
            element("path", class_="guide", d=path_of([(at, up.end), (at, up.start)])),
            *_dots(chart, x, at, up),
        ]
        found.append(hot(chart.tips[x], inside, is_first=i == 0))
    return found


def _dots(chart: LineChart, x: float, at: float, up: AxisSpan) -> list[Markup]:
    """The values of a layer: dots, lone values of a line without dots, and triangles at the ends of the axis."""
    found = []
    for one in reversed(chart.series):
        alone = {run.start for run in visible_runs(one.ys, up.low, up.high) if len(run) == 1}
        for i, (own, y) in enumerate(zip(one.xs, one.ys, strict=True)):
            if own != x:
                continue
            if not up.low <= y <= up.high:
                found.append(_beyond(one.color, at, y > up.high, up))
            elif one.dots or i in alone:
                kind = "hollow" if x in one.hollow else "dot"
                found.append(element("circle", class_=f"{one.color} {kind}", cx=at, cy=pixel(up, y), r=3.5))
    rings = [
        element("circle", class_=f"{color} ring", cx=at, cy=pixel(up, y), r=8.0)
        for own, y, color in chart.ringed
        if own == x
    ]
    return found + rings


def _beyond(color: str, at: float, above: bool, up: AxisSpan) -> Markup:
    """A triangle that points to a value beyond the axis."""
    tip, base = (up.end, up.end + 7) if above else (up.start, up.start - 7)
    return element(
        "path", class_=f"{color} beyond", d=path_of([(at - 4, base), (at + 4, base), (at, tip)], closed=True)
    )


def chart_legend(chart: LineChart) -> list[tuple[str, str, str]]:
    """The entries (name, color, look) of the lines, with the farthest value of those that leave the axis."""
    (low, high), entries = chart.y_limits, []
    for one in chart.series:
        beyond = [f"up to {max(one.ys):z.3f}"] * (max(one.ys) > high) + [f"down to {min(one.ys):z.3f}"] * (
            min(one.ys) < low
        )
        entries.append((printable(one.name) + (f" ({', '.join(beyond)})" if beyond else ""), one.color, one.look))
    if any(not low <= y <= high for one in chart.series for y in one.ys):
        entries.append(("beyond the axis", "grey", "beyond"))
    return list(dict.fromkeys(entries))
