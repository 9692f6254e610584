"""Results by position or head as text for a terminal and HTML for a notebook: a line for each, and positions_notes."""

from collections.abc import Iterable

from probekit.evaluation.by_position.data import PositionCurve, PositionData, best_layer, nothing_selected, noun_of
from probekit.evaluation.results.cautions import cautions
from probekit.evaluation.results.coordinates import within_text
from probekit.evaluation.results.quote import inside_folds, quote_line, quoted_score
from probekit.evaluation.results.verdict import chance_level, not_above_chance, standing
from probekit.evaluation.results.wording import decoding, interval_text, metric_name, number_text
from probekit.evaluation.scores.bootstrap import groups_note
from probekit.evaluation.scores.permutation import permuted_texts
from probekit.options.probe import BY_HEAD, FROM_END
from probekit.tables import TableReport, html_page, html_table, text_table, without_empty_columns
from probekit.text import counted, listed, printable

MOST_LINES = 40  # positions in the table; results.csv has all of them
MOST_NAMED = 8  # cells or positions in one footnote
MOST_TOKEN = 20  # characters of a token in the table
SELECTED = "*"


def positions_summary(data: PositionData) -> str:
    """Title, table and positions_notes as text."""
    table = text_table(_rows(data), left=2 if any(one.token for one in data.positions) else 1).split("\n")
    head = [*positions_verdict(data), positions_title(data), setting(data)]
    return "\n".join(map(printable, [*head, "", *table, "", *positions_notes(data)]))


def positions_html(data: PositionData) -> str:
    """The same as HTML; the line with the selected cell is bold."""
    bold = [i for i, one in enumerate(_shown(data)) if _is_selected(data, one)]
    heading = " ".join([*positions_verdict(data), positions_title(data)])
    return html_page(heading, html_table(_rows(data), bold=bold), [setting(data), *positions_notes(data)])


def positions_report(data: PositionData) -> TableReport:
    """The parts of `positions_summary`."""
    bold = [i for i, one in enumerate(_shown(data)) if _is_selected(data, one)]
    left = 2 if any(one.token for one in data.positions) else 1
    lines = [*positions_verdict(data), setting(data)]
    return TableReport(positions_title(data), lines, _rows(data), positions_notes(data), bold, left)


def positions_title(data: PositionData) -> str:
    """Label, model, task and point."""
    meta = data.meta
    names = {key: printable(meta[key]) for key in ("label", "model", "task")}
    rows = f", {printable(rows)}" if (rows := within_text(meta)) else ""
    return f"{decoding(names)}: {printable(meta['point'])} by {noun_of(data)}{rows}"


def positions_verdict(data: PositionData) -> list[str]:
    """The sentence that the best cell is not above chance, if its interval says so."""
    quoted = data.quoted
    if quoted is None:
        return []
    chance = chance_level(data.headline, quoted.chance)
    is_poor = standing(quoted.interval, chance, None, None) == "not above chance"
    return [not_above_chance(data.headline, chance)] if is_poor else []


def axis_name(data: PositionData) -> str:
    """What the positions are, in words."""
    if data.meta["by"] == BY_HEAD:
        return "key-value head" if data.meta["key_value"] else "head"
    kept = data.meta["kept"]
    if len(kept) > 1 or data.positions[0].position in kept:
        return "selection"
    of = "" if kept[0] == "all" else f" of {printable(kept[0])}"
    return f"token{of}, counted from the {'end' if data.meta['by'] == FROM_END else 'start'}"


def setting(data: PositionData) -> str:
    """Probe, size of the grid, and texts."""
    n = {split: max(one.n[split] for one in data.positions) for split in data.positions[0].n}
    texts = ", ".join(f"{count:,} {split}" for split, count in n.items())
    if data.procedure is not None:
        texts = f"{n['test']:,}"
    grid = f"{counted(len(data.positions), noun_of(data))} x {counted(len(data.places), 'layer')}"
    each = f"{texts} examples" if data.meta["by"] == BY_HEAD else f"at most {texts} texts at a position"
    each += "" if data.procedure is None else f" in {data.meta['folds']} nested folds"
    return f"{printable(data.meta['probe'])} probe; {grid}; {each}"


