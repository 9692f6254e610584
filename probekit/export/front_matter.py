"""The YAML header of a card, and a mark by which a card that nobody edited is recognised."""

import hashlib
import re
from collections.abc import Mapping, Sequence

import yaml

_MARK = re.compile(r"\n<!-- made by probekit; an edited card is never replaced: ([0-9a-f]{64}) -->\n\Z")


def front_matter(fields: Mapping[str, str | bool | Sequence[str] | None]) -> list[str]:
    """The lines of the header; fields without a value are left out. Whatever a name holds, it stays one text."""
    given = {name: value for name, value in fields.items() if isinstance(value, str | bool) or value}
    return ["---", *yaml.safe_dump(given, sort_keys=False).splitlines(), "---", ""]


def marked(card: str) -> str:
    """The card with the checksum of its text as the last line."""
    text = card.rstrip("\n")
    return f"{text}\n<!-- made by probekit; an edited card is never replaced: {_digest(text)} -->\n"


def is_unedited(card: str) -> bool:
    """True for a card as `marked` returned it."""
    found = _MARK.search(card)
    return found is not None and found[1] == _digest(card[: found.start()])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
