"""What a section is made of, as data: lines, tables, figures, facts, commands. `render.py` makes HTML of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup


@dataclass(frozen=True)
class Lines:
    """Paragraphs.

    Attributes:
        lines: the paragraphs.
        kind: "verdict" for a poor result, "lead" for the answer, "note" for small print, "caution" for a warning.
    """

    lines: Sequence[str]
    kind: Literal["text", "verdict", "lead", "note", "caution"] = "text"


@dataclass(frozen=True)
class Items:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class PageTable:
    """A table whose first row is the header.

    Attributes:
        rows: header and body.
        left: how many columns are flush left; the others are flush right.
        bold: rows of the body in bold, counted from 0.
        caption: over the table.
        wraps: whether cells hold sentences, which go on in the next line.
    """

    rows: Sequence[Sequence[str]]
    left: int = 1
    bold: Collection[int] = ()
    caption: str = ""
    wraps: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        wide: SVG.
        caption: under it.
        narrow: the same for a phone; None takes `wide` for both.
        legend: (name, color, look) of each line or mark.
        hint: what a reader can do with it, until a value is shown there.
    """

    wide: Markup
    caption: str = ""
    narrow: Markup | None = None
    legend: Sequence[tuple[str, str, str]] = ()
    hint: str = "Point at a mark for its values, or use Tab and the arrow keys."


@dataclass(frozen=True)
class Pictures:
    """Figures next to one another where there is room."""

    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Commands:
    """Commands to run, one a line."""

    lines: Sequence[str]


@dataclass(frozen=True)
class More:
    """Parts that are shown when their title is opened."""

    title: str
    parts: "Sequence[Part]"


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


Part = Lines | Items | PageTable | Picture | Pictures | Facts | Commands | More | Heading
