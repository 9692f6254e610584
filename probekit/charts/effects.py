"""The causal curve as data: what can be read and what is used, by layer, on one axis.

Decodability is drawn as its share of the way from the baseline to a perfect score, and an effect is a share by
definition: so 0 is nothing and 1 is everything for both.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from probekit.causal.data import CausalData, Effect
from probekit.causal.results.checklist import base_text, base_warning
from probekit.causal.results.report import has_other_answers, method_name, place_ranges
from probekit.causal.results.view import (
    curve_effects,
    directions_text,
    effect_shows_use,
    finite,
    methods_of,
    probe_effects,
    selected_place,
)
from probekit.charts.accuracy import SELECTED
from probekit.charts.axes import point_axis_name, x_limits
from probekit.charts.lines import (
    STRIP,
    Band,
    LegendEntry,
    Limits,
    LineChart,
    LineLook,
    Mark,
    Ring,
    Rule,
    Series,
    Shade,
    beyond_entries,
    entry_of,
)
from probekit.charts.palette import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED, short
from probekit.evaluation.results.wording import position_name, probed
from probekit.text import listed, printable

METHODS = {"interchange": RED, "erase": PINK, "steer": ORANGE}
CEILINGS: dict[str, LineLook] = {"full vector": "dotted", "das": "dashed"}
SHADES = {"read and used": GREEN, "read, not shown to be used": BLUE, "used, not read": RED, "neither": GREY}
LIMITS = (-1.0, 2.0)  # of the axis, whose 0 is nothing and whose 1 is everything; what is beyond has a triangle
BEYOND = 0.25  # that a band may stretch the axis beyond the curves; a wider one leaves it
OPEN = "not shown to be used"


def causal_chart(data: CausalData) -> LineChart:
    """The picture of decodability and of the first method's effect, with its placebos and ceilings."""
    xs = layer_xs(data)
    ticks, limits = _ticks(data), _y_limits(data)
    ceilings = list(_ceilings(data, xs))
    marks = [*_decodability(data, xs), *_headline(data, xs)]
    point = data.meta.get("point", data.layers[0].point)
    is_end = point == data.meta.get("output", "resid_post")
    selected = _selected(data, xs)
    return LineChart(
        name=_heading(data),
        marks=[
            *marks,
            *ceilings,
            Rule(0.0, GREY, "solid"),
            *(ring for ring, _ in selected if limits[0] <= ring.y <= limits[1]),
            *_shades(data, list(xs.values())),
        ],
        x_ticks=ticks,
        x_limits=x_limits(ticks),
        y_limits=limits,
        x_name=point_axis_name(point, is_end, data.layers[-1].point != point),
        y_name="share (0: nothing, 1: everything)",
        tips=_tips(data, xs),
        legend=[
            *(entry for _, entry in selected),
            *_legend(data, marks),
            *map(entry_of, ceilings),
            *beyond_entries([*marks, *ceilings], limits),
        ],
        facts=_facts(data),
        cautions=[warning for warning in [base_warning(data)] if warning],
    )


def other_edits_chart(data: CausalData) -> LineChart | None:
    """The picture of the effects of other edits, which may be far above 1; None where there are none."""
    xs, ticks = layer_xs(data), _ticks(data)
    marks, legend = [], []
    for method, name, brief, effects in _others(data):
        if one := _effects([effect for effect in effects if effect.place in xs], xs, METHODS.get(method, INK)):
            marks.append(one)
            legend.append(entry_of(one, name, brief))
    if not marks:
        return None
    values = [0.0, *(y for one in marks for y in one.ys)]
    pad = 0.05 * (max(values) - min(values) or 1.0)
    return LineChart(
        name="Effect of other edits",
        marks=[*marks, Rule(0.0, GREY, "solid")],
        x_ticks=ticks,
        x_limits=x_limits(ticks),
        y_limits=(min(values) - pad, max(values) + pad),
        x_name="layer",
        y_name="share",
        tips=_tips(data, xs),
        legend=legend,
    )


