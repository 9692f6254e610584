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
    FULL,
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
    Stretch,
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
    xs, ticks, (low, high) = layer_xs(data), _ticks(data), _y_limits(data)
    named = list(_marks(data, xs))
    marks = [mark for mark, _ in named if not isinstance(mark, Ring) or low <= mark.y <= high]
    point = data.meta.get("point", data.layers[0].point)
    is_end = point == data.meta.get("output", "resid_post")
    return LineChart(
        name=_heading(data),
        marks=[*marks, Rule(0.0, GREY, "solid"), *_shades(data, list(xs.values()))],
        x_ticks=ticks,
        x_limits=x_limits(ticks),
        y_limits=(low, high),
        x_name=point_axis_name(point, is_end, data.layers[-1].point != point),
        y_name="share (0: nothing, 1: everything)",
        tips=_tips(data, xs),
        legend=[
            *(entry_of(mark, *texts, is_own=isinstance(mark, Ring)) for mark, texts in named if texts),
            *(LegendEntry([OPEN], "hollow", one.color) for one in marks if isinstance(one, Series) and one.hollow),
            *beyond_entries(marks, (low, high)),
        ],
        facts=_facts(data),
        cautions=[warning for warning in [base_warning(data)] if warning],
    )


def other_edits_chart(data: CausalData) -> LineChart | None:
    """The picture of the effects of other edits, which may be far above 1; None where there are none."""
    xs, ticks = layer_xs(data), _ticks(data)
    others = {
        (f"{name} ({directions_text(data, method)})", name): (method, curve_effects(data, method))
        for method in methods_of(data)[1:]
        for name in [method_name(data, method)]
    }
    others["interchange (the probe's own direction)", "interchange (probe's own)"] = "interchange", probe_effects(data)
    lines = {texts: _effects(effects, xs, METHODS.get(method, INK)) for texts, (method, effects) in others.items()}
    legend = [entry_of(one, *texts) for texts, one in lines.items() if one]
    marks = [one for one in lines.values() if one]
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


def _marks(data: CausalData, xs: dict[str, float]) -> Iterator[tuple[Mark, list[str]]]:
    """The selected place, decodability, effects and what they are compared with, each with its texts in the legend."""
    method = methods_of(data)[0]
    effects, color = curve_effects(data, method), METHODS.get(method, INK)
    name, direction = method_name(data, method), directions_text(data, method)
    place = selected_place(data, method) or ""
    if place in xs and (effect := effects.get(place)):
        score, ends = f"{method} {effect.effect:z.2f}", effect.interval
        within = "" if ends is None else f" [{ends[0]:z.2f}, {ends[1]:z.2f}]"
        texts = [f"{SELECTED}: {printable(place)}, {score}{within}", f"selected: {score}"]
        yield Ring(xs[place], effect.effect, color, name=SELECTED), texts
    texts = ["decodability: probe's test score, as a share above the baseline", "decodability"]
    at, ys = tuple(xs.values()), tuple(share_of(data, layer.score) for layer in data.layers)
    yield Series(at, ys, BLUE, name=texts[0]), texts
    known = [layer.interval for layer in data.layers if layer.interval]
    if len(known) == len(at):
        yield Band(at, tuple((share_of(data, low), share_of(data, high)) for low, high in known), BLUE), []
    texts = [f"effect of {name} ({direction})", f"{name} ({direction})", name]
    if line := _effects(effects, xs, color, texts[0]):
        own = [effect for place, effect in effects.items() if place in xs]
        yield line, texts
        if any(effect.interval for effect in own):
            yield Band(line.xs, tuple(effect.interval or (effect.effect, effect.effect) for effect in own), color), []
        placebos = tuple(effect.placebo_band for effect in own if effect.placebo_band)
        if len(placebos) == len(own):
            texts = ["placebos, lowest to highest", "placebos"]
            yield Band(line.xs, placebos, GREY, texts[0]), texts
    for name, look in CEILINGS.items():
        if top := _effects(curve_effects(data, method, name), xs, INK):
            text = f"{'DAS' if name == 'das' else name} (ceiling)"
            yield Series(top.xs, top.ys, INK, look, dots=False, name=text), [text]


def _effects(effects: dict[str, Effect], xs: dict[str, float], color: str, name: str = "") -> Series | None:
    """The line of some effects, with hollow dots where they do not show use; None where there are none."""
    own = {xs[place]: effect for place, effect in effects.items() if place in xs}
    hollow = frozenset(x for x, effect in own.items() if not effect_shows_use(effect))
    ys = tuple(effect.effect for effect in own.values())
    return Series(tuple(own), ys, color, hollow=hollow, name=name) if own else None


def _shades(data: CausalData, at: Sequence[float]) -> Iterator[Stretch]:
    """The quadrant of each run of layers."""
    edges = [at[0] - 0.5, *((a + b) / 2 for a, b in pairwise(at)), at[-1] + 0.5]
    for name, group in groupby(range(len(at)), lambda i: data.layers[i].quadrant):
        first, *rest = group
        yield Stretch(edges[first], edges[(rest or [first])[-1] + 1], SHADES[name], "shade", name=name)


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
    whole = place_ranges([layer for layer in data.layers if layer.used_by == [FULL]])
    by_all = f"used, but along no single direction: {listed(whole)}" if whole else ""
    return [fact for fact in (", ".join(filter(None, (read, at))), answers, n, base, by_das, by_all) if fact]


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