def positions_notes(data: PositionData) -> list[str]:
    """What to quote, the cells above chance, what was left out, and what speaks against the numbers."""
    against = [f"Caution: {'; '.join(found)}."] if (found := cautions(data)) else []
    notes = [
        _quote_note(data),
        _random_note(data),
        *against,
        groups_note(data.meta.get("test_groups")),
        _chance_note(data),
        _few_note(data),
    ]
    notes += [_classes_note(data), _convergence_note(data)]
    found = (data.meta.get("audit") or {}).get("findings", [])
    notes.append(f"Audit: {listed(found, most=3, between='; ')}." if found else "")
    if len(data.positions) > MOST_LINES:
        every = counted(len(data.positions), noun_of(data))
        notes.append(f"The table shows {MOST_LINES} of {every}; results.csv has all of them.")
    return [note for note in notes if note]


def positions_short_text(data: PositionData) -> str:
    """One line for a prompt: the size of the grid, and the best cell."""
    grid = f"{counted(len(data.positions), noun_of(data))} x {counted(len(data.places), 'layer')}"
    if data.procedure is not None:
        return f"{grid}; {quoted_score(data)}"
    if data.selected is None:
        return f"{grid}; none selected, scored by test {metric_name(data.headline)}"
    one, layer = data.selected
    where = f"head {one.position}" if data.meta["by"] == BY_HEAD else one.position
    return f"{grid}; best on validation {where}, {layer.place}; {quoted_score(data)}"


def _rows(data: PositionData) -> list[list[str]]:
    header = [
        f"   {noun_of(data)}",
        "token",
        "test texts",
        "majority" if data.meta["n_classes"] else "mean",
        "best layer",
        "C",
    ]
    header += ["validation", f"test {metric_name(data.headline)}", "95% interval", "random weights", "corrected p"]
    header += ["lowest", "highest"]
    return without_empty_columns([header, *(_row(data, one) for one in _shown(data))])


def _shown(data: PositionData) -> list[PositionCurve]:
    """The positions in the table: the first, with the selected one among them."""
    shown, best = data.positions[:MOST_LINES], data.selected
    return shown if best is None or best[0] in shown else [*shown[:-1], best[0]]


def _row(data: PositionData, one: PositionCurve) -> list[str]:
    metric, best = data.headline, _shown_layer(data, one)
    mark = f" {SELECTED} " if _is_selected(data, one) else "   "
    start = [
        f"{mark}{one.position}",
        "" if one.token is None else repr(one.token)[:MOST_TOKEN],
        f"{one.n['test']:,}",
        number_text(one.chance),
    ]
    if best is None:
        tests = [layer.metrics["test"][metric] for layer in one.layers]
        return [*start, *[""] * 7, number_text(min(tests)), number_text(max(tests))]
    layer, p = one.layers[best], one.corrected[best]
    random = one.random_init[best].metrics["test"].get(metric) if one.random_init else None
    return [
        *start,
        layer.place + ("" if layer.converged else " !"),
        "" if layer.C is None else f"{layer.C:g}",
        number_text(layer.metrics.get("validation", {}).get(metric)),
        number_text(layer.metrics["test"][metric]),
        interval_text(layer.intervals.get(metric)),
        number_text(random),
        "" if p is None else f"{p:.2g}",
        "",
        "",
    ]


def _is_selected(data: PositionData, one: PositionCurve) -> bool:
    """Whether the quoted score is of this position; that of nested folds is of no single one."""
    return data.quoted is not None and data.quoted.column is one


def _shown_layer(data: PositionData, one: PositionCurve) -> int | None:
    """The number of the layer whose scores are shown; None where no rows chose it that were not tested too."""
    return None if data.procedure is not None and len(one.layers) > 1 else best_layer(data, one)


def _of_texts(data: PositionData) -> str:
    """How many texts the score of the procedure is of, where some lack the positions that the folds select."""
    n, of = (data.procedure or {}).get("n"), data.meta["n"]["test"]
    return "" if n in (None, of) else f", and tested on the {n:,} of {of:,} texts that have the selected positions"


