"""Options of every picture that a command writes."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from probekit.errors import UsageError
from probekit.options.check import is_real
from probekit.options.kinds import Kind, names
from probekit.options.option import OUTPUT, Options, option

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[str, ...] = get_args(Format)
NARROWEST, WIDEST = 2.0, 40.0  # inches


def check_inches(width: Any) -> Any:
    """`width` itself. Raises UsageError unless it is None or a number of inches that a picture can have."""
    if width is not None and not (is_real(width) and NARROWEST <= width <= WIDEST):
        raise UsageError(
            f"width is a number of inches from {NARROWEST:g} to {WIDEST:g}, such as 3.25; got {width!a:.40}"
        )
    return width


def _formats(_: str, given: Any) -> Any:
    """One format, or several, as they were given."""
    each = [given] if isinstance(given, str) else given
    if not each or not set(each) <= set(FORMATS):
        raise UsageError(f"format is {', '.join(FORMATS)}, or several of them; got {given!a}")
    return given


@dataclass(frozen=True, kw_only=True)
class PictureOptions(Options, heading=OUTPUT):
    """Title, width and format of a picture."""

    title: str | None = option(
        None,
        "Title of the picture.  [default: what was probed, in which model]",
        notes='As plain text; "" leaves it out.',
        metavar="TEXT",
    )
    no_title: bool = option(False, "Leave out the title and the facts under it, which a caption says.")
    width: float | None = option(
        None,
        "Width of the picture in inches: 3.25 is a column of a paper, 6.75 a page.  [default: each picture's own]",
        notes="Letters keep their size (8 points), so include the picture unscaled. Below 5 inches the facts under "
        "the title, values beside names, and the causal picture's small panels are left out.",
        kind=Kind(lambda _, value: check_inches(value), metavar="INCHES", typed=float),
    )
    format: Any = option(
        None,
        "Format of the picture: png, svg or pdf; several with commas.  [default: png,svg]",
        notes="Fonts are embedded in a PDF as TrueType, as publishers ask.",
        kind=Kind(_formats, names, "NAMES"),
    )

    @property
    def heading(self) -> str | None:
        """The title to draw; "" for none, None for the picture's own."""
        return "" if self.no_title else self.title

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats to write, the first one named first; none leaves them to the file's name."""
        return (self.format,) if isinstance(self.format, str) else tuple(self.format or ())
