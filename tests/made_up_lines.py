"""A description of lines with every kind of mark."""

from probekit.charts.axes import x_limits
from probekit.charts.lines import (
    Band,
    LegendEntry,
    LineChart,
    MarginLabel,
    Ring,
    Rule,
    Series,
    Stretch,
    beyond_entries,
    entry_of,
)
from probekit.charts.palette import BLUE, GREEN, GREY, PINK, RED

XS = (0.0, 1.0, 2.0, 3.0)
CURVE = Series(XS, (0.2, 0.4, 0.6, 1.5), BLUE, hollow=frozenset({1.0}), name="curve")  # the last is beyond the axis
LONE = Series(XS, (0.1, -1.0, 0.1, 0.1), GREEN, "dashed", dots=False, name="lone")  # no line goes to the first
THIN = Series(XS, (0.3, 0.4, 0.5, 2.0), RED, "dotted", dots=False, thin=True, name="thin")
MARKS = [
    CURVE,
    LONE,
    THIN,
    Band(XS, ((0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.6, 0.8)), BLUE, "band"),
    Band((2.0,), ((0.2, 0.3),), PINK, "bar"),
    Rule(0.5, GREY),
    Rule(0.7, RED, "dash-dotted", name="rule"),
    Rule(0.5, PINK, to=0.8),
    Ring(2.0, 0.6, BLUE, name="ring"),
    Ring(1.0, 0.4, RED, "square", name="square"),
    Stretch(1.6, 3.4, BLUE, "tied", 0, "tied"),
    Stretch(0.6, 1.4, RED, "tied", 1, "tied"),
    Stretch(-0.5, 1.5, GREEN, "shade", name="left"),
    Stretch(1.5, 3.5, GREY, "shade", name="right"),
]
LIMITS = 0.0, 1.0
CHART = LineChart(
    name="Every <mark>",
    marks=MARKS,
    x_ticks={x: f"{x:.0f}" for x in XS},
    x_limits=x_limits(XS),
    y_limits=LIMITS,
    x_name="layer",
    y_name="score",
    tips={x: f"tip of {x:.0f}" for x in XS},
    legend=[
        entry_of(CURVE, is_own=True),
        *map(entry_of, MARKS[1:4]),
        *(entry_of(MARKS[i]) for i in (6, 8, 9, 10)),
        LegendEntry(["hollow"], "hollow", BLUE),
        *beyond_entries(MARKS, LIMITS),
    ],
    margin=[MarginLabel(0.5, "chance", GREY, "0.500", "dotted"), MarginLabel(1.5, "↑ far 1.50", BLUE, look="above")],
    facts=["a fact"],
    cautions=["a caution"],
    notes=["a note"],
)
