"""Score by k as data: the k best features against all features that the same rows have."""

from collections.abc import Mapping

from probekit.charts.curves import INTERVAL, facts, interval_of, metric_of, test_value
from probekit.charts.lines import Band, Limits, LineChart, Mark, Ring, Rule, Series, entry_of
from probekit.charts.palette import BLUE, GREY, PINK, short
from probekit.evaluation.results.by_k import chosen_k
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.verdict import chance_of
from probekit.evaluation.results.wording import decoding, features_name, interval_text, number_text
from probekit.text import printable

PAD = 0.06  # of the range of the y axis, above and below what is drawn


def k_chart(by_k: Mapping[int, ProbeData]) -> LineChart:
    """The picture of the score to quote for each k, and of the probes of other features of the same rows.

    The k axis is the position in the list of k, which mostly doubles.
    """
    xs = {k: float(i) for i, k in enumerate(by_k)}
    scores = {k: _score(curve) for k, curve in by_k.items()}
    line, band = (*xs.values(),), tuple(ends or (value, value) for _, value, ends in scores.values())
    marks: list[Mark] = [Series(line, tuple(value for _, value, _ in scores.values()), BLUE, name=_name(by_k))]
    marks += [Band(line, band, BLUE, INTERVAL)] if any(low < high for low, high in band) else []
    k = chosen_k(dict(by_k))
    first = next(iter(by_k.values())) if k is None else by_k[k]
    if k is not None:
        marks.append(Ring(xs[k], scores[k][1], BLUE, name=f"k = {k}, chosen on validation"))
    for how, each in (first.meta.get("pooled") or {}).items():
        name = f"probe of the {features_name(how)} {number_text(each['value'])}"
        marks.append(Rule(each["value"], PINK, "solid", name=name))
        for low, high in [interval_of(first, one) for one in first.pooled[how] if one.place == each["place"]]:
            marks += [Band((min(line), max(line)), ((low, high),) * 2, PINK)] if low < high else []
    baselines = {one.name: one.metrics["test"].get(first.headline) for one in first.baselines}
    known = {name: value for name, value in baselines.items() if value is not None}
    if known:
        best = max(known, key=known.__getitem__)
        marks.append(Rule(known[best], GREY, name=f"best baseline: {short(best)} {number_text(known[best])}"))
    chance = chance_of(first)
    if chance is not None:
        marks.append(Rule(chance, GREY, "dashed", name="chance level"))
    named = facts(first)
    return LineChart(
        name=decoding({key: short(first.meta[key]) for key in ("label", "model", "task")}),
        marks=marks,
        x_ticks={x: str(k) for k, x in xs.items()},
        x_limits=(-0.4, max(line) + 0.4),
        y_limits=_limits(marks),
        x_name="k: features that the probe reads",
        y_name=f"test {metric_of(first)}",
        tips={xs[k]: _tip(first, k, *score) for k, score in scores.items()},
        legend=[entry_of(mark) for mark in marks if mark.name],
        facts=[named[key] for key in ("point", "position", "examples") if named.get(key)],
    )


def _score(curve: ProbeData) -> tuple[str, float, Limits | None]:
    """Place, value and interval of the score to quote; without one, of the place that scores highest on test."""
    quoted = curve.quoted
    if quoted is not None:
        return "" if quoted.layer is None else printable(quoted.layer.place), quoted.value, quoted.interval
    layer = max(curve.layers, key=lambda one: test_value(curve, one))
    return printable(layer.place), test_value(curve, layer), layer.intervals.get(curve.headline)


def _tip(curve: ProbeData, k: int, place: str, value: float, ends: Limits | None) -> str:
    first = f"k = {k}, {place}" if place else f"k = {k}"
    return f"{first}\ntest {metric_of(curve)} {number_text(value)} {interval_text(ends)}".strip()


def _name(by_k: Mapping[int, ProbeData]) -> str:
    """The name of the line, which says how the layer was chosen where there are several."""
    if all(len(curve.layers) == 1 for curve in by_k.values()):
        return "k-sparse probe"
    if any(curve.procedure is not None for curve in by_k.values()):
        return "k-sparse probe, nested folds"
    selected = all(curve.quoted is not None for curve in by_k.values())
    return f"k-sparse probe, {'the layer selected for each k' if selected else 'the highest layer on test'}"


def _limits(marks: list[Mark]) -> Limits:
    values = [y for mark in marks if isinstance(mark, Series) for y in mark.ys]
    values += [end for mark in marks if isinstance(mark, Band) for ends in mark.ends for end in ends]
    values += [mark.value for mark in marks if isinstance(mark, Rule)]
    low, high = min(values), max(values)
    pad = PAD * (high - low or 1.0)
    return low - pad, high + pad