def layer_xs(data: CausalData) -> dict[str, float]:
    """Where each place is on the layer axis: the output of the last block after all layers."""
    point = data.meta.get("point", data.layers[0].point)
    last = max((layer.layer or 0 for layer in data.layers), default=0)
    n_layers = int(data.meta.get("n_layers", last + 1))
    return {
        layer.place: float(n_layers if layer.point != point or layer.layer is None else layer.layer)
        for layer in data.layers
    }


def zero_score(data: CausalData) -> float:
    """The score that is drawn as 0."""
    value = float((data.meta.get("baseline") or {}).get("value", 0.0))
    return value if value < 1 - 1e-9 else 0.0


def share_of(data: CausalData, score: float) -> float:
    """A score as its share of the way from the baseline to 1."""
    baseline = zero_score(data)
    return (score - baseline) / (1 - baseline)


def _ticks(data: CausalData) -> dict[float, str]:
    point = data.meta.get("point", data.layers[0].point)
    return {
        x: "out" if layer.point != point else printable(layer.point) if layer.layer is None else str(layer.layer)
        for layer, x in zip(data.layers, layer_xs(data).values(), strict=True)
    }


def _decodability(data: CausalData, xs: dict[str, float]) -> Iterator[Mark]:
    ys = tuple(share_of(data, layer.score) for layer in data.layers)
    yield Series(tuple(xs.values()), ys, BLUE, name="decodability: probe's test score, as a share above the baseline")
    ends = [
        (share_of(data, low), share_of(data, high)) for low, high in (x.interval for x in data.layers if x.interval)
    ]
    if len(ends) == len(ys):
        yield Band(tuple(xs.values()), tuple(ends), BLUE)


def _effects(effects: Sequence[Effect], xs: dict[str, float], color: str, name: str = "") -> Series | None:
    """The line of some effects, with hollow dots where they do not show use; None where there are none."""
    hollow = frozenset(xs[effect.place] for effect in effects if not effect_shows_use(effect))
    at, ys = tuple(xs[effect.place] for effect in effects), tuple(effect.effect for effect in effects)
    return Series(at, ys, color, hollow=hollow, name=name) if effects else None


def _headline(data: CausalData, xs: dict[str, float]) -> Iterator[Mark]:
    """The effect of the first method, with interval and placebos."""
    method = methods_of(data)[0]
    own = [effect for place, effect in curve_effects(data, method).items() if place in xs]
    name = f"effect of {method_name(data, method)} ({directions_text(data, method)})"
    if (line := _effects(own, xs, METHODS.get(method, INK), name)) is None:
        return
    yield line
    if any(effect.interval for effect in own):
        yield Band(line.xs, tuple(effect.interval or (effect.effect, effect.effect) for effect in own), line.color)
    placebos = tuple(effect.placebo_band for effect in own if effect.placebo_band)
    if len(placebos) == len(own):
        yield Band(line.xs, placebos, GREY, "placebos, lowest to highest")


def _ceilings(data: CausalData, xs: dict[str, float]) -> Iterator[Series]:
    """What a direction is compared with from above."""
    for name, look in CEILINGS.items():
        effects = curve_effects(data, methods_of(data)[0], name).items()
        if top := [(xs[place], effect.effect) for place, effect in effects if place in xs]:
            shown = {"das": "DAS"}.get(name, name)
            at, ys = (tuple(values) for values in zip(*top, strict=True))
            yield Series(at, ys, INK, look, dots=False, name=f"{shown} (ceiling)")


def _selected(data: CausalData, xs: dict[str, float]) -> list[tuple[Ring, LegendEntry]]:
    """The ring at the place that validation chose, with its line of the legend."""
    method = methods_of(data)[0]
    place = selected_place(data, method)
    effect = curve_effects(data, method).get(place or "")
    if effect is None or place not in xs:
        return []
    ends = "" if effect.interval is None else f" [{effect.interval[0]:z.2f}, {effect.interval[1]:z.2f}]"
    score = f"{method} {effect.effect:z.2f}"
    texts = [f"{SELECTED}: {printable(place)}, {score}{ends}", f"selected: {score}"]
    ring = Ring(xs[place], effect.effect, METHODS.get(method, INK), name=SELECTED)
    return [(ring, entry_of(ring, *texts, is_own=True))]


