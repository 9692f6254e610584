"""The scores of the selected layer on test: calibration, differences between classes, and the confusion matrix."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from probekit.charts.cells import Cell, CellGrid
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.wording import interval_text
from probekit.evaluation.scores.predictions import Predictions
from probekit.evaluation.scores.rates import rate_of
from probekit.evaluation.scores.score import score
from probekit.probes.base import probabilities
from probekit.report.parts import Lines, PageTable, Part, Picture, Pictures
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.sections.names import shown_layer, test_rows, why_not_shown
from probekit.report.svg.element import element, hot, path_of, svg
from probekit.report.svg.grid import draw_grid
from probekit.report.svg.lines import y_axis
from probekit.report.svg.scales import AxisSpan, pixel, tick_text, ticks
from probekit.scoring.calibrate import OWN, Calibration, calibrated, calibration_of
from probekit.text import counted, printable

LEFT, RIGHT, TOP, BOTTOM = 52.0, 12.0, 12.0, 44.0  # pixels around the axes
COUNTS = 44.0  # pixels of the counts under a reliability diagram


@dataclass(frozen=True)
class Histogram:
    """Counts of two kinds of rows in the same bins: one drawn upwards, the other downwards.

    Attributes:
        name: what it shows.
        edges: [B + 1] of the bins.
        up: (name, color, [B] counts).
        down: the same, drawn downwards; None for one kind.
        x_name: of the axis.
        threshold: a value with a line; None for none.
    """

    name: str
    edges: Sequence[float]
    up: tuple[str, str, Sequence[int]]
    down: tuple[str, str, Sequence[int]] | None
    x_name: str
    threshold: float | None = None


@dataclass(frozen=True)
class Reliability:
    """How often what a probe calls likely is so: a point for each bin of probabilities.

    Attributes:
        name: what it shows.
        x: [B] mean probability of each bin.
        y: [B] share of the rows of the bin for which it is so.
        ends: [B] (low, high) of the share.
        counts: [B] rows.
        x_name: of the axis.
        y_name: of the axis.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    ends: Sequence[tuple[float, float]]
    counts: Sequence[int]
    x_name: str
    y_name: str


def draw_histogram(one: Histogram, width: float = 344, height: float = 250) -> Markup:
    """The histogram as SVG."""
    across = AxisSpan(one.edges[0], one.edges[-1], LEFT, width - RIGHT)
    most_down = max(one.down[2]) if one.down else 0
    up = AxisSpan(-1.06 * most_down, max(1.06 * max(one.up[2]), 1), height - BOTTOM, TOP)
    bars = []
    for i, (a, b) in enumerate(zip(one.edges, one.edges[1:], strict=False)):
        left, right = pixel(across, a), pixel(across, b)
        # the farthest values count in the first and the last bar
        ends_at = f"up to {b:.3g}" if i == 0 else f"from {a:.3g}" if i == len(one.edges) - 2 else f"{a:.3g} to {b:.3g}"
        between = f"{one.x_name} {ends_at}"
        inside = [element("rect", class_="hit", x=left, y=TOP, width=right - left, height=height - BOTTOM - TOP)]
        tip = between
        for sign, kind in ((1, one.up), (-1, one.down)):
            if kind is None:
                continue
            name, color, counts = kind
            ends = sorted((pixel(up, 0), pixel(up, sign * counts[i])))
            inside.append(
                element(
                    "rect",
                    class_=f"{color} block",
                    x=left,
                    y=ends[0],
                    width=max(right - left - 1, 0.5),
                    height=ends[1] - ends[0],
                )
            )
            tip += f"\n{name}: {counts[i]:,}"
        bars.append(hot(tip, inside, is_first=i == 0))
    parts = [*_frame(across, up, one.x_name, "rows", height), *bars]
    zero = pixel(up, 0)
    parts.append(element("path", class_="base", d=path_of([(across.start, zero), (across.end, zero)])))
    if one.threshold is not None and one.edges[0] < one.threshold < one.edges[-1]:
        x = pixel(across, one.threshold)
        parts.append(element("path", class_="threshold", d=path_of([(x, TOP), (x, height - BOTTOM)])))
    return svg(one.name, width, height, parts, "chart small")


