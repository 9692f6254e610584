"""What is compared between texts: of chats, the messages that differ, not the template around them."""

from functools import reduce
from typing import Any

from probekit.tasks.base import Task
from probekit.tasks.info import CHAT


def compared_inputs(task: Task) -> list[Any]:
    """The inputs as they are compared, for duplicates, near-duplicates, bag of words and lengths: N.

    Those of a chat task are the contents of its messages, without messages that all rows have, such as one system
    prompt.
    """
    if task.chats is not None:
        rows = [[(one["role"], one["content"]) for one in chat] for chat in task.chats]
    elif task.regions is not None and CHAT in task.info:
        inputs = zip(task.inputs, task.regions, strict=True)
        rows = [[(name, str(text)[start:end]) for name, start, end in own] for text, own in inputs]
    else:
        return list(task.inputs)
    common = reduce(set.intersection, map(set, rows)) if len(rows) > 1 else set()
    texts = [_joined(row, common) for row in rows]
    return texts if all(map(str.strip, texts)) else [_joined(row, set()) for row in rows]


def _joined(row: list[tuple[str, str]], without: set[tuple[str, str]]) -> str:
    return "\n".join(content for role, content in row if (role, content) not in without)
