"""How much of the score could be memory, and how short the labels become: selectivity and code length by layer."""

from collections.abc import Sequence
from dataclasses import replace

from probekit.charts.axes import x_limits
from probekit.charts.curves import ticks_of, x_of
from probekit.charts.lines import Limits, LineChart, MarginLabel, Rule, Series, beyond_entries, entry_of
from probekit.charts.palette import BLUE, GREEN, GREY
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.wording import metric_name, number_text
from probekit.report.parts import Lines, Part, Picture, Pictures
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.sections.names import notes_of
from probekit.report.svg.lines import lines_picture
from probekit.report.svg.scales import padded

SIZE = (344, 260)  # pixels


def controls_section(data: ProbeData) -> Section | None:
    """Selectivity and code length; None where neither was measured."""
    pictures = [*_selectivity(data), *_codelength(data)]
    if not pictures:
        return None
    parts: list[Part] = [Pictures(pictures), Lines(notes_of(data, "controls"), "note")]
    return Section("controls", "Control task and code length", html_of(parts))


def _selectivity(data: ProbeData) -> list[Picture]:
    layers = [layer for layer in data.layers if layer.control is not None]
    if not layers:
        return []
    xs, metric = tuple(float(x_of(data, layer)) for layer in layers), metric_name(data.headline)
    tests = tuple(layer.metrics["test"][data.headline] for layer in layers)
    controls = tuple(layer.control or 0.0 for layer in layers)
    tips = {
        x: f"{layer.place}\n{metric} {number_text(test)}, control task {number_text(layer.control)}"
        + ("" if layer.selectivity is None else f"\nselectivity {number_text(layer.selectivity)}")
        for x, layer, test in zip(xs, layers, tests, strict=True)
    }
    series = [Series(xs, tests, BLUE, name="label"), Series(xs, controls, GREY, "dashed", name="control task")]
    ceiling = (data.meta.get("control") or {}).get("ceiling")
    rules = {} if ceiling is None else {"a table": float(ceiling)}
    values = [*tests, *controls, *rules.values()]
    limits = padded(max(min(values), -0.25), max(values), 0.2)
    chart = _chart("Label and control task by layer", data, series, rules, limits)
    caption = "Selectivity is how far the label is above the control task: small where the probe could have memorised."
    if rules:
        caption += " A table of the types in train is what a probe that memorised all of them would score."
    return [lines_picture(replace(chart, y_name=metric, tips=tips), caption, SIZE)]


def _codelength(data: ProbeData) -> list[Picture]:
    layers = [layer for layer in data.layers if layer.codelength is not None]
    if not layers:
        return []
    xs = tuple(float(x_of(data, layer)) for layer in layers)
    codes = [layer.codelength or {} for layer in layers]
    bits = tuple(code["bits"] / 1000 for code in codes)
    uniform, prior = codes[0]["uniform_bits"] / 1000, codes[0]["prior_bits"] / 1000
    tips = {x: _code_tip(layer, code) for x, layer, code in zip(xs, layers, codes, strict=True)}
    rules = {"uniform code": uniform} | ({"class frequencies": prior} if abs(prior - uniform) > 0.005 * uniform else {})
    limits = 0.0, 1.08 * max(*bits, uniform, prior)
    series = [Series(xs, bits, GREEN, name="online code")]
    chart = _chart("Code length of the training labels by layer", data, series, rules, limits)
    caption = "Online code of the training labels, given the activations: shorter is easier to read."
    return [lines_picture(replace(chart, y_name="thousand bits", tips=tips), caption, SIZE)]


def _code_tip(layer: LayerResult, code: dict[str, float]) -> str:
    than = f"compression {code['compression']:.2f}, against class frequencies {code['gain']:.2f}"
    return f"{layer.place}\n{code['bits']:,.0f} bits; {than}"


def _chart(name: str, data: ProbeData, series: Sequence[Series], rules: dict[str, float], limits: Limits) -> LineChart:
    ticks = {x: tick for x, tick in ticks_of([data]).items() if x in series[0].xs}
    return LineChart(
        name=name,
        marks=[*series, *(Rule(value, GREY) for value in rules.values())],
        x_ticks=ticks,
        x_limits=x_limits(ticks),
        y_limits=limits,
        x_name="layer",
        y_name="",
        legend=[*map(entry_of, series), *beyond_entries(series, limits)],
        margin=[MarginLabel(value, name, GREY, look="dotted") for name, value in rules.items()],
    )
