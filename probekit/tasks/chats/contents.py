"""What is compared between texts: of chats, the messages that differ, not the template around them."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import reduce
from typing import Any

from probekit.tasks.base import Task
from probekit.tasks.chats.messages import content_of
from probekit.tasks.info import CHAT


def compared_inputs(task: Task) -> list[Any]:
    """The inputs as they are compared, for duplicates, near-duplicates, bag of words and lengths: N.

    Those of a chat task are the contents of its messages, without messages that all rows have, such as one system
    prompt.
    """
    if not _has_chats(task):
        return task.inputs
    if task.text_of is not None:  # a row for each token
        rows, of = task.texts()
        texts = compared_inputs(replace(task.subset(rows), text_of=None))
        return [texts[i] for i in of.tolist()]
    chats = [_messages(task, row) for row in range(len(task))]
    common = reduce(set.intersection, map(set, chats)) if len(chats) > 1 else set()
    texts = [_joined(chat, common) for chat in chats]
    return texts if all(map(str.strip, texts)) else [_joined(chat, set()) for chat in chats]


def as_compared(task: Task) -> Task:
    """The task with its `compared_inputs` as inputs; one without chats is returned as it is."""
    if not _has_chats(task):
        return task
    made = copy(task)  # without its checks, which take seconds where a million tokens are rows
    fields = dict.fromkeys(("chats", "regions", "token_ids", "generated", "rows_made"))
    for name, value in {**fields, "inputs": compared_inputs(task)}.items():
        object.__setattr__(made, name, value)
    return made


def _has_chats(task: Task) -> bool:
    return task.chats is not None or (task.regions is not None and CHAT in task.info)


def _messages(task: Task, row: int) -> list[tuple[str, str]]:
    """(role, content) of each message."""
    if task.chats is not None:
        return [(one["role"], content_of(one)) for one in task.chats[row]]
    text = str(task.inputs[row])
    return [(name, text[start:end]) for name, start, end in (task.regions or [])[row]]


def _joined(messages: Sequence[tuple[str, str]], without: set[tuple[str, str]]) -> str:
    return "\n".join(content for role, content in messages if (role, content) not in without)
