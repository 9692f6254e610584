"""Lines over layers as SVG, with a column for each layer that says its values."""

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from probekit.charts.axes import spread
from probekit.charts.lines import STRIP, Band, LineChart, Ring, Rule, Series, Stretch, lone, visible_runs
from probekit.charts.palette import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED, SKY
from probekit.report.parts import Picture
from probekit.report.svg.element import element, hot, path_of, svg, text_room, together
from probekit.report.svg.scales import AxisSpan, cut_to, pixel, tick_text, ticks

TOP, BOTTOM, LEFT, RIGHT = 12.0, 46.0, 52.0, 14.0  # pixels around the axes
LINE = 14.0  # pixels from one small line of text to the next
NARROW = 480  # pixels; a narrower picture has no names in the margin
WIDE_SIZE, PHONE_SIZE = (720, 360), (360, 300)  # pixels
COLORS = {
    BLUE: "blue",
    RED: "red",
    GREEN: "green",
    GREY: "grey",
    INK: "ink",
    PINK: "pink",
    ORANGE: "orange",
    SKY: "sky",
}
"""Colours of the pictures -> classes of the page."""


def lines_picture(chart: LineChart, caption: str = "", size: tuple[float, float] | None = None) -> Picture:
    """The chart as a figure with its legend, which also names what has its name in the margin of a wide picture.

    `size` is in pixels; without it there is a picture for a desk and one for a phone.
    """
    shades = {one.name: (one.name, COLORS[one.color], "shade") for one in chart.shades}
    legend = [
        *(
            (one.texts[0], COLORS[one.color], f"{one.look}{' dots' * one.dots}{' thin' * one.thin}")
            for one in chart.legend
        ),
        *shades.values(),
        *((label.text, COLORS[label.color], label.look) for label in chart.margin if label.look),
    ]
    if size is not None:
        return Picture(draw_lines(chart, *size), caption, legend=legend)
    return Picture(draw_lines(chart, *WIDE_SIZE), caption, draw_lines(chart, *PHONE_SIZE), legend)


def draw_lines(chart: LineChart, width: float, height: float) -> Markup:
    """The chart as SVG."""
    margin = max([RIGHT, *(12 + text_room(label.text) for label in chart.margin)]) if width >= NARROW else RIGHT
    across = AxisSpan(*chart.x_limits, LEFT, width - margin)
    up = AxisSpan(*chart.y_limits, height - BOTTOM, TOP)
    strip = STRIP if chart.shades else 0.0  # which has no values beside it
    values = ticks(up.low + strip * (up.high - up.low), up.high)
    parts = [
        *(_shade(one, across, up) for one in chart.shades),
        y_axis(across, up, chart.y_name, values),
        _x_axis(chart, across, up),
    ]
    parts += [_band(mark, across, up) for mark in chart.marks if isinstance(mark, Band)]
    parts += [_rule(mark, across, up) for mark in chart.marks if isinstance(mark, Rule)]
    parts += _margin(chart, across, up) if width >= NARROW else []
    parts += [_line(one, across, up) for one in reversed(chart.series)]
    tied = [mark for mark in chart.marks if isinstance(mark, Stretch) and mark.look == "tied"]
    parts += [_tied(mark, across, up) for mark in tied]
    return svg(chart.name, width, height, [*parts, *_columns(chart, across, up)])


def _shade(one: Stretch, across: AxisSpan, up: AxisSpan) -> Markup:
    """The colour behind layers, and the darker strip at the bottom."""
    x, high = pixel(across, one.left), up.start - up.end
    shape = {"x": x, "width": pixel(across, one.right) - x}
    return together(
        element("rect", class_=f"{COLORS[one.color]} {kind}", y=up.start - part * high, height=part * high, **shape)
        for kind, part in (("behind", 1.0), ("shade", STRIP))
    )


def y_axis(
    across: AxisSpan, up: AxisSpan, name: str, values: Sequence[float], shown: Sequence[float] | None = None
) -> Markup:
    """A line across the axes at each value, with the value as in `shown`, and the name of the axis."""
    ys = [pixel(up, value) for value in values]
    parts = [element("path", class_="grid", d=path_of([(across.start, y), (across.end, y)])) for y in ys]
    parts += [
        element("text", tick_text(text, values), class_="tick end", x=across.start - 7, y=y + 4)
        for text, y in zip(shown or values, ys, strict=True)
    ]
    middle = (up.start + up.end) / 2
    parts.append(element("text", name, class_="axis mid", transform=f"translate(13 {middle:g}) rotate(-90)"))
    return together(parts)


