"""The curve: test score by layer with its band, what it is compared with, and the table."""

from collections.abc import Sequence

from probekit.charts.axes import layer_axis_name, y_limits
from probekit.charts.curves import (
    Curve,
    bands,
    chosen,
    has_intervals,
    metric_of,
    place_text,
    test_value,
    validation_values,
    x_of,
)
from probekit.charts.palette import BLUE, GREEN, GREY, INK, PALETTE, RED
from probekit.charts.references import CONTROL, RANDOM, ReferenceScores, comparisons
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.quote import quote_line, quote_of_curves
from probekit.evaluation.results.report import curve_report, marks
from probekit.evaluation.results.wording import interval_text, number_text
from probekit.report.parts import Lines, PageTable, Part, Picture
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.sections.names import notes_of, ticks_of
from probekit.report.svg.lines import LineChart, Rule, Series, chart_legend, draw_lines
from probekit.tables import without_empty_columns
from probekit.text import printable

NARROW = (360, 300)  # pixels of the picture for a phone
COLORS = {
    BLUE: "blue",
    RED: "red",
    GREEN: "green",
    GREY: "grey",
    INK: "ink",
    "#CC79A7": "pink",
    "#E69F00": "orange",
    "#56B4E9": "sky",
}
"""Colours of the pictures -> classes of the page."""
LOOKS = {CONTROL: "dashed", RANDOM: "solid"}


def curve_section(data: ProbeData) -> Section:
    """The picture of a curve, and its numbers as JSON."""
    chart, legend = _chart([Curve(data, "", PALETTE[0])])
    return Section("curve", "Curve", html_of([_picture(chart, legend)]), {"curve": _numbers(data)})


def table_section(data: ProbeData) -> Section:
    """The table of a curve with its marks, and the notes that no other section tells."""
    report = curve_report(data)
    notes = [*marks(data), *notes_of(data, "table")]
    head = report.rows[0]
    order = sorted(range(len(head)), key=lambda i: (i > 0, not head[i].startswith(("test ", "95%"))))  # test first
    rows = [[row[i] for i in order] for row in report.rows]
    parts: list[Part] = [Lines(report.lines), PageTable(rows, bold=report.bold), Lines(notes, "note")]
    return Section("table", "Table", html_of(parts))


def together_section(several: Sequence[tuple[str, ProbeData]], number: int = 0) -> Section:
    """Several curves of one metric, with their names, on the same axes; the score to quote of each.

    `number` counts metrics.
    Baselines and control tasks are in the table and in the section of each run: lines for all of them hide the curves.
    """
    metric = metric_of(several[0][1])
    curves = [Curve(data, name, PALETTE[i % len(PALETTE)], i, is_alone=False) for i, (name, data) in enumerate(several)]
    chart, legend = _chart(curves)
    rows = [["run", "task", "selected layer", f"test {metric}", "95% interval", "best baseline", "over it"]]
    for name, data in several:
        row = [name, str(data.meta["task"]), "", "", "", "", ""]
        if (quoted := data.quoted) is not None:
            lead = data.meta.get("lead")
            where = quoted.place or "nested folds"
            over = ["", ""] if lead is None else [str(lead["baseline"]), f"{lead['over']:+z.3f}"]
            row[2:] = [where, number_text(quoted.value), interval_text(quoted.interval), *over]
        rows.append(row)
    name = "curves" if number == 0 else f"curves-{number + 1}"
    table = PageTable(without_empty_columns(rows), left=3, wraps=True)
    quotation = Lines([quote_line(quote_of_curves([data for _, data in several]))], "lead")
    return Section(name, f"Curves by {metric}", html_of([quotation, _picture(chart, legend), table]))


def _picture(chart: LineChart, legend: list[tuple[str, str, str]]) -> Picture:
    return Picture(draw_lines(chart), narrow=draw_lines(chart, *NARROW), legend=legend)


def _chart(curves: Sequence[Curve]) -> tuple[LineChart, list[tuple[str, str, str]]]:
    others = comparisons(curves) if len(curves) == 1 else []
    low, high = y_limits(curves, others)
    series = [one for curve in curves for one in _series(curve)] + [_other(each) for each in others if each.xs]
    rules = [Rule(each.name, each.values[0], COLORS[each.color]) for each in others if not each.xs]
    places = {x: name for curve in reversed(curves) for x, name in ticks_of(curve.results).items()}
    ringed = [
        (
            float(x_of(curve.results, best)),
            test_value(curve.results, best),
            "red" if curve.is_alone else COLORS[curve.color],
        )
        for curve in curves
        if (best := chosen(curve.results))
    ]
    first = curves[0]
    tied = [float(x) for x, layer in zip(first.xs, first.results.layers, strict=True) if layer.in_best_set]
    metric = f"test {metric_of(first.results)}"
    chart = LineChart(
        name=f"{metric} by layer",
        series=series,
        x_ticks=places,
        x_name=layer_axis_name(curves),
        y_name=metric,
        y_limits=(low, high),
        tips={x: "\n".join(_tip(curves, x)) for x in places},
        rules=rules,
        ringed=ringed,
        tied=tied if len(curves) == 1 and len(places) > 1 else [],
    )
    return chart, _legend(chart, curves)


