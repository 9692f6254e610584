"""A curve as text for a terminal and as HTML for a notebook: a table, its marks, and its notes by rank.

Notes of the first rank are always shown, others up to six lines; the rest is in the report and in results.json. Names
come from data, so both forms escape them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from probekit.evaluation.results.cautions import cautions
from probekit.evaluation.results.coordinates import within_text
from probekit.evaluation.results.data import (
    LEAST_SEEN,
    BaselineResult,
    LayerResult,
    ProbeData,
    is_output,
)
from probekit.evaluation.results.quote import quote_line, quote_of_curve
from probekit.evaluation.results.rows import few_negatives
from probekit.evaluation.results.surface_note import nuisance_note
from probekit.evaluation.results.verdict import of_embedding, verdict
from probekit.evaluation.results.wording import (
    decoding,
    features_name,
    interval_clause,
    interval_text,
    latents_read,
    metric_name,
    number_text,
    point_name,
    position_name,
    quick_note,
    reconstruction_text,
)
from probekit.evaluation.scores.bootstrap import class_note, groups_note, too_few_groups
from probekit.evaluation.scores.permutation import permuted_texts
from probekit.evaluation.scores.roc import ROC_RATES
from probekit.points import Place, spans_of
from probekit.tables import TableReport, html_page, html_table, text_table, without_empty_columns
from probekit.text import counted, listed, printable

MOST_NOTES = 6
GIVE_WAY = ("few negatives", "ROC curve")  # notes on what is missing, and on what the frame has, where room is short
LATENTS_NAMED = 5
# In `benchmarks/claims.py` intervals of nested folds held the score of the procedure 81% of the time with 50 rows, 90%
# to 93% with 200 and 95% with 1,000.
FEW_FOLDED_ROWS = 500
MOST_NAMED = 8  # layers in one footnote
ALWAYS, MOSTLY, AT_LENGTH = 1, 2, 3
"""The ranks of notes: what may change the reader's conclusion, what qualifies it, and what only adds to it."""
SELECTED, TIED, LATE, EDGE = "*", "=", "!", "^"
MARKS = {
    SELECTED: "selected on validation",
    TIED: "statistically tied with the best on test (95%, all layers jointly)",
    LATE: "not converged",
    EDGE: "largest C of the grid: extend it (--C)",
}


@dataclass(frozen=True)
class Note:
    """Something to say of a curve.

    Attributes:
        subject: in a few words.
        rank: `ALWAYS`, `MOSTLY` or `AT_LENGTH`.
        text: a line of it.
    """

    subject: str
    rank: int
    text: str


def summary(data: ProbeData) -> str:
    """The verdict if it is a poor one, title, table, marks and footnotes as text."""
    table = text_table(_rows(data))
    head = [*([poor] if (poor := verdict(data)) else []), title(data), _setting(data), *quick_note(data.meta)]
    lines = [*head, "", *table.split("\n"), *marks(data), "", *footnotes(data)]
    return "\n".join(map(printable, lines))


def summary_html(data: ProbeData) -> str:
    """The same as HTML; the selected layer is bold."""
    best = [i for i, layer in enumerate(data.layers) if _is_selected(data, layer)]
    table = html_table(_rows(data), bold=best)
    heading = f"{verdict(data)} {title(data)}".strip()
    return html_page(heading, table, [_setting(data), *quick_note(data.meta), *marks(data), *footnotes(data)])


def title(data: ProbeData) -> str:
    """Label, model, task, point and position in one line."""
    meta = data.meta
    names = {key: printable(meta[key]) for key in ("label", "model", "task")}
    rows = f", {printable(rows)}" if (rows := within_text(meta)) else ""
    return f"{decoding(names)}: {point_name(meta)}, {position_name(meta['position'])}{rows}"