def _x_axis(chart: LineChart, across: AxisSpan, up: AxisSpan) -> Markup:
    xs = sorted(chart.x_ticks)
    room = max(text_room(chart.x_ticks[x]) for x in xs) + 6
    step = next((s for s in (1, 2, 4, 5, 10, 20, 50) if room * len(xs) / s <= across.end - across.start), 100)
    shown = [x for i, x in enumerate(xs) if i % step == 0]
    names = [element("text", chart.x_ticks[x], class_="tick mid", x=pixel(across, x), y=up.start + 17) for x in shown]
    name = element("text", chart.x_name, class_="axis mid", x=(across.start + across.end) / 2, y=up.start + BOTTOM - 9)
    line = element("path", class_="base", d=path_of([(across.start, up.start), (across.end, up.start)]))
    return together([line, *names, name])


def _rule(one: Rule, across: AxisSpan, up: AxisSpan) -> Markup:
    """A line across the axes; a range of values at their right end."""
    y = pixel(up, one.value)
    if one.to is not None:
        x = across.end - 4 - 8 * one.rank
        return element("path", class_=f"{COLORS[one.color]} bar", d=path_of([(x, y), (x, pixel(up, one.to))]))
    look = "rule" if one.look == "dotted" else f"line {one.look}{'' if one.name else ' thin'}"
    return element("path", class_=f"{COLORS[one.color]} {look}", d=path_of([(across.start, y), (across.end, y)]))


def _margin(chart: LineChart, across: AxisSpan, up: AxisSpan) -> list[Markup]:
    """The names at the right, next to their values and apart."""
    labels = sorted(chart.margin, key=lambda label: -label.value)
    heights = spread([pixel(up, label.value) for label in labels], LINE, up.end, up.start)
    return [
        element("text", label.text, class_=f"{COLORS[label.color]} name", x=across.end + 6, y=y + 4)
        for label, y in zip(labels, heights, strict=True)
    ]


def _band(one: Band, across: AxisSpan, up: AxisSpan) -> Markup:
    """The band as far as the axis shows it."""
    low, high = ([(x, pair[k]) for x, pair in zip(one.xs, one.ends, strict=True)] for k in (0, 1))
    if len(one.xs) == 1:
        ends = [(pixel(across, x), pixel(up, y)) for x, y in (*low, *high)]
        return element("path", class_=f"{COLORS[one.color]} bar", d=path_of(ends))
    shape = [(pixel(across, x), pixel(up, y)) for x, y in cut_to([*low, *reversed(high)], up.low, up.high)]
    return element("path", class_=f"{COLORS[one.color]} band", d=path_of(shape, closed=True)) if shape else Markup()


def _line(one: Series, across: AxisSpan, up: AxisSpan) -> Markup:
    points = [(pixel(across, x), pixel(up, y)) for x, y in zip(one.xs, one.ys, strict=True)]
    look = f"line {one.look}{' thin' if one.thin else ''}"
    return together(
        element("path", class_=f"{COLORS[one.color]} {look}", d=path_of(points[run.start : run.stop]))
        for run in visible_runs(one.ys, (up.low, up.high))
        if len(run) > 1
    )


def _tied(one: Stretch, across: AxisSpan, up: AxisSpan) -> Markup:
    """A thick line over the axis."""
    y = up.start - 3 - 6 * one.rank
    ends = [(pixel(across, x), y) for x in (one.left, one.right)]
    return element("path", class_=f"{COLORS[one.color]} tied", d=path_of(ends))


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
        alone, color = lone(one, chart.y_limits), COLORS[one.color]
        for i, (own, y) in enumerate(zip(one.xs, one.ys, strict=True)):
            if own != x:
                continue
            if not up.low <= y <= up.high:
                found += [] if one.thin else [_beyond(color, at, y > up.high, up)]
            elif one.dots or i in alone:
                kind = "hollow" if x in one.hollow else "dot"
                found.append(element("circle", class_=f"{color} {kind}", cx=at, cy=pixel(up, y), r=3.5))
    return found + [
        _ring(mark, at, pixel(up, mark.y)) for mark in chart.marks if isinstance(mark, Ring) and mark.x == x
    ]


def _ring(one: Ring, x: float, y: float) -> Markup:
    color = f"{COLORS[one.color]} ring"
    if one.look == "square":
        return element("rect", class_=color, x=x - 7, y=y - 7, width=14.0, height=14.0)
    return element("circle", class_=color, cx=x, cy=y, r=8.0)


def _beyond(color: str, at: float, above: bool, up: AxisSpan) -> Markup:
    """A triangle that points to a value beyond the axis."""
    tip, base = (up.end, up.end + 7) if above else (up.start, up.start - 7)
    return element(
        "path", class_=f"{color} beyond", d=path_of([(at - 4, base), (at + 4, base), (at, tip)], closed=True)
    )