def _series(curve: Curve) -> list[Series]:
    data, xs, color = curve.results, [float(x) for x in curve.xs], COLORS[curve.color]
    low, high = bands(data)[0], has_intervals(data)
    late = frozenset(x for x, layer in zip(xs, data.layers, strict=True) if not layer.converged)
    found = [Series(curve.name or "test", color, xs, curve.values, band=low if high else (), hollow=late)]
    if curve.is_alone and (values := validation_values(data)):
        found.append(Series("validation", "sky", xs, values, "dashed", dots=False))
    return found


def _other(each: ReferenceScores) -> Series:
    look = LOOKS.get(each.name, "dotted")
    return Series(each.name, COLORS[each.color], [float(x) for x in each.xs], each.values, look, dots=False)


def _legend(chart: LineChart, curves: Sequence[Curve]) -> list[tuple[str, str, str]]:
    entries = chart_legend(chart)
    if any(has_intervals(curve.results) for curve in curves):
        entries.append((bands(curves[0].results)[1], COLORS[curves[0].color], "band"))
    if chart.ringed:
        entries.append(("selected on validation", chart.ringed[0][2], "ring"))
    if chart.tied:
        entries.append(("statistically tied with the best", "blue", "tied"))
    if any(one.hollow for one in chart.series):
        entries.append(("not converged", "blue", "hollow"))
    low, high = chart.y_limits
    for rule in chart.rules:
        beyond = " (below the axis)" if rule.value < low else " (above the axis)" if rule.value > high else ""
        entries.append((f"{printable(rule.name)} {rule.value:z.3f}{beyond}", rule.color, "rule"))
    return entries


def _tip(curves: Sequence[Curve], x: float) -> list[str]:
    """What is said of a layer, in lines."""
    lines = []
    for curve in curves:
        for layer in curve.results.layers:
            if x_of(curve.results, layer) != x:
                continue
            if curve.is_alone:
                return [place_text(curve.results, layer), *_facts(curve.results, layer)]
            lines.append(f"{curve.name}: {_score(curve.results, layer)}")
    return lines


def _score(data: ProbeData, layer: LayerResult) -> str:
    ends = layer.intervals.get(data.headline)
    return f"{number_text(test_value(data, layer))}{'' if ends is None else f', 95% interval {interval_text(ends)}'}"


def _facts(data: ProbeData, layer: LayerResult) -> list[str]:
    metric, validation = data.headline, layer.metrics.get("validation", {}).get(data.headline)
    random = [one for one in data.random_init if one.place == layer.place]
    lines = [f"test {metric_of(data)} {_score(data, layer)}"]
    lines += [f"simultaneous band {interval_text(layer.band)}"] if layer.band else []
    parts = [] if validation is None else [f"validation {number_text(validation)}"]
    parts += [] if layer.C is None else [f"C = {layer.C:g}"]
    parts += [] if layer.control is None else [f"control task {number_text(layer.control)}"]
    parts += [] if layer.selectivity is None else [f"selectivity {number_text(layer.selectivity)}"]
    parts += [f"random init {number_text(one.metrics['test'][metric])}" for one in random]
    parts += [f"compression {layer.codelength['compression']:.2f}"] if layer.codelength else []
    parts += [
        f"{how} token {number_text(test_value(data, one))}"
        for how, own in data.pooled.items()
        for one in own
        if one.place == layer.place
    ]
    marks = ["selected on validation"] * (layer is chosen(data))
    marks += ["statistically tied with the best"] * bool(layer.in_best_set) + ["not converged"] * (not layer.converged)
    return [*lines, *(["; ".join(parts)] if parts else []), *(["; ".join(marks)] if marks else [])]


def _numbers(data: ProbeData) -> dict[str, object]:
    """What the picture shows, for other programs."""
    layers = [
        {
            "place": layer.place,
            "test": test_value(data, layer),
            "interval": layer.intervals.get(data.headline),
            "band": layer.band,
            "validation": layer.metrics.get("validation", {}).get(data.headline),
            "control": layer.control,
        }
        for layer in data.layers
    ]
    baselines = {one.name: one.metrics["test"].get(data.headline) for one in data.baselines}
    return {"metric": data.headline, "layers": layers, "baselines": baselines}
