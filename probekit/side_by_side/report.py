"""A comparison as text for a terminal and HTML for a notebook: one table, and how its differences were made."""

from collections.abc import Sequence

from probekit.evaluation.results.quote import inside_folds, quote_line, quote_of_each
from probekit.evaluation.results.report import EDGE, LATE, MARKS, SELECTED, TIED
from probekit.evaluation.results.wording import interval_text, metric_name, number_text
from probekit.options.question import words_of
from probekit.options.typed import command_line
from probekit.side_by_side.data import (
    BOOTSTRAP,
    INDEPENDENT,
    MCNEMAR,
    PAIRED,
    UNPAIRED,
    ComparedRun,
    ComparisonData,
    RunDifference,
)
from probekit.side_by_side.describe import heading
from probekit.tables import html_page, html_table, text_table, without_empty_columns
from probekit.text import counted, listed, printable

MOST_NAMED = 4  # runs in one footnote
_FACTS = ("model", "revision", "task", "point", "position", "probe", "seed")
GIVEN = "#"
TESTS = {
    MCNEMAR: "McNemar's exact test",
    BOOTSTRAP: "paired bootstrap, by group where there are groups",
    INDEPENDENT: "independent estimates",
}


def comparison_summary(data: ComparisonData) -> str:
    """Title, table, marks and notes as text."""
    parts = [
        comparison_title(data),
        shared_setting(data),
        "",
        *text_table(_rows(data), left=len(_text_columns(data)) + 1).split("\n"),
        *_marks(data),
        "",
    ]
    if data.groups:
        parts += [*text_table(_group_rows(data)).split("\n"), ""]
    return "\n".join(map(printable, [*parts, *comparison_notes(data)]))


def comparison_html(data: ComparisonData) -> str:
    """The same as HTML."""
    tables = html_table(_rows(data)) + (html_table(_group_rows(data)) if data.groups else "")
    return html_page(comparison_title(data), tables, [shared_setting(data), *_marks(data), *comparison_notes(data)])


def comparison_title(data: ComparisonData) -> str:
    """Label, model and task, as far as the runs share them."""
    return heading([run.facts for run in data.runs], metric_name(data.headline))


def shared_setting(data: ComparisonData) -> str:
    """What all runs have in common."""
    shared = data.meta["shared"]
    parts = [shared[key] for key in ("point", "position") if key in shared]
    parts += [f"{shared['probe']} probe"] if "probe" in shared else []
    tests = {run.n_test for run in data.runs}
    parts += [f"{tests.pop():,} test rows"] if len(tests) == 1 else []
    return printable("; ".join([counted(len(data.runs), "run"), *parts]))


def _rows(data: ComparisonData) -> list[list[str]]:
    """Header and rows."""
    first = _text_columns(data)
    nested = any(run.estimate is not None and run.best is None for run in data.runs)
    score = metric_name(data.headline) if nested else f"test {metric_name(data.headline)}"
    header = [*first, "   best layer", "C", "depth", score, "95% interval"]
    header += [f"minus {'previous' if data.meta['pairs'] == 'previous' else 'first'}", "95% interval", "p", "rows"]
    return without_empty_columns([header, *(_row(data, number, first) for number in range(len(data.runs)))])


def _text_columns(data: ComparisonData) -> list[str]:
    """What identifies a run: its step, or its name and the facts that not all runs share."""
    if data.meta["by"] == "step":
        return ["step"]
    shared = data.meta["shared"]
    facts = [key for key in _FACTS if key not in shared and any(key in run.facts for run in data.runs)]
    if facts and all(run.name == ", ".join(_own(run, facts)) for run in data.runs):
        return facts  # the name would only repeat them
    return ["run", *facts]


def _own(run: ComparedRun, facts: Sequence[str]) -> list[str]:
    return [f"seed {run.facts[key]}" if key == "seed" else run.facts.get(key, "") for key in facts]


def _row(data: ComparisonData, number: int, first: Sequence[str]) -> list[str]:
    run, found = data.runs[number], _shown_difference(data, number)
    place = run.quoted
    cells = {"run": run.name, "step": "" if run.step is None else f"{run.step:,}", **run.facts}
    best = ""
    if place is not None:
        mark = (GIVEN if run.given else SELECTED) + (TIED if place.in_best_set else " ")
        best = f"{mark} {place.place}{f' {LATE}' * (not run.converged)}{f' {EDGE}' * place.is_at_edge}"
    return [
        *(cells.get(key, "") for key in first),
        best,
        "" if place is None or place.C is None else f"{place.C:g}",
        "" if place is None else f"{place.depth:.2f}",
        number_text(run.estimate),
        interval_text(run.interval),
        *_difference_texts(found),
    ]


def _shown_difference(data: ComparisonData, run: int) -> RunDifference | None:
    """The difference of one run that the table shows: to the previous run, or to the first."""
    shown = [each for each in data.differences if each.run == run]
    if data.meta["pairs"] != "previous":
        shown = [each for each in shown if each.minus == 0]
    return shown[0] if shown else None


