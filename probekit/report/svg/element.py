"""One SVG element: attribute values and texts are escaped, whatever they hold."""

from collections.abc import Iterable

from markupsafe import Markup, escape

from probekit.text import printable


def element(name: str, *children: object, **attributes: object) -> Markup:
    """An element with its attributes and children.

    Args:
        name: of the element.
        children: `Markup` as it is, texts escaped; control characters are written as escapes.
        attributes: `stroke_width` for stroke-width, `class_` for class; None leaves one out; numbers have two decimals.
    """
    known = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None]
    start = "".join(f' {key}="{escape(_value(value))}"' for key, value in known)
    return Markup(f"<{name}{start}>") + together(children) + Markup(f"</{name}>")


def together(parts: Iterable[object]) -> Markup:
    """Parts one after the other, texts escaped."""
    return Markup("").join(part if isinstance(part, Markup) else escape(printable(part)) for part in parts)


def hot(tip: str, inside: Iterable[Markup], is_first: bool) -> Markup:
    """Marks that say their values where they are pointed at or have the focus; arrow keys go to the next ones."""
    return element("g", *inside, class_="hot", tabindex="0" if is_first else "-1", role="img", aria_label=tip)


def svg(name: str, width: float, height: float, parts: Iterable[object], kind: str = "chart") -> Markup:
    """A picture with a name for those who do not see it; `kind` is its class."""
    shape = f"0 0 {width:g} {height:g}"
    return element("svg", *parts, class_=kind, viewBox=shape, width=width, height=height, role="group", aria_label=name)


def path_of(points: Iterable[tuple[float, float]], closed: bool = False) -> str:
    """The path through points, as the attribute `d`."""
    return "M" + "L".join(f"{_number(x)},{_number(y)}" for x, y in points) + ("Z" if closed else "")


def text_room(text: str, size: float = 12.0) -> float:
    """About how wide a text is, in pixels: the widths of a font are not known here."""
    # 0.56 and 0.70 of the size: the means of digits and small letters, and of capitals, in common sans-serif fonts
    return size * (0.56 * len(text) + 0.14 * sum(map(str.isupper, text)))


def _value(value: object) -> str:
    # lines of a label, which a screen reader reads one after the other, stay lines
    return _number(value) if isinstance(value, float) else "\n".join(map(printable, str(value).split("\n")))


def _number(value: float) -> str:
    """At most two decimals, and no "-0"."""
    return f"{value:z.2f}".rstrip("0").rstrip(".")
