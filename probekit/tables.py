"""Tables as text for a terminal, HTML for a notebook, and Markdown for documents.

Cells of the first two may come from data, so each one is escaped.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from probekit.text import printable

Row = Sequence[str]


@dataclass(frozen=True)
class TableReport:
    """What a summary is made of.

    Attributes:
        title: in one line.
        lines: over the table.
        rows: header and body; the header alone where there is no table.
        notes: under the table.
        bold: rows of the body that are selected, counted from 0.
        left: how many columns are flush left.
    """

    title: str
    lines: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str]
    bold: Collection[int] = ()
    left: int = 1


def text_table(rows: Sequence[Row], left: int = 1, gap: str = "  ") -> str:
    """Rows as aligned lines; the first `left` columns are flush left, the others flush right."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        gap.join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def html_table(rows: Sequence[Row], left: int = 1, bold: Collection[int] = ()) -> str:
    """Rows as an HTML table; the first is the header.

    Args:
        rows: header and body.
        left: how many columns are flush left; the others are flush right.
        bold: rows of the body to set in bold, counted from 0.
    """
    header, *body = rows
    lines = [
        f'<tr style="font-weight:{"bold" if i in bold else "normal"}">{_html_cells(row, "td", left)}</tr>'
        for i, row in enumerate(body)
    ]
    return f"<table><thead><tr>{_html_cells(header, 'th', left)}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def html_page(title: str, table: str, notes: Iterable[str]) -> str:
    """A bold title, an HTML table, and lines of text under it; title and lines are escaped."""
    paragraphs = "".join(f"<p>{escape(printable(note))}</p>" for note in notes)
    return f"<div><p><b>{escape(printable(title))}</b></p>{table}{paragraphs}</div>"


def markdown_table(header: Row, rows: Iterable[Row]) -> str:
    """A header and rows as a Markdown table; the cells are Markdown already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def without_empty_columns(rows: Sequence[Row]) -> list[list[str]]:
    """The rows without columns whose body is empty; the first column always stays."""
    kept = [i for i in range(len(rows[0])) if i == 0 or any(row[i] for row in rows[1:])]
    return [[row[i] for i in kept] for row in rows]


def _html_cells(row: Row, tag: str, left: int) -> str:
    return "".join(
        f'<{tag} style="text-align:{"left" if i < left else "right"}">{escape(printable(cell))}</{tag}>'
        for i, cell in enumerate(row)
    )
