"""A grid of cells as data: layers by positions, heads, steps or tokens, tasks by tasks, classes by classes."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: in the cell.
        tip: what is said of it, in lines.
        level: -1 (red) to 1 (blue).
        muted: drawn grey, without its level.
        framed: the selected one.
        under: small, under the text, where there is room; the tip says it too.
        bold: whether the text is bold.
    """

    text: str
    tip: str
    level: float = 0.0
    muted: bool = False
    framed: bool = False
    under: str = ""
    bold: bool = False


@dataclass(frozen=True)
class CellGrid:
    """A picture of cells.

    Attributes:
        name: what it shows; the title where it has one.
        rows: [R] names.
        columns: [C] names.
        cells: [R][C].
        y_name: of the rows.
        x_name: of the columns.
        first_at_bottom: whether the first row is the lowest.
        notes: what the colours mean and what was probed, in lines.
        footer: (name, [C] texts) of rows without colours, under the cells.
        scale: name of the colours, and the value of level 1; None where each column has colours of its own.
        caption: a sentence for those who read the picture on a page.
    """

    name: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[Cell]]
    y_name: str = ""
    x_name: str = ""
    first_at_bottom: bool = False
    notes: Sequence[str] = ()
    footer: Sequence[tuple[str, Sequence[str]]] = ()
    scale: tuple[str, float] | None = None
    caption: str = ""
