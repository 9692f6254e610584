"""The messages of chats, as they are given: checked, and as plain lines."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from probekit.errors import DataError
from probekit.tasks.tables.data_table import flaw_of, quote

ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")  # what a selection such as last@assistant can name
EXPECTED = 'expected a list of messages such as {"role": "user", "content": "..."}'


def is_chat(cell: Any) -> bool:
    """Whether a cell looks like a chat: a list of dicts."""
    return isinstance(cell, list | tuple) and bool(cell) and all(isinstance(one, Mapping) for one in cell)


def chat_flaw(cell: Any) -> tuple[str, str] | None:
    """What is wrong with a chat, as (kind, description); None if nothing is."""
    if not is_chat(cell):
        what = "a missing value" if cell is None else "an empty list" if cell in ([], ()) else quote(cell)
        return "chat", f"{EXPECTED}, got {what}; correct it"
    for i, message in enumerate(cell):
        if words := _message_flaw(message):
            return "chat", f"message {i}: {words}"
        if flaw := flaw_of([message["content"]]):
            return flaw[0], f"message {i}: {flaw[1]}"
    if not any(message["content"].strip() for message in cell):
        return "empty", "expected a message with a text, got only empty ones; write one"
    return None


def _message_flaw(message: Mapping[str, Any]) -> str | None:
    if missing := [name for name in ("role", "content") if name not in message]:
        there = ", ".join(map(quote, list(message)[:6]))
        return f"expected a role and a content, got no {missing[0]}, only {there}; correct it"
    role, content = message["role"], message["content"]
    if not isinstance(role, str) or not ROLE.fullmatch(role):
        return f"expected a role such as system, user or assistant, got {quote(role)}; correct it"
    if not isinstance(content, str):
        hint = "join its parts" if isinstance(content, list) else "write an empty text for a message without one"
        return f"expected a text as the content of {role}, got {quote(content)}; {hint}"
    return None


def as_chat(cell: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A sound chat with plain messages: what is missing, or no JSON, is left out, so that templates find it undefined.

    Tables give every message all names that one of them has.
    """
    return [{str(k): v for k, v in one.items() if v is not None and _is_plain(v)} for one in cell]


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return True
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def plain_lines(chat: Sequence[Mapping[str, Any]]) -> str:
    """A chat as a text without a template: "user: ..." and so on, for people and for comparisons."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in chat)


def check_chats(chats: Sequence[Any], ids: Sequence[Any]) -> None:
    """Check the chats of a task.

    Raises:
        DataError: the first that cannot be used, with its id.
    """
    for row, chat in enumerate(chats):
        if flaw := chat_flaw(chat):
            raise DataError(f"example {ids[row]!a}: {flaw[1]}")
