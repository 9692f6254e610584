"""Results as text for a terminal and as HTML for a notebook. Names come from data, so they are escaped in both."""

import html
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probekit.points import spans_of
from probekit.text import printable

if TYPE_CHECKING:
    from probekit.evaluation.results.results import BaselineResult, LayerResult, ProbeResults

Row = tuple[str, ...]
LEAST_SEEN = 0.5  # of the test rows have a type that train has, or the control cannot be learnt by heart
_CHOSEN, _AS_GOOD, _LATE = "*", "=", "!"
_OF_SPLITS = f"{_CHOSEN} chosen on validation; "
_OF_ALL = f"{_AS_GOOD} cannot be told from the best on test; {_LATE} not converged"


def title(results: "ProbeResults") -> str:
    """What was asked, in one line: the label, the model and the task, the point and the position."""
    meta = results.meta
    return (
        f"{printable(meta['label'])} in {printable(meta['model'])} on {printable(meta['task'])}: "
        f"{printable(meta['point'])}, {where(meta['position'])}"
    )


def where(position: object) -> str:
    """The token that is read, in words: "last" -> "last token"."""
    known = {"last": "last token", "first": "first token", "mean": "mean of all tokens"}
    known["per example"] = "a token of each text's own"
    return known.get(str(position), f"token {printable(position)}")


def metric_name(metric: str) -> str:
    """What a reader calls a metric: "auroc" -> "AUROC"."""
    known = {"auroc": "AUROC", "r2": "R2", "f1": "F1", "spearman": "Spearman correlation"}
    return known.get(metric, metric.replace("_", " "))


def chosen(results: "ProbeResults") -> str:
    """What is to be quoted: the best place's test score, and on what it was chosen; with folds the procedure's."""
    if results.procedure is not None:
        return _procedure(results)
    best, metric = results.best, metric_name(results.headline)
    how = "" if best.C is None else f" (C = {best.C:g})"
    test = f"test {metric} {best.metrics['test'][results.headline]:.3f}, 95% interval {_interval(results, best)}"
    what = ["layer"] * (len(results.layers) > 1) + ["C"] * (len(best.tried) > 1)
    if not what:
        return f"{best.place}{how}: {test}. Nothing was chosen: one place, one setting."
    were = (" and ".join(what).replace("layer", "Layer")) + (" was" if len(what) == 1 else " were")
    return f"Best: {best.place}{how}, {test}. {were} chosen on validation {metric}; test decided nothing."


def marks(results: "ProbeResults") -> str:
    """What the marks of the table mean; with folds none is chosen, since every row had its say in that."""
    return f"Marks: {'' if results.procedure is not None else _OF_SPLITS}{_OF_ALL}"


def _procedure(results: "ProbeResults") -> str:
    value, ends = results.judged
    within = "" if ends is None else f", 95% interval [{ends[0]:.3f}, {ends[1]:.3f}]"
    return (
        f"Whole procedure: {metric_name(results.headline)} {value:.3f}{within}; "
        "layer and C are chosen anew inside each fold, on its other rows."
    )


def summary(results: "ProbeResults") -> str:
    """The table of `ProbeResults.summary`."""
    rows = _table(results)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    told = [title(results), _counts(results), "", *lines, marks(results), "", *notes(results)]
    return "\n".join(map(printable, told))


def html_table(results: "ProbeResults") -> str:
    """The table of `summary` as HTML, everything escaped."""
    left, right = "text-align:left", "text-align:right"
    head, *rows = _table(results)
    body = []
    for row in rows:
        weight = "font-weight:bold" if row[0].startswith(_CHOSEN) else ""
        cells = [f'<td style="{left if i == 0 else right}">{_safe(cell)}</td>' for i, cell in enumerate(row)]
        body.append(f'<tr style="{weight}">{"".join(cells)}</tr>')
    names = "".join(f'<th style="{right}">{_safe(name)}</th>' for name in head)
    below = [_counts(results), marks(results), *notes(results)]
    return (
        f"<div><p><b>{_safe(title(results))}</b></p><table><thead><tr>{names}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table>" + "".join(f"<p>{_safe(note)}</p>" for note in below) + "</div>"
    )


def _safe(text: str) -> str:
    return html.escape(printable(text))


def is_output(results: "ProbeResults", layer: "LayerResult") -> bool:
    """Whether the place is the output of the last block at the end of another point's curve."""
    return layer.point != results.meta["point"]


