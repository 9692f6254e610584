"""HTML from data: templates that escape whatever they are given, and JSON that no parser takes for HTML."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from probekit.report.parts import Part
from probekit.text import printable

FOLDER = Path(__file__).parent
_HTML = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}  # JSON has its own way to write them


def html_of(parts: Sequence[Part]) -> Markup:
    """The parts of a section as HTML."""
    return rendered("parts.html", {"parts": parts})


def rendered(template: str, values: Mapping[str, Any]) -> Markup:
    """A template with values: texts are made printable and escaped, a name that is missing is an error."""
    return Markup(_templates().get_template(template).render(values))


def json_block(value: Any) -> Markup:
    """A value as JSON for `<script type="application/json">`: ASCII, strict, and without a character of HTML.

    Raises:
        ValueError: nan or infinity, which JSON cannot hold.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_HTML))


@cache
def asset(name: str) -> str:
    """A style sheet or a script of this folder."""
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    env = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["kind"] = lambda part: type(part).__name__
    env.filters["rendered"] = html_of
    return env