def draw_reliability(one: Reliability, width: float = 344, height: float = 344) -> Markup:
    """The diagram as SVG: the diagonal is perfect calibration; the bars under it are the rows in each bin."""
    across = AxisSpan(0.0, 1.0, LEFT, width - RIGHT)
    up = AxisSpan(0.0, 1.0, height - BOTTOM - COUNTS, TOP)
    tall = AxisSpan(0.0, max(one.counts), height - BOTTOM, height - BOTTOM - COUNTS + 8)
    parts = _frame(across, up, one.x_name, one.y_name, height)
    parts.append(element("path", class_="diagonal", d=path_of([(across.start, up.start), (across.end, up.end)])))
    parts.append(element("path", class_="base", d=path_of([(across.start, tall.start), (across.end, tall.start)])))
    points = [(pixel(across, x), pixel(up, y)) for x, y in zip(one.x, one.y, strict=True)]
    parts.append(element("path", class_="blue line thin", d=path_of(points)))
    for i, ((x, y), (low, high), n) in enumerate(zip(points, one.ends, one.counts, strict=True)):
        top = pixel(tall, n)
        share = f"{one.y_name}: {one.y[i]:.3f}, 95% interval [{low:.3f}, {high:.3f}]"
        tip = f"{one.x_name}: {one.x[i]:.3f}\n{share}\nrows: {n:,}"
        inside = [
            element("rect", class_="hit", x=x - 8, y=TOP, width=16.0, height=height - BOTTOM - TOP),
            element("path", class_="blue whisker", d=path_of([(x, pixel(up, low)), (x, pixel(up, high))])),
            element("circle", class_="blue dot", cx=x, cy=y, r=4.0),
            element("rect", class_="blue block", x=x - 5, y=top, width=10.0, height=tall.start - top),
        ]
        parts.append(hot(tip, inside, is_first=i == 0))
    return svg(one.name, width, height, parts, "chart small")


def draw_scatter(
    name: str, points: Sequence[tuple[float, float]], ends: tuple[float, float], x_name: str, y_name: str
) -> Markup:
    """Points with the diagonal: true values and predictions of a regression, both axes from and to the same ends."""
    width = height = 344.0
    across = AxisSpan(*ends, LEFT, width - RIGHT)
    up = AxisSpan(*ends, height - BOTTOM, TOP)
    parts = _frame(across, up, x_name, y_name, height)
    parts.append(element("path", class_="diagonal", d=path_of([(across.start, up.start), (across.end, up.end)])))
    parts += [element("circle", class_="blue point", cx=pixel(across, x), cy=pixel(up, y), r=2.5) for x, y in points]
    return svg(name, width, height, parts, "chart small")


def _frame(across: AxisSpan, up: AxisSpan, x_name: str, y_name: str, height: float) -> list[Markup]:
    """Ticks and names of both axes; counts below 0 are written without their sign."""
    values, columns = ticks(up.low, up.high, 5), ticks(across.low, across.high, 5)
    parts = [y_axis(across, up, y_name, values, [abs(value) for value in values] if y_name == "rows" else None)]
    parts += [
        element("text", tick_text(value, columns), class_="tick mid", x=pixel(across, value), y=height - BOTTOM + 16)
        for value in columns
    ]
    parts.append(element("text", x_name, class_="axis mid", x=(across.start + across.end) / 2, y=height - 8))
    return parts


MOST = 20  # classes in the picture; the others are counted together
OTHERS = "all others"


def confusion_section(data: ProbeData) -> Section | None:
    """The matrix; None for a regression."""
    if not data.meta["n_classes"]:
        return None
    layer = shown_layer(data)
    parts: list[Part] = [Lines([why_not_shown(data)])] if layer is None else _parts(data, layer)
    counts = {} if layer is None else {"counts": {"names": _names(data), "rows": confusion(data, layer.place).tolist()}}
    return Section("confusion", "Confusion matrix", html_of(parts), counts)