def _shades(data: CausalData, at: Sequence[float]) -> Iterator[Shade]:
    """The quadrant of each run of layers."""
    edges = [at[0] - 0.5, *((a + b) / 2 for a, b in pairwise(at)), at[-1] + 0.5]
    for name, group in groupby(range(len(at)), lambda i: data.layers[i].quadrant):
        first, *rest = group
        yield Shade(edges[first], edges[(rest or [first])[-1] + 1], SHADES[name], name)


def _legend(data: CausalData, marks: Sequence[Mark]) -> list[LegendEntry]:
    method = methods_of(data)[0]
    name = method_name(data, method)
    shorter = {
        "decodability": ["decodability"],
        "effect": [f"{name} ({directions_text(data, method)})", name],
        "placebos": ["placebos"],
    }
    found = [entry_of(one, one.name, *shorter[one.name.split()[0].rstrip(":,")]) for one in marks if one.name]
    hollow = [mark for mark in marks if isinstance(mark, Series) and mark.hollow]
    return found + [LegendEntry([OPEN], "hollow", mark.color) for mark in hollow]


def _others(data: CausalData) -> Iterator[tuple[str, str, str, list[Effect]]]:
    """(method, name, short name, effects) of the curves of edits other than the headline."""
    for method in methods_of(data)[1:]:
        name = method_name(data, method)
        yield method, f"{name} ({directions_text(data, method)})", name, list(curve_effects(data, method).values())
    name = "interchange (the probe's own direction)"
    yield "interchange", name, "interchange (probe's own)", list(probe_effects(data).values())


def _y_limits(data: CausalData) -> Limits:
    """Limits that hold curves and bands, up to `LIMITS` and `BEYOND`, with room for the quadrants under the curves."""
    shown, bands = [share_of(data, layer.score) for layer in data.layers], []
    bands += [share_of(data, end) for layer in data.layers for end in layer.interval or ()]
    for name in (None, *CEILINGS):
        for effect in curve_effects(data, methods_of(data)[0], name).values():
            shown.append(effect.effect)
            bands += [] if name else [*(effect.interval or ()), *(effect.placebo_band or ())]
    least, most = LIMITS
    values = [min(most, max(least, value)) for value in finite(shown)]
    low, high = min([0.0, *values]), max([1.0, *values])
    ends = [min(high + BEYOND, max(low - BEYOND, end)) for end in finite(bands)]
    low, high = min([low, *ends]), max([high, *ends])
    pad = 0.05 * (high - low)
    return high + pad - (high - low + 2 * pad) / (1 - STRIP), high + pad


def _heading(data: CausalData) -> str:
    """Label, model and task."""
    meta = data.meta
    task = short(meta["task"]) if meta.get("task") else None
    if not meta.get("label"):
        return f"{short(meta['model'])} ({task})" if task else short(meta["model"])
    what, where = probed(short(meta["label"]), task)
    return f"Decodability and causal effect of {what} in {short(meta['model'])}{where}"


def _facts(data: CausalData) -> list[str]:
    meta = data.meta
    read = f"{position_name(meta['position'])} read" if "position" in meta else ""
    at = {"read": "edited there", "all": "edits at every token"}.get(str(meta.get("at", "")), "")
    n = f"{meta['n']['test']:,} test rows" if "test" in meta.get("n", {}) else ""
    base = f"without edits: {text}" if (text := base_text(data)) else ""
    answers = f"answers by {short(meta['answers_label'])}" if has_other_answers(data) else ""
    learned = place_ranges([layer for layer in data.layers if layer.used_by == ["das"]])
    by_das = f"used along DAS alone: {listed(learned)}" if learned else ""
    return [fact for fact in (", ".join(filter(None, (read, at))), answers, n, base, by_das) if fact]


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
