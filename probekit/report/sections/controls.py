"""How much of the score could be memory, and how short the labels become: selectivity and code length by layer."""

from collections.abc import Sequence

from probekit.charts.curves import x_of
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.wording import metric_name, number_text
from probekit.report.parts import Lines, Part, Picture, Pictures
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.sections.names import notes_of, ticks_of
from probekit.report.svg.lines import LineChart, Rule, Series, chart_legend, draw_lines
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
    xs, metric = [float(x_of(data, layer)) for layer in layers], metric_name(data.headline)
    tests = [layer.metrics["test"][data.headline] for layer in layers]
    controls = [layer.control or 0.0 for layer in layers]
    tips = {
        x: f"{layer.place}\n{metric} {number_text(test)}, control task {number_text(layer.control)}"
        + ("" if layer.selectivity is None else f"\nselectivity {number_text(layer.selectivity)}")
        for x, layer, test in zip(xs, layers, tests, strict=True)
    }
    series = [Series("label", "blue", xs, tests), Series("control task", "grey", xs, controls, "dashed")]
    ceiling = (data.meta.get("control") or {}).get("ceiling")
    rules = [] if ceiling is None else [Rule("a table", ceiling)]
    limits = _limits([*tests, *controls, *(rule.value for rule in rules)])
    name = "Label and control task by layer"
    chart = LineChart(name, series, _ticks(data, xs), "layer", metric, limits, tips, rules)
    caption = "Selectivity is how far the label is above the control task: small where the probe could have memorised."
    if rules:
        caption += " A table of the types in train is what a probe that memorised all of them would score."
    return [_picture(chart, caption)]


def _codelength(data: ProbeData) -> list[Picture]:
    layers = [layer for layer in data.layers if layer.codelength is not None]
    if not layers:
        return []
    xs = [float(x_of(data, layer)) for layer in layers]
    codes = [layer.codelength or {} for layer in layers]
    bits = [code["bits"] / 1000 for code in codes]
    uniform, prior = codes[0]["uniform_bits"] / 1000, codes[0]["prior_bits"] / 1000
    tips = {x: _code_tip(layer, code) for x, layer, code in zip(xs, layers, codes, strict=True)}
    rules = [Rule("uniform code", uniform)] + (
        [Rule("class frequencies", prior)] if abs(prior - uniform) > 0.005 * uniform else []
    )
    top = max(*bits, uniform, prior)
    chart = LineChart(
        "Code length of the training labels by layer",
        [Series("online code", "green", xs, bits)],
        _ticks(data, xs),
        "layer",
        "thousand bits",
        (0.0, 1.08 * top),
        tips,
        rules,
    )
    return [_picture(chart, "Online code of the training labels, given the activations: shorter is easier to read.")]


def _code_tip(layer: LayerResult, code: dict[str, float]) -> str:
    than = f"compression {code['compression']:.2f}, against class frequencies {code['gain']:.2f}"
    return f"{layer.place}\n{code['bits']:,.0f} bits; {than}"


def _picture(chart: LineChart, caption: str) -> Picture:
    legend = chart_legend(chart)
    legend += [(rule.name, rule.color, "rule") for rule in chart.rules]
    return Picture(draw_lines(chart, *SIZE), caption, legend=legend)


def _ticks(data: ProbeData, xs: Sequence[float]) -> dict[float, str]:
    return {x: name for x, name in ticks_of(data).items() if x in xs}


def _limits(values: Sequence[float]) -> tuple[float, float]:
    return padded(max(min(values), -0.25), max(values), 0.2)
