"""The YAML header of a card, and a mark by which a card that nobody edited is recognised."""

import hashlib
import re
from collections.abc import Mapping, Sequence

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9-]*(\.[0-9]+)?")
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
_MARK = re.compile(r"\n<!-- made by probekit; an edited card is never replaced: ([0-9a-f]{64}) -->\n\Z")


def front_matter(fields: Mapping[str, str | bool | Sequence[str] | None]) -> list[str]:
    """The lines of the header; fields without a value are left out.

    Texts other than plain words are quoted, with all but plain ASCII escaped: whatever a name holds, it stays one text.
    """
    lines = ["---"]
    for name, value in fields.items():
        if isinstance(value, str | bool):
            lines.append(f"{name}: {_scalar(value)}")
        elif value:
            lines += [f"{name}:", *(f"- {_scalar(one)}" for one in value)]
    return [*lines, "---", ""]


def _scalar(value: str | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    # not as JSON, whose pairs of surrogates YAML reads as two characters
    letters = (c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
    return f'"{"".join(letters)}"'


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
