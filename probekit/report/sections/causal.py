"""Whether the model uses what the probe reads: effects of edits by layer, the table, and the reviewer's checklist."""

from probekit.causal.data import CausalData
from probekit.causal.results.checklist import answered, reviewer_checklist
from probekit.causal.results.report import causal_report, method_name
from probekit.causal.results.view import (
    curve_effects,
    directions_text,
    effect_shows_use,
    methods_of,
    selected_place,
)
from probekit.charts.grids import patching_grids
from probekit.report.parts import Items, Lines, More, PageTable, Part, Picture
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.svg.grid import draw_grid
from probekit.report.svg.lines import LineChart, Series, chart_legend, draw_lines
from probekit.report.svg.scales import padded

NARROW = (360, 300)  # pixels of the picture for a phone
METHODS = {"interchange": "red", "erase": "green", "steer": "pink"}


def causal_section(data: CausalData, number: int = 0, own: str = "") -> Section:
    """The section of one causal run; `number` counts those after the first, `own` says how it differs from others."""
    report = causal_report(data)
    parts: list[Part] = [Lines(report.lines)]
    if data.layers:
        rows = [[row[0], row[-1], *row[1:-1]] for row in report.rows]  # the quadrant, which a phone would cut off
        parts += [_picture(data), PageTable(rows, left=2, bold=report.bold)]
    parts += [Picture(draw_grid(grid), grid.caption) for grid in patching_grids(data)]
    parts.append(Lines(report.notes, "note"))
    items = data.checklist or reviewer_checklist(data)
    lines = [f"{'✓' if item.is_answered else '○'} {item.question} {item.answer}" for item in items]
    parts.append(
        More(f"Reviewer's checklist: {answered(items)} answered (✓ means answered, not passed)", [Items(lines)])
    )
    name = "causal" if number == 0 else f"causal-{number + 1}"
    return Section(name, f"Is it used?{f' {own}' if own else ''}", html_of(parts))


def _xs(data: CausalData) -> dict[str, float]:
    """Where each place is on the layer axis: the output of the last block after all layers."""
    point = data.meta.get("point", data.layers[0].point)
    last = max((layer.layer or 0 for layer in data.layers), default=0)
    n_layers = int(data.meta.get("n_layers", last + 1))
    return {
        layer.place: float(n_layers if layer.point != point or layer.layer is None else layer.layer)
        for layer in data.layers
    }


def _picture(data: CausalData) -> Picture:
    xs, methods = _xs(data), methods_of(data)
    series = [one for method in methods for one in _of_method(data, xs, method, method == methods[0])]
    baseline = _baseline(data)
    scores = [(layer.score - baseline) / (1 - baseline) for layer in data.layers]
    series.append(Series("decodability above the baseline, as a share", "blue", list(xs.values()), scores))
    values = [y for one in series for y in one.ys] + [end for one in series for ends in one.band for end in ends]
    low, high = padded(max(min([*values, 0.0]), -0.5), min(max([*values, 1.0]), 2.0), 0.5)
    ringed = [
        (xs[place], effect.effect, "red")
        for method in methods[:1]
        if (place := selected_place(data, method)) in xs
        if (effect := curve_effects(data, method).get(place))
    ]
    names = {
        x: "out" if layer.point != data.meta.get("point", layer.point) else str(layer.layer)
        for layer, x in zip(data.layers, xs.values(), strict=True)
    }
    chart = LineChart(
        "Decodability and effect by layer", series, names, "layer", "share", (low, high), _tips(data, xs), ringed=ringed
    )
    legend = chart_legend(chart)
    legend += [("95% interval", series[0].color, "band")] if series[0].band else []
    legend += [("selected on validation", "red", "ring")] if ringed else []
    legend += [("not shown to be used", "grey", "hollow")] if any(one.hollow for one in series) else []
    caption = "Effects are shares: 0 is no effect, 1 is all of the way."
    return Picture(draw_lines(chart), caption, draw_lines(chart, *NARROW), legend)


def _baseline(data: CausalData) -> float:
    value = float((data.meta.get("baseline") or {}).get("value", 0.0))
    return value if value < 1 - 1e-9 else 0.0


def _of_method(data: CausalData, xs: dict[str, float], method: str, is_headline: bool) -> list[Series]:
    """The effects of a method; of the headline also the placebos' band."""
    effects = {place: effect for place, effect in curve_effects(data, method).items() if place in xs}
    if not effects:
        return []
    at, values = [xs[place] for place in effects], [effect.effect for effect in effects.values()]
    hollow = frozenset(xs[place] for place, effect in effects.items() if not effect_shows_use(effect))
    name = f"{method_name(data, method)} ({directions_text(data, method)})"
    color = METHODS.get(method, "ink")
    bands = [effect.interval or (effect.effect, effect.effect) for effect in effects.values()] if is_headline else []
    found = [Series(name, color, at, values, "solid" if is_headline else "dashed", bands, hollow)]
    placebo = [(xs[place], effect.placebo_band) for place, effect in effects.items() if effect.placebo_band]
    if is_headline and placebo:
        columns = [x for x, _ in placebo]
        found += [
            Series("placebos", "grey", columns, [ends[k] for _, ends in placebo], "dotted", dots=False) for k in (0, 1)
        ]
    return found


def _tips(data: CausalData, xs: dict[str, float]) -> dict[float, str]:
    tips = {}
    for layer in data.layers:
        lines = [f"{layer.place}: {layer.quadrant}", f"probe {layer.score:.3f}"]
        for method in methods_of(data):
            effect = curve_effects(data, method).get(layer.place)
            if effect is not None:
                ends = "" if effect.interval is None else f" [{effect.interval[0]:.2f}, {effect.interval[1]:.2f}]"
                p = "" if effect.p_adjusted is None else f", corrected p = {effect.p_adjusted:.2g}"
                lines.append(f"{method_name(data, method)}: {effect.effect:z.2f}{ends}{p}")
        tips[xs[layer.place]] = "\n".join(lines)
    return tips
