"""Results as text for a terminal and as HTML for a notebook. Names come from data, so they are escaped in both."""

import html
from typing import TYPE_CHECKING

from probekit.text import printable

if TYPE_CHECKING:
    from probekit.evaluation.results import BaselineResult, LayerResult, ProbeResults

HEADINGS = ("", "C", "validation", "test", "95% interval", "AUROC")


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
    return {"auroc": "AUROC", "r2": "R2"}.get(metric, metric.replace("_", " "))


def chosen(results: "ProbeResults") -> str:
    """The best place with its test score, and on what it was chosen."""
    best = results.best
    how = "" if best.C is None else f" (C = {best.C:g})"
    test = f"test accuracy {best.metrics['test']['accuracy']:.3f}, 95% interval {_interval(best)}"
    what = ["layer"] * (len(results.layers) > 1) + ["C"] * (len(best.tried) > 1)
    if not what:
        return f"{best.place}{how}: {test}. Nothing was chosen: one place, one setting."
    were = (" and ".join(what).replace("layer", "Layer")) + (" was" if len(what) == 1 else " were")
    return f"Best: {best.place}{how}, {test}. {were} chosen on validation accuracy; test decided nothing."


def summary(results: "ProbeResults") -> str:
    """The table of `ProbeResults.summary`."""
    rows = [HEADINGS, *_rows(results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    n = results.meta["n"]
    counts = f"{printable(results.meta['probe'])} probe; " + ", ".join(f"{n[split]:,} {split}" for split in n)
    notes = _notes(results)
    return "\n".join([title(results), counts, "", *lines, "", *notes])


def html_table(results: "ProbeResults") -> str:
    """The table of `summary` as HTML, everything escaped."""
    left, right = "text-align:left", "text-align:right"
    rows = []
    for row in _rows(results):
        weight = "font-weight:bold" if row[0].startswith("*") else ""
        cells = [f'<td style="{left if i == 0 else right}">{html.escape(cell)}</td>' for i, cell in enumerate(row)]
        rows.append(f'<tr style="{weight}">{"".join(cells)}</tr>')
    head = "".join(f'<th style="{right}">{html.escape(name)}</th>' for name in HEADINGS)
    notes = _notes(results)
    return (
        f"<div><p><b>{html.escape(title(results))}</b></p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>" + "".join(f"<p>{html.escape(note)}</p>" for note in notes) + "</div>"
    )


def _rows(results: "ProbeResults") -> list[tuple[str, ...]]:
    best = results.best
    places = [_row(("* " if layer is best else "  ") + _name(results, layer), layer) for layer in results.layers]
    return [*places, *[_row("  " + baseline.name, baseline) for baseline in results.baselines]]


def _name(results: "ProbeResults", layer: "LayerResult") -> str:
    return f"{layer.place} (output)" if is_output(results, layer) else layer.place


def is_output(results: "ProbeResults", layer: "LayerResult") -> bool:
    """Whether the place is the output of the last block at the end of another point's curve."""
    return layer.point != results.meta["point"]


def _row(name: str, result: "LayerResult | BaselineResult") -> tuple[str, ...]:
    C = "" if result.C is None else f"{result.C:g}"
    validation, test = result.metrics["validation"]["accuracy"], result.metrics["test"]
    mark = "" if result.converged else " !"
    return (name + mark, C, f"{validation:.3f}", f"{test['accuracy']:.3f}", _interval(result), f"{test['auroc']:.3f}")


def _interval(result: "LayerResult | BaselineResult") -> str:
    low, high = result.intervals["accuracy"]
    return f"[{low:.3f}, {high:.3f}]"


def _notes(results: "ProbeResults") -> list[str]:
    """What was chosen, and what a reader must know before believing the curve."""
    notes = [chosen(results)]
    if results.meta.get("no_texts") and results.baselines:
        notes.append("No bag-of-words baseline: the activations were imported without texts.")
    if late := _unconverged(results):
        notes.append(f"Not converged: {', '.join(late)}; more regularisation (a smaller C) helps.")
    if edge := [x.place for x in results.layers if len(x.tried) > 1 and x.tried[-1][0] == x.C]:
        notes.append(f"The largest C was chosen at {', '.join(edge)}; a grid that goes on (C=...) may do better there.")
    return notes


def _unconverged(results: "ProbeResults") -> list[str]:
    late = [layer.place for layer in results.layers if not layer.converged]
    return late + [baseline.name for baseline in results.baselines if not baseline.converged]
