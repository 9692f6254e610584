"""A part of the page of a report."""

from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes:
        name: the anchor, and the prefix of the ids of its JSON blocks; letters, digits and hyphens.
        title: its heading and its line in the navigation.
        html: its body, from a template with autoescape or from the page's own SVG.
        data: what its script reads, by name: JSON-able, written as `<script type="application/json" id="NAME-KEY">`.
        folded: whether a reader opens it first.
    """

    name: str
    title: str
    html: Markup
    data: dict[str, Any] = field(default_factory=dict)
    folded: bool = False
