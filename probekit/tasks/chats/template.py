"""A chat template and where it comes from."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ChatTemplate:
    """The Jinja template that makes a text of messages.

    Attributes:
        text: in Jinja.
        origin: a file's name, for errors and for the record of a run.
        tokens: texts of special tokens by name, such as "bos_token", which the template may write.
    """

    text: str
    origin: str
    tokens: Mapping[str, str] = field(default_factory=dict)


def template_sha256(template: ChatTemplate) -> str:
    """Hex sha256 of the template's text."""
    return hashlib.sha256(template.text.encode("utf-8", "surrogatepass")).hexdigest()


def described(template: ChatTemplate) -> str:
    """The template as an error names it."""
    return f"the chat template of {ascii(template.origin)[1:-1]}"
