"""The table of a sweep as text for a terminal and HTML for a notebook."""

from collections.abc import Sequence
from typing import Any

from probekit.evaluation.results.quote import ON_VALIDATION, inside_folds, quote_line, quote_of_each
from probekit.evaluation.results.wording import interval_text, metric_name, number_text
from probekit.options.question import words_of
from probekit.options.typed import command_line
from probekit.sweeps.data import SweepData, SweepRow, SweepRun
from probekit.tables import html_page, html_table, text_table, without_empty_columns
from probekit.text import counted, listed, printable

NAME = 40  # characters of a name in the table
QUICK = (
    "Quick look: p-values are left out, and unless they were asked for by name control tasks, code length and the "
    "bag-of-words and length baselines. Run a task again without --quick before you quote it."
)
NAMED = {"model": 1, "label": 2, "point": 3, "probe": 4}  # columns that are left out where all rows are the same


def sweep_summary(data: SweepData) -> str:
    """Title, table and notes as text."""
    rows = _rows(data)
    table = text_table(rows, left=_left(rows)).split("\n") if len(rows) > 1 else []
    return "\n".join(map(printable, [sweep_title(data), *(["", *table] if table else []), "", *sweep_notes(data)]))


def sweep_html(data: SweepData) -> str:
    """The same as HTML."""
    rows = _rows(data)
    return html_page(sweep_title(data), html_table(rows, left=_left(rows)), sweep_notes(data))


def sweep_title(data: SweepData) -> str:
    """How many tasks and models, and what all rows have in common."""
    rows = [row for run in data.runs for row in run.rows]
    tasks, models = data.meta["tasks"], data.meta["models"]
    title = f"{counted(len(tasks), 'task')}, {counted(len(models), 'model')}"
    names = [listed(models)] if len(models) == 1 else []
    names += [
        f"{next(iter(same))}" for key in ("point", "probe") if len(same := {getattr(row, key) for row in rows}) == 1
    ]
    return f"{title}: {', '.join(map(_short, names))}" if names else title


def sweep_notes(data: SweepData) -> list[str]:
    """What to quote, how many curves lead over a baseline, what is missing, failed or was warned of, the commands."""
    rows = [row for run in data.runs for row in run.rows]
    ahead = sum(row.lead_low is not None and row.lead_low > 0 for row in rows)
    known = sum(row.lead_low is not None for row in rows)
    corrected = "95% intervals, not corrected for the number of curves"
    quick = bool((data.meta.get("settings") or {}).get("quick"))
    notes = [] if quick or all(row.value is None for row in rows) else [quote_line(quote_of_rows(rows))]
    notes += [f"{ahead} of {counted(known, 'curve')} lead over the best baseline ({corrected})."] if known else []
    notes += [QUICK] if quick and rows else []
    expected = len(data.meta["tasks"]) * len(data.meta["models"])
    notes += [f"Not finished: {len(data.runs)} of {expected} runs ended."] if len(data.runs) < expected else []
    warned = [run for run in data.runs if run.warnings and not run.error]
    notes += [f"Warnings in {counted(len(warned), 'run')}: {warned[0].task}: {warned[0].warnings[0]}"] if warned else []
    notes += [f"Failed: {failure_text(run, len(data.meta['models']) > 1)}" for run in data.failed]
    commands = [
        words_of(one, ["--model", one["model"], "--dataset", one["dataset"]]) for one in data.meta.get("asked", [])
    ]
    return notes + [f"Make it again: {command_line(words)}" for words in commands]


def quote_of_rows(rows: Sequence[SweepRow]) -> str:
    """The scores to quote, of the rows that have one."""
    quoted = [row for row in rows if row.value is not None]
    noun = "curve" if len(quoted) == len(rows) else "curve that has a score"
    metrics, nested = [row.metric for row in quoted], [not row.place for row in quoted]
    return quote_of_each(noun, metrics, nested, f"its place was {ON_VALIDATION}", inside_folds())


def failure_text(run: SweepRun, with_model: bool) -> str:
    """A run that failed, and why, in one line."""
    return f"{run.task}{f' with {run.model}' if with_model else ''}: {run.error}"


def _rows(data: SweepData) -> list[list[str]]:
    """Header and rows, without columns that are empty or the same for all."""
    pairs = [(run, row) for run in data.runs for row in run.rows]
    header = ["task", "model", "label", "point", "probe", "best place", "metric", "test", "95% interval"]
    header += ["best baseline", "lead", "found", "seconds"]
    body = [_cells(run, row) for run, row in pairs]
    for name, column in NAMED.items():
        is_needed = name == "model" and len(data.meta["models"]) > 1  # one of them may have no row
        if len({cells[column] for cells in body}) < 2 and not is_needed:
            for cells in body:
                cells[column] = ""
    return without_empty_columns([header, *body])


def _left(rows: Sequence[Sequence[str]]) -> int:
    """How many columns of names there are."""
    return next(i for i, name in enumerate([*rows[0], "best place"]) if name == "best place")


def _cells(run: SweepRun, row: SweepRow) -> list[str]:
    ends = None if row.low is None or row.high is None else (row.low, row.high)
    baseline = f"{row.baseline} {number_text(row.baseline_value)}" if row.baseline else ""
    return [
        *map(_short, (run.task, run.model, row.label, row.point, row.probe)),
        row.place,
        metric_name(row.metric),
        number_text(row.value),
        interval_text(ends),
        baseline,
        "" if row.lead is None else f"{row.lead:+z.3f}",
        "; ".join(row.flags),
        f"{run.seconds:.1f}",
    ]


def _short(name: Any) -> str:
    text = str(name)
    return text if len(text) <= NAME else f"{text[: NAME // 2 - 1]}…{text[-NAME // 2 :]}"
