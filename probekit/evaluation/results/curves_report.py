"""Curves of several points and label sets, one line for each, as text for a terminal and HTML for a notebook."""

from collections.abc import Sequence

from probekit.evaluation.results.by_k import chosen_k, curves_by_k
from probekit.evaluation.results.cautions import cautions
from probekit.evaluation.results.coordinates import (
    HasMeta,
    coordinate_titles,
    coordinates,
    curve_keys,
    shown_coordinates,
)
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.quote import quote_line, quote_of_curves
from probekit.evaluation.results.report import (
    few_features_note,
    latents_note,
    pooled_note,
    rarest_note,
    reconstruction_note,
)
from probekit.evaluation.results.verdict import chance_of, of_embedding, verdict
from probekit.evaluation.results.wording import interval_text, metric_name, number_text, position_name, quick_note
from probekit.evaluation.scores.bootstrap import groups_note
from probekit.tables import html_page, html_table, text_table, without_empty_columns
from probekit.text import counted, listed, printable


def curves_summary(curves: Sequence[ProbeData]) -> str:
    """Title, table and notes as text."""
    table = text_table(_rows(curves), left=len(shown_coordinates(curves)) + 1).split("\n")
    return "\n".join(map(printable, [curves_title(curves), "", *table, "", *curves_notes(curves)]))


def curves_html(curves: Sequence[ProbeData]) -> str:
    """The same as HTML."""
    return html_page(
        curves_title(curves),
        html_table(_rows(curves), left=len(shown_coordinates(curves)) + 1),
        curves_notes(curves),
    )


def curves_title(curves: Sequence[ProbeData]) -> str:
    """How many label sets and points; model, task, position and probe."""
    meta = curves[0].meta
    labels, points = (len({curve.meta[key] for curve in curves}) for key in ("label", "point"))
    what = f"{counted(labels, 'label set')}, {counted(points, 'point')}"
    for name, shown in zip(shown_coordinates(curves)[2:], coordinate_titles(curves)[2:], strict=True):
        n = len({coordinates(curve.meta).get(name) for curve in curves})
        what += f", {counted(n, 'value')} of {printable(shown)}" if name == "within" else f", {counted(n, 'probe')}"
    probes = listed(dict.fromkeys(str(curve.meta["probe"]) for curve in curves))
    where = f"{printable(meta['model'])} on {printable(meta['task'])}"
    return f"{what} in {where}: {position_name(meta['position'])}; {printable(probes)} probe"


def curves_notes(curves: Sequence[ProbeData]) -> list[str]:
    """What to quote, the cautions, what did not converge, and what the audits found; each said once."""
    most = max(curves, key=lambda curve: len(curve.meta.get("left_out") or []))  # some have less to leave out
    names = [", ".join(key) for key in curve_keys(curves)]
    notes = [*quick_note(most.meta), quote_line(quote_of_curves(curves)), *k_notes(curves), *_verdicts(curves, names)]
    if any(curve.quoted is None for curve in curves):
        notes.append("Lowest and highest are over all layers, on test.")
    notes += within_notes(curves, "curve")
    notes += told_once("Lead", [[itself] if (itself := of_embedding(curve)) else [] for curve in curves], curves)
    notes += told_once("Caution", [cautions(curve) for curve in curves], curves)
    notes += dict.fromkeys(few for curve in curves if (few := groups_note(curve.meta.get("test_groups"))))
    notes += dict.fromkeys(few for curve in curves if (few := rarest_note(curve)))
    named = list(zip(names, curves, strict=True))
    late = [f"{name} at {layer.place}" for name, curve in named for layer in curve.layers if not layer.converged]
    notes += [f"Not converged: {listed(late)}; a smaller C helps."] if late else []
    findings = [(curve.meta.get("audit") or {}).get("findings", []) for curve in curves]
    return notes + told_once("Audit", findings, curves, most=3)


def k_notes(curves: Sequence[ProbeData]) -> list[str]:
    """How many features validation chooses, and how they do next to other features of the same rows."""
    by_k = curves_by_k(curves)
    k = chosen_k(by_k)
    if k is None:
        return []
    quoted = by_k[k].quoted
    assert quoted is not None
    at = "" if quoted.layer is None else f" at {quoted.layer.place}"
    scored = f"{number_text(quoted.value)} {interval_text(quoted.interval)}".strip()
    first = f"k = {k} is chosen on validation{at}: test {metric_name(by_k[k].headline)} {scored}."
    return [
        first,
        *filter(None, (note(by_k[k]) for note in (pooled_note, few_features_note, latents_note, reconstruction_note))),
    ]