def short_text(data: ProbeData) -> str:
    """One line for a prompt: how many layers, the selected one, and the score to quote."""
    layers = counted(len(data.layers), "layer")
    quoted = data.quoted
    if quoted is None:
        return f"{layers}; none selected, scored by test {metric_name(data.headline)}"
    what = f"{'best on validation ' if len(data.layers) > 1 else ''}{quoted.place}, test"
    what = "nested cross-validation," if quoted.layer is None else what
    poor = f"; {verdict(data)[0].lower()}{verdict(data)[1:-1]}" if verdict(data) else ""
    return f"{layers}; {what} {metric_name(data.headline)} {quoted.value:.3f}{poor}"


def _setting(data: ProbeData) -> str:
    """Probe, examples, and the metric if it is not the default."""
    n, folds = data.meta["n"], data.meta.get("folds")
    splits = ", ".join(f"{n[split]:,} {split}" for split in n)
    what, texts = "examples", data.meta.get("n_texts")
    if texts:  # each token is a row, and those of one text are not independent
        what = f"tokens of {', '.join(f'{texts[split]:,}' for split in n)} texts"
    examples = f"{n['test']:,} {what} in {folds} nested folds" if folds else f"{splits} {what}"
    examples += f", and {none:,} without a label left out" if (none := data.meta.get("unlabelled")) else ""
    return f"{printable(data.meta['probe'])} probe{_estimator_note(data)}; {examples}{_metric_reason(data)}"


def _estimator_note(data: ProbeData) -> str:
    """In brackets: the state of fits without a certificate; what the results of a class of another package lack."""
    record = data.meta.get("estimator") or {"certified": True, "saved": True}
    if record.get("state"):
        return f" ({record['state']})"
    lacks = ["no convergence certificate"] * (not record["certified"]) + ["fitted probes are not saved"]
    return "" if record["saved"] else f" ({', '.join(lacks)})"


def _metric_reason(data: ProbeData) -> str:
    name = metric_name(data.headline)
    if data.meta.get("metric") is not None:
        return f"; scored by {name}, as requested"
    if data.headline == "auroc":
        return f"; scored by {name}, because one class has more than 80% of the training labels"
    return ""


def _rows(data: ProbeData) -> list[list[str]]:
    """Header and rows, without empty columns."""
    header = ["   layer", "C", "validation", f"test {metric_name(data.headline)}", "95% interval"]
    header += ["control", "selectivity", "bits", "compression", "random init"]
    random = {layer.place: layer for layer in data.random_init}
    rows = [_row(data, _layer_name(data, layer), layer, random.get(layer.place)) for layer in data.layers]
    for how, layers in data.pooled.items():
        header.append(features_name(how))
        rows = [
            [*row, number_text(layer.metrics["test"].get(data.headline))]
            for row, layer in zip(rows, layers, strict=True)
        ]
    if data.residual:
        header.append("residualised")
        left = {layer.place: layer.metrics["test"].get(data.headline) for layer in data.residual}
        rows = [[*row, number_text(left.get(layer.place))] for row, layer in zip(rows, data.layers, strict=True)]
    rows += [_row(data, f"   {baseline.name}{_late(baseline)}", baseline) for baseline in data.baselines]
    return without_empty_columns([header, *([*row, *[""] * (len(header) - len(row))] for row in rows)])


def _row(
    data: ProbeData, name: str, result: LayerResult | BaselineResult, random: LayerResult | None = None
) -> list[str]:
    metric = data.headline
    code = getattr(result, "codelength", None) or {}
    return [
        name,
        "" if result.C is None else f"{result.C:g}",
        number_text(result.metrics.get("validation", {}).get(metric)),
        number_text(result.metrics["test"].get(metric)),
        interval_text(result.intervals.get(metric)),
        number_text(getattr(result, "control", None)),
        number_text(getattr(result, "selectivity", None)),
        f"{code['bits']:,.0f}" if code else "",
        f"{code['compression']:.2f}" if code else "",
        "" if random is None else number_text(random.metrics["test"].get(metric)),
    ]


def _layer_name(data: ProbeData, layer: LayerResult) -> str:
    before = (SELECTED if _is_selected(data, layer) else " ") + (TIED if layer.in_best_set else " ")
    output = " (output)" if is_output(data, layer) else ""
    return f"{before} {layer.place}{output}{_late(layer)}{f' {EDGE}' if layer.is_at_edge else ''}"