def _counts(results: "ProbeResults") -> str:
    n, folds = results.meta["n"], results.meta.get("folds")
    rows = ", ".join(f"{n[split]:,} {split}" for split in n)
    return f"{printable(results.meta['probe'])} probe; " + (
        f"{n['test']:,} examples in {folds} nested folds" if folds else rows
    )


def _table(results: "ProbeResults") -> list[Row]:
    """The headings and the rows; a column in which nothing stands is left out."""
    best, metric = results.best, results.headline
    headings = ("", "C", "validation", "test", "95% interval", "control", "selectivity", "compression", "random init")
    random = {layer.place: layer for layer in results.random_init}
    rows = [_row(results, _name(results, layer, best), layer, random.get(layer.place)) for layer in results.layers]
    rows += [_row(results, f"   {baseline.name}{_late(baseline)}", baseline) for baseline in results.baselines]
    table = [tuple(map(printable, row)) for row in [(f"   {metric_name(metric)}", *headings[1:]), *rows]]
    kept = [i for i in range(len(headings)) if i == 0 or any(row[i] for row in rows)]
    return [tuple(row[i] for i in kept) for row in table]


def _name(results: "ProbeResults", layer: "LayerResult", best: "LayerResult") -> str:
    is_chosen = layer is best and results.procedure is None
    mark = (_CHOSEN if is_chosen else " ") + (_AS_GOOD if layer.in_best_set else " ")
    output = " (output)" if is_output(results, layer) else ""
    return f"{mark} {layer.place}{output}{_late(layer)}"


def _late(result: "LayerResult | BaselineResult") -> str:
    return "" if result.converged else f" {_LATE}"


def _row(
    results: "ProbeResults", name: str, result: "LayerResult | BaselineResult", random: "LayerResult | None" = None
) -> Row:
    metric = results.headline
    code = getattr(result, "codelength", None)
    return (
        name,
        "" if result.C is None else f"{result.C:g}",
        _number(result.metrics.get("validation", {}).get(metric)),
        _number(result.metrics["test"].get(metric)),
        _interval(results, result),
        _number(getattr(result, "control", None)),
        _number(getattr(result, "selectivity", None)),
        "" if code is None else f"{code['compression']:.2f} ({code['bits']:,.0f} bits)",
        "" if random is None else _number(random.metrics["test"].get(metric)),
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:z.3f}"  # z: no minus before 0.000


def _interval(results: "ProbeResults", result: "LayerResult | BaselineResult") -> str:
    ends = result.intervals.get(results.headline)
    return "" if ends is None else f"[{ends[0]:.3f}, {ends[1]:.3f}]"


def notes(results: "ProbeResults") -> list[str]:
    """What was chosen, and what a reader must know before believing the curve."""
    parts: list[Callable[[ProbeResults], list[str]]]
    parts = [_of_lead, _of_headline, _of_folds, _of_best_set, _of_chance, _of_control, _of_code, _of_audit, _of_fits]
    return [chosen(results), *(line for part in parts for line in part(results))]


def _of_lead(results: "ProbeResults") -> list[str]:
    lead = results.meta.get("lead")
    if lead is None:
        return []
    what = "Best" if results.procedure is None else "Whole procedure"
    within = "" if lead["interval"] is None else ", 95% interval [{:+z.3f}, {:+z.3f}]".format(*lead["interval"])
    return [f"{what} minus the best baseline ({lead['baseline']}): {lead['over']:+z.3f}{within}, paired on test."]


def _of_headline(results: "ProbeResults") -> list[str]:
    if results.meta.get("metric") is not None:
        return [f"As asked, {metric_name(results.headline)} decides."]
    if results.headline != "auroc":
        return []
    return ["The classes are so unequal that guessing the commonest looks good: AUROC decides instead of accuracy."]


def _of_folds(results: "ProbeResults") -> list[str]:
    if results.procedure is None:
        return []
    best = results.best
    how = "" if best.C is None else f", C = {best.C:g}"
    many = len(results.layers) > 1
    return [
        *(["The places' own numbers are a curve, not an estimate for a place picked from it."] if many else []),
        f"The probes kept are fitted on all rows; all inner folds together choose {best.place}{how}.",
        "Intervals take the pooled predictions as independent: they ignore that folds share training rows.",
        "No p-values with folds: the pooled predictions depend on the labels that a permutation would shuffle.",
    ]


