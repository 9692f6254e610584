"""Lines over layers as data: series and what is drawn beside them, their legend, and the texts around them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from probekit.text import printable

LineLook = Literal["solid", "dashed", "dotted", "dash-dotted"]
Look = LineLook | Literal["band", "ring", "square", "tied", "shade", "hollow", "above", "below"]
Limits = tuple[float, float]
BELOW, ABOVE = "below the axis", "above the axis"
STRIP = 0.085  # of the height of axes with shades, at the bottom, for their names


@dataclass(frozen=True)
class Series:
    """A line; where a value is beyond the y axis it is interrupted, and a triangle at that end marks the value.

    A thin line, which goes with another, has no triangles.

    Attributes:
        xs: the layers.
        ys: a value for each.
        color: "#RRGGBB".
        look: of the line.
        dots: whether each value has a dot; without, only a value that no line goes to has one.
        thin: paler than the others.
        hollow: the layers whose dot is hollow.
        name: in the legend.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    color: str
    look: LineLook = "solid"
    dots: bool = True
    thin: bool = False
    hollow: frozenset[float] = frozenset()
    name: str = field(default="", compare=False)


@dataclass(frozen=True)
class Band:
    """A band between the (low, high) of each layer; at a single layer, where it has no width, a bar."""

    xs: tuple[float, ...]
    ends: tuple[Limits, ...]
    color: str
    name: str = field(default="", compare=False)
    look: Look = "band"


@dataclass(frozen=True)
class Rule:
    """A value that does not depend on the layer, across the axes; with `to` a range of values, at their right end.

    Ranges lie side by side, in the order of their `rank`.
    """

    value: float
    color: str
    look: LineLook = "dotted"
    to: float | None = None
    rank: int = 0
    name: str = field(default="", compare=False)


@dataclass(frozen=True)
class Ring:
    """A ring, or a square, around the value of a selected place."""

    x: float
    y: float
    color: str
    look: Literal["ring", "square"] = "ring"
    name: str = field(default="", compare=False)


@dataclass(frozen=True)
class Stretch:
    """Layers between two ends.

    Those that are tied with the best are a thick line on the layer axis, the higher the larger their `rank`. A shade is
    colour behind the layers, darker in a strip at the bottom that has its name if it fits there.
    """

    left: float
    right: float
    color: str
    look: Literal["tied", "shade"]
    rank: int = 0
    name: str = field(default="", compare=False)


Mark = Series | Band | Rule | Ring | Stretch


@dataclass(frozen=True)
class LegendEntry:
    """A line of a legend.

    Attributes:
        texts: the longest first; the first that fits is shown.
        look: of the mark that it names.
        color: of the mark; grey if marks of several colours have it.
        dots: whether the mark is a line with dots.
        thin: whether the mark is a thin line.
        is_own: whether it has a line of its own, over the others.
        is_minor: left out of low pictures.
    """

    texts: Sequence[str]
    look: Look
    color: str
    dots: bool = False
    thin: bool = False
    is_own: bool = False
    is_minor: bool = False


@dataclass(frozen=True)
class MarginLabel:
    """A name in the right margin, next to its value.

    Attributes:
        value: where on the y axis.
        name: of the line that ends there.
        color: of the text.
        number: after the name, where there is room.
        look: of a line that the legend does not name; "above" or "below" if the value is beyond the axis.
    """

    value: float
    name: str
    color: str
    number: str = ""
    look: Look | None = None

    @property
    def text(self) -> str:
        """Name and number."""
        return f"{self.name} {self.number}".rstrip()


@dataclass(frozen=True)
class LineChart:
    """A picture of lines over layers.

    Attributes:
        name: what it shows; the title.
        marks: the first series of several lie above the others.
        x_ticks: layer -> its name.
        x_limits: of the axis.
        y_limits: of the axis.
        x_name: of the axis.
        y_name: of the axis.
        tips: layer -> what is said of it, in lines.
        legend: from the top.
        margin: in any order.
        facts: what was probed, for a picture without a caption.
        cautions: what speaks against the result, in lines.
        notes: what the picture leaves out.
    """

    name: str
    marks: Sequence[Mark]
    x_ticks: dict[float, str]
    x_limits: Limits
    y_limits: Limits
    x_name: str
    y_name: str
    tips: dict[float, str] = field(default_factory=dict)
    legend: Sequence[LegendEntry] = ()
    margin: Sequence[MarginLabel] = ()
    facts: Sequence[str] = ()
    cautions: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def series(self) -> list[Series]:
        """The lines."""
        return [mark for mark in self.marks if isinstance(mark, Series)]

    @property
    def shades(self) -> list[Stretch]:
        """The colours behind layers."""
        return [mark for mark in self.marks if isinstance(mark, Stretch) and mark.look == "shade"]


def entry_of(
    mark: Mark, *texts: str, color: str | None = None, is_own: bool = False, is_minor: bool = False
) -> LegendEntry:
    """The legend's entry of a mark; its texts are the mark's name unless others are given."""
    dots, thin = (mark.dots, mark.thin) if isinstance(mark, Series) else (False, False)
    return LegendEntry(texts or [printable(mark.name)], mark.look, color or mark.color, dots, thin, is_own, is_minor)


def beyond_entries(marks: Iterable[Mark], limits: Limits, color: str | None = None) -> list[LegendEntry]:
    """The legend's entries of the triangles at the ends of the y axis; in `color`, or that of the first with one."""
    found: dict[str, LegendEntry] = {}
    for mark in marks:
        for y in mark.ys if isinstance(mark, Series) and not mark.thin else ():
            if y < limits[0] or y > limits[1]:
                name, look = (BELOW, "below") if y < limits[0] else (ABOVE, "above")
                found.setdefault(name, LegendEntry([name], look, color or mark.color, is_minor=True))
    return list(found.values())


def visible_runs(values: Sequence[float], limits: Limits) -> list[range]:
    """The stretches of consecutive values between the ends of an axis, as ranges of indices.

    A line is drawn through each of them, and every other value is marked at the end that it is beyond: a line to such a
    value, cut at the axis, would look like data.
    """
    found: list[range] = []
    for i in (i for i, value in enumerate(values) if limits[0] <= value <= limits[1]):
        goes_on = bool(found) and found[-1].stop == i
        found[-1 if goes_on else len(found) :] = [range(found[-1].start if goes_on else i, i + 1)]
    return found


def lone(one: Series, limits: Limits) -> list[int]:
    """The indices of the values of a series without dots that no line goes to."""
    return [] if one.dots else [run.start for run in visible_runs(one.ys, limits) if len(run) == 1]