def confusion(data: ProbeData, place: str) -> np.ndarray:
    """Test rows by true class (rows) and predicted class (columns), int64 [C, C]."""
    rows, n = data.rows, int(data.meta["n_classes"])
    assert rows is not None
    of_test = test_rows(rows)
    pairs = rows.labels[of_test].astype(np.int64) * n + rows.predicted[place][of_test]
    return np.bincount(pairs, minlength=n * n).reshape(n, n)


def _names(data: ProbeData) -> list[str]:
    return [str(name) for name in data.meta["classes"]]


def _parts(data: ProbeData, layer: LayerResult) -> list[Part]:
    counts, names = confusion(data, layer.place), _names(data)
    what = f"{int(counts.sum()):,} test rows, {layer.place}. Rows are the true class; colour is the share of the row."
    if data.procedure is not None:
        what += " Each row is predicted by the probe of this place of the fold that held it out."
    shown, drawn = _largest(counts, names)
    grid = CellGrid("Confusion matrix", shown, shown, _cells(drawn, shown), "true class", "predicted class")
    return [Lines([what]), Picture(draw_grid(grid)), PageTable(_table(data, layer.place))]


def _largest(counts: np.ndarray, names: list[str]) -> tuple[list[str], np.ndarray]:
    """The commonest classes in their order, and one row and column for the others together."""
    if len(names) <= MOST:
        return names, counts
    commonest = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[: MOST - 1])
    n = len(commonest)
    group = np.full(len(names), n)
    group[commonest] = np.arange(n)
    merged = np.zeros((n + 1, n + 1), dtype=np.int64)
    np.add.at(merged, (group[:, None], group[None, :]), counts)
    return [*(names[i] for i in commonest), f"{OTHERS} ({len(names) - n})"], merged


def _cells(counts: np.ndarray, names: list[str]) -> list[list[Cell]]:
    totals = counts.sum(axis=1)
    return [
        [
            Cell(
                f"{n:,}",
                f"true {names[i]}, predicted {names[j]}\n{n:,} of {totals[i]:,} rows ({n / max(totals[i], 1):.1%})",
                n / max(totals[i], 1) * (1 if i == j else -1),
            )
            for j, n in enumerate(row)
        ]
        for i, row in enumerate(counts.tolist())
    ]


def _table(data: ProbeData, place: str) -> list[list[str]]:
    """Recall and precision of each class with their intervals, those of the lowest recall first if there are many."""
    rows, names = data.rows, _names(data)
    assert rows is not None
    of_test = test_rows(rows)
    truth, predicted, groups = rows.labels[of_test], rows.predicted[place][of_test], rows.groups[of_test]
    order = list(range(len(names)))
    if len(names) > MOST:
        order.sort(key=lambda i: float(np.mean(predicted[truth == i] == i)) if (truth == i).any() else 0.0)
    table = [["class", "test rows", "recall", "95% interval", "precision", "95% interval"]]
    for i in order[: 2 * MOST]:
        row = [names[i], f"{(truth == i).sum():,}"]
        for one, other in ((truth, predicted), (predicted, truth)):
            own = one == i
            rate = rate_of(other[own] == i, groups[own]) if own.any() else None
            row += ["", ""] if rate is None else [f"{rate.value:.3f}", interval_text((rate.low, rate.high))]
        table.append(row)
    return table


BINS = 10  # of probabilities, of equal width
BARS = 32  # of a histogram
POINTS = 1000  # rows drawn in a scatter plot
OUTPUTS = 3  # of a regression of several numbers
NO_ODDS = (
    "No reliability diagram: the scores of this probe are no probabilities, and no validation rows are there to "
    "calibrate them."
)