def _is_selected(data: ProbeData, layer: LayerResult) -> bool:
    return data.quoted is not None and layer is data.quoted.layer


def _late(result: LayerResult | BaselineResult) -> str:
    return "" if result.converged else f" {LATE}"


def marks(data: ProbeData) -> list[str]:
    """The marks that the table has, in one line; no line if it has none."""
    results = [*data.layers, *data.baselines]
    occurs = {
        SELECTED: any(_is_selected(data, layer) for layer in data.layers),
        TIED: any(layer.in_best_set for layer in data.layers),
        LATE: not all(result.converged for result in results),
        EDGE: any(layer.is_at_edge for layer in data.layers),
    }
    shown = [f"{mark} {MARKS[mark]}" for mark in MARKS if occurs[mark]]
    return [f"Marks: {'; '.join(shown)}"] if shown else []


def footnotes(data: ProbeData) -> list[str]:
    """The notes, the most important first: all of rank `ALWAYS`, others while there are at most `MOST_NOTES` lines.

    A last line names those that are left out.
    """
    notes = every_note(data)
    if len(notes) > MOST_NOTES:
        notes = [note for note in notes if note.subject not in GIVE_WAY]
    n = len(notes) if len(notes) <= MOST_NOTES else max(MOST_NOTES - 1, sum(note.rank == ALWAYS for note in notes))
    rest = ", ".join(note.subject for note in notes[n:])
    more = [f"More in the report and results.json: {rest}."] if rest else []
    return [*(note.text for note in notes[:n]), *more]


def every_note(data: ProbeData) -> list[Note]:
    """What there is to say of a curve, by rank; within a rank in this order."""
    parts: list[tuple[str, int, Callable[[ProbeData], str]]] = [
        ("quote", ALWAYS, _quote_note),
        ("nuisance", ALWAYS, nuisance_note),
        ("baselines", ALWAYS, _lead_note),
        ("other features", ALWAYS, pooled_note),
        ("autoencoder", ALWAYS, reconstruction_note),
        ("best latents", ALWAYS, latents_note),
        ("black boxes", ALWAYS, _black_box_note),
        ("ensemble", ALWAYS, _ensemble_note),
        ("groups", ALWAYS, _groups_note),
        ("rarest class", ALWAYS, rarest_note),
        ("k", MOSTLY, few_features_note),
        ("convergence", MOSTLY, _convergence_note),
        ("audit", MOSTLY, _audit_note),
        ("texts", MOSTLY, _texts_note),
        ("weights", MOSTLY, _weights_note),
        ("folds", MOSTLY, _folds_note),
        ("control task", MOSTLY, _control_note),
        ("permutation test", MOSTLY, _chance_note),
        ("true-positive rate", MOSTLY, _rates_note),
        ("selection on test", AT_LENGTH, _test_selection_note),
        ("compression", AT_LENGTH, _code_note),
        ("few negatives", AT_LENGTH, _few_negatives_note),
        ("ROC curve", AT_LENGTH, _roc_note),
    ]
    notes = [Note(subject, rank, text) for subject, rank, part in parts if (text := part(data))]
    return sorted(notes, key=lambda note: note.rank)


def curve_report(data: ProbeData) -> TableReport:
    """The parts of `summary`, with every note."""
    best = [i for i, layer in enumerate(data.layers) if _is_selected(data, layer)]
    lines = [_setting(data), *quick_note(data.meta)]
    return TableReport(title(data), lines, _rows(data), [*marks(data), *(note.text for note in every_note(data))], best)


def _quote_note(data: ProbeData) -> str:
    """The score to quote, what selected it, and what speaks against it."""
    against = "; ".join(cautions(data))
    return f"{quote_line(quote_of_curve(data))}{f' Caution: {against}.' if against else ''}"


