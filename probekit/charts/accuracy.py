"""The picture of curves as data: test by layer with bands, selected and tied layers, and what it is compared with."""

from collections.abc import Iterator, Sequence

from probekit.charts.axes import around, layer_axis_name, x_limits, y_limits
from probekit.charts.curves import (
    BAND,
    POINTWISE,
    Curve,
    bands,
    chosen,
    has_intervals,
    interval_of,
    metric_of,
    place_text,
    shared_facts,
    test_value,
    ticks_of,
    validation_values,
    x_of,
)
from probekit.charts.lines import (
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
from probekit.charts.palette import GREY, PALETTE, RED, short
from probekit.charts.references import comparisons, margin_labels, reference_marks
from probekit.evaluation.results.cautions import cautions
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.surface_note import short_nuisance_text
from probekit.evaluation.results.wording import decoding, features_name, interval_text, number_text
from probekit.text import listed, printable

TEST, VALIDATION, SELECTED, NESTED = "test", "validation", "selected on validation", "nested cross-validation"
TIED, LATE = "statistically tied with the best", "not converged"
DASHES: tuple[LineLook, ...] = ("solid", "dashed", "dotted", "dash-dotted")  # more curves than colours
LEAST = 1.05  # below this everywhere, the labels are not compressed
_SHORTER = {TIED: ["tied with the best"], BAND: ["95% band"], POINTWISE: ["95% interval"]}
_TIED = 0.4  # layers to either side that the rule of the tied layers covers


def accuracy_chart(curves: Sequence[Curve], y: Limits | None = None, has_references: bool = True) -> LineChart:
    """The picture of one curve or several.

    Args:
        curves: of one metric, from `named_curves`.
        y: what the y axis shows at least.
        has_references: whether baselines, control tasks and untrained weights are drawn.
    """
    others = comparisons(curves) if has_references else []
    limits = around(y_limits(curves, others), y)
    references = reference_marks(others, limits)
    marks = [mark for curve in curves for mark in _marks(curve)]
    several, ticks = [curve.results for curve in curves], ticks_of([curve.results for curve in curves])
    return LineChart(
        name=decoding(shared_facts(several), metric_of(several[0])),
        marks=[*marks, *references],
        x_ticks=ticks,
        x_limits=x_limits(ticks),
        y_limits=limits,
        x_name=layer_axis_name(curves),
        y_name=metric_of(several[0]),
        tips={x: "\n".join(_tip(curves, x)) for x in ticks},
        legend=_legend(curves, marks, [each for each in references if isinstance(each, Series)], limits),
        margin=[label for each in others for label in margin_labels(each, limits, len(curves) == 1)],
        facts=_facts(several),
        cautions=_cautions(curves),
        notes=_notes(curves, limits),
    )


def _marks(curve: Curve) -> Iterator[Mark]:
    data, xs = curve.results, tuple(map(float, curve.xs))
    late = frozenset(x for x, layer in zip(xs, data.layers, strict=True) if not layer.converged)
    look = DASHES[curve.rank // len(PALETTE) % len(DASHES)]
    yield Series(xs, tuple(curve.values), curve.color, look, hollow=late, name=curve.name or TEST)
    if has_intervals(data) and curve.has_band:
        ends, name = bands(data)
        yield Band(xs, tuple(ends), curve.color, name)
    if curve.is_alone and (values := validation_values(data)):
        yield Series(xs, tuple(values), curve.color, "dashed", dots=False, thin=True, name=VALIDATION)
    tied = [layer.in_best_set for layer in data.layers] if len(xs) > 1 else []
    for first, last in runs([x for x, is_tied in zip(curve.xs, tied, strict=False) if is_tied]):
        yield Stretch(first - _TIED, last + _TIED, curve.color, "tied", curve.rank, TIED)
    color = RED if curve.is_alone else curve.color
    if data.procedure is not None:
        yield Rule(data.estimate[0], color, "dash-dotted", name=NESTED)
    elif best := chosen(data):
        yield Ring(x_of(data, best), test_value(data, best), color, name=SELECTED)


def runs(xs: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive layers: [0, 1, 2, 5] -> [(0, 2), (5, 5)]."""
    found: list[tuple[int, int]] = []
    for x in xs:
        if found and found[-1][1] == x - 1:
            found[-1] = (found[-1][0], x)
        else:
            found.append((x, x))
    return found


def _legend(
    curves: Sequence[Curve], marks: Sequence[Mark], references: Sequence[Series], limits: Limits
) -> list[LegendEntry]:
    """A line for the selected place, or for each of several curves, and the marks that they share, in grey."""
    is_alone = len(curves) == 1
    color = None if is_alone else GREY
    lines = [mark for mark in marks if isinstance(mark, Series) and mark.dots]
    shared = {mark.name: mark for mark in marks if mark not in lines}
    chosen_marks = [shared.pop(name) for name in (SELECTED, NESTED) if is_alone and name in shared]
    own = list(zip(chosen_marks, curves, strict=False)) if is_alone else list(zip(lines, curves, strict=True))
    found = [entry_of(mark, *_row(mark.name, scores_of(curve)), is_own=True) for mark, curve in own]
    found += [entry_of(line) for line in lines if is_alone]
    for name, mark in shared.items():
        whose = "" if name not in (BAND, POINTWISE) or all(curve.has_band for curve in curves) else " of the best curve"
        texts = [f"{text}{whose}" for text in (name, *_SHORTER.get(name, ()))]
        found.append(entry_of(mark, *texts, color=color, is_minor=True))
    if any(line.hollow for line in lines):
        found.append(LegendEntry([LATE], "hollow", color or lines[0].color, is_minor=True))
    found += beyond_entries([*lines, *references], limits, color)
    names = {each.name: each for each in reversed(references)}  # a name for all curves
    return found + [entry_of(each, color=color, is_minor=is_alone) for each in references if names[each.name] is each]


def _row(name: str, scores: list[str]) -> list[str]:
    if not scores:
        return [name]
    word = name.split()[0] if name in (SELECTED, NESTED) else name
    return [f"{name}: {score}" for score in scores] + [f"{word}: {scores[-1]}", f"{word} {scores[-1].split()[-1]}"]


def scores_of(curve: Curve) -> list[str]:
    """The score to quote in words, the longest text first; none where nothing was selected."""
    results, metric, remarks = curve.results, metric_of(curve.results), _remarks(curve)
    if results.procedure is not None:
        value, ends = results.estimate
        what, within = "", f"{value:z.3f}{'' if ends is None else ' ' + _within(ends)}"
    elif best := chosen(results):
        value, what = test_value(results, best), f"{place_text(results, best)}, "
        within = f"{value:z.3f}" + (f" {_within(interval_of(results, best))}" if has_intervals(results) else "")
        metric = f"test {metric}"
    else:
        return []
    texts = [f"{what}{metric} {within}", f"{what}{within}", f"{what}{value:z.3f}"]
    return [texts[0] + "".join(remarks[:n]) for n in range(len(remarks), 0, -1)] + texts


def _remarks(curve: Curve) -> list[str]:
    """The scores of the control task, of random weights and of one row for each text at the selected place."""
    best = chosen(curve.results)
    if best is None or not curve.is_alone:
        return []
    random = [test_value(curve.results, layer) for layer in curve.results.random_init if layer.place == best.place]
    values = {"control": [] if best.control is None else [best.control], "random init": random}
    for how, layers in curve.results.pooled.items():
        values[features_name(how)] = [test_value(curve.results, layer) for layer in layers if layer.place == best.place]
    return [f", {name} {value:z.3f}" for name, known in values.items() for value in known]


def _within(ends: tuple[float, float]) -> str:
    return f"[{ends[0]:z.3f}, {ends[1]:z.3f}]"


def _facts(several: Sequence[ProbeData]) -> list[str]:
    shared = shared_facts(several)
    read = ", ".join(shared[key] for key in ("point", "position", "within") if shared.get(key))
    return [part for part in (read, *(shared.get(key, "") for key in ("probe", "examples", "quick"))) if part]


def _cautions(curves: Sequence[Curve]) -> list[str]:
    """Each caution once, with the names of its curves unless it is of all."""
    owners: dict[str, list[str]] = {}
    for curve in curves:
        for text in cautions(curve.results):
            owners.setdefault(printable(text), []).append(curve.name)
    return [text if len(of) == len(curves) else f"{', '.join(of)}: {text}" for text, of in owners.items()]


def _notes(curves: Sequence[Curve], limits: Limits) -> list[str]:
    """What the picture leaves out: the lowest score below its end, and a compression that would be flat."""
    notes, first = [], curves[0].results
    value, curve, layer = min(
        ((test_value(curve.results, layer), curve, layer) for curve in curves for layer in curve.results.layers),
        key=lambda one: one[0],
    )
    if value < limits[0]:
        notes.append(f"{metric_of(first)} down to {value:.4g} ({place_text(curve.results, layer)}) is below the axis")
    if len(curves) == 1 and (nuisance := first.meta.get("nuisance")):
        names = listed([short(name) for name in nuisance["names"]], most=4)
        notes.append(f"nuisance {names}: {short_nuisance_text(first)}")
    if len(curves) == 1 and (values := compressions(first)) and not has_compression(first):
        notes.append(f"no layer compresses the labels (at most {max(values):.2f}\N{MULTIPLICATION SIGN})")
    return notes


def compressions(results: ProbeData) -> list[float]:
    """Bits of the uniform code / bits of each place; none where a place has no code."""
    codes = [layer.codelength["compression"] for layer in results.layers if layer.codelength]
    return codes if len(codes) == len(results.layers) > 1 else []


def has_compression(results: ProbeData) -> bool:
    """Whether there is a compression to draw: a flat line at 1x is none."""
    return max(compressions(results), default=0) >= LEAST


def _tip(curves: Sequence[Curve], x: float) -> list[str]:
    """What is said of a layer, in lines."""
    lines = []
    for curve in curves:
        for layer in curve.results.layers:
            if x_of(curve.results, layer) != x:
                continue
            if curve.is_alone:
                return [place_text(curve.results, layer), *_scores(curve.results, layer)]
            lines.append(f"{curve.name}: {_score(curve.results, layer)}")
    return lines


def _score(data: ProbeData, layer: LayerResult) -> str:
    ends = layer.intervals.get(data.headline)
    return f"{number_text(test_value(data, layer))}{'' if ends is None else f', 95% interval {interval_text(ends)}'}"


def _scores(data: ProbeData, layer: LayerResult) -> list[str]:
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
        f"{features_name(how)} {number_text(test_value(data, one))}"
        for how, own in data.pooled.items()
        for one in own
        if one.place == layer.place
    ]
    marks = [SELECTED] * (layer is chosen(data)) + [TIED] * bool(layer.in_best_set) + [LATE] * (not layer.converged)
    return [*lines, *(["; ".join(parts)] if parts else []), *(["; ".join(marks)] if marks else [])]
