"""Causal results as text for a terminal and as HTML for a notebook: the verdict with its sizes, and a table by layer.

Names come from data, so both forms escape them.
"""

from collections.abc import Callable, Sequence

from probekit.causal.data import CausalData, CausalLayer, Effect, PatchGrid
from probekit.causal.results.checklist import answered, base_text, base_warning, reviewer_checklist
from probekit.causal.results.view import (
    CEILINGS,
    CONTROL,
    COVARIANCE,
    FULL,
    LEAST_ASSOCIATION,
    LEAST_EFFECT,
    LEAST_FLIPS,
    LEVEL,
    RANDOM,
    SHUFFLED,
    curve_effects,
    direction_name,
    directions_of,
    doubt_of_effect,
    effect_shows_use,
    is_absent,
    is_large,
    is_used,
    largest_placebo,
    methods_of,
    probe_effects,
    selected_place,
    selected_scale,
)
from probekit.evaluation.results.wording import metric_name, number_text, position_name
from probekit.evaluation.scores.bootstrap import groups_note
from probekit.tables import TableReport, html_page, html_table, text_table, without_empty_columns
from probekit.text import counted, listed, printable

SELECTED, USED, EDGE = "*", "+", "^"
MARKS = {
    SELECTED: "selected on validation",
    USED: f"used: {LEAST_EFFECT:g} or {LEAST_FLIPS:.0%} of answers flip; above placebos; full vector too; "
    f"corrected p <= {LEVEL:g} (why not: report)",
    EDGE: "the largest scale; a larger one may do more (--scale)",
}
MOST_CELLS = 3  # of a patching grid, in one line
MOST_SENTENCES = 5  # of a summary; warnings are never left out
MOST_ANSWERS = 4  # in one line
QUADRANTS = ("read and used", "read, not shown to be used", "used, not read", "neither")


def causal_summary(data: CausalData) -> str:
    """Title, at most five sentences, and the table; the rest is in the record and on the page."""
    rows = _rows(data)
    lines = [causal_title(data), *_sentences(data)]
    lines += ["", *text_table(rows).split("\n"), *_marks(data)] if len(rows) > 1 else []
    return "\n".join(map(printable, lines))


def causal_html(data: CausalData) -> str:
    """The same as HTML; the selected layer is bold."""
    chosen = _selected(data)
    rows = _rows(data)
    bold = [i for i, layer in enumerate(data.layers) if layer.place == chosen]
    table = html_table(rows, bold=bold) if len(rows) > 1 else ""
    return html_page(causal_title(data), table, [*_sentences(data), *_marks(data)])


def _sentences(data: CausalData) -> list[str]:
    """The verdict, its sizes and the warnings; then patching, the behaviour without edits, and what is open."""
    first = [*_verdict(data), *_sizes(data), *_warnings(data)]
    rest, last = [*_largest_cells(data), *_base(data)], _open(data)
    return [*first, *rest[: max(0, MOST_SENTENCES - len(first) - len(last))], *last]


def causal_report(data: CausalData) -> TableReport:
    """The parts of the page: those of `causal_summary`, with every note."""
    bold = [i for i, layer in enumerate(data.layers) if layer.place == _selected(data)]
    lines = [*_verdict(data), *_sizes(data), *_warnings(data), *_setting(data)]
    notes = [*_marks(data), *_notes(data)]
    return TableReport(causal_title(data), lines, _rows(data), notes, bold)


def causal_conclusion(data: CausalData) -> list[str]:
    """The verdict, then what changes a reader's conclusion."""
    return [*_verdict(data), *_warnings(data)]


def causal_title(data: CausalData) -> str:
    """Label, model, task, point and position in one line."""
    meta = data.meta
    what = f"{meta['label']} in " if meta.get("label") else ""
    task = f" on {meta['task']}" if meta.get("task") else ""
    point = ", ".join(dict.fromkeys(layer.point for layer in data.layers[:1])) or listed([g.point for g in data.grids])
    where = ", ".join(part for part in (meta.get("point", point), _position(data)) if part)
    return printable(f"Is it used? {what}{meta['model']}{task}: {where}")