def _lead_note(data: ProbeData) -> str:
    lead = data.meta.get("lead")
    if lead is None:
        return ""
    what = "Best" if data.procedure is None else "Nested cross-validation"
    within = "" if lead["interval"] is None else f"{interval_clause(lead['interval'])}, paired on test"
    rivals = "best of these baselines" if data.meta.get("left_out") else "best baseline"
    line = f"{what} minus the {rivals} ({lead['baseline']}): {lead['over']:+z.3f}{within}."
    return f"{line} {itself[:1].upper()}{itself[1:]}." if (itself := of_embedding(data)) else line


def _rates_note(data: ProbeData) -> str:
    return "" if data.quoted is None or data.quoted.layer is None else rates_note(data.quoted.layer)


def rates_note(layer: LayerResult) -> str:
    """What a threshold for few false positives finds on test, at one layer; empty without such a threshold."""
    rates = layer.rates
    if rates is None or "tpr" not in rates or "test_fpr" not in rates:
        return ""
    tpr, fpr = (
        f"{rates[name]:.3f} {interval_text([rates[f'{name}_low'], rates[f'{name}_high']])}"
        for name in ("tpr", "test_fpr")
    )
    return f"Threshold for {rates['fpr']:.0%} false positives, chosen on validation: test TPR {tpr}, FPR {fpr}."


def _few_negatives_note(data: ProbeData) -> str:
    """Why there is no true-positive rate."""
    rates = None if data.quoted is None or data.quoted.layer is None else data.quoted.layer.rates
    if rates is None or "threshold" in rates:
        return ""
    rows = counted(int(rates["negatives"]), "validation row")
    return f"No TPR at {rates['fpr']:.0%} FPR: with {rows} of the first class, the lowest FPR is {rates['least']:.1%}."


def _roc_note(data: ProbeData) -> str:
    """The true-positive rates on the ROC curve of test, with intervals; `<NA>` where the negatives are too few."""
    layer = None if data.quoted is None else data.quoted.layer
    of_layer = ({}, {}) if layer is None else (layer.metrics["test"], layer.intervals)
    values, ends = (data.procedure["metrics"], data.procedure["intervals"]) if data.procedure else of_layer
    few, parts, why = few_negatives(data), [], ""
    for name, rate in ROC_RATES.items():
        if name in values:
            parts.append(f"{values[name]:.3f} {interval_text(ends.get(name))}".rstrip() + f" at {100 * rate:g}% FPR")
        elif name in few and values:
            parts.append(f"<NA> at {100 * rate:g}% FPR")
            why += f" {100 * rate:g}% {few[name]}."
    return f"TPR on the ROC curve of test: {', '.join(parts)}.{why}" if parts else ""


def pooled_note(data: ProbeData) -> str:
    """How far the probe is ahead of probes of other features of the same rows."""
    parts, latents = [], latents_read(data.meta)
    for how, each in (data.meta.get("pooled") or {}).items():
        place = each["place"] and latents.get(each["place"], {}).get("of", each["place"])
        at = "" if place is None else f" at {place}"
        other = "probe of the activations" if how == "activations" else f"{how}-token probe"
        within = interval_clause(each["interval"])
        parts.append(f"{each['over']:+z.3f} over the {other}{at} ({each['value']:.3f}){within}")
    return f"Same rows, paired on test: {'; '.join(parts)}." if parts else ""


def reconstruction_note(data: ProbeData) -> str:
    """What the autoencoders keep of the activations: of the selected place, or of the first."""
    latents, quoted = latents_read(data.meta), data.quoted
    place = data.layers[0].place if quoted is None or quoted.layer is None else quoted.layer.place
    text = reconstruction_text(latents.get(place, {}))
    return f"The autoencoder of {latents[place]['of']} {text}." if text else ""


def latents_note(data: ProbeData) -> str:
    """The latents that say most, and how well each does alone."""
    best = data.meta.get("best_latents") or {"latents": []}
    each = [f"{one['latent']} ({number_text(one['score'])})" for one in best["latents"][:LATENTS_NAMED]]
    ranked = f"Best latents of {best.get('place')} by the difference of class means on train"
    return f"{ranked}, each alone on test: {', '.join(each)}." if each else ""