def told_once(
    what: str, said: Sequence[Sequence[str]], curves: Sequence[HasMeta], most: int | None = None
) -> list[str]:
    """A line for the phrases that are said of all curves, then one for each set of curves of which others are said.

    At most `most` phrases of a line are shown. Curves are named by their keys; all those of a label set by its name
    alone.
    """
    phrases: dict[tuple[int, ...], list[str]] = {}
    for phrase in dict.fromkeys(one for own in said for one in own):
        phrases.setdefault(tuple(i for i, own in enumerate(said) if phrase in own), []).append(phrase)
    keys, notes = curve_keys(curves), list[str]()
    labels: dict[str, set[int]] = {}
    for i, key in enumerate(keys):
        labels.setdefault(key[0], set()).add(i)
    for of, own in sorted(phrases.items(), key=lambda each: -len(each[0])):
        whole = {i: label for label, numbers in labels.items() if numbers <= {*of} for i in numbers}
        names = dict.fromkeys(whole.get(i) or ", ".join(keys[i]) for i in of)
        who = "" if len(of) == len(curves) else f" of {listed(names, between='; ')}"
        notes.append(f"{what}{who}: {listed(own, len(own) if most is None else most, between='; ')}.")
    return notes


def _verdicts(curves: Sequence[ProbeData], names: Sequence[str]) -> list[str]:
    """Which curves have a poor verdict, a line for each."""
    found: dict[str, list[str]] = {}
    for curve, name in zip(curves, names, strict=True):
        if poor := verdict(curve):
            found.setdefault(poor.removesuffix("."), []).append(name)
    return [f"{poor}: {listed(of, between='; ')}." for poor, of in found.items()]


def within_notes(curves: Sequence[HasMeta], noun: str) -> list[str]:
    """That curves of other rows cannot be compared like those of the same rows, and the values without a curve."""
    left_out: dict[str, dict[str, dict[str, str]]] = {}
    for curve in curves:
        if within := curve.meta.get("within"):
            labels = left_out.setdefault(within["column"], {})
            labels.setdefault(str(curve.meta["label"]), {}).update(within["left_out"])
    notes = []
    for column, labels in left_out.items():
        note = f"Each {noun} is fitted, chosen and tested on the rows with one value of {column!a:.40} alone; "
        notes.append(f"{note}chance levels and numbers of rows differ.")
        for label, own in labels.items():
            if own:
                told = listed([f"{value!a:.40} ({why})" for value, why in own.items()], most=4)
                notes.append(f"Values of {column!a:.40} without a {noun} of {label!a:.40}: {told}; see --least-texts.")
    return notes


def _rows(curves: Sequence[ProbeData]) -> list[list[str]]:
    """Header and rows, without empty columns."""
    metrics = {curve.headline for curve in curves}
    score = f"test {metric_name(next(iter(metrics)))}" if len(metrics) == 1 else "test"
    header = [*coordinate_titles(curves), "best place", "metric", "C", "test rows", score, "95% interval", "chance"]
    header += ["over best baseline", "lowest", "highest"]
    rows = [[*key, *_row(curve, len(metrics) > 1)] for key, curve in zip(curve_keys(curves), curves, strict=True)]
    return without_empty_columns([header, *rows])


def _row(curve: ProbeData, with_metric: bool) -> list[str]:
    metric, quoted, lead = curve.headline, curve.quoted, curve.meta.get("lead")
    best, scores = None if quoted is None else quoted.layer, ["", "", ""]
    if quoted is not None:
        C = "" if best is None or best.C is None else f"{best.C:g}"
        scores = [C, number_text(quoted.value), interval_text(quoted.interval)]
    of_others = bool(curve.meta.get("within"))  # whose rows and chance level are its own
    tests = [layer.metrics["test"][metric] for layer in curve.layers]
    return [
        "" if best is None else _place(best),
        metric_name(metric) if with_metric else "",
        scores[0],
        f"{curve.meta['n']['test']:,}" if of_others else "",
        *scores[1:],
        number_text(chance_of(curve)) if of_others else "",
        "" if lead is None else f"{lead['over']:+z.3f}",
        *([number_text(min(tests)), number_text(max(tests))] if quoted is None else ["", ""]),
    ]


def _place(layer: LayerResult) -> str:
    return layer.place + ("" if layer.converged else " !")
