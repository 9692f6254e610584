"""The scores of the selected layer on test: how well they are calibrated, and how they differ between the classes."""

from collections.abc import Sequence

import numpy as np

from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.scores.predictions import Predictions
from probekit.evaluation.scores.rates import rate_of
from probekit.evaluation.scores.score import score
from probekit.probes.base import probabilities
from probekit.report.parts import Lines, Part, Picture, Pictures
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.sections.names import shown_layer, test_rows, why_not_shown
from probekit.report.svg.bins import Histogram, Reliability, draw_histogram, draw_reliability, draw_scatter
from probekit.scoring.calibrate import OWN, Calibration, calibrated, calibration_of
from probekit.text import counted, printable

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