def few_features_note(data: ProbeData) -> str:
    """That fewer features vary than a k-sparse probe may use."""
    k = ((data.meta.get("estimator") or {}).get("parameters") or {}).get("k")
    layer = None if data.quoted is None else data.quoted.layer
    used = None if layer is None else getattr(layer.probe, "neurons_", None)
    if layer is None or used is None or not isinstance(k, int) or k <= len(used):
        return ""
    return f"k = {k}, and {counted(len(used), 'feature')} of {layer.place} vary on train: the probe uses these."


def _black_box_note(data: ProbeData) -> str:
    """How far the quoted score is ahead of each black box, and what that costs."""
    parts = []
    for name, each in (data.meta.get("black_boxes") or {}).items():
        cost = "" if each["tokens"] is None else f", {each['tokens']:,.1f} tokens a row"
        over = "" if each["over"] is None else f"{each['over']:+z.3f} over "
        parts.append(f"{over}{name}{interval_clause(each['interval'])}{cost}")
    text = f"Black boxes, same rows, paired on test: {'; '.join(parts)}." if parts else ""
    return f"{text} Caution: {'; '.join(found)}." if (found := _reversed_boxes(data)) else text


def _reversed_boxes(data: ProbeData) -> list[str]:
    """Of each black box that ranks the rows that calibrate it in reverse, that it counts for nothing."""
    second = "".join(map(printable, (data.meta.get("classes") or [])[1:2]))
    return [
        f"{name} ranks the rows that calibrate it in reverse (AUROC {each['reversed']:.3f}), and its slope is 0; if "
        f"low scores mean {second}, give its negative"
        for name, each in (data.meta.get("black_boxes") or {}).items()
        if each.get("reversed") is not None
    ]


def _ensemble_note(data: ProbeData) -> str:
    """Which layers the ensemble is of, and how far it is ahead of the quoted score."""
    mixed = data.meta.get("ensemble")
    if mixed is None:
        return ""
    ahead = "" if mixed["over"] is None else f"{mixed['over']:+z.3f} over the quoted score"
    over = f": {ahead}{interval_clause(mixed['interval'])}, paired on test" if ahead else ""
    members = f"{listed(mixed['members'], most=6)}, {len(mixed['members'])} of {mixed['of']}"
    return f"Ensemble of the layers that validation chose ({members}){over}."


def _convergence_note(data: ProbeData) -> str:
    late = [_late_name(layer) for layer in data.layers if not layer.converged]
    late += [f"{layer.place} of random weights" for layer in data.random_init if not layer.converged]
    late += [baseline.name for baseline in data.baselines if not baseline.converged]
    more = f" and {len(late) - MOST_NAMED} more" if len(late) > MOST_NAMED else ""
    return f"Not converged: {', '.join(late[:MOST_NAMED])}{more}; a smaller C helps." if late else ""


def _late_name(layer: LayerResult) -> str:
    """The layer, and which fits are meant if it is not the probe alone: "resid_pre.0 (control)"."""
    return layer.place + (f" ({' and '.join(layer.late)})" if layer.late and layer.late != ["probe"] else "")


def _audit_note(data: ProbeData) -> str:
    audit = data.meta.get("audit") or {}
    findings = audit.get("findings", audit.get("lines", []))  # results of older versions have lines alone
    return f"Audit: {'; '.join(findings)}." if findings else ""


def _groups_note(data: ProbeData) -> str:
    return groups_note(data.meta.get("test_groups"))


def rarest_note(data: ProbeData) -> str:
    """That the quoted interval rests on few units of the rarest class, or that they are too few for one."""
    grouped, rarest = data.meta.get("test_groups"), data.meta.get("test_rarest")
    if data.quoted is None or too_few_groups(grouped):
        return ""
    if rarest is None and data.quoted.interval is not None:  # of results from before units were counted
        rarest = min(data.meta.get("counts", {}).get("test", {}).values(), default=None)
    return class_note(data.headline, rarest, grouped is not None)


def _texts_note(data: ProbeData) -> str:
    if data.meta.get("no_texts") and data.baselines:
        return "No bag-of-words baseline: the activations were imported without texts."
    return ""