def _random_note(data: PositionData) -> str:
    """What random weights score at the selected cell."""
    found = data.meta.get("over_random")
    if found is None:
        return ""
    where = f"{noun_of(data)} {', '.join(found['cell'])}" if "cell" in found else f"{noun_of(data)}s of each fold"
    line = f"Random weights: test {metric_name(data.headline)} {found['value']:.3f} at the {where}, selected for them"
    if found["over"] is None:
        return f"{line}; these texts and those of the quoted score cannot be paired."
    ends = "" if found["interval"] is None else ", 95% interval [{:+z.3f}, {:+z.3f}]".format(*found["interval"])
    return f"{line}; the quoted score is {found['over']:+z.3f} ahead{ends}, paired on {found['n']:,} test texts."


def _quote_note(data: PositionData) -> str:
    noun = noun_of(data)
    if data.procedure is not None:
        where = f"{quoted_score(data)}; {inside_folds(f'{noun}, layer')}{_of_texts(data)}"
        return f"{quote_line(where)} Lowest and highest are over all layers."
    if data.selected is None:
        line = quote_line(f"nothing, as {nothing_selected(data)}")
        return f"{line} Lowest and highest are over all layers, on test."
    one, layer = data.selected
    cells, at = len(data.positions) * len(data.places), f"{quoted_score(data)}, at {noun} {one.position}, {layer.place}"
    if cells == 1:
        return quote_line(f"{at}; one {noun}, one layer: nothing was selected")
    p = "" if layer.p_value is None else f"; permutation test of this cell alone: p = {layer.p_value:.2g}"
    differ = any(each.n != one.n for each in data.positions)
    return (
        f"{quote_line(f'{at} ({SELECTED}){p}')} It has the highest validation score of {counted(cells, 'cell')}; test "
        f"was used once.{' Not all texts have every position, so positions differ in their texts.' if differ else ''}"
    )


def _chance_note(data: PositionData) -> str:
    if data.meta["no_p_values"] is not None:
        return f"No p-values: {data.meta['no_p_values']}."
    flags = [p is not None and p <= data.meta["above_chance"] for one in data.positions for p in one.corrected]
    how, beyond = permuted_texts(data.meta.get("test_groups"))
    return (
        f"{sum(flags):,} of {counted(len(flags), 'cell')} are above chance (permutation test of test labels{how}; "
        f"p <= {data.meta['above_chance']:g} corrected for all cells together).{beyond}"
    )


def _few_note(data: PositionData) -> str:
    few = data.meta["few_texts"]
    if not few:
        return ""
    first, why = next(iter(few.items()))
    part, spans = "split" if data.procedure is None else "fold", listed(_spans(few), most=MOST_NAMED)
    return (
        f"Left out: {counted(len(few), 'position')} with fewer than {data.meta['least_texts']} texts of each class in "
        f"each {part} ({spans}); at {first}, {why}."
    )


def _classes_note(data: PositionData) -> str:
    """The classes that are rare at some position, and the positions that are probed without them."""
    without: dict[str, list[str]] = {}
    for one in data.positions:
        for name in one.left_out:
            without.setdefault(name, []).append(one.position)
    if not without:
        return ""
    each = [f"{name!a} at {listed(_spans(positions), most=MOST_NAMED)}" for name, positions in without.items()]
    return (
        f"Classes with fewer than {data.meta['least_texts']} texts at a position in some split are left out there: "
        f"{listed(each, most=MOST_NAMED, between='; ')}. Compare each position with its own majority class."
    )


def _spans(names: Iterable[str]) -> list[str]:
    """Names of positions; those that follow one another as "12 to 30"."""
    found: list[list[str]] = []
    for name in names:
        follows = found and name.lstrip("-").isdigit() and found[-1][-1].lstrip("-").isdigit()
        if follows and int(name) == int(found[-1][-1]) + 1:
            found[-1].append(name)
        else:
            found.append([name])
    return [each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in found]


def _convergence_note(data: PositionData) -> str:
    late = [f"{one.position} at {each.place}" for one in data.positions for each in one.layers if not each.converged]
    return f"Not converged (!): {listed(late, most=MOST_NAMED)}; a smaller C helps." if late else ""
