"""Curves of several points and label sets, one line for each, as text for a terminal and HTML for a notebook."""

from collections.abc import Sequence

from probekit.evaluation.results.cautions import cautions
from probekit.evaluation.results.data import NOT_SELECTED, LayerResult, ProbeData
from probekit.evaluation.results.verdict import verdict
from probekit.evaluation.results.wording import interval_text, metric_name, number_text, position_name, quick_note
from probekit.evaluation.scores.bootstrap import groups_note
from probekit.tables import html_page, html_table, text_table, without_empty_columns
from probekit.text import counted, listed, printable


def curves_summary(curves: Sequence[ProbeData]) -> str:
    """Title, table and notes as text."""
    table = text_table(_rows(curves), left=_left(curves)).split("\n")
    return "\n".join(map(printable, [curves_title(curves), "", *table, "", *curves_notes(curves)]))


def curves_html(curves: Sequence[ProbeData]) -> str:
    """The same as HTML."""
    return html_page(
        curves_title(curves),
        html_table(_rows(curves), left=_left(curves)),
        curves_notes(curves),
    )


def _left(curves: Sequence[ProbeData]) -> int:
    """How many columns of names there are."""
    return 4 if has_several_probes(curves) else 3


def curves_title(curves: Sequence[ProbeData]) -> str:
    """How many label sets and points; model, task, position and probe."""
    meta = curves[0].meta
    labels, points = (len({curve.meta[key] for curve in curves}) for key in ("label", "point"))
    what = f"{counted(labels, 'label set')}, {counted(points, 'point')}"
    what += f", {len({curve.meta['probe'] for curve in curves})} probes" if has_several_probes(curves) else ""
    probes = listed(dict.fromkeys(str(curve.meta["probe"]) for curve in curves))
    where = f"{printable(meta['model'])} on {printable(meta['task'])}"
    return f"{what} in {where}: {position_name(meta['position'])}; {printable(probes)} probe"


def has_several_probes(curves: Sequence[ProbeData]) -> bool:
    """Whether several probes have the same label set and point."""
    return len({(curve.meta["label"], curve.meta["point"]) for curve in curves}) < len(curves)


def curves_notes(curves: Sequence[ProbeData]) -> list[str]:
    """What selected the places, the cautions, what did not converge, and what the audits found; each said once."""
    warned = dict.fromkeys(phrase for curve in curves for phrase in cautions(curve))
    most = max(curves, key=lambda curve: len(curve.meta.get("left_out") or []))  # some have less to leave out
    several = has_several_probes(curves)
    notes = [*quick_note(most.meta), _selection_note(curves), *_verdicts(curves, several)]
    notes += [f"Caution: {'; '.join(warned)}."] if warned else []
    notes += dict.fromkeys(few for curve in curves if (few := groups_note(curve.meta.get("test_groups"))))
    late = [
        f"{_name(curve, several)} at {layer.place}" for curve in curves for layer in curve.layers if not layer.converged
    ]
    notes += [f"Not converged: {listed(late)}; a smaller C helps."] if late else []
    found = [line for curve in curves for line in (curve.meta.get("audit") or {}).get("findings", [])]
    lines = dict.fromkeys(found)
    notes += [f"Audit: {listed(lines, most=3, between='; ')}."] if lines else []
    return notes


def _verdicts(curves: Sequence[ProbeData], several: bool) -> list[str]:
    """Which curves have a poor verdict, a line for each."""
    names: dict[str, list[str]] = {}
    for curve in curves:
        if poor := verdict(curve):
            names.setdefault(poor.removesuffix("."), []).append(_name(curve, several))
    return [f"{poor}: {listed(of, between='; ')}." for poor, of in names.items()]


def _selection_note(curves: Sequence[ProbeData]) -> str:
    if any(curve.procedure is not None for curve in curves):
        return "Scores are of nested cross-validation: layer and C are selected inside each fold."
    if all(len(curve.layers) == 1 and len(curve.layers[0].tried) < 2 for curve in curves):
        return "One layer, one setting: nothing was selected."
    if any(curve.selected is None for curve in curves):
        why = f"{NOT_SELECTED[:1].upper()}{NOT_SELECTED[1:]}."
        return f"{why} Lowest and highest are over all layers, on test."
    return "The best place of each curve was selected on validation; test selected nothing."


def _rows(curves: Sequence[ProbeData]) -> list[list[str]]:
    """Header and rows, without empty columns."""
    metrics = {curve.headline for curve in curves}
    score = f"test {metric_name(next(iter(metrics)))}" if len(metrics) == 1 else "test"
    header = ["label", "point", "probe", "best place", "metric", "C", score, "95% interval", "over best baseline"]
    header += ["lowest", "highest"]
    shown = len(metrics) > 1, has_several_probes(curves)
    return without_empty_columns([header, *(_row(curve, *shown) for curve in curves)])


def _row(curve: ProbeData, with_metric: bool, with_probe: bool) -> list[str]:
    metric, quoted, lead = curve.headline, curve.quoted, curve.meta.get("lead")
    best, scores = None if quoted is None else quoted.layer, ["", "", ""]
    if quoted is not None:
        C = "" if best is None or best.C is None else f"{best.C:g}"
        scores = [C, number_text(quoted.value), interval_text(quoted.interval)]
    tests = [layer.metrics["test"][metric] for layer in curve.layers]
    return [
        str(curve.meta["label"]),
        str(curve.meta["point"]),
        str(curve.meta["probe"]) if with_probe else "",
        "" if best is None else _place(best),
        metric_name(metric) if with_metric else "",
        *scores,
        "" if lead is None else f"{lead['over']:+z.3f}",
        *([number_text(min(tests)), number_text(max(tests))] if quoted is None else ["", ""]),
    ]


def _place(layer: LayerResult) -> str:
    return layer.place + ("" if layer.converged else " !")


def _name(curve: ProbeData, with_probe: bool) -> str:
    return ", ".join(str(curve.meta[key]) for key in ("label", "point", *(["probe"] if with_probe else [])))