def _of_best_set(results: "ProbeResults") -> list[str]:
    lines = []
    good = [layer for layer in results.layers if layer.in_best_set]
    if good and len(results.layers) > 1:
        lines.append(
            f"Cannot be told from the best on test (95%, all places at once): {_spans(good)}"
            + (", which is all." if len(good) == len(results.layers) else ".")
        )
    told = results.meta.get("optimism")
    if told and len(results.layers) > 1:
        value = f"with {told['value']:.3f}, {told['over']:+.3f}"
        same = results.procedure is None and told["layer"] == results.best.place
        how = "the same place" if same else f"{told['layer']} {value} that is optimism"
        lines.append(f"Had test picked the layer: {how}.")
    return lines


def _of_chance(results: "ProbeResults") -> list[str]:
    best, p_max = results.best, results.meta.get("p_max")
    if best.p_value is None or p_max is None:
        return []
    many = f"; the best of all places against the best under chance: p = {p_max:.2g}" if len(results.layers) > 1 else ""
    return [f"Against permuted test labels: p = {best.p_value:.2g} at {best.place}{many}."]


def _of_control(results: "ProbeResults") -> list[str]:
    control = results.meta.get("control")
    if control is None:
        return []
    if not control["draws"]:
        return ["No control task: no texts, half of the examples end alike, or too few types for the classes."]
    kind, draws, metric = control["type"], control["draws"], metric_name(results.headline)
    what = f"each {'text' if kind == 'text' else f'{kind} that is read'} has a random label (mean of {draws})"
    if kind == "text":
        return [f"Control: test {metric} where {what}; above chance only where test texts stand in train."]
    seen = f"{control.get('seen', 1.0):.0%} of the test rows have a {kind} that stands in train"
    if control.get("seen", 1.0) < LEAST_SEEN:
        return [f"Control: test {metric} where {what}. Only {seen}, so it is no measure of memory: no selectivity."]
    line = f"Selectivity: test {metric} less that of a control task, where {what}; {seen}."
    line += f" Near 0, the probe may have learnt {kind}s by heart."
    if results.headline == "r2":
        line += " An R2 below 0 is no skill; where the control has one, there is no selectivity."
    return [line]


def _of_code(results: "ProbeResults") -> list[str]:
    code = results.best.codelength
    if code is None:
        return []
    uniform = f"{code['uniform_bits']:,.0f} bits"
    prior = code["uniform_bits"] / code["prior_bits"]
    line = f"Compression: the training labels' {uniform} over those of their online code; the class frequencies alone"
    line += f" give {prior:.2f}, and no more than that means that nothing was learnt."
    mixed = (results.meta.get("code") or {}).get("C") or [None]
    return [line if mixed == [None] else f"{line} The code mixes C = {', '.join(f'{C:g}' for C in mixed)} of the grid."]


def _of_audit(results: "ProbeResults") -> list[str]:
    lines = [f"Audit: {line}." for line in (results.meta.get("audit") or {}).get("lines", [])]
    if results.meta.get("no_texts") and results.baselines:
        lines.append("No bag-of-words baseline: the activations were imported without texts.")
    return lines


def _of_fits(results: "ProbeResults") -> list[str]:
    lines = []
    if late := _unconverged(results):
        lines.append(f"Not converged: {', '.join(late)}; more regularisation (a smaller C) helps.")
    if edge := [layer for layer in results.layers if len(layer.tried) > 1 and layer.tried[-1][0] == layer.C]:
        lines.append(f"The largest C was chosen at {_spans(edge)}; a grid that goes on (C=...) may do better there.")
    if blind := [layer for layer in results.layers if not np.any(getattr(layer.probe, "coef_", 1))]:
        lines.append(
            f"No feature has any weight at {_spans(blind)}: the rows are alike, or do not differ with the label."
        )
    return lines


def _spans(layers: "Sequence[LayerResult]") -> str:
    return spans_of((layer.point, layer.layer) for layer in layers)


def _unconverged(results: "ProbeResults") -> list[str]:
    late = [
        layer.place + (f" ({' and '.join(layer.late)})" if layer.late and layer.late != ["probe"] else "")
        for layer in results.layers
        if not layer.converged
    ]
    late += [f"{layer.place} of random weights" for layer in results.random_init if not layer.converged]
    return late + [baseline.name for baseline in results.baselines if not baseline.converged]