def short_causal(data: CausalData) -> str:
    """One line for a prompt: how many layers, and the selected one with its effect."""
    parts = [counted(len(data.layers), "layer")] if data.layers else []
    methods = methods_of(data)
    if methods and (effect := curve_effects(data, methods[0]).get(_selected(data) or "")):
        parts.append(f"{effect.method} at {effect.place}: effect {effect.effect:.2f}")
    parts += [counted(len(data.grids), "patching grid")] if data.grids else []
    return "; ".join(parts) or "empty"


def quadrant_counts(data: CausalData) -> dict[str, list[CausalLayer]]:
    """Quadrant -> its layers, in the order of `QUADRANTS`; quadrants without a layer are left out."""
    found = {name: [layer for layer in data.layers if layer.quadrant == name] for name in QUADRANTS}
    return {name: layers for name, layers in found.items() if layers}


def has_other_answers(data: CausalData) -> bool:
    """Whether another label set than that of the probes decides the answers."""
    return data.meta.get("answers_label") not in (None, data.meta.get("label"))


def _position(data: CausalData) -> str:
    return position_name(data.meta["position"]) if "position" in data.meta else ""


def _setting(data: CausalData) -> list[str]:
    """Answers and rows, then the behaviour without edits."""
    answers, n = _answers(data), ", ".join(f"{count:,} {split}" for split, count in data.meta.get("n", {}).items())
    lines = ["; ".join(part for part in (f"answers {answers}" if answers else "", f"{n} rows" if n else "") if part)]
    base = base_text(data)
    return [line for line in (*lines, f"Without edits: {base}" if base else "") if line]


def _answers(data: CausalData) -> str:
    meta = data.meta
    pairs = [f"{label} -> {token!a}" for label, token in (meta.get("answers") or {}).items()]
    more = f", and {len(pairs) - MOST_ANSWERS} more" if len(pairs) > MOST_ANSWERS else ""
    answers = ", ".join(pairs[:MOST_ANSWERS]) + more
    return f"by {meta['answers_label']}: {answers}" if has_other_answers(data) else answers


def _base(data: CausalData) -> list[str]:
    """The behaviour without edits, of which answers."""
    base, answers = base_text(data), _answers(data)
    lines = [f"Without edits: {base}"] if base else []
    return ["; ".join([*lines, f"answers {answers}"])] if answers else lines


def _open(data: CausalData) -> list[str]:
    """How many of the reviewer's questions are answered, and where the rest is."""
    items = data.checklist or reviewer_checklist(data)
    left = [item.question for item in items if not item.is_answered]
    more = f"; open: {' '.join(left[:2])}{f' and {len(left) - 2} more' if len(left) > 2 else ''}" if left else ""
    where = "everything else is in causal.json and in probekit report"
    return [f"Reviewer's checklist: {answered(items)} answered{more}; {where}."] if items else []


def _verdict(data: CausalData) -> list[str]:
    """The quadrants."""
    found = [f"{name}: {listed(place_ranges(of))}" for name, of in quadrant_counts(data).items()]
    return ["; ".join(found)] if found else []


def _sizes(data: CausalData) -> list[str]:
    """How large the headline is where validation chose it: beside the full exchange, in answers, beside placebos."""
    for method in methods_of(data)[:1]:
        place = selected_place(data, method) or ""
        if effect := curve_effects(data, method).get(place):
            start = f"{method_name(data, method)} along {direction_name(effect.direction)} at {place}"
            parts = [_flips(data, effect)]
            if (full := curve_effects(data, method, "full vector").get(place)) is not None:
                share = (
                    f"{effect.effect / full.effect:.0%} of "
                    if full.effect >= LEAST_EFFECT and effect.effect > 0
                    else ""
                )
                parts.insert(0, f"{share}the full vector's {full.effect:z.2f}")
            own = probe_effects(data).get(place) if method == "interchange" else None
            if own is not None and effect.direction != "probe":
                parts.insert(0, f"the probe's own direction {own.effect:z.2f}")
            if (placebo := largest_placebo(effect)) is not None:
                parts.append(f"largest placebo {placebo:.2f}")
            doubt = doubt_of_effect(effect)
            parts += [f"not shown to be used, as {doubt}"] if doubt else []
            return [
                f"{start}: effect {effect.effect:z.2f} {_ends(effect.interval)}".rstrip() + f"; {'; '.join(parts)}."
            ]
    return []


