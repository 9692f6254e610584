"""Score by k as data: the k best features against all features that the same rows have."""

from collections.abc import Mapping

from probekit.charts.curves import INTERVAL, chosen, facts, interval_of, metric_of, test_value
from probekit.charts.lines import Band, Limits, LineChart, Mark, Ring, Rule, Series, entry_of
from probekit.charts.palette import BLUE, GREY, PINK, short
from probekit.evaluation.results.by_k import chosen_k
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.verdict import chance_of
from probekit.evaluation.results.wording import decoding, features_name, interval_text, number_text
from probekit.text import printable

PAD = 0.06  # of the range of the y axis, above and below what is drawn


def k_chart(by_k: Mapping[int, ProbeData]) -> LineChart:
    """The picture of the selected place of each k, and of the probes of other features there.

    The k axis is the position in the list of k, which mostly doubles.
    """
    places = {
        k: chosen(curve) or max(curve.layers, key=lambda one, curve=curve: test_value(curve, one))
        for k, curve in by_k.items()
    }
    xs = {k: float(i) for i, k in enumerate(by_k)}
    ends = tuple(interval_of(curve, places[k]) for k, curve in by_k.items())
    values = tuple(test_value(curve, places[k]) for k, curve in by_k.items())
    marks: list[Mark] = [
        Series((*xs.values(),), values, BLUE, name=_name(by_k)),
        Band((*xs.values(),), ends, BLUE, INTERVAL),
    ]
    k = chosen_k(dict(by_k))
    first = next(iter(by_k.values())) if k is None else by_k[k]
    if k is not None:
        marks.append(Ring(xs[k], values[list(by_k).index(k)], BLUE, name=f"k = {k}, chosen on validation"))
    for how, layer in _others(first):
        low, high = interval_of(first, layer)
        name = f"probe of the {features_name(how)} {number_text(test_value(first, layer))}"
        marks += [Rule(test_value(first, layer), PINK, "solid", name=name)]
        marks += [Band((min(xs.values()), max(xs.values())), ((low, high),) * 2, PINK)] if low < high else []
    chance = chance_of(first)
    if chance is not None:
        marks.append(Rule(chance, GREY, "dashed", name="chance level"))
    limits = _limits(marks)
    named = facts(first)
    return LineChart(
        name=decoding({key: short(first.meta[key]) for key in ("label", "model", "task")}),
        marks=marks,
        x_ticks={x: str(k) for k, x in xs.items()},
        x_limits=(-0.4, max(xs.values()) + 0.4),
        y_limits=limits,
        x_name="k: features that the probe reads",
        y_name=f"test {metric_of(first)}",
        tips={x: _tip(by_k[k], places[k], k) for k, x in xs.items()},
        legend=[entry_of(mark) for mark in marks if mark.name],
        facts=[named[key] for key in ("point", "position", "examples") if named.get(key)],
    )


def _highest(curve: ProbeData) -> LayerResult:
    """The place that scores highest on test, where validation selected none."""
    return max(curve.layers, key=lambda layer: test_value(curve, layer))


def _name(by_k: Mapping[int, ProbeData]) -> str:
    several = any(len(curve.layers) > 1 for curve in by_k.values())
    return f"k-sparse probe{', the selected layer of each k' if several else ''}"


def _others(curve: ProbeData) -> list[tuple[str, LayerResult]]:
    """The other features with their place: the one that validation chooses, as the paired difference has it."""
    found = []
    for how, each in (curve.meta.get("pooled") or {}).items():
        found += [(how, layer) for layer in curve.pooled[how] if layer.place == each["place"]]
    return found


def _limits(marks: list[Mark]) -> Limits:
    values = [y for mark in marks if isinstance(mark, Series) for y in mark.ys]
    values += [end for mark in marks if isinstance(mark, Band) for ends in mark.ends for end in ends]
    values += [mark.value for mark in marks if isinstance(mark, Rule)]
    low, high = min(values), max(values)
    pad = PAD * (high - low or 1.0)
    return low - pad, high + pad


def _tip(curve: ProbeData, layer: LayerResult, k: int) -> str:
    ends = interval_text(layer.intervals.get(curve.headline))
    scored = f"test {metric_of(curve)} {number_text(test_value(curve, layer))} {ends}".strip()
    return f"k = {k}, {printable(layer.place)}\n{scored}"
