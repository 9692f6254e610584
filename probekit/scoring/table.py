"""Scores as a table for a terminal and for a notebook, with what the columns mean."""

from typing import Any

import numpy as np

from probekit.scoring.rows import ScoreRows, score_columns
from probekit.tables import html_page, html_table, text_table
from probekit.text import counted, printable

MOST_ROWS = 200  # of a table; more go to a file
_LONGEST = 48  # characters of a text, and of a token


def scores_text(rows: ScoreRows) -> str:
    """Title, table and notes."""
    return "\n".join([*scores_table(rows), "", *map(printable, rows.meta["notes"])])


def scores_table(rows: ScoreRows) -> list[str]:
    """Title and table, line by line."""
    table = text_table(_cells(rows), left=_left(rows)).split("\n")
    return [*map(printable, [scores_title(rows.meta), "", *table, *_rest(rows)])]


def scores_html(rows: ScoreRows) -> str:
    """The same as HTML."""
    table = html_table(_cells(rows), left=_left(rows))
    return html_page(scores_title(rows.meta), table, [*_rest(rows), *rows.meta["notes"]])


def scores_title(meta: dict[str, Any]) -> str:
    """The probe, its place and its model in one line."""
    return (
        f"{meta['label']} in {meta['model']}: {meta['probe']} probe at {meta['place']}, {meta['read']}, "
        f"trained on {meta['task']}"
    )


def _left(rows: ScoreRows) -> int:
    return 1 + (rows.texts is not None) + 2 * (rows.tokens is not None)


def _rest(rows: ScoreRows) -> list[str]:
    more = len(rows.ids) - MOST_ROWS
    return [f"... and {counted(more, 'row')} more"] if more > 0 else []


def _cells(rows: ScoreRows) -> list[list[str]]:
    """Header and the first rows; the columns of single classes are left to files."""
    columns = {name: x for name, x in score_columns(rows).items() if " of " not in name}
    order = [name for name in ("id", "token_index", "text", "token") if name in columns]
    names = [*order, *(name for name in columns if name not in order)]
    header = [name.replace("_", " ") for name in names]
    return [header, *([_cell(name, columns[name][i]) for name in names] for i in range(min(len(rows.ids), MOST_ROWS)))]


def _cell(name: str, value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "-"
    if isinstance(value, float | np.floating):
        return f"{value:.4f}" if name == "probability" else f"{value:.4g}"
    text = "-" if value is None else str(value)
    if name == "token":
        text = repr(text)  # blanks show
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
