"""The messages of chats: checked, as plain lines, and what of them is compared between texts."""

import json
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import reduce
from typing import Any

from probekit.errors import DataError
from probekit.tasks.fields import CHAT
from probekit.tasks.tables.data_table import Flaw, flaw_of, quote

ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")  # what a selection such as last@assistant can name
CALLS = ("tool_calls", "function_call")  # what a message may have in place of a content
Task = Any  # `tasks.base.Task`, which imports this module
EXPECTED = 'expected a list of messages such as {"role": "user", "content": "..."}'


def is_chat(cell: Any) -> bool:
    """Whether a cell looks like a chat: a list of dicts."""
    return isinstance(cell, list | tuple) and bool(cell) and all(isinstance(one, Mapping) for one in cell)


def chat_flaw(cell: Any) -> Flaw | None:
    """What is wrong with a chat, as (kind, description); None if nothing is."""
    if not is_chat(cell):
        what = "a missing value" if cell is None else "an empty list" if cell in ([], ()) else quote(cell)
        return "chat", f"{EXPECTED}, got {what}; correct it"
    for i, message in enumerate(cell):
        if words := _message_flaw(message):
            return "chat", f"message {i}: {words}"
        if flaw := flaw_of([content_of(message)]):
            return flaw[0], f"message {i}: {flaw[1]}"
    if not any(content_of(message).strip() for message in cell):
        return "empty", "expected a message with a text, got only empty ones; write one"
    return None


def _message_flaw(message: Mapping[str, Any]) -> str | None:
    role, content = message.get("role"), _array_as_list(message.get("content"))
    calls = content is None and any(_array_as_list(message.get(name)) for name in CALLS)
    if missing := [name for name in ("role", "content") if name not in message and not (calls and name == "content")]:
        there = ", ".join(map(quote, list(message)[:6]))
        return f"expected a role and a content, got no {missing[0]}, only {there}; correct it"
    if not isinstance(role, str) or not ROLE.fullmatch(role):
        return f"expected a role such as system, user or assistant, got {quote(role)}; correct it"
    if isinstance(content, str) or calls:
        return None
    if not isinstance(content, list):
        hint = "write an empty text for a message without one"
        return f"expected a text as the content of {role}, got {quote(content)}; {hint}"
    return next((words for j, part in enumerate(content) if (words := _part_flaw(j, part, role))), None)


def _part_flaw(j: int, part: Any, role: str) -> str | None:
    """What is wrong with a part of a content."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" and isinstance(kind, str):
        return f"part {j} of the content of {role} is {quote(kind)}, and models read texts alone; leave it out"
    if kind != "text" or not isinstance(part.get("text"), str):
        return (
            f'expected a text or {{"type": "text", "text": "..."}} as part {j} of {role}, got {quote(part)}; correct it'
        )
    return None


def content_of(message: Mapping[str, Any]) -> str:
    """The content of a sound message: the texts of its parts joined; empty where it has calls of tools alone."""
    content = _array_as_list(message.get("content"))
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


def _array_as_list(value: Any) -> Any:
    """A value, or the list of an array or tuple: data frames that were read from Parquet hold arrays."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, tuple) else value


def checked_chats(chats: Sequence[Any], ids: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """The chats of a task with plain messages, as templates read them.

    Contents are texts. What is missing, or no JSON, is left out, so that templates find it undefined: tables give every
    message all names that one of them has.

    Raises:
        DataError: the first that cannot be used, with its id.
    """
    for row, chat in enumerate(chats):
        if flaw := chat_flaw(chat):
            raise DataError(f"example {ids[row]!a}: {flaw[1]}")
    return [[_plain(message) for message in chat] for chat in chats]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    values = {str(name): _as_json(value) for name, value in message.items() if name != "content"}
    if message.get("content") is not None:
        values["content"] = content_of(message)
    return {str(name): values[str(name)] for name in message if values.get(str(name)) is not None}


def _as_json(value: Any) -> Any:
    """The value as JSON holds it, with arrays as lists; None if it cannot."""
    if isinstance(value, str):
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=lambda one: one.tolist()))
    except (AttributeError, TypeError, ValueError, RecursionError):
        return None


def plain_lines(chat: Sequence[Mapping[str, Any]]) -> str:
    """A chat as a text without a template: "user: ..." and so on, for people and for comparisons."""
    return "\n".join(f"{message['role']}: {content_of(message)}" for message in chat)


def compared_inputs(task: Task) -> list[Any]:
    """The inputs as they are compared, for duplicates, near-duplicates, bag of words and lengths: N.

    Those of a chat task are the contents of its messages, without messages that all rows have, such as one system
    prompt.
    """
    if not has_chats(task):
        return task.inputs
    if task.text_of is not None:  # a row for each token
        rows, of = task.texts()
        texts = compared_inputs(replace(task.subset(rows), text_of=None))
        return [texts[i] for i in of.tolist()]
    chats = [messages_of(task, row) for row in range(len(task))]
    common = reduce(set.intersection, map(set, chats)) if len(chats) > 1 else set()
    texts = [_joined(chat, common) for chat in chats]
    return texts if all(map(str.strip, texts)) else [_joined(chat, set()) for chat in chats]


def as_compared(task: Task) -> Task:
    """The task with its `compared_inputs` as inputs; one without chats is returned as it is."""
    if not has_chats(task):
        return task
    made = copy(task)  # without its checks, which take seconds where a million tokens are rows
    fields = dict.fromkeys(("chats", "regions", "token_ids", "generated", "rows_made"))
    for name, value in {**fields, "inputs": compared_inputs(task)}.items():
        object.__setattr__(made, name, value)
    return made


def has_chats(task: Task) -> bool:
    """Whether the texts are chats, before or after a template made texts of them."""
    return task.chats is not None or (task.regions is not None and CHAT in task.info)


def messages_of(task: Task, row: int) -> list[tuple[str, str]]:
    """(role, content) of each message of a task with chats."""
    if task.chats is not None:
        return [(one["role"], content_of(one)) for one in task.chats[row]]
    text = str(task.inputs[row])
    return [(name, text[start:end]) for name, start, end in (task.regions or [])[row]]


def _joined(messages: Sequence[tuple[str, str]], without: set[tuple[str, str]]) -> str:
    return "\n".join(content for role, content in messages if (role, content) not in without)