def _weights_note(data: ProbeData) -> str:
    zero = [layer for layer in data.layers if not np.any(getattr(layer.probe, "coef_", 1))]
    places = spans_of(Place(layer.point, layer.layer) for layer in zero)
    return f"All weights are 0 at {places}: the rows are identical, or do not vary with the label." if zero else ""


def _folds_note(data: ProbeData) -> str:
    if data.procedure is None:
        return ""
    curve = "Scores per layer are a curve, not estimates for a layer picked from it. " if len(data.layers) > 1 else ""
    few = ""
    if sum(data.meta.get("n", {}).values()) < FEW_FOLDED_ROWS:
        few = ", and with so few rows hold the truth less often than 95%"
    return f"{curve}Intervals ignore that folds share training rows{few}; no p-values."


def _chance_note(data: ProbeData) -> str:
    best, p_max = data.selected, data.meta.get("p_max")
    if p_max is None:
        return ""
    found = [] if best is None or best.p_value is None else [f"p = {best.p_value:.2g} at {best.place}"]
    found += [f"p = {p_max:.2g} for the best of all layers"] * (len(data.layers) > 1)
    weaker = " It does not test R2 > 0; the interval does." if data.headline == "r2" else ""
    how, beyond = permuted_texts(data.meta.get("test_groups"))
    return f"Permutation test of association with test labels{how}: {'; '.join(found)}.{weaker}{beyond}"


def _test_selection_note(data: ProbeData) -> str:
    """The score that selecting the layer on test would have claimed."""
    optimism = data.meta.get("optimism")
    if not optimism or len(data.layers) == 1:
        return ""
    if data.procedure is None and optimism["layer"] == data.best.place:
        return "Selecting the layer on test would have picked the same layer."
    claim = f"{optimism['value']:.3f} ({optimism['over']:+.3f})"
    return f"Selecting the layer on test would have picked {optimism['layer']} and claimed {claim}."


def _control_note(data: ProbeData) -> str:
    control = data.meta.get("control")
    if control is None:
        return ""
    if not control["draws"]:
        return "No control task: no texts, too few types for the classes, or one type in half of the examples."
    kind, draws, seen = control["type"], control["draws"], control.get("seen", 1.0)
    unit = control.get("unit", kind)
    line = f"Control task: a random label for each distinct {unit}, mean of {counted(draws, 'draw')}{_control_C(data)}"
    if kind == "text":
        return f"{line}; above chance only where test texts also occur in train."
    rows = f"{seen:.0%} of the test rows have a {kind} seen in train"
    if seen < LEAST_SEEN:
        return f"{line}; only {rows}, too few for a selectivity."
    ceiling = control.get("ceiling")  # which results of older versions lack
    most = "" if ceiling is None else f"; a probe that memorised all of these would score {number_text(ceiling)} on it"
    known = [layer.selectivity for layer in ([data.selected] if data.selected else data.layers)]
    if any(one is not None and one < 0 for one in known):
        why = "the control task is easier than the label, so the difference says nothing about memory"
        why += f"; see in the baselines what the {kind} alone gives, and check for leaks with --control-type text"
        return f"{line}; {rows}{most}. Selectivity is negative: {why}."
    r2 = "; no selectivity where the control R2 is below 0" if data.headline == "r2" else ""
    return f"{line}; {rows}{most}. Selectivity near 0 suggests memorised {kind}s{r2}."


def _control_C(data: ProbeData) -> str:
    """Whose C the control tasks have, where there were several; results of earlier versions do not say "own"."""
    if len(data.meta.get("C") or []) < 2:
        return ""
    return ", at the label's C" if data.meta["control"].get("C", "own") == "label" else ", each at its own C"


def _code_note(data: ProbeData) -> str:
    code = data.layers[0].codelength  # the uniform code and that of the frequencies are the same for all
    if code is None:
        return ""
    alone = code["uniform_bits"] / code["prior_bits"]
    uniform = f"{code['uniform_bits']:,.0f} bits (uniform code of the training labels)"
    return f"Compression: {uniform} / bits of their online code; class frequencies alone give {alone:.2f}."
