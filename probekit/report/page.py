"""The shell of the page: header, navigation, sections, data, and a policy under which nothing else can run or load."""

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from markupsafe import Markup

from probekit.machine.versions import __version__
from probekit.report.render import asset, json_block, rendered
from probekit.report.section import Section

GENERATOR = f"probekit {__version__}"
_ANCHOR = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True)
class Group:
    """The sections of one run.

    Attributes:
        name: the anchor.
        title: as plain text.
        sections: in the order of the page.
    """

    name: str
    title: str
    sections: Sequence[Section]


@dataclass(frozen=True)
class Page:
    """A page: its title, a line under it, and its sections in groups; a single group has no heading."""

    title: str
    subtitle: str
    groups: Sequence[Group]


def page_html(page: Page, styles: Sequence[str] = (), scripts: Sequence[str] = ()) -> str:
    """The page as one HTML file.

    Args:
        page: what it shows.
        styles: files of style sheets after the page's own, in the folder of the report.
        scripts: files of scripts after the page's own.
    """
    sections = [section for group in page.groups for section in group.sections]
    names = [group.name for group in page.groups] + [section.name for section in sections]
    assert all(map(_ANCHOR.fullmatch, names)), names
    assert len(set(names)) == len(names), f"two parts of the page have one anchor among {names}"
    sheets, programs = [asset(name) for name in ("page.css", *styles)], [asset(name) for name in ("page.js", *scripts)]
    blocks = [(f"{one.name}-{key}", json_block(value)) for one in sections for key, value in one.data.items()]
    html = rendered(
        "page.html",
        {
            "page": page,
            "generator": GENERATOR,
            "policy": policy_of(sheets, programs),
            "styles": [Markup(sheet) for sheet in sheets],
            "scripts": [Markup(program) for program in programs],
            "blocks": blocks,
        },
    )
    return str(html) + "\n"


def policy_of(sheets: Sequence[str], programs: Sequence[str]) -> str:
    """The Content-Security-Policy: nothing but these style sheets and scripts, and no request at all."""
    allowed = {"script-src": programs, "style-src": sheets}
    hashes = [f"{kind} {' '.join(map(_hash, texts))}" for kind, texts in allowed.items()]
    return "; ".join(["default-src 'none'", *hashes, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
