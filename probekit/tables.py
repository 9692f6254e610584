"""Tables of text for a terminal, and of HTML for a notebook; every cell is escaped, because names come from data."""

from collections.abc import Sequence
from html import escape

from probekit.text import printable

Row = Sequence[str]


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


def html_table(rows: Sequence[Row]) -> str:
    """Rows as an HTML table; the first is the header."""
    header, *body = [[escape(printable(cell)) for cell in row] for row in rows]
    head = "".join(f"<th>{cell}</th>" for cell in header)
    lines = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