def scores_section(data: ProbeData) -> Section:
    """Reliability diagram and histogram; of a regression, predictions against true values."""
    layer = shown_layer(data)
    if layer is None:
        return Section("scores", "Scores", html_of([Lines([why_not_shown(data)])]))
    if not data.meta["n_classes"]:
        return Section("scores", "Predictions", html_of(_regression(data, layer)))
    return Section("scores", "Scores and calibration", html_of(_classes(data, layer)))


def _classes(data: ProbeData, layer: LayerResult) -> list[Part]:
    rows = data.rows
    assert rows is not None
    of_test = test_rows(rows)
    labels, scores = rows.labels[of_test].astype(np.int64), rows.scores[layer.place][of_test]
    names = [str(name) for name in data.meta["classes"]]
    pictures, lines = [], [f"{counted(len(labels), 'test row')}, {layer.place}."]
    calibration = calibration_of(data.rows, layer.place, _has_own(data, layer))
    for what, likely in _probabilities(data, layer, scores, calibration):
        diagram = reliability(likely, labels, rows.groups[of_test], names)
        pictures.append(Picture(draw_reliability(diagram), f"{what}: {BINS} bins of equal width; the bars count rows."))
        errors = score(Predictions(labels, rows.predicted[layer.place][of_test], scores, len(names), likely))
        lines.append(f"{what}: expected calibration error {errors['ece']:.3f}, Brier score {errors['brier']:.3f}.")
    lines += [] if calibration is None else [f"Probabilities that score gives: {calibration.method}."]
    lines.append("On the diagonal, probabilities are exact." if pictures else NO_ODDS)
    if len(names) == 2:
        threshold = 0.0 if ((scores > 0) == (rows.predicted[layer.place][of_test] == 1)).all() else None
        histogram = of_two_classes(scores, labels, names, threshold)
        caption = "Scores by class" + ("; the dashed line is the threshold." if threshold is not None else ".")
    else:
        histogram = of_margins(scores, labels)
        caption = "Score of the true class minus the highest other one: below 0, the prediction is wrong."
    legend = (
        [(name, color, "block") for name, color, _ in (histogram.up, histogram.down) if name] if histogram.down else []
    )
    pictures.append(Picture(draw_histogram(histogram), caption, legend=legend))
    note = "Calibration error: mean over bins of equal counts (Guo et al. 2017). Intervals of shares: Clopper-Pearson."
    return [Lines(lines), Pictures(pictures), *([Lines([note], "note")] if len(pictures) > 1 else [])]


def _probabilities(
    data: ProbeData, layer: LayerResult, scores: np.ndarray, calibration: Calibration | None
) -> list[tuple[str, np.ndarray]]:
    """Those of the probe itself, if its scores are log odds, and those that `probekit score` gives; [N, C] each."""
    found = []
    if _has_own(data, layer):
        found.append(("Probabilities of the probe", probabilities(scores)))
    if calibration is not None and calibration.kind != OWN:
        found.append(("Calibrated on validation", calibrated(calibration, scores)))
    return found


def _has_own(data: ProbeData, layer: LayerResult) -> bool:
    """Whether the probe's scores are log odds, so that it has probabilities of its own."""
    return "ece" in layer.metrics["test"] and data.procedure is None


def reliability(likely: np.ndarray, labels: np.ndarray, groups: np.ndarray, names: Sequence[str]) -> Reliability:
    """The diagram of probabilities [N, C]: of the second class where there are two, else of the class predicted.

    Rows with equal numbers in `groups` [N] count together in the intervals.
    """
    if likely.shape[1] == 2:
        p, is_so = likely[:, 1], labels == 1
        x_name, y_name = f"probability of {printable(names[1])}", f"share of {printable(names[1])}"
    else:
        p, is_so = likely.max(axis=1), likely.argmax(axis=1) == labels
        x_name, y_name = "probability of the predicted class", "share predicted correctly"
    of_bin = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    bins = [of_bin == i for i in np.unique(of_bin)]
    rates = [rate_of(is_so[own], groups[own]) for own in bins]
    return Reliability(
        "Reliability diagram",
        x=[float(p[own].mean()) for own in bins],
        y=[rate.value for rate in rates],
        ends=[(rate.low, rate.high) for rate in rates],
        counts=[rate.rows for rate in rates],
        x_name=_cut(x_name),
        y_name=_cut(y_name),
    )


