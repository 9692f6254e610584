"""A cascade as lines: the score and the true-positive rate against what a row costs."""

import math
from collections.abc import Sequence

from probekit.black_box.cascade import SENT, CascadePoint, CascadeResults
from probekit.charts.axes import score_limits
from probekit.charts.curves import INTERVAL
from probekit.charts.lines import Band, LegendEntry, LineChart, LineLook, Rule, Series, entry_of
from probekit.charts.palette import BLUE, GREY, RED, short
from probekit.evaluation.results.wording import metric_name
from probekit.text import printable

NAME = 44  # letters of a scorer
TICKS = 5
_Value = tuple[float, float, tuple[float, float] | None]  # cost, value, interval


def cascade_chart(results: CascadeResults) -> LineChart:
    """AUROC (or the headline) and the true-positive rate of each budget; across, each scorer alone, if it is known."""
    points = sorted(results.points, key=lambda point: point.cost)
    metric = "auroc" if any("auroc" in point.metrics for point in points) else results.headline
    xs = tuple(point.cost for point in points)
    lines, values = list[Series | Band | Rule](), list[float]()
    rates = [
        (point.cost, point.rates["tpr"], (point.rates["tpr_low"], point.rates["tpr_high"])) for point in _rated(points)
    ]
    shown: list[tuple[str, str, Sequence[_Value]]] = [
        (metric_name(metric), BLUE, _scores(points, metric)),
        (f"TPR at {results.meta['fpr']:.0%} FPR", RED, rates),
    ]
    legend: list[LegendEntry] = []
    for name, color, found in shown:
        if not found:
            continue
        line = Series(tuple(x for x, _, _ in found), tuple(y for _, y, _ in found), color, name=name)
        lines.append(line)
        values += line.ys
        legend.append(entry_of(line))
        if all(ends is not None for _, _, ends in found):
            band = Band(line.xs, tuple(ends for _, _, ends in found if ends is not None), color, name=INTERVAL)
            lines.append(band)
            values += [end for ends in band.ends for end in ends]
    alone_looks: tuple[tuple[int, str, LineLook], ...] = ((0, "cheap", "dotted"), (1, "expensive", "dashed"))
    for budget, name, look in alone_looks:
        alone = next((one for one in points if one.budget == budget), None)
        if alone is not None and metric in alone.metrics:
            rule = Rule(alone.metrics[metric], GREY, look, name=f"{short(results.meta[name], NAME)} alone")
            lines.append(rule)
            legend.append(entry_of(rule))
    width = max(xs) - min(xs) or 1.0
    cheap, expensive = (short(results.meta[name]) for name in ("cheap", "expensive"))
    return LineChart(
        name=f"{printable(results.meta['label'])}: {cheap}, then {expensive}",
        marks=lines,
        x_ticks=_ticks(min(xs), max(xs)),
        x_limits=(min(xs) - 0.02 * width, max(xs) + 0.02 * width),
        y_limits=score_limits(values, metric, 0.05),
        x_name="share of rows that are sent" if results.meta["unit"] == SENT else results.meta["unit"],
        y_name="on test",
        tips={point.cost: _tip(point, results) for point in points},
        legend=legend,
        facts=[short(results.meta[name]) for name in ("model", "task")],
    )


def _scores(points: Sequence[CascadePoint], metric: str) -> list[_Value]:
    return [(one.cost, one.metrics[metric], one.intervals.get(metric)) for one in points if metric in one.metrics]


def _rated(points: Sequence[CascadePoint]) -> list[CascadePoint]:
    return [point for point in points if "tpr" in point.rates]


def _ticks(low: float, high: float) -> dict[float, str]:
    """Round numbers between the ends, at most `TICKS` steps, and their texts."""
    rough = (high - low or 1.0) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    numbers = [round(step * i, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return {number: f"{number:,g}" for number in numbers}


def _tip(point: CascadePoint, results: CascadeResults) -> str:
    values = ", ".join(f"{metric_name(name)} {value:.3f}" for name, value in point.metrics.items())
    return f"budget {point.budget:.0%}, {point.share:.0%} sent, {point.cost:,.2f} {results.meta['unit']}\n{values}"
