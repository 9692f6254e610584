"""A grid of cells as SVG.

A cell is filled with blue or red over the page's own background, so that it reads in both themes.
"""

from markupsafe import Markup

from probekit.charts.cells import CellGrid
from probekit.report.svg.element import element, hot, svg, text_room, together

CELL = (34.0, 62.0, 40.0)  # pixels: height, least width, least width of many columns
MANY = 12  # columns
DARKEST = 0.7  # opacity of a full cell; more would leave too little contrast to its text
NAME = 24  # letters of a row or column


def draw_grid(grid: CellGrid) -> Markup:
    """The grid as SVG."""
    rows = [name.partition("\n")[0] for name in grid.rows]  # the tips say the rest
    order = list(range(len(rows)))[:: -1 if grid.first_at_bottom else 1]
    longest = max(text_room(cell.text) for row in grid.cells for cell in row) + 10
    wide, high = max(CELL[1 if len(grid.columns) < MANY else 2], longest), CELL[0]
    left = max(map(text_room, map(_short, rows))) + 34
    slanted = max(map(text_room, map(_short, grid.columns))) > wide - 6
    under = 30 + (0.64 * max(map(text_room, map(_short, grid.columns))) + 12 if slanted else 18)
    width = max(left + wide * len(grid.columns), left + text_room(grid.x_name)) + 40 * slanted + 8
    bottom = 6 + high * len(rows)
    parts = [
        _cell(grid, i, j, (left + wide * j, 6 + high * k), wide)
        for k, i in enumerate(order)
        for j in range(len(grid.columns))
    ]
    parts += [
        element("text", _short(rows[i]), class_="tick end", x=left - 7, y=6 + high * (k + 0.5) + 4)
        for k, i in enumerate(order)
    ]
    parts += [
        _column_name(_short(name), left + wide * (j + 0.5), bottom + 16, slanted) for j, name in enumerate(grid.columns)
    ]
    middle = left + wide * len(grid.columns) / 2
    parts.append(element("text", grid.x_name, class_="axis mid", x=middle, y=bottom + under - 6))
    parts.append(
        element("text", grid.y_name, class_="axis mid", transform=f"translate(13 {(6 + bottom) / 2:g}) rotate(-90)")
    )
    return svg(grid.name, width, bottom + under, [together(parts)], "grid-chart")


def _cell(grid: CellGrid, i: int, j: int, at: tuple[float, float], wide: float) -> Markup:
    cell, (x, y) = grid.cells[i][j], at
    color = "muted" if cell.muted else "blue" if cell.level >= 0 else "red"
    opacity = 0.35 if cell.muted else DARKEST * min(abs(cell.level), 1.0)
    inside = [
        element("rect", class_="back", x=x, y=y, width=wide, height=CELL[0]),
        element("rect", class_=f"{color} cell", x=x, y=y, width=wide, height=CELL[0], fill_opacity=opacity),
    ]
    if cell.text:
        inside.append(element("text", cell.text, class_="value mid", x=x + wide / 2, y=y + CELL[0] / 2 + 4))
    if cell.framed:
        inside.append(element("rect", class_="frame", x=x + 1.5, y=y + 1.5, width=wide - 3, height=CELL[0] - 3))
    return hot(cell.tip, inside, is_first=i == j == 0)


def _column_name(name: str, x: float, y: float, slanted: bool) -> Markup:
    if slanted:
        return element("text", name, class_="tick end", transform=f"translate({x + 4:g} {y - 2:g}) rotate(-40)")
    return element("text", name, class_="tick mid", x=x, y=y)


def _short(name: str) -> str:
    return name if len(name) <= NAME else f"{name[: NAME - 9]}…{name[-8:]}"