def _warnings(data: CausalData) -> list[str]:
    """What changes the reader's conclusion."""
    lines = [f"! {warning}." for warning in [base_warning(data)] if warning]
    lines += [f"! {line}" for line in _no_share(data)]
    lines += _association(data)
    if left_out := data.meta.get("left_out"):
        rows = listed([f"{count:,} {split}" for split, count in left_out.items()])
        lines.append(f"! Left out, as no text of another class has another answer: {rows} rows.")
    if quadrant_counts(data) and (places := _without_power(data)):
        full = curve_effects(data, methods_of(data)[0], "full vector")
        why = " or ".join(dict.fromkeys(doubt_of_effect(full[layer.place]) for layer in places))
        lines.append(
            f"! At {listed(place_ranges(places))} even the full vector's exchange does not count as use ({why}), so no "
            "other edit could."
        )
    lines += _not_decided(data)
    if places := data.meta.get("no_direction"):
        lines.append(f"! No direction at {listed(list(places))}: the classes have equal mean activations there.")
    lines += [few] if (few := groups_note(data.meta.get("test_groups"))) else []
    lines += _not_the_probes(data)
    if places := [layer for layer in data.layers if layer.used_by == ["das"]]:
        lines.append(f"Used along the learned direction (DAS) alone: {listed(place_ranges(places))}.")
    if places := [layer for layer in data.layers if layer.used_by == [FULL]]:
        lines.append(f"Used, but along no single direction that was found: {listed(place_ranges(places))}.")
    return lines


def _not_decided(data: CausalData) -> list[str]:
    """The layers that are not read, where too little is known to say that the label is not there."""
    chance = (data.meta.get("baseline") or {}).get("value")
    unread = [layer for layer in data.layers if not layer.is_read and layer.interval is not None]
    if chance is None or not (places := [layer for layer in unread if not is_absent(layer.interval, chance)]):
        return []
    best = max(places, key=lambda layer: layer.score)
    found = f"{best.score:.2f} {_ends(best.interval)} at {best.place} holds chance and far more"
    where = listed(place_ranges(places))
    return [f"! Whether it is read at {where} is not decided: {found}; add test texts, or groups of them."]


def _flips(data: CausalData, effect: Effect) -> str:
    what = "numbers come nearer to those of the counterpart" if "behaviour" in data.meta else "answers flip"
    return f"{effect.flip_rate:.0%} of {what}"


def _association(data: CausalData) -> list[str]:
    """That a direction of the label is partly one of the label that decides the answers."""
    size = data.meta.get("association")  # which older results lack
    if size is None or size < LEAST_ASSOCIATION:
        return []
    names = f"{data.meta['label']} and {data.meta['answers_label']}"
    return [
        f"! {names} are associated in train (Cramer's V {size:.2f}): a direction of one is partly one of the other."
    ]


_GAP = "the gap between texts and their counterparts"
_WHOLES = {"interchange": _GAP, "erase": "the preference for the own answer", "steer": "the gap between the classes"}
_WHOLES_OF_NUMBERS = {"interchange": _GAP, "erase": f"half of {_GAP}", "steer": _GAP}


def _no_share(data: CausalData) -> list[str]:
    """The methods whose effects would be shares of nothing."""
    wholes = _WHOLES_OF_NUMBERS if "behaviour" in data.meta else _WHOLES
    return [
        f"No effects of {method}: they would be shares of {wholes.get(method, _GAP)}, {found['gap']:z.2f} "
        f"{_ends(found['interval'])}".rstrip()
        + f" on {found['split']}, which does not differ from 0."
        for method, found in (data.meta.get("no_share") or {}).items()
    ]


def _not_the_probes(data: CausalData) -> list[str]:
    """That interchange is of another direction than the probe's, where the probe's own shows no use."""
    own = probe_effects(data)
    used = [layer for layer in data.layers if layer.is_used.get("interchange") and layer.place in own]
    without = [layer for layer in used if not effect_shows_use(own[layer.place])]
    if not without:
        return []
    names = dict.fromkeys(direction_name(layer.directions["interchange"]) for layer in without)
    where = listed(place_ranges(without))
    return [
        f"The probe's own direction is not shown to be used at {where}; the effect there is along {' or '.join(names)}."
    ]