def of_two_classes(scores: np.ndarray, labels: np.ndarray, names: Sequence[str], threshold: float | None) -> Histogram:
    """Scores of both classes in the same bins: the second upwards, the first downwards."""
    edges = _edges(scores)
    counts = [np.histogram(np.clip(scores[labels == k], edges[0], edges[-1]), edges)[0].tolist() for k in (0, 1)]
    up, down = (_cut(printable(names[1])), "blue", counts[1]), (_cut(printable(names[0])), "orange", counts[0])
    return Histogram("Scores by class", edges.tolist(), up, down, "score", threshold)


def of_margins(scores: np.ndarray, labels: np.ndarray) -> Histogram:
    """How far the true class is ahead of the highest other one: scores [N, C]."""
    own = np.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    others = scores.copy()
    np.put_along_axis(others, labels[:, None], -np.inf, axis=1)
    margin = own - others.max(axis=1)
    edges = _edges(margin)
    counts = np.histogram(np.clip(margin, edges[0], edges[-1]), edges)[0].tolist()
    return Histogram("Margins of the true class", edges.tolist(), ("rows", "blue", counts), None, "margin", 0.0)


def _edges(values: np.ndarray) -> np.ndarray:
    """Bins over all but the farthest values, which count in the first and the last bin."""
    low, high = np.quantile(values, [0.002, 0.998])
    return np.linspace(low - 1e-9, high + 1e-9, BARS + 1) if high > low else np.linspace(low - 0.5, low + 0.5, 3)


def _regression(data: ProbeData, layer: LayerResult) -> list[Part]:
    rows = data.rows
    assert rows is not None
    of_test = test_rows(rows)
    truth, predicted = (_columns(x[of_test]) for x in (rows.labels, rows.scores[layer.place]))
    lines = [f"{counted(len(truth), 'test row')}, {layer.place}."]
    if data.procedure is not None:
        return [Lines([*lines, "Predictions of nested folds are standardised in each fold, and not drawn."])]
    pictures = []
    for k in range(min(truth.shape[1], OUTPUTS)):
        name = f" of output {k + 1}" if truth.shape[1] > 1 else ""
        pictures.append(_scatter(truth[:, k], predicted[:, k], name, data.meta["seed"]))
        pictures.append(_residuals(truth[:, k], predicted[:, k], name))
    if truth.shape[1] > OUTPUTS:
        lines.append(f"The first {OUTPUTS} of {truth.shape[1]} outputs are drawn.")
    return [Lines(lines), Pictures(pictures)]


def _columns(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64).reshape(len(values), -1)


def _scatter(truth: np.ndarray, predicted: np.ndarray, name: str, seed: int) -> Picture:
    some = np.random.default_rng(seed).permutation(len(truth))[:POINTS]
    both = np.concatenate([truth, predicted])
    room = 0.03 * (both.max() - both.min()) or 0.5
    points = list(zip(truth[some].tolist(), predicted[some].tolist(), strict=True))
    ends = (float(both.min() - room), float(both.max() + room))
    drawn = f", {len(some):,} of {len(truth):,} rows drawn at random" if len(some) < len(truth) else ""
    picture = draw_scatter(f"Predictions{name}", points, ends, "true value", "prediction")
    return Picture(picture, f"Predictions{name}{drawn}; on the diagonal they are exact.", hint="")


def _residuals(truth: np.ndarray, predicted: np.ndarray, name: str) -> Picture:
    wrong = predicted - truth
    edges = _edges(wrong)
    counts = np.histogram(np.clip(wrong, edges[0], edges[-1]), edges)[0].tolist()
    one = Histogram(f"Errors{name}", edges.tolist(), ("rows", "blue", counts), None, "prediction minus true value", 0.0)
    return Picture(draw_histogram(one), f"Errors{name}: prediction minus true value.")


def _cut(name: str, most: int = 40) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
