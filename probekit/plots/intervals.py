"""A single place as rows: its score, validation, and everything to compare it with, each with its interval."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from probekit.charts.accuracy import NESTED, TEST, VALIDATION
from probekit.charts.axes import score_limits
from probekit.charts.curves import Curve, validation_values
from probekit.charts.palette import GREEN, GREY, RED, short
from probekit.charts.references import CONTROL, POOLED, RANDOM
from probekit.evaluation.results.data import BaselineResult, LayerResult
from probekit.evaluation.results.wording import features_name
from probekit.plots.margin import is_narrow
from probekit.plots.style import PLAIN, SMALL, inches

NAME = 24  # letters of a row


@dataclass(frozen=True)
class Row:
    """A score with its name, and its interval if it has one."""

    name: str
    value: float
    ends: tuple[float, float] | None
    color: str
    is_own: bool = False


def interval_rows(curves: Sequence[Curve]) -> list[Row]:
    """The rows from the top: the scores of each curve, then comparisons, those that several curves share once."""
    own = [row for curve in curves for row in _own(curve)]
    others: dict[tuple[str, str], list[tuple[Curve, Row]]] = {}
    for curve in curves:
        for row in _others(curve):
            others.setdefault((row.name, f"{row.value:.3f}"), []).append((curve, row))
    names = list(dict.fromkeys(name for name, _ in others))  # one row for each name
    together = sorted(others.items(), key=lambda item: names.index(item[0][0]))
    return own + [_shared(same, len(curves)) for _, same in together]


def _own(curve: Curve) -> Iterator[Row]:
    results, (layer,) = curve.results, curve.results.layers
    name = short(curve.name, NAME)
    before = f"{name}, " if name else ""
    if results.procedure is not None:  # the score to quote
        nested = f"{before}nested folds" if before else NESTED
        yield Row(nested, *results.estimate, RED if curve.is_alone else curve.color, is_own=True)
    yield Row(name or TEST, *_score(layer, results.headline), curve.color, is_own=True)
    yield from (Row(before + VALIDATION, value, None, curve.color) for value in validation_values(results))


def _others(curve: Curve) -> Iterator[Row]:
    results = curve.results
    for layer in results.layers:
        if layer.control is not None:
            yield Row(CONTROL, layer.control, None, GREY)
    for layer in results.random_init:
        yield Row(RANDOM, *_score(layer, results.headline), GREEN if curve.is_alone else curve.color)
    for how, layers in results.pooled.items():
        for layer in layers:
            yield Row(
                features_name(how), *_score(layer, results.headline), POOLED[how] if curve.is_alone else curve.color
            )
    for baseline in results.baselines:
        if results.headline in baseline.metrics["test"]:
            yield Row(short(baseline.name, NAME), *_score(baseline, results.headline), GREY)


def _score(result: LayerResult | BaselineResult, metric: str) -> tuple[float, tuple[float, float] | None]:
    return result.metrics["test"][metric], result.intervals.get(metric)


def _shared(same: list[tuple[Curve, Row]], n: int) -> Row:
    """The row of a comparison, in the colour and with the name of its curve if it is not of all."""
    curve, row = same[0]
    if n == 1:
        return row
    if len(same) == n:
        return replace(row, color=GREY)
    names = ", ".join(of.name for of, _ in same)
    color = curve.color if len(same) == 1 else GREY
    return replace(row, name=f"{row.name}, {short(names, NAME)}", color=color)


def draw_intervals(ax: Axes, curves: Sequence[Curve]) -> None:
    """Draw the rows, with their values at the right; values beyond the axis have an arrow at its end."""
    rows = interval_rows(curves)
    values = [value for row in rows for value in (row.value, *(row.ends or ()))]
    least = min(row.value for row in rows if row.is_own)
    ax.set_xlim(score_limits(values, curves[0].results.headline, 0.04, least))
    ax.set_ylim(len(rows) - 0.4, -0.6)
    for y, row in enumerate(rows):
        _draw_row(ax, y, row)
    size = min(SMALL, 72 * inches(ax)[1] * 0.6 / len(rows))
    ax.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=size, **PLAIN)
    for y, row in enumerate(rows):
        within = "" if row.ends is None or is_narrow(ax) else f" [{row.ends[0]:z.3f}, {row.ends[1]:z.3f}]"
        where = {"transform": ax.get_yaxis_transform(), "va": "center", "fontsize": size}
        ax.text(1 + 0.1 / inches(ax)[0], y, f"{row.value:z.3f}{within}", color=row.color, **where)


def _draw_row(ax: Axes, y: int, row: Row) -> None:
    low, high = ax.get_xlim()
    if row.ends is not None and row.ends[0] < high and row.ends[1] > low:
        ax.hlines(y, max(row.ends[0], low), min(row.ends[1], high), color=row.color, alpha=0.35, linewidth=6)
    if not low <= row.value <= high:
        mark, x = ("<", 0.012) if row.value < low else (">", 0.988)
        ax.plot([x], [y], marker=mark, markersize=6, color=row.color, transform=ax.get_yaxis_transform())
        return
    filled = row.color if row.is_own else "white"
    ax.plot([row.value], [y], marker="o", markersize=7 if row.is_own else 5.5, color=row.color, markerfacecolor=filled)