def _without_power(data: CausalData) -> list[CausalLayer]:
    """The layers that are read and not shown to be used where no effect of one direction could have counted."""
    method = next(iter(methods_of(data)), "")
    full = curve_effects(data, method, "full vector")
    found = [layer for layer in data.layers if layer.is_read and not is_used(layer) and layer.place in full]
    return [layer for layer in found if _moves(full[layer.place]) and not effect_shows_use(full[layer.place])]


def _moves(effect: Effect) -> bool:
    """Whether any answer becomes another one: where none does, the model takes the property from other tokens."""
    return effect.flip_rate > 0


def place_ranges(layers: Sequence[CausalLayer]) -> list[str]:
    """Places in few words: "resid_pre.1-3", "resid_post.3"."""
    runs: list[list[CausalLayer]] = []
    for layer in layers:
        before = runs[-1][-1] if runs else None
        follows = before is not None and None not in (before.layer, layer.layer)
        if before and follows and (layer.point, layer.layer) == (before.point, (before.layer or 0) + 1):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [run[0].place if len(run) == 1 else f"{run[0].place}-{run[-1].layer}" for run in runs]


def _selected(data: CausalData) -> str | None:
    methods = methods_of(data)
    return selected_place(data, methods[0]) if methods else None


def _rows(data: CausalData) -> list[list[str]]:
    """Header and one row for each layer, without empty columns."""
    methods = methods_of(data)
    score = f"test {metric_name(data.meta['headline'])}" if "headline" in data.meta else "test score"
    curves = {method: curve_effects(data, method) for method in methods}
    header = ["   layer", score]
    for method in methods:
        name = f"{method_name(data, method)}{f' {EDGE}' if _is_at_edge(data, method) else ''}"
        header += [name, "along", "95% interval", "placebos to"][: 4 if method == methods[0] else 1]
    ceilings = {name: curve_effects(data, methods[0], name) for name in ("full vector", "das")} if methods else {}
    own = probe_effects(data)
    header += ["probe's own", "full vector", "DAS", "quadrant"]
    rows = [header]
    for layer in data.layers:
        row = [_layer_name(data, layer), number_text(layer.score)]
        for method in methods:
            row += _effect_cells(curves[method].get(layer.place))[: 4 if method == methods[0] else 1]
        row.append(_marked(own.get(layer.place)))
        tops = [ceilings.get(name, {}).get(layer.place) for name in ("full vector", "das")]
        row += [_value(None if top is None else top.effect) for top in tops]
        rows.append([*row, layer.quadrant])
    return without_empty_columns(rows)


def method_name(data: CausalData, method: str) -> str:
    """A method with the scale of its curve: "steer +4 sd"."""
    scale = selected_scale(data, method)
    return method if scale is None else f"{method} {scale:+g} sd"


def _is_at_edge(data: CausalData, method: str) -> bool:
    """Whether the largest scale of its sign was chosen."""
    scale = selected_scale(data, method)
    scales = [effect.scale for effect in data.effects if effect.method == method and effect.scale is not None]
    return scale is not None and abs(scale) == max(abs(each) for each in scales if each * scale > 0)


def _layer_name(data: CausalData, layer: CausalLayer) -> str:
    mark = SELECTED if layer.place == _selected(data) else " "
    output = " (output)" if layer.point != data.meta.get("point", layer.point) else ""
    return f"{mark}  {layer.place}{output}"


_SHORT = {"mean-difference": "mean-diff"}  # in a column


def _effect_cells(effect: Effect | None) -> list[str]:
    if effect is None:
        return ["", "", "", ""]
    return [
        _marked(effect),
        _SHORT.get(effect.direction, direction_name(effect.direction)),
        _ends(effect.interval),
        _value(largest_placebo(effect)),
    ]


def _marked(effect: Effect | None) -> str:
    return "" if effect is None else f"{effect.effect:z.2f}{USED if effect_shows_use(effect) else ' '}"


def _ends(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"[{ends[0]:z.2f}, {ends[1]:z.2f}]"


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:z.2f}"