def _difference_texts(found: RunDifference | None) -> list[str]:
    if found is None:
        return ["", "", "", ""]
    return [
        f"{found.difference:+z.3f}",
        signed_interval(found.interval),
        p_text(found.corrected),
        "unpaired" if found.kind == UNPAIRED else f"{found.n:,}",
    ]


def signed_interval(ends: Sequence[float] | None) -> str:
    """(-0.1, 0.2) -> "[-0.100, +0.200]"; empty for None."""
    return "" if ends is None else f"[{ends[0]:+z.3f}, {ends[1]:+z.3f}]"


def p_text(value: float | None, equals: str = "") -> str:
    """A p-value with two digits; the smallest are "< 0.001"."""
    if value is None or value < 0.001:
        return "" if value is None else "< 0.001"
    return equals + (f"{value:.2g}" if value < 0.1 else f"{value:.2f}")


def _group_rows(data: ComparisonData) -> list[list[str]]:
    header = ["seeds", "runs", f"mean test {metric_name(data.headline)}", "sd", "minus first", "95% interval"]
    rows = [
        [
            group.name,
            str(len(group.runs)),
            number_text(group.mean),
            number_text(group.spread),
            "" if group.difference is None else f"{group.difference:+z.3f}",
            signed_interval(group.interval),
        ]
        for group in data.groups
    ]
    return without_empty_columns([header, *rows])


def _marks(data: ComparisonData) -> list[str]:
    """The marks that the table has, in one line; no line if it has none."""
    quoted = [(run, run.quoted) for run in data.runs if run.quoted is not None]
    occurs = {
        GIVEN: any(run.given for run, _ in quoted),
        SELECTED: any(not run.given for run, _ in quoted),
        TIED: any(place.in_best_set for _, place in quoted),
        LATE: any(not run.converged for run, _ in quoted),
        EDGE: any(place.is_at_edge for _, place in quoted),
    }
    told = {GIVEN: "named, not selected on validation", **MARKS}
    shown = [f"{mark} {told[mark]}" for mark in occurs if occurs[mark]]
    return [f"Marks: {'; '.join(shown)}"] if shown else []


def comparison_notes(data: ComparisonData) -> list[str]:
    """What to quote, how differences were made and corrected, which are not paired, and the command."""
    notes = [_quote_note(data), _difference_note(data), *_partial_notes(data), _seeds_note(data)]
    return [note for note in [*notes, *data.meta["notes"], _command_note(data)] if note]


def _command_note(data: ComparisonData) -> str:
    """The command that makes the comparison again; nothing of one that was made in Python."""
    asked = data.meta.get("asked")
    return "" if asked is None else f"Make it again: {command_line(words_of(asked, asked['runs']))}"


def _quote_note(data: ComparisonData) -> str:
    """The scores to quote; a place that was named may have been named for its score."""
    quoted = [run for run in data.runs if run.estimate is not None and not run.given]
    without = [run.name for run in data.runs if run.estimate is None]
    notes = [f"No layer was selected: {listed(without, MOST_NAMED)}."] if without else []
    if not quoted:
        return " ".join(notes)
    noun = f"run without {GIVEN}" if any(run.given for run in data.runs) else "run"
    chosen = "its layer was selected on its own validation rows where there was a choice, and test selected nothing"
    nested = [run.best is None for run in quoted]
    sentence = quote_of_each(noun, [data.headline], nested, chosen, inside_folds())
    return " ".join([quote_line(sentence), *notes])


def _difference_note(data: ComparisonData) -> str:
    if not data.differences:
        return ""
    n = len(data.differences)
    used = {each.test for each in data.differences if each.p_value is not None}
    tests = listed([TESTS[test] for test in TESTS if test in used])
    paired = "on the same test rows" if any(each.kind == PAIRED for each in data.differences) else "of the estimates"
    over = f", corrected over {n} differences (Holm)" if n > 1 else ""
    more = " The table shows those to the first run; results.csv has every pair." * (data.meta["pairs"] == "all")
    return f"Differences {paired}{f'; p: {tests}{over}' if used else ''}.{more}"


def _partial_notes(data: ComparisonData) -> list[str]:
    """Why some differences are not paired, or not on all rows; each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in data.differences:
        if each.why:
            reasons.setdefault((each.kind, each.why), []).append(data.runs[each.run].name)
    notes = []
    for (kind, why), names in reasons.items():
        who = "" if len(names) == len(data.differences) else f" {listed(names, MOST_NAMED)}:"
        if kind == UNPAIRED:
            notes.append(f"Not paired:{who} {why}; the intervals were combined as of independent test rows.")
        else:
            notes.append(f"Paired in part:{who} {why}, so a difference is not that of the two estimates.")
    return notes + list(dict.fromkeys(each.few for each in data.differences if each.few))


def _seeds_note(data: ComparisonData) -> str:
    if not data.groups:
        return ""
    return "sd: standard deviation over seeds; differences between sets of seeds have Welch's interval over seeds."
