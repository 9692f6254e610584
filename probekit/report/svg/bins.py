"""Counts in bins: histograms of scores, and the reliability diagram of probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from probekit.report.svg.element import element, hot, path_of, svg
from probekit.report.svg.scales import AxisSpan, pixel, tick_text, ticks

LEFT, RIGHT, TOP, BOTTOM = 52.0, 12.0, 12.0, 44.0  # pixels around the axes
COUNTS = 44.0  # pixels of the counts under a reliability diagram


@dataclass(frozen=True)
class Histogram:
    """Counts of two kinds of rows in the same bins: one drawn upwards, the other downwards.

    Attributes:
        name: what it shows.
        edges: [B + 1] of the bins.
        up: (name, color, [B] counts).
        down: the same, drawn downwards; None for one kind.
        x_name: of the axis.
        threshold: a value with a line; None for none.
    """

    name: str
    edges: Sequence[float]
    up: tuple[str, str, Sequence[int]]
    down: tuple[str, str, Sequence[int]] | None
    x_name: str
    threshold: float | None = None


@dataclass(frozen=True)
class Reliability:
    """How often what a probe calls likely is so: a point for each bin of probabilities.

    Attributes:
        name: what it shows.
        x: [B] mean probability of each bin.
        y: [B] share of the rows of the bin for which it is so.
        ends: [B] (low, high) of the share.
        counts: [B] rows.
        x_name: of the axis.
        y_name: of the axis.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    ends: Sequence[tuple[float, float]]
    counts: Sequence[int]
    x_name: str
    y_name: str


def draw_histogram(one: Histogram, width: float = 344, height: float = 250) -> Markup:
    """The histogram as SVG."""
    across = AxisSpan(one.edges[0], one.edges[-1], LEFT, width - RIGHT)
    most_down = max(one.down[2]) if one.down else 0
    up = AxisSpan(-1.06 * most_down, max(1.06 * max(one.up[2]), 1), height - BOTTOM, TOP)
    bars = []
    for i, (a, b) in enumerate(zip(one.edges, one.edges[1:], strict=False)):
        left, right = pixel(across, a), pixel(across, b)
        # the farthest values count in the first and the last bar
        ends_at = f"up to {b:.3g}" if i == 0 else f"from {a:.3g}" if i == len(one.edges) - 2 else f"{a:.3g} to {b:.3g}"
        between = f"{one.x_name} {ends_at}"
        inside = [element("rect", class_="hit", x=left, y=TOP, width=right - left, height=height - BOTTOM - TOP)]
        tip = between
        for sign, kind in ((1, one.up), (-1, one.down)):
            if kind is None:
                continue
            name, color, counts = kind
            ends = sorted((pixel(up, 0), pixel(up, sign * counts[i])))
            inside.append(
                element(
                    "rect",
                    class_=f"{color} block",
                    x=left,
                    y=ends[0],
                    width=max(right - left - 1, 0.5),
                    height=ends[1] - ends[0],
                )
            )
            tip += f"\n{name}: {counts[i]:,}"
        bars.append(hot(tip, inside, is_first=i == 0))
    parts = [*_frame(across, up, one.x_name, "rows", height), *bars]
    zero = pixel(up, 0)
    parts.append(element("path", class_="base", d=path_of([(across.start, zero), (across.end, zero)])))
    if one.threshold is not None and one.edges[0] < one.threshold < one.edges[-1]:
        x = pixel(across, one.threshold)
        parts.append(element("path", class_="threshold", d=path_of([(x, TOP), (x, height - BOTTOM)])))
    return svg(one.name, width, height, parts, "chart small")


def draw_reliability(one: Reliability, width: float = 344, height: float = 344) -> Markup:
    """The diagram as SVG: the diagonal is perfect calibration; the bars under it are the rows in each bin."""
    across = AxisSpan(0.0, 1.0, LEFT, width - RIGHT)
    up = AxisSpan(0.0, 1.0, height - BOTTOM - COUNTS, TOP)
    tall = AxisSpan(0.0, max(one.counts), height - BOTTOM, height - BOTTOM - COUNTS + 8)
    parts = _frame(across, up, one.x_name, one.y_name, height)
    parts.append(element("path", class_="diagonal", d=path_of([(across.start, up.start), (across.end, up.end)])))
    parts.append(element("path", class_="base", d=path_of([(across.start, tall.start), (across.end, tall.start)])))
    points = [(pixel(across, x), pixel(up, y)) for x, y in zip(one.x, one.y, strict=True)]
    parts.append(element("path", class_="blue line thin", d=path_of(points)))
    for i, ((x, y), (low, high), n) in enumerate(zip(points, one.ends, one.counts, strict=True)):
        top = pixel(tall, n)
        share = f"{one.y_name}: {one.y[i]:.3f}, 95% interval [{low:.3f}, {high:.3f}]"
        tip = f"{one.x_name}: {one.x[i]:.3f}\n{share}\nrows: {n:,}"
        inside = [
            element("rect", class_="hit", x=x - 8, y=TOP, width=16.0, height=height - BOTTOM - TOP),
            element("path", class_="blue whisker", d=path_of([(x, pixel(up, low)), (x, pixel(up, high))])),
            element("circle", class_="blue dot", cx=x, cy=y, r=4.0),
            element("rect", class_="blue block", x=x - 5, y=top, width=10.0, height=tall.start - top),
        ]
        parts.append(hot(tip, inside, is_first=i == 0))
    return svg(one.name, width, height, parts, "chart small")


def draw_scatter(
    name: str, points: Sequence[tuple[float, float]], ends: tuple[float, float], x_name: str, y_name: str
) -> Markup:
    """Points with the diagonal: true values and predictions of a regression, both axes from and to the same ends."""
    width = height = 344.0
    across = AxisSpan(*ends, LEFT, width - RIGHT)
    up = AxisSpan(*ends, height - BOTTOM, TOP)
    parts = _frame(across, up, x_name, y_name, height)
    parts.append(element("path", class_="diagonal", d=path_of([(across.start, up.start), (across.end, up.end)])))
    parts += [element("circle", class_="blue point", cx=pixel(across, x), cy=pixel(up, y), r=2.5) for x, y in points]
    return svg(name, width, height, parts, "chart small")


def _frame(across: AxisSpan, up: AxisSpan, x_name: str, y_name: str, height: float) -> list[Markup]:
    """Ticks and names of both axes; counts below 0 are written without their sign."""
    values, columns = ticks(up.low, up.high, 5), ticks(across.low, across.high, 5)
    shown = [abs(value) for value in values] if y_name == "rows" else values
    parts = [
        element("path", class_="grid", d=path_of([(across.start, y), (across.end, y)]))
        for y in (pixel(up, value) for value in values)
    ]
    parts += [
        element("text", tick_text(text, values), class_="tick end", x=across.start - 7, y=pixel(up, value) + 4)
        for text, value in zip(shown, values, strict=True)
    ]
    parts += [
        element("text", tick_text(value, columns), class_="tick mid", x=pixel(across, value), y=height - BOTTOM + 16)
        for value in columns
    ]
    parts.append(element("text", x_name, class_="axis mid", x=(across.start + across.end) / 2, y=height - 8))
    middle = (up.start + up.end) / 2
    parts.append(element("text", y_name, class_="axis mid", transform=f"translate(13 {middle:g}) rotate(-90)"))
    return parts