def _marks(data: CausalData) -> list[str]:
    curves = [curve_effects(data, method) for method in methods_of(data)]
    shown_effects = [effect for curve in [*curves, probe_effects(data)] for effect in curve.values()]
    occurs = {
        SELECTED: any(layer.place == _selected(data) for layer in data.layers),
        USED: any(is_large(effect.effect, effect.flip_rate) for effect in shown_effects),  # with the mark or without
        EDGE: any(_is_at_edge(data, method) for method in methods_of(data)),
    }
    shown = [f"{mark} {MARKS[mark]}" for mark in MARKS if occurs[mark]]
    return [f"Marks: {'; '.join(shown)}"] if shown else []


def _notes(data: CausalData) -> list[str]:
    """What effects are shares of, the selected layers, other directions, and the largest cells of patching grids."""
    parts: list[Callable[[CausalData], list[str]]] = [_meaning, _selected_note, _compared, _patching]
    return [line for part in parts for line in part(data)]


_MEANINGS = {
    "interchange": "of the way to the counterpart's answer",
    "erase": "of the preference for the own answer that is lost",
    "steer": "of the gap between the two classes",
}
_MEANINGS_OF_NUMBERS = {
    "interchange": "of the way to the counterpart's number",
    "erase": "of half of that way",
    "steer": "of that way",
}


def _meaning(data: CausalData) -> list[str]:
    meanings = _MEANINGS_OF_NUMBERS if "behaviour" in data.meta else _MEANINGS
    found = [f"{method}: share {meanings[method]}" for method in methods_of(data)]
    own = ["probe's own: interchange along the probe's direction"] if probe_effects(data) else []
    return [f"Effects, not clipped: {'; '.join(found + own)}."] if found else []


def _selected_note(data: CausalData) -> list[str]:
    lines = []
    for method in methods_of(data):
        effect = curve_effects(data, method).get(selected_place(data, method) or "")
        if effect is not None:
            p = "" if effect.p_adjusted is None else f", corrected p = {effect.p_adjusted:.2g}"
            doubt = doubt_of_effect(effect)
            kl = "" if effect.kl is None else f", KL {effect.kl:.2f} nats"
            lines.append(
                f"{method_name(data, method)} ({direction_name(effect.direction)}) at {effect.place}, chosen on "
                f"validation{_passed_over(data, method)}: effect {effect.effect:z.2f} "
                f"{_ends(effect.interval)}{p}; {_flips(data, effect)}{kl}, "
                f"size of the edit {effect.size:.0%} of the activation's norm"
                f"{f'; not shown to be used, as {doubt}' if doubt else ''}."
            )
    return lines


def _passed_over(data: CausalData, method: str) -> str:
    place = (data.meta.get("selected", {}).get(method) or {}).get("passed_over")
    return "" if place is None else f" (not {place}, the output)"


def _compared(data: CausalData) -> list[str]:
    """What the label's other directions and the other label sets do at the selected place."""
    lines = []
    for method in methods_of(data):
        names = dict.fromkeys(effect.direction for effect in data.effects if effect.method == method)
        place = selected_place(data, method) or ""
        hidden = (directions_of(data, method).get(place), *CEILINGS, CONTROL, RANDOM, COVARIANCE, SHUFFLED)
        shown = [name for name in names if name not in hidden]
        effects = {name: curve_effects(data, method, name).get(place) for name in shown}
        found = [f"{direction_name(name)} {effect.effect:z.2f}" for name, effect in effects.items() if effect]
        start = f"{method_name(data, method)} at {place} along other directions"
        lines += [f"{start}: {', '.join(found)}."] if found else []
    return lines


def _patching(data: CausalData) -> list[str]:
    return [f"Patching {grid.point}, largest recovery: {_largest(grid)}." for grid in data.grids if grid.recovery.size]


def _largest_cells(data: CausalData) -> list[str]:
    """The largest recovery of each grid, in one line."""
    found = [f"{grid.point} {_largest(grid, 1)}" for grid in data.grids if grid.recovery.size]
    return [f"Patching, largest recovery: {', '.join(found)}."] if found else []


def _largest(grid: PatchGrid, most: int = MOST_CELLS) -> str:
    columns = len(grid.columns)
    order = [int(i) for i in (-grid.recovery).ravel().argsort()[:most]]
    unit = "head" if grid.by == "head" else "token"
    return ", ".join(
        f"{grid.recovery.ravel()[i]:.2f} (layer {grid.layers[i // columns]}, {unit} {grid.columns[i % columns]!a})"
        for i in order
    )
